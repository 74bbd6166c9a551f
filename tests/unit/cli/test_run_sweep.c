/* What kelp gc clears away, and what it never touches. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cli/runs/run_sweep.h"
#include "common/base/files.h"
#include "tests/lib/suite.h"

#define HOUR 3600

static char folder[64];
static struct kelp_error error;

static void setup(void)
{
    (void)snprintf(folder, sizeof(folder), "/tmp/kelp-run-sweep-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(chdir(folder), 0);
}

static void teardown(void)
{
    (void)chdir("/");
    ck_assert_int_eq(kelp_files_remove(folder, NULL), KELP_OK);
}

static struct kelp_run_info runs[] = {
    {.path = "runs/a", .state = KELP_RUN_STATE_DONE, .age_s = 50},
    {.path = "runs/b", .state = KELP_RUN_STATE_RUNNING},
    {.path = "runs/c", .state = KELP_RUN_STATE_FAILED, .age_s = 9},
    {.path = "runs/d", .state = KELP_RUN_STATE_DONE, .age_s = 70},
    {.path = "runs/e", .state = KELP_RUN_STATE_BROKEN, .age_s = 60}};

KELP_CASE("run_sweep", .setup = setup, .teardown = teardown)

/* By number, by age, by both; never one that goes on, nor the newest that is done. */
KELP_TEST(which_runs)
{
    static const struct {
        struct kelp_sweep_rule rule;
        const char *gone;
    } cases[] = {{{.by_count = true, .keep = 2}, "de"},
                 {{.by_count = true, .keep = 0}, "cde"},
                 {{.by_count = true, .keep = 0, .newest = true}, "acde"},
                 {{.by_count = true, .keep = 9}, ""},
                 {{.by_age = true, .older_s = 55}, "de"},
                 {{.by_age = true, .older_s = 1}, "cde"},
                 {{.by_age = true, .older_s = 65, .by_count = true, .keep = 2}, "de"},
                 {{.newest = true}, ""}};
    const struct kelp_run_list list = {.items = runs, .count = KELP_ARRAY_COUNT(runs)};

    for (size_t i = 0; i < KELP_ARRAY_COUNT(cases); i++) {
        bool marks[KELP_ARRAY_COUNT(runs)];
        char gone[KELP_ARRAY_COUNT(runs) + 1] = "";
        kelp_sweep_mark_runs(&list, &cases[i].rule, marks);
        for (size_t r = 0; r < list.count; r++) {
            if (marks[r]) {
                (void)strncat(gone, runs[r].path + strlen("runs/"), 1);
            }
        }
        ck_assert_str_eq(gone, cases[i].gone);
    }
}

static void make_file(const char *path, unsigned age_s)
{
    struct timespec times[2] = {{.tv_sec = time(NULL) - (time_t)age_s}};

    ck_assert_int_eq(kelp_files_write(path, "x", 1, NULL), KELP_OK);
    times[1] = times[0];
    ck_assert_int_eq(utimensat(AT_FDCWD, path, times, 0), 0);
}

/* Prepared data that nobody used, and what was left half written; nothing else. */
KELP_TEST(caches)
{
    struct kelp_sweep sweep = {.count = 0};

    ck_assert_int_eq(mkdir("cache", 0777), 0);
    make_file("cache/old.prepared", 100 * HOUR);
    make_file("cache/young.prepared", HOUR);
    make_file("cache/dead.prepared.123.4.new", 2 * HOUR);
    make_file("cache/alive.prepared.125.4.new", 1);
    make_file("cache/notes.txt", 100 * HOUR);
    ck_assert_int_eq(kelp_sweep_add_caches(&sweep, "cache", 50 * HOUR, time(NULL), &error),
                     KELP_OK);
    ck_assert_int_eq(kelp_sweep_add_caches(&sweep, "nowhere", 0, time(NULL), &error), KELP_OK);
    ck_assert_uint_eq(sweep.count, 2);
    for (size_t i = 0; i < sweep.count; i++) {
        ck_assert_uint_gt(sweep.items[i].bytes, 0);
        ck_assert_int_eq(kelp_sweep_remove(&sweep.items[i], &error), KELP_OK);
    }
    kelp_sweep_fini(&sweep);
    ck_assert_int_ne(access("cache/old.prepared", F_OK), 0);
    ck_assert_int_ne(access("cache/dead.prepared.123.4.new", F_OK), 0);
    ck_assert_int_eq(access("cache/young.prepared", F_OK), 0);
    ck_assert_int_eq(access("cache/alive.prepared.125.4.new", F_OK), 0);
    ck_assert_int_eq(access("cache/notes.txt", F_OK), 0);
}

/* A run that somebody took meanwhile stays, whole; one that nobody has goes, whole. */
KELP_TEST(a_run_that_is_held_stays)
{
    struct kelp_sweep_item item = {.kind = KELP_SWEEP_RUN, .path = "runs/r"};
    struct kelp_run_dir run;

    ck_assert_int_eq(kelp_run_dir_create("runs/r", false, &run, &error), KELP_OK);
    ck_assert_int_eq(kelp_run_dir_write(&run, "job.yaml", "name: x\n", &error), KELP_OK);
    ck_assert_int_eq(kelp_sweep_remove(&item, &error), KELP_ERR_BUSY);
    ck_assert_int_eq(access("runs/r/job.yaml", F_OK), 0);
    kelp_run_dir_close(&run);
    ck_assert_int_eq(kelp_sweep_remove(&item, &error), KELP_OK);
    ck_assert_int_ne(access("runs/r", F_OK), 0);
}

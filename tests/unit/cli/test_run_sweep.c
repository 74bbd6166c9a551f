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

/* Later predictions do not make the newest model one that may go. */
KELP_TEST(newest_training_stays)
{
    struct kelp_run_info both[] = {
        {.path = "runs/a", .state = KELP_RUN_STATE_DONE, .age_s = 50},
        {.path = "runs/b", .state = KELP_RUN_STATE_DONE, .age_s = 5, .inference = true}};
    const struct kelp_run_list list = {.items = both, .count = KELP_ARRAY_COUNT(both)};
    const struct kelp_sweep_rule rule = {.by_count = true, .keep = 0};
    bool marks[KELP_ARRAY_COUNT(both)];

    kelp_sweep_mark_runs(&list, &rule, marks);
    ck_assert(!marks[0]);
    ck_assert(marks[1]);
}

static void make_file(const char *path, unsigned age_s)
{
    struct timespec times[2] = {{.tv_sec = time(NULL) - (time_t)age_s}};

    ck_assert_int_eq(kelp_files_write(path, "x", 1, NULL), KELP_OK);
    times[1] = times[0];
    ck_assert_int_eq(utimensat(AT_FDCWD, path, times, 0), 0);
}

#define DIGEST "0123456789abcdef0123456789abcdef"

/* Prepared data that nobody used, and what was left half written; nothing else, as a job may name a
 * folder that others use. A folder that two jobs name counts once. */
KELP_TEST(caches)
{
    struct kelp_sweep sweep = {.count = 0};

    ck_assert_int_eq(mkdir("cache", 0777), 0);
    make_file("cache/" DIGEST ".prepared", 100 * HOUR);
    make_file("cache/1" DIGEST ".prepared", 100 * HOUR);
    make_file("cache/2123456789abcdef0123456789abcdef.prepared", HOUR);
    make_file("cache/" DIGEST ".prepared.123.4.new", 2 * HOUR);
    make_file("cache/" DIGEST ".prepared.125.4.new", 1);
    make_file("cache/draft.new", 100 * HOUR);
    make_file("cache/my.prepared", 100 * HOUR);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(kelp_sweep_add_caches(&sweep, i == 0 ? "cache" : "cache/../cache/",
                                               50 * HOUR, time(NULL), &error),
                         KELP_OK);
    }
    ck_assert_int_eq(kelp_sweep_add_caches(&sweep, "nowhere", 0, time(NULL), &error), KELP_OK);
    ck_assert_uint_eq(sweep.count, 2);
    for (size_t i = 0; i < sweep.count; i++) {
        ck_assert_uint_gt(sweep.items[i].bytes, 0);
        ck_assert_int_eq(kelp_sweep_remove(&sweep.items[i], &error), KELP_OK);
        ck_assert(sweep.items[i].removed);
    }
    kelp_sweep_fini(&sweep);
    ck_assert_int_ne(access("cache/" DIGEST ".prepared", F_OK), 0);
    ck_assert_int_ne(access("cache/" DIGEST ".prepared.123.4.new", F_OK), 0);
    ck_assert_int_eq(access("cache/1" DIGEST ".prepared", F_OK), 0);
    ck_assert_int_eq(access("cache/2123456789abcdef0123456789abcdef.prepared", F_OK), 0);
    ck_assert_int_eq(access("cache/" DIGEST ".prepared.125.4.new", F_OK), 0);
    ck_assert_int_eq(access("cache/draft.new", F_OK), 0);
    ck_assert_int_eq(access("cache/my.prepared", F_OK), 0);
}

/* ---- in runs that stay --------------------------------------------------------------------- */

#define JOB                                                                                        \
    "name: x\nmodel: {kind: dlinear, init: w.safetensors}\ndata: {kind: synthetic}\n"              \
    "run: {mode: "

/* A run with all that may be left in it, whose one checkpoint is whole. */
static void make_run(const char *mode)
{
    struct kelp_run_dir run;
    char job[256];
    static const char *const folders[] = {"etcd", "next", "predict", "checkpoints/step-1.g1",
                                          "previous/1"};

    (void)kelp_files_remove("runs/r", NULL);
    ck_assert_int_eq(kelp_run_dir_create("runs/r", false, &run, &error), KELP_OK);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(folders); i++) {
        char path[64];
        (void)snprintf(path, sizeof(path), "runs/r/%s", folders[i]);
        ck_assert_int_eq(kelp_files_make_folder(path, &error), KELP_OK);
    }
    (void)snprintf(job, sizeof(job), JOB "%s}\n", mode);
    const char *const files[][2] = {{"job.yaml", job},
                                    {"next/job.yaml", job},
                                    {"weights.safetensors", "w"},
                                    {"checkpoints/step-1.g1/manifest.json", "{}"},
                                    {"previous/1/result.json", "{}"}};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(files); i++) {
        ck_assert_int_eq(kelp_run_dir_write(&run, files[i][0], files[i][1], &error), KELP_OK);
    }
    kelp_run_dir_close(&run);
}

static void use_etcd(const char *is_private)
{
    char text[128];

    (void)snprintf(text, sizeof(text),
                   "{\"job\":\"x\",\"etcd\":\"http://127.0.0.1:1\",\"private\":%s,\"pid\":1}",
                   is_private);
    ck_assert_int_eq(kelp_files_write("runs/r/cluster.json", text, strlen(text), &error), KELP_OK);
}

static struct kelp_run_info stopped[] = {{.path = "runs/r", .state = KELP_RUN_STATE_BROKEN}};
static const struct kelp_run_list one = {.items = stopped, .count = 1};

/* What would go, as initials of names: etcd, next, predict, weights.safetensors. */
static void expect_left(const char *initials)
{
    struct kelp_sweep sweep = {.count = 0};
    const bool marks[] = {false};
    char found[8] = "";

    ck_assert_int_eq(kelp_sweep_add_leftovers(&sweep, &one, marks, time(NULL), &error), KELP_OK);
    for (size_t i = 0; i < sweep.count; i++) {
        ck_assert_int_eq(sweep.items[i].kind, KELP_SWEEP_LEFTOVER);
        (void)strncat(found, sweep.items[i].path + strlen("runs/r/"), 1);
    }
    ck_assert_str_eq(found, initials);
    kelp_sweep_fini(&sweep);
}

/* Of a training: a resume that did not take hold; an etcd that knows no more than the checkpoints.
 * Of a prediction or evaluation: all that it worked with. */
KELP_TEST(what_is_left)
{
    make_run("train");
    expect_left("en");
    use_etcd("true");
    expect_left("en");
    use_etcd("false"); /* which holds the job of that resume */
    expect_left("e");
    use_etcd("true");
    ck_assert_int_eq(unlink("runs/r/checkpoints/step-1.g1/manifest.json"), 0);
    expect_left("n"); /* etcd may be alone in knowing that it is whole */
    make_file("runs/r/next/.new-etcd", 0);
    expect_left("en"); /* not this etcd, which has begun since */
    make_run("predict");
    expect_left("enpw");
    make_run("evaluate");
    expect_left("enpw");
    make_run("dance"); /* nobody knows what that was */
    expect_left("en");
}

/* They go, and nothing else does; not while somebody holds the run, nor what is needed by then. */
KELP_TEST(leftovers_go)
{
    struct kelp_sweep sweep = {.count = 0};
    const bool marks[] = {false};
    struct kelp_run_dir run;

    make_run("train");
    ck_assert_int_eq(kelp_sweep_add_leftovers(&sweep, &one, marks, time(NULL), &error), KELP_OK);
    ck_assert_int_eq(kelp_sweep_add_replaced(&sweep, &one, marks, -1, time(NULL), &error), KELP_OK);
    ck_assert_uint_eq(sweep.count, 3);
    ck_assert_int_eq(kelp_run_dir_resume("runs/r", &run, &error), KELP_OK);
    for (size_t i = 0; i < sweep.count; i++) {
        ck_assert_int_eq(kelp_sweep_remove(&sweep.items[i], &error), KELP_ERR_BUSY);
        ck_assert(!sweep.items[i].removed);
    }
    kelp_run_dir_close(&run);
    ck_assert_int_eq(unlink("runs/r/checkpoints/step-1.g1/manifest.json"), 0);
    for (size_t i = 0; i < sweep.count; i++) {
        bool etcd = strstr(sweep.items[i].path, "etcd") != NULL;
        ck_assert_int_eq(kelp_sweep_remove(&sweep.items[i], &error), KELP_OK);
        ck_assert_int_eq(sweep.items[i].removed, !etcd);
        ck_assert_int_eq(access(sweep.items[i].path, F_OK) == 0, etcd);
    }
    kelp_sweep_fini(&sweep);
    ck_assert_int_eq(access("runs/r/job.yaml", F_OK), 0);
    ck_assert_int_eq(access("runs/r/weights.safetensors", F_OK), 0);
}

/* What resumes replaced goes by age; nothing is listed of a run that goes itself or goes on. */
KELP_TEST(replaced)
{
    struct kelp_sweep sweep = {.count = 0};
    struct kelp_run_info running[] = {{.path = "runs/r", .state = KELP_RUN_STATE_RUNNING}};
    const struct kelp_run_list busy = {.items = running, .count = 1};
    const bool marks[2][1] = {{false}, {true}};
    time_t now = time(NULL);

    make_run("train");
    ck_assert_int_eq(kelp_sweep_add_replaced(&sweep, &one, marks[0], HOUR, now, &error), KELP_OK);
    ck_assert_int_eq(kelp_sweep_add_replaced(&sweep, &one, marks[1], -1, now, &error), KELP_OK);
    ck_assert_int_eq(kelp_sweep_add_leftovers(&sweep, &one, marks[1], now, &error), KELP_OK);
    ck_assert_int_eq(kelp_sweep_add_replaced(&sweep, &busy, marks[0], -1, now, &error), KELP_OK);
    ck_assert_int_eq(kelp_sweep_add_leftovers(&sweep, &busy, marks[0], now, &error), KELP_OK);
    ck_assert_uint_eq(sweep.count, 0);
    ck_assert_int_eq(kelp_sweep_add_replaced(&sweep, &one, marks[0], HOUR, now + 2 * HOUR, &error),
                     KELP_OK);
    ck_assert_uint_eq(sweep.count, 1);
    ck_assert_str_eq(sweep.items[0].path, "runs/r/previous/1");
    kelp_sweep_fini(&sweep);
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

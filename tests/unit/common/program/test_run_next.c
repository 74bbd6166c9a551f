/*
 * What a resume puts in place in a run's folder, and what of it is kept; at each point where it may
 * be cut off the folder still names one job, and it can be done again.
 */
#include "common/program/run_next.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/files.h"
#include "tests/lib/suite.h"

static char folder[] = "/tmp/kelp-run-next-XXXXXX";
static char run[64];

static void setup(void)
{
    (void)snprintf(folder, sizeof(folder), "/tmp/kelp-run-next-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(run, sizeof(run), "%s/run", folder);
    ck_assert_int_eq(mkdir(run, 0700), 0);
}

static void teardown(void)
{
    (void)kelp_files_remove(folder, NULL);
}

static const char *path_of(const char *name)
{
    static char path[256];
    (void)snprintf(path, sizeof(path), "%s/%s", run, name);
    return path;
}

static void put(const char *name, const char *text)
{
    ck_assert_int_eq(kelp_files_write(path_of(name), text, strlen(text), NULL), KELP_OK);
}

static bool is_there(const char *name)
{
    return access(path_of(name), F_OK) == 0;
}

/* NULL: it is not there. */
static void check(const char *name, const char *expected)
{
    char *text = NULL;
    size_t bytes = 0;
    kelp_status status = kelp_files_read(path_of(name), 4096, &text, &bytes, NULL);
    if (!expected) {
        ck_assert_msg(status == KELP_ERR_NOT_FOUND, "%s is there", name);
        return;
    }
    ck_assert_msg(status == KELP_OK, "%s is not there", name);
    ck_assert_str_eq(text, expected);
    free(text);
}

/* A run that is done, and another job that waits. */
static void lay_ready(const char *job)
{
    put("job.yaml", "old");
    put("result.json", "done");
    put("model.safetensors", "weights");
    put("digests.jsonl", "lines");
    ck_assert_int_eq(kelp_run_next_make(run, NULL), KELP_OK);
    put("next/job.yaml", job);
}

static kelp_status take(kelp_run_next_cut *cut, void *user)
{
    return kelp_run_next_take(run, cut, user, NULL);
}

static kelp_status cut_digests(const char *keep, struct kelp_error *reterr, void *user)
{
    bool *ret_kept = user;
    *ret_kept = keep != NULL;
    if (!keep) {
        return KELP_OK;
    }
    kelp_status status = kelp_run_next_keep(path_of("digests.jsonl"), keep, reterr);
    put("digests.jsonl", "cut");
    return status;
}

static kelp_status cut_fails(const char *keep, struct kelp_error *reterr, void *user)
{
    (void)keep;
    (void)user;
    return kelp_fail(reterr, KELP_ERR_NO_SPACE, "the disk is full");
}

KELP_CASE("next", .setup = setup, .teardown = teardown)

/* All of it: the end of before is out of the way, and kept. */
KELP_TEST(taken)
{
    bool kept = false;
    lay_ready("new");
    put("next/model.json", "of the new job");
    put("model.json", "of the old job");
    ck_assert(kelp_run_next_waits(run));
    ck_assert_int_eq(take(cut_digests, &kept), KELP_OK);
    ck_assert(kept);
    check("job.yaml", "new");
    check("model.json", "of the new job");
    check("digests.jsonl", "cut");
    check("result.json", NULL);
    check("model.safetensors", NULL);
    check("previous/1/job.yaml", "old");
    check("previous/1/model.json", "of the old job");
    check("previous/1/result.json", "done");
    check("previous/1/model.safetensors", "weights");
    check("previous/1/digests.jsonl", "lines");
    ck_assert(!is_there("next"));
    ck_assert(!kelp_run_next_waits(run));
}

/* Again, and where nothing waits: only lines are cut, and none are kept. */
KELP_TEST(nothing_waits)
{
    bool kept = true;
    put("job.yaml", "old");
    put("result.json", "done");
    ck_assert_int_eq(take(cut_digests, &kept), KELP_OK);
    ck_assert(!kept);
    ck_assert_int_eq(take(NULL, NULL), KELP_OK);
    check("job.yaml", "old");
    check("result.json", "done");
    ck_assert(!is_there("previous"));
}

/* A run that was killed goes on as the same job: nothing was replaced, so nothing is kept. */
KELP_TEST(same_job)
{
    put("job.yaml", "old");
    ck_assert_int_eq(kelp_run_next_make(run, NULL), KELP_OK);
    put("next/job.yaml", "old");
    ck_assert_int_eq(take(NULL, NULL), KELP_OK);
    check("job.yaml", "old");
    ck_assert(!is_there("previous"));
    ck_assert(!is_there("next"));
}

/* Each resume has a number of its own. */
KELP_TEST(numbers)
{
    for (int i = 1; i <= 12; i++) {
        char job[16], name[32];
        (void)snprintf(job, sizeof(job), "job %d", i);
        lay_ready(job);
        ck_assert_int_eq(take(NULL, NULL), KELP_OK);
        check("job.yaml", job);
        (void)snprintf(name, sizeof(name), "previous/%d/job.yaml", i);
        check(name, "old");
    }
}

/* It is dropped: the run is as it was. */
KELP_TEST(dropped)
{
    lay_ready("new");
    ck_assert_int_eq(kelp_run_next_drop(run, NULL), KELP_OK);
    ck_assert_int_eq(kelp_run_next_drop(run, NULL), KELP_OK);
    ck_assert(!is_there("next"));
    check("job.yaml", "old");
    check("result.json", "done");
}

/* The disk is full where lines are to be cut: nothing has changed, and later it is done. */
KELP_TEST(cut_fails_first)
{
    lay_ready("new");
    ck_assert_int_eq(take(cut_fails, NULL), KELP_ERR_NO_SPACE);
    check("job.yaml", "old");
    check("result.json", "done");
    check("model.safetensors", "weights");
    ck_assert(!is_there("previous"));
    ck_assert(kelp_run_next_waits(run));
    ck_assert_int_eq(take(NULL, NULL), KELP_OK);
    check("job.yaml", "new");
    check("previous/1/result.json", "done");
}

/* Cut off after the end of before has moved: the job is still the one of before, and waits. Cut off
 * after the job: it is the new one. */
KELP_TEST(cut_off)
{
    lay_ready("new");
    ck_assert_int_eq(mkdir(path_of("previous"), 0700), 0);
    ck_assert_int_eq(mkdir(path_of("previous/1"), 0700), 0);
    char from[256];
    (void)snprintf(from, sizeof(from), "%s", path_of("result.json"));
    ck_assert_int_eq(rename(from, path_of("previous/1/result.json")), 0);
    ck_assert(kelp_run_next_waits(run));
    check("job.yaml", "old");
    ck_assert_int_eq(take(NULL, NULL), KELP_OK);
    check("job.yaml", "new");
    check("previous/1/result.json", "done");
    check("previous/2/job.yaml", "old");
    check("previous/2/model.safetensors", "weights");
    ck_assert_int_eq(mkdir(path_of("next"), 0700), 0); /* the empty folder was not removed yet */
    ck_assert(!kelp_run_next_waits(run));
    ck_assert_int_eq(take(NULL, NULL), KELP_OK);
    check("job.yaml", "new");
    ck_assert(!is_there("next"));
}

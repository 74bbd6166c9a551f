/*
 * A resume that fails, or is killed before it takes hold, leaves the run as it was. And
 * `kelp` is killed at moments spread over a whole resume, told by changes of the run's folder: each
 * time the run is as it was or goes on, and in the end it is that of a run that nothing disturbed.
 * KELP_MOMENTS of the environment says how many moments; 50 take minutes.
 */
#include <errno.h>
#include <glob.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/files.h"
#include "tests/lib/commands/run_watch.h"
#include "tests/lib/suite.h"

#define MOMENTS    6
#define FOLDER_MAX 64

#define LONGER "train.epochs=4"

static const char job_text[] = "name: moments\nseed: 11\n"
                               "model: {kind: mlp, hidden: [64]}\n"
                               "data: {kind: synthetic, rows: 1400, split: [960, 200, 200],\n"
                               "       seq_len: 48, pred_len: 24}\n"
                               "train: {epochs: 2, batch_size: 32, schedule: constant}\n"
                               "cluster: {workers: 2, shards: 2, lanes: 4}\n"
                               "checkpoint: {digest_steps: 10, steps: 20, interval: 0s}\n";

static struct kelp_run quiet; /* what all of the epochs come to */
static struct kelp_run first; /* the run that was done before it is resumed */
static struct kelp_run run;
static unsigned changes; /* of the folder in a resume that nothing disturbs */

/* ---- changes of a folder -----------------------------------------------------------------------
 */

struct changes_watch {
    int fd;
    char folders[FOLDER_MAX][PATH_MAX]; /* by watch */
    unsigned count;
};

static void add_folder(struct changes_watch *watch, const char *path)
{
    int id = inotify_add_watch(watch->fd, path,
                               IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_MODIFY |
                                   IN_ONLYDIR | IN_EXCL_UNLINK);
    if (id >= 0 && id < FOLDER_MAX) { /* else it has gone already, or is one too many */
        (void)snprintf(watch->folders[id], PATH_MAX, "%s", path);
    }
}

/* Take what has happened within wait_ms. */
static void take_changes(struct changes_watch *watch, int wait_ms)
{
    char room[16384] __attribute__((aligned(8)));
    char path[PATH_MAX];
    struct pollfd item = {.fd = watch->fd, .events = POLLIN};
    if (poll(&item, 1, wait_ms) <= 0) {
        return;
    }
    ssize_t got = read(watch->fd, room, sizeof(room));
    for (char *at = room; at < room + (got > 0 ? got : 0);) {
        const struct inotify_event *event = (const struct inotify_event *)(const void *)at;
        watch->count++;
        if ((event->mask & IN_ISDIR) && (event->mask & (IN_CREATE | IN_MOVED_TO)) &&
            event->wd > 0 && event->wd < FOLDER_MAX) {
            int length =
                snprintf(path, sizeof(path), "%s/%s", watch->folders[event->wd], event->name);
            if (length > 0 && (size_t)length < sizeof(path)) {
                add_folder(watch, path);
            }
        }
        at += sizeof(*event) + event->len;
    }
}

/* Resume the run, and kill `kelp` once the folder has changed so often. Returns how often it did.
 */
static unsigned resume_until(unsigned wanted)
{
    struct changes_watch *watch = calloc(1, sizeof(*watch));
    char path[PATH_MAX];
    ck_assert_ptr_nonnull(watch);
    watch->fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    ck_assert_int_ge(watch->fd, 0);
    static const char *const folders[] = {".", "logs", "checkpoints"};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(folders); i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", run.run_folder, folders[i]);
        add_folder(watch, path);
    }
    kelp_run_start(&run, "--resume", (const char *[]){"--set", LONGER, "--no-plots", NULL});
    while (watch->count < wanted && !kelp_test_command_ended(&run.command)) {
        take_changes(watch, 20);
    }
    kelp_process_signal(run.command.process, SIGKILL);
    unsigned count = watch->count;
    (void)close(watch->fd);
    free(watch);
    return count;
}

/* ---- folders -----------------------------------------------------------------------------------
 */

static void copy_first(void)
{
    char command[800];
    kelp_run_prepare(&run);
    (void)snprintf(command, sizeof(command), "cp -a '%s' '%s'", first.run_folder, run.run_folder);
    ck_assert_int_eq(system(command), 0); /* NOLINT(cert-env33-c): a test's own paths */
}

static bool same_file(const char *name, const struct kelp_run *other, const char *others)
{
    size_t bytes[2];
    char *texts[2] = {kelp_test_read(run.run_folder, name, &bytes[0]),
                      kelp_test_read(other->run_folder, others, &bytes[1])};
    bool same = bytes[0] == bytes[1] && memcmp(texts[0], texts[1], bytes[0]) == 0;
    free(texts[0]);
    free(texts[1]);
    return same;
}

static bool same_bytes(const char *name, const struct kelp_run *other)
{
    return same_file(name, other, name);
}

static bool run_has(const char *name)
{
    char path[400];
    (void)snprintf(path, sizeof(path), "%s/%s", run.run_folder, name);
    return access(path, F_OK) == 0;
}

static const char *const kept[] = {"job.yaml",      "result.json",   "model.safetensors",
                                   "metrics.jsonl", "digests.jsonl", "cluster.json"};

/* The first `count` of these are those of the run that was done. */
static void check_as_it_was(size_t count)
{
    for (size_t i = 0; i < count; i++) {
        ck_assert_msg(same_bytes(kept[i], &first), "%s has changed", kept[i]);
    }
}

static void check_as_if_quiet(void)
{
    ck_assert_str_eq(kelp_run_digest(&run), kelp_run_digest(&quiet));
    ck_assert(same_bytes("metrics.jsonl", &quiet));
    ck_assert(same_bytes("digests.jsonl", &quiet));
    ck_assert(same_bytes("model.safetensors", &quiet));
}

/* ---- tests -------------------------------------------------------------------------------------
 */

static void begin(void)
{
    kelp_run_prepare_job(&quiet, job_text);
    kelp_run_start(&quiet, "job.yaml", (const char *[]){"--set", LONGER, "--no-plots", NULL});
    kelp_run_finish(&quiet, 0);
    kelp_run_prepare_job(&first, job_text);
    kelp_run_start(&first, "job.yaml", (const char *[]){"--no-plots", NULL});
    kelp_run_finish(&first, 0);
    copy_first();
    changes = resume_until(UINT_MAX);
    kelp_run_finish(&run, 0);
    check_as_if_quiet();
    kelp_run_fini(&run);
}

static void end(void)
{
    kelp_run_fini(&quiet);
    kelp_run_fini(&first);
}

static unsigned moments(void)
{
    const char *text = getenv("KELP_MOMENTS");
    long wanted = text ? strtol(text, NULL, 10) : MOMENTS;
    return wanted > 0 && wanted <= 1000 ? (unsigned)wanted : MOMENTS;
}

KELP_SUITE(.no_fork = true)
KELP_CASE("resume", .timeout_s = 3600, .begin = begin, .end = end)

/* runs/latest of the run's folder stands for another run. */
static void point_elsewhere(void)
{
    char path[400];
    (void)snprintf(path, sizeof(path), "%s/runs", run.folder);
    ck_assert_int_eq(mkdir(path, 0777), 0);
    (void)snprintf(path, sizeof(path), "%s/runs/latest", run.folder);
    ck_assert_int_eq(symlink("other", path), 0);
}

static void check_latest(bool moved)
{
    char path[400];
    char target[400] = "";
    (void)snprintf(path, sizeof(path), "%s/runs/latest", run.folder);
    ck_assert_int_gt(readlink(path, target, sizeof(target) - 1), 0);
    ck_assert_str_eq(target, moved ? run.run_folder : "other");
}

/* It fails, however often: the run that was done is as it was, byte for byte, and goes on for more
 * epochs to the end of a run that nothing disturbed. What that replaced is kept. */
KELP_TEST(failed_resume_changes_nothing)
{
    copy_first();
    point_elsewhere();
    ck_assert(!run_has("etcd")); /* nothing needs it any more */
    for (int i = 0; i < 2; i++) {
        kelp_run_resume(
            &run, (const char *[]){"--set", "model.hidden=[32]", "--set", LONGER, "--force", NULL},
            4);
        ck_assert_ptr_nonnull(strstr(run.output, "the run is unchanged"));
        check_as_it_was(KELP_ARRAY_COUNT(kept));
        ck_assert(!run_has("next"));
        ck_assert(!run_has("previous"));
        ck_assert(!run_has("etcd"));
        check_latest(false);
    }
    kelp_run_resume(&run, (const char *[]){"--set", LONGER, "--no-plots", NULL}, 0);
    check_as_if_quiet();
    check_latest(true);
    for (size_t i = 0; i < 3; i++) { /* job.yaml, result.json, model.safetensors */
        char name[64];
        (void)snprintf(name, sizeof(name), "previous/1/%s", kept[i]);
        ck_assert_msg(same_file(name, &first, kept[i]), "%s is not what was replaced", name);
    }
    kelp_run_fini(&run);
}

/* Hide a part of the newest checkpoint, or show it again: a restore waits for it. */
static void hide_storage(bool hide)
{
    struct kelp_run_checkpoint newest = kelp_run_newest(&run, (struct kelp_run_wanted){.step = 0});
    char there[600], hidden[600];
    glob_t found;

    (void)snprintf(hidden, sizeof(hidden), "%s/hidden", newest.path);
    (void)snprintf(there, sizeof(there), "%s/shard-0.*", newest.path);
    if (hide) {
        ck_assert_int_eq(glob(there, 0, NULL, &found), 0);
        ck_assert_int_eq(rename(found.gl_pathv[0], hidden), 0);
        (void)kelp_test_write(newest.path, "name", strrchr(found.gl_pathv[0], '/') + 1);
        globfree(&found);
        return;
    }
    char *name = kelp_test_read(newest.path, "name", NULL);
    (void)snprintf(there, sizeof(there), "%s/%s", newest.path, name);
    ck_assert_int_eq(rename(hidden, there), 0);
    free(name);
}

/* It is killed before it takes hold: the run goes on as it was, though the etcd of that resume
 * knows another job. */
KELP_TEST(killed_before_it_takes_hold)
{
    copy_first();
    point_elsewhere();
    hide_storage(true);
    kelp_run_start(&run, "--resume",
                   (const char *[]){"--set", LONGER, "--set", "train.lr=0.1", "--force", NULL});
    kelp_run_await_log(&run, "shard waits");
    kelp_process_signal(run.command.process, SIGKILL);
    (void)kelp_test_command_wait(&run.command, KELP_TEST_HANG_MS);
    kelp_test_command_gone(&run.command);
    ck_assert(run_has("next/job.yaml"));
    ck_assert(run_has("etcd"));
    check_as_it_was(KELP_ARRAY_COUNT(kept) - 1);
    check_latest(false);
    hide_storage(false);
    kelp_run_resume(&run, (const char *[]){"--set", LONGER, "--no-plots", NULL}, 0);
    check_as_if_quiet();
    ck_assert(!run_has("next"));
    kelp_run_fini(&run);
}

#define FORCED                                                                                     \
    "--set", "train.lr=0.02", "--set", "train.epochs=30", "--set", "checkpoint.steps=0", "--set",  \
        "checkpoint.interval=10m", "--no-plots"

/* A job that was forced on checkpoints of another one is killed after it took hold, with none of
 * its own yet: the run goes on with it, unforced, to the end that it has undisturbed. */
KELP_TEST(forced_and_killed)
{
    struct kelp_run other;
    copy_first();
    kelp_run_resume(&run, (const char *[]){"--force", FORCED, NULL}, 0);
    other = run;
    copy_first();
    point_elsewhere();
    kelp_run_start(&run, "--resume", (const char *[]){"--force", FORCED, NULL});
    KELP_TEST_AWAIT_FROM(&run.command, !same_bytes("job.yaml", &first), "it does not take hold");
    kelp_process_signal(run.command.process, SIGKILL);
    (void)kelp_test_command_wait(&run.command, KELP_TEST_HANG_MS);
    kelp_test_command_gone(&run.command);
    kelp_run_resume(&run, (const char *[]){"--no-plots", NULL}, 0);
    ck_assert_str_eq(kelp_run_digest(&run), kelp_run_digest(&other));
    ck_assert(same_bytes("metrics.jsonl", &other));
    ck_assert(same_bytes("digests.jsonl", &other));
    check_latest(true);

    /* It is about that job alone: another one is refused as ever. */
    kelp_run_resume(&run, (const char *[]){"--set", "train.lr=0.03", NULL}, 2);
    kelp_run_fini(&run);
    kelp_run_fini(&other);
}

/* Each time: what is there counts, then the job as it stands ends, then the longer one. */
KELP_TEST(killed_at_each_moment)
{
    unsigned all = moments();
    unsigned taken = 0;
    for (unsigned i = 0; i < all; i++) {
        copy_first();
        unsigned at = (unsigned)((uint64_t)changes * (2 * i + 1) / (2 * all));
        (void)resume_until(at);
        (void)kelp_test_command_wait(&run.command, KELP_TEST_HANG_MS);
        kelp_test_command_gone(&run.command);
        bool unheld = same_bytes("job.yaml", &first);
        taken += !unheld;
        if (unheld && run_has("result.json")) { /* else it is taking hold */
            check_as_it_was(3);
        }
        if (i % 2 == 0) {
            kelp_run_resume(&run, (const char *[]){"--no-plots", NULL}, 0);
            ck_assert_str_eq(kelp_run_digest(&run), kelp_run_digest(unheld ? &first : &quiet));
            ck_assert(!run_has("next"));
        }
        kelp_run_resume(&run, (const char *[]){"--set", LONGER, "--no-plots", NULL}, 0);
        check_as_if_quiet();
        (void)printf("killed at change %u of %u: %s\n", at, changes,
                     unheld ? "as it was, then the longer job" : "the longer job goes on");
        (void)fflush(stdout);
        kelp_run_fini(&run);
    }
    ck_assert_uint_gt(taken, 0);
    ck_assert_uint_lt(taken, all);
}

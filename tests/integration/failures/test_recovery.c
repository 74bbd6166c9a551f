/*
 * Checkpoints at work in whole clusters: a shard that is killed goes back to the newest checkpoint
 * and no further; a damaged one is left for the one before it; storage that is not there is waited
 * for; and when everything was killed at once, the run goes on from where it can. Always with the
 * digest of the quiet run, which alone would prove little: a run that starts over has it too.
 */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/files.h"
#include "tests/lib/commands/run_watch.h"
#include "tests/lib/suite.h"

#define INTERVAL 100 /* steps */

static const char job_text[] = "name: recovery\nseed: 11\n"
                               "model: {kind: dlinear}\ndata: {kind: synthetic}\n"
                               "train: {epochs: 20, batch_size: 32}\n"
                               "cluster: {workers: 2, shards: 2, lanes: 4}\n"
                               "failure: {restart_backoff: 100ms}\n"
                               "checkpoint: {digest_steps: 50, keep_last: 3}\n";

static struct kelp_run run;
static char quiet_digest[33];

static void setup(void)
{
    kelp_run_prepare_job(&run, job_text);
}

static void teardown(void)
{
    kelp_run_fini(&run);
}

/* ---- checkpoints ------------------------------------------------------------------------------
 */

/* One of that step or later. */
static struct kelp_run_checkpoint await_checkpoint(long step)
{
    return kelp_run_await_checkpoint(&run, (struct kelp_run_wanted){.step = step});
}

/* The storage of a shard in a checkpoint. */
static void storage_of(const char *checkpoint, const char *shard, char path[1024])
{
    DIR *found = opendir(checkpoint);
    ck_assert_ptr_nonnull(found);
    path[0] = '\0';
    for (const struct dirent *entry = readdir(found); entry != NULL; entry = readdir(found)) {
        if (strncmp(entry->d_name, shard, strlen(shard)) == 0) {
            (void)snprintf(path, 1024, "%s/%s", checkpoint, entry->d_name);
        }
    }
    (void)closedir(found);
    ck_assert_msg(path[0] != '\0', "%s has no storage of %s", checkpoint, shard);
}

/* Flip one bit in the middle of the largest file of a storage. */
static void damage(const char *storage)
{
    char path[1400] = "";
    off_t largest = 0;
    DIR *found = opendir(storage);
    ck_assert_ptr_nonnull(found);
    for (const struct dirent *entry = readdir(found); entry != NULL; entry = readdir(found)) {
        char file[1300];
        struct stat info;
        (void)snprintf(file, sizeof(file), "%s/%s", storage, entry->d_name);
        if (stat(file, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > largest) {
            largest = info.st_size;
            (void)snprintf(path, sizeof(path), "%s", file);
        }
    }
    (void)closedir(found);
    ck_assert_int_gt(largest, 0);
    FILE *file = fopen(path, "r+b");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fseek(file, (long)(largest / 2), SEEK_SET), 0);
    int byte = fgetc(file);
    ck_assert_int_ne(byte, EOF);
    ck_assert_int_eq(fseek(file, (long)(largest / 2), SEEK_SET), 0);
    ck_assert_int_ne(fputc(byte ^ 16, file), EOF);
    ck_assert_int_eq(fclose(file), 0);
}

/* ---- running ----------------------------------------------------------------------------------
 */

static const char *const by_steps[] = {"--set", "checkpoint.steps=100", NULL};
static const char *const on_request[] = {"--set", "checkpoint.interval=0s", NULL};

static void start(const char *const *more)
{
    kelp_run_start(&run, "job.yaml", more);
}

static void finish(const char *what)
{
    kelp_run_finish(&run, 0);
    kelp_run_expect_digest(&run, what, quiet_digest);
}

static void kill_shard(const char *id)
{
    (void)kelp_test_command_signal(&run.command, "kelp-ps", id, SIGKILL);
}

static double restored_step(void)
{
    return kelp_run_logged_number(&run, NULL, "restoring", "step=");
}

/* Ask for a checkpoint, wait for it. */
static struct kelp_run_checkpoint checkpoint_now(void)
{
    static const char *const args[] = {"checkpoint", "run", NULL};
    long before = kelp_run_newest(&run, (struct kelp_run_wanted){.step = 0}).step;
    kelp_run_await_log(&run, "job state=running");
    kelp_test_command_says(run.folder, args, 0, "checkpoint at step ");
    return await_checkpoint(before + 1);
}

KELP_SUITE(.no_fork = true)
KELP_CASE("recovery", .setup = setup, .teardown = teardown, .timeout_s = 2 * KELP_TEST_HANG_S)

KELP_TEST(quiet)
{
    start(NULL);
    finish("quiet");
    ck_assert(kelp_run_logged(&run, "checkpoint committed")); /* of the final state */
}

/* It goes back to the newest checkpoint that was committed by then, and what lies between is
 * computed again. */
KELP_TEST(shard_killed)
{
    start(by_steps);
    (void)await_checkpoint(2 * INTERVAL);
    kill_shard("shard-1");
    finish("a shard killed, restored");
    double restored = restored_step();
    double from = kelp_run_logged_number(&run, NULL, "going back", "from_step=");
    ck_assert_double_ge(restored, 2 * INTERVAL);
    ck_assert_double_eq(
        restored, kelp_run_logged_number(&run, "shard lost", "checkpoint committed", " step="));
    ck_assert_double_eq(kelp_run_number(&run, "restores"), 1);
    ck_assert_double_eq(kelp_run_number(&run, "steps_recomputed"), from - restored);
}

/* A flipped bit in the newest checkpoint: said, and the one before it is used. */
KELP_TEST(newest_is_damaged)
{
    char storage[1024];
    struct stat info;
    start(on_request);
    struct kelp_run_checkpoint first = checkpoint_now();
    struct kelp_run_checkpoint second = checkpoint_now();
    ck_assert_str_ne(first.path, second.path);
    storage_of(second.path, "shard-0", storage);
    damage(storage);
    kill_shard("shard-1");
    finish("the newest checkpoint damaged");
    ck_assert(kelp_run_logged(&run, "is damaged: shard-"));
    ck_assert_double_eq(restored_step(), (double)first.step);
    char told[128]; /* once, to whoever waits for the run */
    (void)snprintf(told, sizeof(told), "the run goes on from step %ld,", first.step);
    ck_assert_msg(strstr(run.output, told) != NULL, "%s", run.output);
    ck_assert_ptr_eq(strstr(strstr(run.output, told) + 1, told), NULL);
    ck_assert_ptr_nonnull(strstr(run.output, " is damaged: shard-"));
    ck_assert_int_ne(stat(second.path, &info), 0); /* taken out of the list, then removed */
}

/* All of them are damaged: from version 0, which is said. */
KELP_TEST(all_are_damaged)
{
    char storage[1024];
    start(on_request);
    struct kelp_run_checkpoint only = checkpoint_now();
    storage_of(only.path, "shard-1", storage);
    damage(storage);
    kill_shard("shard-0");
    finish("the only checkpoint damaged");
    ck_assert(
        kelp_run_logged(&run, "no checkpoint can be restored: starting again from version 0"));
    ck_assert_double_ge(kelp_run_number(&run, "steps_recomputed"), (double)only.step);
}

/* Everything is killed at once; resumed with the etcd that it had, or with an empty one. */
KELP_LOOP_TEST(all_killed, 0, 2)
{
    char path[512];
    struct kelp_error error = {.text = ""};
    start(by_steps);
    (void)await_checkpoint(3 * INTERVAL);
    kelp_test_command_kill_all(&run.command);
    if (_i == 1) {
        (void)snprintf(path, sizeof(path), "%s/etcd", run.run_folder);
        ck_assert_msg(kelp_files_remove(path, &error) == KELP_OK, "%s", error.text);
    }
    kelp_run_start(&run, "--resume", NULL);
    finish(_i == 0 ? "all killed, resumed" : "all killed, etcd lost, resumed");
    ck_assert_double_ge(restored_step(), 3 * INTERVAL);
    ck_assert(kelp_run_logged(&run, "checkpoints taken from the run's folder") == (_i == 1));
}

/* A storage is not there at the start: waited for by name, and used when it comes; or, with a
 * limit, the job fails and says how to go on. */
KELP_LOOP_TEST(storage_is_away, 0, 2)
{
    static const char *const limited[] = {"--set", "failure.storage_wait=1s", NULL};
    char storage[1024];
    char away[1100];
    start(by_steps);
    (void)await_checkpoint(2 * INTERVAL);
    kelp_test_command_kill_all(&run.command);
    struct kelp_run_checkpoint newest =
        kelp_run_newest(&run, (struct kelp_run_wanted){.step = 2 * INTERVAL});
    storage_of(newest.path, "shard-1", storage);
    (void)snprintf(away, sizeof(away), "%s/away", run.folder);
    ck_assert_int_eq(rename(storage, away), 0);
    kelp_run_start(&run, "--resume", _i == 0 ? NULL : limited);
    if (_i == 0) {
        kelp_run_await_log(&run, "shard waits shard=");
        ck_assert(kelp_run_logged(&run, newest.name));
        ck_assert_int_eq(rename(away, storage), 0);
        finish("storage that came later");
        ck_assert_double_ge(restored_step(), 2 * INTERVAL);
        return;
    }
    kelp_run_finish(&run, 4);
    ck_assert_ptr_nonnull(strstr(run.output, "failure.storage_wait"));
    ck_assert_ptr_nonnull(strstr(run.output, "--resume"));
}

/* SIGTERM: a checkpoint, exit 143; going on from exactly there. */
KELP_TEST(paused)
{
    start(on_request);
    kelp_run_await_log(&run, "epoch completed epoch=1 ");
    kelp_process_signal(run.command.process, SIGTERM);
    kelp_run_finish(&run, 128 + SIGTERM);
    double step = kelp_run_logged_number(&run, NULL, "checkpoint committed", "step=");
    ck_assert_double_gt(step, 0);
    ck_assert(kelp_run_logged(&run, "job state=paused"));
    kelp_run_start(&run, "--resume", NULL);
    finish("paused, resumed");
    ck_assert_double_eq(restored_step(), step);
}

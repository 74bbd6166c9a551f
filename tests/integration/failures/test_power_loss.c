/*
 * The power goes while a job runs: every process is killed, and the run's folder becomes what the
 * disk would hold (cli/faultdisk/faultdisk.h). `kelp train --resume` goes on from a checkpoint and
 * ends with the digest of the quiet run. And a disk that is full or broken while checkpoints are
 * written stops no step: the checkpoint fails, is said to have failed, and a later one works.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/files.h"
#include "tests/lib/commands/run_watch.h"
#include "tests/lib/disk/power_loss.h"
#include "tests/lib/suite.h"

static const char job_text[] = "name: power\nseed: 11\n"
                               "model: {kind: dlinear}\ndata: {kind: synthetic}\n"
                               "train: {epochs: 16, batch_size: 32}\n"
                               "cluster: {workers: 2, shards: 2, lanes: 4}\n"
                               "failure: {restart_backoff: 100ms}\n"
                               "checkpoint: {steps: 200, keep_last: 2, digest_steps: 50}\n";

static struct kelp_run run; /* in disk/run */
static struct kelp_faultdisk *disk;
static char quiet_digest[33];
static char *quiet_records[2]; /* of the files below */
static const char *const record_files[] = {"disk/run/metrics.jsonl", "disk/run/digests.jsonl"};
static struct kelp_error error;

#define MUST(call)                                                                                 \
    do {                                                                                           \
        kelp_status status_of_call = (call);                                                       \
        ck_assert_msg(status_of_call == KELP_OK, "%s: %s", #call, error.text);                     \
    } while (0)

static void setup(void)
{
    kelp_run_prepare(&run);
    (void)snprintf(run.run_folder, sizeof(run.run_folder), "%s/disk/run", run.folder);
    ck_assert_int_eq(chdir(run.folder), 0);
    MUST(kelp_files_make_folder("disk", &error));
    (void)kelp_test_write(run.folder, "disk/job.yaml", job_text);
    MUST(kelp_faultdisk_open("control", &disk, &error));
    MUST(kelp_power_begin("shadow", "disk", &error));
}

static void teardown(void)
{
    kelp_faultdisk_close(disk);
    ck_assert_int_eq(chdir("/"), 0);
    kelp_run_fini(&run);
}

/* ---- runs -------------------------------------------------------------------------------------
 */

static char library[1024];
static struct kelp_power_environment environment;

/* `name=value` into the environment of what is started from now on, or out of it. */
static void set_variable(char *variable, bool set)
{
    char *equals = strchr(variable, '=');
    *equals = '\0';
    (void)(set ? setenv(variable, equals + 1, 1) : unsetenv(variable));
    *equals = '=';
}

static void set_variables(bool set)
{
    set_variable(environment.preload, set);
    set_variable(environment.control, set);
    set_variable(environment.root, set);
    set_variable(environment.shadow, set);
}

/* `kelp train FIRST --run disk/run` in the folder, everything in it on the disk that may fail. */
static void start(const char *first)
{
    const struct kelp_faultdisk_paths paths = {
        .library = library, .control = "control", .root = "disk"};
    kelp_test_program("kelp-faultdisk.so", library, sizeof(library));
    MUST(kelp_power_environment(&paths, "shadow", &environment, &error));
    set_variables(true);
    kelp_run_start(&run, first, NULL);
    set_variables(false);
}

static void start_new(void)
{
    start("disk/job.yaml");
}

static void start_again(void)
{
    start("--resume");
}

/* And no record is missing, however often training went back. */
static void finish_with_quiet_digest(const char *what)
{
    kelp_run_finish(&run, 0);
    kelp_run_expect_digest(&run, what, quiet_digest);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(record_files); i++) {
        char *text = kelp_test_read(run.folder, record_files[i], NULL);
        if (quiet_records[i]) {
            ck_assert_msg(strcmp(text, quiet_records[i]) == 0, "%s: %s differs:\n%s", what,
                          record_files[i], text);
            free(text);
        } else {
            quiet_records[i] = text;
        }
    }
}

/* A committed checkpoint of that step or later. */
static struct kelp_run_checkpoint await_commit(long step)
{
    return kelp_run_await_checkpoint(&run, (struct kelp_run_wanted){.step = step});
}

static void signal_workers(int signal_number)
{
    static const char *const workers[] = {"worker-0", "worker-1"};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(workers); i++) {
        (void)kelp_test_command_signal(&run.command, "kelp-worker", workers[i], signal_number);
    }
}

/* The first checkpoint of this generation. Workers stand still once they have passed its step: so
 * the job does not end before it is on disk, however slow the disk is. */
static struct kelp_run_checkpoint hold_after_commit(unsigned generation)
{
    struct kelp_run_wanted wanted = {.file = "*", .generation = generation};
    kelp_run_await_step(&run, (double)kelp_run_await_checkpoint(&run, wanted).step);
    signal_workers(SIGSTOP);
    wanted.file = NULL;
    return kelp_run_await_checkpoint(&run, wanted);
}

/* Every process at once, then what the disk holds. */
static void lose_power(uint64_t seed)
{
    static const char *const keep[] = {"run/etcd"}; /* written in Go: not seen, and synced */
    const struct kelp_power_loss loss = {.seed = seed, .keep = keep, .keep_count = 1};
    kelp_test_command_kill_all(&run.command);
    MUST(kelp_power_lose("shadow", "disk", &loss, &error));
}

static void set(enum kelp_faultdisk_mode mode, uint32_t slow_ms)
{
    const struct kelp_faultdisk_fault fault = {.mode = mode, .slow_ms = slow_ms};
    kelp_faultdisk_set(disk, &fault);
}

KELP_SUITE(.no_fork = true)
KELP_CASE("disk", .setup = setup, .teardown = teardown, .timeout_s = 2 * KELP_TEST_HANG_S)

/* ---- tests ------------------------------------------------------------------------------------
 */

KELP_TEST(quiet)
{
    start_new();
    finish_with_quiet_digest("quiet");
}

/* Three times in one run, once for each way of losing what was not synced; a checkpoint that was
 * committed is there each time. The first time the disk is so slow that manifest.json is not synced
 * yet. A resumed job writes it again before it opens a generation, which is what counts as a
 * restore: what is waited for is a checkpoint of a generation that began after the loss. */
KELP_TEST(power_three_times)
{
    struct kelp_run_checkpoint committed = {.generation = 0};
    set(KELP_FAULTDISK_SLOW, 20);
    start_new();
    for (int round = 0; round < 3; round++) {
        committed = hold_after_commit(committed.generation + 1);
        lose_power((uint64_t)round);
        const struct kelp_run_wanted wanted = {.file = "shard-*", .step = committed.step};
        ck_assert_int_ge(kelp_run_newest(&run, wanted).step, committed.step);
        set(KELP_FAULTDISK_OK, 0);
        start_again();
    }
    finish_with_quiet_digest("the power lost three times");
    ck_assert_double_ge(kelp_run_number(&run, "restores"), 3);
}

/* While a checkpoint is being written: it is never used, and the one before it is whole. */
KELP_LOOP_TEST(power_while_writing, 0, 2)
{
    start_new();
    struct kelp_run_wanted writing = {.file = "*.writing", .step = await_commit(200).step + 1};
    set(KELP_FAULTDISK_SLOW, 10);
    (void)kelp_run_await_checkpoint(&run, writing);
    lose_power((uint64_t)_i);
    set(KELP_FAULTDISK_OK, 0);
    start_again();
    finish_with_quiet_digest("the power lost while a checkpoint is written");
}

/* The disk fails for a while: checkpoints fail meanwhile, and the reason is said; no process is
 * lost by it, and when the disk works again, so do checkpoints. No checkpoint is being written when
 * it begins to fail: a slow disk would keep it until the job's last steps. */
static void disk_fails(enum kelp_faultdisk_mode mode, const char *reason, const char *what)
{
    start_new();
    long step = hold_after_commit(1).step;
    set(mode, 0);
    signal_workers(SIGCONT);
    kelp_test_command_await(&run.command, "; the next one is taken when it is due");
    char *said = kelp_test_command_peek(&run.command);
    ck_assert_msg(strstr(strstr(said, "a checkpoint failed"), reason) != NULL, "it said:\n%s",
                  said);
    free(said);
    set(KELP_FAULTDISK_OK, 0);
    (void)await_commit(step + 1);
    finish_with_quiet_digest(what);
    ck_assert_double_eq(kelp_run_number(&run, "restores"), 0);
    ck_assert_double_eq(kelp_run_number(&run, "restarts"), 0);
}

KELP_TEST(full_disk)
{
    disk_fails(KELP_FAULTDISK_FULL, "No space left", "the disk full for a while");
}

KELP_TEST(broken_disk)
{
    disk_fails(KELP_FAULTDISK_ERROR, "Input/output error", "the disk broken for a while");
}

/*
 * A run that was stopped goes on from its newest checkpoint, whatever stopped it, and ends with the
 * digest and the records of a run that nothing disturbed; so it does as a longer job, with other
 * numbers of processes, in another place. Stops are placed by step, as the run's records show it.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/files.h"
#include "tests/lib/commands/run_watch.h"
#include "tests/lib/suite.h"

#define BETWEEN 20 /* steps between two records: nobody outside sees more than these */

#define EPOCHS       28
#define EPOCHS_LONG  32
#define EPOCHS_TEXT  "28"
#define LONGER       "train.epochs=32"
#define STEPS(count) (67.0 * (count)) /* of epochs */

static const char job_text[] = "name: resume\nseed: 11\n"
                               "model: {kind: mlp, hidden: [256]}\n"
                               "data: {kind: synthetic}\n"
                               "train: {epochs: " EPOCHS_TEXT ", batch_size: 128}\n"
                               "cluster: {workers: 2, shards: 2, lanes: 4}\n"
                               "checkpoint: {digest_steps: 20, steps: 100, interval: 0s}\n";

/* What undisturbed runs of both lengths leave; made once, before the tests are forked. */
static struct kelp_run quiet[2];

static struct kelp_run run;

static void setup(void)
{
    kelp_run_prepare_job(&run, job_text);
}

static void teardown(void)
{
    kelp_run_fini(&run);
}

static void start(const char *const *more)
{
    kelp_run_start(&run, "job.yaml", more);
}

static double newest_checkpoint(void)
{
    return (double)kelp_run_newest(&run, (struct kelp_run_wanted){.step = 0}).step;
}

/* Training has got so far, and a checkpoint of it is there. */
static void await_progress(double step)
{
    kelp_run_await_step(&run, step);
    (void)kelp_run_await_checkpoint(&run, (struct kelp_run_wanted){.step = 0});
}

static void kill_everything(void)
{
    kelp_test_command_kill_all(&run.command);
}

static pid_t signal_to(const char *program, const char *id, int signal_number)
{
    return kelp_test_command_signal(&run.command, program, id, signal_number);
}

static bool said(const char *text)
{
    return strstr(run.output, text) != NULL;
}

/* ---- what it left -----------------------------------------------------------------------------
 */

static void same_file(const char *name, const struct kelp_run *other)
{
    char *ours = kelp_test_read(run.run_folder, name, NULL);
    char *theirs = kelp_test_read(other->run_folder, name, NULL);
    ck_assert_str_eq(ours, theirs);
    free(ours);
    free(theirs);
}

/* The end is that of a run that nothing disturbed: digest, metrics, and each line of the records.
 */
static void as_if_quiet(int longer)
{
    ck_assert_str_eq(kelp_run_digest(&run), kelp_run_digest(&quiet[longer]));
    ck_assert_double_eq(kelp_run_number(&run, "step"), STEPS(longer ? EPOCHS_LONG : EPOCHS));
    same_file("metrics.jsonl", &quiet[longer]);
    same_file("digests.jsonl", &quiet[longer]);
}

static double result_number(const char *name)
{
    return kelp_run_number(&run, name);
}

static void check_status(const char *expected)
{
    ck_assert_str_eq(kelp_run_text(&run, "status"), expected);
}

/* ---- tests ------------------------------------------------------------------------------------
 */

static void run_quiet(void)
{
    for (int longer = 0; longer < 2; longer++) {
        kelp_run_prepare(&quiet[longer]);
        kelp_run_start(&quiet[longer], kelp_test_write(quiet[longer].folder, "job.yaml", job_text),
                       longer ? (const char *[]){"--set", LONGER, NULL} : NULL);
        kelp_run_finish(&quiet[longer], 0);
    }
}

static void remove_quiet(void)
{
    kelp_run_fini(&quiet[0]);
    kelp_run_fini(&quiet[1]);
}

KELP_CASE("resume", .begin = run_quiet, .end = remove_quiet, .setup = setup, .teardown = teardown,
          .timeout_s = 2 * KELP_TEST_HANG_S)

/* Everything dies at once, three times: each time what a checkpoint holds is not computed again. */
KELP_TEST(killed_three_times)
{
    double recomputed = 0;
    for (size_t i = 0; i < 3; i++) {
        double before = i == 0 ? 0 : kelp_run_step(&run);
        kelp_run_start(&run, i == 0 ? "job.yaml" : "--resume", NULL);
        await_progress(before + 200); /* further than the start before it */
        kill_everything();
        recomputed += kelp_run_step(&run) - newest_checkpoint();
    }
    kelp_run_resume(&run, NULL, 0);
    as_if_quiet(0);
    ck_assert_double_eq(result_number("restores"), 3);
    ck_assert_double_gt(result_number("steps_recomputed"), 0);
    ck_assert_double_le(result_number("steps_recomputed"), recomputed + 3 * BETWEEN);
}

static const int signals[] = {SIGTERM, SIGINT, SIGHUP};

/* A signal: a checkpoint, an exit status that says which, and what the checkpoint holds is not
 * computed again. */
KELP_LOOP_TEST(paused, 0, KELP_ARRAY_COUNT(signals))
{
    start((const char *[]){"--set", "checkpoint.steps=0", NULL}); /* none was written before */
    kelp_run_await_step(&run, 500);
    kelp_process_signal(run.command.process, signals[_i]);
    kelp_run_finish(&run, 128 + signals[_i]);
    kelp_test_command_gone(&run.command);
    ck_assert(said("kelp: pausing: "));
    ck_assert(said("kelp: paused at step "));
    ck_assert(said("kelp train --resume --run run"));
    check_status("paused");
    double paused_at = result_number("step");
    ck_assert_double_ge(paused_at, 500);
    ck_assert_double_lt(paused_at, STEPS(EPOCHS));
    ck_assert_double_eq(paused_at, newest_checkpoint());
    if (signals[_i] != SIGTERM) {
        return; /* the rest is the same */
    }
    double in_flight = kelp_run_step(&run) - paused_at;
    kelp_run_resume(&run, NULL, 0);
    as_if_quiet(0);
    ck_assert_double_eq(result_number("restores"), 1);
    ck_assert_double_le(result_number("steps_recomputed"), in_flight + BETWEEN);
}

/* A second SIGTERM does not wait for the checkpoint: no shard answers, so that none can be made. */
KELP_TEST(terminated_twice)
{
    start((const char *[]){"--no-restart", "--pause-timeout", "60m", NULL});
    kelp_run_await_step(&run, 300);
    (void)signal_to("kelp-ps", "shard-0", SIGSTOP);
    kelp_process_signal(run.command.process, SIGTERM);
    kelp_test_command_await(&run.command, "kelp: pausing: ");
    kelp_process_signal(run.command.process, SIGTERM);
    kelp_run_finish(&run, 128 + SIGTERM);
    ck_assert(said("kelp: stopped at step "));
    kelp_test_command_gone(&run.command);
    check_status("stopped");
    kelp_run_resume(&run, NULL, 0);
    as_if_quiet(0);
}

/* The wait for the checkpoint ends when it was said to. */
KELP_TEST(pause_timeout)
{
    start((const char *[]){"--no-restart", "--pause-timeout", "1s", NULL});
    await_progress(200);
    (void)signal_to("kelp-ps", "shard-0", SIGSTOP);
    kelp_process_signal(run.command.process, SIGTERM);
    uint64_t begin_ms = kelp_clock_ms();
    kelp_run_finish(&run, 128 + SIGTERM);
    ck_assert_uint_ge(kelp_clock_ms() - begin_ms, 900);
    ck_assert(said("at the latest in 1 s"));
    ck_assert(said("the newest checkpoint is of step "));
}

/* Another number of shards and workers restores what the others left. */
KELP_TEST(other_numbers)
{
    static const char *const numbers[][2] = {{"3", "3"}, {"1", "1"}};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(numbers); i++) {
        double before = kelp_run_step(&run);
        kelp_run_start(
            &run, i == 0 ? "job.yaml" : "--resume",
            (const char *[]){"--workers", numbers[i][0], "--shards", numbers[i][1], NULL});
        kelp_run_await_step(&run, before + 100);
        kelp_process_signal(run.command.process, SIGTERM);
        kelp_run_finish(&run, 128 + SIGTERM);
        check_status("paused");
    }
    kelp_run_resume(&run, (const char *[]){"--workers", "2", "--shards", "4", NULL}, 0);
    as_if_quiet(0);
    ck_assert_double_eq(result_number("restores"), 2);
}

/* A run that is done goes on for more epochs; the end of before is not taken for the new one. */
KELP_TEST(more_epochs)
{
    start(NULL);
    kelp_run_finish(&run, 0);
    as_if_quiet(0);
    kelp_run_resume(&run, NULL, 0); /* nothing to do */
    ck_assert(said("done after 1876 steps"));
    kelp_run_resume(&run, (const char *[]){"--set", LONGER, NULL}, 0);
    as_if_quiet(1);
    ck_assert_double_le(result_number("steps_recomputed"), 0);
    kelp_run_resume(&run, NULL, 0);
    ck_assert(said("done after 2144 steps"));
}

/* The same of a run that was killed on its way: also while it became the longer one. */
KELP_TEST(more_epochs_after_kill)
{
    start(NULL);
    kelp_run_await_step(&run, 600);
    kill_everything();
    kelp_run_start(&run, "--resume", (const char *[]){"--set", LONGER, NULL});
    kelp_run_await_step(&run, STEPS(EPOCHS) + 100);
    kill_everything();
    kelp_run_resume(&run, NULL, 0);
    as_if_quiet(1);
}

/* What shapes the result may not change: each key is named with both values; --force takes it. */
KELP_TEST(refused_keys)
{
    start(NULL);
    await_progress(300);
    kill_everything();
    kelp_run_resume(&run,
                    (const char *[]){"--set", "train.lr=0.01", "--set", "train.epochs=5", NULL}, 2);
    ck_assert(said("train.lr 0.005 -> 0.01"));
    ck_assert(said("train.epochs " EPOCHS_TEXT " -> 5"));
    ck_assert(said("--force"));
    kelp_run_resume(&run, (const char *[]){"--set", "name=other", "--force", NULL}, 2);
    ck_assert(said("keep their name, also with --force: resume with name: resume"));
    kelp_run_resume(&run, (const char *[]){"--set", "model.hidden=[8]", "--force", NULL}, 2);
    ck_assert(said("the run is unchanged, and goes on as the job that it has, without "
                   "model.hidden [256] -> [8]; see "));
    kelp_run_resume(&run, (const char *[]){"--set", "train.lr=0.01", "--force", NULL}, 0);
    check_status("done");
    ck_assert_double_gt(result_number("restores"), 0);
}

/* The run's folder holds everything: it goes on elsewhere, without etcd's part of it. */
KELP_TEST(moved_without_etcd)
{
    char etcd[320], to[300];
    start(NULL);
    await_progress(600);
    kill_everything();
    double recomputed = kelp_run_step(&run) - newest_checkpoint();
    (void)snprintf(etcd, sizeof(etcd), "%s/etcd", run.run_folder);
    (void)snprintf(to, sizeof(to), "%s/elsewhere", run.folder);
    ck_assert_int_eq(kelp_files_remove(etcd, NULL), KELP_OK);
    ck_assert_int_eq(rename(run.run_folder, to), 0);
    (void)snprintf(run.run_folder, sizeof(run.run_folder), "%s", to);
    kelp_run_resume(&run, NULL, 0);
    as_if_quiet(0);
    ck_assert_double_le(result_number("steps_recomputed"), recomputed + BETWEEN);
}

/* A shard that hangs is killed and started again, and its partitions restored. (A machine that is
 * busy enough may make another one silent.) */
KELP_TEST(fenced_shard)
{
    start((const char *[]){"--set", "failure.detect=2s", "--set", "failure.shard_wait=1s", NULL});
    kelp_run_await_step(&run, 300);
    (void)signal_to("kelp-ps", "shard-1", SIGSTOP);
    kelp_test_command_await(&run.command, "shard-1 has been silent for ");
    kelp_test_command_await(&run.command, "shard-1 killed by signal 9");
    kelp_run_finish(&run, 0);
    as_if_quiet(0);
    ck_assert_double_ge(result_number("restarts"), 1);
    ck_assert_double_ge(result_number("restores"), 1);
}

/* Restarts are used up: exit status 4, and the run goes on when it is resumed. */
KELP_TEST(gave_up)
{
    start((const char *[]){"--set", "failure.max_failures=1", NULL});
    kelp_run_await_step(&run, 200);
    (void)signal_to("kelp-worker", "worker-0", SIGKILL);
    kelp_test_command_await(&run.command, "started again");
    kelp_run_go_on(&run, 100);
    (void)signal_to("kelp-worker", "worker-1", SIGKILL);
    kelp_run_finish(&run, 4);
    check_status("failed");
    ck_assert(said("worker-1 killed by signal 9"));
    ck_assert(said("failure.window=60m are used up"));
    ck_assert(said("continue with kelp train --resume --run run"));
    kelp_run_resume(&run, NULL, 0);
    as_if_quiet(0);
}

/* kelp checkpoint makes one where none is due, and the run goes on from it. */
KELP_TEST(asked_for)
{
    static const char *const args[] = {"checkpoint", "run", NULL};
    struct kelp_test_command ask = {.process = NULL};
    double step = 0;
    start((const char *[]){"--set", "checkpoint.steps=0", NULL});
    kelp_run_await_step(&run, 300);
    kelp_test_command_run(&ask, run.folder, args, KELP_TEST_HANG_MS);
    ck_assert_msg(ask.exit_code == 0, "exit %d: %s", ask.exit_code, ask.err);
    ck_assert_msg(sscanf(ask.out, "checkpoint at step %lf: ", &step) == 1, "%s", ask.out);
    ck_assert_double_ge(step, 300);
    kelp_test_command_fini(&ask);
    kill_everything();
    kelp_test_command_says(run.folder, args, 2, "is not running");
    kelp_run_resume(&run, NULL, 0);
    as_if_quiet(0);
    ck_assert_double_le(result_number("steps_recomputed"), STEPS(EPOCHS) - step);
}

/*
 * Shards and workers that end in order: what a shard has goes to others first, by `kelp drain` or
 * by SIGTERM, with and without backups. No generation, no step again, the digests of the quiet run.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/commands/run_watch.h"
#include "tests/lib/suite.h"

#define INTERVAL 50 /* steps between two digests */
#define GO_ON    (2 * INTERVAL)

/* It does not end by itself; and it has what replicas have to agree on besides gradients. */
static const char job_text[] = "name: drain\nseed: 11\n"
                               "model: {kind: dlinear}\ndata: {kind: synthetic}\n"
                               "train: {epochs: 100000, batch_size: 64, clip_norm: 0.5}\n"
                               "cluster: {workers: 1:2, shards: 3, lanes: 4}\n"
                               "failure: {on_nan: skip, max_failures: 1}\n"
                               "checkpoint: {digest_steps: 50}\n";

/* 115,000 parameters, moved 256 KiB a second: a third of them and of their slots takes 2 s. */
static const char slow_text[] = "name: drain\nseed: 11\n"
                                "model: {kind: mlp, hidden: [256, 256]}\n"
                                "data: {kind: synthetic}\n"
                                "train: {epochs: 100000, batch_size: 64, evaluate: false}\n"
                                "cluster: {workers: 1, shards: 3, lanes: 2, move_rate: 256KiB}\n"
                                "checkpoint: {digest_steps: 50}\n";

static struct kelp_run run;

static void setup(void)
{
    kelp_run_prepare_job(&run, job_text);
}

static void teardown(void)
{
    kelp_run_fini(&run);
}

static void go_on(void)
{
    kelp_run_go_on(&run, GO_ON);
}

/* `kelp drain ID run` ends with that status, and says that. */
static void drain(const char *id, int exit_code, const char *text)
{
    kelp_test_command_says(run.folder, (const char *[]){"drain", id, "run", NULL}, exit_code, text);
}

/* All of it went on, and no step was made again. */
static void check_no_loss(void)
{
    ck_assert(!kelp_run_logged(&run, "restoring"));
    ck_assert(!kelp_run_logged(&run, "shard lost"));
    ck_assert(!kelp_run_logged(&run, "generation=2"));
}

KELP_CASE("drain", .setup = setup, .teardown = teardown, .timeout_s = 200)

static const char *const replicas[] = {"cluster.replicas=1", "cluster.replicas=2"};

/* By name, and by SIGTERM while the first one is not back. Each ends with status 0, which is no
 * failure, and is started again. */
KELP_LOOP_TEST(by_name_and_by_signal, 0, 2)
{
    kelp_run_start(&run, "job.yaml", (const char *[]){"--set", replicas[_i], NULL});
    go_on();
    drain("shard-0", 0, "drained");
    (void)kelp_test_command_signal(&run.command, "kelp-ps", "shard-1", SIGTERM);
    kelp_run_await_logged(&run, "shard-1", "may leave why=\"all that it had is on other shards\"");
    go_on();
    check_no_loss();
    kelp_run_expect_quiet(&run, job_text, (const char *[]){"--shards", "1", NULL});
}

/* Who is to go is kept over a change of leader; the next process of that name is not meant. */
KELP_TEST(kept_by_the_next_leader)
{
    kelp_run_start(&run, "job.yaml", NULL);
    go_on();
    kelp_test_command_says(
        run.folder, (const char *[]){"drain", "shard-2", "run", "--no-wait", NULL}, 0, "draining");
    (void)kelp_test_command_signal(&run.command, "kelp-coordinator", "coordinator-0", SIGKILL);
    kelp_run_await_logged(&run, "shard-2", "may leave why=\"all that it had is on other shards\"");
    KELP_TEST_AWAIT_FROM(&run.command,
                         kelp_run_count_logged(&run, "shard-2", "serving job=drain") == 2,
                         "shard-2 is not started again");
    go_on();
    ck_assert_uint_eq(kelp_run_count_logged(&run, "shard-2", "may leave"), 1);
    check_no_loss();
}

/* What cannot be is refused in one line, and changes nothing. */
KELP_TEST(refused)
{
    kelp_run_start(&run, "job.yaml",
                   (const char *[]){"--set", "cluster.replicas=2", "--shards", "2", "--set",
                                    "failure.detect=60s", NULL}); /* nobody moves for being slow */
    go_on();
    drain("shard-0", 2,
          "shard-0 cannot be spared: each partition has 2 replicas (cluster.replicas), but there "
          "is only 1 other shard");
    drain("shard-7", 2, "there is no shard or worker 'shard-7'; there are ");
    drain("coordinator-0", 2, "there is no shard or worker 'coordinator-0'; there are ");
    drain("worker-0", 0, "drained");
    ck_assert_uint_eq(kelp_run_count_logged(&run, "worker-0", "drained: finishes and leaves"), 1);
    drain("worker-1", 2, "worker-1 is the last worker: start another one first");
    go_on();
    ck_assert_uint_eq(kelp_run_count_logged(&run, "coordinator-0", "because=\"attach"), 0);
    check_no_loss();
}

/* Shards that have nowhere to put what they have end once that is saved; the job goes on from
 * there. */
static void end_all(unsigned shards, bool leader_too)
{
    static const char *const only_asked[] = {
        "--set", "checkpoint.interval=0s", "--set", "failure.shard_wait=1s", "--shards", NULL,
        NULL};
    const char *args[KELP_ARRAY_COUNT(only_asked)];
    char number[8];
    pid_t pids[3] = {0};

    (void)snprintf(number, sizeof(number), "%u", shards);
    memcpy(args, only_asked, sizeof(args));
    args[KELP_ARRAY_COUNT(only_asked) - 2] = number;
    kelp_run_start(&run, "job.yaml", args);
    go_on();
    for (unsigned i = 0; i < shards; i++) {
        char id[16];
        (void)snprintf(id, sizeof(id), "shard-%u", i);
        pids[i] = kelp_test_command_find(&run.command, "kelp-ps", id);
        ck_assert_int_ne(pids[i], 0);
    }
    const double step = kelp_run_step(&run);
    if (leader_too) {
        (void)kelp_test_command_signal(&run.command, "kelp-coordinator", "coordinator-0", SIGTERM);
    }
    for (unsigned i = 0; i < shards; i++) {
        (void)kill(pids[i], SIGTERM);
    }
    kelp_run_await_log(&run, "restoring step=");
    const double saved = kelp_run_logged_number(&run, NULL, "restoring", "step=");
    ck_assert_double_ge(saved, step);
    for (unsigned i = 0; i < shards; i++) {
        char id[16];
        char text[128];
        (void)snprintf(id, sizeof(id), "shard-%u", i);
        (void)snprintf(text, sizeof(text),
                       "may leave why=\"no other shard is there to take over: saved at step %.0f,",
                       saved);
        kelp_run_await_logged(&run, id, text);
    }
    go_on();
    ck_assert(!kelp_test_command_ended(&run.command)); /* ends with status 0 are no failures */
}

KELP_TEST(the_last_shard)
{
    end_all(1, false);
    drain("shard-0", 2, "shard-0 is the last shard");
}

/* A leader that is told to end as well sees them off first. */
KELP_TEST(all_shards_and_the_leader)
{
    end_all(3, true);
    char *log = kelp_test_read(run.run_folder, "logs/coordinator-0.log", NULL);
    const char *told = strstr(log, "stopping signal=");
    ck_assert_ptr_nonnull(told);
    const char *saved = strstr(told, "checkpoint committed");
    const char *again = strstr(told, "listening, waiting");
    ck_assert(saved && again && saved < again);
    free(log);
}

/* What is waited for, in lines since nobody looks at a terminal; and nothing for programs. */
KELP_TEST(says_what_it_waits_for)
{
    struct kelp_test_command command;

    (void)kelp_test_write(run.folder, "job.yaml", slow_text);
    kelp_run_start(&run, "job.yaml", NULL);
    go_on();
    kelp_test_command_run(&command, run.folder, (const char *[]){"drain", "shard-0", "run", NULL},
                          KELP_TEST_HANG_MS);
    ck_assert_int_eq(command.exit_code, 0);
    ck_assert_msg(strstr(command.err, "shard-0: ") && strstr(command.err, " left") &&
                      strstr(command.err, "MiB copied\n") && !strchr(command.err, '\r'),
                  "it said: %s", command.err);
    ck_assert_ptr_eq(strstr(command.out, "shard-0    drained in "), command.out);
    kelp_test_command_fini(&command);
    kelp_test_command_run(&command, run.folder,
                          (const char *[]){"drain", "shard-1", "run", "-o", "json", NULL},
                          KELP_TEST_HANG_MS);
    ck_assert_str_eq(command.err, "");
    ck_assert_ptr_eq(strstr(command.out, "{\"id\":\"shard-1\",\"state\":\"drained\",\"seconds\":"),
                     command.out);
    kelp_test_command_fini(&command);
}

/*
 * Whatever process of a running job is killed, the run ends by itself with the digest of the quiet
 * run; and a worker that has other data than the rest is refused in one line. Kills are placed by
 * step: a digest of the run's trail shows that training has come so far, and much is left.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/commands/run_watch.h"
#include "tests/lib/suite.h"

#define KILL_AT 600 /* step */

static const char job_text[] = "name: survival\nseed: 11\n"
                               "model: {kind: dlinear}\ndata: {kind: synthetic}\n"
                               "train: {epochs: 12, batch_size: 32}\n"
                               "cluster: {workers: 2, shards: 2, lanes: 4}\n"
                               "failure: {restart_backoff: 100ms}\n"
                               "checkpoint: {digest_steps: 50}\n";

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

static void finish_with_quiet_digest(const char *what)
{
    kelp_run_finish(&run, 0);
    kelp_run_expect_digest(&run, what, quiet_digest);
}

KELP_SUITE(.no_fork = true)
KELP_CASE("kills", .setup = setup, .teardown = teardown, .timeout_s = KELP_TEST_HANG_S)

KELP_TEST(quiet)
{
    kelp_run_start(&run, "job.yaml", NULL);
    finish_with_quiet_digest("quiet");
}

static const struct {
    const char *what;
    const char *more[4];
    const char *victims[2][2]; /* what their command lines hold */
} kills[] = {
    /* All partitions start over, on the restarted shard and on the one that stayed. */
    {"a shard killed, restarted", {NULL}, {{"kelp-ps", "shard-1"}}},
    /* Its partitions move to the shard that is left. */
    {"a shard killed, its partitions moved",
     {"--no-restart", "--set", "failure.shard_wait=1s"},
     {{"kelp-ps", "shard-0"}}},
    {"the coordinator killed, restarted", {NULL}, {{"kelp-coordinator", "coordinator-0"}}},
    {"one coordinator of two killed",
     {"--coordinators", "2", "--no-restart"},
     {{"kelp-coordinator", "coordinator-0"}}},
    {"etcd killed, restarted", {NULL}, {{"etcd", "--data-dir"}}},
    {"a worker and a shard killed", {NULL}, {{"kelp-worker", "worker-0"}, {"kelp-ps", "shard-0"}}},
};

KELP_LOOP_TEST(killed, 0, KELP_ARRAY_COUNT(kills))
{
    kelp_run_start(&run, "job.yaml", kills[_i].more);
    kelp_run_await_step(&run, KILL_AT);
    for (size_t i = 0; i < 2 && kills[_i].victims[i][0]; i++) {
        (void)kelp_test_command_signal(&run.command, kills[_i].victims[i][0],
                                       kills[_i].victims[i][1], SIGKILL);
    }
    finish_with_quiet_digest(kills[_i].what);
}

/* Two replicas: training goes on with the backup, never steps back, and there is a new backup. */
KELP_TEST(killed_with_a_backup)
{
    static const char *const more[] = {"--set", "cluster.replicas=2", NULL};
    kelp_run_start(&run, "job.yaml", more);
    kelp_run_await_step(&run, KILL_AT);
    (void)kelp_test_command_signal(&run.command, "kelp-ps", "shard-0", SIGKILL);
    kelp_run_await_log(&run, "because=\"shard-0 is lost\"");
    kelp_run_await_log(&run, "because=\"take over");
    finish_with_quiet_digest("a shard killed that had a backup");
    ck_assert(kelp_run_logged(&run, "map taken generation=1"));
    ck_assert(!kelp_run_logged(&run, "map taken generation=2"));
}

/* Nothing is heard from it any more, by the leader and by the other shard. */
KELP_TEST(stopped_with_a_backup)
{
    static const char *const more[] = {"--set", "cluster.replicas=2", NULL};
    kelp_run_start(&run, "job.yaml", more);
    kelp_run_await_step(&run, KILL_AT);
    pid_t pid = kelp_test_command_signal(&run.command, "kelp-ps", "shard-0", SIGSTOP);
    kelp_run_await_log(&run, "because=\"shard-0 is lost\"");
    (void)kill(pid, SIGKILL); /* unless the launcher has done so */
    finish_with_quiet_digest("a shard stopped that had a backup");
}

/* So many small partitions that the last one is empty: nobody waits for it. */
KELP_TEST(empty_partition)
{
    static const char *const more[] = {
        "--set", "model.kind=mlp", "--set", "model.hidden=[679]", "--set", "cluster.max_shards=128",
        "--set", "train.epochs=1", NULL};
    kelp_run_start(&run, "job.yaml", more);
    kelp_run_finish(&run, 0);
}

static void generate(const char *seed)
{
    const char *args[] = {"data", "generate", "--out", "data.csv", "--seed", seed, NULL};
    kelp_test_command_says(run.folder, args, 0, "");
}

/* The file changes between the start of two workers: the later one is refused by the fingerprint.
 */
KELP_TEST(worker_with_other_data)
{
    static const char *const more[] = {"--workers", "1:2",
                                       "--set",     "data.kind=csv",
                                       "--set",     "data.path=data.csv",
                                       "--set",     "train.epochs=200",
                                       "--at",      "step=600:add-worker",
                                       NULL};
    generate("1");
    kelp_run_start(&run, "job.yaml", more);
    kelp_run_await_step(&run, 50);
    generate("2");
    kelp_run_finish(&run, 2);
    ck_assert_msg(strstr(run.output, "fingerprint") != NULL, "it said:\n%s", run.output);
}

/*
 * Shards that keep one another's partitions (cluster.replicas: 2): one that is killed costs neither
 * a generation nor a step, the next one to come gets copies while training goes on, and then the
 * other may be killed. Always with the digests of the quiet run.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/cluster/run_watch.h"
#include "tests/lib/suite.h"

#define INTERVAL 50 /* steps between two digests */
#define GO_ON    (3 * INTERVAL)

/* It does not end by itself; and it has what replicas have to agree on besides gradients. */
static const char job_text[] = "name: replicas\nseed: 11\n"
                               "model: {kind: dlinear}\ndata: {kind: synthetic}\n"
                               "train: {epochs: 100000, batch_size: 64, clip_norm: 0.5}\n"
                               "cluster: {workers: 2, shards: 2, replicas: 2, lanes: 4}\n"
                               "failure: {restart_backoff: 100ms, on_nan: skip}\n"
                               "checkpoint: {digest_steps: 50}\n";

static struct kelp_run run;

static void setup(void)
{
    kelp_run_prepare(&run);
    (void)kelp_test_write(run.folder, "job.yaml", job_text);
}

static void teardown(void)
{
    kelp_run_fini(&run);
}

static void go_on(void)
{
    kelp_run_await_step(&run, kelp_run_step(&run) + GO_ON);
}

/* How often primaries were put where they are wanted, which is the last change after each loss. */
static unsigned settled(void)
{
    char *log = kelp_test_read(run.run_folder, "logs/coordinator-0.log", NULL);
    unsigned count = 0;

    for (const char *at = log; (at = strstr(at, "because=\"exchange")) != NULL; at++) {
        count++;
    }
    free(log);
    return count;
}

/* Kill the shard, and wait until all partitions are on two shards again. */
static void lose(const char *id)
{
    const unsigned before = settled();

    (void)kelp_test_command_signal(&run.command, "kelp-ps", id, SIGKILL);
    KELP_TEST_AWAIT_FROM(&run.command, settled() > before,
                         "partitions do not come to the shard that was started again");
    go_on();
}

/* digests.jsonl, and the run is no more. */
static char *end(void)
{
    char *digests;

    ck_assert(!kelp_run_logged(&run, "restoring"));
    ck_assert(!kelp_run_logged(&run, "generation=2"));
    kelp_test_command_kill_all(&run.command);
    digests = kelp_test_read(run.run_folder, "digests.jsonl", NULL);
    ck_assert_ptr_nonnull(digests);
    return digests;
}

/* The digests of the same job without replicas, killed by nobody, up to that step. */
static char *quiet_digests(double step)
{
    static const char *const alone[] = {"--set", "cluster.replicas=1", NULL};

    teardown();
    setup();
    kelp_run_start(&run, "job.yaml", alone);
    kelp_run_await_step(&run, step);
    return end();
}

/* 36 MB in 16 partitions, whose roots are beyond 2 MB. */
static const char large_text[] = "name: large\nseed: 11\n"
                                 "model: {kind: mlp, hidden: [3000, 3000]}\n"
                                 "data: {kind: synthetic}\n"
                                 "train: {epochs: 100000, batch_size: 4, evaluate: false}\n"
                                 "cluster: {workers: 1, shards: 2, replicas: 2, lanes: 2}\n"
                                 "failure: {restart_backoff: 100ms}\n"
                                 "checkpoint: {digest_steps: 5}\n";

KELP_CASE("replicas", .setup = setup, .teardown = teardown, .timeout_s = 200)

/* Both shards, one after the other: each has been primary of partition 0, and has had copies of
 * it. */
KELP_TEST(shards_are_killed_in_turn)
{
    kelp_run_start(&run, "job.yaml", NULL);
    go_on();
    lose("shard-0");
    lose("shard-1");
    lose("shard-0");
    const double step = kelp_run_step(&run);
    char *ours = end();
    char *quiet = quiet_digests(step);
    kelp_run_expect_same(ours, quiet);
    free(ours);
    free(quiet);
}

/* Slices of a large model go to backups, and the backup goes on from there. */
KELP_TEST(large_slices)
{
    (void)kelp_test_write(run.folder, "job.yaml", large_text);
    kelp_run_start(&run, "job.yaml", NULL);
    kelp_run_await_step(&run, 5);
    (void)kelp_test_command_signal(&run.command, "kelp-ps", "shard-0", SIGKILL);
    kelp_run_await_step(&run, kelp_run_step(&run) + 10);
    free(end());
}

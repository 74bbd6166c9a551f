/*
 * Gradients that travel as bfloat16 (transport.precision): one digest for any cluster, by any
 * transport, with backups, when processes are killed and when lanes are computed twice; another one
 * than with float32, at about the same loss. Computing the run again gives it too.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/commands/run_train.h"
#include "tests/lib/suite.h"

#define RUN_S (KELP_TEST_HANG_MS / 1000)

/* Of 32 steps; the last fault is at step 130. A step takes several times as long under a sanitizer:
 * killed processes come back as early in the run. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define EPOCHS "12"
#else
#define EPOCHS "40"
#endif

static const char job_text[] =
    "name: bfloat16\n"
    "seed: 5\n"
    "model: {kind: mlp, hidden: [64, 48]}\n"
    "data: {kind: synthetic, features: M, seq_len: 24, pred_len: 12, rows: 1400,"
    " split: [1000, 200, 200]}\n"
    "train: {epochs: " EPOCHS
    ", batch_size: 32, optimizer: adam, lr: 0.005, schedule: constant%s}\n"
    "cluster: {lanes: 8}\n"
    "failure: {restart_backoff: 100ms}\n"
    "checkpoint: {digest_steps: 20, steps: 50}\n";

/* Without a decision over all partitions, and with one. */
static const char *const rules[] = {"", ", clip_norm: 0.125"};

struct outcome {
    char digest[33];
    double loss; /* of the test split */
};

#define BFLOAT16 "--set", "transport.precision=bfloat16"

static void prepare(struct kelp_run *run, int rule)
{
    char text[1024];

    (void)snprintf(text, sizeof(text), job_text, rules[rule]);
    kelp_run_prepare_job(run, text);
}

/* said: what it must have printed; NULL: anything. */
static void finish(struct kelp_run *run, const char *what, const char *const *args,
                   const char *said, struct outcome *ret_outcome)
{
    char path[300];

    (void)snprintf(path, sizeof(path), "%s/job.yaml", run->folder);
    kelp_run_train(run, path, args, RUN_S);
    ck_assert_msg(run->exit_code == 0, "%s: exit %d; it said:\n%s", what, run->exit_code,
                  run->output);
    ck_assert_msg(!said || strstr(run->output, said), "%s: not said: %s; it said:\n%s", what, said,
                  run->output);
    (void)snprintf(ret_outcome->digest, sizeof(ret_outcome->digest), "%s", kelp_run_digest(run));
    ret_outcome->loss = kelp_run_metric(run, "test/loss");
    printf("%-36s %s loss %.6f\n", what, ret_outcome->digest, ret_outcome->loss);
    (void)fflush(stdout);
}

static void train(const char *what, int rule, const char *const *args, const char *said,
                  struct outcome *ret_outcome)
{
    struct kelp_run run;

    prepare(&run, rule);
    finish(&run, what, args, said, ret_outcome);
    kelp_run_fini(&run);
}

static const char *const one[] = {BFLOAT16, "--workers", "1", "--shards", "1", NULL};

static const struct {
    const char *what;
    const char *args[24];
    const char *said;
} clusters[] = {
    {"2 workers, 1 shard, shm",
     {BFLOAT16, "--workers", "2", "--shards", "1", "--set", "transport.kind=shm"},
     NULL},
    {"2 workers, 2 shards, gRPC",
     {BFLOAT16, "--workers", "2", "--shards", "2", "--set", "transport.kind=grpc"},
     NULL},
    {"3 workers, 3 shards, ports",
     {BFLOAT16, "--workers", "3", "--shards", "3", "--listen=127.0.0.1"},
     NULL},
    {"5 workers, small messages, 2 killed",
     {BFLOAT16, "--workers", "5", "--shards", "2", "--set", "transport.piece=4KiB", "--fault",
      "worker-1:kill-pushing@step=60", "--fault", "worker-3:kill@step=130"},
     "worker-3 killed by signal 9"},
    {"9 workers for 8 lanes", {BFLOAT16, "--workers", "9", "--shards", "1"}, NULL},
    {"1 worker stops for 3 s",
     {BFLOAT16, "--workers", "2", "--shards", "2", "--fault", "worker-1:stall@step=60"},
     NULL},
    {"backups, a shard killed",
     {BFLOAT16, "--workers", "2", "--shards", "2", "--set", "cluster.replicas=2", "--at",
      "step=100:kill=shard-0"},
     "shard-0 killed by signal 9"},
    {"no backups, a shard killed",
     {BFLOAT16, "--workers", "3", "--shards", "2", "--at", "step=120:kill=shard-1"},
     "shard-1 killed by signal 9"},
};

KELP_CASE("runs", .timeout_s = 6 * KELP_TEST_HANG_S)

/* Under a sanitizer every other cluster with each rule. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define EACH 2
#else
#define EACH 1
#endif

/* No cluster gives other bits, and no mishap. */
KELP_LOOP_TEST(the_cluster_does_not_matter, 0, KELP_ARRAY_COUNT(rules))
{
    struct outcome alone;

    train("1 worker, 1 shard", _i, one, NULL, &alone);
    for (size_t i = (size_t)_i % EACH; i < KELP_ARRAY_COUNT(clusters); i += EACH) {
        struct outcome outcome;
        train(clusters[i].what, _i, clusters[i].args, clusters[i].said, &outcome);
        ck_assert_msg(strcmp(outcome.digest, alone.digest) == 0, "%s: %s, not %s", clusters[i].what,
                      outcome.digest, alone.digest);
    }
}

/* Rounded gradients are other gradients, and train about as well. */
KELP_TEST(another_digest_at_about_the_same_loss)
{
    static const char *const less[] = {BFLOAT16, "--set", "train.epochs=8", NULL};
    static const char *const exact[] = {"--set", "train.epochs=8", NULL};
    struct outcome rounded, full;

    train("bfloat16", 0, less, NULL, &rounded);
    train("float32", 0, exact, NULL, &full);
    ck_assert_str_ne(rounded.digest, full.digest);
    ck_assert_msg(fabs(rounded.loss - full.loss) < 0.03 * full.loss, "loss %g, with float32 %g",
                  rounded.loss, full.loss);
}

/* What a run did is computed again from its checkpoints, to the same bits. */
KELP_TEST(computed_again)
{
    static const char *const verify[] = {"verify", "run", "--replay", NULL};
    struct outcome outcome;
    struct kelp_run run;

    prepare(&run, 1);
    finish(&run, clusters[1].what, clusters[1].args, NULL, &outcome);
    kelp_test_command_says(run.folder, verify, 0, "");
    kelp_run_fini(&run);
}

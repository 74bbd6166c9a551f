/*
 * Every update rule gives one digest for any number of workers and shards: each optimizer with all
 * of its slots, decay with exclusions, and the steps that need something of all partitions,
 * clipping and lamb, also when workers and a shard are killed on the way. A norm does not depend on
 * how many partitions the model has.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/commands/run_train.h"
#include "tests/lib/suite.h"

#define RUN_S (KELP_TEST_HANG_MS / 1000)

static const char job_text[] =
    "name: update-bits\n"
    "seed: 3\n"
    "model: {kind: mlp, hidden: [48, 24]}\n"
    "data: {kind: synthetic, features: M, seq_len: 24, pred_len: 12, rows: 700,"
    " split: [500, 100, 100]}\n"
    "train: {epochs: 2, batch_size: 32, schedule: constant, evaluate: false, %s}\n"
    "cluster: {lanes: 4, max_shards: %u}\n"
    "failure: {restart_backoff: 100ms}\n";

static const char *const rules[] = {
    "optimizer: adamw, lr: 0.01, amsgrad: true, weight_decay: 0.1, decay_exclude: [\"*.bias\"]",
    "optimizer: adagrad, lr: 0.01, lr_decay: 0.01, initial_accumulator: 0.1, weight_decay: 0.01",
    "optimizer: rmsprop, momentum: 0.9, centered: true, lr: 0.001",
    "optimizer: adadelta, lr: 1, weight_decay: 0.01",
    "optimizer: adam, lr: 0.01, clip_norm: 0.125",
    "optimizer: lamb, lr: 0.01, weight_decay: 0.01, decay_exclude: [\"*.bias\"]",
};
#define CLIPS 4 /* and those behind it: rules that need decisions */

/* The digest of a run, into hex. */
static void train(const char *what, const char *rule, uint32_t max_shards, const char *const *args,
                  char hex[33])
{
    struct kelp_run run;
    char text[1024];

    (void)snprintf(text, sizeof(text), job_text, rule, max_shards);
    kelp_run_prepare(&run);
    kelp_run_train(&run, kelp_test_write(run.folder, "job.yaml", text), args, RUN_S);
    ck_assert_msg(run.exit_code == 0, "%s: exit %d; it said:\n%s", rule, run.exit_code, run.output);
    (void)snprintf(hex, 33, "%s", kelp_run_digest(&run));
    printf("%-28s %.24s %s\n", what, rule, hex);
    (void)fflush(stdout);
    kelp_run_fini(&run);
}

static void expect(const char *what, const char *rule, uint32_t max_shards, const char *const *args,
                   const char *expected)
{
    char hex[33];

    train(what, rule, max_shards, args, hex);
    ck_assert_msg(strcmp(hex, expected) == 0, "%s, %s: %s, not %s", rule, what, hex, expected);
}

static const char *const one[] = {"--workers", "1", "--shards", "1", NULL};
static const char *const three[] = {"--workers", "3", "--shards", "3", NULL};
static const char *const kills[] = {"--workers", "3",
                                    "--shards",  "2",
                                    "--set",     "train.epochs=20",
                                    "--set",     "checkpoint.steps=50",
                                    "--fault",   "worker-0:kill-pushing@step=29",
                                    "--fault",   "worker-1:kill@step=53",
                                    "--fault",   "worker-2:kill-pushing@step=101",
                                    "--at",      "step=150:kill=shard-1",
                                    NULL};
static const char *const quiet[] = {
    "--workers",           "1", "--shards", "1", "--set", "train.epochs=20", "--set",
    "checkpoint.steps=50", NULL};

KELP_CASE("runs", .timeout_s = 2 * KELP_TEST_HANG_S)

KELP_LOOP_TEST(size_does_not_matter, 0, KELP_ARRAY_COUNT(rules))
{
    char hex[33];

    train("1 worker, 1 shard", rules[_i], 4, one, hex);
    expect("3 workers, 3 shards", rules[_i], 4, three, hex);
}

KELP_LOOP_TEST(kills_do_not_matter, CLIPS, KELP_ARRAY_COUNT(rules))
{
    char hex[33];

    train("many epochs", rules[_i], 4, quiet, hex);
    expect("workers and a shard killed", rules[_i], 4, kills, hex);
}

/* One partition, or one for each 4 KiB, which cut tensors. */
KELP_LOOP_TEST(partitions_do_not_matter, CLIPS, KELP_ARRAY_COUNT(rules))
{
    static const char *const two[] = {"--workers", "2", "--shards", "1", NULL};
    char hex[33];

    train("many partitions", rules[_i], 64, two, hex);
    expect("few partitions", rules[_i], 1, two, hex);
}

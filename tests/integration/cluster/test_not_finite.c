/*
 * A batch whose gradient is not finite: with failure.on_nan skip it is skipped, to the same bits
 * as if the data did not have it, for any number of workers and shards and whatever is killed
 * meanwhile; with stop the job fails and says where.
 */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/tensors/safetensors.h"
#include "tests/lib/commands/run_command.h"
#include "tests/lib/commands/run_train.h"
#include "tests/lib/suite.h"

#define BATCH    32
#define BATCHES  12
#define BAD      5 /* the batch with a sample that nobody can compute */
#define WIDTH    24
#define RUN_S    (KELP_TEST_HANG_MS / 1000)
#define SAMPLES  (BATCH * BATCHES)
#define LONG_RUN "train.epochs=40" /* 480 steps: something to kill in */

static char once_digest[33]; /* one epoch, from data without the bad batch */
static char long_digest[33];

/* Samples that follow from their number, as input/0 [n, WIDTH] and target [n, 1]. Bad batches (of
 * the bit's number), or nothing of the one that others are compared without. */
static void write_data(const struct kelp_run *run, uint32_t bad)
{
    static float input[SAMPLES][WIDTH];
    static float target[SAMPLES][1];
    uint64_t count = 0;
    char path[300];

    for (unsigned i = 0; i < SAMPLES; i++) {
        if (bad == 0 && i / BATCH == BAD) {
            continue;
        }
        for (unsigned j = 0; j < WIDTH; j++) {
            input[count][j] = sinf((float)(i * WIDTH + j) * 0.37f);
        }
        target[count][0] = cosf((float)i * 0.11f);
        if (i % BATCH == 7 && (bad >> i / BATCH & 1) != 0) {
            input[count][3] = 3e38f;
        }
        count++;
    }
    const uint64_t input_shape[] = {count, WIDTH};
    const uint64_t target_shape[] = {count, 1};
    const struct kelp_safetensors_item items[] = {{.name = "input/0",
                                                   .dtype = KELP_DTYPE_F32,
                                                   .rank = 2,
                                                   .shape = input_shape,
                                                   .data = input},
                                                  {.name = "target",
                                                   .dtype = KELP_DTYPE_F32,
                                                   .rank = 2,
                                                   .shape = target_shape,
                                                   .data = target}};
    (void)snprintf(path, sizeof(path), "%s/data.safetensors", run->folder);
    ck_assert_int_eq(kelp_safetensors_write(path, items, KELP_ARRAY_COUNT(items), NULL, 0, NULL),
                     KELP_OK);
}

static void train(struct kelp_run *run, uint32_t bad, const char *const *args)
{
    static const char job[] =
        "name: not-finite\nseed: 5\nmodel: {kind: mlp, hidden: [200]}\n"
        "data: {kind: tensors, path: data.safetensors, input_name: input/0, target_name: target, "
        "shuffle: false}\n"
        "train: {epochs: 1, batch_size: 32, optimizer: sgd, momentum: 0.9, lr: 0.01, schedule: "
        "constant, evaluate: false}\n"
        "cluster: {lanes: 4}\n"
        "failure: {restart_backoff: 100ms}\n";

    kelp_run_prepare(run);
    write_data(run, bad);
    kelp_run_train(run, kelp_test_write(run->folder, "job.yaml", job), args, RUN_S);
}

static void ends_with(const char *what, bool with_bad, const char *const *args, char digest[33])
{
    struct kelp_run run;

    train(&run, with_bad ? 1u << BAD : 0, args);
    ck_assert_msg(run.exit_code == 0, "%s: exit %d; it said:\n%s", what, run.exit_code, run.output);
    printf("%-44s %s\n", what, kelp_run_digest(&run));
    (void)fflush(stdout);
    if (digest[0] == '\0') {
        (void)snprintf(digest, 33, "%s", kelp_run_digest(&run));
    }
    ck_assert_str_eq(kelp_run_digest(&run), digest);
    kelp_run_fini(&run);
}

KELP_CASE("runs", .timeout_s = 2 * KELP_TEST_HANG_S)

/* Momentum, weights and everything else pass a step that is skipped unchanged. */
KELP_TEST(left_out)
{
    static const char *const without[] = {"--workers", "1", "--shards", "1", NULL};
    static const char *const one[] = {"--workers",           "1", "--shards", "1", "--set",
                                      "failure.on_nan=skip", NULL};
    static const char *const more[] = {"--workers",           "3", "--shards", "2", "--set",
                                       "failure.on_nan=skip", NULL};
    ends_with("data without the batch", false, without, once_digest);
    ends_with("skip, 1 worker, 1 shard", true, one, once_digest);
    ends_with("skip, 3 workers, 2 shards", true, more, once_digest);
}

KELP_TEST(left_out_under_kills)
{
    static const char *const quiet[] = {"--workers",           "1",     "--shards", "1", "--set",
                                        "failure.on_nan=skip", "--set", LONG_RUN,   NULL};
    static const char *const kills[] = {"--workers", "3",
                                        "--shards",  "2",
                                        "--set",     "failure.on_nan=skip",
                                        "--set",     LONG_RUN,
                                        "--fault",   "worker-0:kill-pushing@step=29",
                                        "--fault",   "worker-1:kill@step=53",
                                        "--fault",   "worker-2:kill-pushing@step=101",
                                        "--at",      "step=200:kill=shard-1",
                                        NULL};
    ends_with("skip, many epochs", true, quiet, long_digest);
    ends_with("skip, 3 workers and a shard killed", true, kills, long_digest);
}

/* What a restore, and whoever computes steps again, makes of such a step. */
KELP_TEST(replayed)
{
    static const char *const args[] = {"--workers", "2",
                                       "--shards",  "2",
                                       "--set",     "failure.on_nan=skip",
                                       "--set",     "train.epochs=3",
                                       "--set",     "checkpoint.steps=4",
                                       "--set",     "checkpoint.keep_last=32",
                                       "--set",     "checkpoint.digest_steps=1",
                                       NULL};
    struct kelp_run run;
    struct kelp_test_command verify = {.process = NULL};

    train(&run, 1u << BAD, args);
    ck_assert_msg(run.exit_code == 0, "exit %d; it said:\n%s", run.exit_code, run.output);
    const char *verify_args[] = {"verify", run.run_folder, "--replay", NULL};
    kelp_test_command_run(&verify, run.folder, verify_args, RUN_S * 1000);
    ck_assert_msg(verify.exit_code == 0, "exit %d; it said:\n%s%s", verify.exit_code, verify.out,
                  verify.err);
    printf("%s", verify.out);
    kelp_test_command_fini(&verify);
    kelp_run_fini(&run);
}

static void check_says(const struct kelp_run *run, const char *what)
{
    ck_assert_msg(strstr(run->output, what), "\"%s\" is missing; it said:\n%s", what, run->output);
}

static void check_result(const struct kelp_run *run, const char *what)
{
    char path[400];
    char text[4096];

    (void)snprintf(path, sizeof(path), "%s/result.json", run->run_folder);
    FILE *in = fopen(path, "re");
    ck_assert_ptr_nonnull(in);
    size_t got = fread(text, 1, sizeof(text) - 1, in);
    text[got] = '\0';
    (void)fclose(in);
    ck_assert_msg(strstr(text, what), "\"%s\" is missing in %s", what, text);
}

/* Fewer than half: counted, shown, and no part of the epoch's loss. */
KELP_TEST(counted)
{
    static const char *const args[] = {
        "--workers",           "2",     "--shards",        "1", "--set",
        "failure.on_nan=skip", "--set", "metrics.every=4", NULL};
    struct kelp_run run;

    train(&run, 7u << 3, args);
    ck_assert_msg(run.exit_code == 0, "exit %d; it said:\n%s", run.exit_code, run.output);
    check_says(&run, "skipped    3 of 12 steps: their gradient was not finite");
    check_result(&run, "\"steps_skipped\":3,");
    ck_assert(isfinite(kelp_run_line_number(&run, "metrics.jsonl", "step", 8, "train/step_loss")));
    ck_assert(kelp_run_line_number(&run, "metrics.jsonl", "step", 12, "steps_skipped") == 3);
    ck_assert(isfinite(kelp_run_line_number(&run, "metrics.jsonl", "step", 12, "train/loss")));
    kelp_run_fini(&run);
}

/* More than half: the job fails at the epoch's end and says why, for any number of processes. */
KELP_LOOP_TEST(too_many, 0, 2)
{
    static const char *const one[] = {
        "--workers",           "1",     "--shards",       "1", "--set",
        "failure.on_nan=skip", "--set", "train.epochs=3", NULL};
    static const char *const more[] = {
        "--workers",           "2",     "--shards",       "2", "--set",
        "failure.on_nan=skip", "--set", "train.epochs=3", NULL};
    struct kelp_run run;

    train(&run, _i == 0 ? 0xfff : 0x7f, _i == 0 ? one : more);
    ck_assert_msg(run.exit_code == 4, "exit %d; it said:\n%s", run.exit_code, run.output);
    check_says(&run, _i == 0 ? "12 of 12 training steps were skipped, since their gradient was "
                               "not finite; look for extreme values in the data, or lower "
                               "train.lr, or set train.clip_norm"
                             : "7 of 12 training steps were skipped");
    check_result(&run, _i == 0 ? "\"train/loss\":null" : "\"steps_skipped\":7,");
    check_result(&run, "\"status\":\"failed\"");
    kelp_run_fini(&run);
}

/* Where steps are decided about for another reason too. */
KELP_LOOP_TEST(stops, 0, 2)
{
    static const char *const plain[] = {"--workers", "2", "--shards", "2", NULL};
    static const char *const clipped[] = {"--workers",         "2", "--shards", "2", "--set",
                                          "train.clip_norm=1", NULL};
    struct kelp_run run;

    train(&run, 1u << BAD, _i == 0 ? plain : clipped);
    ck_assert_msg(run.exit_code == 4, "exit %d; it said:\n%s", run.exit_code, run.output);
    ck_assert_msg(strstr(run.output, "gradient of step 5 is not finite in partition"),
                  "it said:\n%s", run.output);
    kelp_run_fini(&run);
}

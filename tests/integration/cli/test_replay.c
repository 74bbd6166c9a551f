/*
 * A replay in one process gives the bits of the cluster: each digest that `kelp train` has put on
 * record, with several workers and shards, comes out again, for every optimizer and model.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/replay/digest_log.h"
#include "cli/replay/replay.h"
#include "common/job/job.h"
#include "tests/lib/commands/run_train.h"
#include "tests/lib/suite.h"

#define RUN_TIMEOUT_S (KELP_TEST_HANG_MS / 1000)

static const struct {
    const char *what;
    const char *job;
} jobs[] = {
    {"dlinear, adam", "model: {kind: dlinear}\n"
                      "train: {epochs: 2, batch_size: 32, optimizer: adam, lr: 0.005}\n"
                      "cluster: {workers: 3, shards: 2, lanes: 8}\n"},
    {"dlinear per channel, momentum", "model: {kind: dlinear, individual: true}\n"
                                      "train: {epochs: 2, batch_size: 25, optimizer: sgd, "
                                      "momentum: 0.9, lr: 0.01, drop_last: true}\n"
                                      "cluster: {workers: 2, shards: 3, lanes: 4}\n"},
    {"mlp, adamw", "model: {kind: mlp, hidden: [24, 16]}\n"
                   "train: {epochs: 3, batch_size: 37, optimizer: adamw, lr: 0.001,"
                   " weight_decay: 0.01, schedule: type1}\n"
                   "cluster: {workers: 2, shards: 2, lanes: 16}\n"},
    {"mlp, plain sgd, no evaluation",
     "model: {kind: mlp, hidden: [8]}\n"
     "train: {epochs: 2, batch_size: 16, optimizer: sgd, lr: 0.05, evaluate: false}\n"
     "cluster: {workers: 1, shards: 2, lanes: 1}\n"},
    {"dlinear, steps skipped", "model: {kind: dlinear}\n"
                               "train: {epochs: 3, batch_size: 16, optimizer: sgd, lr: 5}\n"
                               "failure: {on_nan: skip}\n"
                               "cluster: {workers: 2, shards: 2, lanes: 4}\n"},
    {"mlp, clipped, decay with exclusions",
     "model: {kind: mlp, hidden: [24]}\n"
     "train: {epochs: 2, batch_size: 32, optimizer: adamw, lr: 0.01, weight_decay: 0.1,"
     " clip_norm: 0.05, decay_exclude: [\"*.bias\"]}\n"
     "cluster: {workers: 2, shards: 2, lanes: 4}\n"},
    {"mlp, lamb", "model: {kind: mlp, hidden: [24, 16]}\n"
                  "train: {epochs: 2, batch_size: 32, optimizer: lamb, lr: 0.01,"
                  " weight_decay: 0.01}\n"
                  "cluster: {workers: 2, shards: 3, lanes: 4}\n"},
};

static const char common_text[] =
    "name: replay\n"
    "seed: 11\n"
    "data: {kind: synthetic, features: M, seq_len: 24, pred_len: 12, rows: 700,"
    " split: [500, 100, 100]}\n"
    "checkpoint: {digest_steps: 3}\n";

static void run_job(struct kelp_run *run, const char *more)
{
    char text[2048];

    kelp_run_prepare(run);
    (void)snprintf(text, sizeof(text), "%s%s", common_text, more);
    kelp_run_train(run, kelp_test_write(run->folder, "job.yaml", text), NULL, RUN_TIMEOUT_S);
    ck_assert_msg(run->exit_code == 0, "exit %d; output:\n%s", run->exit_code, run->output);
}

static struct kelp_job_file *read_job(const struct kelp_run *run)
{
    struct kelp_error error = {.status = KELP_OK};
    char path[512];
    struct kelp_job_file *file = kelp_job_file_create();

    (void)snprintf(path, sizeof(path), "%s/job.yaml", run->run_folder);
    ck_assert_ptr_nonnull(file);
    ck_assert_msg(kelp_job_file_read(file, path, &error) == KELP_OK, "%s", error.text);
    ck_assert_msg(kelp_job_file_finish(file, &error) == KELP_OK, "%s", error.text);
    return file;
}

/* Every line of digests.jsonl, and no other, is a digest of the replay. */
static void check_digest_log(struct kelp_replay *replay, const struct kelp_digest_log *log)
{
    struct kelp_error error = {.status = KELP_OK};
    size_t at = 0;

    while (kelp_replay_state(replay)->control.kind != KELP_STEP_DONE) {
        struct kelp_record record;
        ck_assert_msg(kelp_replay_entry(replay, &record, &error) == KELP_OK, "%s", error.text);
        if (record.digest[0] == '\0') {
            continue;
        }
        ck_assert_uint_lt(at, log->count);
        ck_assert_uint_eq(record.word.version, log->lines[at].version);
        ck_assert_uint_eq(record.word.step, log->lines[at].step);
        ck_assert_str_eq(record.digest, log->lines[at].digest);
        at++;
    }
    ck_assert_uint_eq(at, log->count);
}

KELP_CASE("replay", .timeout_s = 2 * RUN_TIMEOUT_S)

KELP_LOOP_TEST(replay_gives_the_bits_of_the_cluster, 0, KELP_ARRAY_COUNT(jobs))
{
    struct kelp_error error = {.status = KELP_OK};
    struct kelp_run run;
    struct kelp_digest_log log;
    struct kelp_replay *replay = NULL;
    char digest[KELP_DIGEST_HEX_BYTES];

    run_job(&run, jobs[_i].job);
    struct kelp_job_file *file = read_job(&run);
    ck_assert_msg(kelp_digest_log_read(run.run_folder, &log, &error) == KELP_OK, "%s", error.text);
    ck_assert_uint_gt(log.count, 10);
    ck_assert_msg(kelp_replay_create(kelp_job_file_job(file), &replay, &error) == KELP_OK, "%s",
                  error.text);
    check_digest_log(replay, &log);
    kelp_replay_digest(replay, digest);
    ck_assert_str_eq(digest, kelp_run_digest(&run));
    printf("%-32s %zu digests\n", jobs[_i].what, log.count);
    kelp_replay_destroy(replay);
    kelp_digest_log_fini(&log);
    kelp_job_file_destroy(file);
    kelp_run_fini(&run);
}

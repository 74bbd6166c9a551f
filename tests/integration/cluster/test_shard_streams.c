/*
 * Several streams between a worker and a shard (transport.streams) change no bit: not by gRPC nor
 * through shared memory, not when a worker dies that has pushed on some of them, nor when a shard
 * does.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/files.h"
#include "tests/lib/commands/run_train.h"
#include "tests/lib/suite.h"

#define TIMEOUT_S (KELP_TEST_HANG_MS / 1000)
#define SHARDS    2

/* Each of two shards has four partitions. */
static const char job_text[] = "name: streams\n"
                               "seed: 5\n"
                               "model: {kind: mlp, hidden: [512, 256]}\n"
                               "data: {kind: synthetic}\n"
                               "train: {batch_size: 32, optimizer: adam, lr: 0.001, epochs: 9,\n"
                               "        max_steps: 120, evaluate: false, clip_norm: 1.0}\n"
                               "cluster: {lanes: 4, shards: 2, max_shards: 2}\n"
                               "checkpoint: {steps: 25, digest_steps: 20}\n";

static char reference[33];

static unsigned count_lines(const struct kelp_run *run, const char *worker, const char *text)
{
    char path[400];
    char *log = NULL;
    size_t length = 0;
    unsigned count = 0;

    (void)snprintf(path, sizeof(path), "%s/logs/%s.log", run->run_folder, worker);
    ck_assert_int_eq(kelp_files_read(path, 4 << 20, &log, &length, NULL), KELP_OK);
    for (const char *at = log; (at = strstr(at, text)) != NULL; at++) {
        count++;
    }
    free(log);
    return count;
}

static void train(struct kelp_run *run, const char *kind, const char *streams,
                  const char *const *more)
{
    char kind_set[40], streams_set[40], what[80];
    const char *args[KELP_TEST_ARGS_MAX] = {"--workers", "2",         "--set",       kind_set,
                                            "--set",     streams_set, "--log-level", "debug"};
    size_t count = 8;

    (void)snprintf(kind_set, sizeof(kind_set), "transport.kind=%s", kind);
    (void)snprintf(streams_set, sizeof(streams_set), "transport.streams=%s", streams);
    while (more && *more) {
        args[count++] = *more++;
    }
    args[count] = NULL;
    kelp_run_prepare(run);
    kelp_run_train(run, kelp_test_write(run->folder, "job.yaml", job_text), args, TIMEOUT_S);
    (void)snprintf(what, sizeof(what), "%s, %s streams%s", kind, streams, more ? ", faults" : "");
    ck_assert_msg(run->exit_code == 0, "%s: exit %d; output:\n%s", what, run->exit_code,
                  run->output);
    kelp_run_expect_digest(run, what, reference);
}

KELP_SUITE(.no_fork = true)
KELP_CASE("streams", .timeout_s = 4 * KELP_TEST_HANG_S)

/* Each worker has as many to each shard as the job says, and no more than it has partitions. */
KELP_TEST(one_digest_for_any_number)
{
    static const struct {
        const char *kind, *streams;
        unsigned opened;
    } cases[] = {{"grpc", "1", 1}, {"grpc", "2", 2}, {"grpc", "8", 4}, {"shm", "3", 3}};

    for (size_t i = 0; i < KELP_ARRAY_COUNT(cases); i++) {
        struct kelp_run run;
        train(&run, cases[i].kind, cases[i].streams, NULL);
        for (int w = 0; w < 2; w++) {
            const char *worker = w == 0 ? "worker-0" : "worker-1";
            char news[64];

            (void)snprintf(news, sizeof(news), " info  worker/%s shard answers ", worker);
            ck_assert_uint_eq(count_lines(&run, worker, " shard answers "),
                              SHARDS * cases[i].opened);
            ck_assert_uint_eq(count_lines(&run, worker, news), SHARDS);
        }
        kelp_run_fini(&run);
    }
}

KELP_TEST(processes_die)
{
    static const char *const worker[] = {"--fault", "worker-1:kill-pushing@step=30", NULL};
    static const char *const shard[] = {"--at", "step=40:kill=shard-1", NULL};
    struct kelp_run run;

    train(&run, "grpc", "3", worker);
    ck_assert_msg(strstr(run.output, "worker-1 killed by signal 9") != NULL, "%s", run.output);
    kelp_run_fini(&run);
    train(&run, "grpc", "2", shard);
    ck_assert_msg(strstr(run.output, "shard-1 killed by signal 9") != NULL, "%s", run.output);
    kelp_run_fini(&run);
}

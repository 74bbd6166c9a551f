/*
 * A job of many steps takes no more memory than one of few: a shard, a worker and the coordinator
 * have after the last steps what they had after the first, by either transport.
 */
#include <signal.h>
#include <stdio.h>

#include "tests/lib/commands/process_memory.h"
#include "tests/lib/commands/run_train.h"
#include "tests/lib/commands/run_watch.h"
#include "tests/lib/suite.h"

#define WARM_STEPS 6000
#define LAST_STEP  29000
#define GROWN_MOST 1000000 /* bytes: 43 a step */

static const char job_text[] =
    "name: steady\nseed: 1\n"
    "model: {kind: mlp, hidden: [16]}\n"
    "data: {kind: synthetic, features: M, seq_len: 24, pred_len: 12, rows: 1400,"
    " split: [1000, 200, 200]}\n"
    "train: {epochs: 100000, batch_size: 16, evaluate: false}\n"
    "cluster: {lanes: 2, workers: 2, shards: 1}\n"
    "checkpoint: {digest_steps: 100, interval: 2s}\n"
    "metrics: {every: 100}\n"
    "transport: {kind: %s}\n";

static const char *const transports[] = {"shm", "grpc"};

static const struct daemon {
    const char *program, *id;
} daemons[] = {
    {"kelp-ps", "shard-0"}, {"kelp-worker", "worker-0"}, {"kelp-coordinator", "coordinator-0"}};
#define DAEMONS KELP_ARRAY_COUNT(daemons)

static void read_all(const struct kelp_run *run, uint64_t bytes[DAEMONS])
{
    for (size_t i = 0; i < DAEMONS; i++) {
        struct kelp_process_memory memory;
        const pid_t pid = kelp_test_command_find(&run->command, daemons[i].program, daemons[i].id);
        ck_assert_msg(pid > 0 && kelp_process_memory_read(pid, &memory), "no %s", daemons[i].id);
        bytes[i] = memory.own_bytes + memory.read_only;
    }
}

static void require_plain_memory(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    kelp_suite_skip("a sanitizer keeps what was freed");
#endif
}

KELP_SUITE(.before = require_plain_memory)
KELP_CASE("steady", .timeout_s = 2 * KELP_TEST_HANG_S)

KELP_LOOP_TEST(does_not_grow, 0, KELP_ARRAY_COUNT(transports))
{
    struct kelp_run run;
    uint64_t early[DAEMONS], late[DAEMONS];
    char job[1024];

    (void)snprintf(job, sizeof(job), job_text, transports[_i]);
    kelp_run_prepare_job(&run, job);
    kelp_run_start(&run, "job.yaml", NULL);
    kelp_run_await_step(&run, WARM_STEPS);
    read_all(&run, early);
    kelp_run_await_step(&run, LAST_STEP);
    read_all(&run, late);
    kelp_process_signal(run.command.process, SIGTERM);
    kelp_run_finish(&run, 128 + SIGTERM);
    for (size_t i = 0; i < DAEMONS; i++) {
        ck_assert_msg(late[i] <= early[i] + GROWN_MOST, "%s by %s: %.1f MB, later %.1f MB",
                      daemons[i].id, transports[_i], (double)early[i] / 1e6, (double)late[i] / 1e6);
    }
    kelp_run_fini(&run);
}

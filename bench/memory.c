/*
 * How much memory a shard has, compared with what its job needs: weights twice, the optimizer's
 * slots, and one gradient for each worker, which waits for the others' gradients; with two replicas
 * also the last sum. With shared memory the gradients lie in areas of the workers, which the shard
 * maps (READ): up to one for each lane that a worker had at once. Otherwise they are the shard's
 * own. Most of the model is one table, of which a sample needs one row, so that a step takes no
 * longer than its bytes do. Then a small job runs for many steps, to see how much memory has grown
 * since its first fifth.
 *
 *     memory [--dim N] [--steps N] [--small-steps N]
 *
 * --dim: a model of (N + 1) * 4 MiB, whose state with Adam is four times that.
 *
 * Exit status 1 if a shard has over 1.15 times what is needed, or the small job's has grown by over
 * 1 MiB.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "tests/lib/bench_suite.h"
#include "tests/lib/commands/process_memory.h"
#include "tests/lib/commands/run_train.h"
#include "tests/lib/commands/run_watch.h"

#define SLOTS      2 /* Adam's */
#define MIB        1048576.0
#define RATIO_MOST 1.15
#define GROWN_MOST (1u << 20)

static unsigned long dim = 127; /* 512 MiB, and 2 GiB with Adam's slots */
static unsigned long steps = 20;
static unsigned long small_steps = 100000;
static bool over_limit;

static const struct cluster {
    const char *transport;
    unsigned workers, replicas;
} clusters[] = {{"shm", 1, 1}, {"shm", 2, 1}, {"grpc", 1, 1}, {"grpc", 2, 1}, {"shm", 1, 2}};

/* The most memory that any shard of a running job had. */
static struct kelp_process_memory watch(struct kelp_run *run, unsigned shards)
{
    struct kelp_process_memory most = {0}, now;

    while (!kelp_test_command_ended(&run->command)) {
        for (unsigned i = 0; i < shards; i++) {
            char id[24];
            (void)snprintf(id, sizeof(id), "shard-%u", i);
            const pid_t pid = kelp_test_command_find(&run->command, "kelp-ps", id);
            if (pid > 0 && kelp_process_memory_read(pid, &now) &&
                now.own_bytes + now.read_only > most.own_bytes + most.read_only) {
                most = now;
            }
        }
        kelp_test_look_later();
    }
    kelp_run_finish(run, 0);
    return most;
}

static void measure(const struct cluster *cluster)
{
    struct kelp_run run;
    char job[1024], model[512], dim_text[32];
    const uint64_t weights = (dim + 1) * UINT64_C(4194304);
    /* Two shards that back each other up each hold the whole model, too. */
    const bool shared = strcmp(cluster->transport, "shm") == 0;
    const unsigned parts =
        2 + SLOTS + (shared ? 0 : cluster->workers) + (cluster->replicas > 1 ? 1 : 0);

    (void)snprintf(dim_text, sizeof(dim_text), "%lu", dim);
    (void)snprintf(model, sizeof(model), KELP_BENCH_WIDE("%s"), dim_text);
    (void)snprintf(job, sizeof(job),
                   "name: bench-memory\nseed: 1\n%s"
                   "train: {epochs: 100000, max_steps: %lu, batch_size: 8, optimizer: adam,"
                   " evaluate: false}\n"
                   "cluster: {lanes: %u, workers: %u, shards: %u, replicas: %u}\n"
                   "checkpoint: {interval: 0s, at_end: false}\n"
                   "transport: {kind: %s}\n",
                   model, steps, cluster->workers, cluster->workers, cluster->replicas,
                   cluster->replicas, cluster->transport);
    kelp_run_prepare_job(&run, job);
    kelp_bench_write_table(run.folder);
    kelp_run_start(&run, "job.yaml", NULL);
    const struct kelp_process_memory most = watch(&run, cluster->replicas);
    const double needed = (double)(weights * parts);
    const double ratio = (double)most.own_bytes / needed;
    (void)printf("%-9s %8u %8u %10.0f %10.0f %10.0f %10.0f %7.2f\n", cluster->transport,
                 cluster->workers, cluster->replicas, (double)weights / MIB, needed / MIB,
                 (double)most.own_bytes / MIB, (double)most.read_only / MIB, ratio);
    (void)fflush(stdout);
    over_limit = over_limit || ratio > RATIO_MOST;
    kelp_run_fini(&run);
}

START_TEST(large)
{
    (void)printf("%-9s %8s %8s %10s %10s %10s %10s %7s\n", "TRANSPORT", "WORKERS", "REPLICAS",
                 "MODEL MiB", "NEEDED", "OWN", "READ", "RATIO");
    for (size_t i = 0; i < KELP_ARRAY_COUNT(clusters); i++) {
        measure(&clusters[i]);
    }
}
END_TEST

static const struct daemon {
    const char *program, *id;
} daemons[] = {
    {"kelp-ps", "shard-0"}, {"kelp-worker", "worker-0"}, {"kelp-coordinator", "coordinator-0"}};
#define DAEMONS KELP_ARRAY_COUNT(daemons)

static void read_all(const struct kelp_run *run, struct kelp_process_memory memory[DAEMONS])
{
    for (size_t i = 0; i < DAEMONS; i++) {
        const pid_t pid = kelp_test_command_find(&run->command, daemons[i].program, daemons[i].id);
        ck_assert(pid > 0 && kelp_process_memory_read(pid, &memory[i]));
    }
}

static void follow(const char *transport)
{
    struct kelp_run run;
    struct kelp_process_memory early[DAEMONS], late[DAEMONS];
    char job[1024];

    (void)snprintf(job, sizeof(job),
                   "name: bench-memory\nseed: 1\n"
                   "model: {kind: mlp, hidden: [16]}\n"
                   "data: {kind: synthetic, features: M, seq_len: 24, pred_len: 12, rows: 1400,"
                   " split: [1000, 200, 200]}\n"
                   "train: {epochs: 100000, max_steps: %lu, batch_size: 16}\n"
                   "cluster: {lanes: 2, workers: 2, shards: 1}\n"
                   "checkpoint: {digest_steps: 100, interval: 5s}\n"
                   "transport: {kind: %s}\n",
                   small_steps, transport);
    kelp_run_prepare_job(&run, job);
    kelp_run_start(&run, "job.yaml", NULL);
    kelp_run_await_step(&run, (double)small_steps * 0.2);
    read_all(&run, early);
    kelp_run_await_step(&run, (double)small_steps * 0.95);
    read_all(&run, late);
    kelp_run_finish(&run, 0);
    for (size_t i = 0; i < DAEMONS; i++) {
        const uint64_t before = early[i].own_bytes + early[i].read_only;
        const uint64_t after = late[i].own_bytes + late[i].read_only;
        (void)printf("%-9s %-14s %10.2f %10.2f\n", transport, daemons[i].id, (double)before / MIB,
                     (double)after / MIB);
        over_limit = over_limit || (i == 0 && after > before + GROWN_MOST);
    }
    (void)fflush(stdout);
    kelp_run_fini(&run);
}

START_TEST(small)
{
    (void)printf("\n%-9s %-14s %10s %10s  after a fifth of %lu steps, and at the end\n",
                 "TRANSPORT", "PROCESS", "MiB", "MiB", small_steps);
    follow("shm");
    follow("grpc");
}
END_TEST

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i += 2) {
        unsigned long *value = strcmp(argv[i], "--dim") == 0           ? &dim
                               : strcmp(argv[i], "--steps") == 0       ? &steps
                               : strcmp(argv[i], "--small-steps") == 0 ? &small_steps
                                                                       : NULL;
        char *end = NULL;
        if (value && i + 1 < argc) {
            *value = strtoul(argv[i + 1], &end, 10);
        }
        if (!end || *end != '\0' || *value == 0 || dim > 1000) {
            (void)fprintf(stderr, "usage: memory [--dim N] [--steps N] [--small-steps N]\n");
            return 2;
        }
    }
    (void)setenv("KELP_BIN", KELP_BIN_DIR, 0);
    const TTest *const measurements[] = {large, small};
    const int failed = kelp_bench_run("memory", measurements, 2);
    return failed == 0 && !over_limit ? 0 : 1;
}

/*
 * What replicas cost: the same job with cluster.replicas 1 and 2, in turn, two shards on this
 * machine. Prints steps per second, what a step takes longer, and what was forwarded: bytes for
 * each step beside those of the padded model, and how many of them are headers.
 *
 *     replication [--rounds N]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "tests/lib/bench_suite.h"
#include "tests/lib/cluster/run_train.h"

#define ROUNDS_MAX 21

static const struct {
    const char *name;
    const char *text;
} jobs[] = {
    {"dlinear", "name: bench-replication\nseed: 1\nmodel: {kind: dlinear}\n"
                "data: {kind: synthetic}\n"
                "train: {epochs: 20, batch_size: 64, drop_last: true, evaluate: false}\n"
                "cluster: {lanes: 2, workers: 2, shards: 2}\n"},
    {"mlp 1M", "name: bench-replication\nseed: 1\nmodel: {kind: mlp, hidden: [1024, 1024]}\n"
               "data: {kind: synthetic}\n"
               "train: {epochs: 2, batch_size: 64, drop_last: true, evaluate: false}\n"
               "cluster: {lanes: 2, workers: 2, shards: 2}\n"},
};

static size_t rounds = 5;

struct cost {
    double steps_per_s[2][ROUNDS_MAX]; /* by replicas - 1 */
    double steps;
    double values; /* bytes of gradients that were forwarded, in the last round */
    double bytes;  /* with what is around them */
};

/* The sum of the numbers after `name` in a shard's lines about links that ended. */
static double logged(const struct kelp_run *run, const char *shard, const char *name)
{
    char file[64];
    double sum = 0;

    (void)snprintf(file, sizeof(file), "logs/%s.log", shard);
    char *log = kelp_test_read(run->run_folder, file, NULL);
    for (const char *at = log; (at = strstr(at, "follower's stream ended")) != NULL; at++) {
        const char *value = strstr(at, name);
        ck_assert_ptr_nonnull(value);
        sum += strtod(value + strlen(name), NULL);
    }
    free(log);
    return sum;
}

static void measure_once(const char *text, unsigned replicas, size_t round, struct cost *cost)
{
    struct kelp_run run;
    char option[64];

    (void)snprintf(option, sizeof(option), "cluster.replicas=%u", replicas);
    const char *args[] = {"--set", option, NULL};
    kelp_run_prepare(&run);
    kelp_run_train(&run, kelp_test_write(run.folder, "job.yaml", text), args, 300);
    ck_assert_msg(run.exit_code == 0, "exit %d:\n%s", run.exit_code, run.output);
    cost->steps_per_s[replicas - 1][round] = kelp_run_number(&run, "steps_per_s");
    if (replicas > 1) {
        cost->steps = kelp_run_number(&run, "step");
        cost->values = logged(&run, "shard-0", " values=") + logged(&run, "shard-1", " values=");
        cost->bytes = logged(&run, "shard-0", " bytes=") + logged(&run, "shard-1", " bytes=");
    }
    kelp_run_fini(&run);
}

START_TEST(measure)
{
    (void)printf("%-10s %12s %12s %8s %12s %14s %10s\n", "job", "steps/s 1", "steps/s 2", "ratio",
                 "us/step more", "bytes/step", "headers %");
    for (size_t i = 0; i < KELP_ARRAY_COUNT(jobs); i++) {
        struct cost cost = {.steps = 0};
        for (size_t round = 0; round < rounds; round++) {
            measure_once(jobs[i].text, 1, round, &cost);
            measure_once(jobs[i].text, 2, round, &cost);
        }
        const double alone = kelp_bench_median(cost.steps_per_s[0], rounds);
        const double both = kelp_bench_median(cost.steps_per_s[1], rounds);
        (void)printf("%-10s %12.0f %12.0f %8.2f %12.0f %14.0f %10.2f\n", jobs[i].name, alone, both,
                     both / alone, 1e6 / both - 1e6 / alone, cost.values / cost.steps,
                     100 * (cost.bytes - cost.values) / cost.values);
        (void)fflush(stdout);
    }
}
END_TEST

int main(int argc, char **argv)
{
    const TTest *const measurements[] = {measure};

    if (argc == 3 && strcmp(argv[1], "--rounds") == 0) {
        rounds = strtoul(argv[2], NULL, 10);
    }
    if ((argc != 1 && argc != 3) || rounds == 0 || rounds > ROUNDS_MAX) {
        (void)fprintf(stderr, "usage: replication [--rounds 1 to %d]\n", ROUNDS_MAX);
        return 2;
    }
    (void)setenv("KELP_BIN", KELP_BIN_DIR, 0);
    return kelp_bench_run("replication", measurements, KELP_ARRAY_COUNT(measurements)) == 0 ? 0 : 1;
}

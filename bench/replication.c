/*
 * What replicas cost: the same job with cluster.replicas 1 and 2, in turn, with two shards on this
 * machine. Prints steps per second, the cost (a share of the steps per second) and its limit, how
 * much longer a step takes, and what was forwarded: bytes for each step compared with those of the
 * padded model, and how many of them are headers.
 *
 *     replication [--rounds N] [--only JOB]
 *
 * Exit status 1 if a cost is over its limit, if other values than the model's were forwarded, or if
 * headers are 1 % of the bytes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "common/training/plan.h"
#include "tests/lib/bench_suite.h"
#include "tests/lib/commands/run_watch.h"

#define ROUNDS_MAX    21
#define HEADERS_LIMIT 0.01
#define JOB           "name: bench-replication\nseed: 1\ncluster: {lanes: 2, workers: 2, shards: 2}\n"

static const struct {
    const char *name;
    const char *text;
    double limit; /* of the cost; 1: none, since steps are as short as the protocol */
} jobs[] = {
    {"dlinear",
     JOB "model: {kind: dlinear}\ndata: {kind: synthetic}\n"
         "train: {epochs: 20, batch_size: 64, drop_last: true, evaluate: false}\n",
     1},
    {"mlp 5 MiB",
     JOB "model: {kind: mlp, hidden: [1024, 1024]}\ndata: {kind: synthetic}\n"
         "train: {epochs: 2, batch_size: 64, drop_last: true, evaluate: false}\n",
     1},
    {"100 ms", /* the same model, more samples */
     JOB "model: {kind: mlp, hidden: [1024, 1024]}\ndata: {kind: synthetic}\n"
         "train: {epochs: 15, batch_size: 2048, drop_last: true, evaluate: false}\n",
     0.10},
    {"64 MiB", JOB KELP_BENCH_WIDE("15") "train: {epochs: 1, batch_size: 2, evaluate: false}\n",
     0.35},
};

static size_t rounds = 5;
static const char *only;
static bool over_limit;

struct cost {
    double steps_per_s[2][ROUNDS_MAX]; /* by replicas - 1 */
    double ratios[ROUNDS_MAX];
    double steps;
    double padded; /* bytes of the model */
    double values; /* gradient bytes forwarded in the last round */
    double bytes;  /* including headers */
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

/* Bytes of the flat vector, from the plan in the last checkpoint. */
static double padded_bytes(const struct kelp_run *run)
{
    const struct kelp_run_checkpoint newest =
        kelp_run_newest(run, (struct kelp_run_wanted){.file = NULL});
    char *text = kelp_test_read(newest.path, "plan.json", NULL);
    struct kelp_plan plan;
    struct kelp_error error;

    ck_assert_msg(kelp_plan_parse(text, strlen(text), &plan, &error) == KELP_OK, "%s", error.text);
    const double bytes = (double)plan.flat_count * sizeof(float);
    kelp_plan_fini(&plan);
    free(text);
    return bytes;
}

static void measure_once(const char *text, unsigned replicas, size_t round, struct cost *cost)
{
    struct kelp_run run;
    char option[64];

    (void)snprintf(option, sizeof(option), "cluster.replicas=%u", replicas);
    const char *args[] = {"--set", option, NULL};
    kelp_run_prepare(&run);
    kelp_bench_write_table(run.folder);
    kelp_run_train(&run, kelp_test_write(run.folder, "job.yaml", text), args, 300);
    ck_assert_msg(run.exit_code == 0, "exit %d:\n%s", run.exit_code, run.output);
    cost->steps_per_s[replicas - 1][round] = kelp_run_number(&run, "steps_per_s");
    if (replicas > 1) {
        cost->ratios[round] = cost->steps_per_s[1][round] / cost->steps_per_s[0][round];
        cost->steps = kelp_run_number(&run, "step");
        cost->padded = padded_bytes(&run);
        cost->values = logged(&run, "shard-0", " values=") + logged(&run, "shard-1", " values=");
        cost->bytes = logged(&run, "shard-0", " bytes=") + logged(&run, "shard-1", " bytes=");
    }
    kelp_run_fini(&run);
}

static void measure_job(size_t job)
{
    struct cost cost = {.steps = 0};

    for (size_t round = 0; round < rounds; round++) {
        measure_once(jobs[job].text, 1, round, &cost);
        measure_once(jobs[job].text, 2, round, &cost);
    }
    const double alone = kelp_bench_median(cost.steps_per_s[0], rounds);
    const double both = kelp_bench_median(cost.steps_per_s[1], rounds);
    const double share = 1 - kelp_bench_median(cost.ratios, rounds);
    const double headers = (cost.bytes - cost.values) / cost.values;
    const bool over = share > jobs[job].limit || headers >= HEADERS_LIMIT ||
                      cost.values != cost.steps * cost.padded;
    (void)printf("%-10s %11.1f %11.1f %7.1f%% %7.0f%% %12.0f %12.0f %12.0f %9.2f%%%s\n",
                 jobs[job].name, alone, both, 100 * share, 100 * jobs[job].limit,
                 1e6 / both - 1e6 / alone, cost.values / cost.steps, cost.padded, 100 * headers,
                 over ? "  OVER" : "");
    (void)fflush(stdout);
    over_limit = over_limit || over;
}

START_TEST(measure)
{
    (void)printf("%-10s %11s %11s %8s %8s %12s %12s %12s %10s\n", "job", "steps/s 1", "steps/s 2",
                 "cost", "limit", "us/step more", "bytes/step", "of model", "headers");
    for (size_t i = 0; i < KELP_ARRAY_COUNT(jobs); i++) {
        if (only == NULL || strcmp(only, jobs[i].name) == 0) {
            measure_job(i);
        }
    }
}
END_TEST

static bool parse(int argc, char **argv)
{
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 < argc && strcmp(argv[i], "--rounds") == 0) {
            rounds = strtoul(argv[i + 1], NULL, 10);
        } else if (i + 1 < argc && strcmp(argv[i], "--only") == 0) {
            only = argv[i + 1];
        } else {
            return false;
        }
    }
    return rounds >= 1 && rounds <= ROUNDS_MAX;
}

int main(int argc, char **argv)
{
    const TTest *const measurements[] = {measure};

    if (!parse(argc, argv)) {
        (void)fprintf(stderr, "usage: replication [--rounds 1 to %d] [--only JOB]\n", ROUNDS_MAX);
        return 2;
    }
    (void)setenv("KELP_BIN", KELP_BIN_DIR, 0);
    const int failed = kelp_bench_run("replication", measurements, KELP_ARRAY_COUNT(measurements));
    return failed == 0 && !over_limit ? 0 : 1;
}

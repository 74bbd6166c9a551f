/*
 * What a step costs the shard: a real kelp-ps, and two scripted workers that push precomputed
 * gradients (lanes 0 and 1 of 2) and pull the next weights, without computing. Prints steps per
 * second, the shard's processor time for each step, and how much of it are system calls.
 *
 *     bench/shard [ELEMENTS [STEPS]]     default: DLinear's 18624 and 4000
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "tests/lib/bench_suite.h"
#include "tests/lib/cluster/scripted_worker.h"

#define WORKERS 2

struct times {
    double wall;
    double user;
    double kernel;
};

static void read_times(pid_t pid, struct times *ret_times)
{
    char path[64];
    char text[1024] = "";
    unsigned long user = 0, kernel = 0;

    (void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    ck_assert_ptr_nonnull(fgets(text, sizeof(text), file));
    (void)fclose(file);
    const char *fields = strrchr(text, ')');
    ck_assert_ptr_nonnull(fields);
    ck_assert_int_eq(
        sscanf(fields, ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &kernel), 2);
    ret_times->wall = 1e-6 * (double)kelp_clock_us();
    ret_times->user = (double)user / (double)sysconf(_SC_CLK_TCK);
    ret_times->kernel = (double)kernel / (double)sysconf(_SC_CLK_TCK);
}

/* Helpers of tests report through Check, so the whole bench runs as a test. */
static uint64_t elements = 18624;
static uint64_t steps = 4000;

START_TEST(measure)
{
    static const char *const settings[] = {"train.optimizer",
                                           "adam",
                                           "cluster.lanes",
                                           "2",
                                           "train.batch_size",
                                           "32",
                                           "train.evaluate",
                                           "false",
                                           "train.epochs",
                                           "1",
                                           NULL};
    struct shard_fixture fixture;
    struct shard_stream control;
    struct scripted_worker workers[WORKERS];
    struct kelp_control_word word;
    struct times before, after;

    (void)setenv("KELP_BIN", KELP_BIN_DIR, 0);
    shard_fixture_start(&fixture, settings, elements, (steps + 101) * 32);
    shard_stream_open(&control, &fixture, "Control");
    shard_load(&control, 1);
    float *gradient = calloc((size_t)fixture.plan.flat_count, sizeof(float));
    for (uint64_t i = 0; gradient && i < fixture.plan.flat_count; i++) {
        gradient[i] = (float)(i % 1000) * 1e-5f;
    }
    for (uint32_t i = 0; i < WORKERS; i++) {
        scripted_worker_open(&workers[i], &fixture, 1, i, &word);
    }
    for (uint64_t step = 0; step < steps + 100; step++) {
        if (step == 100) { /* warmed up */
            read_times(kelp_process_pid(fixture.process), &before);
        }
        for (uint32_t i = 0; i < WORKERS; i++) {
            scripted_worker_send(&workers[i], &word, gradient);
        }
        for (uint32_t i = 0; i < WORKERS; i++) {
            scripted_worker_take(&workers[i], &word);
        }
        while (control.message_count > 0) {
            kelp_rpc_message_unref(control.messages[--control.message_count]);
        }
    }
    read_times(kelp_process_pid(fixture.process), &after);
    double count = (double)steps;
    (void)printf("%-10s %-10s %8s %10s %14s %12s %12s\n", "elements", "partitions", "workers",
                 "steps/s", "shard us/step", "user us", "kernel us");
    (void)printf("%-10llu %-10u %8d %10.0f %14.1f %12.1f %12.1f\n", (unsigned long long)elements,
                 fixture.plan.partition_count, WORKERS, count / (after.wall - before.wall),
                 (after.user + after.kernel - before.user - before.kernel) / count * 1e6,
                 (after.user - before.user) / count * 1e6,
                 (after.kernel - before.kernel) / count * 1e6);
    for (uint32_t i = 0; i < WORKERS; i++) {
        scripted_worker_close(&workers[i]);
    }
    free(gradient);
    shard_stream_close(&control);
    shard_fixture_stop(&fixture);
}
END_TEST

int main(int argc, char **argv)
{
    elements = argc > 1 ? strtoull(argv[1], NULL, 10) : elements;
    steps = argc > 2 ? strtoull(argv[2], NULL, 10) : steps;
    etcd_fixture_require();
    int failed = kelp_bench_run("shard", &measure, 1);
    return failed == 0 ? 0 : 1;
}

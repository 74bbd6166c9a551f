/*
 * A worker that is slowed down to a quarter: how much remains of the speed that the others'
 * capacity allows. Four workers and 16 lanes of an MLP, on this machine. Each worker runs only a
 * part of the time (by SIGSTOP and SIGCONT), so that two cores suffice for all; then one of them
 * gets a quarter of that.
 *
 *     slow_worker [--rounds N]
 *
 * (3 + 1/4) / 4 of the speed before is possible. Exit status 1 if the median share of that is below
 * 80 %.
 */
#include <curl/curl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <check.h>

#include "cli/cluster/run_client.h"
#include "common/base/clock.h"
#include "common/rpc/rpc.h"
#include "tests/lib/bench_suite.h"
#include "tests/lib/commands/run_train.h"
#include "tests/lib/commands/step_watch.h"

#define ROUNDS_MAX  21
#define WORKERS     4
#define WARM_STEPS  30
#define SETTLE_US   5000000 /* lanes are split anew after differing for a second */
#define MEASURE_US  8000000
#define PERIOD_US   40000
#define RUN_US      14000 /* of each period: 1.4 cores for all workers */
#define SLOW_US     (RUN_US / 4)
#define ALLOWED     ((WORKERS - 1 + 0.25) / WORKERS)
#define SHARE_LEAST 0.80

static const char job_text[] = "name: bench-slow-worker\nseed: 1\n"
                               "model: {kind: mlp, hidden: [1024, 1024]}\n"
                               "data: {kind: synthetic}\n"
                               "train: {epochs: 100000, batch_size: 1024, drop_last: true, "
                               "evaluate: false}\n"
                               "cluster: {lanes: 16, workers: 4, shards: 1}\n"
                               "checkpoint: {interval: 60m}\n";

static size_t rounds = 5;
static bool below;
static struct kelp_run run;
static struct kelp_step_watch *watch;

/* ---- workers that run part of the time ------------------------------------------------------- */

struct throttle {
    pthread_t thread;
    pid_t pid;
    unsigned offset_us; /* so that not all run at once */
    atomic_uint run_us;
    atomic_bool over;
};

static void *throttle_thread(void *user)
{
    struct throttle *throttle = user;

    (void)usleep(throttle->offset_us);
    while (!atomic_load(&throttle->over)) {
        const unsigned run_us = atomic_load(&throttle->run_us);
        (void)kill(throttle->pid, SIGCONT);
        (void)usleep(run_us);
        (void)kill(throttle->pid, SIGSTOP);
        (void)usleep(PERIOD_US - run_us);
    }
    (void)kill(throttle->pid, SIGCONT);
    return NULL;
}

static void throttle_all(struct throttle throttles[WORKERS])
{
    for (unsigned i = 0; i < WORKERS; i++) {
        struct throttle *throttle = &throttles[i];
        char id[32];
        (void)snprintf(id, sizeof(id), "worker-%u", i);
        throttle->pid = kelp_test_command_find(&run.command, "kelp-worker", id);
        ck_assert_msg(throttle->pid > 0, "no %s runs", id);
        throttle->offset_us = i * PERIOD_US / WORKERS;
        atomic_init(&throttle->run_us, RUN_US);
        atomic_init(&throttle->over, false);
        ck_assert_int_eq(pthread_create(&throttle->thread, NULL, throttle_thread, throttle), 0);
    }
}

static void release_all(struct throttle throttles[WORKERS])
{
    for (unsigned i = 0; i < WORKERS; i++) {
        atomic_store(&throttles[i].over, true);
        (void)pthread_join(throttles[i].thread, NULL);
    }
}

/* ---- measuring ------------------------------------------------------------------------------- */

/* Steps per second, from the end of one step to the end of another. */
static double steps_per_s(void)
{
    kelp_step_watch_await(watch, kelp_step_watch_step(watch) + 1);
    const uint64_t first = kelp_step_watch_step(watch);
    const uint64_t begin_us = kelp_clock_us();
    (void)usleep(MEASURE_US);
    kelp_step_watch_await(watch, kelp_step_watch_step(watch) + 1);
    const uint64_t steps = kelp_step_watch_step(watch) - first;
    return 1e6 * (double)steps / (double)(kelp_clock_us() - begin_us);
}

/* "5 5 5 1", in the order of the workers' numbers. */
static void say_lanes(char text[64])
{
    struct kelp_job_client *client = NULL;
    Kelp__V1__StatusReply *reply = NULL;
    struct kelp_error error = {.text = ""};
    size_t used = 0;

    ck_assert_int_eq(kelp_run_client_open(run.run_folder, &client, &error), KELP_OK);
    ck_assert_msg(kelp_job_client_status(client, 5000, &reply, &error) == KELP_OK, "%s",
                  error.text);
    for (unsigned i = 0; i < WORKERS; i++) {
        char id[32];
        (void)snprintf(id, sizeof(id), "worker-%u", i);
        for (size_t j = 0; j < reply->n_workers; j++) {
            if (strcmp(reply->workers[j]->id, id) == 0) {
                used += (size_t)snprintf(text + used, 64 - used, "%s%u", i > 0 ? " " : "",
                                         reply->workers[j]->lane_count);
            }
        }
    }
    kelp_job_client_status_free(reply);
    kelp_job_client_close(client);
}

static double measure_round(size_t round)
{
    struct throttle throttles[WORKERS];
    char lanes[64];

    kelp_run_prepare(&run);
    kelp_run_start(&run, kelp_test_write(run.folder, "job.yaml", job_text), NULL);
    watch = kelp_step_watch_open(&run);
    kelp_step_watch_await(watch, WARM_STEPS);
    throttle_all(throttles);
    (void)usleep(SETTLE_US);
    const double before = steps_per_s();
    atomic_store(&throttles[round % WORKERS].run_us, SLOW_US);
    (void)usleep(SETTLE_US);
    const double slowed = steps_per_s();
    say_lanes(lanes);
    const double share = slowed / (ALLOWED * before);
    (void)printf("%-7zu %9.2f %9.2f %9.2f %7.0f %%   %s\n", round + 1, before, ALLOWED * before,
                 slowed, 100 * share, lanes);
    (void)fflush(stdout);
    release_all(throttles);
    kelp_step_watch_close(watch);
    kelp_process_signal(run.command.process, SIGQUIT); /* ends without a checkpoint */
    (void)kelp_test_command_wait(&run.command, KELP_TEST_HANG_MS);
    kelp_run_fini(&run);
    return share;
}

START_TEST(slow_worker)
{
    double shares[ROUNDS_MAX];

    (void)printf("4 workers, 16 lanes, one worker slowed to a quarter; steps/s\n");
    (void)printf("%-7s %9s %9s %9s %9s   %s\n", "round", "before", "allowed", "slowed", "share",
                 "lanes of each");
    for (size_t i = 0; i < rounds; i++) {
        shares[i] = measure_round(i);
    }
    const double share = kelp_bench_median(shares, rounds);
    below = share < SHARE_LEAST;
    (void)printf("median %.0f %% (at least %.0f %%)%s\n", 100 * share, 100 * SHARE_LEAST,
                 below ? "  BELOW" : "");
}
END_TEST

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--rounds") == 0) {
        rounds = strtoul(argv[2], NULL, 10);
    }
    if ((argc != 1 && argc != 3) || rounds == 0 || rounds > ROUNDS_MAX) {
        (void)fprintf(stderr, "usage: slow_worker [--rounds 1 to %d]\n", ROUNDS_MAX);
        return 2;
    }
    (void)setenv("KELP_BIN", KELP_BIN_DIR, 0);
    (void)setenv("OPENBLAS_NUM_THREADS", "1", 0);
    (void)curl_global_init(CURL_GLOBAL_DEFAULT);
    kelp_rpc_global_init();
    int failed = kelp_bench_run("slow_worker", &slow_worker, 1);
    kelp_rpc_global_fini();
    curl_global_cleanup();
    return failed == 0 && !below ? 0 : 1;
}

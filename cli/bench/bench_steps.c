/* `kelp bench steps`. */
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/bench/bench_cluster.h"
#include "cli/bench/bench_limits.h"
#include "cli/bench/bench_verbs.h"
#include "cli/cluster/run_client.h"
#include "cli/run/log_tail.h"
#include "common/base/files.h"
#include "common/base/json.h"

#define GRADIENT_BYTES 74496u  /* DLinear of windows of 96 steps: 18624 weights */
#define LIMIT_US       300000u /* how long each limit is measured */
#define QUIT_MS        1200u   /* for kelp train to end; a guard leaves 1800 for everything */

static const struct kelp_option options[] = {
    KELP_VERB_NUMBER("workers", INTEGER, 1, KELP_BENCH_WORKERS_MAX, "2", NULL,
                     "processes that compute"),
    KELP_VERB_NUMBER("shards", INTEGER, 1, KELP_BENCH_SHARDS_MAX, "1", NULL,
                     "processes that add gradients and serve weights"),
    KELP_BENCH_TRANSPORT_OPTION,
    KELP_VERB_NUMBER("epochs", INTEGER, 1, 10000, "20", NULL,
                     "epochs of each job, about 130 steps each"),
    KELP_BENCH_ETCD_PROGRAM_OPTION,
    KELP_VERB_OUTPUT("a table, or one JSON object"),
};

static const struct kelp_program program = {
    .name = "kelp bench steps",
    .summary =
        "measures steps per second of a small job, where the protocol is nearly all of the cost",
    .examples = "  kelp bench steps\n"
                "  kelp bench steps --workers 4 --transport shm --epochs 100 -o json\n",
    KELP_VERB_OPTIONS(options),
};

struct bench {
    const struct kelp_options *given;
    struct kelp_guard *guard;
    uint32_t workers, shards;
    bool json;
    uint32_t printed; /* rows */
    struct kelp_bench_home home;
};

static void print_row(struct bench *bench, const char *way, bool limit, double steps_per_s)
{
    if (!bench->json) {
        (void)printf("%-14s %10.0f %10.1f\n", way, steps_per_s, 1e6 / steps_per_s);
        (void)fflush(stdout);
        return;
    }
    kelp_json_print_member(stdout, bench->printed++ > 0 ? ",\n  {" : "\n  {", "way", way);
    (void)printf(",\"limit\":%s,\"steps_per_s\":", limit ? "true" : "false");
    kelp_json_print_double(stdout, steps_per_s);
    (void)printf("}");
}

/* Pushing and pulling as much as the job does, without Kelp: each worker once in a step. */
static kelp_status measure_limits(struct bench *bench, struct kelp_error *reterr)
{
    const struct kelp_bench_pattern pattern = {.bytes = GRADIENT_BYTES,
                                               .workers = bench->workers,
                                               .shards = bench->shards,
                                               .time_us = LIMIT_US};
    kelp_status status = KELP_OK;

    for (int limit = 0; limit < KELP_BENCH_LIMIT_COUNT && status == KELP_OK; limit++) {
        struct kelp_bench_rate rate;
        status = kelp_bench_limit_measure((enum kelp_bench_limit)limit, &pattern, bench->guard,
                                          &rate, reterr);
        if (status == KELP_OK) {
            print_row(bench, rate.way, true, rate.operations_per_s / bench->workers);
        }
    }
    return status;
}

/* ---- a job ----------------------------------------------------------------------------------- */

static kelp_status write_job(const struct bench *bench, const char *path, const char *transport,
                             struct kelp_error *reterr)
{
    char text[600];
    const uint32_t lanes = kelp_bench_lanes(bench->workers);
    const int length =
        snprintf(text, sizeof(text),
                 "name: bench-steps\nseed: 1\nmodel: {kind: dlinear}\ndata: {kind: synthetic}\n"
                 "train: {epochs: %" PRIu64 ", batch_size: 64, drop_last: true, evaluate: false}\n"
                 "cluster: {lanes: %" PRIu32 ", workers: %" PRIu32 ", shards: %" PRIu32 "}\n"
                 "transport: {kind: %s}\ncheckpoint: {interval: 0s, at_end: false}\n",
                 kelp_options_integer(bench->given, "epochs"), lanes, bench->workers, bench->shards,
                 transport);

    return kelp_files_write(path, text, (size_t)length, reterr);
}

/* `kelp train`, until its end. */
static kelp_status train(struct bench *bench, const char *job, const char *run,
                         struct kelp_error *reterr)
{
    const char *etcd_program = kelp_options_text(bench->given, "etcd-program");
    const char *const args[] = {"train",      job,          "--run",
                                run,          "--no-plots", etcd_program ? "--etcd-program" : NULL,
                                etcd_program, NULL};
    struct kelp_bench_process child = {.out = -1};
    int wait_status = 0;

    kelp_status status = kelp_bench_home_start(&bench->home, "train", args, &child, reterr);
    while (status == KELP_OK && kelp_process_wait(child.process, 0, &wait_status) != KELP_OK) {
        struct pollfd items[] = {{.fd = kelp_process_fd(child.process), .events = POLLIN},
                                 {.fd = kelp_guard_fd(bench->guard), .events = POLLIN}};
        if (kelp_guard_stage(bench->guard) == KELP_GUARD_STOP) {
            status = kelp_fail(reterr, KELP_ERR_CLOSED, "stopped by a signal");
        } else {
            (void)poll(items, 2, -1);
        }
    }
    if (status == KELP_OK && !(WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0)) {
        char how[64], words[256];
        kelp_process_describe(wait_status, how, sizeof(how));
        kelp_log_tail_read(child.log, 0, words, sizeof(words));
        status = kelp_fail(reterr, KELP_ERR_CLOSED, "kelp train %s: %s", how,
                           words[0] ? words : "it said nothing");
    }
    if (status != KELP_OK && child.process) { /* it has a folder of its own, which goes in order */
        kelp_process_signal(child.process, SIGQUIT);
        if (kelp_process_wait(child.process, QUIT_MS, NULL) != KELP_OK) {
            (void)fprintf(stderr, "kelp: kelp train does not end, and is killed\n");
        }
    }
    kelp_process_destroy(child.process); /* its own children die with it */
    return status;
}

static kelp_status measure_transport(struct bench *bench, const char *transport,
                                     struct kelp_error *reterr)
{
    char job[KELP_BENCH_LOG_MAX], run[KELP_BENCH_LOG_MAX];
    struct kelp_result result;

    (void)snprintf(job, sizeof(job), "%s/%s.yaml", bench->home.folder, transport);
    (void)snprintf(run, sizeof(run), "%s/%s", bench->home.folder, transport);
    kelp_status status = write_job(bench, job, transport, reterr);
    if (status == KELP_OK) {
        status = train(bench, job, run, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_run_result_read(run, &result, reterr);
    }
    if (status == KELP_OK && !(result.steps_per_s > 0)) {
        status =
            kelp_fail(reterr, KELP_ERR_INVALID,
                      "the job was over before its speed could be measured; use more --epochs");
    }
    if (status == KELP_OK) {
        print_row(bench, transport, false, result.steps_per_s);
    }
    return status;
}

static kelp_status measure_transports(struct bench *bench, struct kelp_error *reterr)
{
    const uint32_t chosen = kelp_options_choice(bench->given, "transport");
    kelp_status status = KELP_OK;

    for (uint32_t t = 1; kelp_bench_transports[t] && status == KELP_OK; t++) {
        if (kelp_bench_chosen(chosen, t)) {
            status = measure_transport(bench, kelp_bench_transports[t], reterr);
        }
    }
    return status;
}

/* ---- the command ----------------------------------------------------------------------------- */

static void print_begin(const struct bench *bench)
{
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);

    if (bench->json) {
        (void)printf("{\"bench\":\"steps\",\"processors\":%ld,\"workers\":%" PRIu32
                     ",\"shards\":%" PRIu32 ",\"rows\":[",
                     processors, bench->workers, bench->shards);
    } else {
        (void)printf("processors %ld, workers %" PRIu32 ", shards %" PRIu32
                     "; DLinear, batches of 64\n\n%-14s %10s %10s\n",
                     processors, bench->workers, bench->shards, "LIMIT", "steps/s", "us a step");
    }
}

static kelp_status measure(struct bench *bench, struct kelp_error *reterr)
{
    kelp_status status = kelp_bench_home_open(&bench->home, bench->guard, reterr);

    if (status != KELP_OK) {
        kelp_bench_home_close(&bench->home);
        return status;
    }
    print_begin(bench);
    status = measure_limits(bench, reterr);
    if (status == KELP_OK && !bench->json) {
        (void)printf("\n%-14s %10s %10s\n", "KELP", "steps/s", "us a step");
    }
    if (status == KELP_OK) {
        status = measure_transports(bench, reterr);
    }
    if (bench->json) {
        (void)printf("\n]}\n");
    }
    kelp_bench_home_close(&bench->home);
    return status;
}

static int work(struct kelp_guard *guard, void *user)
{
    struct bench *bench = user;
    struct kelp_error error;

    bench->guard = guard;
    kelp_status status = measure(bench, &error);
    return status == KELP_OK ? KELP_EXIT_OK
                             : kelp_bench_failed(status, &error, kelp_guard_signal(guard));
}

static int steps(const struct kelp_options *given)
{
    struct bench bench = {.given = given,
                          .workers = (uint32_t)kelp_options_integer(given, "workers"),
                          .shards = (uint32_t)kelp_options_integer(given, "shards"),
                          .json = kelp_verb_json(given)};
    struct kelp_error error;
    int exit_status = KELP_EXIT_FAILED;

    kelp_status status = kelp_guard_run(work, &bench, &exit_status, &error);
    return status == KELP_OK ? exit_status : kelp_bench_failed(status, &error, 0);
}

const struct kelp_verb kelp_bench_verb_steps = {
    "steps", "steps a second of a small job, by each transport", &program, steps, NULL};

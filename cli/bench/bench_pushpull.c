/* `kelp bench pushpull`. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/bench/bench_clock.h"
#include "cli/bench/bench_cluster.h"
#include "cli/bench/bench_limits.h"
#include "cli/bench/bench_plot.h"
#include "cli/bench/bench_rate.h"
#include "cli/bench/bench_report.h"
#include "cli/bench/bench_samples.h"
#include "cli/bench/bench_threads.h"
#include "cli/bench/bench_verbs.h"
#include "cli/preflight/machine.h"
#include "cli/verb/out_file.h"
#include "common/base/clock.h"
#include "common/base/files.h"
#include "common/base/json.h"
#include "common/job/job.h"

#define START_MS      60000u /* for a cluster to begin, and to be slower than it was thought to be */
#define SLOWEST_BYTES (20u << 20) /* a second, of one operation: nothing is slower than this */

static const char *const optimizers[] = {"sgd", "rmsprop", "adam", "adamw", NULL};

static const struct kelp_option options[] = {
    KELP_BENCH_SIZE_OPTION("size", "LIST", "4KiB,64KiB,1MiB,16MiB",
                           "sizes to push and pull, 4KiB to 256MiB, such as 64KiB,256MiB"),
    KELP_VERB_NUMBER("workers", INTEGER, 1, KELP_BENCH_WORKERS_MAX, "1", NULL,
                     "processes that push and pull"),
    KELP_VERB_NUMBER("shards", INTEGER, 1, KELP_BENCH_SHARDS_MAX, "1", NULL,
                     "processes that add gradients and serve weights"),
    KELP_BENCH_TRANSPORT_OPTION,
    KELP_VERB_NUMBER("streams", INTEGER, 1, KELP_JOB_STREAMS_MAX, "1", NULL,
                     "connections between a worker and a shard (transport.streams)"),
    {.name = "optimizer",
     .type = KELP_OPTION_CHOICE,
     .choices = optimizers,
     .default_text = "sgd",
     .help = "the optimizer that updates the weights"},
    KELP_BENCH_TIME_OPTION("how long to measure for each line of the table"),
    KELP_BENCH_ETCD_PROGRAM_OPTION,
    KELP_VERB_OUTPUT("a table, or one JSON object"),
    KELP_VERB_TEXT("plot", "FILE.svg", NULL, "also draw the results over the sizes"),
};

static const struct kelp_program program = {
    .name = "kelp bench pushpull",
    .summary = "measures pushing gradients and pulling weights on this machine, and what limits "
               "them",
    .examples =
        "  kelp bench pushpull\n"
        "  kelp bench pushpull --size 64KiB,256MiB --workers 4 --shards 2 --time 5s -o json\n"
        "  kelp bench pushpull --size 64MiB --workers 2 --optimizer adam\n",
    KELP_VERB_OPTIONS(options),
};

struct bench {
    const struct kelp_options *given;
    struct kelp_guard *guard;
    struct kelp_bench_sizes sizes;
    uint32_t workers, shards, streams;
    uint64_t time_ms;
    bool json;
    struct kelp_bench_rate rows[KELP_BENCH_ROWS_MAX]; /* so far */
    uint32_t row_count;
    double copy_gb_s[KELP_BENCH_SIZES_MAX]; /* of each size */
    struct kelp_bench_home home;
};

static void print_row(struct bench *bench, const struct kelp_bench_rate *rate, double copy_gb_s)
{
    assert(bench->row_count < KELP_BENCH_ROWS_MAX);
    bench->rows[bench->row_count++] = *rate;
    if (bench->json) {
        (void)fputs(bench->row_count > 1 ? ",\n  " : "\n  ", stdout);
        kelp_bench_rate_json(rate, stdout);
    } else {
        kelp_bench_rate_row(rate, copy_gb_s, stdout);
        (void)fflush(stdout);
    }
}

static const char *optimizer_of(const struct bench *bench)
{
    return optimizers[kelp_options_choice(bench->given, "optimizer")];
}

static struct kelp_bench_pattern pattern_of(const struct bench *bench, uint32_t size)
{
    return (struct kelp_bench_pattern){.bytes = bench->sizes.bytes[size],
                                       .workers = bench->workers,
                                       .shards = bench->shards,
                                       .time_us = bench->time_ms * 1000};
}

/* ---- what limits it -------------------------------------------------------------------------- */

static kelp_status measure_limits(struct bench *bench, struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;

    for (uint32_t i = 0; i < bench->sizes.count && status == KELP_OK; i++) {
        const struct kelp_bench_pattern pattern = pattern_of(bench, i);
        for (int limit = 0; limit < KELP_BENCH_LIMIT_COUNT && status == KELP_OK; limit++) {
            struct kelp_bench_rate rate;
            status = kelp_bench_limit_measure((enum kelp_bench_limit)limit, &pattern, bench->guard,
                                              &rate, reterr);
            if (status == KELP_OK) {
                bench->copy_gb_s[i] =
                    limit == KELP_BENCH_COPY ? rate.gb_per_s : bench->copy_gb_s[i];
                print_row(bench, &rate, bench->copy_gb_s[i]);
            }
        }
    }
    return status;
}

/* ---- Kelp ------------------------------------------------------------------------------------ */

static kelp_status open_cluster(struct bench *bench, const char *transport,
                                struct kelp_bench_cluster *cluster, struct kelp_error *reterr)
{
    char keys[600];
    const uint32_t lanes = kelp_bench_lanes(bench->workers);

    (void)snprintf(
        keys, sizeof(keys),
        "model: {kind: dlinear}\ndata: {kind: synthetic}\n"
        "train: {optimizer: %s, lr: 0.001, batch_size: %" PRIu32 ", epochs: 1, evaluate: false}\n"
        "cluster: {lanes: %" PRIu32 ", workers: %" PRIu32 ", shards: %" PRIu32
        ", max_shards: %" PRIu32 "}\n"
        "transport: {kind: %s, streams: %" PRIu32 "}\ncheckpoint: {interval: 0s, at_end: false}\n",
        optimizer_of(bench), lanes, lanes, bench->workers, bench->shards, bench->shards, transport,
        bench->streams);
    return kelp_bench_cluster_open(cluster, &bench->home, keys, bench->shards, reterr);
}

static kelp_status add_workers(const struct bench *bench, struct kelp_bench_cluster *cluster,
                               uint64_t bytes, struct kelp_error *reterr)
{
    /* As kelp-worker asks for by kelp_rpc_global_several_loops(). */
    static const char *const environment[] = {"GRPC_POLL_STRATEGY=poll", NULL};
    char id[KELP_BENCH_ID_MAX + 1], size[KELP_VALUE_TEXT_MAX], time[KELP_VALUE_TEXT_MAX];
    const char *const args[] = {"--size", size, "--time", time, NULL};
    kelp_status status = KELP_OK;

    kelp_value_print_size(bytes, size);
    kelp_value_print_duration(bench->time_ms, time);
    for (uint32_t i = 0; i < bench->workers && status == KELP_OK; i++) {
        uint32_t index = 0;
        (void)snprintf(id, sizeof(id), "worker-%" PRIu32, i);
        status = kelp_bench_cluster_add(cluster, "worker", id, args, environment, &index, reterr);
    }
    return status;
}

/* Of all workers. */
struct sum {
    double bytes_per_s;
    double operations_per_s;
    double cpu_per_s;
    double thread_per_s; /* of the busiest thread */
    float *us;           /* KELP_BENCH_SAMPLES_MAX for each */
    size_t count;
};

static kelp_status take_report(struct kelp_bench_cluster *cluster, uint32_t index,
                               uint64_t deadline_ms, struct sum *sum, struct kelp_error *reterr)
{
    struct kelp_bench_report report;

    kelp_status status =
        kelp_bench_cluster_read(cluster, index, &report, sizeof(report), deadline_ms, reterr);
    if (status != KELP_OK) {
        return status;
    }
    if (report.sample_count > KELP_BENCH_SAMPLES_MAX || !(report.wall_s > 0)) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "%s: its report makes no sense",
                         cluster->processes[index].id);
    }
    sum->bytes_per_s += (double)report.bytes / report.wall_s;
    sum->operations_per_s += (double)report.operations / report.wall_s;
    sum->cpu_per_s += report.cpu_s / report.wall_s;
    status =
        kelp_bench_cluster_read(cluster, index, sum->us + sum->count,
                                (size_t)report.sample_count * sizeof(float), deadline_ms, reterr);
    sum->count += status == KELP_OK ? report.sample_count : 0;
    return status;
}

static void read_threads(const struct kelp_bench_cluster *cluster,
                         struct kelp_bench_threads *ret_threads)
{
    ret_threads->count = 0;
    for (uint32_t i = 0; i < cluster->count; i++) {
        if (cluster->processes[i].process) {
            kelp_bench_threads_add(ret_threads, kelp_process_pid(cluster->processes[i].process));
        }
    }
}

/* The processes are there: from the moment when all workers measure until all have told. */
static kelp_status observe(const struct bench *bench, struct kelp_bench_cluster *cluster,
                           uint64_t bytes, struct sum *sum, struct kelp_error *reterr)
{
    const uint32_t first = cluster->shards + 1;
    const uint64_t slow_ms = bytes * bench->workers / (SLOWEST_BYTES / 1000) * 5;
    const uint64_t deadline_ms = kelp_clock_ms() + START_MS + bench->time_ms + slow_ms;
    kelp_status status = KELP_OK;

    for (uint32_t i = 0; i < bench->workers && status == KELP_OK; i++) {
        char begun = 0;
        status = kelp_bench_cluster_read(cluster, first + i, &begun, 1, deadline_ms, reterr);
    }
    struct kelp_bench_threads before, after;
    read_threads(cluster, &before);
    const double begin_us = kelp_bench_now_us();
    const double before_s = kelp_bench_cluster_cpu_s(cluster);
    for (uint32_t i = 0; i < bench->workers && status == KELP_OK; i++) {
        status = take_report(cluster, first + i, deadline_ms, sum, reterr);
    }
    const double wall_s = (kelp_bench_now_us() - begin_us) * 1e-6;
    sum->cpu_per_s += (kelp_bench_cluster_cpu_s(cluster) - before_s) / wall_s;
    read_threads(cluster, &after);
    sum->thread_per_s = kelp_bench_threads_busiest_s(&before, &after) / wall_s;
    return status;
}

static kelp_status measure_kelp(struct bench *bench, uint32_t size, const char *transport,
                                struct kelp_error *reterr)
{
    struct kelp_bench_cluster cluster = {.count = 0};
    struct kelp_bench_rate rate = {.way = transport, .bytes = bench->sizes.bytes[size]};
    struct sum sum = {.us = malloc(bench->workers * KELP_BENCH_SAMPLES_MAX * sizeof(float))};

    kelp_status status = sum.us ? open_cluster(bench, transport, &cluster, reterr)
                                : kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    if (status == KELP_OK) {
        status = add_workers(bench, &cluster, rate.bytes, reterr);
    }
    if (status == KELP_OK) {
        status = observe(bench, &cluster, rate.bytes, &sum, reterr);
    }
    kelp_bench_cluster_close(&cluster);
    if (status == KELP_OK) {
        rate.gb_per_s = sum.bytes_per_s * 1e-9;
        rate.operations_per_s = sum.operations_per_s;
        rate.cpu_s_per_gb = sum.cpu_per_s / rate.gb_per_s;
        rate.thread_s_per_gb = sum.thread_per_s / rate.gb_per_s;
        rate.p50_us = kelp_bench_quantile(sum.us, sum.count, 0.5);
        rate.p99_us = kelp_bench_quantile(sum.us, sum.count, 0.99);
        print_row(bench, &rate, bench->copy_gb_s[size]);
    }
    free(sum.us);
    return status;
}

static kelp_status measure_transports(struct bench *bench, struct kelp_error *reterr)
{
    const uint32_t chosen = kelp_options_choice(bench->given, "transport");
    kelp_status status = KELP_OK;

    for (uint32_t i = 0; i < bench->sizes.count && status == KELP_OK; i++) {
        for (uint32_t t = 1; kelp_bench_transports[t] && status == KELP_OK; t++) {
            if (kelp_bench_chosen(chosen, t)) {
                status = measure_kelp(bench, i, kelp_bench_transports[t], reterr);
            }
        }
    }
    return status;
}

/* ---- the command ----------------------------------------------------------------------------- */

static void print_begin(const struct bench *bench)
{
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);

    if (bench->json) {
        (void)printf("{\"bench\":\"pushpull\",\"processors\":%ld,\"workers\":%" PRIu32
                     ",\"shards\":%" PRIu32 ",\"streams\":%" PRIu32
                     ",\"optimizer\":\"%s\",\"time_ms\":%" PRIu64 ",\"rows\":[",
                     processors, bench->workers, bench->shards, bench->streams, optimizer_of(bench),
                     bench->time_ms);
        return;
    }
    (void)printf("processors %ld, workers %" PRIu32 ", shards %" PRIu32 ", streams %" PRIu32
                 ", optimizer %s; GB/s both ways, of all workers together\n\n",
                 processors, bench->workers, bench->shards, bench->streams, optimizer_of(bench));
    kelp_bench_rate_head("LIMIT", stdout);
}

static kelp_status measure(struct bench *bench, struct kelp_error *reterr)
{
    kelp_status status = kelp_bench_home_open(&bench->home, bench->guard, reterr);

    if (status == KELP_OK) {
        status = kelp_bench_home_start_etcd(
            &bench->home, kelp_options_text(bench->given, "etcd-program"), reterr);
    }
    if (status != KELP_OK) {
        kelp_bench_home_close(&bench->home);
        return status;
    }
    print_begin(bench);
    status = measure_limits(bench, reterr);
    if (status == KELP_OK && !bench->json) {
        (void)printf("\n");
        kelp_bench_rate_head("KELP", stdout);
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

static kelp_status draw(const struct bench *bench, const char *path, struct kelp_error *reterr)
{
    char title[64];
    char *bytes = NULL;
    size_t count = 0;

    (void)snprintf(title, sizeof(title),
                   "pushing and pulling, workers %" PRIu32 ", shards %" PRIu32, bench->workers,
                   bench->shards);
    kelp_status status =
        kelp_bench_plot(bench->rows, bench->row_count, title, &bytes, &count, reterr);
    if (status == KELP_OK) {
        status = kelp_files_write(path, bytes, count, reterr);
    }
    free(bytes);
    return status;
}

static int work(struct kelp_guard *guard, void *user)
{
    struct bench *bench = user;
    struct kelp_error error;

    bench->guard = guard;
    const char *plot = kelp_options_text(bench->given, "plot");
    kelp_status status = measure(bench, &error);
    if (status == KELP_OK && plot) {
        status = draw(bench, plot, &error);
    }
    return status == KELP_OK ? KELP_EXIT_OK
                             : kelp_bench_failed(status, &error, kelp_guard_signal(guard));
}

static int pushpull(const struct kelp_options *given)
{
    struct bench bench = {.given = given,
                          .workers = (uint32_t)kelp_options_integer(given, "workers"),
                          .shards = (uint32_t)kelp_options_integer(given, "shards"),
                          .streams = (uint32_t)kelp_options_integer(given, "streams"),
                          .time_ms = kelp_options_duration_ms(given, "time"),
                          .json = kelp_verb_json(given)};
    struct kelp_machine machine;
    struct kelp_error error;
    int exit_status = KELP_EXIT_FAILED;

    kelp_status status =
        kelp_bench_sizes(kelp_options_text(given, "size"), "size", &bench.sizes, &error);
    if (status == KELP_OK && kelp_options_text(given, "plot")) {
        status = kelp_out_file_check("--plot", kelp_options_text(given, "plot"), &error);
    }
    if (status == KELP_OK) {
        kelp_machine_read(&machine);
        status = kelp_bench_sizes_fit(&bench.sizes, bench.workers, machine.memory_bytes, &error);
    }
    if (status == KELP_OK) {
        status = kelp_guard_run(work, &bench, &exit_status, &error);
    }
    return status == KELP_OK ? exit_status : kelp_bench_failed(status, &error, 0);
}

const struct kelp_verb kelp_bench_verb_pushpull = {
    "pushpull", "push gradients and pull weights, beside copy, sockets and shared memory", &program,
    pushpull, NULL};

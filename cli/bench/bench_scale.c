/* `kelp bench scale`. */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "cli/bench/bench_clock.h"
#include "cli/bench/bench_cluster.h"
#include "cli/bench/bench_crowd_report.h"
#include "cli/bench/bench_verbs.h"
#include "common/base/clock.h"
#include "common/base/json.h"

#define WORKERS_LEAST 3       /* two of them are lost */
#define PHASE_MS      120000u /* that each phase may take */

static const struct kelp_option options[] = {
    KELP_VERB_NUMBER("workers", INTEGER, WORKERS_LEAST, KELP_BENCH_CROWD_MAX, "1000", NULL,
                     "idle workers, with two connections each"),
    KELP_VERB_NUMBER("time", DURATION, 10, 600000, "5s", NULL,
                     "how long to measure processor time while nothing happens"),
    KELP_VERB_NUMBER("detect", DURATION, 100, 600000, "1s", NULL,
                     "failure.detect of the job: silence after which a worker counts as lost"),
    KELP_BENCH_ETCD_PROGRAM_OPTION,
    KELP_VERB_OUTPUT("a table, or one JSON object"),
};

static const struct kelp_program program = {
    .name = "kelp bench scale",
    .summary = "measures what many workers cost a coordinator and a shard, and how fast a lost one "
               "is noticed",
    .examples = "  kelp bench scale\n"
                "  kelp bench scale --workers 200 --time 10s -o json\n",
    KELP_VERB_OPTIONS(options),
};

enum { COORDINATOR, SHARD, DAEMONS };
static const char *const daemon_names[DAEMONS] = {"coordinator", "shard"};

enum { CROWD, KILLED, SILENT, GROUPS }; /* processes of workers */

struct daemon {
    double kib_per_worker;
    double idle_percent; /* of a core */
};

struct loss {
    double noticed_ms;  /* until the first worker got other lanes */
    double assigned_ms; /* until all lanes were somebody's again */
};

struct bench {
    const struct kelp_options *given;
    struct kelp_guard *guard;
    uint32_t workers;
    uint32_t lanes;
    uint64_t files_max;
    uint32_t detect_ms;
    bool json;
    struct kelp_bench_home home;
    struct kelp_bench_cluster cluster;
    uint32_t index[GROUPS]; /* in the cluster */
    struct kelp_bench_crowd_report reports[GROUPS];
    bool lost[GROUPS];
    uint64_t memory_before[DAEMONS]; /* bytes, with one worker */
    /* What came of it. */
    struct daemon daemons[DAEMONS];
    double joined_ms, assigned_ms;
    struct loss killed, silent;
};

/* ---- the cluster ----------------------------------------------------------------------------- */

/* As many lanes as there may be, so that no worker is a spare. */
static kelp_status open_cluster(struct bench *bench, struct kelp_error *reterr)
{
    char keys[400];

    (void)snprintf(keys, sizeof(keys),
                   "model: {kind: dlinear}\ndata: {kind: synthetic}\n"
                   "train: {optimizer: sgd, batch_size: %" PRIu32 ", epochs: 1, evaluate: false}\n"
                   "cluster: {lanes: %" PRIu32 ", workers: %" PRIu32 ", shards: 1, max_shards: 1}\n"
                   "checkpoint: {interval: 0s, at_end: false}\n"
                   "failure: {detect: %" PRIu32 "ms}\n",
                   bench->lanes, bench->lanes, bench->workers, bench->detect_ms);
    return kelp_bench_cluster_open(&bench->cluster, &bench->home, keys, 1, reterr);
}

static kelp_status add_group(struct bench *bench, int group, uint32_t workers,
                             struct kelp_error *reterr)
{
    static const char *const ids[GROUPS] = {"crowd", "killed", "silent"};
    char number[16];
    const char *const args[] = {"--workers", number, NULL};

    (void)snprintf(number, sizeof(number), "%" PRIu32, workers);
    return kelp_bench_cluster_add(&bench->cluster, "crowd", ids[group], args, NULL,
                                  &bench->index[group], reterr);
}

/* Wait for the next report of any process; further reports of a lost one do not count. */
static kelp_status hear(struct bench *bench, uint64_t deadline_ms, int *ret_group,
                        struct kelp_error *reterr)
{
    struct kelp_bench_crowd_report report;
    uint32_t index = 0;
    int group = 0;

    kelp_status status =
        kelp_bench_cluster_await(&bench->cluster, KELP_BENCH_ANYBODY, deadline_ms, &index, reterr);
    if (status == KELP_OK) {
        status = kelp_bench_cluster_read(&bench->cluster, index, &report, sizeof(report),
                                         deadline_ms, reterr);
    }
    while (group < GROUPS - 1 && bench->index[group] != index) {
        group++;
    }
    if (status == KELP_OK && !bench->lost[group]) {
        bench->reports[group] = report;
    }
    *ret_group = group;
    return status;
}

/* Sums over all that are there. */
struct crowd {
    uint32_t joined, reached, lanes;
};

static struct crowd sum_up(const struct bench *bench)
{
    struct crowd sum = {.joined = 0};

    for (int group = 0; group < GROUPS; group++) {
        sum.joined += bench->reports[group].joined;
        sum.reached += bench->reports[group].reached;
        sum.lanes += bench->reports[group].lanes;
    }
    return sum;
}

/* Wait until this many workers have got an answer from the coordinator and the shard, and have this
 * many lanes. */
static kelp_status await_crowd(struct bench *bench, const struct crowd *wanted,
                               struct kelp_error *reterr)
{
    const uint64_t deadline_ms = kelp_clock_ms() + PHASE_MS;
    struct crowd sum = sum_up(bench);
    kelp_status status = KELP_OK;
    int group = 0;

    while (status == KELP_OK && (sum.joined < wanted->joined || sum.reached < wanted->reached ||
                                 (wanted->lanes > 0 && sum.lanes != wanted->lanes))) {
        status = hear(bench, deadline_ms, &group, reterr);
        sum = sum_up(bench);
    }
    return status;
}

/* ---- what is measured ------------------------------------------------------------------------ */

static void read_memory(const struct bench *bench, uint64_t bytes[DAEMONS])
{
    for (int i = 0; i < DAEMONS; i++) {
        bytes[i] = kelp_bench_process_memory(&bench->cluster.processes[i]);
    }
}

/* The time at which the lanes of any worker last changed. */
static double lanes_us(const struct bench *bench)
{
    double last_us = 0;

    for (int group = 0; group < GROUPS; group++) {
        const double at_us = bench->reports[group].lanes_us;
        last_us = at_us > last_us ? at_us : last_us;
    }
    return last_us;
}

/* One worker joins before the others, so that the cost of the first one does not count. */
static kelp_status gather(struct bench *bench, struct kelp_error *reterr)
{
    const uint32_t many = bench->workers - 2;
    const struct kelp_bench_crowd_report *crowd = &bench->reports[CROWD];

    kelp_status status = add_group(bench, KILLED, 1, reterr);
    if (status == KELP_OK) {
        status = await_crowd(bench, &(struct crowd){.joined = 1}, reterr);
    }
    read_memory(bench, bench->memory_before);
    if (status == KELP_OK) {
        status = add_group(bench, CROWD, many, reterr);
    }
    if (status == KELP_OK) {
        status =
            await_crowd(bench, &(struct crowd){.joined = 1 + many, .lanes = bench->lanes}, reterr);
    }
    bench->joined_ms = (lanes_us(bench) - crowd->begun_us) * 1e-3;
    return status;
}

/* The last worker joins and the job begins: all get the map, and connect to the shard. */
static kelp_status begin(struct bench *bench, struct kelp_error *reterr)
{
    const uint32_t all = bench->workers;
    uint64_t after[DAEMONS];

    kelp_status status = add_group(bench, SILENT, 1, reterr);
    if (status == KELP_OK) {
        status = await_crowd(bench, &(struct crowd){.joined = all, .lanes = bench->lanes}, reterr);
    }
    bench->assigned_ms = (lanes_us(bench) - bench->reports[SILENT].hello_us) * 1e-3;
    if (status == KELP_OK) {
        status = await_crowd(
            bench, &(struct crowd){.joined = all, .reached = all, .lanes = bench->lanes}, reterr);
    }
    read_memory(bench, after);
    for (int i = 0; i < DAEMONS; i++) {
        bench->daemons[i].kib_per_worker =
            ((double)after[i] - (double)bench->memory_before[i]) / 1024 / (all - 1);
    }
    return status;
}

static kelp_status idle(struct bench *bench, struct kelp_error *reterr)
{
    const uint32_t time_ms = (uint32_t)kelp_options_duration_ms(bench->given, "time");
    double before_s[DAEMONS];

    for (int i = 0; i < DAEMONS; i++) {
        before_s[i] = kelp_bench_process_cpu_s(&bench->cluster.processes[i]);
    }
    const double begin_us = kelp_bench_now_us();
    kelp_status status = kelp_bench_cluster_pass(&bench->cluster, time_ms, reterr);
    const double wall_s = (kelp_bench_now_us() - begin_us) * 1e-6;
    for (int i = 0; i < DAEMONS; i++) {
        const double spent_s = kelp_bench_process_cpu_s(&bench->cluster.processes[i]) - before_s[i];
        bench->daemons[i].idle_percent = 100 * spent_s / wall_s;
    }
    return status;
}

/* By now a worker is lost: the others hear of it, and get its lanes. */
static kelp_status follow_loss(struct bench *bench, double lost_us, struct loss *loss,
                               struct kelp_error *reterr)
{
    const uint64_t deadline_ms = kelp_clock_ms() + PHASE_MS;
    kelp_status status = KELP_OK;
    bool noticed = false;
    int group = 0;

    do {
        status = hear(bench, deadline_ms, &group, reterr);
        const struct kelp_bench_crowd_report *report = &bench->reports[group];
        if (status == KELP_OK && report->changes > 0 && report->first_us > lost_us) {
            const double ms = (report->first_us - lost_us) * 1e-3;
            loss->noticed_ms = noticed && loss->noticed_ms < ms ? loss->noticed_ms : ms;
            noticed = true;
        }
    } while (status == KELP_OK && (!noticed || sum_up(bench).lanes != bench->lanes));
    loss->assigned_ms = (lanes_us(bench) - lost_us) * 1e-3;
    return status;
}

/* What it last reported counts no more. */
static void forget(struct bench *bench, int group)
{
    bench->reports[group] = (struct kelp_bench_crowd_report){.joined = 0};
    bench->lost[group] = true;
}

static kelp_status lose(struct bench *bench, struct kelp_error *reterr)
{
    double lost_us = kelp_bench_now_us();

    kelp_bench_cluster_kill(&bench->cluster, bench->index[KILLED]);
    forget(bench, KILLED);
    kelp_status status = follow_loss(bench, lost_us, &bench->killed, reterr);
    if (status == KELP_OK) {
        lost_us = kelp_bench_now_us();
        kelp_process_signal(bench->cluster.processes[bench->index[SILENT]].process, SIGSTOP);
        forget(bench, SILENT);
        status = follow_loss(bench, lost_us, &bench->silent, reterr);
    }
    return status;
}

/* ---- printing -------------------------------------------------------------------------------- */

static void print_limits(const struct bench *bench)
{
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);

    if (!bench->json) {
        (void)printf("processors %ld, open files %" PRIu64 ", failure.detect %" PRIu32 " ms\n\n",
                     processors, bench->files_max, bench->detect_ms);
        (void)fflush(stdout);
        return;
    }
    (void)printf("{\"bench\":\"scale\",\"processors\":%ld,\"open_files\":%" PRIu64
                 ",\"detect_ms\":%" PRIu32 ",\"workers\":%" PRIu32 ",\"lanes\":%" PRIu32,
                 processors, bench->files_max, bench->detect_ms, bench->workers, bench->lanes);
}

static void print_number(const char *before, const char *name, double value)
{
    (void)printf("%s\"%s\":", before, name);
    kelp_json_print_double(stdout, value);
}

static void print_loss(const char *name, const struct loss *loss)
{
    (void)printf(",\"%s\":{", name);
    print_number("", "noticed_ms", loss->noticed_ms);
    print_number(",", "assigned_ms", loss->assigned_ms);
    (void)printf("}");
}

/* Streams that the coordinator has ended: workers that did not answer it in time. */
static uint32_t dropped(const struct bench *bench)
{
    return bench->reports[CROWD].dropped;
}

static void print_json(const struct bench *bench)
{
    for (int i = 0; i < DAEMONS; i++) {
        (void)printf(",\"%s\":{", daemon_names[i]);
        print_number("", "kib_per_worker", bench->daemons[i].kib_per_worker);
        print_number(",", "idle_percent", bench->daemons[i].idle_percent);
        (void)printf("}");
    }
    (void)printf(",\"dropped\":%" PRIu32, dropped(bench));
    print_number(",", "joined_ms", bench->joined_ms);
    print_number(",", "assigned_ms", bench->assigned_ms);
    print_loss("killed", &bench->killed);
    print_loss("silent", &bench->silent);
    (void)printf("}\n");
}

static void print_table(const struct bench *bench)
{
    char what[32];

    (void)printf("%-12s %14s %16s\n", "PROCESS", "KiB per worker", "idle % of a core");
    for (int i = 0; i < DAEMONS; i++) {
        (void)printf("%-12s %14.1f %16.2f\n", daemon_names[i], bench->daemons[i].kib_per_worker,
                     bench->daemons[i].idle_percent);
    }
    (void)printf("\n%-52s %10s\n", "WHAT", "ms");
    (void)snprintf(what, sizeof(what), "%" PRIu32 " workers join", bench->workers - 2);
    (void)printf("%-52s %10.1f\n", what, bench->joined_ms);
    (void)printf("%-52s %10.1f\n", "the last one joins: all lanes are assigned",
                 bench->assigned_ms);
    (void)printf("%-52s %10.1f\n", "one is killed: the first of the others is told",
                 bench->killed.noticed_ms);
    (void)printf("%-52s %10.1f\n", "              all its lanes are assigned again",
                 bench->killed.assigned_ms);
    (void)printf("%-52s %10.1f\n", "one falls silent: the first of the others is told",
                 bench->silent.noticed_ms);
    (void)printf("%-52s %10.1f\n", "              all its lanes are assigned again",
                 bench->silent.assigned_ms);
    if (dropped(bench) > 0) {
        (void)printf("\n%" PRIu32 " times a worker did not answer within failure.detect, and came "
                     "again: this machine is too busy\n",
                     dropped(bench));
    }
}

/* ---- the command ----------------------------------------------------------------------------- */

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
    if (!bench->json) {
        print_limits(bench);
    }
    status = open_cluster(bench, reterr);
    if (status == KELP_OK) {
        status = gather(bench, reterr);
    }
    if (status == KELP_OK) {
        status = begin(bench, reterr);
    }
    if (status == KELP_OK) {
        status = idle(bench, reterr);
    }
    if (status == KELP_OK) {
        status = lose(bench, reterr);
    }
    kelp_bench_cluster_close(&bench->cluster);
    kelp_bench_home_close(&bench->home);
    return status;
}

static int work(struct kelp_guard *guard, void *user)
{
    struct bench *bench = user;
    struct kelp_error error;

    bench->guard = guard;
    kelp_status status = measure(bench, &error);
    if (status != KELP_OK) {
        return kelp_bench_failed(status, &error, kelp_guard_signal(guard));
    }
    if (bench->json) {
        print_limits(bench);
        print_json(bench);
    } else {
        print_table(bench);
    }
    return KELP_EXIT_OK;
}

static int scale(const struct kelp_options *given)
{
    struct bench bench = {.given = given,
                          .workers = (uint32_t)kelp_options_integer(given, "workers"),
                          .lanes =
                              kelp_bench_lanes((uint32_t)kelp_options_integer(given, "workers")),
                          .detect_ms = (uint32_t)kelp_options_duration_ms(given, "detect"),
                          .json = kelp_verb_json(given)};
    struct rlimit limit;
    struct kelp_error error;
    int exit_status = KELP_EXIT_FAILED;

    (void)getrlimit(RLIMIT_NOFILE, &limit); /* cannot fail for this resource */
    bench.files_max = (uint64_t)limit.rlim_max;
    kelp_status status = kelp_bench_crowd_fits(bench.workers, bench.files_max, &error);
    if (status == KELP_OK) {
        status = kelp_guard_run(work, &bench, &exit_status, &error);
    }
    return status == KELP_OK ? exit_status : kelp_bench_failed(status, &error, 0);
}

const struct kelp_verb kelp_bench_verb_scale = {
    "scale", "join many workers to one coordinator and one shard, and lose two", &program, scale,
    NULL};

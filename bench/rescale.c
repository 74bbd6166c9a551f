/*
 * What training loses while partitions move: a model of 128 MiB with Adam grows from one shard to
 * two, so half of its state is copied: 256 MiB of weights, older weights and two slots. Two workers
 * on this machine compute next to nothing.
 *
 * Prints steps per second before, during and after the move, the ratio to the mean of before and
 * after, the processor time of a step relative to before, the longest time without a step from the
 * command on (in median steps), and the copies: their number and bytes, compared with the fewest
 * possible and with the state.
 *
 *     rescale [--rounds N] [--move-rate SIZE]     a second, of the job key cluster.move_rate
 *
 * Exit status 1 if a median is over its limit, or an unnecessary copy was made.
 */
#include <curl/curl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <check.h>

#include "cli/cluster/run_client.h"
#include "common/base/clock.h"
#include "common/rpc/rpc.h"
#include "common/training/plan.h"
#include "tests/lib/bench_suite.h"
#include "tests/lib/commands/run_train.h"
#include "tests/lib/commands/step_watch.h"

#define ROUNDS_MAX  21
#define WARM_STEPS  10
#define QUIET_S     10
#define STEPS_MAX   4096 /* of one measurement */
#define LOOK_US     1000
#define ASK_US      50000 /* between requests to the leader, which has other work */
#define CALL_MS     5000
#define PATIENCE_S  120
#define BUFFERS     4 /* copied for each element: weights, older weights, Adam's slots */
#define SPEED_LEAST 0.70
#define GAP_MEDIANS 3.0
#define GAP_LEAST_S 0.050

static const char job_text[] =
    "name: bench-rescale\n"
    "seed: 1\n" KELP_BENCH_WIDE("31") "train: {epochs: 100000, batch_size: 2, evaluate: false}\n"
                                      "cluster: {lanes: 2, workers: 2, shards: 1}\n"
                                      "checkpoint: {interval: 60m}\n";

static size_t rounds = 5;
static const char *move_rate = "64MiB"; /* the default */
static bool over_limit;

static struct kelp_run run;
static struct kelp_step_watch *watch;
static struct kelp_job_client *client;
static uint64_t last_step; /* the newest step seen */
static double last_s;      /* ... and when */

static double now_s(void)
{
    return 1e-6 * (double)kelp_clock_us();
}

/* ---- the leader ------------------------------------------------------------------------------ */

/* Owned; fails the measurement if there is no leader. */
static Kelp__V1__StatusReply *ask(void)
{
    Kelp__V1__StatusReply *reply = NULL;
    struct kelp_error error = {.text = ""};

    ck_assert_msg(kelp_job_client_status(client, CALL_MS, &reply, &error) == KELP_OK, "%s",
                  error.text);
    return reply;
}

static bool has_begun(void)
{
    Kelp__V1__StatusReply *reply = ask();
    const bool begun = reply->map && reply->map->serial > 1;

    kelp_job_client_status_free(reply);
    return begun;
}

/* The shards differ by at most one partition, and no joiner is left. */
static bool has_settled(void)
{
    Kelp__V1__StatusReply *reply = ask();
    bool settled = reply->n_shards == 2;

    for (size_t i = 0; settled && i < reply->n_shards; i++) {
        const Kelp__V1__ShardInfo *shard = reply->shards[i];
        settled = shard->joining == 0 && shard->backups == 0 &&
                  shard->partitions >= reply->map->n_partitions / 2;
    }
    kelp_job_client_status_free(reply);
    return settled;
}

/* ---- steps ----------------------------------------------------------------------------------- */

struct pace {
    double per_s;
    double cpu_s; /* of all processes, per step */
    double median_s;
    double longest_s;
};

static double cpu_seconds(void)
{
    pid_t pids[64];
    const size_t count = kelp_test_command_processes(&run.command, pids, KELP_ARRAY_COUNT(pids));
    double seconds = 0;

    for (size_t i = 0; i < count; i++) {
        seconds += kelp_bench_cpu_s(pids[i]);
    }
    return seconds;
}

/* Measure from now until is_over() or for for_s seconds, from one step to the end of another. */
static struct pace look(bool (*is_over)(void), double for_s)
{
    static double steps_s[STEPS_MAX]; /* duration of each step */
    const double begin_s = last_s;
    const uint64_t first = last_step;
    const double end_s = now_s() + for_s;
    const double cpu_s = cpu_seconds();
    double asked_s = 0;
    size_t count = 0;
    bool over = false, stepped = false;

    while (!over || !stepped) {
        const uint64_t step = kelp_step_watch_step(watch);
        const double now = now_s();
        if (step > last_step && count < STEPS_MAX) {
            steps_s[count++] = now - last_s;
            last_step = step;
            last_s = now;
            stepped = over;
        }
        if (!over && is_over && now > asked_s + ASK_US * 1e-6) {
            over = is_over();
            asked_s = now;
        }
        over = over || (!is_over && now > end_s);
        ck_assert_msg(now < end_s + PATIENCE_S, "it does not end; see %s", run.folder);
        (void)usleep(LOOK_US);
    }
    const double steps = (double)(last_step - first);
    struct pace pace = {.per_s = steps / (last_s - begin_s),
                        .cpu_s = (cpu_seconds() - cpu_s) / steps};
    pace.median_s = kelp_bench_median(steps_s, count); /* sorts */
    pace.longest_s = steps_s[count - 1];
    return pace;
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* The sum of the numbers after `name` in the run's file, at most one in each line that has
 * `mark`. */
static double sum_of(const char *file, const char *mark, const char *name)
{
    char *text = kelp_test_read(run.run_folder, file, NULL);
    double sum = 0;

    for (const char *at = text; (at = strstr(at, mark)) != NULL; at++) {
        const char *end = at + strcspn(at, "\n");
        const char *value = strstr(at, name);
        sum += value && value < end ? strtod(value + strlen(name), NULL) : 0;
    }
    free(text);
    return sum;
}

/* Bytes of all partitions on the second shard. */
static double bytes_of_second(uint32_t *ret_partitions)
{
    Kelp__V1__StatusReply *reply = ask();
    struct kelp_plan plan;
    struct kelp_error error;
    char *text = NULL;
    double bytes = 0;

    ck_assert_int_eq(kelp_job_client_get(client, "plan", CALL_MS, &text, &error), KELP_OK);
    ck_assert_int_eq(kelp_plan_parse(text, strlen(text), &plan, &error), KELP_OK);
    *ret_partitions = (uint32_t)reply->map->n_partitions;
    for (uint32_t i = 0; i < *ret_partitions; i++) {
        const Kelp__V1__PartitionPlace *place = reply->map->partitions[i];
        if (strcmp(reply->map->shards[place->primary]->shard, "shard-1") == 0) {
            bytes += BUFFERS * sizeof(float) * (double)kelp_plan_partition(&plan, i).count;
        }
    }
    kelp_plan_fini(&plan);
    free(text);
    kelp_job_client_status_free(reply);
    return bytes;
}

/* ---- a round --------------------------------------------------------------------------------- */

struct round {
    double before, moving, after; /* steps/s */
    double ratio;
    double cpu; /* of a step, relative to before */
    double gap_s, gap_medians, gap_limits;
    double moved_s;
    double copies, fewest;
    double bytes, bytes_fewest;
};

static void begin(void)
{
    struct kelp_error error;
    char rate[64];

    kelp_run_prepare_job(&run, job_text);
    kelp_bench_write_table(run.folder);
    (void)snprintf(rate, sizeof(rate), "cluster.move_rate=%s", move_rate);
    kelp_run_start(&run, "job.yaml", (const char *[]){"--set", rate, NULL});
    watch = kelp_step_watch_open(&run);
    kelp_step_watch_await(watch, WARM_STEPS);
    ck_assert_int_eq(kelp_run_client_open(run.run_folder, &client, &error), KELP_OK);
    last_step = kelp_step_watch_step(watch);
    last_s = now_s();
    (void)look(NULL, 0); /* the next measurement starts with a step */
}

static void end(void)
{
    kelp_job_client_close(client);
    kelp_step_watch_close(watch);
    kelp_process_signal(run.command.process, SIGQUIT); /* ends without a checkpoint */
    (void)kelp_test_command_wait(&run.command, PATIENCE_S * 1000);
}

static void scale(void)
{
    Kelp__V1__Targets targets = KELP__V1__TARGETS__INIT;
    struct kelp_error error = {.text = ""};

    targets.shards = 2;
    ck_assert_msg(kelp_job_client_scale(client, &targets, CALL_MS, &error) == KELP_OK, "%s",
                  error.text);
}

static struct round measure_round(void)
{
    struct round round = {.moved_s = 0};
    uint32_t partitions = 0;

    begin();
    const struct pace before = look(NULL, QUIET_S);
    scale();
    const struct pace starting = look(has_begun, 0);
    const double begun_s = now_s();
    const struct pace moving = look(has_settled, 0);
    round.moved_s = now_s() - begun_s;
    const struct pace after = look(NULL, QUIET_S);
    round.bytes_fewest = bytes_of_second(&partitions);
    end();
    round.before = before.per_s;
    round.moving = moving.per_s;
    round.after = after.per_s;
    round.cpu = moving.cpu_s / before.cpu_s;
    round.ratio = moving.per_s / ((before.per_s + after.per_s) / 2);
    round.gap_s = starting.longest_s > moving.longest_s ? starting.longest_s : moving.longest_s;
    round.gap_medians = round.gap_s / before.median_s;
    round.gap_limits =
        round.gap_s /
        (GAP_MEDIANS * before.median_s > GAP_LEAST_S ? GAP_MEDIANS * before.median_s : GAP_LEAST_S);
    round.fewest = partitions / 2; /* those of one shard */
    round.copies = sum_of("events.jsonl", "\"event\":\"moved\"", "attach ");
    round.bytes = sum_of("logs/shard-0.log", "follower's stream ended", " copies=");
    kelp_run_fini(&run);
    return round;
}

START_TEST(rescale)
{
    double ratios[ROUNDS_MAX], gaps[ROUNDS_MAX];

    (void)printf("a model of 128 MiB with Adam, 1 shard to 2, 2 workers; steps/s\n");
    (void)printf("%-7s %8s %8s %8s %7s %7s %10s %9s %8s %10s %14s\n", "round", "before", "moving",
                 "after", "ratio", "CPU", "moved in s", "gap ms", "medians", "copies", "bytes");
    for (size_t i = 0; i < rounds; i++) {
        const struct round round = measure_round();
        const bool needless = round.copies != round.fewest || round.bytes != round.bytes_fewest;
        ratios[i] = round.ratio;
        gaps[i] = round.gap_limits;
        (void)printf(
            "%-7zu %8.2f %8.2f %8.2f %7.2f %7.2f %10.1f %9.0f %8.1f %4.0f of %-3.0f %14.0f%s\n",
            i + 1, round.before, round.moving, round.after, round.ratio, round.cpu, round.moved_s,
            1e3 * round.gap_s, round.gap_medians, round.copies, round.fewest, round.bytes,
            needless ? "  OVER" : "");
        (void)fflush(stdout);
        if (needless) {
            (void)printf("        %.0f bytes are the fewest\n", round.bytes_fewest);
        }
        over_limit = over_limit || needless;
    }
    const double ratio = kelp_bench_median(ratios, rounds);
    const double gap = kelp_bench_median(gaps, rounds);
    over_limit = over_limit || ratio < SPEED_LEAST || gap > 1;
    (void)printf("median ratio %.2f (at least %.2f)%s; longest gap %.2f of what it may be%s\n",
                 ratio, SPEED_LEAST, ratio < SPEED_LEAST ? "  OVER" : "", gap,
                 gap > 1 ? "  OVER" : "");
}
END_TEST

static bool parse(int argc, char **argv)
{
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 < argc && strcmp(argv[i], "--rounds") == 0) {
            rounds = strtoul(argv[i + 1], NULL, 10);
        } else if (i + 1 < argc && strcmp(argv[i], "--move-rate") == 0) {
            move_rate = argv[i + 1];
        } else {
            return false;
        }
    }
    return rounds >= 1 && rounds <= ROUNDS_MAX;
}

int main(int argc, char **argv)
{
    if (!parse(argc, argv)) {
        (void)fprintf(stderr, "usage: rescale [--rounds 1 to %d] [--move-rate SIZE]\n", ROUNDS_MAX);
        return 2;
    }
    (void)setenv("KELP_BIN", KELP_BIN_DIR, 0);
    (void)setenv("OPENBLAS_NUM_THREADS", "1", 0);
    (void)curl_global_init(CURL_GLOBAL_DEFAULT);
    kelp_rpc_global_init();
    int failed = kelp_bench_run("rescale", &rescale, 1);
    kelp_rpc_global_fini();
    curl_global_cleanup();
    return failed == 0 && !over_limit ? 0 : 1;
}

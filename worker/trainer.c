#include "worker/trainer.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/log/log.h"
#include "common/program/daemon.h"
#include "common/scrape/figures.h"
#include "worker/compute/lanes.h"
#include "worker/lane_feed.h"

#define STALL_S 3

struct kelp_trainer {
    struct kelp_job_link *job_link;
    struct kelp_lanes *lanes;
    struct kelp_lane_feed *feed;  /* after joining */
    const struct kelp_plan *plan; /* the lanes' plan */
    bool faulted;                 /* the requested fault has happened */
    struct {
        uint64_t entries;
        double wall_s, operators_s, process_s; /* the last two are processor time */
    } times;                                   /* from the first entry to the end */
};

/* "step=120" or "version=3". */
static bool parse_when(const char *text, struct kelp_worker_fault *fault)
{
    static const char *const units[] = {"step=", "version="};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(units); i++) {
        size_t length = strlen(units[i]);
        if (strncmp(text, units[i], length) != 0 || text[length] < '0' || text[length] > '9') {
            continue;
        }
        char *end;
        errno = 0;
        unsigned long long number = strtoull(text + length, &end, 10);
        fault->by_version = i == 1;
        fault->step = number;
        return errno == 0 && *end == '\0';
    }
    return false;
}

kelp_status kelp_worker_fault_parse(const char *text, struct kelp_worker_fault *ret_fault,
                                    struct kelp_error *reterr)
{
    static const struct {
        const char *prefix;
        enum kelp_worker_fault_kind kind;
    } kinds[] = {{"kill@", KELP_FAULT_KILL},
                 {"kill-pushing@", KELP_FAULT_KILL_PUSHING},
                 {"stall@", KELP_FAULT_STALL},
                 {"hang@", KELP_FAULT_HANG}};

    for (size_t i = 0; i < KELP_ARRAY_COUNT(kinds); i++) {
        size_t length = strlen(kinds[i].prefix);
        struct kelp_worker_fault fault = {.kind = KELP_FAULT_NONE};
        if (strncmp(text, kinds[i].prefix, length) == 0 && parse_when(text + length, &fault)) {
            fault.kind = kinds[i].kind;
            *ret_fault = fault;
            return KELP_OK;
        }
    }
    return kelp_fail(reterr, KELP_ERR_INVALID,
                     "fault \"%s\" is not known; allowed: kill@step=N, kill-pushing@step=N, "
                     "stall@step=N, hang@step=N, and the same with @version=N",
                     text);
}

/* ---- one entry ------------------------------------------------------------------------------- */

static bool await_weights(void *user, uint64_t first, uint64_t count)
{
    return kelp_job_link_await(user, first, count);
}

static void lane_ready(void *user, uint64_t first)
{
    kelp_lane_feed_ready(user, first);
}

static void fail_if_asked(struct kelp_trainer *trainer, const struct kelp_work *work,
                          const struct kelp_worker_fault *fault)
{
    const struct kelp_control_word *word = &work->word;
    if (fault->kind == KELP_FAULT_NONE || trainer->faulted) {
        return;
    }
    if (fault->by_version ? word->version < fault->step
                          : word->kind != KELP_STEP_TRAIN || word->step < fault->step) {
        return;
    }
    trainer->faulted = true;
    kelp_log_error(KELP_WORKER_FAILING " step=%" PRIu64, work->word.step); /* at any log level */
    if (fault->kind == KELP_FAULT_STALL) {
        struct timespec stall = {.tv_sec = STALL_S};
        (void)nanosleep(&stall, NULL); /* lateness is the requested fault */
        return;
    }
    while (fault->kind == KELP_FAULT_HANG) {
        (void)pause(); /* other threads continue */
    }
    if (fault->kind == KELP_FAULT_KILL_PUSHING) {
        kelp_job_link_send_half(trainer->job_link);
    }
    (void)raise(SIGKILL);
}

static kelp_status start_lane(struct kelp_trainer *trainer, const struct kelp_lane *lane,
                              const struct kelp_lanes_ready *ready, struct kelp_error *reterr)
{
    kelp_lanes_within(trainer->lanes, &lane->node);
    return kelp_lanes_start(trainer->lanes, lane->number, lane->gradient, ready, reterr);
}

static kelp_status finish_lane(struct kelp_trainer *trainer, struct kelp_error *reterr)
{
    const kelp_status status = kelp_lanes_finish(trainer->lanes, reterr);
    return status == KELP_OK ? kelp_lane_feed_submit(trainer->feed, reterr) : status;
}

/* Where the device computes beside the host, several lanes are begun ahead of those that are
 * awaited. Pushed lanes are sent after the last one. */
static kelp_status compute_lanes(struct kelp_trainer *trainer, bool early,
                                 struct kelp_error *reterr)
{
    const struct kelp_lanes_ready ready = {.tell = lane_ready, .user = trainer->feed};
    const uint32_t ahead = kelp_lanes_ahead(trainer->lanes);
    const struct kelp_lane *lane = NULL;
    uint32_t started = 0;
    kelp_status status = kelp_lane_feed_lane(trainer->feed, &lane, reterr);

    while (status == KELP_OK && (lane || started > 0)) {
        if (lane) {
            const bool tells = early && kelp_lane_feed_sends_early(trainer->feed);
            status = start_lane(trainer, lane, tells ? &ready : NULL, reterr);
            started++;
        }
        if (status == KELP_OK && (!lane || started == ahead)) {
            status = finish_lane(trainer, reterr);
            started--;
        }
        if (status == KELP_OK && lane) {
            status = kelp_lane_feed_lane(trainer->feed, &lane, reterr);
        }
    }
    return status;
}

static kelp_status compute(struct kelp_trainer *trainer, const struct kelp_work *work,
                           const struct kelp_worker_fault *fault, struct kelp_error *reterr)
{
    /* A requested fault must find a worker that has sent nothing of the step. */
    const bool early = fault->kind == KELP_FAULT_NONE || trainer->faulted;
    kelp_status status = kelp_lanes_begin(trainer->lanes, &work->word, work->weights, reterr);

    if (status == KELP_OK) {
        status = compute_lanes(trainer, early, reterr);
    }
    if (status != KELP_OK) {
        kelp_lanes_drop(trainer->lanes);
    }
    if (status == KELP_ERR_BUSY && !kelp_job_link_await(trainer->job_link, 0, 0)) {
        kelp_lane_feed_give_up(trainer->feed);
        return KELP_OK; /* the lanes are not needed any more */
    }
    if (status == KELP_OK) {
        fail_if_asked(trainer, work, fault);
    }
    return status;
}

/* ---- where the time goes --------------------------------------------------------------------- */

static double clock_s(clockid_t clock)
{
    struct timespec time;
    (void)clock_gettime(clock, &time); /* cannot fail for these clocks */
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Communication is all processor time of the process that operators do not use. */
static void log_times(const struct kelp_trainer *trainer)
{
    const double wall_s = clock_s(CLOCK_MONOTONIC) - trainer->times.wall_s;
    const double process_s = clock_s(CLOCK_PROCESS_CPUTIME_ID) - trainer->times.process_s;
    const double operators_s = trainer->times.operators_s;
    const double rest_s = wall_s - process_s;
    if (trainer->times.entries != 0) {
        kelp_log_info("worked entries=%" PRIu64
                      " wall_s=%.3f operators_s=%.3f communication_s=%.3f "
                      "waiting_s=%.3f",
                      trainer->times.entries, wall_s, operators_s, process_s - operators_s,
                      rest_s > 0 ? rest_s : 0.0);
    }
}

static void tell_work(const struct kelp_trainer *trainer, const struct kelp_lanes_work *before)
{
    struct kelp_figures *figures = kelp_job_link_figures(trainer->job_link);
    const struct kelp_lanes_work now = kelp_lanes_work(trainer->lanes);

    kelp_figures_add(figures, KELP_FIGURE_WORKER_ENTRIES, 1);
    kelp_figures_add(figures, KELP_FIGURE_WORKER_SAMPLES, now.samples - before->samples);
    kelp_job_link_spent_reading(trainer->job_link, now.read_us - before->read_us);
}

static kelp_status compute_timed(struct kelp_trainer *trainer, const struct kelp_work *work,
                                 const struct kelp_worker_fault *fault, struct kelp_error *reterr)
{
    if (trainer->times.entries++ == 0) {
        trainer->times.wall_s = clock_s(CLOCK_MONOTONIC);
        trainer->times.process_s = clock_s(CLOCK_PROCESS_CPUTIME_ID);
    }
    const double begin_s = clock_s(CLOCK_THREAD_CPUTIME_ID);
    const struct kelp_lanes_work before = kelp_lanes_work(trainer->lanes);
    const kelp_status status = compute(trainer, work, fault, reterr);
    tell_work(trainer, &before);
    trainer->times.operators_s += clock_s(CLOCK_THREAD_CPUTIME_ID) - begin_s;
    return status;
}

/* ---- life ------------------------------------------------------------------------------------ */

static kelp_status work_until_over(struct kelp_trainer *trainer,
                                   const struct kelp_worker_fault *fault, struct kelp_stop *stop,
                                   struct kelp_error *reterr)
{
    for (;;) {
        const struct kelp_work *work = NULL;
        kelp_status status = kelp_lane_feed_wait(trainer->feed, stop, &work, reterr);
        if (status == KELP_ERR_CLOSED || (status == KELP_ERR_TIMEOUT && kelp_stop_raised(stop))) {
            log_times(trainer);
            return KELP_OK;
        }
        if (status == KELP_OK) {
            status = compute_timed(trainer, work, fault, reterr);
        }
        if (status != KELP_OK) {
            return status;
        }
    }
}

kelp_status kelp_trainer_create(struct kelp_job_link *job_link, struct kelp_trainer **ret_trainer,
                                struct kelp_error *reterr)
{
    struct kelp_trainer *trainer = calloc(1, sizeof(*trainer));
    if (!trainer) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "trainer: out of memory");
    }
    trainer->job_link = job_link;
    kelp_status status = kelp_lanes_create(kelp_job_link_job(job_link), &trainer->lanes, reterr);
    if (status != KELP_OK) {
        kelp_trainer_destroy(trainer);
        return status;
    }
    trainer->plan = kelp_lanes_plan(trainer->lanes);
    kelp_lanes_trace(trainer->lanes, kelp_job_link_trace(job_link));
    *ret_trainer = trainer;
    return KELP_OK;
}

static void *weights_alloc(void *user, size_t bytes)
{
    return kelp_lanes_host_alloc(user, bytes);
}

static void weights_free(void *user, void *memory)
{
    kelp_lanes_host_free(user, memory);
}

kelp_status kelp_trainer_run(struct kelp_trainer *trainer, const struct kelp_worker_fault *fault,
                             struct kelp_stop *stop, struct kelp_error *reterr)
{
    const struct kelp_job_link_memory memory = {
        .alloc = weights_alloc, .free = weights_free, .user = trainer->lanes};
    kelp_job_link_memory(trainer->job_link, &memory);
    kelp_status status = kelp_job_link_join(trainer->job_link, trainer->plan, reterr);
    if (status != KELP_OK) {
        return status;
    }
    trainer->feed = kelp_lane_feed_create(trainer->job_link, trainer->plan);
    if (!trainer->feed) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "trainer: out of memory");
    }
    if (kelp_job_link_overlaps(trainer->job_link)) {
        kelp_job_link_go_ahead(trainer->job_link);
        kelp_lanes_await(trainer->lanes, await_weights, trainer->job_link);
    }
    struct kelp_footprint footprint;
    kelp_lanes_footprint(trainer->lanes, &footprint);
    kelp_log_info("joined samples=%" PRIu64 " tensors=%u elements=%" PRIu64 " partitions=%u "
                  "planned_memory_bytes=%" PRIu64 " compute=\"%s\"",
                  trainer->plan->samples[KELP_SPLIT_TRAIN], trainer->plan->tensor_count,
                  trainer->plan->flat_count, trainer->plan->partition_count, footprint.total,
                  trainer->plan->compute_kind);
    return work_until_over(trainer, fault, stop, reterr);
}

void kelp_trainer_destroy(struct kelp_trainer *trainer)
{
    if (!trainer) {
        return;
    }
    kelp_lane_feed_destroy(trainer->feed);
    kelp_lanes_destroy(trainer->lanes);
    free(trainer);
}

/* Lanes: handing them out, reading their samples, the lanes ahead, and taking them back. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/log/log.h"
#include "worker/client/client_internal.h"
#include "worker/compute/gradients.h"

/* Sizes of the structs in their first version. */
#define LANE_LEAST  88u
#define AHEAD_LEAST 40u

_Static_assert((int)KELP_WORKER_TRAIN == KELP_STEP_TRAIN &&
                   (int)KELP_WORKER_VALIDATE == KELP_STEP_EVALUATE_VAL &&
                   (int)KELP_WORKER_TEST == KELP_STEP_EVALUATE_TEST &&
                   (int)KELP_WORKER_PREDICT == KELP_STEP_PREDICT,
               "the public kinds are the schedule's");

/* Errors: those of the lane feed. */
static kelp_status find_lane(struct kelp_worker *worker, struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;

    while (status == KELP_OK && !worker->lane) {
        if (worker->work) {
            status = kelp_lane_feed_lane(worker->feed, &worker->lane, reterr);
        }
        if (status == KELP_OK && !worker->lane) {
            worker->work = NULL;
            status = kelp_lane_feed_wait(worker->feed, &worker->stop, &worker->work, reterr);
        }
    }
    return status;
}

static int lane_result(struct kelp_worker *worker, kelp_status status,
                       const struct kelp_error *error)
{
    if (status == KELP_ERR_CLOSED) {
        kelp_log_always(KELP_LOG_INFO, KELP_WORKER_ENDED);
        return KELP_WORKER_OVER;
    }
    if (status == KELP_ERR_TIMEOUT && kelp_stop_raised(&worker->stop)) {
        return KELP_WORKER_STOPPED;
    }
    return kelp__client_result(status, error);
}

/* Clear the gradients of held tensors once in each buffer: no one writes them, but they are sent
 * like the others. */
static int clear_held(struct kelp_worker *worker, const struct kelp_gradient *gradient)
{
    if (gradient->number >= worker->cleared_count) {
        bool *cleared = realloc(worker->cleared, (gradient->number + 1u) * sizeof(*cleared));
        if (!cleared) {
            return kelp__client_no_memory("kelp_worker_next_lane()");
        }
        memset(cleared + worker->cleared_count, 0,
               (gradient->number + 1u - worker->cleared_count) * sizeof(*cleared));
        worker->cleared = cleared;
        worker->cleared_count = gradient->number + 1u;
    }
    for (uint32_t i = 0; i < worker->plan.tensor_count && !worker->cleared[gradient->number]; i++) {
        const struct kelp_tensor *tensor = &worker->plan.tensors[i];
        if (tensor->statistic && tensor->momentum == 0.0f) {
            memset(gradient->values + tensor->offset, 0, tensor->elem_count * sizeof(float));
        }
    }
    worker->cleared[gradient->number] = true;
    return KELP_WORKER_OK;
}

static void fill_lane(const struct kelp_worker *worker, struct kelp_worker_lane *ret_lane)
{
    const struct kelp_control_word *word = &worker->work->word;
    const bool trains = word->kind == KELP_STEP_TRAIN;
    const struct kelp_worker_lane lane = {
        .size = ret_lane->size,
        .kind = (uint32_t)word->kind,
        .lane = worker->lane->number,
        .samples = worker->lane->samples.count,
        .step_samples = word->sample_count,
        .step = word->step,
        .epoch = word->epoch,
        .weights_index = worker->work->weights_index,
        .weights = worker->work->weights,
        .gradient = trains ? worker->lane->gradient->values : NULL,
        .gradient_index = trains ? worker->lane->gradient->number : 0,
        .seed = kelp_worker_lane_seed(worker),
        .lr = word->lr,
    };
    memset(ret_lane, 0, lane.size);
    memcpy(ret_lane, &lane, lane.size < sizeof(lane) ? lane.size : sizeof(lane));
}

int kelp_worker_next_lane(struct kelp_worker *worker, struct kelp_worker_lane *ret_lane)
{
    struct kelp_error error;

    if (!worker->joined) {
        return kelp__client_invalid("kelp_worker_next_lane(): kelp_worker_join() comes before it");
    }
    if (worker->ended != KELP_WORKER_OK) {
        return worker->ended;
    }
    if (worker->lane) {
        return kelp__client_invalid("kelp_worker_next_lane(): lane %" PRIu32 " was not submitted",
                                    worker->lane->number);
    }
    if (ret_lane->size < LANE_LEAST || ret_lane->size > KELP_CLIENT_STRUCT_MOST) {
        return kelp__client_invalid(
            "kelp_worker_lane: size is %zu; it must be the size of the struct", ret_lane->size);
    }
    const kelp_status status = find_lane(worker, &error);
    if (status != KELP_OK) {
        worker->ended = lane_result(worker, status, &error);
        return worker->ended;
    }
    if (worker->work->word.kind == KELP_STEP_TRAIN) {
        worker->ended = clear_held(worker, worker->lane->gradient);
        if (worker->ended != KELP_WORKER_OK) {
            return worker->ended;
        }
    }
    fill_lane(worker, ret_lane);
    return KELP_WORKER_OK;
}

/* Samples of the next piece of a lane, handed out or ahead. */
static uint64_t piece_of(const struct kelp_worker *worker, const struct kelp_schedule *schedule,
                         uint32_t lane, uint64_t done)
{
    const struct kelp_schedule_range samples = kelp_schedule_lane(schedule, lane);
    const struct kelp_schedule_cut cut = {
        .pieces = kelp_job_link_job(worker->job_link)->train.accumulate, .block = worker->block};

    return done > samples.count
               ? 0
               : kelp_schedule_next_piece(schedule, lane, samples.first + done, &cut).count;
}

static int indices_of(const char *call, const struct kelp_schedule *schedule, uint32_t lane,
                      struct kelp_schedule_range range, uint64_t *ret_indices)
{
    const struct kelp_schedule_range samples = kelp_schedule_lane(schedule, lane);

    if (range.first > samples.count || range.count > samples.count - range.first) {
        return kelp__client_invalid("%s: samples [%" PRIu64 ", +%" PRIu64 ") of %" PRIu64
                                    " of the lane",
                                    call, range.first, range.count, samples.count);
    }
    range.first += samples.first;
    kelp_schedule_indices(schedule, range, ret_indices);
    return KELP_WORKER_OK;
}

uint64_t kelp_worker_piece(const struct kelp_worker *worker, uint64_t done)
{
    return worker->lane
               ? piece_of(worker, kelp_lane_feed_schedule(worker->feed), worker->lane->number, done)
               : 0;
}

int kelp_worker_indices(const struct kelp_worker *worker, uint64_t first, uint64_t count,
                        uint64_t *ret_indices)
{
    if (!worker->lane) {
        return kelp__client_invalid("kelp_worker_indices(): there is no lane");
    }
    return indices_of("kelp_worker_indices()", kelp_lane_feed_schedule(worker->feed),
                      worker->lane->number, (struct kelp_schedule_range){first, count},
                      ret_indices);
}

int kelp_worker_ahead_begin(struct kelp_worker *worker)
{
    if (!worker->lane) {
        return kelp__client_invalid("kelp_worker_ahead_begin(): there is no lane");
    }
    worker->ahead.job = NULL;
    (void)kelp_ahead_begin(&worker->ahead, kelp_job_link_job(worker->job_link), &worker->plan,
                           &worker->work->word, worker->work->lane_first, worker->work->lane_count,
                           worker->lane->number); /* otherwise next() reports OVER */
    return KELP_WORKER_OK;
}

int kelp_worker_ahead_next(struct kelp_worker *worker, struct kelp_worker_ahead *ret_ahead)
{
    struct kelp_ahead *ahead = &worker->ahead;

    if (ret_ahead->size < AHEAD_LEAST || ret_ahead->size > KELP_CLIENT_STRUCT_MOST) {
        return kelp__client_invalid(
            "kelp_worker_ahead: size is %zu; it must be the size of the struct", ret_ahead->size);
    }
    if (!ahead->job || !kelp_ahead_next(ahead)) {
        return KELP_WORKER_OVER;
    }
    const struct kelp_worker_ahead lane = {
        .size = ret_ahead->size,
        .kind = (uint32_t)ahead->word.kind,
        .lane = ahead->lane,
        .samples = kelp_schedule_lane(&ahead->schedule, ahead->lane).count,
        .step = ahead->word.step,
        .seed = kelp_schedule_lane_seed(ahead->job->seed, ahead->word.step, ahead->lane),
    };
    memset(ret_ahead, 0, lane.size);
    memcpy(ret_ahead, &lane, lane.size < sizeof(lane) ? lane.size : sizeof(lane));
    return KELP_WORKER_OK;
}

uint64_t kelp_worker_ahead_piece(const struct kelp_worker *worker, uint64_t done)
{
    return worker->ahead.job ? piece_of(worker, &worker->ahead.schedule, worker->ahead.lane, done)
                             : 0;
}

int kelp_worker_ahead_indices(const struct kelp_worker *worker, uint64_t first, uint64_t count,
                              uint64_t *ret_indices)
{
    if (!worker->ahead.job) {
        return kelp__client_invalid("kelp_worker_ahead_indices(): there is no lane");
    }
    return indices_of("kelp_worker_ahead_indices()", &worker->ahead.schedule, worker->ahead.lane,
                      (struct kelp_schedule_range){first, count}, ret_indices);
}

uint64_t kelp_worker_lane_seed(const struct kelp_worker *worker)
{
    return worker->lane ? kelp_schedule_lane_seed(kelp_job_link_job(worker->job_link)->seed,
                                                  worker->work->word.step, worker->lane->number)
                        : 0;
}

int kelp_worker_submit(struct kelp_worker *worker)
{
    struct kelp_error error;

    if (!worker->lane) {
        return kelp__client_invalid("kelp_worker_submit(): there is no lane");
    }
    struct kelp_gradient *gradient = worker->lane->gradient;
    gradient->present = worker->work->word.kind == KELP_STEP_TRAIN;
    gradient->sums[KELP_METRIC_SUM_SAMPLES] = (double)worker->lane->samples.count;
    int result = kelp__client_check_sums(worker);
    if (result == KELP_WORKER_OK) {
        result = kelp__client_end_predictions(worker);
    }
    if (result != KELP_WORKER_OK) {
        return result;
    }
    worker->lane = NULL;
    worker->ahead.job = NULL;
    worker->ended = kelp__client_result(kelp_lane_feed_submit(worker->feed, &error), &error);
    return worker->ended;
}

int kelp_worker_poll(struct kelp_worker *worker)
{
    struct kelp_error error;

    if (!worker->lane) {
        return kelp__client_invalid("kelp_worker_poll(): there is no lane");
    }
    const kelp_status status = kelp_job_link_poll(worker->job_link, &worker->stop, &error);
    if (status == KELP_OK && kelp_stop_raised(&worker->stop)) {
        return KELP_WORKER_STOPPED;
    }
    return lane_result(worker, status, &error);
}

void kelp_worker_spent_reading(struct kelp_worker *worker, uint64_t us)
{
    if (worker->lane) {
        kelp_job_link_spent_reading(worker->job_link, us);
    }
}

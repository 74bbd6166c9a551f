/* A lane of a training step: its gradient, piece by piece. */
#include <assert.h>

#include "worker/compute/lanes_internal.h"

static bool on_need(void *user, uint32_t index)
{
    const struct kelp_lanes *lanes = user;
    const struct kelp_tensor *tensor = &lanes->plan.tensors[index];

    return lanes->await(lanes->await_user, tensor->offset, tensor->elem_count);
}

/* The gradients of the tensors from `index` on are complete. */
static void on_complete(void *user, uint32_t index)
{
    const struct kelp_lanes *lanes = user;

    lanes->told->ready->tell(lanes->told->ready->user, lanes->plan.tensors[index].offset);
}

static bool has_samples(const struct kelp_lanes *lanes, uint32_t first, uint32_t end)
{
    const struct kelp_schedule *schedule = kelp_sample_reader_schedule(lanes->reader);
    for (uint32_t lane = first; lane < end; lane++) {
        if (kelp_schedule_lane(schedule, lane).count > 0) {
            return true;
        }
    }
    return false;
}

/* Whether the model adds the lane to its node's sum, and which lanes come before and after it.
 * The device cannot round values, so it adds only float32. */
static bool sums_up(const struct kelp_lanes *lanes, uint32_t lane, struct kelp_model_sum *ret_sum)
{
    const uint32_t first = lanes->node.first, end = first + lanes->node.count;
    *ret_sum = (struct kelp_model_sum){.lane = lane};
    if (lane < first || lane >= end || lanes->job->transport.precision != KELP_PRECISION_FLOAT32 ||
        !kelp_model_sums_up(lanes->model)) {
        return false;
    }
    ret_sum->begins = !has_samples(lanes, first, lane);
    ret_sum->ends = !has_samples(lanes, lane + 1, end);
    return !ret_sum->begins || !ret_sum->ends;
}

/* A lane's samples are computed in pieces; this is one piece. */
struct piece {
    struct kelp_schedule_range samples; /* their positions */
    bool further;                       /* another piece of the lane came before */
    bool last;
    const struct kelp_model_sum *sum; /* NULL: the lane is its own node */
};

/* On a device with its own memory: enqueue the piece, after finishing older ones if need be. */
static kelp_status begin_piece(struct kelp_lanes *lanes, const struct kelp_model_piece *piece,
                               struct kelp__lanes_started *lane, struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;
    while (status == KELP_OK && !kelp_model_may_begin(lanes->model, piece)) {
        status = kelp__lanes_finish_piece(lanes, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_model_begin(lanes->model, piece, reterr);
    }
    lane->pieces += status == KELP_OK;
    return status;
}

static kelp_status train_piece(struct kelp_lanes *lanes, uint32_t lane, const struct piece *what,
                               struct kelp__lanes_started *started, struct kelp_error *reterr)
{
    const struct kelp_schedule_range samples = what->samples;
    const bool tells = what->last && started->ready;
    double sums[KELP_METRIC_SUM_COUNT]; /* only the scalars are set */
    struct kelp_sample_batch batch;
    kelp_status status = kelp__lanes_read(lanes, lane, samples, &batch, reterr);
    if (status != KELP_OK) {
        return status;
    }
    const struct kelp_model_piece piece = {
        .input = batch.input,
        .target = batch.target,
        .count = (uint32_t)samples.count,
        .batch_total = (double)lanes->word.sample_count,
        .accumulate = what->further,
        .more = !what->last,
        .sum = what->sum,
        .step = lanes->word.step,
        .position = samples.first,
        .need = lanes->await ? on_need : NULL,
        .complete = tells ? on_complete : NULL,
        .idle = kelp__lanes_on_idle,
        .user = lanes,
        .trace = lanes->trace,
    };
    if (kelp_lanes_ahead(lanes) > 1) {
        return begin_piece(lanes, &piece, started, reterr);
    }
    lanes->told = started;
    status = kelp_model_train(lanes->model, &piece, sums, reterr);
    return status == KELP_OK ? kelp__lanes_take_piece(lanes, started, sums, reterr) : status;
}

kelp_status kelp__lanes_train(struct kelp_lanes *lanes, uint32_t lane,
                              const struct kelp_schedule_range *samples,
                              struct kelp__lanes_started *started, struct kelp_error *reterr)
{
    struct kelp_model_sum sum;
    const bool sums = sums_up(lanes, lane, &sum);
    kelp__lanes_bind(lanes, started->gradient->values);
    started->gradient->present = true;
    started->gradient->apart = sums && !sum.ends;
    for (uint64_t done = 0; done < samples->count;) {
        struct piece piece = {.samples = kelp__lanes_piece(lanes, lane, samples->first + done),
                              .further = done > 0,
                              .sum = sums ? &sum : NULL};
        assert(piece.samples.count > 0);
        done += piece.samples.count;
        piece.last = done == samples->count;
        const kelp_status status = train_piece(lanes, lane, &piece, started, reterr);
        if (status != KELP_OK) {
            return status;
        }
    }
    return KELP_OK;
}

#include "worker/compute/lanes_internal.h"

#include <assert.h>
#include <string.h>

#include "common/base/clock.h"
#include "worker/compute/node_sum.h"

void kelp_lanes_trace(struct kelp_lanes *lanes, struct kelp_trace *trace)
{
    lanes->trace = trace;
}

void kelp_lanes_await(struct kelp_lanes *lanes,
                      bool (*await)(void *user, uint64_t first, uint64_t count), void *user)
{
    lanes->await = await;
    lanes->await_user = user;
}

void *kelp_lanes_host_alloc(struct kelp_lanes *lanes, size_t bytes)
{
    return kelp_model_host_alloc(lanes->model, bytes);
}

void kelp_lanes_host_free(struct kelp_lanes *lanes, void *memory)
{
    kelp_model_host_free(lanes->model, memory);
}

const struct kelp_plan *kelp_lanes_plan(const struct kelp_lanes *lanes)
{
    return &lanes->plan;
}

void kelp_lanes_footprint(const struct kelp_lanes *lanes, struct kelp_footprint *ret_footprint)
{
    kelp_footprint(lanes->job, &lanes->plan, lanes->model, lanes->dataset, ret_footprint);
}

struct kelp_lanes_work kelp_lanes_work(const struct kelp_lanes *lanes)
{
    return lanes->work;
}

kelp_status kelp_lanes_begin(struct kelp_lanes *lanes, const struct kelp_control_word *word,
                             const float *weights, struct kelp_error *reterr)
{
    lanes->word = *word;
    lanes->weights = weights;
    lanes->bound = false;
    lanes->node.count = 0;
    assert(lanes->started_count == 0);
    return kelp_sample_reader_begin(lanes->reader, word, reterr);
}

void kelp__lanes_bind(struct kelp_lanes *lanes, float *gradient)
{
    if (!lanes->bound) {
        kelp_model_bind(lanes->model, &lanes->plan, lanes->weights, gradient);
        lanes->bound = true;
    } else {
        kelp_model_bind_gradient(lanes->model, gradient);
    }
}

static void end_span(const struct kelp_lanes *lanes, uint64_t begin_ns, const char *name,
                     uint32_t lane)
{
    kelp_trace_end(lanes->trace, begin_ns,
                   &(struct kelp_trace_span){.name = name,
                                             .step = lanes->word.step,
                                             .arguments = {{"lane", lane}, {"lanes", 1}}});
}

/* ---- one lane -------------------------------------------------------------------------------- */

struct kelp_schedule_range kelp__lanes_piece(const struct kelp_lanes *lanes, uint32_t lane,
                                             uint64_t first)
{
    return kelp_sample_reader_piece(lanes->reader, kelp_sample_reader_schedule(lanes->reader), lane,
                                    first);
}

kelp_status kelp__lanes_read(struct kelp_lanes *lanes, uint32_t lane,
                             struct kelp_schedule_range samples,
                             struct kelp_sample_batch *ret_batch, struct kelp_error *reterr)
{
    const uint64_t begin_us = kelp_clock_us();
    const uint64_t begin_ns = kelp_trace_begin(lanes->trace);
    kelp_status status = kelp_sample_reader_read(lanes->reader, lane, samples, ret_batch, reterr);

    end_span(lanes, begin_ns, "data", lane);
    lanes->work.read_us += kelp_clock_us() - begin_us;
    lanes->work.samples += samples.count;
    return status;
}

void kelp__lanes_on_idle(void *user)
{
    struct kelp_lanes *lanes = user;
    const uint64_t begin_us = kelp_clock_us();
    struct kelp_sample_batch batch;
    if (kelp_sample_reader_ahead(lanes->reader, &batch)) {
        kelp_model_stage(lanes->model, batch.input, batch.target, batch.count);
    }
    lanes->work.read_us += kelp_clock_us() - begin_us;
}

void kelp_lanes_within(struct kelp_lanes *lanes, const struct kelp_schedule_node *node)
{
    lanes->node = *node;
}

/* The i-th oldest piece; after the last one, the place for the next. */
static struct kelp__lanes_started *started_at(struct kelp_lanes *lanes, uint32_t i)
{
    return &lanes->started[(lanes->started_first + i) % KELP__LANES_STARTED_MAX];
}

/* Write the predictions of the oldest block. */
static kelp_status write_output(struct kelp_lanes *lanes, struct kelp_prediction_writer *writer,
                                struct kelp_error *reterr)
{
    const struct kelp__lanes_output *output = &lanes->outputs[lanes->output_first];
    lanes->output_first = (lanes->output_first + 1) % lanes->output_max;
    lanes->outputs_out--;
    return kelp_prediction_add(writer, output->values, output->count, reterr);
}

kelp_status kelp__lanes_take_piece(struct kelp_lanes *lanes, struct kelp__lanes_started *lane,
                                   const double *sums, struct kelp_error *reterr)
{
    if (lane->writer) {
        return write_output(lanes, lane->writer, reterr);
    }
    const bool evaluates = lanes->word.kind != KELP_STEP_TRAIN;
    const uint32_t count = evaluates ? KELP_METRIC_SUM_COUNT : KELP_METRIC_SUM_SCALARS;
    lane->gradient->sum_count = count;
    for (uint32_t i = 0; i < count; i++) {
        lane->gradient->sums[i] += sums[i];
    }
    return KELP_OK;
}

kelp_status kelp__lanes_finish_piece(struct kelp_lanes *lanes, struct kelp_error *reterr)
{
    struct kelp__lanes_started *lane = started_at(lanes, 0);
    double sums[KELP_METRIC_SUM_COUNT]; /* training: only the scalars are set; predictions: none */
    for (uint32_t i = 1; lane->pieces == 0; i++) {
        assert(i < lanes->started_count);
        lane = started_at(lanes, i);
    }
    lanes->told = lane;
    kelp_status status = kelp_model_finish(lanes->model, sums, reterr);
    if (status == KELP_OK) {
        lane->pieces--;
        status = kelp__lanes_take_piece(lanes, lane, sums, reterr);
    }
    return status;
}

/* Called once all predictions of the lane are written. */
static kelp_status end_predictions(struct kelp__lanes_started *lane, struct kelp_error *reterr)
{
    struct kelp_prediction_writer *writer = lane->writer;
    lane->writer = NULL;
    lane->gradient->sums[KELP_METRIC_SUM_SAMPLES] = (double)lane->samples;
    return kelp_prediction_end(writer, reterr);
}

static kelp_status compute_lane(struct kelp_lanes *lanes, uint32_t lane,
                                struct kelp__lanes_started *started, struct kelp_error *reterr)
{
    struct kelp_schedule_range samples =
        kelp_schedule_lane(kelp_sample_reader_schedule(lanes->reader), lane);

    if (samples.count == 0) {
        return KELP_OK; /* an empty node, the identity of the tree */
    }
    switch (lanes->word.kind) {
    case KELP_STEP_TRAIN:
        return kelp__lanes_train(lanes, lane, &samples, started, reterr);
    case KELP_STEP_EVALUATE_VAL:
    case KELP_STEP_EVALUATE_TEST:
        return kelp__lanes_evaluate(lanes, lane, &samples, started, reterr);
    case KELP_STEP_PREDICT:
        return kelp__lanes_predict(lanes, lane, &samples, started, reterr);
    case KELP_STEP_FINISH:
    case KELP_STEP_DONE:
        break;
    }
    return KELP_OK;
}

uint32_t kelp_lanes_ahead(const struct kelp_lanes *lanes)
{
    return kelp_model_ahead(lanes->model);
}

kelp_status kelp_lanes_start(struct kelp_lanes *lanes, uint32_t lane,
                             struct kelp_gradient *gradient, const struct kelp_lanes_ready *ready,
                             struct kelp_error *reterr)
{
    const uint64_t begin_ns = kelp_trace_begin(lanes->trace);
    struct kelp__lanes_started *started = started_at(lanes, lanes->started_count);

    assert(lanes->started_count < kelp_lanes_ahead(lanes));
    *started = (struct kelp__lanes_started){.lane = lane, .gradient = gradient, .ready = ready};
    lanes->started_count++;
    const kelp_status status = compute_lane(lanes, lane, started, reterr);
    end_span(lanes, begin_ns, "lane", lane);
    return status;
}

kelp_status kelp_lanes_finish(struct kelp_lanes *lanes, struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;
    assert(lanes->started_count > 0);
    if (started_at(lanes, 0)->pieces > 0) {
        const uint64_t begin_ns = kelp_trace_begin(lanes->trace);
        while (status == KELP_OK && started_at(lanes, 0)->pieces > 0) {
            status = kelp__lanes_finish_piece(lanes, reterr);
        }
        end_span(lanes, begin_ns, "wait for lane", started_at(lanes, 0)->lane);
    }
    if (status == KELP_OK && started_at(lanes, 0)->writer) {
        status = end_predictions(started_at(lanes, 0), reterr);
    }
    if (status == KELP_OK) {
        lanes->started_first = (lanes->started_first + 1) % KELP__LANES_STARTED_MAX;
        lanes->started_count--;
    }
    return status;
}

void kelp_lanes_drop(struct kelp_lanes *lanes)
{
    kelp_model_drop(lanes->model);
    for (uint32_t i = 0; i < lanes->started_count; i++) {
        kelp_prediction_drop(started_at(lanes, i)->writer);
    }
    lanes->started_count = 0;
    lanes->outputs_out = 0;
}

kelp_status kelp_lanes_lane(struct kelp_lanes *lanes, uint32_t lane, struct kelp_gradient *gradient,
                            const struct kelp_lanes_ready *ready, struct kelp_error *reterr)
{
    kelp_status status = kelp_lanes_start(lanes, lane, gradient, ready, reterr);
    if (status == KELP_OK) {
        status = kelp_lanes_finish(lanes, reterr);
    }
    if (status != KELP_OK) {
        kelp_lanes_drop(lanes);
    }
    return status;
}

/* ---- one node: its lanes' sum in tree order -------------------------------------------------- */

kelp_status kelp_lanes_node(struct kelp_lanes *lanes, uint32_t lane_first, uint32_t lane_count,
                            const struct kelp_lanes_buffers *buffers,
                            struct kelp_gradient **ret_gradient, struct kelp_error *reterr)
{
    const struct kelp_schedule_node node = {.first = lane_first, .count = lane_count};
    struct kelp_node_sum sum;
    struct kelp_gradient *out[KELP__LANES_STARTED_MAX];
    uint32_t out_count = 0;
    kelp_status status = KELP_OK;

    kelp_lanes_within(lanes, &node);
    kelp_node_sum_begin(&sum, lane_first, lane_count);
    sum.trace = lanes->trace;
    sum.step = lanes->word.step;
    *ret_gradient = NULL;
    for (uint32_t i = 0; status == KELP_OK && sum.done < lane_count;) {
        if (i < lane_count && out_count < kelp_lanes_ahead(lanes)) {
            struct kelp_gradient *gradient = buffers->get(buffers->user);
            status = gradient ? kelp_lanes_start(lanes, lane_first + i, gradient, NULL, reterr)
                              : kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a gradient");
            out[out_count] = gradient;
            out_count += gradient != NULL;
            i++;
        } else {
            status = kelp_lanes_finish(lanes, reterr);
            if (status == KELP_OK) {
                *ret_gradient = kelp_node_sum_add(&sum, out[0]);
                out_count--;
                memmove(out, out + 1, out_count * sizeof(struct kelp_gradient *));
            }
        }
    }
    if (status != KELP_OK) {
        kelp_lanes_drop(lanes);
    }
    while (out_count > 0) {
        kelp_gradient_unref(out[--out_count]);
    }
    kelp_node_sum_drop(&sum);
    return status;
}

#include "worker/compute/lanes.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "worker/compute/node_sum.h"
#include "worker/compute/predictions.h"
#include "worker/compute/sample_reader.h"
#include "worker/data/dataset.h"
#include "worker/model/derive.h"
#include "worker/model/graph/graph.h"
#include "worker/model/model.h"

#define STARTED_MAX (KELP_MODEL_STREAMS_MAX + 1)

/* A lane that was started and is not finished. */
struct started {
    uint32_t lane;
    struct kelp_gradient *gradient;
    const struct kelp_lanes_ready *ready;  /* NULL: nobody asks */
    uint32_t pieces;                       /* that the model has begun and not finished */
    struct kelp_prediction_writer *writer; /* of predictions; NULL: none */
    uint64_t samples;                      /* of predictions */
};

/* Where a block's predictions come to. */
struct output {
    float *values; /* owned, of the model's host memory: [batch_max][output_count] */
    uint64_t count;
};

struct kelp_lanes {
    const struct kelp_job *job;
    struct kelp_dataset *dataset;
    struct kelp_model *model;
    struct kelp_plan plan;
    struct kelp_control_word word; /* of the entry in work, as what follows */
    const float *weights;
    bool bound; /* the model has them */
    struct kelp_sample_reader *reader;
    uint64_t output_count;
    struct output *outputs; /* [output_max], of blocks in turn; run.mode predict alone */
    uint32_t output_max, output_first, outputs_out; /* the last: that are pending */
    struct kelp_target_scale *scales;               /* room for those of one sample */
    double *factors;                                /* [batch_max]; NULL: errors have no unit */
    struct kelp_lanes_work work;                    /* so far */
    struct started started[STARTED_MAX];            /* in turn */
    uint32_t started_first, started_count;
    const struct started *told;     /* whose gradient is being completed */
    struct kelp_schedule_node node; /* kelp_lanes_within(); count 0: none */
    struct kelp_trace *trace;       /* NULL: none */
    bool (*await)(void *user, uint64_t first, uint64_t count); /* NULL: weights are there */
    void *await_user;
};

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

/* The entry's weights reach the model once, not once for each lane. */
static void bind(struct kelp_lanes *lanes, float *gradient)
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

static struct kelp_schedule_range piece_of_lane(const struct kelp_lanes *lanes, uint32_t lane,
                                                uint64_t first)
{
    return kelp_sample_reader_piece(lanes->reader, kelp_sample_reader_schedule(lanes->reader), lane,
                                    first);
}

static kelp_status read_samples(struct kelp_lanes *lanes, uint32_t lane,
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

static bool on_need(void *user, uint32_t index)
{
    const struct kelp_lanes *lanes = user;
    const struct kelp_tensor *tensor = &lanes->plan.tensors[index];

    return lanes->await(lanes->await_user, tensor->offset, tensor->elem_count);
}

/* The gradients of the tensors from index on are complete. */
static void on_complete(void *user, uint32_t index)
{
    const struct kelp_lanes *lanes = user;

    lanes->told->ready->tell(lanes->told->ready->user, lanes->plan.tensors[index].offset);
}

/* While the device computes: the samples that probably come next are read and brought there. */
static void on_idle(void *user)
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

/* Whether the model adds the lane to its node's sum; which lanes there are before and behind it. On
 * the device values are not rounded. */
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

/* A lane's samples are computed in pieces: where one of them stands. */
struct piece {
    struct kelp_schedule_range samples; /* their positions */
    bool further;                       /* there was one before it */
    bool last;
    const struct kelp_model_sum *sum; /* NULL: the lane is a node of its own */
};

/* The i-th oldest; behind the last one, a place for the next. */
static struct started *started_at(struct kelp_lanes *lanes, uint32_t i)
{
    return &lanes->started[(lanes->started_first + i) % STARTED_MAX];
}

/* The oldest block's predictions. */
static kelp_status write_output(struct kelp_lanes *lanes, struct kelp_prediction_writer *writer,
                                struct kelp_error *reterr)
{
    const struct output *output = &lanes->outputs[lanes->output_first];
    lanes->output_first = (lanes->output_first + 1) % lanes->output_max;
    lanes->outputs_out--;
    return kelp_prediction_add(writer, output->values, output->count, reterr);
}

/* What came of it is the lane's: in the order in which its pieces were begun. */
static kelp_status take_piece(struct kelp_lanes *lanes, struct started *lane, const double *sums,
                              struct kelp_error *reterr)
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

/* The oldest one that the model has. */
static kelp_status finish_piece(struct kelp_lanes *lanes, struct kelp_error *reterr)
{
    struct started *lane = started_at(lanes, 0);
    double sums[KELP_METRIC_SUM_COUNT]; /* of training the scalars alone, of predictions none */
    for (uint32_t i = 1; lane->pieces == 0; i++) {
        assert(i < lanes->started_count);
        lane = started_at(lanes, i);
    }
    lanes->told = lane;
    kelp_status status = kelp_model_finish(lanes->model, sums, reterr);
    if (status == KELP_OK) {
        lane->pieces--;
        status = take_piece(lanes, lane, sums, reterr);
    }
    return status;
}

/* Where the device has memory of its own: enqueued, behind what has to be finished first. */
static kelp_status begin_piece(struct kelp_lanes *lanes, const struct kelp_model_piece *piece,
                               struct started *lane, struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;
    while (status == KELP_OK && !kelp_model_may_begin(lanes->model, piece)) {
        status = finish_piece(lanes, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_model_begin(lanes->model, piece, reterr);
    }
    lane->pieces += status == KELP_OK;
    return status;
}

static kelp_status train_piece(struct kelp_lanes *lanes, uint32_t lane, const struct piece *what,
                               struct started *started, struct kelp_error *reterr)
{
    const struct kelp_schedule_range samples = what->samples;
    const bool tells = what->last && started->ready;
    double sums[KELP_METRIC_SUM_COUNT]; /* the scalars alone */
    struct kelp_sample_batch batch;
    kelp_status status = read_samples(lanes, lane, samples, &batch, reterr);
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
        .idle = on_idle,
        .user = lanes,
        .trace = lanes->trace,
    };
    if (kelp_lanes_ahead(lanes) > 1) {
        return begin_piece(lanes, &piece, started, reterr);
    }
    lanes->told = started;
    status = kelp_model_train(lanes->model, &piece, sums, reterr);
    return status == KELP_OK ? take_piece(lanes, started, sums, reterr) : status;
}

static kelp_status train_lane(struct kelp_lanes *lanes, uint32_t lane,
                              const struct kelp_schedule_range *samples, struct started *started,
                              struct kelp_error *reterr)
{
    struct kelp_model_sum sum;
    const bool sums = sums_up(lanes, lane, &sum);
    bind(lanes, started->gradient->values);
    started->gradient->present = true;
    started->gradient->apart = sums && !sum.ends;
    for (uint64_t done = 0; done < samples->count;) {
        struct piece piece = {.samples = piece_of_lane(lanes, lane, samples->first + done),
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

/* The factor that turns a sample's errors into the data's own unit. 0: its columns have different
 * ones, or it is not scaled. */
static double factor_of(struct kelp_lanes *lanes, const struct kelp_sample_batch *batch,
                        uint32_t which)
{
    const uint32_t columns = kelp_dataset_info(lanes->dataset)->target_columns;
    kelp_dataset_target_scales(lanes->dataset, batch->split, batch->indices[which], lanes->scales);
    for (uint32_t c = 1; c < columns; c++) {
        if (lanes->scales[c].factor != lanes->scales[0].factor) {
            return 0.0;
        }
    }
    return lanes->scales[0].factor == 1.0 ? 0.0 : lanes->scales[0].factor;
}

/* Where the device has memory of its own: enqueued, behind what has to be finished first. */
static kelp_status begin_block(struct kelp_lanes *lanes, const struct kelp_model_block *block,
                               struct started *lane, struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;
    while (status == KELP_OK && !kelp_model_may_begin_block(lanes->model)) {
        status = finish_piece(lanes, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_model_begin_block(lanes->model, block, reterr);
    }
    lane->pieces += status == KELP_OK;
    return status;
}

static kelp_status evaluate_batch(struct kelp_lanes *lanes, const struct kelp_sample_batch *batch,
                                  struct started *started, struct kelp_error *reterr)
{
    double sums[KELP_METRIC_SUM_COUNT];
    for (uint32_t i = 0; lanes->factors && i < batch->count; i++) {
        lanes->factors[i] = factor_of(lanes, batch, i);
    }
    if (kelp_lanes_ahead(lanes) > 1) {
        const struct kelp_model_block block = {.input = batch->input,
                                               .target = batch->target,
                                               .factors = lanes->factors,
                                               .count = batch->count,
                                               .idle = on_idle,
                                               .user = lanes};
        return begin_block(lanes, &block, started, reterr);
    }
    const struct kelp_model_evaluation what = {.input = batch->input,
                                               .target = batch->target,
                                               .factors = lanes->factors,
                                               .count = batch->count};
    const kelp_status status = kelp_model_evaluate(lanes->model, &what, sums, reterr);
    return status == KELP_OK ? take_piece(lanes, started, sums, reterr) : status;
}

/* While the device computes: samples of the next block, without targets. */
static void on_idle_predicting(void *user)
{
    struct kelp_lanes *lanes = user;
    const uint64_t begin_us = kelp_clock_us();
    struct kelp_sample_batch batch;
    if (kelp_sample_reader_ahead(lanes->reader, &batch)) {
        kelp_model_stage(lanes->model, batch.input, NULL, batch.count);
    }
    lanes->work.read_us += kelp_clock_us() - begin_us;
}

static kelp_status predict_batch(struct kelp_lanes *lanes, const struct kelp_sample_batch *batch,
                                 struct started *started, struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;
    while (status == KELP_OK && lanes->outputs_out == lanes->output_max) {
        status = finish_piece(lanes, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    struct output *output =
        &lanes->outputs[(lanes->output_first + lanes->outputs_out) % lanes->output_max];
    output->count = batch->count;
    if (kelp_lanes_ahead(lanes) > 1) {
        const struct kelp_model_block block = {.input = batch->input,
                                               .count = batch->count,
                                               .output = output->values,
                                               .idle = on_idle_predicting,
                                               .user = lanes};
        status = begin_block(lanes, &block, started, reterr);
        lanes->outputs_out += status == KELP_OK;
        return status;
    }
    status = kelp_model_forward(lanes->model, batch->input, batch->count, output->values, reterr);
    lanes->outputs_out += status == KELP_OK;
    return status == KELP_OK ? take_piece(lanes, started, NULL, reterr) : status;
}

/* Block by block. */
static kelp_status
compute_blocks(struct kelp_lanes *lanes, uint32_t lane, const struct kelp_schedule_range *samples,
               struct started *started,
               kelp_status (*compute)(struct kelp_lanes *, const struct kelp_sample_batch *,
                                      struct started *, struct kelp_error *),
               struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;
    bind(lanes, NULL);
    for (uint64_t done = 0; done < samples->count && status == KELP_OK;) {
        struct kelp_sample_batch batch;
        const struct kelp_schedule_range block = piece_of_lane(lanes, lane, samples->first + done);
        status = read_samples(lanes, lane, block, &batch, reterr);
        if (status == KELP_OK) {
            status = compute(lanes, &batch, started, reterr);
        }
        done += block.count;
    }
    return status;
}

/* A file of its own, there before anybody hears that the lane is done. */
static kelp_status predict_lane(struct kelp_lanes *lanes, uint32_t lane,
                                const struct kelp_schedule_range *samples, struct started *started,
                                struct kelp_error *reterr)
{
    char folder[sizeof(lanes->job->run.dir) + sizeof(KELP_PREDICTIONS_FOLDER) + 1];
    const struct kelp_prediction_part part = {
        .version = lanes->word.version,
        .lane = lane,
        .first = lanes->word.sample_first + samples->first,
        .count = samples->count,
        .values = lanes->output_count,
    };
    (void)snprintf(folder, sizeof(folder), "%s/%s", lanes->job->run.dir, KELP_PREDICTIONS_FOLDER);
    const kelp_status status = kelp_prediction_begin(folder, &part, &started->writer, reterr);
    if (status != KELP_OK) {
        started->writer = NULL;
        return status;
    }
    started->samples = samples->count;
    return compute_blocks(lanes, lane, samples, started, predict_batch, reterr);
}

/* All of its predictions are written. */
static kelp_status end_predictions(struct started *lane, struct kelp_error *reterr)
{
    struct kelp_prediction_writer *writer = lane->writer;
    lane->writer = NULL;
    lane->gradient->sums[KELP_METRIC_SUM_SAMPLES] = (double)lane->samples;
    return kelp_prediction_end(writer, reterr);
}

static kelp_status compute_lane(struct kelp_lanes *lanes, uint32_t lane, struct started *started,
                                struct kelp_error *reterr)
{
    struct kelp_schedule_range samples =
        kelp_schedule_lane(kelp_sample_reader_schedule(lanes->reader), lane);

    if (samples.count == 0) {
        return KELP_OK; /* an empty node, the identity of the tree */
    }
    switch (lanes->word.kind) {
    case KELP_STEP_TRAIN:
        return train_lane(lanes, lane, &samples, started, reterr);
    case KELP_STEP_EVALUATE_VAL:
    case KELP_STEP_EVALUATE_TEST:
        return compute_blocks(lanes, lane, &samples, started, evaluate_batch, reterr);
    case KELP_STEP_PREDICT:
        return predict_lane(lanes, lane, &samples, started, reterr);
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
    struct started *started = started_at(lanes, lanes->started_count);

    assert(lanes->started_count < kelp_lanes_ahead(lanes));
    *started = (struct started){.lane = lane, .gradient = gradient, .ready = ready};
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
            status = finish_piece(lanes, reterr);
        }
        end_span(lanes, begin_ns, "wait for lane", started_at(lanes, 0)->lane);
    }
    if (status == KELP_OK && started_at(lanes, 0)->writer) {
        status = end_predictions(started_at(lanes, 0), reterr);
    }
    if (status == KELP_OK) {
        lanes->started_first = (lanes->started_first + 1) % STARTED_MAX;
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
    struct kelp_gradient *out[STARTED_MAX];
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

/* ---- life ------------------------------------------------------------------------------------ */

static kelp_status prepare_output(struct kelp_lanes *lanes, struct kelp_error *reterr)
{
    const struct kelp_shape *shape = kelp_model_output(lanes->model);
    if (lanes->job->run.dir[0] == '\0') {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "run.dir: is not set; run.mode predict writes into it, see kelp predict");
    }
    lanes->output_count = 1;
    for (uint32_t i = 0; i < shape->rank; i++) {
        lanes->output_count *= shape->dims[i];
    }
    lanes->output_max = kelp_model_blocks_max(lanes->model);
    lanes->outputs = calloc(lanes->output_max, sizeof(*lanes->outputs));
    for (uint32_t i = 0; lanes->outputs && i < lanes->output_max; i++) {
        lanes->outputs[i].values =
            kelp_model_host_alloc(lanes->model, kelp_model_batch_max(lanes->model) *
                                                    (size_t)lanes->output_count * sizeof(float));
        if (!lanes->outputs[i].values) {
            return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for predictions");
        }
    }
    return lanes->outputs ? KELP_OK
                          : kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for predictions");
}

/* Memory for errors in the data's own unit. Only for losses whose output is a value of the target,
 * not a class or a probability. */
static kelp_status prepare_factors(struct kelp_lanes *lanes, struct kelp_error *reterr)
{
    const enum kelp_loss_kind loss = lanes->job->train.loss;
    if (loss != KELP_LOSS_MSE && loss != KELP_LOSS_MAE && loss != KELP_LOSS_SMOOTH_L1 &&
        loss != KELP_LOSS_HUBER && loss != KELP_LOSS_QUANTILE) {
        return KELP_OK;
    }
    lanes->scales =
        calloc(kelp_dataset_info(lanes->dataset)->target_columns, sizeof(*lanes->scales));
    lanes->factors = calloc(kelp_model_batch_max(lanes->model), sizeof(*lanes->factors));
    return lanes->scales && lanes->factors
               ? KELP_OK
               : kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for the target's scales");
}

static void *sample_alloc(void *user, size_t bytes)
{
    return kelp_model_host_alloc(user, bytes);
}

static void sample_free(void *user, void *memory)
{
    kelp_model_host_free(user, memory);
}

static void sample_release(void *user, const float *memory)
{
    kelp_model_release(user, memory);
}

/* Before it has taken part: what is missing would show in the middle of a lane. */
static kelp_status check_device(const struct kelp_lanes *lanes, struct kelp_error *reterr)
{
    struct kelp_device_footprint footprint;
    if (kelp_lanes_ahead(lanes) == 1) {
        return KELP_OK; /* its memory is the host's */
    }
    kelp_footprint_device(lanes->job, &lanes->plan, lanes->model, &footprint);
    return kelp_footprint_device_left(&footprint, kelp_model_device_free(lanes->model), reterr);
}

static kelp_status prepare(struct kelp_lanes *lanes, struct kelp_error *reterr)
{
    kelp_status status = kelp_dataset_open(lanes->job, &lanes->dataset, reterr);
    if (status != KELP_OK) {
        return status;
    }
    const struct kelp_sample_shape *shape = &kelp_dataset_info(lanes->dataset)->shape;
    status = kelp_derive_model(lanes->job, shape, &lanes->model, reterr);
    if (status == KELP_OK) {
        status = kelp_derive_plan(lanes->job, lanes->dataset, lanes->model, &lanes->plan, reterr);
    }
    if (status == KELP_OK) {
        status = check_device(lanes, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    const struct kelp_sample_memory memory = {
        .alloc = sample_alloc,
        .free = sample_free,
        .release = kelp_lanes_ahead(lanes) > 1 ? sample_release : NULL,
        .user = lanes->model};
    status =
        kelp_sample_reader_create(lanes->job, lanes->dataset, kelp_model_batch_max(lanes->model),
                                  &memory, &lanes->reader, reterr);
    if (status == KELP_OK) {
        status = prepare_factors(lanes, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    return lanes->job->run.mode == KELP_RUN_PREDICT ? prepare_output(lanes, reterr) : KELP_OK;
}

kelp_status kelp_lanes_create(const struct kelp_job *job, struct kelp_lanes **ret_lanes,
                              struct kelp_error *reterr)
{
    struct kelp_lanes *lanes = calloc(1, sizeof(*lanes));
    if (!lanes) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    lanes->job = job;
    kelp_status status = prepare(lanes, reterr);
    if (status != KELP_OK) {
        kelp_lanes_destroy(lanes);
        return status;
    }
    *ret_lanes = lanes;
    return KELP_OK;
}

void kelp_lanes_destroy(struct kelp_lanes *lanes)
{
    if (!lanes) {
        return;
    }
    if (lanes->model) {
        kelp_lanes_drop(lanes); /* and what was staged: they read the reader's memory */
    }
    kelp_sample_reader_destroy(lanes->reader); /* before what its thread reads */
    for (uint32_t i = 0; lanes->outputs && i < lanes->output_max; i++) {
        kelp_model_host_free(lanes->model, lanes->outputs[i].values);
    }
    free(lanes->outputs);
    free(lanes->scales);
    free(lanes->factors);
    kelp_plan_fini(&lanes->plan);
    kelp_model_destroy(lanes->model);
    kelp_dataset_close(lanes->dataset);
    free(lanes);
}

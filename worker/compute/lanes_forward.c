/* A lane of an evaluation, or of predictions: a model's output, block by block. */
#include <stdio.h>

#include "common/base/clock.h"
#include "worker/compute/lanes_internal.h"

/* The factor from a sample's errors to the original unit of the data. 0: its columns differ in
 * their factors, or the data is not scaled. */
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

/* On a device with its own memory: enqueue the block, after finishing older ones if need be. */
static kelp_status begin_block(struct kelp_lanes *lanes, const struct kelp_model_block *block,
                               struct kelp__lanes_started *lane, struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;
    while (status == KELP_OK && !kelp_model_may_begin_block(lanes->model)) {
        status = kelp__lanes_finish_piece(lanes, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_model_begin_block(lanes->model, block, reterr);
    }
    lane->pieces += status == KELP_OK;
    return status;
}

static kelp_status evaluate_batch(struct kelp_lanes *lanes, const struct kelp_sample_batch *batch,
                                  struct kelp__lanes_started *started, struct kelp_error *reterr)
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
                                               .idle = kelp__lanes_on_idle,
                                               .user = lanes};
        return begin_block(lanes, &block, started, reterr);
    }
    const struct kelp_model_evaluation what = {.input = batch->input,
                                               .target = batch->target,
                                               .factors = lanes->factors,
                                               .count = batch->count};
    const kelp_status status = kelp_model_evaluate(lanes->model, &what, sums, reterr);
    return status == KELP_OK ? kelp__lanes_take_piece(lanes, started, sums, reterr) : status;
}

/* While the device computes, prepare the samples of the next block, without targets. */
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
                                 struct kelp__lanes_started *started, struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;
    while (status == KELP_OK && lanes->outputs_out == lanes->output_max) {
        status = kelp__lanes_finish_piece(lanes, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    struct kelp__lanes_output *output =
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
    return status == KELP_OK ? kelp__lanes_take_piece(lanes, started, NULL, reterr) : status;
}

/* Compute the lane block by block. */
static kelp_status
compute_blocks(struct kelp_lanes *lanes, uint32_t lane, const struct kelp_schedule_range *samples,
               struct kelp__lanes_started *started,
               kelp_status (*compute)(struct kelp_lanes *, const struct kelp_sample_batch *,
                                      struct kelp__lanes_started *, struct kelp_error *),
               struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;
    kelp__lanes_bind(lanes, NULL);
    for (uint64_t done = 0; done < samples->count && status == KELP_OK;) {
        struct kelp_sample_batch batch;
        const struct kelp_schedule_range block =
            kelp__lanes_piece(lanes, lane, samples->first + done);
        status = kelp__lanes_read(lanes, lane, block, &batch, reterr);
        if (status == KELP_OK) {
            status = compute(lanes, &batch, started, reterr);
        }
        done += block.count;
    }
    return status;
}

kelp_status kelp__lanes_evaluate(struct kelp_lanes *lanes, uint32_t lane,
                                 const struct kelp_schedule_range *samples,
                                 struct kelp__lanes_started *started, struct kelp_error *reterr)
{
    return compute_blocks(lanes, lane, samples, started, evaluate_batch, reterr);
}

/* The lane's predictions go to their own file, which exists before the lane is reported as done. */
kelp_status kelp__lanes_predict(struct kelp_lanes *lanes, uint32_t lane,
                                const struct kelp_schedule_range *samples,
                                struct kelp__lanes_started *started, struct kelp_error *reterr)
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

/* Creates lanes: data set, model, plan and memory. */
#include <stdlib.h>

#include "worker/compute/lanes_internal.h"
#include "worker/model/derive.h"
#include "worker/model/graph/graph.h"

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

/* Allocate for errors in the original unit of the data. Only for losses whose output is a value
 * of the target, not a class or a probability. */
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

/* Allocate before the worker takes part; otherwise a failure would come in the middle of a lane. */
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
        kelp_lanes_drop(lanes); /* also what is staged, which reads the reader's memory */
    }
    kelp_sample_reader_destroy(lanes->reader); /* before the data set that its thread reads */
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

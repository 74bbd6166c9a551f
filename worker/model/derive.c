#include "worker/model/derive.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/training/control.h"
#include "worker/core/schedule.h"
#include "worker/model/graph/graph.h"
#include "worker/model/plugin.h"

/* Samples that a model evaluates at once: small models are faster with many; for large models
 * the memory is not worth it. */
#define EVALUATE_BLOCK        256u
#define EVALUATE_MEMORY_BYTES (UINT64_C(64) << 20)

/* By default, lanes are computed concurrently if a lane needs at most this much GPU memory. */
#define SMALL_BYTES (UINT64_C(64) << 20)

/* Samples of the largest piece of a lane. Blocks of predictions are large, because they need no
 * gradient. Evaluations of a training job use its block size, for the same bits. */
static uint32_t piece_max(const struct kelp_job *job)
{
    if (job->run.mode == KELP_RUN_PREDICT) {
        return 1;
    }
    const uint64_t lane = kelp_schedule_lane_samples_max(job); /* at most train.batch_size */
    assert(job->train.accumulate > 0);
    return (uint32_t)((lane + job->train.accumulate - 1) / job->train.accumulate);
}

/* How many lanes are computed concurrently: several if the operators of one are too small to
 * keep a GPU busy, as the small memory of a lane indicates. */
static uint32_t streams_of(const struct kelp_job *job, const struct kelp_model *model,
                           uint64_t arena_bytes)
{
    uint32_t tensor_count;
    const struct kelp_tensor *tensors = kelp_model_tensors(model, &tensor_count);
    uint64_t bytes = arena_bytes;
    for (uint32_t i = 0; i < tensor_count; i++) {
        bytes += tensors[i].elem_count * sizeof(float);
    }
    const uint32_t helps = bytes <= SMALL_BYTES ? 2 : 1;
    const uint32_t streams = job->cluster.streams != 0 ? job->cluster.streams : helps;
    const uint32_t lanes = job->run.mode == KELP_RUN_TRAIN ? job->cluster.lanes : 1;
    return streams < lanes ? streams : lanes;
}

static kelp_status widen(const struct kelp_job *job, const struct kelp_sample_shape *shape,
                         struct kelp_model *model, uint64_t arena_bytes,
                         struct kelp_model **ret_model, struct kelp_error *reterr)
{
    const uint32_t streams = streams_of(job, model, arena_bytes);
    const kelp_status status = kelp_model_widen(model, job, shape, streams, reterr);
    if (status != KELP_OK) {
        kelp_model_destroy(model);
        return status;
    }
    *ret_model = model;
    return KELP_OK;
}

kelp_status kelp_derive_model(const struct kelp_job *job, const struct kelp_sample_shape *shape,
                              struct kelp_model **ret_model, struct kelp_error *reterr)
{
    const uint32_t least = piece_max(job);
    const bool evaluates = job->train.evaluate || job->run.mode != KELP_RUN_TRAIN;
    struct kelp_model *model = NULL;
    for (uint32_t block = evaluates ? EVALUATE_BLOCK : least;; block /= 2) {
        struct kelp_graph_memory memory = {0};
        const uint32_t batch_max = block > least ? block : least;
        const kelp_status status = model ? kelp_model_rebuild(model, job, shape, batch_max, reterr)
                                         : kelp_model_create(job, shape, batch_max, &model, reterr);
        if (status == KELP_OK) {
            kelp_graph_memory(kelp_model_graph(model), &memory);
        }
        if (status != KELP_OK && (batch_max == least || status != KELP_ERR_LIMIT)) {
            kelp_model_destroy(model);
            return status;
        }
        if (status == KELP_OK && (batch_max == least || memory.total <= EVALUATE_MEMORY_BYTES)) {
            return widen(job, shape, model, memory.total, ret_model, reterr);
        }
    }
}

/* ---- batch norm needs more than one value ---------------------------------------------------- */

/* If the samples are divided evenly into these parts, does a part have a single sample? */
static bool has_single(uint64_t samples, uint32_t parts)
{
    return samples / parts == 1 || (samples > 0 && samples < parts);
}

/* In a step of so many samples, does a piece of a lane have a single sample? */
static bool step_has_single(const struct kelp_job *job, uint64_t samples)
{
    const uint32_t lanes = job->cluster.lanes, pieces = job->train.accumulate;
    const uint64_t lane = samples / lanes;
    return has_single(lane, pieces) || (samples % lanes != 0 && has_single(lane + 1, pieces));
}

static kelp_status check_batch_norm(const struct kelp_job *job, const struct kelp_plan *plan,
                                    const struct kelp_model *model, struct kelp_error *reterr)
{
    const char *layer;
    const uint64_t values = kelp_graph_batch_norm_values(kelp_model_graph(model), &layer);
    const uint64_t samples = plan->samples[KELP_SPLIT_TRAIN], batch = job->train.batch_size;
    if (job->run.mode != KELP_RUN_TRAIN || !layer || values != 1) {
        return KELP_OK;
    }
    if (samples >= batch && step_has_single(job, batch)) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "layer %s: a batch norm over one sample: cluster.lanes %u and "
                         "train.accumulate %u cut train.batch_size %u too small; fewer lanes, "
                         "fewer pieces or larger batches help",
                         layer, job->cluster.lanes, job->train.accumulate, job->train.batch_size);
    }
    if (!job->train.drop_last && step_has_single(job, samples % batch)) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "layer %s: a batch norm over one sample: the last step of an epoch has "
                         "%" PRIu64
                         " samples for %u lanes; train.drop_last: true, fewer lanes or another "
                         "train.batch_size (now %u) help",
                         layer, (samples % batch), job->cluster.lanes, job->train.batch_size);
    }
    return KELP_OK;
}

kelp_status kelp_derive_plan(const struct kelp_job *job, const struct kelp_dataset *dataset,
                             const struct kelp_model *model, struct kelp_plan *ret_plan,
                             struct kelp_error *reterr)
{
    const struct kelp_dataset_info *info = kelp_dataset_info(dataset);
    struct kelp_plan plan = {.data_fingerprint = info->fingerprint};
    const struct kelp_tensor *tensors = kelp_model_tensors(model, &plan.tensor_count);

    memcpy(plan.samples, info->samples, sizeof(plan.samples));
    kelp_status status = kelp_control_check(job, &plan, reterr);
    if (status == KELP_OK) {
        status = check_batch_norm(job, &plan, model, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    plan.tensors = calloc(plan.tensor_count, sizeof(*plan.tensors));
    if (!plan.tensors) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "plan: no memory for %u tensors",
                         plan.tensor_count);
    }
    memcpy(plan.tensors, tensors, plan.tensor_count * sizeof(*plan.tensors));
    status = kelp_model_compute_kind(model, plan.compute_kind, sizeof(plan.compute_kind),
                                     &plan.compute_answer, reterr);
    if (status != KELP_OK) {
        goto fail;
    }
    if (job->model.kind == KELP_MODEL_PLUGIN) {
        status = kelp__plugin_digest(job->model.plugin, &plan.model_digest, reterr);
        if (status != KELP_OK) {
            goto fail;
        }
    }
    status = kelp_plan_lay_out(&plan, job->cluster.max_shards, reterr);
    if (status != KELP_OK) {
        goto fail;
    }
    status = kelp_plan_mark_decays(&plan, job, reterr);
    if (status != KELP_OK) {
        goto fail;
    }
    *ret_plan = plan;
    return KELP_OK;

fail:
    kelp_plan_fini(&plan);
    return status;
}

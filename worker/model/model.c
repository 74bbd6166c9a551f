#include "worker/model/model.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/model/model_build.h"
#include "worker/model/model_internal.h"
#include "worker/model/plugin.h"

static uint64_t shape_count(const struct kelp_shape *shape)
{
    uint64_t count = 1;
    for (uint32_t i = 0; i < shape->rank; i++) {
        count *= shape->dims[i];
    }
    return count;
}

/* The model takes these samples as they are: it would read others' values otherwise. */
static kelp_status check_samples(const struct kelp_model *model, const struct kelp_job *job,
                                 const struct kelp_sample_shape *shape, uint64_t target_count,
                                 struct kelp_error *reterr)
{
    const uint64_t taken = kelp_graph_record_count(kelp_model_graph(model));
    const bool classes =
        job->train.loss == KELP_LOSS_CROSS_ENTROPY || job->train.loss == KELP_LOSS_NLL;
    if (taken != model->input_count || target_count != model->target_count) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "the model takes %" PRIu64 " numbers to %" PRIu64
                         ", but a sample has %" PRIu64 " and %" PRIu64,
                         taken, target_count, model->input_count, model->target_count);
    }
    if (classes && shape->target.vocab_count == 1 && shape->target.vocab[0] > model->output_count) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "the model tells %" PRIu64 " classes apart, but the data has %u",
                         model->output_count, shape->target.vocab[0]);
    }
    return KELP_OK;
}

/* AUC goes by one score for each sample: a number, or the second of two classes. */
static kelp_status check_scores(const struct kelp_model *model, const struct kelp_job *job,
                                struct kelp_error *reterr)
{
    const bool classes =
        job->train.loss == KELP_LOSS_CROSS_ENTROPY || job->train.loss == KELP_LOSS_NLL;
    const bool monitored = job->train.monitor == KELP_MONITOR_AUC;
    const bool kept =
        job->checkpoint.keep_best > 0 && job->checkpoint.metric == KELP_CHECKPOINT_VAL_AUC;
    const uint64_t outputs = classes ? model->output_count : model->target_count;
    if ((monitored || kept) && outputs != (classes ? 2 : 1)) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "%s: val/auc is of two classes, but the model puts out %" PRIu64
                         " numbers a "
                         "sample; take val/loss or val/accuracy",
                         monitored ? "train.monitor" : "checkpoint.metric", outputs);
    }
    return KELP_OK;
}

/* The model's layers, in a graph of its own. */
static kelp_status build(const struct kelp_job *job, const struct kelp_sample_shape *shape,
                         struct kelp_graph *graph, uint32_t *ret_output,
                         struct kelp_shape *ret_target, struct kelp_error *reterr)
{
    kelp__model_build *const builders[] = {
        [KELP_MODEL_MLP] = kelp__mlp_build,         [KELP_MODEL_DLINEAR] = kelp__dlinear_build,
        [KELP_MODEL_NLINEAR] = kelp__nlinear_build, [KELP_MODEL_FARE] = kelp__fare_build,
        [KELP_MODEL_CONVNET] = kelp__convnet_build, [KELP_MODEL_RESNET18] = kelp__resnet18_build,
        [KELP_MODEL_DEEPFM] = kelp__deepfm_build,   [KELP_MODEL_TFT] = kelp__tft_build,
        [KELP_MODEL_PLUGIN] = kelp__plugin_build,
    };
    if ((size_t)job->model.kind >= KELP_ARRAY_COUNT(builders) || !builders[job->model.kind]) {
        return kelp_fail(reterr, KELP_ERR_UNSUPPORTED, "model.kind: no such model");
    }
    *ret_output = builders[job->model.kind](graph, job, shape, ret_target);
    const struct kelp_graph_loss loss = {.kind = job->train.loss,
                                         .beta = job->train.loss_beta,
                                         .label_smoothing = job->train.label_smoothing,
                                         .quantiles = job->train.quantiles,
                                         .quantile_count = job->train.quantile_count};
    return kelp_graph_finish(graph, *ret_output, ret_target, &loss, reterr);
}

static kelp_status build_arena(struct kelp_model *model, struct model_arena *arena,
                               const struct kelp_job *job, const struct kelp_sample_shape *shape,
                               struct kelp_error *reterr)
{
    struct kelp_shape target = {0};
    uint32_t output = KELP_GRAPH_NONE;
    arena->graph = kelp_graph_create(arena->stream, model->batch_max);
    if (!arena->graph) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    kelp_graph_copies(arena->graph, model->copies);
    kelp_status status = build(job, shape, arena->graph, &output, &target, reterr);
    if (status != KELP_OK || arena != &model->arenas[0]) {
        return status;
    }
    model->output_shape = *kelp_graph_shape(arena->graph, output);
    model->output_count = shape_count(&model->output_shape);
    status = check_samples(model, job, shape, shape_count(&target), reterr);
    return status == KELP_OK ? check_scores(model, job, reterr) : status;
}

static kelp_status list_tensors(struct kelp_model *model, const struct kelp_job *job,
                                struct kelp_error *reterr)
{
    model->tensor_count = kelp_graph_parameter_count(kelp_model_graph(model));
    if (model->tensor_count > KELP_PLAN_TENSORS_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "the model has %u parameter tensors, over %d",
                         model->tensor_count, KELP_PLAN_TENSORS_MAX);
    }
    model->tensors = calloc(model->tensor_count, sizeof(*model->tensors));
    model->offsets = calloc(model->tensor_count, sizeof(*model->offsets));
    if (!model->tensors || !model->offsets) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        kelp_graph_parameter_tensor(kelp_model_graph(model), i, &model->tensors[i]);
        if (job->model.init[0] != '\0') { /* statistics too: a trained model has them */
            model->tensors[i].init = KELP_INIT_FILE;
            model->tensors[i].init_a =
                model->tensors[i].statistic ? model->tensors[i].init_a : 0.0f;
        }
    }
    return KELP_OK;
}

static kelp_status set_precision(struct kelp_device *device, enum kelp_product_precision precision,
                                 struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;
    if (precision == KELP_PRODUCT_FLOAT32) {
        return KELP_OK;
    }
    status = device->table->set_precision
                 ? device->table->set_precision(device, precision, reterr)
                 : kelp_fail(reterr, KELP_ERR_UNSUPPORTED, "this device computes only float32");
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "train.precision");
    }
    return status;
}

/* So the kind of other models does not name cuDNN, and they do not wait for it. */
static bool has_convolutions(const struct kelp_job *job)
{
    return job->model.kind == KELP_MODEL_CONVNET || job->model.kind == KELP_MODEL_RESNET18 ||
           job->model.kind == KELP_MODEL_PLUGIN;
}

static kelp_status set_cudnn(struct kelp_device *device, const struct kelp_job *job,
                             struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;
    if (!has_convolutions(job)) {
        return KELP_OK;
    }
    if (device->table->set_cudnn) {
        status = device->table->set_cudnn(device, job->cluster.cudnn, reterr);
    } else if (job->cluster.cudnn == KELP_CUDNN_ALWAYS) {
        status = kelp_fail(reterr, KELP_ERR_UNSUPPORTED, "this device has no cuDNN");
    }
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, job->cluster.cudnn == KELP_CUDNN_ALWAYS
                                      ? "cluster.cudnn: always"
                                      : "cluster.cudnn: auto (never computes without it)");
    }
    return status;
}

/* What *ret is, is the caller's, also where it fails. */
static kelp_status device_create(const struct kelp_job *job, struct kelp_device **ret,
                                 struct kelp_error *reterr)
{
    switch (job->cluster.device) {
    case KELP_DEVICE_CPU:
        return job->cluster.compute == KELP_COMPUTE_PORTABLE
                   ? kelp_device_cpu_create_portable(job->cluster.lane_threads, ret, reterr)
                   : kelp_device_cpu_create(job->cluster.lane_threads, ret, reterr);
    case KELP_DEVICE_CUDA: {
        kelp_status status = kelp_device_cuda_create(0, ret, reterr);
        if (status != KELP_OK) {
            kelp_error_prefix(reterr, "cluster.device: cuda");
            return status;
        }
        status = set_precision(*ret, job->train.precision, reterr);
        return status == KELP_OK ? set_cudnn(*ret, job, reterr) : status;
    }
    case KELP_DEVICE_PLANNED: {
        const kelp_status status = kelp_device_plan_create(ret, reterr);
        return status == KELP_OK ? set_cudnn(*ret, job, reterr) : status;
    }
    }
    return kelp_fail(reterr, KELP_ERR_UNSUPPORTED, "cluster.device: no such device");
}

static kelp_status open_device(struct kelp_model *model, const struct kelp_job *job,
                               struct kelp_error *reterr)
{
    kelp_status status = device_create(job, &model->device, reterr);
    if (status != KELP_OK) {
        return status;
    }
    model->arena_count = 1;
    status = model->device->table->stream_create(model->device, &model->arenas[0].stream, reterr);
    return status == KELP_OK && !model->device->table->host_memory
               ? model->device->table->stream_create(model->device, &model->copies, reterr)
               : status;
}

/* All but the device and its streams. */
static void drop_graphs(struct kelp_model *model)
{
    kelp_model_drop(model);
    for (uint32_t i = 0; i < model->arena_count; i++) {
        struct model_arena *arena = &model->arenas[i];
        kelp_graph_destroy(arena->graph);
        model->device->table->free(model->device, arena->gradient);
        *arena = (struct model_arena){.stream = arena->stream};
    }
    kelp__level_sums_fini(&model->sums, model->device);
    kelp__mirror_fini(&model->mirror, model->device);
    free(model->tensors);
    free(model->offsets);
    model->tensors = NULL;
    model->offsets = NULL;
}

kelp_status kelp_model_rebuild(struct kelp_model *model, const struct kelp_job *job,
                               const struct kelp_sample_shape *shape, uint32_t batch_max,
                               struct kelp_error *reterr)
{
    assert(model->arena_count == 1);
    drop_graphs(model);
    model->batch_max = batch_max;
    kelp_status status = build_arena(model, &model->arenas[0], job, shape, reterr);
    if (status == KELP_OK) {
        status = list_tensors(model, job, reterr);
    }
    return status == KELP_OK ? kelp__mirror_init(&model->mirror, model->tensor_count, reterr)
                             : status;
}

kelp_status kelp_model_widen(struct kelp_model *model, const struct kelp_job *job,
                             const struct kelp_sample_shape *shape, uint32_t streams,
                             struct kelp_error *reterr)
{
    const struct kelp_device_table *table = model->device->table;
    kelp_status status = KELP_OK;
    assert(streams >= 1 && streams <= KELP_MODEL_STREAMS_MAX && model->pending_count == 0);
    while (status == KELP_OK && model->arena_count < streams && !table->host_memory) {
        struct model_arena *arena = &model->arenas[model->arena_count];
        status = table->stream_create(model->device, &arena->stream, reterr);
        if (status == KELP_OK) {
            model->arena_count++;
            status = build_arena(model, arena, job, shape, reterr);
        }
    }
    return status;
}

uint32_t kelp_model_streams(const struct kelp_model *model)
{
    return model->arena_count;
}

kelp_status kelp_model_create(const struct kelp_job *job, const struct kelp_sample_shape *shape,
                              uint32_t batch_max, struct kelp_model **ret,
                              struct kelp_error *reterr)
{
    assert(shape->input_count > 0 && shape->input_count <= KELP_SAMPLE_INPUTS_MAX);
    struct kelp_model *model = calloc(1, sizeof(*model));
    if (!model) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    model->seed = job->seed;
    model->input_count = kelp_sample_input_count(shape);
    model->target_count = kelp_sample_target_count(shape);
    kelp_status status = open_device(model, job, reterr);
    if (status == KELP_OK) {
        status = kelp_model_rebuild(model, job, shape, batch_max, reterr);
    }
    if (status != KELP_OK) {
        kelp_model_destroy(model);
        return status;
    }
    *ret = model;
    return KELP_OK;
}

void kelp_model_destroy(struct kelp_model *model)
{
    if (!model) {
        return;
    }
    if (model->device) {
        drop_graphs(model);
        model->device->table->stream_destroy(model->copies);
        for (uint32_t i = 0; i < model->arena_count; i++) {
            model->device->table->stream_destroy(model->arenas[i].stream);
        }
        model->device->table->destroy(model->device);
    }
    free(model);
}

void kelp_model_leave(struct kelp_model *model)
{
    kelp_model_destroy(model);
    kelp_device_cuda_leave();
}

const struct kelp_tensor *kelp_model_tensors(const struct kelp_model *model, uint32_t *ret_count)
{
    *ret_count = model->tensor_count;
    return model->tensors;
}

static void bind_graph(struct kelp_model *model, const float *weights, float *gradient)
{
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const uint64_t offset = model->offsets[i];
        kelp_graph_bind(model->arenas[0].graph, i, weights + offset,
                        !gradient ? NULL : gradient + offset);
    }
}

void kelp_model_bind(struct kelp_model *model, const struct kelp_plan *plan,
                     const float *flat_weights, float *flat_gradient)
{
    assert(plan->tensor_count == model->tensor_count && model->pending_count == 0);
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        assert(plan->tensors[i].elem_count == model->tensors[i].elem_count);
        assert(plan->tensors[i].offset + plan->tensors[i].elem_count <= plan->flat_count);
        model->offsets[i] = plan->tensors[i].offset;
    }
    model->flat_count = plan->flat_count;
    model->weights = flat_weights;
    kelp__mirror_lay_out(&model->mirror, model->offsets, model->tensor_count, model->flat_count);
    for (uint32_t i = 0; i < model->arena_count; i++) {
        model->arenas[i].bound = false;
    }
    kelp_model_bind_gradient(model, flat_gradient);
}

void kelp_model_bind_gradient(struct kelp_model *model, float *flat_gradient)
{
    assert(model->weights);
    model->gradient = flat_gradient;
    model->arenas[model->next].has_gradient = false;
    if (model->device->table->host_memory) {
        bind_graph(model, model->weights, flat_gradient);
    }
}

bool kelp_model_sums_up(const struct kelp_model *model)
{
    return !model->device->table->host_memory;
}

/* NOLINTBEGIN(readability-non-const-parameter): sums and output are written through the run */
kelp_status kelp_model_train(struct kelp_model *model, const struct kelp_model_piece *piece,
                             double sums[KELP_METRIC_SUM_COUNT], struct kelp_error *reterr)
{
    assert(model->gradient);
    if (!model->device->table->host_memory) {
        assert(model->pending_count == 0);
        const kelp_status status = kelp_model_begin(model, piece, reterr);
        return status == KELP_OK ? kelp_model_finish(model, sums, reterr) : status;
    }
    const struct kelp_graph_run run = {
        .mode = KELP_GRAPH_TRAIN,
        .input = piece->input,
        .target = piece->target,
        .count = piece->count,
        .batch_total = piece->batch_total,
        .output = piece->output,
        .sums = sums,
        .accumulate = piece->accumulate,
        .seed = model->seed,
        .step = piece->step,
        .position = piece->position,
        .need = piece->need,
        .complete = piece->complete,
        .user = piece->user,
        .trace = piece->trace,
    };
    return kelp_graph_run(model->arenas[0].graph, &run, reterr);
}

/* run, batch_max samples at a time; its sums are added up in order. */
static kelp_status run_pieces(struct kelp_model *model, struct kelp_graph_run run, uint32_t count,
                              struct kelp_error *reterr)
{
    struct model_arena *arena = &model->arenas[0];
    assert(model->weights && model->pending_count == 0);
    kelp_model_stage(model, NULL, NULL, 0); /* for a training */
    kelp_status status = kelp__model_upload(model, arena, false, false, reterr);
    if (status != KELP_OK) {
        return status;
    }
    double total[KELP_METRIC_SUM_COUNT] = {0}, piece[KELP_METRIC_SUM_COUNT] = {0};
    double *sums = run.sums;
    run.sums = piece;
    for (uint32_t done = 0; done < count; done += run.count) {
        run.count = count - done < model->batch_max ? count - done : model->batch_max;
        status = kelp_graph_run(arena->graph, &run, reterr);
        if (status != KELP_OK) {
            return status;
        }
        for (uint32_t i = 0; i < KELP_METRIC_SUM_COUNT; i++) {
            total[i] += piece[i];
        }
        run.input += run.count * model->input_count;
        run.target = !run.target ? NULL : run.target + run.count * model->target_count;
        run.factors = !run.factors ? NULL : run.factors + run.count;
        run.output = !run.output ? NULL : run.output + run.count * model->output_count;
    }
    if (sums) {
        memcpy(sums, total, sizeof(total));
    }
    return KELP_OK;
}

kelp_status kelp_model_evaluate(struct kelp_model *model, const struct kelp_model_evaluation *what,
                                double sums[KELP_METRIC_SUM_COUNT], struct kelp_error *reterr)
{
    const struct kelp_graph_run run = {.mode = KELP_GRAPH_EVALUATE,
                                       .input = what->input,
                                       .target = what->target,
                                       .factors = what->factors,
                                       .sums = sums};
    return run_pieces(model, run, what->count, reterr);
}

kelp_status kelp_model_forward(struct kelp_model *model, const float *input, uint32_t count,
                               float *output, struct kelp_error *reterr)
{
    const struct kelp_graph_run run = {
        .mode = KELP_GRAPH_FORWARD, .input = input, .output = output};
    return run_pieces(model, run, count, reterr);
}
/* NOLINTEND(readability-non-const-parameter) */

void *kelp_model_host_alloc(struct kelp_model *model, size_t bytes)
{
    void *memory = NULL;
    return model->device->table->host_alloc(model->device, bytes, &memory, NULL) == KELP_OK ? memory
                                                                                            : NULL;
}

void kelp_model_host_free(struct kelp_model *model, void *memory)
{
    model->device->table->host_free(model->device, memory);
}

uint32_t kelp_model_batch_max(const struct kelp_model *model)
{
    return model->batch_max;
}

const struct kelp_shape *kelp_model_output(const struct kelp_model *model)
{
    return &model->output_shape;
}

uint64_t kelp_model_device_memory(const struct kelp_model *model)
{
    const struct kelp_device_table *table = model->device->table;
    return table->memory_bytes ? table->memory_bytes(model->device) : 0;
}

uint64_t kelp_model_device_free(const struct kelp_model *model)
{
    const struct kelp_device_table *table = model->device->table;
    return table->memory_free ? table->memory_free(model->device) : 0;
}

const struct kelp_graph *kelp_model_graph(const struct kelp_model *model)
{
    return model->arenas[0].graph;
}

kelp_status kelp_model_compute_kind(const struct kelp_model *model, char *text, size_t text_bytes,
                                    uint64_t *ret_answer, struct kelp_error *reterr)
{
    char kind[KELP_COMPUTE_KIND_SIZE];
    kelp_status status = KELP_OK;
    if (model->device->table->wait) {
        status = kelp_compute_kind(model->device, kind, ret_answer, reterr);
    } else { /* planned: it cannot compute */
        model->device->table->describe(model->device, kind);
        *ret_answer = 0;
    }
    if (status == KELP_OK) {
        (void)snprintf(text, text_bytes, "%s", kind);
    }
    return status;
}

#include "worker/model/model.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/device.h"
#include "worker/model/level_sums.h"
#include "worker/model/mirror.h"
#include "worker/model/model_build.h"
#include "worker/model/plugin.h"

struct kelp_model {
    struct kelp_device *device;
    struct kelp_stream *stream;
    struct kelp_stream *copies; /* beside it; NULL on the CPU */
    struct kelp_graph *graph;
    uint32_t batch_max;
    uint64_t input_count; /* elements of one sample */
    uint64_t target_count;
    struct kelp_shape output_shape;
    uint64_t output_count;
    uint64_t seed;
    struct kelp_tensor *tensors;
    uint32_t tensor_count;
    /* What is bound, and where its tensors lie. */
    uint64_t *offsets; /* owned, [tensor_count] */
    uint64_t flat_count;
    const float *weights;                 /* borrowed, as the gradient */
    float *gradient;                      /* NULL: none */
    struct kelp__mirror mirror;           /* where the device has memory of its own */
    struct kelp__level_sums sums;         /* likewise */
    const struct kelp_model_piece *piece; /* in work, likewise */
};

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
    const uint64_t taken = kelp_graph_record_count(model->graph);
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

static kelp_status build(struct kelp_model *model, const struct kelp_job *job,
                         const struct kelp_sample_shape *shape, struct kelp_error *reterr)
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
    struct kelp_shape target = {0};
    const uint32_t output = builders[job->model.kind](model->graph, job, shape, &target);
    const struct kelp_graph_loss loss = {.kind = job->train.loss,
                                         .beta = job->train.loss_beta,
                                         .label_smoothing = job->train.label_smoothing,
                                         .quantiles = job->train.quantiles,
                                         .quantile_count = job->train.quantile_count};
    kelp_status status = kelp_graph_finish(model->graph, output, &target, &loss, reterr);
    if (status != KELP_OK) {
        return status;
    }
    model->output_shape = *kelp_graph_shape(model->graph, output);
    model->output_count = shape_count(&model->output_shape);
    status = check_samples(model, job, shape, shape_count(&target), reterr);
    return status == KELP_OK ? check_scores(model, job, reterr) : status;
}

static kelp_status list_tensors(struct kelp_model *model, const struct kelp_job *job,
                                struct kelp_error *reterr)
{
    model->tensor_count = kelp_graph_parameter_count(model->graph);
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
        kelp_graph_parameter_tensor(model->graph, i, &model->tensors[i]);
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
                 : kelp_fail(reterr, KELP_ERR_UNSUPPORTED, "this device computes float32 alone");
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
        status = kelp_fail(reterr, KELP_ERR_UNSUPPORTED, "this device knows of no cuDNN");
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
    case KELP_DEVICE_PLANNED:
        return kelp_device_plan_create(ret, reterr);
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
    status = model->device->table->stream_create(model->device, &model->stream, reterr);
    return status == KELP_OK && !model->device->table->host_memory
               ? model->device->table->stream_create(model->device, &model->copies, reterr)
               : status;
}

/* All but the device and its streams. */
static void drop_graph(struct kelp_model *model)
{
    kelp_graph_destroy(model->graph);
    kelp__level_sums_fini(&model->sums, model->device);
    kelp__mirror_fini(&model->mirror, model->device);
    free(model->tensors);
    free(model->offsets);
    model->graph = NULL;
    model->tensors = NULL;
    model->offsets = NULL;
}

kelp_status kelp_model_rebuild(struct kelp_model *model, const struct kelp_job *job,
                               const struct kelp_sample_shape *shape, uint32_t batch_max,
                               struct kelp_error *reterr)
{
    drop_graph(model);
    model->batch_max = batch_max;
    model->graph = kelp_graph_create(model->stream, batch_max);
    if (!model->graph) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    kelp_graph_copies(model->graph, model->copies);
    kelp_status status = build(model, job, shape, reterr);
    if (status == KELP_OK) {
        status = list_tensors(model, job, reterr);
    }
    return status == KELP_OK ? kelp__mirror_init(&model->mirror, model->tensor_count, reterr)
                             : status;
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
        drop_graph(model);
        model->device->table->stream_destroy(model->copies);
        model->device->table->stream_destroy(model->stream);
        model->device->table->destroy(model->device);
    }
    free(model);
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
        kelp_graph_bind(model->graph, i, weights + offset, !gradient ? NULL : gradient + offset);
    }
}

void kelp_model_bind(struct kelp_model *model, const struct kelp_plan *plan,
                     const float *flat_weights, float *flat_gradient)
{
    assert(plan->tensor_count == model->tensor_count);
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        assert(plan->tensors[i].elem_count == model->tensors[i].elem_count);
        assert(plan->tensors[i].offset + plan->tensors[i].elem_count <= plan->flat_count);
        model->offsets[i] = plan->tensors[i].offset;
    }
    model->flat_count = plan->flat_count;
    model->weights = flat_weights;
    kelp__mirror_lay_out(&model->mirror, model->offsets, model->tensor_count, model->flat_count);
    kelp_model_bind_gradient(model, flat_gradient);
}

void kelp_model_bind_gradient(struct kelp_model *model, float *flat_gradient)
{
    assert(model->weights);
    model->gradient = flat_gradient;
    model->mirror.has_gradient = false;
    if (model->device->table->host_memory) {
        bind_graph(model, model->weights, flat_gradient);
    }
}

/* What the graph is about to read is where it reads it; the weights, unless they are to arrive
 * while it runs. */
static kelp_status upload(struct kelp_model *model, bool arriving, bool accumulate,
                          struct kelp_error *reterr)
{
    struct kelp__mirror *mirror = &model->mirror;
    if (model->device->table->host_memory) {
        return KELP_OK;
    }
    const kelp_status status =
        kelp__mirror_prepare(mirror, model->stream, model->flat_count, model->gradient, reterr);
    if (status == KELP_OK) {
        bind_graph(model, mirror->weights, !model->gradient ? NULL : mirror->gradient);
        kelp__mirror_upload(mirror, model->stream, arriving ? NULL : model->weights,
                            accumulate ? model->gradient : NULL);
    }
    return status;
}

/* Weights that are to arrive: waited for, and on their way to the device. */
static bool bring(struct kelp_model *model, struct kelp__mirror_group *group)
{
    for (uint32_t i = group->first; i < group->end; i++) {
        if (!model->piece->need(model->piece->user, i)) {
            return false;
        }
    }
    kelp_graph_pause(model->graph);
    kelp__mirror_bring(&model->mirror, group, model->stream, model->copies, model->weights);
    return true;
}

static bool on_need(void *user, uint32_t index)
{
    struct kelp_model *model = user;
    struct kelp__mirror_group *group = &model->mirror.groups[model->mirror.group_of[index]];
    return group->there || bring(model, group);
}

/* Weights that training does not read, for what comes after it. */
static void bring_rest(struct kelp_model *model)
{
    for (uint32_t i = 0; i < model->mirror.group_count; i++) {
        if (!model->mirror.groups[i].there && !bring(model, &model->mirror.groups[i])) {
            return; /* the next run asks again */
        }
    }
}

static void on_complete(void *user, uint32_t index)
{
    struct kelp_model *model = user;
    const uint64_t first = index == 0 ? 0 : model->offsets[index];
    if (kelp__mirror_is_due(&model->mirror, index, first)) {
        kelp_graph_pause(model->graph);
        if (model->piece->sum) {
            const uint64_t end = kelp__mirror_left(&model->mirror);
            kelp__level_sums_add(&model->sums, model->stream, model->mirror.gradient, first,
                                 end - first);
        }
        kelp__mirror_leave(&model->mirror, model->stream, index, first);
    }
}

bool kelp_model_sums_up(const struct kelp_model *model)
{
    return !model->device->table->host_memory;
}

/* Before the lane of the sum is computed. */
static kelp_status begin_sum(struct kelp_model *model, const struct kelp_model_sum *sum,
                             struct kelp_error *reterr)
{
    if (sum->begins) {
        kelp__level_sums_begin(&model->sums);
    }
    const kelp_status status = sum->ends ? KELP_OK
                                         : kelp__level_sums_reserve(&model->sums, model->device,
                                                                    model->flat_count, reterr);
    if (status == KELP_OK) {
        kelp__level_sums_advance(&model->sums, model->stream, sum->lane);
    }
    return status;
}

/* Once it is: what did not leave with its parts. */
static void end_sum(struct kelp_model *model, const struct kelp_model_piece *piece)
{
    if (!piece->sum->ends) {
        kelp__level_sums_keep(&model->sums, model->stream, model->mirror.gradient,
                              piece->sum->lane);
    } else if (!piece->complete) {
        kelp__level_sums_add(&model->sums, model->stream, model->mirror.gradient, 0,
                             model->flat_count);
    }
}

/* On a device with memory of its own: the gradient comes to the host part by part where somebody
 * asks for that, else at the end, and only once no further piece adds to it. */
static kelp_status train_apart(struct kelp_model *model, const struct kelp_model_piece *piece,
                               struct kelp_graph_run *run, struct kelp_error *reterr)
{
    struct kelp__mirror *mirror = &model->mirror;
    kelp_status status =
        piece->complete ? kelp__mirror_begin(mirror, model->device, reterr) : KELP_OK;
    const bool sums = piece->sum && !piece->more;
    if (status == KELP_OK && sums) {
        status = begin_sum(model, piece->sum, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    model->piece = piece;
    run->complete = piece->complete ? on_complete : NULL;
    run->user = model;
    status = kelp_graph_begin(model->graph, run, reterr);
    if (status != KELP_OK) {
        return status;
    }
    if (run->need && kelp_graph_is_whole(model->graph)) {
        bring_rest(model);
    }
    if (sums && kelp_graph_is_whole(model->graph)) {
        end_sum(model, piece);
    }
    if (piece->idle) {
        piece->idle(piece->user);
    }
    if (piece->complete) {
        kelp__mirror_arrive(mirror, model->stream, model->gradient, piece->complete, piece->user);
    }
    status = kelp_graph_end(model->graph, run, reterr);
    const kelp_status settled =
        kelp__mirror_settle(mirror, model->copies, status == KELP_OK ? reterr : NULL);
    status = status == KELP_OK ? settled : status;
    if (status != KELP_OK || piece->complete) {
        return status;
    }
    mirror->has_gradient = true;
    return piece->more || (sums && !piece->sum->ends)
               ? KELP_OK
               : kelp__mirror_download(mirror, model->stream, model->gradient, reterr);
}

/* NOLINTBEGIN(readability-non-const-parameter): sums and output are written through the run */
kelp_status kelp_model_train(struct kelp_model *model, const struct kelp_model_piece *piece,
                             double sums[KELP_METRIC_SUM_COUNT], struct kelp_error *reterr)
{
    assert(model->gradient);
    const bool on_host = model->device->table->host_memory;
    const bool arriving = !on_host && piece->need && !model->mirror.has_weights;
    if (arriving) { /* all of them, also after a run to which some did not come, so that pauses are
                       the same */
        kelp__mirror_lay_out(&model->mirror, model->offsets, model->tensor_count,
                             model->flat_count);
    }
    kelp_status status = upload(model, arriving, piece->accumulate, reterr);
    if (status != KELP_OK) {
        return status;
    }
    struct kelp_graph_run run = {
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
        .trace = piece->trace,
    };
    if (!on_host) {
        run.need = arriving ? on_need : NULL;
        return train_apart(model, piece, &run, reterr);
    }
    run.need = piece->need;
    run.complete = piece->complete;
    run.user = piece->user;
    return kelp_graph_run(model->graph, &run, reterr);
}

/* run, batch_max samples at a time; its sums are added up in order. */
static kelp_status run_pieces(struct kelp_model *model, struct kelp_graph_run run, uint32_t count,
                              struct kelp_error *reterr)
{
    assert(model->weights);
    kelp_status status = upload(model, false, false, reterr);
    if (status != KELP_OK) {
        return status;
    }
    double total[KELP_METRIC_SUM_COUNT] = {0}, piece[KELP_METRIC_SUM_COUNT] = {0};
    double *sums = run.sums;
    run.sums = piece;
    for (uint32_t done = 0; done < count; done += run.count) {
        run.count = count - done < model->batch_max ? count - done : model->batch_max;
        status = kelp_graph_run(model->graph, &run, reterr);
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

void kelp_model_stage(struct kelp_model *model, const float *input, const float *target,
                      uint32_t count)
{
    kelp_graph_stage(model->graph, input, target, count);
}

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

const struct kelp_graph *kelp_model_graph(const struct kelp_model *model)
{
    return model->graph;
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

/*
 * Fixtures of a model's activations in its first training forward pass: norm, shape and first
 * elements of each stage's output. The model's batch and initial values are in the file that the
 * metadata names.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/training/control.h"
#include "tests/lib/golden/golden_report.h"
#include "worker/model/models/resnet18.h"

/* Open the set's file with the batch. */
static bool open_companion(const struct kelp_golden_file *file, struct kelp_golden_file *ret)
{
    for (uint32_t i = 0; i < file->set->count; i++) {
        char claim[KELP_GOLDEN_NAME_SIZE * 2];
        const char *name = file->set->names[i];
        (void)snprintf(claim, sizeof(claim), "forward of %.*s ", (int)strcspn(name, "."), name);
        if (strstr(file->model, claim) != NULL) {
            return kelp_golden_file_open(file->set, i, ret, NULL) == KELP_OK;
        }
    }
    return false;
}

struct activation {
    uint64_t count; /* elements of one sample */
    float *values;  /* of all samples */
};

/* Bind initial values. The caller frees them; NULL: some are unknown. */
static float *bind_parameters(struct kelp_graph *graph, const struct kelp_golden_file *file)
{
    const uint32_t count = kelp_graph_parameter_count(graph);
    struct kelp_tensor tensor;
    uint64_t total = 0, at = 0;
    for (uint32_t i = 0; i < count; i++) {
        kelp_graph_parameter_tensor(graph, i, &tensor);
        total += tensor.elem_count;
    }
    float *values = kelp_golden_allocate(2 * total, sizeof(*values));
    uint32_t parameter = 0;
    for (uint32_t i = 0; i < count; i++, at += tensor.elem_count) {
        kelp_graph_parameter_tensor(graph, i, &tensor);
        kelp_graph_bind(graph, i, values + at, values + total + at);
        if (!kelp_golden_initial(file, &tensor, &parameter, values + at)) {
            free(values);
            return NULL;
        }
    }
    return values;
}

/* Compute the stage's output for the batch, in training. */
static bool compute(struct kelp_stream *stream, const struct kelp_golden_file *file,
                    const struct kelp_golden_model *model, enum kelp__resnet18_stage stage,
                    struct activation *ret)
{
    struct kelp_shape image = {.rank = 3};
    memcpy(image.dims, model->shape.inputs[0].dims, 3 * sizeof(image.dims[0]));
    struct kelp_graph *graph = kelp_graph_create(stream, model->samples);
    const uint32_t x = kelp_graph_input(graph, "input", &image);
    const uint32_t y = kelp__resnet18_features(graph, x, stage);
    const struct kelp_shape shape = *kelp_graph_shape(graph, y);
    const struct kelp_graph_loss loss = {.kind = KELP_LOSS_MSE};
    struct kelp_error error = {KELP_OK, ""};
    float *values = NULL, *input = NULL, *target = NULL;
    ret->count = 1;
    for (uint32_t i = 0; i < shape.rank; i++) {
        ret->count *= shape.dims[i];
    }
    ret->values = kelp_golden_allocate(ret->count * model->samples, sizeof(float));
    bool ok = kelp_graph_finish(graph, y, &shape, &loss, &error) == KELP_OK;
    if (ok) {
        double sums[KELP_METRIC_SUM_COUNT];
        values = bind_parameters(graph, file);
        input = kelp_golden_inputs(file, model);
        target = kelp_golden_allocate(ret->count * model->samples, sizeof(float));
        const struct kelp_graph_run run = {.mode = KELP_GRAPH_TRAIN,
                                           .input = input,
                                           .target = target,
                                           .count = model->samples,
                                           .batch_total = model->samples,
                                           .output = ret->values,
                                           .sums = sums};
        ok = values != NULL && input != NULL && kelp_graph_run(graph, &run, &error) == KELP_OK;
    }
    if (!ok) {
        fprintf(stderr, "%s\n", error.text);
    }
    free(target);
    free(input);
    free(values);
    kelp_graph_destroy(graph);
    return ok;
}

static void check_activation(struct kelp_golden_report *report, const char *stage,
                             const struct activation *activation, uint32_t samples)
{
    char name[KELP_GOLDEN_NAME_SIZE], text[KELP_GOLDEN_TEXT_SIZE];
    const uint64_t count = activation->count * samples;
    uint64_t found = 0;
    double squares = 0.0;
    for (uint64_t i = 0; i < count; i++) {
        squares += (double)activation->values[i] * (double)activation->values[i];
    }
    kelp_golden_print(name, "act/%s@head64", stage);
    kelp_golden_check(report, name, activation->values, count < 64 ? count : 64,
                      &kelp_golden_deep_values);
    kelp_golden_print(name, "act/%s@shape", stage);
    float *shape = kelp_golden_floats(report->file, name, &found);
    double expected_count = shape != NULL ? 1.0 : 0.0;
    for (uint64_t i = 0; shape != NULL && i < found; i++) {
        expected_count *= (double)shape[i];
    }
    free(shape);
    if (expected_count != (double)count) {
        kelp_golden_fail(report, name);
    }
    kelp_golden_print(name, "act/%s@norm2", stage);
    float *norm = kelp_golden_floats(report->file, name, &found);
    if (norm == NULL || fabs(sqrt(squares) - (double)norm[0]) > 1e-4 * (double)norm[0]) {
        (void)snprintf(text, sizeof(text), "%s: %.9g", name, sqrt(squares));
        kelp_golden_fail(report, text);
    } else {
        report->passed++;
    }
    free(norm);
}

/* False: there is no such stage. */
static bool find_stage(const char *word, enum kelp__resnet18_stage *ret)
{
    static const char *const stages[] = {
        [KELP__RESNET18_CONV1] = "conv1",    [KELP__RESNET18_BN1] = "bn1",
        [KELP__RESNET18_RELU] = "relu",      [KELP__RESNET18_MAXPOOL] = "maxpool",
        [KELP__RESNET18_LAYER1] = "layer1",  [KELP__RESNET18_LAYER2] = "layer2",
        [KELP__RESNET18_LAYER3] = "layer3",  [KELP__RESNET18_LAYER4] = "layer4",
        [KELP__RESNET18_AVGPOOL] = "avgpool"};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(stages); i++) {
        if (strcmp(stages[i], word) == 0) {
            /* torchvision's ReLU works in place, so the recorded bn1 is its output after ReLU. */
            *ret = i == KELP__RESNET18_BN1 ? KELP__RESNET18_RELU : (enum kelp__resnet18_stage)i;
            return true;
        }
    }
    return false;
}

static void check_stage(struct kelp_golden_report *report, struct kelp_stream *stream,
                        const struct kelp_golden_file *companion,
                        const struct kelp_golden_model *model, const char *word)
{
    struct activation activation = {.count = 0};
    enum kelp__resnet18_stage stage;
    kelp_golden_case_begin(report, word);
    if (!find_stage(word, &stage)) {
        kelp_golden_fail(report, "no such stage");
    } else if (!compute(stream, companion, model, stage, &activation)) {
        kelp_golden_fail(report, "cannot be computed");
    } else {
        check_activation(report, word, &activation, model->samples);
    }
    free(activation.values);
    kelp_golden_case_end(report, "");
}

bool kelp_golden_check_activations(struct kelp_golden_report *report, struct kelp_stream *stream)
{
    struct kelp_golden_file companion;
    struct kelp_golden_model model;
    char reason[KELP_GOLDEN_TEXT_SIZE];
    if (strstr(report->file->model, "activations") == NULL ||
        !open_companion(report->file, &companion)) {
        return false;
    }
    const bool ok = kelp_golden_model_read(&companion, &model, reason) &&
                    model.job.model.kind == KELP_MODEL_RESNET18;
    for (size_t i = 0; i < kelp_safetensors_count(report->file->tensors) && ok; i++) {
        char word[KELP_GOLDEN_NAME_SIZE];
        const char *name = kelp_safetensors_at(report->file->tensors, i)->name;
        const char *end = strstr(name, "@norm2");
        if (strncmp(name, "act/", strlen("act/")) == 0 && end != NULL) {
            name += strlen("act/");
            kelp_golden_print(word, "%.*s", (int)(end - name), name);
            check_stage(report, stream, &companion, &model, word);
        }
    }
    kelp_golden_file_close(&companion);
    return ok;
}

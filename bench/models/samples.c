#include <stdio.h>
#include <stdlib.h>

#include <check.h>

#include "bench/models/models.h"
#include "common/tensors/philox.h"
#include "common/tensors/safetensors.h"

const struct bench_model bench_models[] = {
    {"mlp", 32, 640, 2000, 600,
     "model: {kind: mlp, hidden: [256, 256]}\n"
     "train: {optimizer: adam, lr: 0.005",
     "[x]", .tensors = {{"x", 1, {96}, 0, {0}}, {"y", 1, {96}, 0, {0}}}},
    {.name = "mlp_wide",
     .batch = 512,
     .samples = 1024,
     .job = "model: {kind: mlp, hidden: [8192, 8192]}\n"
            "train: {optimizer: adam, lr: 0.005",
     .inputs = "[x]",
     .tensors = {{"x", 1, {4096}, 0, {0}}, {"y", 1, {4096}, 0, {0}}},
     .gpu_alone = true},
    {"dlinear", 32, 640, 2000, 600,
     "model: {kind: dlinear}\n"
     "train: {optimizer: adam, lr: 0.005",
     "[x]", .tensors = {{"x", 2, {96, 1}, 0, {0}}, {"y", 2, {96, 1}, 0, {0}}}},
    {"fare", 64, 1280, 2000, 600,
     "model: {kind: fare}\n"
     "train: {loss: smooth_l1, optimizer: adam, lr: 0.01",
     "[x]", .tensors = {{"x", 1, {6}, 0, {0}}, {"y", 1, {1}, 0, {0}}}},
    {"deepfm", 128, 2560, 2000, 600,
     "model: {kind: deepfm, embedding_dim: 8, hidden: [64]}\n"
     "train: {loss: bce_with_logits, optimizer: adam, lr: 0.001",
     "[ids, numbers]",
     .tensors = {{"ids", 1, {6}, 6, {3, 8, 266, 266, 24, 7}},
                 {"numbers", 1, {3}, 0, {0}},
                 {"y", 1, {1}, 0, {0}}}},
    {"convnet", 128, 1280, 8, 30,
     "model: {kind: convnet, classes: 10}\n"
     "train: {loss: nll, optimizer: adadelta, lr: 1.0",
     "[x]", .tensors = {{"x", 3, {1, 28, 28}, 0, {0}}, {"y", 0, {0}, 1, {10}}}, .large_batch = 512},
    {"resnet18", 128, 1280, 5, 14,
     "model: {kind: resnet18, classes: 10}\n"
     "train: {loss: cross_entropy, optimizer: adam, lr: 0.001",
     "[x]", .tensors = {{"x", 3, {1, 28, 28}, 0, {0}}, {"y", 0, {0}, 1, {10}}}, .large_batch = 512},
    {"tft", 128, 1280, 5, 10,
     "model: {kind: tft, d_model: 16, heads: 4}\n"
     "train: {loss: quantile, quantiles: [0.1, 0.5, 0.9], optimizer: adam, lr: 0.01, clip_norm: "
     "0.1",
     "[series, known, observed, ahead]",
     .tensors = {{"series", 0, {0}, 1, {73}},
                 {"known", 2, {63, 6}, 0, {0}},
                 {"observed", 1, {63}, 0, {0}},
                 {"ahead", 2, {168, 6}, 0, {0}},
                 {"y", 1, {168}, 0, {0}}}},
};
const size_t bench_model_count = KELP_ARRAY_COUNT(bench_models);

static void *random_values(const struct bench_tensor *tensor, uint32_t use, uint64_t count)
{
    const bool is_class = tensor->class_count != 0;
    float *numbers = malloc(count * sizeof(*numbers));
    int64_t *classes = malloc(count * sizeof(*classes));
    ck_assert_ptr_nonnull(numbers);
    ck_assert_ptr_nonnull(classes);
    for (uint64_t i = 0; i < count; i++) {
        uint32_t words[4];
        kelp_philox(1, KELP_PHILOX_TEST, use, i, words);
        numbers[i] = kelp_philox_float(words[0]);
        classes[i] = is_class ? words[1] % tensor->classes[i % tensor->class_count] : 0;
    }
    free(is_class ? (void *)numbers : (void *)classes);
    return is_class ? (void *)classes : (void *)numbers;
}

void models_write_samples(const struct bench_model *model, const char *path)
{
    struct kelp_safetensors_item items[MODELS_TENSORS_MAX];
    uint64_t shapes[MODELS_TENSORS_MAX][1 + MODELS_RANK_MAX];
    void *values[MODELS_TENSORS_MAX];
    struct kelp_error error = {KELP_OK, ""};
    size_t count = 0;
    for (; count < MODELS_TENSORS_MAX && model->tensors[count].name != NULL; count++) {
        const struct bench_tensor *tensor = &model->tensors[count];
        uint64_t elements = model->samples;
        shapes[count][0] = model->samples;
        for (uint32_t d = 0; d < tensor->rank; d++) {
            shapes[count][1 + d] = tensor->dims[d];
            elements *= tensor->dims[d];
        }
        values[count] = random_values(tensor, (uint32_t)count, elements);
        items[count] = (struct kelp_safetensors_item){
            .name = tensor->name,
            .dtype = tensor->class_count != 0 ? KELP_DTYPE_I64 : KELP_DTYPE_F32,
            .rank = 1 + tensor->rank,
            .shape = shapes[count],
            .data = values[count]};
    }
    ck_assert_msg(kelp_safetensors_write(path, items, count, NULL, 0, &error) == KELP_OK, "%s",
                  error.text);
    for (size_t i = 0; i < count; i++) {
        free(values[i]);
    }
}

void models_write_job(const struct bench_model *model, const char *data, uint32_t batch_size,
                      const char *cluster, char *job, size_t job_bytes)
{
    const int length =
        snprintf(job, job_bytes,
                 "name: bench-%s\n%s, epochs: %u, batch_size: %u, evaluate: false, schedule: "
                 "constant}\ndata: {kind: tensors, path: %s, input_name: %s}\n"
                 "cluster: {%s}\n"
                 "checkpoint: {at_end: false, interval: 0s}\n",
                 model->name, model->job, model->gpu_alone ? 1 : model->epochs, batch_size, data,
                 model->inputs, cluster);
    ck_assert(length > 0 && (size_t)length < job_bytes);
}

#include "tests/lib/commands/model_jobs.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/tensors/safetensors.h"
#include "tests/lib/commands/run_command.h"

#define SAMPLES 40 /* two batches of 16 and a short one */

/* ---- data ------------------------------------------------------------------------------------ */

static const struct {
    const char *name;
    bool whole;     /* int64; otherwise float32 */
    unsigned limit; /* whole numbers below it; 0: numbers around 0 */
    uint32_t rank;
    uint64_t shape[4];
} tensors[] = {
    {"image", false, 0, 4, {SAMPLES, 1, 12, 12}},
    {"class", true, 5, 1, {SAMPLES}},
    {"ids", true, 4, 2, {SAMPLES, 3}},
    {"numbers", false, 0, 2, {SAMPLES, 4}},
    {"value", false, 0, 1, {SAMPLES}},
    {"label", false, 2, 1, {SAMPLES}},
    {"series", true, 3, 1, {SAMPLES}},
    {"known", false, 0, 3, {SAMPLES, 6, 2}},
    {"observed", false, 0, 2, {SAMPLES, 6}},
    {"ahead", false, 0, 3, {SAMPLES, 4, 2}},
    {"future", false, 0, 2, {SAMPLES, 4}},
    {"window", false, 0, 3, {SAMPLES, 6, 2}},
    {"next", false, 0, 3, {SAMPLES, 4, 2}},
};
#define TENSOR_COUNT KELP_ARRAY_COUNT(tensors)

/* A fixed sequence of numbers: splitmix64. */
static uint64_t next_number(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static void *make_values(size_t index, uint64_t *state)
{
    uint64_t count = 1;
    for (uint32_t i = 0; i < tensors[index].rank; i++) {
        count *= tensors[index].shape[i];
    }
    int64_t *whole = calloc(count, sizeof(*whole));
    ck_assert_ptr_nonnull(whole);
    float *values = (float *)whole;
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t number = next_number(state);
        if (tensors[index].whole) {
            whole[i] = (int64_t)(number % tensors[index].limit);
        } else if (tensors[index].limit > 0) {
            values[i] = (float)(number % tensors[index].limit);
        } else {
            values[i] = (float)((double)(number >> 40) / (1 << 23) - 1.0);
        }
    }
    return whole;
}

static void write_data(const char *path)
{
    struct kelp_safetensors_item items[TENSOR_COUNT];
    struct kelp_error error = {.text = ""};
    void *values[TENSOR_COUNT];
    uint64_t state = 1;
    for (size_t i = 0; i < TENSOR_COUNT; i++) {
        values[i] = make_values(i, &state);
        items[i] = (struct kelp_safetensors_item){.name = tensors[i].name,
                                                  .dtype = tensors[i].whole ? KELP_DTYPE_I64
                                                                            : KELP_DTYPE_F32,
                                                  .rank = tensors[i].rank,
                                                  .shape = tensors[i].shape,
                                                  .data = values[i]};
    }
    const kelp_status status = kelp_safetensors_write(path, items, TENSOR_COUNT, NULL, 0, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    for (size_t i = 0; i < TENSOR_COUNT; i++) {
        free(values[i]);
    }
}

/* ---- jobs ------------------------------------------------------------------------------------ */

static const struct {
    const char *name, *model, *data, *train;
} jobs[] = {
    {"dlinear", "kind: dlinear, kernel_size: 3", "input_name: [window], target_name: next",
     "loss: mse, optimizer: adam, lr: 0.01"},
    {"nlinear", "kind: nlinear, individual: true", "input_name: [window], target_name: next",
     "loss: mae, optimizer: adamw, lr: 0.01, accumulate: 2"},
    {"mlp of classes", "kind: mlp, hidden: [8]", "input_name: [numbers], target_name: class",
     "loss: cross_entropy, optimizer: sgd, lr: 0.1, momentum: 0.9"},
    {"fare", "kind: fare", "input_name: [numbers], target_name: value",
     "loss: smooth_l1, optimizer: adam, lr: 0.01"},
    {"deepfm", "kind: deepfm, hidden: [8], embedding_dim: 4, dropout: [0.2]",
     "input_name: [ids, numbers], target_name: label",
     "loss: bce_with_logits, optimizer: adagrad, lr: 0.05"},
    {"tft", "kind: tft, d_model: 8, heads: 2, dropout: [0.1]",
     "input_name: [series, known, observed, ahead], target_name: future",
     "loss: quantile, quantiles: [0.1, 0.5, 0.9], optimizer: adam, lr: 0.01, clip_norm: 0.1"},
    {"convnet", "kind: convnet, classes: 5", "input_name: [image], target_name: class",
     "loss: nll, optimizer: adadelta, lr: 1, schedule: step, schedule_step: 1, gamma: 0.7"},
    {"resnet18", "kind: resnet18, classes: 5", "input_name: [image], target_name: class",
     "loss: cross_entropy, optimizer: sgd, lr: 0.01"},
};
_Static_assert(KELP_ARRAY_COUNT(jobs) == MODEL_JOB_COUNT, "MODEL_JOB_COUNT");

const char *model_job_name(int index)
{
    return jobs[index].name;
}

int model_job_find(const char *name)
{
    int index = 0;
    while (index < MODEL_JOB_COUNT && strcmp(jobs[index].name, name) != 0) {
        index++;
    }
    ck_assert_msg(index < MODEL_JOB_COUNT, "no job is named %s", name);
    return index;
}

const char *model_job_write(const char *folder, int index)
{
    char path[300], text[2048];
    (void)snprintf(path, sizeof(path), "%s/data.safetensors", folder);
    write_data(path);
    (void)snprintf(text, sizeof(text),
                   "name: same-bits\nseed: 11\nmodel: {%s}\n"
                   "data: {kind: tensors, path: \"%s\", %s}\n"
                   "train: {epochs: 2, batch_size: 16, evaluate: false, %s}\n"
                   "cluster: {lanes: 4}\n",
                   jobs[index].model, path, jobs[index].data, jobs[index].train);
    return kelp_test_write(folder, "job.yaml", text);
}

/*
 * What a shard does with the keys of a job, for tests in Python: learning rates by the control
 * state, updates by the kernels. Loaded by tests/python/test_optim.py.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/job/job.h"
#include "common/training/control.h"
#include "kernels/optimizer.h"

#define API __attribute__((visibility("default")))

struct updates {
    struct kelp_job_file *file;
    const struct kelp_job *job;
    struct kelp_plan plan;
    struct kelp_control_state state;
    uint64_t count;                         /* of parameters */
    float *slots[KELP_OPTIMIZER_SLOTS_MAX]; /* owned */
    float *next;                            /* owned */
};

/* Keys with their values, as `kelp train --set` takes them. */
struct setting {
    const char *key, *value;
};

API void updates_close(struct updates *updates);
API struct updates *updates_open(const struct setting *settings, uint32_t setting_count,
                                 uint64_t count, char *error, size_t error_bytes);
API int updates_step(struct updates *updates, double lr, uint64_t step_number, float *weights,
                     const float *gradient);
API double updates_next_rate(struct updates *updates, double val_loss);

API void updates_close(struct updates *updates)
{
    for (uint32_t i = 0; i < KELP_OPTIMIZER_SLOTS_MAX; i++) {
        free(updates->slots[i]);
    }
    free(updates->next);
    kelp_job_file_destroy(updates->file);
    free(updates);
}

static kelp_status set_all(struct updates *updates, const struct setting *settings,
                           uint32_t setting_count, struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;

    for (uint32_t i = 0; i < setting_count && status == KELP_OK; i++) {
        status = kelp_job_file_set(updates->file, settings[i].key, settings[i].value,
                                   KELP_ORIGIN_FLAG, reterr);
    }
    return status == KELP_OK ? kelp_job_file_finish(updates->file, reterr) : status;
}

/* A job with one step in each epoch, for a model of `count` parameters. NULL: error has the line.
 */
API struct updates *updates_open(const struct setting *settings, uint32_t setting_count,
                                 uint64_t count, char *error, size_t error_bytes)
{
    struct kelp_error reason = {.text = ""};
    struct updates *updates = calloc(1, sizeof(*updates));

    updates->file = kelp_job_file_create();
    if (set_all(updates, settings, setting_count, &reason) != KELP_OK) {
        (void)snprintf(error, error_bytes, "%s", reason.text);
        updates_close(updates);
        return NULL;
    }
    updates->job = kelp_job_file_job(updates->file);
    updates->plan.samples[KELP_SPLIT_TRAIN] = updates->job->train.batch_size;
    updates->plan.samples[KELP_SPLIT_VAL] = 1;
    kelp_control_init(&updates->state, updates->job, &updates->plan);
    updates->count = count;
    updates->next = calloc(count, sizeof(float));
    for (uint32_t slot = 0; slot < kelp_optimizer_slot_count(updates->job); slot++) {
        updates->slots[slot] = calloc(count, sizeof(float));
        for (uint64_t i = 0; i < count; i++) {
            updates->slots[slot][i] = kelp_optimizer_slot_start(updates->job, slot);
        }
    }
    return updates;
}

/* w_{v+1} in place. */
API int updates_step(struct updates *updates, double lr, uint64_t step_number, float *weights,
                     const float *gradient)
{
    struct kelp_optimizer_step step;
    struct kelp_optimizer_buffers buffers = {
        .weights = weights, .gradient = gradient, .weights_next = updates->next};

    memcpy(buffers.slots, updates->slots, sizeof(buffers.slots));
    kelp_optimizer_prepare(&step, updates->job, lr, step_number);
    const bool finite = kelp_optimizer_apply(&step, &buffers, updates->count);
    memcpy(weights, updates->next, updates->count * sizeof(float));
    return finite ? 1 : 0;
}

/* The rate of the next training step; val_loss is what the evaluation after it measures. */
API double updates_next_rate(struct updates *updates, double val_loss)
{
    double sums[KELP_METRIC_SUM_COUNT] = {[KELP_METRIC_SUM_SAMPLES] = 1};
    struct kelp_control_word word;
    struct kelp_record record;
    double lr;

    kelp_control_word(&updates->state, updates->job, &updates->plan, &word);
    lr = word.lr;
    do {
        sums[KELP_METRIC_SUM_LOSS] = val_loss;
        kelp_control_apply(&updates->state, updates->job, &updates->plan, sums, "", &record);
    } while (updates->state.kind == KELP_STEP_EVALUATE_VAL);
    return lr;
}

/* The fixture of clipping by the global norm, through the shares and the decision of two
 * partitions. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/update.h"
#include "tests/lib/golden/golden_single.h"

#define PARTITIONS 2

/* The weights are zero, so a step of plain SGD with rate 1 turns them into the negated gradient. */
struct clip {
    struct kelp_plan plan;
    struct kelp_job job;
    float *weights, *gradient, *next;
};

static bool clip_init(struct clip *clip, const struct kelp_golden_file *file)
{
    const struct kelp_safetensors_tensor *tensor;
    char name[KELP_GOLDEN_NAME_SIZE];
    const size_t most = kelp_safetensors_count(file->tensors);

    *clip = (struct clip){.job = {.train = {.optimizer = KELP_OPTIMIZER_SGD, .lr = 1.0}}};
    clip->plan.tensors = kelp_golden_allocate(most, sizeof(*clip->plan.tensors));
    for (uint32_t i = 0; i < most; i++) {
        kelp_golden_print(name, "before/%u", i);
        tensor = kelp_safetensors_find(file->tensors, name);
        if (tensor == NULL) {
            break;
        }
        struct kelp_tensor *planned = &clip->plan.tensors[clip->plan.tensor_count++];
        (void)snprintf(planned->name, sizeof(planned->name), "%u", i);
        planned->rank = tensor->rank;
        memcpy(planned->shape, tensor->shape, tensor->rank * sizeof(planned->shape[0]));
    }
    if (kelp_plan_lay_out(&clip->plan, 1, NULL) != KELP_OK) {
        return false;
    }
    clip->plan.partition_count = PARTITIONS;
    clip->weights = kelp_golden_allocate(clip->plan.flat_count, sizeof(float));
    clip->gradient = kelp_golden_allocate(clip->plan.flat_count, sizeof(float));
    clip->next = kelp_golden_allocate(clip->plan.flat_count, sizeof(float));
    return true;
}

static void clip_fini(struct clip *clip)
{
    kelp_plan_fini(&clip->plan);
    free(clip->weights);
    free(clip->gradient);
    free(clip->next);
}

/* As the shards do: each partition gives its share, and all get the decision. Returns the norm. */
static double clip_step(struct clip *clip)
{
    struct kelp_update updates[PARTITIONS];
    struct kelp_decision_share parts[PARTITIONS];
    const struct kelp_decision_share *pointers[PARTITIONS];
    struct kelp_optimizer_step step;
    double factor = 0.0;

    kelp_optimizer_prepare(&step, &clip->job, 1.0, 1);
    for (uint32_t p = 0; p < PARTITIONS; p++) {
        const struct kelp_slice_range range = kelp_plan_partition(&clip->plan, p);
        const struct kelp_optimizer_buffers buffers = {.weights = clip->weights + range.first,
                                                       .gradient = clip->gradient + range.first};
        const kelp_status status =
            kelp_update_init(&updates[p], &clip->job, &clip->plan, range, NULL);
        assert(status == KELP_OK);
        (void)status;
        kelp_update_measure(&updates[p], &step, &buffers, &parts[p]);
        pointers[p] = &parts[p];
    }
    (void)kelp_step_decide(&clip->job, &clip->plan, pointers, &factor);
    const struct kelp_step_decision decision = {.count = 1, .values = &factor};
    for (uint32_t p = 0; p < PARTITIONS; p++) {
        const uint64_t first = kelp_plan_partition(&clip->plan, p).first;
        const struct kelp_optimizer_buffers buffers = {.weights = clip->weights + first,
                                                       .gradient = clip->gradient + first,
                                                       .weights_next = clip->next + first};
        (void)kelp_update_apply(&updates[p], &step, &decision, &buffers);
        kelp_update_fini(&updates[p]);
    }
    return clip->job.train.clip_norm / factor - 1e-6;
}

void kelp_golden_check_clip(struct kelp_golden_report *report, const char *case_name)
{
    static const char prefix[] = "after_max_norm_";
    struct clip clip;
    char name[KELP_GOLDEN_NAME_SIZE];

    if (strncmp(case_name, prefix, strlen(prefix)) != 0 || !clip_init(&clip, report->file)) {
        return;
    }
    kelp_golden_case_begin(report, case_name);
    clip.job.train.clip_norm = strtod(case_name + strlen(prefix), NULL);
    for (uint32_t i = 0; i < clip.plan.tensor_count; i++) {
        uint64_t count;
        kelp_golden_print(name, "before/%u", i);
        float *values = kelp_golden_floats(report->file, name, &count);
        assert(values != NULL && count == clip.plan.tensors[i].elem_count);
        memcpy(clip.gradient + clip.plan.tensors[i].offset, values, count * sizeof(float));
        free(values);
    }
    kelp_golden_check_scalar(report, "total_norm", clip_step(&clip));
    for (uint64_t i = 0; i < clip.plan.flat_count; i++) {
        clip.next[i] = -clip.next[i];
    }
    for (uint32_t i = 0; i < clip.plan.tensor_count; i++) {
        const struct kelp_tensor *tensor = &clip.plan.tensors[i];
        kelp_golden_print(name, "%.120s/%u", case_name, i);
        kelp_golden_check(report, name, clip.next + tensor->offset, tensor->elem_count,
                          &kelp_golden_updates);
    }
    clip_fini(&clip);
    kelp_golden_case_end(report, "");
}

/* Cases of kernels/cuda/updates.cu: every variant of each optimizer must give the CPU's bits. */
#include <string.h>

#include "tests/lib/cuda/operator_cases.h"

struct update_case {
    struct kelp_optimizer_step step;
    uint64_t count;
};

static void run_update(struct kelp_stream *stream, void *const *buffers, const void *arguments)
{
    const struct update_case *how = arguments;
    const struct kelp_optimizer_run run = {.step = how->step,
                                           .count = how->count,
                                           .weights = buffers[0],
                                           .gradient = buffers[1],
                                           .weights_next = buffers[2],
                                           .slots = {buffers[3], buffers[4], buffers[5]},
                                           .not_finite = buffers[6]};
    stream->table->optimizer(stream, &run);
}

/* All slots are positive: some are sums of squares, others must not be negative. */
static void add_update(struct operator_cases *cases, const struct kelp_job *job, uint64_t count)
{
    struct update_case how = {.count = count};
    const uint32_t step = cases_draw(cases, 1, 3);
    kelp_optimizer_prepare(&how.step, job, job->train.lr, step);
    how.step.scale = cases_flip(cases) ? 1.0f : 0.7f;
    struct operator_case *one = cases_add(
        cases, run_update, &how, sizeof(how), "optimizer %d count=%u step=%u decay=%d way=%d%d%d",
        (int)job->train.optimizer, (unsigned int)count, step, job->train.weight_decay != 0.0,
        job->train.momentum != 0.0, job->train.nesterov || job->train.amsgrad, job->train.centered);
    cases_set_buffer(cases, &one->buffers[0], count, CASE_SIGNED);
    cases_set_buffer(cases, &one->buffers[1], count, CASE_MODERATE);
    cases_set_buffer(cases, &one->buffers[2], count, CASE_SIGNED);
    one->buffers[2].compared = true;
    for (uint32_t i = 0; i < kelp_optimizer_slot_count(job); i++) {
        cases_set_buffer(cases, &one->buffers[3 + i], count, CASE_POSITIVE);
        one->buffers[3 + i].compared = true;
    }
    one->buffers[6] =
        (struct case_buffer){.count = 1, .content = CASE_NUMBERS, .limit = 1, .compared = true};
}

void cases_updates(struct operator_cases *cases, bool large)
{
    static const enum kelp_optimizer_kind kinds[] = {
        KELP_OPTIMIZER_SGD,     KELP_OPTIMIZER_ADAM,    KELP_OPTIMIZER_ADAMW,
        KELP_OPTIMIZER_ADAGRAD, KELP_OPTIMIZER_RMSPROP, KELP_OPTIMIZER_ADADELTA};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(kinds); i++) {
        for (uint32_t way = 0; way < 8; way++) {
            const bool first = (way & 1) != 0, second = (way & 2) != 0;
            const struct kelp_job job = {.train = {.optimizer = kinds[i],
                                                   .lr = 0.01,
                                                   .weight_decay = (way & 4) != 0 ? 0.1 : 0.0,
                                                   .momentum = first ? 0.9 : 0.0,
                                                   .nesterov = second && first,
                                                   .amsgrad = second,
                                                   .centered = second,
                                                   .beta1 = 0.9,
                                                   .beta2 = 0.999,
                                                   .alpha = 0.99,
                                                   .rho = 0.9,
                                                   .eps = 1e-8}};
            add_update(cases, &job, cases_draw(cases, 1, 700));
            if (large) {
                add_update(cases, &job, cases_draw(cases, 1u << 20, 3u << 20));
            }
        }
    }
}

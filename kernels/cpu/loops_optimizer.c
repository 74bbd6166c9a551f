/*
 * Optimizer updates, one element after the other in the order of operations of torch.optim 1.13
 * (its single-tensor functions), each array walked once.
 *
 * The flags of a step are constants inside each copy of the loop, so that the compiler sees a
 * straight line of arithmetic and vectorises it.
 */
#include "kernels/cpu/loops.h"

#include <math.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

/* All ones when the value is infinite or NaN, in integers: no floating-point reduction to order. */
INLINE uint32_t not_finite(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return (bits & 0x7f800000u) == 0x7f800000u ? ~0u : 0u;
}

struct sgd_flags {
    bool decay, momentum, nesterov, first;
};

INLINE bool sgd_loop(const struct kelp_optimizer_step *step,
                     const struct kelp_optimizer_buffers *buffers, uint64_t count,
                     const struct sgd_flags flags)
{
    const float *restrict weights = buffers->weights;
    const float *restrict gradient = buffers->gradient;
    float *restrict weights_next = buffers->weights_next;
    float *restrict momentum_buffer = flags.momentum ? buffers->slots[0] : NULL;
    const float lr = step->lr, momentum = step->momentum, decay = step->weight_decay;
    const float one_minus_dampening = step->one_minus_dampening;
    uint32_t bad = 0;
    for (uint64_t i = 0; i < count; i++) {
        float g = gradient[i];
        const float w = weights[i];
        bad |= not_finite(g);
        if (flags.decay) {
            g = g + decay * w;
        }
        if (flags.momentum) {
            const float m =
                flags.first ? g : momentum_buffer[i] * momentum + one_minus_dampening * g;
            momentum_buffer[i] = m;
            g = flags.nesterov ? g + momentum * m : m;
        }
        weights_next[i] = w - lr * g;
    }
    return bad == 0;
}

static bool sgd(const struct kelp_optimizer_step *step,
                const struct kelp_optimizer_buffers *buffers, uint64_t count)
{
    const bool decay = step->weight_decay != 0.0f;
    if (step->momentum == 0.0f) {
        return decay ? sgd_loop(step, buffers, count, (struct sgd_flags){.decay = true})
                     : sgd_loop(step, buffers, count, (struct sgd_flags){.decay = false});
    }
    switch ((decay ? 4 : 0) + (step->nesterov ? 2 : 0) + (step->first ? 1 : 0)) {
#define CASE(number, decay_, nesterov_, first_)                                                    \
    case number:                                                                                   \
        return sgd_loop(                                                                           \
            step, buffers, count,                                                                  \
            (struct sgd_flags){                                                                    \
                .decay = (decay_), .momentum = true, .nesterov = (nesterov_), .first = (first_)})
        CASE(0, false, false, false);
        CASE(1, false, false, true);
        CASE(2, false, true, false);
        CASE(3, false, true, true);
        CASE(4, true, false, false);
        CASE(5, true, false, true);
        CASE(6, true, true, false);
    default:
        CASE(7, true, true, true);
#undef CASE
    }
}

enum decay_kind { DECAY_NONE, DECAY_GRADIENT, DECAY_WEIGHTS };

INLINE bool adam_loop(const struct kelp_optimizer_step *step,
                      const struct kelp_optimizer_buffers *buffers, uint64_t count,
                      const enum decay_kind decay_kind)
{
    const float *restrict weights = buffers->weights;
    const float *restrict gradient = buffers->gradient;
    float *restrict weights_next = buffers->weights_next;
    float *restrict exp_avg = buffers->slots[0];
    float *restrict exp_avg_sq = buffers->slots[1];
    const float beta1 = step->beta1, one_minus_beta1 = step->one_minus_beta1;
    const float beta2 = step->beta2, one_minus_beta2 = step->one_minus_beta2;
    const float step_size = step->step_size, bias2_sqrt = step->bias2_sqrt, eps = step->eps;
    const float decay = step->weight_decay, decay_factor = step->decay_factor;
    uint32_t bad = 0;
    for (uint64_t i = 0; i < count; i++) {
        float g = gradient[i];
        float w = weights[i];
        bad |= not_finite(g);
        if (decay_kind == DECAY_WEIGHTS) {
            w = w * decay_factor;
        }
        if (decay_kind == DECAY_GRADIENT) {
            g = g + decay * w;
        }
        const float m = exp_avg[i] * beta1 + one_minus_beta1 * g;
        const float v = exp_avg_sq[i] * beta2 + one_minus_beta2 * g * g;
        exp_avg[i] = m;
        exp_avg_sq[i] = v;
        const float denominator = sqrtf(v) / bias2_sqrt + eps;
        weights_next[i] = w - step_size * m / denominator;
    }
    return bad == 0;
}

static bool adam(const struct kelp_optimizer_step *step,
                 const struct kelp_optimizer_buffers *buffers, uint64_t count)
{
    if (step->weight_decay == 0.0f) {
        return adam_loop(step, buffers, count, DECAY_NONE);
    }
    return step->kind == KELP_OPTIMIZER_ADAMW ? adam_loop(step, buffers, count, DECAY_WEIGHTS)
                                              : adam_loop(step, buffers, count, DECAY_GRADIENT);
}

static void vector_add(float *sum, const void *other, uint64_t count)
{
    const char *bytes = other;
    for (uint64_t i = 0; i < count; i++) {
        float value;
        memcpy(&value, bytes + i * sizeof(value), sizeof(value));
        sum[i] = sum[i] + value;
    }
}

extern const struct kelp_optimizer_loops KELP_LOOPS_NAME(kelp__optimizer_loops);
const struct kelp_optimizer_loops KELP_LOOPS_NAME(kelp__optimizer_loops) = {
    .sgd = sgd,
    .adam = adam,
    .vector_add = vector_add,
};

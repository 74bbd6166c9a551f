/*
 * One element of an optimizer's update, in the order of operations of torch.optim 1.13 (its
 * single-tensor functions): from the gradient and w to w', updating the slots' elements. Arithmetic
 * is limited to + - * / and the square root, so that a GPU gives the CPU's bits. Flags are
 * constants inside each loop of the CPU, so that the compiler sees code without branches. Private
 * to kernels/.
 */
#ifndef KELP_KERNELS_CPU_LOOPS_UPDATES_H
#define KELP_KERNELS_CPU_LOOPS_UPDATES_H

#include <math.h>

#include "kernels/cpu/loops/functions.h"
#include "kernels/optimizer.h"

/* All ones when the value is infinite or NaN, in integers: no floating-point reduction to order. */
INLINE uint32_t kelp__update_not_finite(float value)
{
    return (kelp__math_float_bits(value) & 0x7f800000u) == 0x7f800000u ? ~0u : 0u;
}

struct kelp__sgd_flags {
    bool decay, momentum, nesterov, first;
};

INLINE float kelp__update_sgd(const struct kelp_optimizer_step *step,
                              const struct kelp__sgd_flags flags, float gradient, float w,
                              float *momentum_buffer)
{
    float g = gradient * step->scale;
    if (flags.decay) {
        g = g + step->weight_decay * w;
    }
    if (flags.momentum) {
        const float m =
            flags.first ? g : *momentum_buffer * step->momentum + step->one_minus_dampening * g;
        *momentum_buffer = m;
        g = flags.nesterov ? g + step->momentum * m : m;
    }
    return w - step->lr * g;
}

enum kelp__decay_kind { KELP_DECAY_NONE, KELP_DECAY_GRADIENT, KELP_DECAY_WEIGHTS };

INLINE float kelp__update_adam(const struct kelp_optimizer_step *step,
                               const enum kelp__decay_kind decay, const bool amsgrad,
                               float gradient, float w, float *exp_avg, float *exp_avg_sq,
                               float *max_exp_avg_sq)
{
    float g = gradient * step->scale;
    if (decay == KELP_DECAY_WEIGHTS) {
        w = w * step->decay_factor;
    }
    if (decay == KELP_DECAY_GRADIENT) {
        g = g + step->weight_decay * w;
    }
    const float m = *exp_avg * step->beta1 + step->one_minus_beta1 * g;
    float v = *exp_avg_sq * step->beta2 + step->one_minus_beta2 * g * g;
    *exp_avg = m;
    *exp_avg_sq = v;
    if (amsgrad) {
        const float largest = *max_exp_avg_sq;
        v = v > largest ? v : largest;
        *max_exp_avg_sq = v;
    }
    const float denominator = sqrtf(v) / step->bias2_sqrt + step->eps;
    return w - step->step_size * m / denominator;
}

INLINE float kelp__update_adagrad(const struct kelp_optimizer_step *step, const bool decays,
                                  float gradient, float w, float *sum)
{
    float g = gradient * step->scale;
    if (decays) {
        g = g + step->weight_decay * w;
    }
    const float s = *sum + g * g;
    *sum = s;
    return w - step->step_size * g / (sqrtf(s) + step->eps);
}

struct kelp__rmsprop_flags {
    bool decay, centered, momentum;
};

/* alpha is beta2. */
INLINE float kelp__update_rmsprop(const struct kelp_optimizer_step *step,
                                  const struct kelp__rmsprop_flags flags, float gradient, float w,
                                  float *square_avg, float *momentum_buffer, float *grad_avg)
{
    float g = gradient * step->scale;
    if (flags.decay) {
        g = g + step->weight_decay * w;
    }
    float v = *square_avg * step->beta2 + step->one_minus_beta2 * g * g;
    *square_avg = v;
    if (flags.centered) {
        const float a = *grad_avg * step->beta2 + step->one_minus_beta2 * g;
        *grad_avg = a;
        v = v - a * a;
        v = v > 0.0f ? v : 0.0f; /* rounding can take it below, where the root is NaN */
    }
    const float denominator = sqrtf(v) + step->eps;
    if (!flags.momentum) {
        return w - step->lr * g / denominator;
    }
    const float m = *momentum_buffer * step->momentum + g / denominator;
    *momentum_buffer = m;
    return w - step->lr * m;
}

/* rho is beta2. */
INLINE float kelp__update_adadelta(const struct kelp_optimizer_step *step, const bool decays,
                                   float gradient, float w, float *square_avg, float *acc_delta)
{
    float g = gradient * step->scale;
    if (decays) {
        g = g + step->weight_decay * w;
    }
    const float v = *square_avg * step->beta2 + step->one_minus_beta2 * g * g;
    const float before = *acc_delta;
    const float delta = sqrtf(before + step->eps) / sqrtf(v + step->eps) * g;
    *square_avg = v;
    *acc_delta = before * step->beta2 + step->one_minus_beta2 * delta * delta;
    return w - step->lr * delta;
}

#endif

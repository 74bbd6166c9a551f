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
#ifdef __SSE2__
#include <immintrin.h>
#endif

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
    const float one_minus_dampening = step->one_minus_dampening, scale = step->scale;
    uint32_t bad = 0;
    for (uint64_t i = 0; i < count; i++) {
        float g = gradient[i] * scale;
        const float w = weights[i];
        bad |= not_finite(gradient[i]);
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
                      const enum decay_kind decay_kind, const bool amsgrad)
{
    const float *restrict weights = buffers->weights;
    const float *restrict gradient = buffers->gradient;
    float *restrict weights_next = buffers->weights_next;
    float *restrict exp_avg = buffers->slots[0];
    float *restrict exp_avg_sq = buffers->slots[1];
    float *restrict max_exp_avg_sq = amsgrad ? buffers->slots[2] : NULL;
    const float beta1 = step->beta1, one_minus_beta1 = step->one_minus_beta1;
    const float beta2 = step->beta2, one_minus_beta2 = step->one_minus_beta2;
    const float step_size = step->step_size, bias2_sqrt = step->bias2_sqrt, eps = step->eps;
    const float decay = step->weight_decay, decay_factor = step->decay_factor, scale = step->scale;
    uint32_t bad = 0;
    for (uint64_t i = 0; i < count; i++) {
        float g = gradient[i] * scale;
        float w = weights[i];
        bad |= not_finite(gradient[i]);
        if (decay_kind == DECAY_WEIGHTS) {
            w = w * decay_factor;
        }
        if (decay_kind == DECAY_GRADIENT) {
            g = g + decay * w;
        }
        const float m = exp_avg[i] * beta1 + one_minus_beta1 * g;
        float v = exp_avg_sq[i] * beta2 + one_minus_beta2 * g * g;
        exp_avg[i] = m;
        exp_avg_sq[i] = v;
        if (amsgrad) {
            const float largest = max_exp_avg_sq[i];
            v = v > largest ? v : largest;
            max_exp_avg_sq[i] = v;
        }
        const float denominator = sqrtf(v) / bias2_sqrt + eps;
        weights_next[i] = w - step_size * m / denominator;
    }
    return bad == 0;
}

static bool adam(const struct kelp_optimizer_step *step,
                 const struct kelp_optimizer_buffers *buffers, uint64_t count)
{
    if (step->weight_decay == 0.0f) {
        return step->amsgrad ? adam_loop(step, buffers, count, DECAY_NONE, true)
                             : adam_loop(step, buffers, count, DECAY_NONE, false);
    }
    if (step->kind == KELP_OPTIMIZER_ADAMW) {
        return step->amsgrad ? adam_loop(step, buffers, count, DECAY_WEIGHTS, true)
                             : adam_loop(step, buffers, count, DECAY_WEIGHTS, false);
    }
    return step->amsgrad ? adam_loop(step, buffers, count, DECAY_GRADIENT, true)
                         : adam_loop(step, buffers, count, DECAY_GRADIENT, false);
}

INLINE bool adagrad_loop(const struct kelp_optimizer_step *step,
                         const struct kelp_optimizer_buffers *buffers, uint64_t count,
                         const bool decays)
{
    const float *restrict weights = buffers->weights;
    const float *restrict gradient = buffers->gradient;
    float *restrict weights_next = buffers->weights_next;
    float *restrict sum = buffers->slots[0];
    const float step_size = step->step_size, eps = step->eps;
    const float decay = step->weight_decay, scale = step->scale;
    uint32_t bad = 0;
    for (uint64_t i = 0; i < count; i++) {
        float g = gradient[i] * scale;
        const float w = weights[i];
        bad |= not_finite(gradient[i]);
        if (decays) {
            g = g + decay * w;
        }
        const float s = sum[i] + g * g;
        sum[i] = s;
        weights_next[i] = w - step_size * g / (sqrtf(s) + eps);
    }
    return bad == 0;
}

static bool adagrad(const struct kelp_optimizer_step *step,
                    const struct kelp_optimizer_buffers *buffers, uint64_t count)
{
    return step->weight_decay != 0.0f ? adagrad_loop(step, buffers, count, true)
                                      : adagrad_loop(step, buffers, count, false);
}

struct rmsprop_flags {
    bool decay, centered, momentum;
};

INLINE bool rmsprop_loop(const struct kelp_optimizer_step *step,
                         const struct kelp_optimizer_buffers *buffers, uint64_t count,
                         const struct rmsprop_flags flags)
{
    const float *restrict weights = buffers->weights;
    const float *restrict gradient = buffers->gradient;
    float *restrict weights_next = buffers->weights_next;
    float *restrict square_avg = buffers->slots[0];
    float *restrict momentum_buffer = flags.momentum ? buffers->slots[1] : NULL;
    float *restrict grad_avg = flags.centered ? buffers->slots[flags.momentum ? 2 : 1] : NULL;
    const float lr = step->lr, momentum = step->momentum, eps = step->eps, scale = step->scale;
    const float alpha = step->beta2, one_minus_alpha = step->one_minus_beta2;
    const float decay = step->weight_decay;
    uint32_t bad = 0;
    for (uint64_t i = 0; i < count; i++) {
        float g = gradient[i] * scale;
        const float w = weights[i];
        bad |= not_finite(gradient[i]);
        if (flags.decay) {
            g = g + decay * w;
        }
        float v = square_avg[i] * alpha + one_minus_alpha * g * g;
        square_avg[i] = v;
        if (flags.centered) {
            const float a = grad_avg[i] * alpha + one_minus_alpha * g;
            grad_avg[i] = a;
            v = v - a * a;
            v = v > 0.0f ? v : 0.0f; /* rounding can take it below, where the root is NaN */
        }
        const float denominator = sqrtf(v) + eps;
        if (flags.momentum) {
            const float m = momentum_buffer[i] * momentum + g / denominator;
            momentum_buffer[i] = m;
            weights_next[i] = w - lr * m;
        } else {
            weights_next[i] = w - lr * g / denominator;
        }
    }
    return bad == 0;
}

static bool rmsprop(const struct kelp_optimizer_step *step,
                    const struct kelp_optimizer_buffers *buffers, uint64_t count)
{
    const bool decay = step->weight_decay != 0.0f, momentum = step->momentum != 0.0f;
    switch ((decay ? 4 : 0) + (step->centered ? 2 : 0) + (momentum ? 1 : 0)) {
#define CASE(number, decay_, centered_, momentum_)                                                 \
    case number:                                                                                   \
        return rmsprop_loop(step, buffers, count,                                                  \
                            (struct rmsprop_flags){.decay = (decay_),                              \
                                                   .centered = (centered_),                        \
                                                   .momentum = (momentum_)})
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

INLINE bool adadelta_loop(const struct kelp_optimizer_step *step,
                          const struct kelp_optimizer_buffers *buffers, uint64_t count,
                          const bool decays)
{
    const float *restrict weights = buffers->weights;
    const float *restrict gradient = buffers->gradient;
    float *restrict weights_next = buffers->weights_next;
    float *restrict square_avg = buffers->slots[0];
    float *restrict acc_delta = buffers->slots[1];
    const float lr = step->lr, eps = step->eps, decay = step->weight_decay, scale = step->scale;
    const float rho = step->beta2, one_minus_rho = step->one_minus_beta2;
    uint32_t bad = 0;
    for (uint64_t i = 0; i < count; i++) {
        float g = gradient[i] * scale;
        const float w = weights[i];
        bad |= not_finite(gradient[i]);
        if (decays) {
            g = g + decay * w;
        }
        const float v = square_avg[i] * rho + one_minus_rho * g * g;
        const float before = acc_delta[i];
        const float delta = sqrtf(before + eps) / sqrtf(v + eps) * g;
        square_avg[i] = v;
        acc_delta[i] = before * rho + one_minus_rho * delta * delta;
        weights_next[i] = w - lr * delta;
    }
    return bad == 0;
}

static bool adadelta(const struct kelp_optimizer_step *step,
                     const struct kelp_optimizer_buffers *buffers, uint64_t count)
{
    return step->weight_decay != 0.0f ? adadelta_loop(step, buffers, count, true)
                                      : adadelta_loop(step, buffers, count, false);
}

struct lamb_update {
    float m, v, u;
};

INLINE struct lamb_update lamb_element(const struct kelp_optimizer_step *step, float w, float g,
                                       float m, float v, const bool decays)
{
    struct lamb_update next;
    g = g * step->scale;
    next.m = m * step->beta1 + step->one_minus_beta1 * g;
    next.v = v * step->beta2 + step->one_minus_beta2 * g * g;
    const float denominator = sqrtf(next.v) / step->bias2_sqrt + step->eps;
    next.u = step->step_size * next.m / denominator;
    if (decays) {
        next.u = next.u + step->weight_decay * w;
    }
    return next;
}

INLINE bool lamb_loop(const struct kelp_optimizer_step *step_,
                      const struct kelp_optimizer_buffers *buffers, uint64_t count, double ratio,
                      const bool decays)
{
    const struct kelp_optimizer_step step = *step_; /* nothing that is written aliases it */
    const float *restrict weights = buffers->weights;
    const float *restrict gradient = buffers->gradient;
    float *restrict weights_next = buffers->weights_next;
    float *restrict exp_avg = buffers->slots[0];
    float *restrict exp_avg_sq = buffers->slots[1];
    const float rate = (float)((double)step.lr * ratio);
    uint32_t bad = 0;
    for (uint64_t i = 0; i < count; i++) {
        bad |= not_finite(gradient[i]);
        const struct lamb_update next =
            lamb_element(&step, weights[i], gradient[i], exp_avg[i], exp_avg_sq[i], decays);
        exp_avg[i] = next.m;
        exp_avg_sq[i] = next.v;
        weights_next[i] = weights[i] - rate * next.u;
    }
    return bad == 0;
}

static bool lamb(const struct kelp_optimizer_step *step,
                 const struct kelp_optimizer_buffers *buffers, uint64_t count, double ratio)
{
    return step->weight_decay != 0.0f ? lamb_loop(step, buffers, count, ratio, true)
                                      : lamb_loop(step, buffers, count, ratio, false);
}

INLINE void lamb_direction_loop(const struct kelp_optimizer_step *step_,
                                const struct kelp_optimizer_buffers *buffers, uint64_t count,
                                float *restrict direction, const bool decays)
{
    const struct kelp_optimizer_step step = *step_;
    const float *restrict weights = buffers->weights;
    const float *restrict gradient = buffers->gradient;
    const float *restrict exp_avg = buffers->slots[0];
    const float *restrict exp_avg_sq = buffers->slots[1];
    for (uint64_t i = 0; i < count; i++) {
        direction[i] =
            lamb_element(&step, weights[i], gradient[i], exp_avg[i], exp_avg_sq[i], decays).u;
    }
}

static void lamb_direction(const struct kelp_optimizer_step *step,
                           const struct kelp_optimizer_buffers *buffers, uint64_t count,
                           float *direction)
{
    if (step->weight_decay != 0.0f) {
        lamb_direction_loop(step, buffers, count, direction, true);
    } else {
        lamb_direction_loop(step, buffers, count, direction, false);
    }
}

/* Halves are added to each other: element i to i + 8, then i + 4, i + 2, i + 1, which vectors of
 * any width do alike. */
static void leaf_squares(const float *restrict x, uint64_t leaves, double *restrict sums)
{
    for (uint64_t leaf = 0; leaf < leaves; leaf++) {
        double square[16];
        for (uint32_t i = 0; i < 16; i++) {
            const double value = (double)x[16 * leaf + i];
            square[i] = value * value;
        }
        for (uint32_t i = 0; i < 8; i++) {
            square[i] = square[i] + square[i + 8];
        }
        for (uint32_t i = 0; i < 4; i++) {
            square[i] = square[i] + square[i + 4];
        }
        for (uint32_t i = 0; i < 2; i++) {
            square[i] = square[i] + square[i + 2];
        }
        sums[leaf] = square[0] + square[1];
    }
}

static bool statistic(float momentum, const struct kelp_optimizer_buffers *buffers, uint64_t count)
{
    const float *restrict weights = buffers->weights;
    const float *restrict gradient = buffers->gradient;
    float *restrict weights_next = buffers->weights_next;
    const float keep = (float)(1.0 - (double)momentum);
    uint32_t bad = 0;
    if (momentum == 0.0f) { /* held: + 0 would turn -0 into 0, and a NaN of the gradient spread */
        memcpy(weights_next, weights, count * sizeof(*weights));
        return true;
    }
    for (uint64_t i = 0; i < count; i++) {
        bad |= not_finite(gradient[i]);
        weights_next[i] = weights[i] * keep + momentum * gradient[i];
    }
    return bad == 0;
}

static bool vector_finite(const float *values, uint64_t count)
{
    uint32_t bad = 0;
    for (uint64_t i = 0; i < count; i++) {
        bad |= not_finite(values[i]);
    }
    return bad == 0;
}

/* Of any alignment. */
INLINE float load(const char *bytes)
{
    float value;
    memcpy(&value, bytes, sizeof(value));
    return value;
}

static void vector_add(float *sum, const void *other, uint64_t count)
{
    const char *bytes = other;
    for (uint64_t i = 0; i < count; i++) {
        sum[i] = sum[i] + load(bytes + i * sizeof(float));
    }
}

static void vector_sum(float *restrict sum, const void *left_bytes, const void *right_bytes,
                       uint64_t count)
{
    const char *restrict left = left_bytes, *restrict right = right_bytes;
    for (uint64_t i = 0; i < count; i++) {
        sum[i] = load(left + i * sizeof(float)) + load(right + i * sizeof(float));
    }
}

/* Instructions that leave the caches alone have no form in C. */
static void vector_stream(float *restrict to, const float *restrict from, uint64_t count)
{
    for (uint64_t i = 0; i < count; i += 16) {
#if defined(__AVX512F__)
        _mm512_stream_ps(to + i, _mm512_loadu_ps(from + i));
#elif defined(__AVX2__)
        _mm256_stream_ps(to + i, _mm256_loadu_ps(from + i));
        _mm256_stream_ps(to + i + 8, _mm256_loadu_ps(from + i + 8));
#elif defined(__SSE2__)
        for (uint64_t j = i; j < i + 16; j += 4) {
            _mm_stream_ps(to + j, _mm_loadu_ps(from + j));
        }
#else
        memcpy(to + i, from + i, 16 * sizeof(*to));
#endif
    }
}

static void vector_streamed(void)
{
#ifdef __SSE2__
    _mm_sfence(); /* such writes may overtake others */
#endif
}

extern const struct kelp_optimizer_loops KELP_LOOPS_NAME(kelp__optimizer_loops);
const struct kelp_optimizer_loops KELP_LOOPS_NAME(kelp__optimizer_loops) = {
    .sgd = sgd,
    .adam = adam,
    .adagrad = adagrad,
    .rmsprop = rmsprop,
    .adadelta = adadelta,
    .lamb = lamb,
    .lamb_direction = lamb_direction,
    .leaf_squares = leaf_squares,
    .statistic = statistic,
    .vector_finite = vector_finite,
    .vector_add = vector_add,
    .vector_sum = vector_sum,
    .vector_stream = vector_stream,
    .vector_streamed = vector_streamed,
};

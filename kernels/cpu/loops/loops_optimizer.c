/*
 * Optimizer updates, element by element (kernels/cpu/loops/updates.h), in one pass over each array.
 * The flags of a step are constants in each copy of the loop, so that the compiler sees code
 * without branches and vectorises it.
 */
#include "kernels/cpu/loops/loops.h"
#include "kernels/cpu/loops/updates.h"

#include <math.h>
#include <string.h>
#ifdef __SSE2__
#include <immintrin.h>
#endif

INLINE bool sgd_loop(const struct kelp_optimizer_step *step_,
                     const struct kelp_optimizer_buffers *buffers, uint64_t count,
                     const struct kelp__sgd_flags flags)
{
    const struct kelp_optimizer_step step = *step_; /* a copy: no written array aliases it */
    const float *restrict weights = buffers->weights;
    const float *restrict gradient = buffers->gradient;
    float *restrict weights_next = buffers->weights_next;
    float *restrict momentum_buffer = flags.momentum ? buffers->slots[0] : NULL;
    uint32_t bad = 0;
    for (uint64_t i = 0; i < count; i++) {
        bad |= kelp__update_not_finite(gradient[i]);
        float m = flags.momentum && !flags.first ? momentum_buffer[i] : 0.0f;
        weights_next[i] = kelp__update_sgd(&step, flags, gradient[i], weights[i], &m);
        if (flags.momentum) {
            momentum_buffer[i] = m;
        }
    }
    return bad == 0;
}

static bool sgd(const struct kelp_optimizer_step *step,
                const struct kelp_optimizer_buffers *buffers, uint64_t count)
{
    const bool decay = step->weight_decay != 0.0f;
    if (step->momentum == 0.0f) {
        return decay ? sgd_loop(step, buffers, count, (struct kelp__sgd_flags){.decay = true})
                     : sgd_loop(step, buffers, count, (struct kelp__sgd_flags){.decay = false});
    }
    switch ((decay ? 4 : 0) + (step->nesterov ? 2 : 0) + (step->first ? 1 : 0)) {
#define CASE(number, decay_, nesterov_, first_)                                                    \
    case number:                                                                                   \
        return sgd_loop(                                                                           \
            step, buffers, count,                                                                  \
            (struct kelp__sgd_flags){                                                              \
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

INLINE bool adam_loop(const struct kelp_optimizer_step *step_,
                      const struct kelp_optimizer_buffers *buffers, uint64_t count,
                      const enum kelp__decay_kind decay_kind, const bool amsgrad)
{
    const struct kelp_optimizer_step step = *step_; /* a copy: no written array aliases it */
    const float *restrict weights = buffers->weights;
    const float *restrict gradient = buffers->gradient;
    float *restrict weights_next = buffers->weights_next;
    float *restrict exp_avg = buffers->slots[0];
    float *restrict exp_avg_sq = buffers->slots[1];
    float *restrict max_exp_avg_sq = amsgrad ? buffers->slots[2] : NULL;
    uint32_t bad = 0;
    for (uint64_t i = 0; i < count; i++) {
        bad |= kelp__update_not_finite(gradient[i]);
        float m = exp_avg[i], v = exp_avg_sq[i], largest = amsgrad ? max_exp_avg_sq[i] : 0.0f;
        weights_next[i] = kelp__update_adam(&step, decay_kind, amsgrad, gradient[i], weights[i], &m,
                                            &v, &largest);
        exp_avg[i] = m;
        exp_avg_sq[i] = v;
        if (amsgrad) {
            max_exp_avg_sq[i] = largest;
        }
    }
    return bad == 0;
}

static bool adam(const struct kelp_optimizer_step *step,
                 const struct kelp_optimizer_buffers *buffers, uint64_t count)
{
    if (step->weight_decay == 0.0f) {
        return step->amsgrad ? adam_loop(step, buffers, count, KELP_DECAY_NONE, true)
                             : adam_loop(step, buffers, count, KELP_DECAY_NONE, false);
    }
    if (step->kind == KELP_OPTIMIZER_ADAMW) {
        return step->amsgrad ? adam_loop(step, buffers, count, KELP_DECAY_WEIGHTS, true)
                             : adam_loop(step, buffers, count, KELP_DECAY_WEIGHTS, false);
    }
    return step->amsgrad ? adam_loop(step, buffers, count, KELP_DECAY_GRADIENT, true)
                         : adam_loop(step, buffers, count, KELP_DECAY_GRADIENT, false);
}

INLINE bool adagrad_loop(const struct kelp_optimizer_step *step_,
                         const struct kelp_optimizer_buffers *buffers, uint64_t count,
                         const bool decays)
{
    const struct kelp_optimizer_step step = *step_; /* a copy: no written array aliases it */
    const float *restrict weights = buffers->weights;
    const float *restrict gradient = buffers->gradient;
    float *restrict weights_next = buffers->weights_next;
    float *restrict sum = buffers->slots[0];
    uint32_t bad = 0;
    for (uint64_t i = 0; i < count; i++) {
        bad |= kelp__update_not_finite(gradient[i]);
        float s = sum[i];
        weights_next[i] = kelp__update_adagrad(&step, decays, gradient[i], weights[i], &s);
        sum[i] = s;
    }
    return bad == 0;
}

static bool adagrad(const struct kelp_optimizer_step *step,
                    const struct kelp_optimizer_buffers *buffers, uint64_t count)
{
    return step->weight_decay != 0.0f ? adagrad_loop(step, buffers, count, true)
                                      : adagrad_loop(step, buffers, count, false);
}

INLINE bool rmsprop_loop(const struct kelp_optimizer_step *step_,
                         const struct kelp_optimizer_buffers *buffers, uint64_t count,
                         const struct kelp__rmsprop_flags flags)
{
    const struct kelp_optimizer_step step = *step_; /* a copy: no written array aliases it */
    const float *restrict weights = buffers->weights;
    const float *restrict gradient = buffers->gradient;
    float *restrict weights_next = buffers->weights_next;
    float *restrict square_avg = buffers->slots[0];
    float *restrict momentum_buffer = flags.momentum ? buffers->slots[1] : NULL;
    float *restrict grad_avg = flags.centered ? buffers->slots[flags.momentum ? 2 : 1] : NULL;
    uint32_t bad = 0;
    for (uint64_t i = 0; i < count; i++) {
        bad |= kelp__update_not_finite(gradient[i]);
        float v = square_avg[i], m = flags.momentum ? momentum_buffer[i] : 0.0f;
        float a = flags.centered ? grad_avg[i] : 0.0f;
        weights_next[i] = kelp__update_rmsprop(&step, flags, gradient[i], weights[i], &v, &m, &a);
        square_avg[i] = v;
        if (flags.momentum) {
            momentum_buffer[i] = m;
        }
        if (flags.centered) {
            grad_avg[i] = a;
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
                            (struct kelp__rmsprop_flags){.decay = (decay_),                        \
                                                         .centered = (centered_),                  \
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

INLINE bool adadelta_loop(const struct kelp_optimizer_step *step_,
                          const struct kelp_optimizer_buffers *buffers, uint64_t count,
                          const bool decays)
{
    const struct kelp_optimizer_step step = *step_; /* a copy: no written array aliases it */
    const float *restrict weights = buffers->weights;
    const float *restrict gradient = buffers->gradient;
    float *restrict weights_next = buffers->weights_next;
    float *restrict square_avg = buffers->slots[0];
    float *restrict acc_delta = buffers->slots[1];
    uint32_t bad = 0;
    for (uint64_t i = 0; i < count; i++) {
        bad |= kelp__update_not_finite(gradient[i]);
        float v = square_avg[i], d = acc_delta[i];
        weights_next[i] = kelp__update_adadelta(&step, decays, gradient[i], weights[i], &v, &d);
        square_avg[i] = v;
        acc_delta[i] = d;
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
    const struct kelp_optimizer_step step = *step_; /* a copy: no written array aliases it */
    const float *restrict weights = buffers->weights;
    const float *restrict gradient = buffers->gradient;
    float *restrict weights_next = buffers->weights_next;
    float *restrict exp_avg = buffers->slots[0];
    float *restrict exp_avg_sq = buffers->slots[1];
    const float rate = (float)((double)step.lr * ratio);
    uint32_t bad = 0;
    for (uint64_t i = 0; i < count; i++) {
        bad |= kelp__update_not_finite(gradient[i]);
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

/* The halves are added repeatedly: element i to i + 8, then i + 4, i + 2, i + 1. Vectors of any
 * width give the same result. */
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
    if (momentum == 0.0f) { /* held: adding 0 would change -0, and spread a NaN */
        memcpy(weights_next, weights, count * sizeof(*weights));
        return true;
    }
    for (uint64_t i = 0; i < count; i++) {
        bad |= kelp__update_not_finite(gradient[i]);
        weights_next[i] = weights[i] * keep + momentum * gradient[i];
    }
    return bad == 0;
}

static bool vector_finite(const float *values, uint64_t count)
{
    uint32_t bad = 0;
    for (uint64_t i = 0; i < count; i++) {
        bad |= kelp__update_not_finite(values[i]);
    }
    return bad == 0;
}

/* At any alignment. */
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

/* C cannot express stores that bypass the caches. */
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
    _mm_sfence(); /* orders such stores before later ones */
#endif
}

extern const struct kelp_optimizer_loops KELP_LOOPS_NAME(kelp__optimizer_loops);
void KELP_LOOP(optimizer)(struct kelp_stream *stream, const struct kelp_optimizer_run *p)
{
    const struct kelp_optimizer_buffers buffers = {
        .weights = p->weights,
        .gradient = p->gradient,
        .weights_next = p->weights_next,
        .slots = {p->slots[0], p->slots[1], p->slots[2]}};
    if (!kelp__optimizer_update(&KELP_LOOPS_NAME(kelp__optimizer_loops), &p->step, &buffers,
                                p->count)) {
        *p->not_finite |= 1;
    }
}

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

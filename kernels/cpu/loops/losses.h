/*
 * Elementwise losses and their slopes, from which the CPU's loops and the GPU's kernels compute the
 * same bits. Private to kernels/.
 */
#ifndef KELP_KERNELS_CPU_LOOPS_LOSSES_H
#define KELP_KERNELS_CPU_LOOPS_LOSSES_H

#include "kernels/cpu/loops/functions.h"
#include "kernels/operators.h"

INLINE double kelp__loss_absolute(double x)
{
    return __builtin_fabs(x);
}

/* The logarithm in bce: PyTorch bounds it, so that a prediction that is wrong for certain costs
 * 100. */
INLINE double kelp__loss_bounded_log(double x)
{
    const double value = kelp__math_log(x);
    return value < -100.0 ? -100.0 : value;
}

/* Not divided by the number of elements yet; any elementwise loss except quantiles. Differences
 * are float32. */
INLINE double kelp__loss_of(const int kind, double beta, float output, float target)
{
    const double d = (double)(output - target), magnitude = kelp__loss_absolute(d);
    switch (kind) {
    case KELP_LOSS_SMOOTH_L1:
        return magnitude < beta ? 0.5 * d * d / beta : magnitude - 0.5 * beta;
    case KELP_LOSS_HUBER:
        return magnitude <= beta ? 0.5 * d * d : beta * (magnitude - 0.5 * beta);
    case KELP_LOSS_BCE: {
        const double p = (double)output, t = (double)target;
        return -(t * kelp__loss_bounded_log(p) + (1.0 - t) * kelp__loss_bounded_log(1.0 - p));
    }
    case KELP_LOSS_BCE_WITH_LOGITS: {
        const double x = (double)output, t = (double)target;
        const double positive = x <= 0.0 ? 0.0 : x;
        const float e = kelp__math_exp(output < 0.0f ? output : -output);
        return positive - x * t + kelp__math_log(1.0 + (double)e);
    }
    case KELP_LOSS_MAE:
        return magnitude;
    default:
        return d * d;
    }
}

/* The gradient of kelp__loss_of(). */
INLINE float kelp__loss_slope(const int kind, float beta, float output, float target)
{
    const float d = output - target;
    /* d itself when it is zero or NaN, so that NaN is not lost. */
    const float sign = d > 0.0f ? 1.0f : (d < 0.0f ? -1.0f : d);
    const float magnitude = d < 0.0f ? -d : d;
    switch (kind) {
    case KELP_LOSS_MAE:
        return sign;
    case KELP_LOSS_SMOOTH_L1: {
        const float quotient = d / beta;
        return magnitude < beta ? quotient : sign;
    }
    case KELP_LOSS_HUBER:
        return magnitude <= beta ? d : beta * sign;
    case KELP_LOSS_BCE: {
        const float variance = (1.0f - output) * output;
        return d / (variance < 1e-12f ? 1e-12f : variance);
    }
    case KELP_LOSS_BCE_WITH_LOGITS:
        return kelp__math_sigmoid(output) - target;
    default:
        return 2.0f * d;
    }
}

/* The gradient of max(q e, (q - 1) e), where e is the target minus the output. */
INLINE float kelp__loss_quantile_slope(float q, float output, float target)
{
    const float e = target - output;
    /* At the corner the mean of both slopes, as in PyTorch; NaN stays. */
    const float at_corner = e == 0.0f ? 0.5f - q : e;
    return e > 0.0f ? -q : (e < 0.0f ? 1.0f - q : at_corner);
}

#endif

#include "worker/data/text/plain_math.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

/* Sum of coefficients[i] * x^i, by Horner's rule. */
static double polynomial(double x, const double *coefficients, size_t count)
{
    double sum = 0.0;
    for (size_t i = count; i > 0; i--) {
        sum = sum * x + coefficients[i - 1];
    }
    return sum;
}

/*
 * x = m 2^e with m from sqrt(1/2) to sqrt(2): log x = e log 2 + 2 artanh(f), f = (m - 1) / (m + 1),
 * by artanh(f) = f + f^3/3 + f^5/5 + ...; f^2 is below 0.03, so that 11 terms are enough. log 2 is
 * in two pieces, of which the first times e is exact.
 */
double kelp_plain_log(double x)
{
    static const double series[] = {2.0,      2.0 / 3,  2.0 / 5,  2.0 / 7,  2.0 / 9,  2.0 / 11,
                                    2.0 / 13, 2.0 / 15, 2.0 / 17, 2.0 / 19, 2.0 / 21, 2.0 / 23};
    static const double log2_high = 0x1.62e42feep-1;
    static const double log2_low = 0x1.a39ef35793c76p-33;
    if (!isfinite(x) || x <= 0.0) {
        return (double)NAN;
    }
    int exponent = 0;
    double m = frexp(x, &exponent); /* exact */
    if (m < 0.70710678118654752) {
        m *= 2.0;
        exponent--;
    }
    double f = (m - 1.0) / (m + 1.0);
    double tail = f * polynomial(f * f, series, KELP_ARRAY_COUNT(series));
    return (double)exponent * log2_high + (tail + (double)exponent * log2_low);
}

/* Reduce an angle to [-pi/4, pi/4] by whole quarters of the circle. pi/2 is in three pieces of
 * 33 bits and a rest, so that products with up to 2^20 quarters are exact. */
static double turn(double x, int *ret_quarter)
{
    static const double half_pi_1 = 1.57079632673412561417e+00;
    static const double half_pi_2 = 6.07710050630396597660e-11;
    static const double half_pi_3 = 2.02226624879595063154e-21;
    double quarters = floor(x * 0.63661977236758134308 + 0.5);
    *ret_quarter = (int)((int64_t)quarters & 3);
    return ((x - quarters * half_pi_1) - quarters * half_pi_2) - quarters * half_pi_3;
}

static double sine_near_zero(double x)
{
    static const double series[] = {1.0,
                                    -1.0 / 6,
                                    1.0 / 120,
                                    -1.0 / 5040,
                                    1.0 / 362880,
                                    -1.0 / 39916800,
                                    1.0 / 6227020800.0,
                                    -1.0 / 1307674368000.0,
                                    1.0 / 355687428096000.0};
    return x * polynomial(x * x, series, KELP_ARRAY_COUNT(series));
}

static double cosine_near_zero(double x)
{
    static const double series[] = {1.0,
                                    -1.0 / 2,
                                    1.0 / 24,
                                    -1.0 / 720,
                                    1.0 / 40320,
                                    -1.0 / 3628800,
                                    1.0 / 479001600.0,
                                    -1.0 / 87178291200.0,
                                    1.0 / 20922789888000.0,
                                    -1.0 / 6402373705728000.0};
    return polynomial(x * x, series, KELP_ARRAY_COUNT(series));
}

static double circle(double x, int quarters_ahead)
{
    if (!isfinite(x) || fabs(x) > KELP_PLAIN_ANGLE_MAX) {
        return (double)NAN;
    }
    int quarter = 0;
    double rest = turn(x, &quarter);
    quarter = (quarter + quarters_ahead) & 3;
    double value = (quarter & 1) != 0 ? cosine_near_zero(rest) : sine_near_zero(rest);
    return (quarter & 2) != 0 ? -value : value;
}

double kelp_plain_sin(double x)
{
    return circle(x, 0);
}

double kelp_plain_cos(double x)
{
    return circle(x, 1);
}

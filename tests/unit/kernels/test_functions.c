/* Our own exponentials and their like against libm's in double: within the stated error over every
 * magnitude, right at the ends of the range, and NaN for NaN. */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "kernels/cpu/loops/functions.h"
#include "tests/lib/suite.h"

/* Distance in units of the last place of a float. */
static double distance(float value, double wanted)
{
    const float rounded = (float)wanted;
    if (isinf(value) && isinf(rounded)) {
        return signbit(value) == signbit(rounded) ? 0.0 : INFINITY;
    }
    const double unit = (double)nextafterf(fabsf(rounded), INFINITY) - fabs((double)rounded);
    return fabs((double)value - wanted) / unit;
}

static float f_exp(float x)
{
    return kelp__math_exp(x);
}
static float f_expm1(float x)
{
    return kelp__math_expm1(x);
}
static float f_sigmoid(float x)
{
    return kelp__math_sigmoid(x);
}
static float f_tanh(float x)
{
    return kelp__math_tanh(x);
}
static float f_erf(float x)
{
    return kelp__math_erf(x);
}
static double d_sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

static const struct {
    const char *name;
    float (*ours)(float x);
    double (*libm)(double x);
    float low, high; /* where the error holds */
    double error;
} functions[] = {
    {"exp", f_exp, exp, -87.0f, 89.0f, 1.5},
    {"expm1", f_expm1, expm1, -INFINITY, 0.0f, 2.0},
    {"sigmoid", f_sigmoid, d_sigmoid, -87.0f, INFINITY, 3.0},
    {"tanh", f_tanh, tanh, -INFINITY, INFINITY, 2.0},
    {"erf", f_erf, erf, -INFINITY, INFINITY, 3.0},
};

KELP_LOOP_TEST(test_errors, 0, (sizeof(functions) / sizeof(functions[0])))
{
    for (uint64_t bits = (uint64_t)_i; bits < UINT64_C(1) << 32; bits += 20011) {
        const float x = kelp__math_bits_float((uint32_t)bits);
        const float value = functions[_i].ours(x);
        const bool inside = x >= functions[_i].low && x <= functions[_i].high;
        if (isnan(x) ? !isnan(value)
                     : inside && !(distance(value, functions[_i].libm((double)x)) <=
                                   functions[_i].error)) {
            ck_abort_msg("%s(%a) is %a", functions[_i].name, (double)x, (double)value);
        }
    }
}

KELP_TEST(test_ends)
{
    ck_assert_float_eq(kelp__math_exp(0.0f), 1.0f);
    ck_assert_float_eq(kelp__math_exp(-INFINITY), 0.0f);
    ck_assert_float_eq(kelp__math_exp(-104.0f), 0.0f);
    ck_assert_float_eq(kelp__math_exp(INFINITY), INFINITY);
    ck_assert_float_eq(kelp__math_exp(200.0f), INFINITY);
    ck_assert_float_eq_tol(kelp__math_exp(-100.0f) / expf(-100.0f), 1.0f, 0.05f); /* subnormal */
    ck_assert_float_eq(kelp__math_sigmoid(-INFINITY), 0.0f);
    ck_assert_float_eq(kelp__math_sigmoid(INFINITY), 1.0f);
    ck_assert_float_eq(kelp__math_tanh(-INFINITY), -1.0f);
    ck_assert_float_eq(kelp__math_erf(INFINITY), 1.0f);
    ck_assert_float_eq(kelp__math_expm1(-INFINITY), -1.0f);
}

KELP_TEST(test_log)
{
    uint64_t state = 1;
    for (uint32_t i = 0; i < 1000000; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        uint64_t bits = (state ^ state >> 29) >> 1; /* any positive number */
        if (i % 2 == 0) {                           /* near 1, where it is smallest */
            bits = UINT64_C(0x3fe0000000000000) + (bits >> 10);
        }
        double x;
        memcpy(&x, &bits, sizeof(x));
        if (!isfinite(x) || x == 0.0) {
            continue;
        }
        const double wanted = log(x), unit = nextafter(fabs(wanted), INFINITY) - fabs(wanted);
        if (!(fabs(kelp__math_log(x) - wanted) <= 2.0 * unit)) {
            ck_abort_msg("log(%a) is %a", x, kelp__math_log(x));
        }
    }
    ck_assert_double_eq(kelp__math_log(1.0), 0.0);
    ck_assert_double_eq(kelp__math_log(0.0), -INFINITY);
    ck_assert_double_eq(kelp__math_log(INFINITY), INFINITY);
    ck_assert_double_eq_tol(kelp__math_log(0x1p-1074), log(0x1p-1074), 1e-12);
    ck_assert(isnan(kelp__math_log(-1.0)) && isnan(kelp__math_log(NAN)) &&
              isnan(kelp__math_log(-INFINITY)));
}

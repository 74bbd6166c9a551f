/*
 * Functions of one number from + - * / and bit operations only, without branches, so that loops
 * over them are vectorised: the same bits with every instruction set and C library, which libm does
 * not promise. Polynomials interpolate at Chebyshev nodes; errors are in units of the last place
 * (tests/unit/kernels/test_functions.c). NaN gives NaN. Private to kernels/ and its tests.
 */
#ifndef KELP_KERNELS_CPU_LOOPS_FUNCTIONS_H
#define KELP_KERNELS_CPU_LOOPS_FUNCTIONS_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define INLINE static __host__ __device__ __forceinline__
#else
#define INLINE static inline __attribute__((always_inline))
#endif

INLINE uint32_t kelp__math_float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

INLINE float kelp__math_bits_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* e^x = 2^n e^r, |r| <= ln 2 / 2: the two factors of 2^n, so that neither leaves the range, and
 * e^r - 1. */
struct kelp__math_exp_parts {
    float power_a, power_b, rest;
};
INLINE struct kelp__math_exp_parts kelp__math_exp_parts(float x)
{
    /* Beyond these bounds e^x is 0 or infinite. */
    const float low = x < -104.0f ? -104.0f : x;
    const float clamped = low > 89.0f ? 89.0f : low;
    /* Adding 1.5 x 2^23 rounds to the nearest whole number, which is then in the low bits. */
    const float shifted = clamped * 0x1.715476p+0f + 0x1.8p23f;
    const float n = shifted - 0x1.8p23f;
    /* ln 2 in two parts, the first with few enough bits that n times it is exact. */
    const float r = (clamped - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
    const float q =
        0.5f + r * (0.16666577f + r * (0.041666555f + r * (0.0083631776f + r * 0.0013926182f)));
    const uint32_t whole = kelp__math_float_bits(shifted) - 0x4b400000u;
    const uint32_t half = (uint32_t)((int32_t)whole >> 1);
    return (struct kelp__math_exp_parts){
        .power_a = kelp__math_bits_float((half + 127u) << 23),
        .power_b = kelp__math_bits_float((whole - half + 127u) << 23),
        .rest = r + r * r * q,
    };
}

/* e^x, within 1.5. */
INLINE float kelp__math_exp(float x)
{
    const struct kelp__math_exp_parts parts = kelp__math_exp_parts(x);
    return (1.0f + parts.rest) * parts.power_a * parts.power_b;
}

/* e^x - 1 for x <= 0, within 2. */
INLINE float kelp__math_expm1(float x)
{
    const struct kelp__math_exp_parts parts = kelp__math_exp_parts(x);
    const float power = parts.power_a * parts.power_b;
    return power * parts.rest + (power - 1.0f);
}

/* 1 / (1 + e^-x), within 3. */
INLINE float kelp__math_sigmoid(float x)
{
    return 1.0f / (1.0f + kelp__math_exp(-x));
}

/* Within 2. */
INLINE float kelp__math_tanh(float x)
{
    const float u = x * x;
    const float p =
        x + x * u *
                (-0.33333329f +
                 u * (0.1333277f + u * (-0.05385091f + u * (0.020997179f - u * 0.0060967142f))));
    const float magnitude = x < 0.0f ? -x : x;
    const float large = 1.0f - 2.0f / (kelp__math_exp(2.0f * magnitude) + 1.0f);
    const float signed_large = x < 0.0f ? -large : large;
    return magnitude < 0.625f ? p : signed_large;
}

/* Within 3. Above 1 it is 1 - e^-g(|x|) with g = -log(erfc). */
INLINE float kelp__math_erf(float x)
{
    const float u = x * x;
    const float p =
        x * (1.1283791658f +
             u * (-0.37612627f +
                  u * (0.11283595f +
                       u * (-0.026854212f +
                            u * (0.0051890874f + u * (-0.00080168643f + u * 7.8758751e-05f))))));
    const float magnitude = x < 0.0f ? -x : x;
    const float v = magnitude > 4.0f ? 4.0f : magnitude;
    const float g =
        -0.00032013805f +
        v * (1.1302334f +
             v * (0.63182606f +
                  v * (0.11008008f + v * (-0.026421136f +
                                          v * (0.0047595963f +
                                               v * (-0.00059680563f +
                                                    v * (4.6058042e-05f - v * 1.6371514e-06f)))))));
    const float large = 1.0f - kelp__math_exp(-g);
    const float signed_large = x < 0.0f ? -large : large;
    return magnitude < 1.0f ? p : signed_large;
}

/* The natural logarithm, within 2; -infinity for 0, NaN below. */
INLINE double kelp__math_log(double x)
{
    const double infinity = __builtin_inf();
    const double scaled = x < 0x1p-1000 ? x * 0x1p64 : x; /* makes denormal numbers normal */
    uint64_t bits;
    memcpy(&bits, &scaled, sizeof(bits));
    /* x = 2^n m, m between sqrt(1/2) and sqrt(2). */
    const int64_t n = (int64_t)(bits - UINT64_C(0x3fe6a09e667f3bcd)) >> 52;
    bits -= (uint64_t)n << 52;
    double m;
    memcpy(&m, &bits, sizeof(m));
    const double s = (m - 1.0) / (m + 1.0), u = s * s;
    const double p =
        0.3333333333333333 +
        u * (0.2000000000000265 +
             u * (0.14285714284349849 +
                  u * (0.11111111402644654 +
                       u * (0.09090878169432294 +
                            u * (0.07694071798968714 +
                                 u * (0.06611735690702952 + u * 0.06753347763924251))))));
    const double exponent = (double)n - (x < 0x1p-1000 ? 64.0 : 0.0);
    const double value = exponent * 0x1.62e42fefa39efp-1 + (2.0 * s + 2.0 * s * u * p);
    if (!(x > 0.0)) {
        return x == 0.0 ? -infinity : (x - x) / (x - x); /* NaN stays NaN */
    }
    return x == infinity ? infinity : value;
}

#endif

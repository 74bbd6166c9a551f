/*
 * Sums over a row in an order that suits vectors of any width: eight running sums, element i in sum
 * i % 8, which are then added pairwise; then the last elements, fewer than eight. Private to the
 * loops of kernels/cpu.
 */
#ifndef KELP_KERNELS_CPU_LOOPS_SUMS_H
#define KELP_KERNELS_CPU_LOOPS_SUMS_H

#include <stdint.h>

#include "kernels/cpu/loops/functions.h"

#define LANES 8u

/* Eight floats that the compiler keeps in registers of the available width; memcpy() loads them
 * at any alignment. */
typedef float eight __attribute__((vector_size(32)));

INLINE float kelp__sums_add_up(const eight *sums)
{
    const eight s = *sums;
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

INLINE double kelp__sums_add_up_double(const double sums[LANES])
{
    return ((sums[0] + sums[4]) + (sums[2] + sums[6])) +
           ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

INLINE float kelp__sums_row_sum(const float *x, uint64_t count)
{
    const uint64_t whole = count - count % LANES;
    eight sums = {0}, values;
    for (uint64_t i = 0; i < whole; i += LANES) {
        memcpy(&values, x + i, sizeof(values));
        sums = sums + values;
    }
    float sum = kelp__sums_add_up(&sums);
    for (uint64_t i = whole; i < count; i++) {
        sum = sum + x[i];
    }
    return sum;
}

INLINE float kelp__sums_row_dot(const float *a, const float *b, uint64_t count)
{
    const uint64_t whole = count - count % LANES;
    eight sums = {0}, first, second;
    for (uint64_t i = 0; i < whole; i += LANES) {
        memcpy(&first, a + i, sizeof(first));
        memcpy(&second, b + i, sizeof(second));
        sums = sums + first * second;
    }
    float sum = kelp__sums_add_up(&sums);
    for (uint64_t i = whole; i < count; i++) {
        sum = sum + a[i] * b[i];
    }
    return sum;
}

/* The largest element; undefined for NaN, which the exponentials propagate anyway. */
INLINE float kelp__sums_row_max(const float *x, uint64_t count)
{
    float largest[LANES];
    const float lowest = -__builtin_inff();
    for (uint32_t j = 0; j < LANES; j++) {
        largest[j] = lowest;
    }
    const uint64_t whole = count - count % LANES;
    for (uint64_t i = 0; i < whole; i += LANES) {
        for (uint32_t j = 0; j < LANES; j++) {
            largest[j] = x[i + j] > largest[j] ? x[i + j] : largest[j];
        }
    }
    for (uint64_t i = whole; i < count; i++) {
        largest[i - whole] = x[i] > largest[i - whole] ? x[i] : largest[i - whole];
    }
    float all = lowest;
    for (uint32_t j = 0; j < LANES; j++) {
        all = largest[j] > all ? largest[j] : all;
    }
    return all;
}

#endif

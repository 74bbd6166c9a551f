/* Conversion between bfloat16 and float32 in integers, which every instruction set has. */
#include <string.h>

#include "kernels/cpu/loops/functions.h"
#include "kernels/cpu/loops/loops.h"

#define PACKED_BYTES sizeof(uint16_t)

/* The upper half of the result is the bfloat16, the lower half is zero. Without a branch, so
 * that it vectorises. A carry out of the fraction correctly increments the exponent. */
INLINE uint32_t rounded(uint32_t bits)
{
    const uint32_t nearest = bits + 0x7fffu + ((bits >> 16) & 1u);
    const uint32_t quiet = bits | 0x00400000u;
    const uint32_t nan = (bits & 0x7fffffffu) > 0x7f800000u ? ~0u : 0u;

    return ((quiet & nan) | (nearest & ~nan)) & 0xffff0000u;
}

INLINE uint16_t packed_at(const char *packed, uint64_t i)
{
    uint16_t half;
    memcpy(&half, packed + i * PACKED_BYTES, sizeof(half));
    return half;
}

INLINE void put_packed(char *packed, uint64_t i, uint32_t bits)
{
    const uint16_t half = (uint16_t)(bits >> 16);
    memcpy(packed + i * PACKED_BYTES, &half, sizeof(half));
}

static void round_values(float *values, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        values[i] = kelp__math_bits_float(rounded(kelp__math_float_bits(values[i])));
    }
}

static void add(float *restrict sum, const float *restrict other, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        sum[i] = kelp__math_bits_float(rounded(kelp__math_float_bits(sum[i] + other[i])));
    }
}

static void add_packed(void *sum, const void *other, uint64_t count)
{
    char *restrict to = sum;
    const char *restrict from = other;
    for (uint64_t i = 0; i < count; i++) {
        const float left = kelp__math_bits_float((uint32_t)packed_at(to, i) << 16);
        const float right = kelp__math_bits_float((uint32_t)packed_at(from, i) << 16);
        put_packed(to, i, rounded(kelp__math_float_bits(left + right)));
    }
}

static void pack(const float *restrict values, uint64_t count, void *packed)
{
    char *restrict to = packed;
    for (uint64_t i = 0; i < count; i++) {
        put_packed(to, i, rounded(kelp__math_float_bits(values[i])));
    }
}

static void unpack(const void *packed, uint64_t count, float *restrict values)
{
    const char *restrict from = packed;
    for (uint64_t i = 0; i < count; i++) {
        values[i] = kelp__math_bits_float((uint32_t)packed_at(from, i) << 16);
    }
}

extern const struct kelp_bfloat16_loops KELP_LOOPS_NAME(kelp__bfloat16_loops);
const struct kelp_bfloat16_loops KELP_LOOPS_NAME(kelp__bfloat16_loops) = {
    .round = round_values,
    .add = add,
    .add_packed = add_packed,
    .pack = pack,
    .unpack = unpack,
};

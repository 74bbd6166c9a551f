/*
 * bfloat16, for gradients that travel in half the bytes (transport.precision): the upper half of a
 * float32, in the byte order of the machine. Rounding is to the nearest, ties to the even one; what
 * is beyond the largest becomes infinite. A NaN stays one, quiet, with its sign and leading bits.
 *
 * Conversions are done in integers, so that no processor has bits of its own. `packed` values may
 * be unaligned bytes of a received message.
 */
#ifndef KELP_KERNELS_BFLOAT16_H
#define KELP_KERNELS_BFLOAT16_H

#include <stdint.h>

/* values[i] becomes the bfloat16 nearest to it, as a float32. */
void kelp_bfloat16_round(float *values, uint64_t count);

/* sum[i] = round(sum[i] + other[i]), added in float32. */
void kelp_bfloat16_add(float *sum, const float *other, uint64_t count);

/* The same of packed values: packed sums of what kelp_bfloat16_add() adds, to the bit. */
void kelp_bfloat16_add_packed(void *sum, const void *other, uint64_t count);

/* Rounds. packed: 2 * count bytes, not overlapping values. */
void kelp_bfloat16_pack(const float *values, uint64_t count, void *packed);

/* The float32 of the same value. */
void kelp_bfloat16_unpack(const void *packed, uint64_t count, float *values);

#endif

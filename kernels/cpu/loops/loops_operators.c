/*
 * The element-wise loops of the CPU's operators; kernels/operators.h describes each.
 */
#include "kernels/cpu/loops/loops.h"

#include <math.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

INLINE void fill(float *values, float value, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        values[i] = value;
    }
}

void KELP_LOOP(fill)(struct kelp_stream *stream, float *values, float value, uint64_t count)
{
    fill(values, value, count);
}

void KELP_LOOP(axpy)(struct kelp_stream *stream, float *restrict y, float alpha,
                     const float *restrict x, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        y[i] = y[i] + alpha * x[i];
    }
}

void KELP_LOOP(add)(struct kelp_stream *stream, float *y, const float *a, const float *b,
                    uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        y[i] = a[i] + b[i];
    }
}

void KELP_LOOP(subtract)(struct kelp_stream *stream, float *y, const float *a, const float *b,
                         uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        y[i] = a[i] - b[i];
    }
}

void KELP_LOOP(bias_add)(struct kelp_stream *stream, const struct kelp_bias *bias)
{
    const float *restrict values = bias->bias;
    for (uint32_t r = 0; r < bias->rows; r++) {
        float *restrict row = bias->matrix + r * bias->ld;
        for (uint32_t c = 0; c < bias->columns; c++) {
            row[c] = row[c] + values[c];
        }
    }
}

/* A strip of columns at a time, with its sums in registers. */
#define STRIP 32
INLINE void bias_strip(const struct kelp_bias_gradient *bias, uint32_t first, const uint32_t width)
{
    float sums[STRIP] = {0};
    for (uint32_t r = 0; r < bias->rows; r++) {
        const float *row = bias->matrix + r * bias->ld + first;
        for (uint32_t c = 0; c < width; c++) {
            sums[c] = sums[c] + row[c];
        }
    }
    float *restrict out = bias->bias + first;
    for (uint32_t c = 0; c < width; c++) {
        out[c] = bias->write == KELP_ACCUMULATE ? out[c] + sums[c] : sums[c];
    }
}

void KELP_LOOP(bias_gradient)(struct kelp_stream *stream, const struct kelp_bias_gradient *bias)
{
    uint32_t c = 0;
    for (; c + STRIP <= bias->columns; c += STRIP) {
        bias_strip(bias, c, STRIP);
    }
    if (c < bias->columns) {
        bias_strip(bias, c, bias->columns - c);
    }
}

/* Eight floats that the compiler keeps in registers of the available width; memcpy() loads and
 * stores them at any alignment. */
typedef float eight __attribute__((vector_size(32)));

INLINE void load(eight *to, const float *from)
{
    memcpy(to, from, sizeof(*to));
}

/* sums[t] = padded[t] + ... + padded[t + width - 1], ascending, for 32 of t at once. */
INLINE void moving_strip(float *restrict sums, const float *restrict padded, uint32_t width)
{
    eight acc0 = {0}, acc1 = {0}, acc2 = {0}, acc3 = {0}, x0, x1, x2, x3;
    for (uint32_t k = 0; k < width; k++) {
        load(&x0, padded + k);
        load(&x1, padded + k + 8);
        load(&x2, padded + k + 16);
        load(&x3, padded + k + 24);
        acc0 = acc0 + x0;
        acc1 = acc1 + x1;
        acc2 = acc2 + x2;
        acc3 = acc3 + x3;
    }
    memcpy(sums, &acc0, sizeof(acc0));
    memcpy(sums + 8, &acc1, sizeof(acc1));
    memcpy(sums + 16, &acc2, sizeof(acc2));
    memcpy(sums + 24, &acc3, sizeof(acc3));
}

static void moving_sum(float *restrict sums, const float *restrict padded, uint32_t count,
                       uint32_t width)
{
    uint32_t t = 0;
    for (; t + STRIP <= count; t += STRIP) {
        moving_strip(sums + t, padded + t, width);
    }
    for (; t + 8 <= count; t += 8) {
        eight acc = {0}, x;
        for (uint32_t k = 0; k < width; k++) {
            load(&x, padded + t + k);
            acc = acc + x;
        }
        memcpy(sums + t, &acc, sizeof(acc));
    }
    for (; t < count; t++) {
        float acc = 0.0f;
        for (uint32_t k = 0; k < width; k++) {
            acc = acc + padded[t + k];
        }
        sums[t] = acc;
    }
}

void KELP_LOOP(moving_average)(struct kelp_stream *stream,
                               const struct kelp_moving_average *average)
{
    const uint32_t length = average->length, width = average->kernel_size;
    const uint32_t half = (width - 1) / 2;
    const float divisor = (float)width;
    float *restrict padded = average->workspace;
    if (length == 0) {
        return;
    }
    for (uint32_t r = 0; r < average->rows; r++) {
        const float *x = average->x + (uint64_t)r * length;
        float *restrict y = average->y + (uint64_t)r * length;
        fill(padded, x[0], half);
        memcpy(padded + half, x, length * sizeof(*x));
        fill(padded + half + length, x[length - 1], half);
        moving_sum(y, padded, length, width);
        for (uint32_t t = 0; t < length; t++) {
            y[t] = y[t] / divisor;
        }
    }
}

/* First the gradient of the padded row: position j is part of the averages j - width + 1 to j.
 * Then the gradients of the padding, which repeats the first and the last value, are added to
 * those two. */
void KELP_LOOP(moving_average_gradient)(struct kelp_stream *stream,
                                        const struct kelp_moving_average *average)
{
    const uint32_t length = average->length, width = average->kernel_size;
    const uint32_t half = (width - 1) / 2, padded_length = length + 2 * half;
    const float divisor = (float)width;
    float *restrict padded_dy = average->workspace;
    float *restrict padded_dx = average->workspace + length + 2 * (uint64_t)width;
    if (length == 0) {
        return;
    }
    fill(padded_dy, 0.0f, width - 1);
    fill(padded_dy + width - 1 + length, 0.0f, width - 1);
    for (uint32_t r = 0; r < average->rows; r++) {
        memcpy(padded_dy + width - 1, average->x + (uint64_t)r * length, length * sizeof(float));
        moving_sum(padded_dx, padded_dy, padded_length, width);
        for (uint32_t j = 0; j < half; j++) {
            padded_dx[half] = padded_dx[half] + padded_dx[j];
        }
        for (uint32_t j = half + length; j < padded_length; j++) {
            padded_dx[half + length - 1] = padded_dx[half + length - 1] + padded_dx[j];
        }
        float *restrict dx = average->y + (uint64_t)r * length;
        for (uint32_t t = 0; t < length; t++) {
            const float value = padded_dx[half + t] / divisor;
            dx[t] = average->write == KELP_ACCUMULATE ? dx[t] + value : value;
        }
    }
}

/* Tiles, so that both sides stay within a few cache lines. */
#define TILE 16
INLINE void transpose_loop(const struct kelp_transpose *transpose, const bool accumulate)
{
    const uint32_t rows = transpose->rows, columns = transpose->columns;
    for (uint32_t b = 0; b < transpose->batch; b++) {
        const float *restrict x = transpose->x + (uint64_t)b * rows * columns;
        float *restrict y = transpose->y + (uint64_t)b * rows * columns;
        for (uint32_t r0 = 0; r0 < rows; r0 += TILE) {
            const uint32_t r1 = rows - r0 < TILE ? rows : r0 + TILE;
            for (uint32_t c = 0; c < columns; c++) {
                for (uint32_t r = r0; r < r1; r++) {
                    const float value = x[(uint64_t)r * columns + c];
                    float *out = &y[(uint64_t)c * rows + r];
                    *out = accumulate ? *out + value : value;
                }
            }
        }
    }
}

void KELP_LOOP(transpose)(struct kelp_stream *stream, const struct kelp_transpose *transpose)
{
    if (transpose->write == KELP_ACCUMULATE) {
        transpose_loop(transpose, true);
    } else {
        transpose_loop(transpose, false);
    }
}

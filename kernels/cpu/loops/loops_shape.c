/*
 * Operators that move, select and add elements; kernels/operators.h describes each.
 */
#include <string.h>

#include "kernels/copy_plan.h"
#include "kernels/cpu/loops/loops.h"
#include "kernels/cpu/loops/sums.h"

void KELP_LOOP(multiply)(struct kelp_stream *stream, const struct kelp_multiply *multiply)
{
    const float *a = multiply->a, *b = multiply->b;
    float *restrict y = multiply->y;
    if (multiply->write == KELP_OVERWRITE) {
        for (uint64_t i = 0; i < multiply->count; i++) {
            y[i] = a[i] * b[i];
        }
        return;
    }
    for (uint64_t i = 0; i < multiply->count; i++) {
        y[i] = y[i] + a[i] * b[i];
    }
}

struct copy_how {
    float scale;
    bool accumulate;
};

INLINE void copy_line(float *y, uint64_t y_stride, const float *x, uint64_t x_stride,
                      uint64_t count, const struct copy_how how)
{
    for (uint64_t i = 0; i < count; i++) {
        const float value = how.scale * x[i * x_stride];
        y[i * y_stride] = how.accumulate ? y[i * y_stride] + value : value;
    }
}

static void copy_inner(float *y, uint64_t y_stride, const float *x, uint64_t x_stride,
                       uint64_t count, struct copy_how how)
{
    if (y_stride == 1 && x_stride == 1 && how.scale == 1.0f && !how.accumulate) {
        memcpy(y, x, count * sizeof(*y));
    } else if (y_stride == 1 && x_stride == 1 && !how.accumulate) {
        copy_line(y, 1, x, 1, count, (struct copy_how){how.scale, false});
    } else if (y_stride == 1 && x_stride == 1) {
        copy_line(y, 1, x, 1, count, (struct copy_how){how.scale, true});
    } else if (y_stride == 1 && x_stride == 0 && !how.accumulate) {
        copy_line(y, 1, x, 0, count, (struct copy_how){how.scale, false});
    } else {
        copy_line(y, y_stride, x, x_stride, count, how);
    }
}

/* If the dimension in which x is densest is not last, move it second to last, so that these two
 * are walked in tiles. The order of the loops is free. */
static bool plan_tiles(struct kelp__copy_loops *loops)
{
    uint32_t best = loops->rank - 1;
    for (uint32_t i = 0; i < loops->rank; i++) {
        best = loops->x[i] != 0 && loops->x[i] < loops->x[best] ? i : best;
    }
    if (best == loops->rank - 1) {
        return false;
    }
    const uint64_t dim = loops->dims[best], x = loops->x[best], y = loops->y[best];
    for (; best + 2 < loops->rank; best++) {
        loops->dims[best] = loops->dims[best + 1];
        loops->x[best] = loops->x[best + 1];
        loops->y[best] = loops->y[best + 1];
    }
    loops->dims[best] = dim;
    loops->x[best] = x;
    loops->y[best] = y;
    return true;
}

/* The last two dimensions in tiles, so that both sides stay within a few cache lines. */
#define TILE 16u
static void copy_tiles(float *y, const float *x, const struct kelp__copy_loops *loops,
                       struct copy_how how)
{
    const uint32_t at = loops->rank - 2;
    const uint64_t rows = loops->dims[at], columns = loops->dims[at + 1];
    for (uint64_t r = 0; r < rows; r += TILE) {
        const uint64_t row_end = rows - r < TILE ? rows : r + TILE;
        for (uint64_t c = 0; c < columns; c += TILE) {
            const uint64_t count = columns - c < TILE ? columns - c : TILE;
            for (uint64_t row = r; row < row_end; row++) {
                copy_inner(y + row * loops->y[at] + c * loops->y[at + 1], loops->y[at + 1],
                           x + row * loops->x[at] + c * loops->x[at + 1], loops->x[at + 1], count,
                           how);
            }
        }
    }
}

/* Iterate over all dimensions except the last `inner` ones, like an odometer. */
static void copy_all(const struct kelp_copy *copy, const struct kelp__copy_loops *loops,
                     uint32_t inner, struct copy_how how)
{
    const uint32_t outer = loops->rank - inner, last = loops->rank - 1;
    uint64_t digits[KELP_COPY_RANK_MAX] = {0};
    const float *x = copy->x;
    float *y = copy->y;
    for (;;) {
        if (inner == 2) {
            copy_tiles(y, x, loops, how);
        } else {
            copy_inner(y, loops->y[last], x, loops->x[last], loops->dims[last], how);
        }
        uint32_t d = outer;
        for (; d > 0 && digits[d - 1] + 1 == loops->dims[d - 1]; d--) {
            x -= digits[d - 1] * loops->x[d - 1];
            y -= digits[d - 1] * loops->y[d - 1];
            digits[d - 1] = 0;
        }
        if (d == 0) {
            return;
        }
        digits[d - 1]++;
        x += loops->x[d - 1];
        y += loops->y[d - 1];
    }
}

void KELP_LOOP(copy)(struct kelp_stream *stream, const struct kelp_copy *copy)
{
    const struct copy_how how = {copy->scale, copy->write == KELP_ACCUMULATE};
    struct kelp__copy_loops loops;
    if (!kelp__copy_plan(copy, &loops)) {
        return;
    }
    if (loops.rank == 0) {
        copy_inner(copy->y, 1, copy->x, 1, 1, how);
        return;
    }
    const bool tiles = plan_tiles(&loops);
    copy_all(copy, &loops, tiles ? 2 : 1, how);
}

/* A strip of inner elements at a time, with its sums in registers. */
#define STRIP 32u
INLINE void reduce_strip(const struct kelp_reduce *reduce, const float *x, float *restrict y,
                         const uint32_t width)
{
    float sums[STRIP] = {0};
    for (uint64_t m = 0; m < reduce->middle; m++) {
        const float *row = x + m * reduce->inner;
        for (uint32_t i = 0; i < width; i++) {
            sums[i] = sums[i] + row[i];
        }
    }
    for (uint32_t i = 0; i < width; i++) {
        const float value = reduce->scale * sums[i];
        y[i] = reduce->write == KELP_ACCUMULATE ? y[i] + value : value;
    }
}

static void reduce_rows(const struct kelp_reduce *reduce)
{
    for (uint64_t o = 0; o < reduce->outer; o++) {
        const float value =
            reduce->scale * kelp__sums_row_sum(reduce->x + o * reduce->middle, reduce->middle);
        reduce->y[o] = reduce->write == KELP_ACCUMULATE ? reduce->y[o] + value : value;
    }
}

void KELP_LOOP(reduce)(struct kelp_stream *stream, const struct kelp_reduce *reduce)
{
    if (reduce->inner == 1) {
        reduce_rows(reduce);
        return;
    }
    for (uint64_t o = 0; o < reduce->outer; o++) {
        const float *x = reduce->x + o * reduce->middle * reduce->inner;
        float *y = reduce->y + o * reduce->inner;
        uint64_t i = 0;
        for (; i + STRIP <= reduce->inner; i += STRIP) {
            reduce_strip(reduce, x + i, y + i, STRIP);
        }
        if (i < reduce->inner) {
            reduce_strip(reduce, x + i, y + i, (uint32_t)(reduce->inner - i));
        }
    }
}

void KELP_LOOP(weighted_sum)(struct kelp_stream *stream, const struct kelp_weighted_sum *sum)
{
    const uint32_t count = sum->count, width = sum->width;
    for (uint64_t r = 0; r < sum->rows; r++) {
        const float *weights = sum->weights + r * count;
        const float *x = sum->x + r * count * width;
        float *restrict y = sum->y + r * width;
        for (uint32_t d = 0; d < width; d++) {
            y[d] = 0.0f;
        }
        for (uint32_t i = 0; i < count; i++) {
            const float *restrict values = x + (uint64_t)i * width;
            const float weight = weights[i];
            for (uint32_t d = 0; d < width; d++) {
                y[d] = y[d] + weight * values[d];
            }
        }
    }
}

INLINE void weighted_sum_dx(const struct kelp_weighted_sum *sum, const bool accumulate)
{
    const uint32_t count = sum->count, width = sum->width;
    for (uint64_t r = 0; r < sum->rows; r++) {
        const float *restrict dy = sum->dy + r * width;
        for (uint64_t i = r * count; i < (r + 1) * count; i++) {
            float *restrict dx = sum->dx + i * width;
            const float weight = sum->weights[i];
            for (uint32_t d = 0; d < width; d++) {
                dx[d] = accumulate ? dx[d] + weight * dy[d] : weight * dy[d];
            }
        }
    }
}

void KELP_LOOP(weighted_sum_gradient)(struct kelp_stream *stream,
                                      const struct kelp_weighted_sum *sum)
{
    const uint32_t count = sum->count, width = sum->width;
    for (uint64_t i = 0; sum->dweights && i < (uint64_t)sum->rows * count; i++) {
        const float dot =
            kelp__sums_row_dot(sum->dy + i / count * width, sum->x + i * width, width);
        sum->dweights[i] = sum->write_weights == KELP_ACCUMULATE ? sum->dweights[i] + dot : dot;
    }
    if (sum->dx && sum->write_x == KELP_ACCUMULATE) {
        weighted_sum_dx(sum, true);
    } else if (sum->dx) {
        weighted_sum_dx(sum, false);
    }
}

/* False: ids[row] is not a row of the table. */
INLINE bool table_row(struct kelp_stream *stream, const struct kelp_embedding *embedding,
                      uint64_t row, uint32_t *ret)
{
    const float id = embedding->ids[row * embedding->ids_stride];
    /* The first comparison also refuses NaN, and keeps the conversions within the range of
     * uint32_t. */
    if (id >= 0.0f && id < (float)embedding->vocab && (float)(uint32_t)id == id &&
        (uint32_t)id < embedding->vocab) {
        *ret = (uint32_t)id;
        return true;
    }
    kelp__cpu_fault(stream, (struct kelp_loop_fault){
                                .what = KELP_LOOP_BAD_ID, .value = id, .limit = embedding->vocab});
    return false;
}

void KELP_LOOP(embedding)(struct kelp_stream *stream, const struct kelp_embedding *embedding)
{
    const uint64_t width = embedding->width;
    for (uint64_t r = 0; r < embedding->rows; r++) {
        uint32_t id = 0;
        const bool known = table_row(stream, embedding, r, &id);
        if (width == 0) {
            continue; /* the table may be NULL */
        }
        float *y = embedding->y + r * width;
        if (known) {
            memcpy(y, embedding->table + id * width, width * sizeof(*y));
        } else {
            memset(y, 0, width * sizeof(*y));
        }
    }
}

void KELP_LOOP(embedding_gradient)(struct kelp_stream *stream,
                                   const struct kelp_embedding *embedding)
{
    const uint64_t width = embedding->width;
    if (embedding->write == KELP_OVERWRITE && width != 0) {
        memset(embedding->dtable, 0, embedding->vocab * width * sizeof(*embedding->dtable));
    }
    for (uint64_t r = 0; r < embedding->rows; r++) {
        uint32_t id = 0;
        if (!table_row(stream, embedding, r, &id)) {
            continue;
        }
        const float *restrict dy = embedding->dy + r * width;
        float *restrict row = embedding->dtable + id * width;
        for (uint64_t c = 0; c < width; c++) {
            row[c] = row[c] + dy[c];
        }
    }
}

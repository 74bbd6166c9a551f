/*
 * Activations and operators that use them: softmax, gated linear units, the LSTM's cell.
 * kernels/operators.h describes each.
 */
#include <math.h>

#include "kernels/cpu/loops/functions.h"
#include "kernels/cpu/loops/loops.h"
#include "kernels/cpu/loops/sums.h"

INLINE float gelu_cdf(float x)
{
    return 0.5f * (1.0f + kelp__math_erf(x * 0x1.6a09e6p-1f)); /* 1 / sqrt(2) */
}

INLINE float function(const enum kelp_unary_kind kind, float x)
{
    switch (kind) {
    case KELP_UNARY_RELU:
        return x <= 0.0f ? 0.0f : x;
    case KELP_UNARY_GELU:
        return x * gelu_cdf(x);
    case KELP_UNARY_ELU: {
        const float negative = kelp__math_expm1(x > 0.0f ? 0.0f : x);
        return x > 0.0f ? x : negative;
    }
    case KELP_UNARY_SIGMOID:
        return kelp__math_sigmoid(x);
    case KELP_UNARY_TANH:
        return kelp__math_tanh(x);
    }
    return x;
}

INLINE void unary_loop(const enum kelp_unary_kind kind, const struct kelp_unary *unary)
{
    const float *x = unary->x;
    float *y = unary->y;
    for (uint64_t i = 0; i < unary->count; i++) {
        y[i] = function(kind, x[i]);
    }
}

void KELP_LOOP(unary)(struct kelp_stream *stream, const struct kelp_unary *unary)
{
    switch (unary->kind) {
    case KELP_UNARY_RELU:
        unary_loop(KELP_UNARY_RELU, unary);
        break;
    case KELP_UNARY_GELU:
        unary_loop(KELP_UNARY_GELU, unary);
        break;
    case KELP_UNARY_ELU:
        unary_loop(KELP_UNARY_ELU, unary);
        break;
    case KELP_UNARY_SIGMOID:
        unary_loop(KELP_UNARY_SIGMOID, unary);
        break;
    case KELP_UNARY_TANH:
        unary_loop(KELP_UNARY_TANH, unary);
        break;
    }
}

/* v is x for gelu, otherwise y. */
INLINE float slope_times(const enum kelp_unary_kind kind, float v, float dy)
{
    switch (kind) {
    case KELP_UNARY_RELU:
        return v > 0.0f ? dy : 0.0f;
    case KELP_UNARY_GELU: {
        const float density = 0x1.988454p-2f * kelp__math_exp(-0.5f * v * v); /* 1 / sqrt(2 pi) */
        return dy * (gelu_cdf(v) + v * density);
    }
    case KELP_UNARY_ELU: {
        const float negative = dy * (v + 1.0f);
        return v > 0.0f ? dy : negative;
    }
    case KELP_UNARY_SIGMOID:
        return dy * (v * (1.0f - v));
    case KELP_UNARY_TANH:
        return dy * (1.0f - v * v);
    }
    return dy;
}

INLINE void unary_gradient_loop(const enum kelp_unary_kind kind,
                                const struct kelp_unary_gradient *gradient)
{
    const float *v = kind == KELP_UNARY_GELU ? gradient->x : gradient->y;
    const float *dy = gradient->dy;
    float *dx = gradient->dx;
    if (gradient->write == KELP_OVERWRITE) {
        for (uint64_t i = 0; i < gradient->count; i++) {
            dx[i] = slope_times(kind, v[i], dy[i]);
        }
        return;
    }
    for (uint64_t i = 0; i < gradient->count; i++) {
        dx[i] = dx[i] + slope_times(kind, v[i], dy[i]);
    }
}

void KELP_LOOP(unary_gradient)(struct kelp_stream *stream,
                               const struct kelp_unary_gradient *gradient)
{
    switch (gradient->kind) {
    case KELP_UNARY_RELU:
        unary_gradient_loop(KELP_UNARY_RELU, gradient);
        break;
    case KELP_UNARY_GELU:
        unary_gradient_loop(KELP_UNARY_GELU, gradient);
        break;
    case KELP_UNARY_ELU:
        unary_gradient_loop(KELP_UNARY_ELU, gradient);
        break;
    case KELP_UNARY_SIGMOID:
        unary_gradient_loop(KELP_UNARY_SIGMOID, gradient);
        break;
    case KELP_UNARY_TANH:
        unary_gradient_loop(KELP_UNARY_TANH, gradient);
        break;
    }
}

/* Rows are computed in blocks that stay in the nearest cache. One loop computes the exponentials
 * of a block, because rows may be shorter than a vector. */
#define BLOCK_FLOATS 4096u

static uint64_t rows_of_block(uint32_t columns)
{
    return columns >= BLOCK_FLOATS ? 1 : BLOCK_FLOATS / columns;
}

/* How many columns row r uses. */
INLINE uint32_t visible(const struct kelp_softmax *softmax, uint64_t r)
{
    if (!softmax->causal) {
        return softmax->columns;
    }
    const uint64_t end = r % softmax->queries + softmax->offset + 1;
    return end < softmax->columns ? (uint32_t)end : softmax->columns;
}

static void softmax_block(const struct kelp_softmax *softmax, uint64_t first, uint64_t rows)
{
    const uint32_t columns = softmax->columns;
    for (uint64_t r = first; r < first + rows; r++) {
        const float *x = softmax->x + r * columns;
        float *y = softmax->y + r * columns;
        const uint32_t seen = visible(softmax, r);
        const float largest = kelp__sums_row_max(x, seen);
        for (uint32_t c = 0; c < seen; c++) {
            y[c] = x[c] - largest;
        }
        for (uint32_t c = seen; c < columns; c++) {
            y[c] = 0.0f;
        }
    }
    float *block = softmax->y + first * columns;
    for (uint64_t i = 0; i < rows * columns; i++) {
        block[i] = kelp__math_exp(block[i]);
    }
    for (uint64_t r = first; r < first + rows; r++) {
        float *y = softmax->y + r * columns;
        const uint32_t seen = visible(softmax, r);
        const float sum = kelp__sums_row_sum(y, seen);
        for (uint32_t c = 0; c < seen; c++) {
            y[c] = y[c] / sum;
        }
        for (uint32_t c = seen; c < columns; c++) {
            y[c] = 0.0f;
        }
    }
}

static void log_softmax_block(const struct kelp_softmax *softmax, uint64_t first, uint64_t rows)
{
    const uint32_t columns = softmax->columns;
    float exponentials[BLOCK_FLOATS];
    for (uint64_t r = first; r < first + rows; r++) {
        const float *x = softmax->x + r * columns;
        float *y = softmax->y + r * columns;
        const float largest = kelp__sums_row_max(x, columns);
        for (uint32_t c = 0; c < columns; c++) {
            y[c] = x[c] - largest;
        }
    }
    const float *block = softmax->y + first * columns;
    for (uint64_t i = 0; i < rows * columns; i++) {
        exponentials[i] = kelp__math_exp(block[i]);
    }
    for (uint64_t r = 0; r < rows; r++) {
        float *y = softmax->y + (first + r) * columns;
        const float sum = kelp__sums_row_sum(exponentials + r * columns, columns);
        const float logarithm = (float)kelp__math_log((double)sum);
        for (uint32_t c = 0; c < columns; c++) {
            y[c] = y[c] - logarithm;
        }
    }
}

/* A row longer than a block, piece by piece. */
static void log_softmax_long(const struct kelp_softmax *softmax, uint64_t r)
{
    const uint32_t columns = softmax->columns;
    const float *x = softmax->x + r * columns;
    float *y = softmax->y + r * columns, exponentials[BLOCK_FLOATS];
    const float largest = kelp__sums_row_max(x, columns);
    double sum = 0.0;
    for (uint32_t begin = 0; begin < columns; begin += BLOCK_FLOATS) {
        const uint32_t left = columns - begin, count = left < BLOCK_FLOATS ? left : BLOCK_FLOATS;
        for (uint32_t c = 0; c < count; c++) {
            exponentials[c] = kelp__math_exp(x[begin + c] - largest);
        }
        sum = sum + (double)kelp__sums_row_sum(exponentials, count);
    }
    const float logarithm = (float)kelp__math_log(sum);
    for (uint32_t c = 0; c < columns; c++) {
        y[c] = x[c] - largest - logarithm;
    }
}

void KELP_LOOP(softmax)(struct kelp_stream *stream, const struct kelp_softmax *softmax)
{
    if (softmax->columns == 0) {
        return;
    }
    const uint64_t step = rows_of_block(softmax->columns);
    for (uint64_t r = 0; r < softmax->rows; r += step) {
        const uint64_t rows = softmax->rows - r < step ? softmax->rows - r : step;
        if (softmax->logarithm && softmax->columns > BLOCK_FLOATS) {
            log_softmax_long(softmax, r);
        } else if (softmax->logarithm) {
            log_softmax_block(softmax, r, rows);
        } else {
            softmax_block(softmax, r, rows);
        }
    }
}

INLINE void softmax_gradient_loop(const struct kelp_softmax *softmax, const bool accumulate)
{
    const uint32_t columns = softmax->columns;
    for (uint64_t r = 0; r < softmax->rows; r++) {
        const float *y = softmax->y + r * columns, *dy = softmax->dy + r * columns;
        float *dx = softmax->dx + r * columns;
        const float dot = kelp__sums_row_dot(y, dy, columns);
        for (uint32_t c = 0; c < columns; c++) {
            const float value = y[c] * (dy[c] - dot);
            dx[c] = accumulate ? dx[c] + value : value;
        }
    }
}

INLINE void log_softmax_gradient_loop(const struct kelp_softmax *softmax, const bool accumulate)
{
    const uint32_t columns = softmax->columns;
    for (uint64_t r = 0; r < softmax->rows; r++) {
        const float *y = softmax->y + r * columns, *dy = softmax->dy + r * columns;
        float *dx = softmax->dx + r * columns;
        const float sum = kelp__sums_row_sum(dy, columns);
        for (uint32_t c = 0; c < columns; c++) {
            const float value = dy[c] - kelp__math_exp(y[c]) * sum;
            dx[c] = accumulate ? dx[c] + value : value;
        }
    }
}

void KELP_LOOP(softmax_gradient)(struct kelp_stream *stream, const struct kelp_softmax *softmax)
{
    const bool accumulate = softmax->write == KELP_ACCUMULATE;
    if (softmax->logarithm && accumulate) {
        log_softmax_gradient_loop(softmax, true);
    } else if (softmax->logarithm) {
        log_softmax_gradient_loop(softmax, false);
    } else if (accumulate) {
        softmax_gradient_loop(softmax, true);
    } else {
        softmax_gradient_loop(softmax, false);
    }
}

void KELP_LOOP(glu)(struct kelp_stream *stream, const struct kelp_glu *glu)
{
    const uint32_t width = glu->width;
    for (uint64_t r = 0; r < glu->rows; r++) {
        const float *restrict value = glu->x + r * 2 * width;
        const float *restrict gate = value + width;
        float *restrict y = glu->y + r * width;
        for (uint32_t c = 0; c < width; c++) {
            y[c] = value[c] * kelp__math_sigmoid(gate[c]);
        }
    }
}

INLINE void glu_gradient_loop(const struct kelp_glu *glu, const bool accumulate)
{
    const uint32_t width = glu->width;
    for (uint64_t r = 0; r < glu->rows; r++) {
        const float *restrict value = glu->x + r * 2 * width;
        const float *restrict gate = value + width;
        const float *restrict dy = glu->dy + r * width;
        float *restrict dvalue = glu->dx + r * 2 * width;
        float *restrict dgate = dvalue + width;
        for (uint32_t c = 0; c < width; c++) {
            const float s = kelp__math_sigmoid(gate[c]);
            const float first = dy[c] * s;
            const float second = dy[c] * value[c] * (s * (1.0f - s));
            dvalue[c] = accumulate ? dvalue[c] + first : first;
            dgate[c] = accumulate ? dgate[c] + second : second;
        }
    }
}

void KELP_LOOP(glu_gradient)(struct kelp_stream *stream, const struct kelp_glu *glu)
{
    if (glu->write == KELP_ACCUMULATE) {
        glu_gradient_loop(glu, true);
    } else {
        glu_gradient_loop(glu, false);
    }
}

INLINE void sigmoid_row(float *x, uint64_t count)
{
    for (uint64_t j = 0; j < count; j++) {
        x[j] = kelp__math_sigmoid(x[j]);
    }
}

void KELP_LOOP(lstm_cell)(struct kelp_stream *stream, const struct kelp_lstm_cell *cell)
{
    const uint64_t hidden = cell->hidden; /* 64 bits: a wrapping index is not vectorised */
    for (uint64_t b = 0; b < cell->batch; b++) {
        float *gates = cell->gates + b * 4 * hidden, *update = gates + 2 * hidden;
        const float *before = cell->c_before + b * hidden;
        float *restrict c = cell->c + b * hidden, *restrict h = cell->h + b * cell->h_ld;
        sigmoid_row(gates, 2 * hidden);
        for (uint64_t j = 0; j < hidden; j++) {
            update[j] = kelp__math_tanh(update[j]);
        }
        sigmoid_row(gates + 3 * hidden, hidden);
        for (uint64_t j = 0; j < hidden; j++) {
            c[j] = gates[hidden + j] * before[j] + gates[j] * update[j];
        }
        for (uint64_t j = 0; j < hidden; j++) {
            h[j] = gates[3 * hidden + j] * kelp__math_tanh(c[j]);
        }
    }
}

/* Columns of one sequence that are computed at a time. */
#define CELL_PIECE 64u
INLINE void lstm_cell_gradient_piece(const struct kelp_lstm_cell *cell, uint64_t b, uint32_t first,
                                     uint32_t count)
{
    const uint64_t hidden = cell->hidden;
    const float *gates = cell->gates + b * 4 * hidden + first;
    const float *c = cell->c + b * hidden + first, *before = cell->c_before + b * hidden + first;
    const float *dh = cell->dh + b * cell->dh_ld + first;
    float *restrict dc = cell->dc + b * hidden + first;
    float *restrict dgates = cell->dgates + b * 4 * hidden + first;
    float t[CELL_PIECE], total[CELL_PIECE];
    for (uint64_t j = 0; j < count; j++) {
        t[j] = kelp__math_tanh(c[j]);
    }
    for (uint64_t j = 0; j < count; j++) {
        const float out = gates[3 * hidden + j];
        total[j] = dc[j] + dh[j] * out * (1.0f - t[j] * t[j]);
        dgates[3 * hidden + j] = dh[j] * t[j] * (out * (1.0f - out));
    }
    for (uint64_t j = 0; j < count; j++) {
        const float in = gates[j], update = gates[2 * hidden + j];
        dgates[j] = total[j] * update * (in * (1.0f - in));
        dgates[2 * hidden + j] = total[j] * in * (1.0f - update * update);
    }
    for (uint64_t j = 0; j < count; j++) {
        const float forget = gates[hidden + j];
        dgates[hidden + j] = total[j] * before[j] * (forget * (1.0f - forget));
        dc[j] = total[j] * forget;
    }
}

void KELP_LOOP(lstm_cell_gradient)(struct kelp_stream *stream, const struct kelp_lstm_cell *cell)
{
    for (uint64_t b = 0; b < cell->batch; b++) {
        for (uint32_t first = 0; first < cell->hidden; first += CELL_PIECE) {
            const uint32_t left = cell->hidden - first;
            lstm_cell_gradient_piece(cell, b, first, left < CELL_PIECE ? left : CELL_PIECE);
        }
    }
}

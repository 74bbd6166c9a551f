/*
 * The loops over windows of images: pooling (kernels/operators.h), and the matrices that turn a
 * convolution into matrix products (struct kelp_window_loops).
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/loops/loops.h"

#define INLINE static inline __attribute__((always_inline))

/* The part [begin, end) of a kernel's side that lies within the input, for the output at `at`; the
 * input position of kernel position k is start + k. */
struct span {
    int64_t start;
    uint32_t begin, end;
};

INLINE struct span span_of(const struct kelp_window *window, uint32_t side, uint32_t at)
{
    const int64_t start = (int64_t)at * window->stride[side] - window->padding[side];
    const int64_t room = (int64_t)window->input[side] - start;
    struct span span = {.start = start, .begin = start < 0 ? (uint32_t)-start : 0};
    span.end = room < (int64_t)window->kernel[side] ? (room > 0 ? (uint32_t)room : 0)
                                                    : window->kernel[side];
    return span;
}

INLINE uint64_t plane(const uint32_t sides[2])
{
    return (uint64_t)sides[0] * sides[1];
}

/* The outputs [begin, end) of a side whose input at kernel position k is no padding. */
INLINE struct span reach(const struct kelp_window *window, uint32_t side, uint32_t k)
{
    const int64_t stride = window->stride[side], output = window->output[side];
    const int64_t start = (int64_t)k - window->padding[side];
    const int64_t before = start < 0 ? (-start + stride - 1) / stride : 0;
    const int64_t room = (int64_t)window->input[side] - start; /* outputs with o * stride < room */
    int64_t end = room > 0 ? (room + stride - 1) / stride : 0;
    end = end < output ? end : output;
    const int64_t begin = before < end ? before : end;
    return (struct span){.start = start, .begin = (uint32_t)begin, .end = (uint32_t)end};
}

/* ---- pooling ---- */

/* Kernel position (row of x, kc) for the outputs [begin, end) of a row; only what is larger than
 * all before is taken, and NaN once. */
INLINE void max_pool_position(const float *restrict x, uint32_t first, struct span span,
                              const uint32_t stride, float *restrict y, uint32_t *restrict chosen)
{
    for (uint32_t o = span.begin; o < span.end; o++) {
        const uint32_t at = first + o * stride;
        const float value = x[at], best = y[o];
        const bool take = !(value <= best) & (best == best);
        y[o] = take ? value : best;
        chosen[o] = take ? at : chosen[o];
    }
}

/* Row `at` of the output of one plane. */
INLINE void max_pool_row(const struct kelp_window *window, const float *restrict x, uint32_t at,
                         float *restrict y, uint32_t *restrict chosen, const uint32_t stride)
{
    const uint32_t width = window->input[1];
    const struct span rows = span_of(window, 0, at);
    const uint32_t first = (uint32_t)(rows.start + rows.begin) * width;
    for (uint32_t o = 0; o < window->output[1]; o++) {
        const uint32_t column = o * stride;
        y[o] = -INFINITY; /* stays when nothing is larger: then the first one is chosen */
        chosen[o] = first + (column > window->padding[1] ? column - window->padding[1] : 0);
    }
    for (uint32_t r = rows.begin; r < rows.end; r++) {
        for (uint32_t c = 0; c < window->kernel[1]; c++) {
            const struct span span = reach(window, 1, c);
            const uint32_t from = (uint32_t)((rows.start + r) * width + span.start);
            max_pool_position(x, from, span, stride, y, chosen);
        }
    }
}

INLINE void max_pool_planes(const struct kelp_max_pool *pool, const uint32_t stride)
{
    const struct kelp_window *window = &pool->window;
    const uint64_t planes = (uint64_t)pool->samples * window->channels;
    for (uint64_t p = 0; p < planes; p++) {
        for (uint32_t row = 0; row < window->output[0]; row++) {
            const uint64_t to = p * plane(window->output) + (uint64_t)row * window->output[1];
            max_pool_row(window, pool->x + p * plane(window->input), row, pool->y + to,
                         pool->chosen + to, stride);
        }
    }
}

/* Loads at a stride that is known are loads of vectors. */
void KELP_LOOP(max_pool)(struct kelp_stream *stream, const struct kelp_max_pool *pool)
{
    assert(pool->window.layout == KELP_CHANNELS_FIRST);
    switch (pool->window.stride[1]) {
    case 1:
        max_pool_planes(pool, 1);
        break;
    case 2:
        max_pool_planes(pool, 2);
        break;
    default:
        max_pool_planes(pool, pool->window.stride[1]);
        break;
    }
}

void KELP_LOOP(max_pool_gradient)(struct kelp_stream *stream, const struct kelp_max_pool *pool)
{
    const struct kelp_window *window = &pool->window;
    const uint64_t planes = (uint64_t)pool->samples * window->channels;
    const uint64_t in = plane(window->input), out = plane(window->output);
    assert(window->layout == KELP_CHANNELS_FIRST);
    for (uint64_t p = 0; p < planes; p++) {
        float *restrict dx = pool->dx + p * in;
        const float *restrict dy = pool->dy + p * out;
        const uint32_t *restrict chosen = pool->chosen + p * out;
        if (pool->write == KELP_OVERWRITE) {
            memset(dx, 0, in * sizeof(*dx));
        }
        for (uint64_t o = 0; o < out; o++) {
            dx[chosen[o]] = dx[chosen[o]] + dy[o];
        }
    }
}

void KELP_LOOP(average_pool)(struct kelp_stream *stream, const struct kelp_average_pool *pool)
{
    const struct kelp_window *window = &pool->window;
    const uint64_t planes = (uint64_t)pool->samples * window->channels;
    const float divisor = (float)plane(window->kernel);
    assert(window->layout == KELP_CHANNELS_FIRST);
    for (uint64_t p = 0; p < planes; p++) {
        const float *restrict x = pool->x + p * plane(window->input);
        float *restrict y = pool->y + p * plane(window->output);
        for (uint32_t row = 0; row < window->output[0]; row++) {
            const struct span rows = span_of(window, 0, row);
            for (uint32_t o = 0; o < window->output[1]; o++) {
                const struct span columns = span_of(window, 1, o);
                float sum = 0.0f;
                for (uint32_t r = rows.begin; r < rows.end; r++) {
                    const float *from = x + (rows.start + r) * window->input[1] + columns.start;
                    for (uint32_t c = columns.begin; c < columns.end; c++) {
                        sum = sum + from[c];
                    }
                }
                y[(uint64_t)row * window->output[1] + o] = sum / divisor;
            }
        }
    }
}

void KELP_LOOP(average_pool_gradient)(struct kelp_stream *stream,
                                      const struct kelp_average_pool *pool)
{
    const struct kelp_window *window = &pool->window;
    const uint64_t planes = (uint64_t)pool->samples * window->channels;
    const float divisor = (float)plane(window->kernel);
    assert(window->layout == KELP_CHANNELS_FIRST);
    for (uint64_t p = 0; p < planes; p++) {
        float *restrict dx = pool->dx + p * plane(window->input);
        const float *restrict dy = pool->dy + p * plane(window->output);
        if (pool->write == KELP_OVERWRITE) {
            memset(dx, 0, plane(window->input) * sizeof(*dx));
        }
        for (uint32_t row = 0; row < window->output[0]; row++) {
            const struct span rows = span_of(window, 0, row);
            for (uint32_t o = 0; o < window->output[1]; o++) {
                const struct span columns = span_of(window, 1, o);
                const float share = dy[(uint64_t)row * window->output[1] + o] / divisor;
                for (uint32_t r = rows.begin; r < rows.end; r++) {
                    float *to = dx + (rows.start + r) * window->input[1] + columns.start;
                    for (uint32_t c = columns.begin; c < columns.end; c++) {
                        to[c] = to[c] + share;
                    }
                }
            }
        }
    }
}

/* ---- convolution as a matrix product ---- */

static void unfold_row(const struct kelp_window *window, struct span span, const float *restrict x,
                       float *restrict to)
{
    const uint32_t stride = window->stride[1], output = window->output[1];
    memset(to, 0, span.begin * sizeof(*to));
    const float *from = x + span.start;
    if (stride == 1) {
        memcpy(to + span.begin, from + span.begin, (span.end - span.begin) * sizeof(*to));
    } else {
        for (uint32_t o = span.begin; o < span.end; o++) {
            to[o] = from[(uint64_t)o * stride];
        }
    }
    memset(to + span.end, 0, (output - span.end) * sizeof(*to));
}

/* columns[(c, kr, kc)][(row, column)] = the input that kernel position (kr, kc) meets there. */
static void unfold(const struct kelp_window *window, const float *x, float *columns)
{
    const uint32_t width = window->output[1];
    for (uint32_t c = 0; c < window->channels; c++, x += plane(window->input)) {
        for (uint32_t kr = 0; kr < window->kernel[0]; kr++) {
            const struct span rows = reach(window, 0, kr);
            for (uint32_t kc = 0; kc < window->kernel[1]; kc++) {
                const struct span span = reach(window, 1, kc);
                memset(columns, 0, (uint64_t)rows.begin * width * sizeof(*columns));
                for (uint32_t o = rows.begin; o < rows.end; o++) {
                    const int64_t row = rows.start + (int64_t)o * window->stride[0];
                    unfold_row(window, span, x + row * window->input[1],
                               columns + (uint64_t)o * width);
                }
                memset(columns + (uint64_t)rows.end * width, 0,
                       (uint64_t)(window->output[0] - rows.end) * width * sizeof(*columns));
                columns += plane(window->output);
            }
        }
    }
}

static void fold_row(const struct kelp_window *window, struct span span, const float *restrict from,
                     float *restrict x)
{
    const uint32_t stride = window->stride[1];
    float *to = x + span.start;
    if (stride == 1) {
        for (uint32_t o = span.begin; o < span.end; o++) {
            to[o] = to[o] + from[o];
        }
        return;
    }
    for (uint32_t o = span.begin; o < span.end; o++) {
        to[(uint64_t)o * stride] = to[(uint64_t)o * stride] + from[o];
    }
}

/* The reverse: each element of `columns` is added to where unfold() took it from. */
static void fold_add(const struct kelp_window *window, const float *columns, float *x)
{
    const uint32_t width = window->output[1];
    for (uint32_t c = 0; c < window->channels; c++, x += plane(window->input)) {
        for (uint32_t kr = 0; kr < window->kernel[0]; kr++) {
            const struct span rows = reach(window, 0, kr);
            for (uint32_t kc = 0; kc < window->kernel[1]; kc++) {
                const struct span span = reach(window, 1, kc);
                for (uint32_t o = rows.begin; o < rows.end; o++) {
                    const int64_t row = rows.start + (int64_t)o * window->stride[0];
                    fold_row(window, span, columns + (uint64_t)o * width,
                             x + row * window->input[1]);
                }
                columns += plane(window->output);
            }
        }
    }
}

/* ---- convolution by taps ---- */

typedef float four __attribute__((vector_size(16)));

INLINE void load(four *to, const float *from)
{
    memcpy(to, from, sizeof(*to));
}

INLINE void put(float *to, four values, four bias, const bool accumulate)
{
    four before;
    load(&before, to);
    values = accumulate ? before + values : values + bias;
    memcpy(to, &values, sizeof(values));
}

INLINE four splat(float value)
{
    return (four){value, value, value, value};
}

/* y[c][r] from x[r][c], 4 by 4. */
INLINE void turn_block(const struct kelp_turn *turn, const float *x, float *y, const four bias[4],
                       const bool accumulate)
{
    const uint64_t ld = turn->y_ld;
    four a, b, c, d;
    load(&a, x);
    load(&b, x + turn->x_ld);
    load(&c, x + 2 * turn->x_ld);
    load(&d, x + 3 * turn->x_ld);
    const four ab = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    const four cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    const four ef = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    const four gh = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    put(y, __builtin_shufflevector(ab, cd, 0, 1, 4, 5), bias[0], accumulate);
    put(y + ld, __builtin_shufflevector(ab, cd, 2, 3, 6, 7), bias[1], accumulate);
    put(y + 2 * ld, __builtin_shufflevector(ef, gh, 0, 1, 4, 5), bias[2], accumulate);
    put(y + 3 * ld, __builtin_shufflevector(ef, gh, 2, 3, 6, 7), bias[3], accumulate);
}

INLINE void turn_one(const struct kelp_turn *turn, uint32_t r, uint32_t c, const bool accumulate)
{
    const float value = turn->x[r * turn->x_ld + c];
    float *y = turn->y + c * turn->y_ld + r;
    if (accumulate) {
        *y = *y + value;
    } else {
        *y = turn->bias ? value + turn->bias[c] : value + 0.0f;
    }
}

/* 16 by 16, so that whole cache lines are read and written while they are near. */
#define TURN_TILE 16

INLINE void turn_tile(const struct kelp_turn *turn, uint32_t row, uint32_t column,
                      const bool accumulate)
{
    for (uint32_t c = column; c < column + TURN_TILE; c += 4) {
        four bias[4];
        for (uint32_t i = 0; i < 4; i++) {
            bias[i] = splat(turn->bias ? turn->bias[c + i] : 0.0f);
        }
        for (uint32_t r = row; r < row + TURN_TILE; r += 4) {
            turn_block(turn, turn->x + r * turn->x_ld + c, turn->y + c * turn->y_ld + r, bias,
                       accumulate);
        }
    }
}

INLINE void turn_edge(const struct kelp_turn *turn, const uint32_t rows[2],
                      const uint32_t columns[2], const bool accumulate)
{
    for (uint32_t c = columns[0]; c < columns[1]; c++) {
        for (uint32_t r = rows[0]; r < rows[1]; r++) {
            turn_one(turn, r, c, accumulate);
        }
    }
}

INLINE void turn_loop(const struct kelp_turn *turn, const bool accumulate)
{
    const uint32_t rows = turn->rows - turn->rows % TURN_TILE;
    const uint32_t columns = turn->columns - turn->columns % TURN_TILE;
    for (uint32_t r = 0; r < rows; r += TURN_TILE) {
        for (uint32_t c = 0; c < columns; c += TURN_TILE) {
            turn_tile(turn, r, c, accumulate);
        }
        turn_edge(turn, (const uint32_t[]){r, r + TURN_TILE},
                  (const uint32_t[]){columns, turn->columns}, accumulate);
    }
    turn_edge(turn, (const uint32_t[]){rows, turn->rows}, (const uint32_t[]){0, turn->columns},
              accumulate);
}

static void turn(const struct kelp_turn *turn)
{
    /* A copy of our own, so that the compiler knows that no store changes it. */
    const struct kelp_turn own = *turn;
    if (own.write == KELP_ACCUMULATE) {
        turn_loop(&own, true);
    } else {
        turn_loop(&own, false);
    }
}

/* Rows of weights at a time, so that their lines are still near for the next tap. */
#define WEIGHT_BLOCK 128

static void gather_taps(const struct kelp_taps *taps, const float *restrict weights,
                        float *restrict to)
{
    for (uint64_t first = 0; first < taps->rows; first += WEIGHT_BLOCK) {
        const uint64_t left = taps->rows - first;
        const uint64_t end = first + (left < WEIGHT_BLOCK ? left : WEIGHT_BLOCK);
        for (uint32_t u = 0; u < taps->used; u++) {
            const float *restrict from = weights + taps->positions[u];
            for (uint64_t i = first; i < end; i++) {
                to[u * taps->rows + i] = from[i * taps->kernel];
            }
        }
    }
}

/* A tile of the transposed matrix of each tap, all of whose weights lie in a few lines. */
#define WEIGHT_TILE 16

static void gather_taps_turned(const struct kelp_taps *taps, struct kelp_tap_sizes sizes,
                               const float *restrict weights, float *restrict to)
{
    const uint64_t kernel = taps->kernel;
    for (uint32_t u = 0; u < taps->used; u++) {
        const float *restrict from = weights + taps->positions[u];
        float *restrict out = to + u * taps->rows;
        for (uint32_t k = 0; k < sizes.outputs; k += WEIGHT_TILE) {
            const uint32_t left = sizes.outputs - k;
            const uint32_t width = left < WEIGHT_TILE ? left : WEIGHT_TILE;
            for (uint32_t c = 0; c < sizes.inputs; c++) {
                for (uint32_t i = 0; i < width; i++) {
                    out[(uint64_t)c * sizes.outputs + k + i] =
                        from[((uint64_t)(k + i) * sizes.inputs + c) * kernel];
                }
            }
        }
    }
}

static void scatter_taps(const struct kelp_taps *taps, const float *restrict from,
                         float *restrict weights, enum kelp_write write)
{
    for (uint64_t first = 0; first < taps->rows; first += WEIGHT_BLOCK) {
        const uint64_t left = taps->rows - first;
        const uint64_t end = first + (left < WEIGHT_BLOCK ? left : WEIGHT_BLOCK);
        if (write == KELP_OVERWRITE && taps->used < taps->kernel) {
            memset(weights + first * taps->kernel, 0, (end - first) * taps->kernel * sizeof(*from));
        }
        for (uint32_t u = 0; u < taps->used; u++) {
            float *restrict to = weights + taps->positions[u];
            for (uint64_t i = first; i < end; i++) {
                const float value = from[u * taps->rows + i];
                to[i * taps->kernel] =
                    write == KELP_ACCUMULATE ? to[i * taps->kernel] + value : value;
            }
        }
    }
}

/* ---- the bias of channels ---- */

static void channel_bias_add(float *y, const float *bias, const struct kelp_channels *sizes)
{
    for (uint32_t s = 0; s < sizes->samples; s++) {
        for (uint32_t c = 0; c < sizes->channels; c++, y += sizes->inner) {
            const float value = bias[c];
            for (uint64_t i = 0; i < sizes->inner; i++) {
                y[i] = y[i] + value;
            }
        }
    }
}

/* Element i of a plane in sum i % 8, in float32; these and the planes of all samples in double. */
#define LANES 8
static double plane_sum(const float *restrict x, uint64_t count)
{
    float sums[LANES] = {0};
    const uint64_t whole = count - count % LANES;
    for (uint64_t i = 0; i < whole; i += LANES) {
        for (uint32_t j = 0; j < LANES; j++) {
            sums[j] = sums[j] + x[i + j];
        }
    }
    for (uint64_t i = whole; i < count; i++) {
        sums[i - whole] = sums[i - whole] + x[i];
    }
    double sum = 0.0;
    for (uint32_t j = 0; j < LANES; j++) {
        sum = sum + (double)sums[j];
    }
    return sum;
}

static void channel_bias_gradient(float *dbias, const float *dy, const struct kelp_channels *sizes,
                                  enum kelp_write write)
{
    for (uint32_t c = 0; c < sizes->channels; c++) {
        double sum = 0.0;
        for (uint32_t s = 0; s < sizes->samples; s++) {
            const uint64_t at = ((uint64_t)s * sizes->channels + c) * sizes->inner;
            sum = sum + plane_sum(dy + at, sizes->inner);
        }
        dbias[c] = write == KELP_ACCUMULATE ? dbias[c] + (float)sum : (float)sum;
    }
}

extern const struct kelp_window_loops KELP_LOOPS_NAME(kelp__window_loops);
const struct kelp_window_loops KELP_LOOPS_NAME(kelp__window_loops) = {
    .unfold = unfold,
    .fold_add = fold_add,
    .turn = turn,
    .gather_taps = gather_taps,
    .gather_taps_turned = gather_taps_turned,
    .scatter_taps = scatter_taps,
    .channel_bias_add = channel_bias_add,
    .channel_bias_gradient = channel_bias_gradient,
};

/*
 * Sums over rows and columns, weighted sums, moving averages. See kernels/operators.h for what each
 * does.
 *
 * A long sum with few others beside it is split into parts, which a second launch adds up.
 */
#include "kernels/cuda/divider.cuh"
#include "kernels/cuda/groups.cuh"

/* ---- columns --------------------------------------------------------------------------------- */

/* y[o][c] = or += scale times the sum over r of x[o][r][c]. */
struct column_sums {
    const float *x;
    uint64_t ld, stride; /* from a row to the next one, and from a matrix to the next one */
    uint64_t outer;
    float *y; /* dense */
    float scale;
    enum kelp_write write;
    struct kelp__cuda_columns plan;
};

template <bool vector> static __global__ void add_columns(const struct column_sums p)
{
    KELP_CUDA_SHARED float4 partial[KELP_CUDA_THREADS];
    const struct kelp__cuda_columns plan = p.plan;
    const uint32_t lane = threadIdx.x % plan.across, line = threadIdx.x / plan.across;
    const uint64_t c = (blockIdx.x % plan.blocks * plan.across + lane) * 4;
    const uint64_t piece = blockIdx.x / plan.blocks; /* of the parts of all matrices */
    const uint64_t first = piece % plan.parts * plan.part_rows;
    const uint64_t last = first + plan.part_rows < plan.rows ? first + plan.part_rows : plan.rows;
    const uint64_t left = c < plan.columns ? plan.columns - c : 0;
    const float *x = p.x + piece / plan.parts * p.stride + c;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    KELP_CUDA_UNROLL(4)
    KELP_CUDA_STEPS(r, left != 0 ? first + line : last, last, plan.lines)
    {
        sum = kelp__cuda_add(sum, vector ? kelp__cuda_load(x + r * p.ld, true)
                                         : kelp__cuda_load_some(x + r * p.ld, left));
    }
    sum = kelp__cuda_lines_sum(sum, plan.across, partial);
    if (line == 0) {
        const float4 value =
            make_float4(p.scale * sum.x, p.scale * sum.y, p.scale * sum.z, p.scale * sum.w);
        kelp__cuda_put_some(p.y + piece * plan.columns + c, value, left, p.write);
    }
}

/* A thread for each sum, rows ascending: where there are many sums, or short ones. */
static __global__ void add_column(const struct column_sums p,
                                  const struct kelp__cuda_long_divider by_columns)
{
    const uint64_t columns = p.plan.columns;
    KELP_CUDA_FOR (i, p.outer * columns) {
        const uint64_t matrix = kelp__cuda_long_divide(by_columns, i);
        const float *x = p.x + matrix * p.stride + (i - matrix * columns);
        float sum = 0.0f;
        KELP_CUDA_UNROLL(8)
        for (uint64_t r = 0; r < p.plan.rows; r++) {
            sum = sum + x[r * p.ld];
        }
        kelp__cuda_put(p.y + i, p.scale * sum, p.write);
    }
}

/* The same for four neighbours; by_columns is in fours. */
static __global__ void add_column_vectors(const struct column_sums p,
                                          const struct kelp__cuda_long_divider by_columns)
{
    const uint64_t columns = p.plan.columns;
    KELP_CUDA_FOR (i, p.outer * by_columns.by) {
        const uint64_t matrix = kelp__cuda_long_divide(by_columns, i);
        const float *x = p.x + matrix * p.stride + (4 * i - matrix * columns);
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        KELP_CUDA_UNROLL(4)
        for (uint64_t r = 0; r < p.plan.rows; r++) {
            sum = kelp__cuda_add(sum, kelp__cuda_load(x + r * p.ld, true));
        }
        const float4 value =
            make_float4(p.scale * sum.x, p.scale * sum.y, p.scale * sum.z, p.scale * sum.w);
        kelp__cuda_put4(p.y + 4 * i, value, p.write, true);
    }
}

static void launch_column(struct kelp_stream *stream, const struct column_sums *p, bool vector)
{
    const uint64_t columns = p->plan.columns, sums = p->outer * columns;
    if (vector) {
        KELP_CUDA_LAUNCH(stream, add_column_vectors, kelp__cuda_blocks(sums / 4), KELP_CUDA_THREADS,
                         *p, kelp__cuda_long_divider_of(columns / 4));
    } else {
        KELP_CUDA_LAUNCH(stream, add_column, kelp__cuda_blocks(sums), KELP_CUDA_THREADS, *p,
                         kelp__cuda_long_divider_of(columns));
    }
}

static void launch_columns(struct kelp_stream *stream, const struct column_sums *p, bool vector)
{
    const uint64_t blocks = p->outer * p->plan.parts * p->plan.blocks;
    if (vector) {
        KELP_CUDA_LAUNCH(stream, add_columns<true>, blocks, KELP_CUDA_THREADS, *p);
    } else {
        KELP_CUDA_LAUNCH(stream, add_columns<false>, blocks, KELP_CUDA_THREADS, *p);
    }
}

/* With as few sums a thread for each would leave a device idle. A block's threads are WIDE columns
 * side by side, where there are as many. */
#define FEW_SUMS   65536u
#define SHORT_SUMS 64u
#define WIDE       (4u * KELP_CUDA_WARP)

/* For what a first launch has left of long sums: hundreds of short rows in a cache, which wide
 * blocks would go through in few threads. The narrowest take 64 bytes of a row. */
static void make_narrow(struct kelp__cuda_columns *plan)
{
    while (plan->across > 4 && plan->rows > KELP_CUDA_COLUMN_ROWS * plan->lines) {
        plan->across /= 2;
        plan->lines *= 2;
    }
    plan->blocks = (plan->columns + 4 * plan->across - 1) / (4 * plan->across);
}

static void sum_columns(struct kelp_stream *stream, struct column_sums *p, uint64_t rows,
                        uint64_t columns)
{
    const uint64_t sums = p->outer * columns;
    const bool vector = columns % 4 == 0 && p->ld % 4 == 0 && p->stride % 4 == 0 &&
                        kelp__cuda_aligned(p->x) && kelp__cuda_aligned(p->y);
    const bool short_sums = rows <= SHORT_SUMS, many = sums / 4 >= FEW_SUMS;
    p->plan = kelp__cuda_plan_columns(p->outer, rows, columns);
    if (short_sums || many || (sums >= FEW_SUMS && columns < WIDE)) {
        launch_column(stream, p, vector && many);
        return;
    }
    if (p->plan.parts == 1) {
        launch_columns(stream, p, vector);
        return;
    }
    const uint64_t parts = p->plan.parts;
    float *partial = static_cast<float *>(
        kelp__cuda_scratch(kelp__cuda_stream_of(stream), parts * sums * sizeof(*partial)));
    if (!partial) {
        return;
    }
    struct column_sums pieces = *p, whole = *p;
    pieces.y = partial;
    pieces.scale = 1.0f;
    pieces.write = KELP_OVERWRITE;
    launch_columns(stream, &pieces, vector);
    whole.x = partial;
    whole.ld = columns;
    whole.stride = parts * columns;
    whole.plan.rows = whole.plan.part_rows = parts;
    whole.plan.parts = 1;
    make_narrow(&whole.plan);
    launch_columns(stream, &whole, columns % 4 == 0);
}

void kelp__cuda_bias_gradient(struct kelp_stream *stream, const struct kelp_bias_gradient *p)
{
    struct column_sums sums = {p->matrix, p->ld, 0, 1, p->bias, 1.0f, p->write, {}};
    sum_columns(stream, &sums, p->rows, p->columns);
}

void kelp__cuda_add_rows(struct kelp_stream *stream, const float *x, uint64_t rows,
                         uint64_t columns, float *y, enum kelp_write write)
{
    struct column_sums sums = {x, columns, 0, 1, y, 1.0f, write, {}};
    sums.plan = kelp__cuda_plan_columns(1, rows, columns);
    sums.plan.parts = 1;
    sums.plan.part_rows = rows;
    make_narrow(&sums.plan);
    launch_columns(stream, &sums, columns % 4 == 0 && kelp__cuda_aligned(x));
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* y[r] = or += scale times the sum of row r of x; or of each part of it, to y [rows, parts]. */
struct row_sums {
    const float *x;
    float *y;
    uint64_t rows, columns;
    uint64_t parts, part_columns;
    uint32_t lanes;
    float scale;
    enum kelp_write write;
};

/* What a thread adds up of a row. */
template <enum kelp__cuda_layout layout>
static __device__ __forceinline__ float sum_of_lane(const float *x, uint64_t count, uint32_t lane,
                                                    uint32_t lanes)
{
    float sum = 0.0f;
    if constexpr (layout == KELP_CUDA_SINGLES) {
        KELP_CUDA_UNROLL(8)
        KELP_CUDA_STEPS(c, lane, count, lanes)
        {
            sum = sum + x[c];
        }
    } else {
        KELP_CUDA_UNROLL(4)
        KELP_CUDA_STEPS(c, 4 * lane, count, 4 * lanes)
        {
            const float4 values = kelp__cuda_load(x + c, layout == KELP_CUDA_VECTORS);
            sum = sum + ((values.x + values.y) + (values.z + values.w));
        }
    }
    return sum;
}

template <enum kelp__cuda_layout layout> static __global__ void add_row(const struct row_sums p)
{
    KELP_CUDA_SHARED float partial[KELP_CUDA_THREADS / KELP_CUDA_WARP];
    const uint32_t lane = threadIdx.x % p.lanes, group = threadIdx.x / p.lanes;
    const uint64_t groups = KELP_CUDA_THREADS / p.lanes, pieces = p.rows * p.parts;
    for (uint64_t first = blockIdx.x * groups; first < pieces; first += gridDim.x * groups) {
        const uint64_t piece = first + group;
        const uint64_t begin = piece % p.parts * p.part_columns, left = p.columns - begin;
        const uint64_t count = left < p.part_columns ? left : p.part_columns;
        const float *x = p.x + piece / p.parts * p.columns + begin;
        float sum = sum_of_lane<layout>(x, piece < pieces ? count : 0, lane, p.lanes);
        sum = kelp__cuda_group_sum(sum, p.lanes, partial);
        if (lane == 0 && piece < pieces) {
            kelp__cuda_put(p.y + piece, p.scale * sum, p.write);
        }
    }
}

static void launch_rows(struct kelp_stream *stream, const struct row_sums *p)
{
    static void (*const kernels[KELP_CUDA_LAYOUTS])(const struct row_sums) = {
        add_row<KELP_CUDA_SINGLES>, add_row<KELP_CUDA_QUADS>, add_row<KELP_CUDA_VECTORS>};
    const enum kelp__cuda_layout layout =
        kelp__cuda_layout_of(p->columns, kelp__cuda_aligned(p->x));
    KELP_CUDA_LAUNCH(stream, kernels[layout], kelp__cuda_row_blocks(p->rows * p->parts, p->lanes),
                     KELP_CUDA_THREADS, *p);
}

#define ROW_BLOCKS   1024u /* of all parts, if rows are long enough */
#define PART_COLUMNS 8192u /* at least, of a part */

static void sum_rows(struct kelp_stream *stream, const struct kelp_reduce *p)
{
    struct row_sums sums = {
        p->x,     p->y,    p->outer, p->middle, 1, p->middle, kelp__cuda_lanes(p->middle),
        p->scale, p->write};
    const uint64_t most = (p->middle + PART_COLUMNS - 1) / PART_COLUMNS;
    const uint64_t wanted = p->outer != 0 ? ROW_BLOCKS / p->outer : 0;
    const uint64_t parts = wanted < most ? wanted : most;
    if (parts < 2) {
        launch_rows(stream, &sums);
        return;
    }
    struct row_sums pieces = sums;
    pieces.part_columns = (p->middle + 4 * parts - 1) / (4 * parts) * 4;
    pieces.parts = (p->middle + pieces.part_columns - 1) / pieces.part_columns;
    pieces.y = static_cast<float *>(kelp__cuda_scratch(
        kelp__cuda_stream_of(stream), p->outer * pieces.parts * sizeof(*pieces.y)));
    if (!pieces.y) {
        return;
    }
    pieces.scale = 1.0f;
    pieces.write = KELP_OVERWRITE;
    launch_rows(stream, &pieces);
    sums.x = pieces.y;
    sums.columns = sums.part_columns = pieces.parts;
    sums.lanes = kelp__cuda_lanes(pieces.parts);
    launch_rows(stream, &sums);
}

void kelp__cuda_reduce(struct kelp_stream *stream, const struct kelp_reduce *p)
{
    if (p->inner == 1) {
        sum_rows(stream, p);
        return;
    }
    struct column_sums sums = {p->x,     p->inner, p->middle * p->inner, p->outer, p->y, p->scale,
                               p->write, {}};
    sum_columns(stream, &sums, p->middle, p->inner);
}

/* ---- weighted sums --------------------------------------------------------------------------- */

static __global__ void weighted_sum(const struct kelp_weighted_sum p,
                                    const struct kelp__cuda_long_divider by_width)
{
    KELP_CUDA_FOR (i, (uint64_t)p.rows * p.width) {
        const uint64_t r = kelp__cuda_long_divide(by_width, i);
        const float *weights = p.weights + r * p.count;
        const float *x = p.x + r * p.count * p.width + (i - r * p.width);
        float sum = 0.0f;
        KELP_CUDA_UNROLL(8)
        for (uint32_t j = 0; j < p.count; j++) {
            sum = sum + weights[j] * x[(uint64_t)j * p.width];
        }
        p.y[i] = sum;
    }
}

/* The same for four neighbours; by_width is in fours. */
static __global__ void weighted_sum_vectors(const struct kelp_weighted_sum p,
                                            const struct kelp__cuda_long_divider by_width)
{
    KELP_CUDA_FOR (i, p.rows * by_width.by) {
        const uint64_t r = kelp__cuda_long_divide(by_width, i);
        const float *weights = p.weights + r * p.count;
        const float *x = p.x + r * p.count * p.width + (4 * i - r * p.width);
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        KELP_CUDA_UNROLL(4)
        for (uint32_t j = 0; j < p.count; j++) {
            const float weight = weights[j];
            const float4 values = kelp__cuda_load(x + (uint64_t)j * p.width, true);
            sum = kelp__cuda_add(sum, make_float4(weight * values.x, weight * values.y,
                                                  weight * values.z, weight * values.w));
        }
        kelp__cuda_store(p.y + 4 * i, sum, true);
    }
}

void kelp__cuda_weighted_sum(struct kelp_stream *stream, const struct kelp_weighted_sum *p)
{
    const uint64_t sums = (uint64_t)p->rows * p->width;
    if (p->width % 4 == 0 && sums / 4 >= FEW_SUMS && kelp__cuda_aligned(p->x) &&
        kelp__cuda_aligned(p->y)) {
        KELP_CUDA_LAUNCH(stream, weighted_sum_vectors, kelp__cuda_blocks(sums / 4),
                         KELP_CUDA_THREADS, *p, kelp__cuda_long_divider_of(p->width / 4));
    } else {
        KELP_CUDA_LAUNCH(stream, weighted_sum, kelp__cuda_blocks(sums), KELP_CUDA_THREADS, *p,
                         kelp__cuda_long_divider_of(p->width));
    }
}

/* Row i of x, one of all rows and counts, by the threads of a group: what each adds to the product
 * with dy's row, and the row of dx. */
template <enum kelp__cuda_layout layout>
static __device__ __forceinline__ float weighted_row(const struct kelp_weighted_sum &p, uint64_t i,
                                                     uint32_t lane, uint32_t lanes)
{
    const bool vector = layout == KELP_CUDA_VECTORS;
    const float *__restrict__ dy = p.dy + i / p.count * p.width;
    const float *__restrict__ x = p.x + i * p.width;
    float *__restrict__ dx = p.dx + i * p.width;
    const float weight = p.dx ? p.weights[i] : 0.0f;
    float dot = 0.0f;
    if constexpr (layout == KELP_CUDA_SINGLES) {
        KELP_CUDA_UNROLL(4)
        KELP_CUDA_STEPS(d, lane, p.width, lanes)
        {
            const float slope = dy[d];
            if (p.dweights) {
                dot = dot + slope * x[d];
            }
            if (p.dx) {
                kelp__cuda_put(dx + d, weight * slope, p.write_x);
            }
        }
    } else {
        KELP_CUDA_UNROLL(2)
        KELP_CUDA_STEPS(d, 4 * lane, p.width, 4 * lanes)
        {
            const float4 slopes = kelp__cuda_load(dy + d, vector);
            if (p.dweights) {
                const float4 values = kelp__cuda_load(x + d, vector);
                dot = dot + ((slopes.x * values.x + slopes.y * values.y) +
                             (slopes.z * values.z + slopes.w * values.w));
            }
            if (p.dx) {
                kelp__cuda_put4(dx + d,
                                make_float4(weight * slopes.x, weight * slopes.y, weight * slopes.z,
                                            weight * slopes.w),
                                p.write_x, vector);
            }
        }
    }
    return dot;
}

template <enum kelp__cuda_layout layout>
static __global__ void weighted_sum_gradient(const struct kelp_weighted_sum p, uint32_t lanes)
{
    KELP_CUDA_SHARED float partial[KELP_CUDA_THREADS / KELP_CUDA_WARP];
    const uint32_t lane = threadIdx.x % lanes, group = threadIdx.x / lanes;
    const uint64_t groups = KELP_CUDA_THREADS / lanes, rows = (uint64_t)p.rows * p.count;
    for (uint64_t first = blockIdx.x * groups; first < rows; first += gridDim.x * groups) {
        const uint64_t i = first + group;
        float dot = i < rows ? weighted_row<layout>(p, i, lane, lanes) : 0.0f;
        dot = kelp__cuda_group_sum(dot, lanes, partial);
        if (p.dweights && lane == 0 && i < rows) {
            kelp__cuda_put(p.dweights + i, dot, p.write_weights);
        }
    }
}

void kelp__cuda_weighted_sum_gradient(struct kelp_stream *stream, const struct kelp_weighted_sum *p)
{
    static void (*const kernels[KELP_CUDA_LAYOUTS])(const struct kelp_weighted_sum, uint32_t) = {
        weighted_sum_gradient<KELP_CUDA_SINGLES>, weighted_sum_gradient<KELP_CUDA_QUADS>,
        weighted_sum_gradient<KELP_CUDA_VECTORS>};
    const uint32_t lanes = kelp__cuda_lanes(p->width);
    const enum kelp__cuda_layout layout =
        kelp__cuda_layout_of(p->width, kelp__cuda_aligned(p->x) && kelp__cuda_aligned(p->dy) &&
                                           kelp__cuda_aligned(p->dx));
    if (p->dweights || p->dx) {
        KELP_CUDA_LAUNCH(stream, kernels[layout],
                         kelp__cuda_row_blocks((uint64_t)p->rows * p->count, lanes),
                         KELP_CUDA_THREADS, *p, lanes);
    }
}

/* ---- moving averages: sums in the CPU's order, so its bits ----------------------------------- */

static __global__ void moving_average(const struct kelp_moving_average p)
{
    const uint64_t length = p.length, half = (p.kernel_size - 1) / 2;
    const float divisor = (float)p.kernel_size;
    KELP_CUDA_FOR (i, p.rows * length) {
        const uint64_t t = i % length;
        const float *x = p.x + (i - t);
        float sum = 0.0f;
        if (t >= half && t + half < length) {
            KELP_CUDA_UNROLL(4)
            for (uint64_t k = t - half; k < t + half + 1; k++) {
                sum = sum + x[k];
            }
        } else {
            for (uint64_t k = t; k <= t + 2 * half; k++) {
                const uint64_t at = k > half ? k - half : 0;
                sum = sum + x[at < length ? at : length - 1];
            }
        }
        p.y[i] = sum / divisor;
    }
}

void kelp__cuda_moving_average(struct kelp_stream *stream, const struct kelp_moving_average *p)
{
    KELP_CUDA_LAUNCH(stream, moving_average, kelp__cuda_blocks((uint64_t)p->rows * p->length),
                     KELP_CUDA_THREADS, *p);
}

/* The gradient of element j of a padded row: of the averages that it takes part in. */
static __device__ __forceinline__ float padded_slope(const float *dy, uint64_t length,
                                                     uint64_t width, uint64_t j)
{
    const uint64_t last = j < length ? j : length - 1;
    float sum = 0.0f;
    KELP_CUDA_UNROLL(4)
    for (uint64_t t = j >= width ? j - width + 1 : 0; t < last + 1; t++) {
        sum = sum + dy[t];
    }
    return sum;
}

/* Of all elements but the first and the last of a row. */
static __global__ void average_gradient(const struct kelp_moving_average p)
{
    const uint64_t length = p.length, half = (p.kernel_size - 1) / 2;
    const float divisor = (float)p.kernel_size;
    KELP_CUDA_FOR (i, p.rows * length) {
        const uint64_t t = i % length;
        if (t != 0 && t != length - 1) {
            const float sum = padded_slope(p.x + (i - t), length, p.kernel_size, half + t);
            kelp__cuda_put(p.y + i, sum / divisor, p.write);
        }
    }
}

/* sum and the slopes of elements `first` to `end` of a padded row, one after the other; the lanes
 * of a warp find 32 of them at once. */
static __device__ __forceinline__ float add_padding(float sum, const float *dy,
                                                    const struct kelp_moving_average &p,
                                                    uint64_t first, uint64_t end)
{
    const uint32_t lane = threadIdx.x % KELP_CUDA_WARP;
    for (uint64_t begin = first; begin < end; begin += KELP_CUDA_WARP) {
        const uint32_t count =
            end - begin < KELP_CUDA_WARP ? (uint32_t)(end - begin) : KELP_CUDA_WARP;
        const float slope =
            lane < count ? padded_slope(dy, p.length, p.kernel_size, begin + lane) : 0.0f;
        for (uint32_t k = 0; k < count; k++) {
            sum = sum + __shfl_sync(0xffffffffu, slope, (int)k);
        }
    }
    return sum;
}

/* The first and the last of each row, to which the gradient of the repeated values goes: a warp for
 * each row. */
static __global__ void average_gradient_ends(const struct kelp_moving_average p)
{
    const uint64_t length = p.length, width = p.kernel_size, half = (width - 1) / 2;
    const uint64_t warps = (uint64_t)gridDim.x * (blockDim.x / KELP_CUDA_WARP);
    const uint64_t warp = ((uint64_t)blockIdx.x * blockDim.x + threadIdx.x) / KELP_CUDA_WARP;
    const float divisor = (float)p.kernel_size;
    for (uint64_t r = warp; r < p.rows; r += warps) {
        const float *dy = p.x + r * length;
        float *dx = p.y + r * length;
        const float first = add_padding(padded_slope(dy, length, width, half), dy, p, 0, half);
        const float before =
            length == 1 ? first : padded_slope(dy, length, width, half + length - 1);
        const float last = add_padding(before, dy, p, half + length, length + 2 * half);
        if (threadIdx.x % KELP_CUDA_WARP == 0) {
            if (length > 1) {
                kelp__cuda_put(dx, first / divisor, p.write);
            }
            kelp__cuda_put(dx + length - 1, last / divisor, p.write);
        }
    }
}

void kelp__cuda_moving_average_gradient(struct kelp_stream *stream,
                                        const struct kelp_moving_average *p)
{
    if (p->length == 0) {
        return;
    }
    KELP_CUDA_LAUNCH(stream, average_gradient, kelp__cuda_blocks((uint64_t)p->rows * p->length),
                     KELP_CUDA_THREADS, *p);
    KELP_CUDA_LAUNCH(stream, average_gradient_ends, kelp__cuda_row_blocks(p->rows, KELP_CUDA_WARP),
                     KELP_CUDA_THREADS, *p);
}

/*
 * Softmax and layer norm: operators that look at a whole row of a matrix before they write any of
 * it. See kernels/operators.h for what each does.
 *
 * A group of threads keeps its row in registers, where it fits; the kernels for longer rows read it
 * again, from the caches most of the time.
 */
#include "kernels/cuda/groups.cuh"

/* ---- rows in registers ----------------------------------------------------------------------- */

/* Shapes of a group: 16 << i columns at most of shape i, and behind the shapes whatever is longer.
 * A group has up to 32 threads of 4 elements, a warp with 8 and 16, a block with 4, 8 and 16. */
#define SHAPES 9
struct row_plan {
    uint64_t rows;
    uint32_t columns;
    uint32_t shape; /* SHAPES: too long for registers */
    bool quads;     /* how columns are dealt to threads */
    bool vector;    /* quads are loaded and stored as such */
};

static struct row_plan plan_rows(uint64_t rows, uint32_t columns, bool aligned)
{
    struct row_plan plan = {rows, columns, 0, columns % 4 == 0, columns % 4 == 0 && aligned};
    while (plan.shape < SHAPES && 16u << plan.shape < columns) {
        plan.shape++;
    }
    return plan;
}

static uint32_t lanes_of(const struct row_plan *plan)
{
    return plan->shape < 3 ? 4u << plan->shape : plan->shape < 6 ? 32u : KELP_CUDA_THREADS;
}

/* Kernel `kernel` of the plan's shape, `long_kernel` where there is none. */
#define KERNELS(kernel, long_kernel, quads)                                                        \
    {                                                                                              \
        kernel<4, 4, quads>, kernel<8, 4, quads>, kernel<16, 4, quads>, kernel<32, 4, quads>,      \
            kernel<32, 8, quads>, kernel<32, 16, quads>, kernel<256, 4, quads>,                    \
            kernel<256, 8, quads>, kernel<256, 16, quads>, long_kernel                             \
    }
#define LAUNCH_ROWS(stream, kernel, long_kernel, type, plan, p)                                    \
    do {                                                                                           \
        static void (*const kernels_[2][SHAPES + 1])(const struct type, const struct row_plan) = { \
            KERNELS(kernel, long_kernel, false), KERNELS(kernel, long_kernel, true)};              \
        KELP_CUDA_LAUNCH(stream, kernels_[(plan).quads ? 1 : 0][(plan).shape],                     \
                         kelp__cuda_row_blocks((plan).rows, lanes_of(&(plan))), KELP_CUDA_THREADS, \
                         p, plan);                                                                 \
    } while (0)

/* The row of a group of threads, again and again. All threads of a block do as many rounds, since
 * there are barriers: width_of() a row behind the last one is 0. */
#define FOR_ROWS(row, lanes, plan)                                                                 \
    for (uint64_t row =                                                                            \
             (uint64_t)blockIdx.x * (KELP_CUDA_THREADS / (lanes)) + threadIdx.x / (lanes);         \
         row - threadIdx.x / (lanes) < (plan).rows;                                                \
         row += (uint64_t)gridDim.x * (KELP_CUDA_THREADS / (lanes)))

static __device__ __forceinline__ uint32_t width_of(uint64_t row, const struct row_plan &plan)
{
    return row < plan.rows ? plan.columns : 0;
}

/* The column of a thread's element i. */
template <uint32_t lanes, bool quads>
static __device__ __forceinline__ uint32_t column_of(uint32_t i)
{
    const uint32_t lane = threadIdx.x % lanes;
    return quads ? i / 4 * 4 * lanes + 4 * lane + i % 4 : i * lanes + lane;
}

/* A thread's elements of the first `columns` of a row; a whole number of quads where those are
 * dealt. `otherwise` stands for those behind them. */
template <uint32_t lanes, bool quads, uint32_t size>
static __device__ __forceinline__ void load_row(float (&values)[size], const float *x,
                                                uint32_t columns, float otherwise, bool vector)
{
    if (quads && vector) {
        KELP_CUDA_UNROLL_ALL
        for (uint32_t i = 0; i < size; i += 4) {
            const uint32_t c = column_of<lanes, quads>(i);
            const float4 quad = c < columns
                                    ? kelp__cuda_load(x + c, true)
                                    : make_float4(otherwise, otherwise, otherwise, otherwise);
            values[i] = quad.x;
            values[i + 1] = quad.y;
            values[i + 2] = quad.z;
            values[i + 3] = quad.w;
        }
    } else {
        KELP_CUDA_UNROLL_ALL
        for (uint32_t i = 0; i < size; i++) {
            const uint32_t c = column_of<lanes, quads>(i);
            values[i] = c < columns ? x[c] : otherwise;
        }
    }
}

template <uint32_t lanes, bool quads, uint32_t size>
static __device__ __forceinline__ void put_row(float *y, const float (&values)[size],
                                               uint32_t columns, enum kelp_write write, bool vector)
{
    if (quads && vector) {
        KELP_CUDA_UNROLL_ALL
        for (uint32_t i = 0; i < size; i += 4) {
            const uint32_t c = column_of<lanes, quads>(i);
            if (c < columns) {
                kelp__cuda_put4(y + c,
                                make_float4(values[i], values[i + 1], values[i + 2], values[i + 3]),
                                write, true);
            }
        }
    } else {
        KELP_CUDA_UNROLL_ALL
        for (uint32_t i = 0; i < size; i++) {
            const uint32_t c = column_of<lanes, quads>(i);
            if (c < columns) {
                kelp__cuda_put(y + c, values[i], write);
            }
        }
    }
}

/* The loop of a block over a row that is too long for registers. */
#define FOR_COLUMNS(c, columns)                                                                    \
    KELP_CUDA_UNROLL(4)                                                                            \
    KELP_CUDA_STEPS(c, threadIdx.x, (columns), KELP_CUDA_THREADS)

#define PARTIAL (KELP_CUDA_THREADS / KELP_CUDA_WARP)

/* ---- softmax --------------------------------------------------------------------------------- */

static __device__ __forceinline__ float lowest(void)
{
    return -__builtin_inff();
}

/* What row r sees of its columns. */
static __device__ __forceinline__ uint32_t visible(const struct kelp_softmax &p, uint64_t r)
{
    if (!p.causal) {
        return p.columns;
    }
    const uint64_t end = r % p.queries + p.offset + 1;
    return end < p.columns ? (uint32_t)end : p.columns;
}

static __device__ __forceinline__ float logarithm(float value)
{
    return (float)kelp__math_log((double)value);
}

template <uint32_t lanes, uint32_t size, bool quads>
static __global__ void softmax(const struct kelp_softmax p, const struct row_plan plan)
{
    KELP_CUDA_SHARED float partial[PARTIAL];
    FOR_ROWS (r, lanes, plan) {
        const uint32_t width = width_of(r, plan);
        const uint32_t seen = width != 0 ? visible(p, r) : 0;
        float values[size], largest = lowest(), sum = 0.0f;
        load_row<lanes, quads>(values, p.x + r * p.columns, width, lowest(), plan.vector);
        KELP_CUDA_UNROLL_ALL
        for (uint32_t i = 0; i < size; i++) {
            const bool sees = column_of<lanes, quads>(i) < seen;
            largest = sees && values[i] > largest ? values[i] : largest;
        }
        largest = kelp__cuda_group_max(largest, lanes, partial);
        KELP_CUDA_UNROLL_ALL
        for (uint32_t i = 0; i < size; i++) {
            const bool sees = column_of<lanes, quads>(i) < seen;
            values[i] = values[i] - largest;
            const float exponential = sees ? kelp__math_exp(values[i]) : 0.0f;
            sum = sum + exponential;
            values[i] = p.logarithm ? values[i] : exponential;
        }
        sum = kelp__cuda_group_sum(sum, lanes, partial);
        const float taken = p.logarithm ? logarithm(sum) : 0.0f;
        KELP_CUDA_UNROLL_ALL
        for (uint32_t i = 0; i < size; i++) {
            const bool sees = column_of<lanes, quads>(i) < seen;
            values[i] = p.logarithm ? values[i] - taken : sees ? values[i] / sum : 0.0f;
        }
        put_row<lanes, quads>(p.y + r * p.columns, values, width, KELP_OVERWRITE, plan.vector);
    }
}

static __global__ void softmax_long(const struct kelp_softmax p, const struct row_plan plan)
{
    KELP_CUDA_SHARED float partial[PARTIAL];
    FOR_ROWS (r, KELP_CUDA_THREADS, plan) {
        const uint32_t width = plan.columns;
        const uint32_t seen = visible(p, r);
        const float *x = p.x + r * p.columns;
        float *y = p.y + r * p.columns;
        float largest = lowest(), sum = 0.0f;
        FOR_COLUMNS (c, seen) {
            largest = x[c] > largest ? x[c] : largest;
        }
        largest = kelp__cuda_group_max(largest, KELP_CUDA_THREADS, partial);
        FOR_COLUMNS (c, seen) {
            sum = sum + kelp__math_exp(x[c] - largest);
        }
        sum = kelp__cuda_group_sum(sum, KELP_CUDA_THREADS, partial);
        const float taken = p.logarithm ? logarithm(sum) : 0.0f;
        FOR_COLUMNS (c, width) {
            const float value = x[c] - largest;
            const float share = p.logarithm ? value - taken : kelp__math_exp(value) / sum;
            y[c] = c < seen ? share : 0.0f;
        }
    }
}

void kelp__cuda_softmax(struct kelp_stream *stream, const struct kelp_softmax *p)
{
    const struct row_plan plan = plan_rows(p->columns != 0 ? p->rows : 0, p->columns,
                                           kelp__cuda_aligned(p->x) && kelp__cuda_aligned(p->y));
    LAUNCH_ROWS(stream, softmax, softmax_long, kelp_softmax, plan, *p);
}

/* What the sum of a row is of: y dy, of the logarithm dy alone. */
static __device__ __forceinline__ float softmax_term(float y, float dy, bool logarithm)
{
    return logarithm ? dy : y * dy;
}
static __device__ __forceinline__ float softmax_slope(float y, float dy, float sum, bool logarithm)
{
    return logarithm ? dy - kelp__math_exp(y) * sum : y * (dy - sum);
}

template <uint32_t lanes, uint32_t size, bool quads>
static __global__ void softmax_gradient(const struct kelp_softmax p, const struct row_plan plan)
{
    KELP_CUDA_SHARED float partial[PARTIAL];
    FOR_ROWS (r, lanes, plan) {
        const uint32_t width = width_of(r, plan);
        float y[size], dy[size], sum = 0.0f;
        load_row<lanes, quads>(y, p.y + r * p.columns, width, 0.0f, plan.vector);
        load_row<lanes, quads>(dy, p.dy + r * p.columns, width, 0.0f, plan.vector);
        KELP_CUDA_UNROLL_ALL
        for (uint32_t i = 0; i < size; i++) {
            sum = sum + softmax_term(y[i], dy[i], p.logarithm);
        }
        sum = kelp__cuda_group_sum(sum, lanes, partial);
        KELP_CUDA_UNROLL_ALL
        for (uint32_t i = 0; i < size; i++) {
            dy[i] = softmax_slope(y[i], dy[i], sum, p.logarithm);
        }
        put_row<lanes, quads>(p.dx + r * p.columns, dy, width, p.write, plan.vector);
    }
}

static __global__ void softmax_gradient_long(const struct kelp_softmax p,
                                             const struct row_plan plan)
{
    KELP_CUDA_SHARED float partial[PARTIAL];
    FOR_ROWS (r, KELP_CUDA_THREADS, plan) {
        const uint32_t width = plan.columns;
        const float *y = p.y + r * p.columns, *dy = p.dy + r * p.columns;
        float *dx = p.dx + r * p.columns, sum = 0.0f;
        FOR_COLUMNS (c, width) {
            sum = sum + softmax_term(y[c], dy[c], p.logarithm);
        }
        sum = kelp__cuda_group_sum(sum, KELP_CUDA_THREADS, partial);
        FOR_COLUMNS (c, width) {
            kelp__cuda_put(dx + c, softmax_slope(y[c], dy[c], sum, p.logarithm), p.write);
        }
    }
}

void kelp__cuda_softmax_gradient(struct kelp_stream *stream, const struct kelp_softmax *p)
{
    const struct row_plan plan = plan_rows(p->columns != 0 ? p->rows : 0, p->columns,
                                           kelp__cuda_aligned(p->y) && kelp__cuda_aligned(p->dy) &&
                                               kelp__cuda_aligned(p->dx));
    LAUNCH_ROWS(stream, softmax_gradient, softmax_gradient_long, kelp_softmax, plan, *p);
}

/* ---- layer norm ------------------------------------------------------------------------------ */

template <uint32_t lanes, uint32_t size, bool quads>
static __global__ void layer_norm(const struct kelp_layer_norm p, const struct row_plan plan)
{
    KELP_CUDA_SHARED float partial[PARTIAL];
    FOR_ROWS (r, lanes, plan) {
        const uint32_t width = width_of(r, plan);
        float values[size], weight[size], bias[size], sum = 0.0f, squares = 0.0f;
        load_row<lanes, quads>(values, p.x + r * p.width, width, 0.0f, plan.vector);
        KELP_CUDA_UNROLL_ALL
        for (uint32_t i = 0; i < size; i++) {
            sum = sum + values[i];
        }
        const float mean = kelp__cuda_group_sum(sum, lanes, partial) / (float)p.width;
        KELP_CUDA_UNROLL_ALL
        for (uint32_t i = 0; i < size; i++) {
            values[i] = values[i] - mean;
            const bool there = column_of<lanes, quads>(i) < width;
            squares = squares + (there ? values[i] * values[i] : 0.0f);
        }
        const float variance = kelp__cuda_group_sum(squares, lanes, partial) / (float)p.width;
        const float rstd = 1.0f / sqrtf(variance + p.eps);
        load_row<lanes, quads>(weight, p.weight, width, 0.0f, plan.vector);
        load_row<lanes, quads>(bias, p.bias, width, 0.0f, plan.vector);
        KELP_CUDA_UNROLL_ALL
        for (uint32_t i = 0; i < size; i++) {
            values[i] = values[i] * rstd * weight[i] + bias[i];
        }
        put_row<lanes, quads>(p.y + r * p.width, values, width, KELP_OVERWRITE, plan.vector);
        if (threadIdx.x % lanes == 0 && width != 0) {
            p.mean[r] = mean;
            p.rstd[r] = rstd;
        }
    }
}

static __global__ void layer_norm_long(const struct kelp_layer_norm p, const struct row_plan plan)
{
    KELP_CUDA_SHARED float partial[PARTIAL];
    FOR_ROWS (r, KELP_CUDA_THREADS, plan) {
        const uint32_t width = plan.columns;
        const float *__restrict__ x = p.x + r * p.width;
        float *__restrict__ y = p.y + r * p.width;
        float sum = 0.0f, squares = 0.0f;
        FOR_COLUMNS (c, width) {
            sum = sum + x[c];
        }
        const float mean = kelp__cuda_group_sum(sum, KELP_CUDA_THREADS, partial) / (float)width;
        FOR_COLUMNS (c, width) {
            squares = squares + (x[c] - mean) * (x[c] - mean);
        }
        const float variance =
            kelp__cuda_group_sum(squares, KELP_CUDA_THREADS, partial) / (float)width;
        const float rstd = 1.0f / sqrtf(variance + p.eps);
        FOR_COLUMNS (c, width) {
            y[c] = (x[c] - mean) * rstd * p.weight[c] + p.bias[c];
        }
        if (threadIdx.x == 0) {
            p.mean[r] = mean;
            p.rstd[r] = rstd;
        }
    }
}

void kelp__cuda_layer_norm(struct kelp_stream *stream, const struct kelp_layer_norm *p)
{
    const struct row_plan plan =
        plan_rows(p->width != 0 ? p->rows : 0, p->width,
                  kelp__cuda_aligned(p->x) && kelp__cuda_aligned(p->y) &&
                      kelp__cuda_aligned(p->weight) && kelp__cuda_aligned(p->bias));
    LAUNCH_ROWS(stream, layer_norm, layer_norm_long, kelp_layer_norm, plan, *p);
}

/* The gradient of one element: g is dy weight, the other two are means over the row. */
static __device__ __forceinline__ float layer_norm_slope(float g, float centred, float rstd,
                                                         float sum, float dot)
{
    return rstd * (g - sum - centred * rstd * dot);
}

template <uint32_t lanes, uint32_t size, bool quads>
static __global__ void layer_norm_dx(const struct kelp_layer_norm p, const struct row_plan plan)
{
    KELP_CUDA_SHARED float partial[PARTIAL];
    FOR_ROWS (r, lanes, plan) {
        const uint32_t width = width_of(r, plan);
        const float mean = width != 0 ? p.mean[r] : 0.0f, rstd = width != 0 ? p.rstd[r] : 0.0f;
        float x[size], g[size], weight[size], sum = 0.0f, dot = 0.0f;
        load_row<lanes, quads>(x, p.x + r * p.width, width, 0.0f, plan.vector);
        load_row<lanes, quads>(g, p.dy + r * p.width, width, 0.0f, plan.vector);
        load_row<lanes, quads>(weight, p.weight, width, 0.0f, plan.vector);
        KELP_CUDA_UNROLL_ALL
        for (uint32_t i = 0; i < size; i++) { /* behind the row g is 0, and adds nothing */
            g[i] = g[i] * weight[i];
            x[i] = x[i] - mean;
            const bool there = column_of<lanes, quads>(i) < width;
            sum = sum + g[i];
            dot = dot + (there ? g[i] * (x[i] * rstd) : 0.0f);
        }
        sum = kelp__cuda_group_sum(sum, lanes, partial) / (float)p.width;
        dot = kelp__cuda_group_sum(dot, lanes, partial) / (float)p.width;
        KELP_CUDA_UNROLL_ALL
        for (uint32_t i = 0; i < size; i++) {
            g[i] = layer_norm_slope(g[i], x[i], rstd, sum, dot);
        }
        put_row<lanes, quads>(p.dx + r * p.width, g, width, p.write_x, plan.vector);
    }
}

static __global__ void layer_norm_dx_long(const struct kelp_layer_norm p,
                                          const struct row_plan plan)
{
    KELP_CUDA_SHARED float partial[PARTIAL];
    FOR_ROWS (r, KELP_CUDA_THREADS, plan) {
        const uint32_t width = plan.columns;
        const float mean = p.mean[r], rstd = p.rstd[r];
        const float *__restrict__ x = p.x + r * p.width;
        const float *__restrict__ dy = p.dy + r * p.width;
        float *__restrict__ dx = p.dx + r * p.width;
        float sum = 0.0f, dot = 0.0f;
        FOR_COLUMNS (c, width) {
            const float g = dy[c] * p.weight[c];
            sum = sum + g;
            dot = dot + g * ((x[c] - mean) * rstd);
        }
        sum = kelp__cuda_group_sum(sum, KELP_CUDA_THREADS, partial) / (float)width;
        dot = kelp__cuda_group_sum(dot, KELP_CUDA_THREADS, partial) / (float)width;
        FOR_COLUMNS (c, width) {
            const float g = dy[c] * p.weight[c];
            kelp__cuda_put(dx + c, layer_norm_slope(g, x[c] - mean, rstd, sum, dot), p.write_x);
        }
    }
}

/* The sums of dy times the normalised x, and of dy, over a part of the rows: to dweight and dbias
 * [parts, width]. */
template <bool vector>
static __global__ void layer_norm_columns(const struct kelp_layer_norm p,
                                          const struct kelp__cuda_columns plan)
{
    KELP_CUDA_SHARED float4 partial[KELP_CUDA_THREADS];
    const uint32_t lane = threadIdx.x % plan.across, line = threadIdx.x / plan.across;
    const uint64_t c = (blockIdx.x % plan.blocks * plan.across + lane) * 4;
    const uint64_t part = blockIdx.x / plan.blocks, first = part * plan.part_rows;
    const uint64_t last = first + plan.part_rows < plan.rows ? first + plan.part_rows : plan.rows;
    const uint64_t left = c < plan.columns ? plan.columns - c : 0;
    const float *x = p.x + c, *dy = p.dy + c;
    float4 dot = make_float4(0.0f, 0.0f, 0.0f, 0.0f), sum = dot;
    KELP_CUDA_UNROLL(4)
    KELP_CUDA_STEPS(r, left != 0 ? first + line : last, last, plan.lines)
    {
        const uint64_t at = r * plan.columns;
        const float mean = p.mean[r], rstd = p.rstd[r];
        const float4 values =
            vector ? kelp__cuda_load(x + at, true) : kelp__cuda_load_some(x + at, left);
        const float4 slopes =
            vector ? kelp__cuda_load(dy + at, true) : kelp__cuda_load_some(dy + at, left);
        dot.x = dot.x + slopes.x * ((values.x - mean) * rstd);
        dot.y = dot.y + slopes.y * ((values.y - mean) * rstd);
        dot.z = dot.z + slopes.z * ((values.z - mean) * rstd);
        dot.w = dot.w + slopes.w * ((values.w - mean) * rstd);
        sum = kelp__cuda_add(sum, slopes);
    }
    dot = kelp__cuda_lines_sum(dot, plan.across, partial);
    sum = kelp__cuda_lines_sum(sum, plan.across, partial);
    if (line == 0 && p.dweight) {
        kelp__cuda_put_some(p.dweight + part * plan.columns + c, dot, left, p.write_weight);
    }
    if (line == 0 && p.dbias) {
        kelp__cuda_put_some(p.dbias + part * plan.columns + c, sum, left, p.write_bias);
    }
}

static void launch_layer_norm_columns(struct kelp_stream *stream, const struct kelp_layer_norm *p,
                                      const struct kelp__cuda_columns *plan)
{
    const uint64_t blocks = plan->parts * plan->blocks;
    if (p->width % 4 == 0 && kelp__cuda_aligned(p->x) && kelp__cuda_aligned(p->dy)) {
        KELP_CUDA_LAUNCH(stream, layer_norm_columns<true>, blocks, KELP_CUDA_THREADS, *p, *plan);
    } else {
        KELP_CUDA_LAUNCH(stream, layer_norm_columns<false>, blocks, KELP_CUDA_THREADS, *p, *plan);
    }
}

static void layer_norm_dweight(struct kelp_stream *stream, const struct kelp_layer_norm *p)
{
    const struct kelp__cuda_columns plan = kelp__cuda_plan_columns(1, p->rows, p->width);
    if (plan.parts == 1) {
        launch_layer_norm_columns(stream, p, &plan);
        return;
    }
    const uint64_t count = plan.parts * p->width;
    struct kelp_layer_norm pieces = *p;
    pieces.dweight = static_cast<float *>(
        kelp__cuda_scratch(kelp__cuda_stream_of(stream), 2 * count * sizeof(*pieces.dweight)));
    if (!pieces.dweight) {
        return;
    }
    pieces.dbias = pieces.dweight + count;
    pieces.write_weight = pieces.write_bias = KELP_OVERWRITE;
    launch_layer_norm_columns(stream, &pieces, &plan);
    if (p->dweight) {
        kelp__cuda_add_rows(stream, pieces.dweight, plan.parts, p->width, p->dweight,
                            p->write_weight);
    }
    if (p->dbias) {
        kelp__cuda_add_rows(stream, pieces.dbias, plan.parts, p->width, p->dbias, p->write_bias);
    }
}

void kelp__cuda_layer_norm_gradient(struct kelp_stream *stream, const struct kelp_layer_norm *p)
{
    if (p->width == 0) {
        return;
    }
    if (p->dweight || p->dbias) {
        layer_norm_dweight(stream, p);
    }
    if (p->dx) {
        const struct row_plan plan =
            plan_rows(p->rows, p->width,
                      kelp__cuda_aligned(p->x) && kelp__cuda_aligned(p->dy) &&
                          kelp__cuda_aligned(p->dx) && kelp__cuda_aligned(p->weight));
        LAUNCH_ROWS(stream, layer_norm_dx, layer_norm_dx_long, kelp_layer_norm, plan, *p);
    }
}

/*
 * Layer norm and its gradient. See kernels/operators.h for what each does.
 *
 * Mean and variance are right to about float32's last place however far from zero a row lies. Rows
 * in registers have the mean taken off twice: what is left of it after the first time is small.
 * Longer rows are read once for both (kernels/cuda/moments.cuh).
 */
#include "kernels/cuda/moments.cuh"
#include "kernels/cuda/rows.cuh"

#define PARTIAL (KELP_CUDA_THREADS / KELP_CUDA_WARP)

template <uint32_t lanes, uint32_t size, bool quads>
static __global__ void layer_norm(const struct kelp_layer_norm p, const struct kelp__cuda_rows plan)
{
    KELP_CUDA_SHARED float partial[PARTIAL];
    KELP_CUDA_FOR_ROWS(r, lanes, plan)
    {
        const uint32_t width = kelp__cuda_width_of(r, plan);
        float values[size], weight[size], bias[size], sum = 0.0f, squares = 0.0f;
        kelp__cuda_load_row<lanes, quads>(values, p.x + r * p.width, width, 0.0f, plan.vector);
        KELP_CUDA_UNROLL_ALL
        for (uint32_t i = 0; i < size; i++) {
            sum = sum + values[i];
        }
        const float about = kelp__cuda_group_sum(sum, lanes, partial) / (float)p.width;
        sum = 0.0f;
        KELP_CUDA_UNROLL_ALL
        for (uint32_t i = 0; i < size; i++) {
            values[i] = values[i] - about;
            const bool there = kelp__cuda_column_of<lanes, quads>(i) < width;
            sum = sum + (there ? values[i] : 0.0f);
        }
        const float left = kelp__cuda_group_sum(sum, lanes, partial) / (float)p.width;
        KELP_CUDA_UNROLL_ALL
        for (uint32_t i = 0; i < size; i++) {
            values[i] = values[i] - left;
            const bool there = kelp__cuda_column_of<lanes, quads>(i) < width;
            squares = squares + (there ? values[i] * values[i] : 0.0f);
        }
        const float variance = kelp__cuda_group_sum(squares, lanes, partial) / (float)p.width;
        const float rstd = 1.0f / sqrtf(variance + p.eps);
        kelp__cuda_load_row<lanes, quads>(weight, p.weight, width, 0.0f, plan.vector);
        kelp__cuda_load_row<lanes, quads>(bias, p.bias, width, 0.0f, plan.vector);
        KELP_CUDA_UNROLL_ALL
        for (uint32_t i = 0; i < size; i++) {
            values[i] = values[i] * rstd * weight[i] + bias[i];
        }
        kelp__cuda_put_row<lanes, quads>(p.y + r * p.width, values, width, KELP_OVERWRITE,
                                         plan.vector);
        if (threadIdx.x % lanes == 0 && width != 0) {
            p.mean[r] = about + left;
            p.rstd[r] = rstd;
        }
    }
}

/* A chunk's elements become part of a thread's sums. */
template <bool quads>
static __device__ __forceinline__ void add_chunk(const float (&values)[KELP_CUDA_CHUNK_SIZE],
                                                 uint32_t columns, float origin,
                                                 struct kelp__cuda_moments *moments)
{
    float count = 0.0f, sum = 0.0f;
    KELP_CUDA_UNROLL_ALL
    for (uint32_t i = 0; i < KELP_CUDA_CHUNK_SIZE; i++) {
        const bool there = kelp__cuda_column_of<KELP_CUDA_THREADS, quads>(i) < columns;
        count = count + (there ? 1.0f : 0.0f);
        sum = sum + (there ? values[i] - values[0] : 0.0f);
    }
    if (count == 0.0f) {
        return;
    }
    const float near = values[0] + sum / count;
    float some = 0.0f, squares = 0.0f;
    KELP_CUDA_UNROLL_ALL
    for (uint32_t i = 0; i < KELP_CUDA_CHUNK_SIZE; i++) {
        const bool there = kelp__cuda_column_of<KELP_CUDA_THREADS, quads>(i) < columns;
        const float far = there ? values[i] - near : 0.0f;
        some = some + far;
        squares = squares + far * far;
    }
    kelp__cuda_add_run(some, squares, (double)count, (double)near - (double)origin, moments);
}

/* y = ((x - mean) - left) rstd weight + bias: what the mean loses as float32 is left. */
struct normal {
    float mean, left, rstd;
};

static __device__ __forceinline__ struct normal normal_of(const struct kelp_layer_norm &p,
                                                          float origin,
                                                          struct kelp__cuda_moments moments,
                                                          double *partial)
{
    moments.first = kelp__cuda_group_sum(moments.first, KELP_CUDA_THREADS, partial);
    moments.second = kelp__cuda_group_sum(moments.second, KELP_CUDA_THREADS, partial);
    const double count = (double)p.width, mean = (double)origin + moments.first / count;
    const double variance = kelp__cuda_squares_of(moments, count) / count;
    struct normal normal = {(float)mean, 0.0f, (float)(1.0 / sqrt(variance + (double)p.eps))};
    normal.left = (float)(mean - (double)normal.mean);
    return normal;
}

template <bool quads>
static __global__ void KELP_CUDA_LONG_BOUNDS layer_norm_long(const struct kelp_layer_norm p,
                                                             const struct kelp__cuda_rows plan)
{
    KELP_CUDA_SHARED double partial[PARTIAL];
    KELP_CUDA_FOR_LONG_ROWS(r, plan)
    {
        const uint32_t last = kelp__cuda_last_chunk(plan.columns);
        const float *x = p.x + r * p.width;
        const float origin = x[0];
        float values[KELP_CUDA_CHUNK_SIZE];
        struct kelp__cuda_moments moments = {0.0, 0.0};
        for (uint32_t begin = 0;; begin += KELP_CUDA_CHUNK) {
            kelp__cuda_load_chunk<quads>(values, x, begin, 0.0f, plan);
            add_chunk<quads>(values, plan.columns - begin, origin, &moments);
            if (begin == last) {
                break;
            }
        }
        const struct normal normal = normal_of(p, origin, moments, partial);
        for (uint32_t begin = last;; begin -= KELP_CUDA_CHUNK) {
            float factors[KELP_CUDA_CHUNK_SIZE];
            if (begin != last) {
                kelp__cuda_load_chunk<quads>(values, x, begin, 0.0f, plan);
            }
            kelp__cuda_load_chunk<quads>(factors, p.weight, begin, 0.0f, plan);
            KELP_CUDA_UNROLL_ALL
            for (uint32_t i = 0; i < KELP_CUDA_CHUNK_SIZE; i++) {
                values[i] = (values[i] - normal.mean - normal.left) * normal.rstd * factors[i];
            }
            kelp__cuda_load_chunk<quads>(factors, p.bias, begin, 0.0f, plan);
            KELP_CUDA_UNROLL_ALL
            for (uint32_t i = 0; i < KELP_CUDA_CHUNK_SIZE; i++) {
                values[i] = values[i] + factors[i];
            }
            kelp__cuda_put_chunk<quads>(p.y + r * p.width, values, begin, KELP_OVERWRITE, plan);
            if (begin == 0) {
                break;
            }
        }
        if (threadIdx.x == 0) {
            p.mean[r] = normal.mean;
            p.rstd[r] = normal.rstd;
        }
    }
}

void kelp__cuda_layer_norm(struct kelp_stream *stream, const struct kelp_layer_norm *p)
{
    const struct kelp__cuda_rows plan =
        kelp__cuda_plan_rows(p->rows, p->width,
                             kelp__cuda_aligned(p->x) && kelp__cuda_aligned(p->y) &&
                                 kelp__cuda_aligned(p->weight) && kelp__cuda_aligned(p->bias));
    KELP_CUDA_LAUNCH_ROWS(stream, layer_norm, layer_norm_long, kelp_layer_norm, plan, *p);
}

/* The gradient of one element: g is dy weight, the other two are means over the row. */
static __device__ __forceinline__ float layer_norm_slope(float g, float centred, float rstd,
                                                         float sum, float dot)
{
    return rstd * (g - sum - centred * rstd * dot);
}

template <uint32_t lanes, uint32_t size, bool quads>
static __global__ void layer_norm_dx(const struct kelp_layer_norm p,
                                     const struct kelp__cuda_rows plan)
{
    KELP_CUDA_SHARED float partial[PARTIAL];
    KELP_CUDA_FOR_ROWS(r, lanes, plan)
    {
        const uint32_t width = kelp__cuda_width_of(r, plan);
        const float mean = width != 0 ? p.mean[r] : 0.0f, rstd = width != 0 ? p.rstd[r] : 0.0f;
        float x[size], g[size], weight[size], sum = 0.0f, dot = 0.0f;
        kelp__cuda_load_row<lanes, quads>(x, p.x + r * p.width, width, 0.0f, plan.vector);
        kelp__cuda_load_row<lanes, quads>(g, p.dy + r * p.width, width, 0.0f, plan.vector);
        kelp__cuda_load_row<lanes, quads>(weight, p.weight, width, 0.0f, plan.vector);
        KELP_CUDA_UNROLL_ALL
        for (uint32_t i = 0; i < size; i++) { /* behind the row g is 0, and adds nothing */
            g[i] = g[i] * weight[i];
            x[i] = x[i] - mean;
            const bool there = kelp__cuda_column_of<lanes, quads>(i) < width;
            sum = sum + g[i];
            dot = dot + (there ? g[i] * (x[i] * rstd) : 0.0f);
        }
        sum = kelp__cuda_group_sum(sum, lanes, partial) / (float)p.width;
        dot = kelp__cuda_group_sum(dot, lanes, partial) / (float)p.width;
        KELP_CUDA_UNROLL_ALL
        for (uint32_t i = 0; i < size; i++) {
            g[i] = layer_norm_slope(g[i], x[i], rstd, sum, dot);
        }
        kelp__cuda_put_row<lanes, quads>(p.dx + r * p.width, g, width, p.write_x, plan.vector);
    }
}

/* A chunk of x, the mean taken off, and of dy times the weight. */
template <bool quads>
static __device__ __forceinline__ void
load_slopes(float (&x)[KELP_CUDA_CHUNK_SIZE], float (&g)[KELP_CUDA_CHUNK_SIZE],
            const struct kelp_layer_norm &p, const struct kelp__cuda_rows &plan, uint64_t r,
            uint32_t begin, float mean)
{
    kelp__cuda_load_chunk<quads>(g, p.dy + r * p.width, begin, 0.0f, plan);
    kelp__cuda_load_chunk<quads>(x, p.weight, begin, 0.0f, plan);
    KELP_CUDA_UNROLL_ALL
    for (uint32_t i = 0; i < KELP_CUDA_CHUNK_SIZE; i++) {
        g[i] = g[i] * x[i];
    }
    kelp__cuda_load_chunk<quads>(x, p.x + r * p.width, begin, mean, plan);
    KELP_CUDA_UNROLL_ALL
    for (uint32_t i = 0; i < KELP_CUDA_CHUNK_SIZE; i++) {
        x[i] = x[i] - mean;
    }
}

template <bool quads>
static __global__ void KELP_CUDA_LONG_BOUNDS layer_norm_dx_long(const struct kelp_layer_norm p,
                                                                const struct kelp__cuda_rows plan)
{
    KELP_CUDA_SHARED float partial[PARTIAL];
    KELP_CUDA_FOR_LONG_ROWS(r, plan)
    {
        const uint32_t last = kelp__cuda_last_chunk(plan.columns);
        const float mean = p.mean[r], rstd = p.rstd[r];
        float x[KELP_CUDA_CHUNK_SIZE], g[KELP_CUDA_CHUNK_SIZE], sum = 0.0f, dot = 0.0f;
        for (uint32_t begin = 0;; begin += KELP_CUDA_CHUNK) {
            load_slopes<quads>(x, g, p, plan, r, begin, mean);
            KELP_CUDA_UNROLL_ALL
            for (uint32_t i = 0; i < KELP_CUDA_CHUNK_SIZE; i++) { /* behind the row they are 0 */
                sum = sum + g[i];
                dot = dot + g[i] * (x[i] * rstd);
            }
            if (begin == last) {
                break;
            }
        }
        sum = kelp__cuda_group_sum(sum, KELP_CUDA_THREADS, partial) / (float)p.width;
        dot = kelp__cuda_group_sum(dot, KELP_CUDA_THREADS, partial) / (float)p.width;
        for (uint32_t begin = last;; begin -= KELP_CUDA_CHUNK) {
            if (begin != last) {
                load_slopes<quads>(x, g, p, plan, r, begin, mean);
            }
            KELP_CUDA_UNROLL_ALL
            for (uint32_t i = 0; i < KELP_CUDA_CHUNK_SIZE; i++) {
                g[i] = layer_norm_slope(g[i], x[i], rstd, sum, dot);
            }
            kelp__cuda_put_chunk<quads>(p.dx + r * p.width, g, begin, p.write_x, plan);
            if (begin == 0) {
                break;
            }
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

/* What the parts' sums [parts, width] add up to. */
static void add_pieces(struct kelp_stream *stream, const struct kelp_layer_norm *p,
                       const struct kelp_layer_norm *pieces, uint64_t parts)
{
    if (p->dweight) {
        kelp__cuda_add_rows(stream, pieces->dweight, parts, p->width, p->dweight, p->write_weight);
    }
    if (p->dbias) {
        kelp__cuda_add_rows(stream, pieces->dbias, parts, p->width, p->dbias, p->write_bias);
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
    add_pieces(stream, p, &pieces, plan.parts);
}

/* ---- the gradient of everything at once ------------------------------------------------------ */

/* Of elements of 16 a thread, so many parts fill a device. */
#ifndef KELP_CUDA_NORM_FILL
#define KELP_CUDA_NORM_FILL 256u
#endif
#define PART_ROWS 8u /* at least, of a group */

/* A block takes a part of the rows, whose sums over the rows stay in registers: to dweight and
 * dbias [gridDim.x, width]. */
template <uint32_t lanes, uint32_t size, bool quads>
static __global__ void __launch_bounds__(KELP_CUDA_THREADS, 2)
    layer_norm_gradient(const struct kelp_layer_norm p, const struct kelp__cuda_rows plan)
{
    KELP_CUDA_SHARED float partial[PARTIAL];
    KELP_CUDA_SHARED float4 lines[KELP_CUDA_THREADS];
    const uint64_t part_rows = (plan.rows + gridDim.x - 1) / gridDim.x;
    const uint64_t begin = blockIdx.x * part_rows;
    const uint64_t end = begin + part_rows < plan.rows ? begin + part_rows : plan.rows;
    float weight[size], dots[size], sums[size];
    kelp__cuda_load_row<lanes, quads>(weight, p.weight, plan.columns, 0.0f, plan.vector);
    KELP_CUDA_UNROLL_ALL
    for (uint32_t i = 0; i < size; i++) {
        dots[i] = sums[i] = 0.0f;
    }
    for (uint64_t first = begin; first < end; first += KELP_CUDA_THREADS / lanes) {
        const uint64_t r = first + threadIdx.x / lanes;
        const uint32_t width = r < end ? plan.columns : 0;
        const float mean = width != 0 ? p.mean[r] : 0.0f, rstd = width != 0 ? p.rstd[r] : 0.0f;
        float x[size], g[size], sum = 0.0f, dot = 0.0f;
        kelp__cuda_load_row<lanes, quads>(x, p.x + r * p.width, width, mean, plan.vector);
        kelp__cuda_load_row<lanes, quads>(g, p.dy + r * p.width, width, 0.0f, plan.vector);
        KELP_CUDA_UNROLL_ALL
        for (uint32_t i = 0; i < size; i++) { /* behind the row they are 0 */
            x[i] = x[i] - mean;
            dots[i] = dots[i] + g[i] * (x[i] * rstd);
            sums[i] = sums[i] + g[i];
            g[i] = g[i] * weight[i];
            sum = sum + g[i];
            dot = dot + g[i] * (x[i] * rstd);
        }
        sum = kelp__cuda_group_sum(sum, lanes, partial) / (float)p.width;
        dot = kelp__cuda_group_sum(dot, lanes, partial) / (float)p.width;
        KELP_CUDA_UNROLL_ALL
        for (uint32_t i = 0; i < size; i++) {
            g[i] = layer_norm_slope(g[i], x[i], rstd, sum, dot);
        }
        kelp__cuda_put_row<lanes, quads>(p.dx + r * p.width, g, width, p.write_x, plan.vector);
    }
    KELP_CUDA_UNROLL_ALL
    for (uint32_t i = 0; i < size && lanes < KELP_CUDA_THREADS; i += 4) {
        const float4 dot = kelp__cuda_lines_sum(
            make_float4(dots[i], dots[i + 1], dots[i + 2], dots[i + 3]), lanes, lines);
        const float4 sum = kelp__cuda_lines_sum(
            make_float4(sums[i], sums[i + 1], sums[i + 2], sums[i + 3]), lanes, lines);
        dots[i] = dot.x, dots[i + 1] = dot.y, dots[i + 2] = dot.z, dots[i + 3] = dot.w;
        sums[i] = sum.x, sums[i + 1] = sum.y, sums[i + 2] = sum.z, sums[i + 3] = sum.w;
    }
    if (threadIdx.x < lanes) {
        const uint64_t at = (uint64_t)blockIdx.x * plan.columns;
        kelp__cuda_put_row<lanes, quads>(p.dweight + at, dots, plan.columns, KELP_OVERWRITE,
                                         plan.vector);
        kelp__cuda_put_row<lanes, quads>(p.dbias + at, sums, plan.columns, KELP_OVERWRITE,
                                         plan.vector);
    }
}

/* 0: there are too few rows, or too long ones. */
static uint64_t parts_of(const struct kelp__cuda_rows *plan)
{
    const uint64_t groups = KELP_CUDA_THREADS / kelp__cuda_lanes_of(plan);
    const uint64_t parts = KELP_CUDA_NORM_FILL * KELP_CUDA_CHUNK_SIZE / kelp__cuda_size_of(plan);
    return plan->shape < KELP_CUDA_SHAPES && plan->rows / (PART_ROWS * groups) >= parts ? parts : 0;
}

static void layer_norm_all(struct kelp_stream *stream, const struct kelp_layer_norm *p,
                           const struct kelp__cuda_rows *plan, uint64_t parts)
{
    const uint64_t count = parts * p->width;
    struct kelp_layer_norm pieces = *p;
    pieces.dweight = static_cast<float *>(
        kelp__cuda_scratch(kelp__cuda_stream_of(stream), 2 * count * sizeof(*pieces.dweight)));
    if (!pieces.dweight) {
        return;
    }
    pieces.dbias = pieces.dweight + count;
    KELP_CUDA_LAUNCH_PARTS(stream, layer_norm_gradient, layer_norm_dx_long, kelp_layer_norm, *plan,
                           parts, pieces);
    add_pieces(stream, p, &pieces, parts);
}

/* Large tensors are read once for all three gradients. */
void kelp__cuda_layer_norm_gradient(struct kelp_stream *stream, const struct kelp_layer_norm *p)
{
    if (p->width == 0) {
        return;
    }
    const struct kelp__cuda_rows plan =
        kelp__cuda_plan_rows(p->rows, p->width,
                             kelp__cuda_aligned(p->x) && kelp__cuda_aligned(p->dy) &&
                                 kelp__cuda_aligned(p->dx) && kelp__cuda_aligned(p->weight));
    const uint64_t parts = p->dx && (p->dweight || p->dbias) ? parts_of(&plan) : 0;
    if (parts != 0) {
        layer_norm_all(stream, p, &plan, parts);
        return;
    }
    if (p->dweight || p->dbias) {
        layer_norm_dweight(stream, p);
    }
    if (p->dx) {
        KELP_CUDA_LAUNCH_ROWS(stream, layer_norm_dx, layer_norm_dx_long, kelp_layer_norm, plan, *p);
    }
}

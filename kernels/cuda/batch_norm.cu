/*
 * Batch norm. See kernels/operators.h for what it does.
 *
 * Tensors of all elements are read and written as often as can be where they are larger than the
 * GPU's cache: forward x twice and y once (with running statistics x once), backward x and dy twice
 * and dx once. A channel has a few numbers besides.
 *
 * A channel's sums are taken in float32 by each thread over a short run of elements, and in double
 * over those: parts of the samples first, then a warp adds up a channel's parts and makes of them
 * the few numbers by which the last kernel goes through all elements.
 *
 * Mean and variance come of one pass over x (kernels/cuda/moments.cuh). The origin is the channel's
 * first element, a run's number the mean of the thread's run before it, and the first element in
 * the first one. All runs' squares together are at most five times the variance's then, the first
 * ones aside, in which it is a run's length at most.
 */
#include <limits.h>

#include "kernels/cuda/divider.cuh"
#include "kernels/cuda/groups.cuh"
#include "kernels/cuda/moments.cuh"

/* What is added up over a channel: two sums at once. `near`: the run's number, or the mean. */
enum batch_sum {
    SUM_BATCH,   /* x - near and (x - near)^2 */
    SUM_GRADIENT /* dy and dy (x - near) */
};

template <enum batch_sum kind>
static __device__ __forceinline__ void sum_element(float x, float dy, float near, float *first,
                                                   float *second)
{
    const float far = x - near;
    *first = *first + (kind == SUM_BATCH ? far : dy);
    *second = *second + (kind == SUM_BATCH ? far : dy) * far;
}

template <enum batch_sum kind>
static __device__ __forceinline__ void sum_quad(float4 x, float4 dy, float near, float *first,
                                                float *second)
{
    sum_element<kind>(x.x, dy.x, near, first, second);
    sum_element<kind>(x.y, dy.y, near, first, second);
    sum_element<kind>(x.z, dy.z, near, first, second);
    sum_element<kind>(x.w, dy.w, near, first, second);
}

/* A run's sums of `count` elements become part of a thread's. `shift`: what near is from the
 * channel's own number. */
template <enum batch_sum kind>
static __device__ __forceinline__ void add_run(float some, float others, uint32_t count,
                                               double shift, struct kelp__cuda_moments *sums)
{
    if (kind == SUM_BATCH) {
        kelp__cuda_add_run(some, others, (double)count, shift, sums);
    } else {
        sums->first = sums->first + (double)some;
        sums->second = sums->second + (double)others;
    }
}

/* Where sums go, and how they are split. */
struct batch_plan {
    bool columns; /* channels stand side by side: they are columns, and what each has is rows */
    bool vector;
    uint64_t parts;
    struct kelp__cuda_columns across;
    /* Otherwise: planes in segments, a group of threads for each; units are the segments of a
     * channel in all samples. */
    uint64_t segment, segments, units, part_units;
    uint32_t lanes;
    double2 *partial; /* [channels, parts] */
    float *factors;   /* [FACTORS, channels] */
};
enum { MEAN, A, B, SCALE, FACTORS };

/* ---- sums ------------------------------------------------------------------------------------ */

/* Rows of a thread whose sums are float32: a power of two. */
#ifndef KELP_CUDA_NORM_RUN
#define KELP_CUDA_NORM_RUN 64u
#endif
static constexpr float run_share = 1.0f / (float)KELP_CUDA_NORM_RUN;

/* Blocks of a multiprocessor at once: a large GPU then has all of a launch (PART_BLOCKS,
 * KELP_CUDA_COLUMN_BLOCKS) under way together, and none is left for later. */
#define SUM_BLOCKS 4

/* The sums of four neighbouring channels: both of each. */
struct four {
    struct kelp__cuda_moments of[4];
};

/* A run's sums of four channels become part of a thread's. near: as in sum_element(). */
template <enum batch_sum kind>
static __device__ __forceinline__ void add_runs(float4 some, float4 others, uint32_t count,
                                                float4 near, float4 origin, struct four *sums)
{
    add_run<kind>(some.x, others.x, count, (double)near.x - (double)origin.x, &sums->of[0]);
    add_run<kind>(some.y, others.y, count, (double)near.y - (double)origin.y, &sums->of[1]);
    add_run<kind>(some.z, others.z, count, (double)near.z - (double)origin.z, &sums->of[2]);
    add_run<kind>(some.w, others.w, count, (double)near.w - (double)origin.w, &sums->of[3]);
}

/* The sums over the lines of a block, in the elements of line 0. All threads call; each has its
 * own element written before. */
static __device__ __forceinline__ void add_lines(struct four *sums, uint32_t across)
{
    __syncthreads();
    for (uint32_t step = KELP_CUDA_THREADS / 2; step >= across; step /= 2) {
        if (threadIdx.x < step) {
            struct kelp__cuda_moments *to = sums[threadIdx.x].of;
            const struct kelp__cuda_moments *other = sums[threadIdx.x + step].of;
            KELP_CUDA_UNROLL_ALL
            for (int n = 0; n < 4; n++) {
                to[n].first = to[n].first + other[n].first;
                to[n].second = to[n].second + other[n].second;
            }
        }
        __syncthreads();
    }
}

static __device__ __forceinline__ float4 load_columns(const float *from, bool vector, uint64_t left)
{
    return vector ? kelp__cuda_load(from, true) : kelp__cuda_load_some(from, left);
}

/* Threads keep their sums in shared memory between runs: registers are for what is loaded. */
template <enum batch_sum kind, bool vector>
static __global__ void __launch_bounds__(KELP_CUDA_THREADS, SUM_BLOCKS)
    sum_columns(const struct kelp_batch_norm p, const struct batch_plan plan)
{
    KELP_CUDA_SHARED struct four sums[KELP_CUDA_THREADS];
    const struct kelp__cuda_columns across = plan.across;
    const uint32_t lane = threadIdx.x % across.across, line = threadIdx.x / across.across;
    const uint32_t blocks = (uint32_t)across.blocks, part = blockIdx.x / blocks;
    const uint32_t quad = (blockIdx.x - part * blocks) * across.across + lane;
    const uint64_t c = 4 * (uint64_t)quad, begin = part * across.part_rows;
    const uint64_t end =
        begin + across.part_rows < across.rows ? begin + across.part_rows : across.rows;
    const uint32_t left = c + 4 <= across.columns ? 4
                          : c < across.columns    ? (uint32_t)(across.columns - c)
                                                  : 0;
    const uint64_t first = begin + line, stride = across.lines * across.columns;
    uint32_t rows = left != 0 ? (uint32_t)kelp__cuda_rounds(first, end, across.lines) : 0;
    const float *x = p.x + c + first * across.columns, *dy = p.dy + c + first * across.columns;
    const float4 zeros = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float4 near = zeros;
    if (rows != 0) {
        near = kind == SUM_BATCH ? load_columns(x, vector, left)
                                 : kelp__cuda_load_some(p.mean + c, left);
    }
    sums[threadIdx.x] = {};
    while (rows != 0) {
        const uint32_t run = rows < KELP_CUDA_NORM_RUN ? rows : KELP_CUDA_NORM_RUN;
        float4 some = zeros, others = zeros;
        KELP_CUDA_UNROLL(kind == SUM_BATCH ? 4 : 2)
        for (uint32_t row = 0; row < run; row++) {
            const float4 values = load_columns(x, vector, left);
            float4 slopes = zeros;
            x += stride;
            if (kind == SUM_GRADIENT) {
                slopes = load_columns(dy, vector, left);
                dy += stride;
            }
            sum_element<kind>(values.x, slopes.x, near.x, &some.x, &others.x);
            sum_element<kind>(values.y, slopes.y, near.y, &some.y, &others.y);
            sum_element<kind>(values.z, slopes.z, near.z, &some.z, &others.z);
            sum_element<kind>(values.w, slopes.w, near.w, &some.w, &others.w);
        }
        add_runs<kind>(some, others, run, near,
                       kind == SUM_BATCH ? kelp__cuda_load_some(p.x + c, left) : near,
                       &sums[threadIdx.x]);
        if (kind == SUM_BATCH) { /* a shorter run is the last one */
            near = make_float4(near.x + some.x * run_share, near.y + some.y * run_share,
                               near.z + some.z * run_share, near.w + some.w * run_share);
        }
        rows -= run;
    }
    add_lines(sums, across.across);
    double2 *to = plan.partial + 4 * (uint64_t)quad * plan.parts + part;
    KELP_CUDA_UNROLL_ALL
    for (uint64_t n = 0; n < 4; n++) {
        if (line == 0 && left > n) {
            to[n * plan.parts] = make_double2(sums[lane].of[n].first, sums[lane].of[n].second);
        }
    }
}

/* What a thread adds up of a segment. */
template <enum batch_sum kind, enum kelp__cuda_layout layout>
static __device__ __forceinline__ void sum_segment(const float *x, const float *dy, uint64_t count,
                                                   float near, uint32_t lane, uint32_t lanes,
                                                   float *first, float *second)
{
    const bool vector = layout == KELP_CUDA_VECTORS;
    if constexpr (layout == KELP_CUDA_SINGLES) {
        KELP_CUDA_UNROLL(4)
        KELP_CUDA_STEPS(i, lane, count, lanes)
        {
            sum_element<kind>(x[i], kind == SUM_GRADIENT ? dy[i] : 0.0f, near, first, second);
        }
    } else {
        KELP_CUDA_UNROLL(4)
        KELP_CUDA_STEPS(i, 4 * lane, count, 4 * lanes)
        {
            const float4 values = kelp__cuda_load(x + i, vector);
            sum_quad<kind>(values, kind == SUM_GRADIENT ? kelp__cuda_load(dy + i, vector) : values,
                           near, first, second);
        }
    }
}

/* How many elements that are. */
template <enum kelp__cuda_layout layout>
static __device__ __forceinline__ uint32_t segment_count(uint64_t count, uint32_t lane,
                                                         uint32_t lanes)
{
    return layout == KELP_CUDA_SINGLES
               ? (uint32_t)kelp__cuda_rounds(lane, count, lanes)
               : 4 * (uint32_t)kelp__cuda_rounds(4 * lane, count, 4 * lanes);
}

template <enum batch_sum kind, enum kelp__cuda_layout layout>
static __global__ void __launch_bounds__(KELP_CUDA_THREADS, SUM_BLOCKS)
    sum_planes(const struct kelp_batch_norm p, const struct batch_plan plan)
{
    KELP_CUDA_SHARED double partial[2][KELP_CUDA_THREADS / KELP_CUDA_WARP];
    const uint32_t lane = threadIdx.x % plan.lanes, group = threadIdx.x / plan.lanes;
    const uint32_t groups = KELP_CUDA_THREADS / plan.lanes;
    const uint64_t channel = blockIdx.x % p.channels, part = blockIdx.x / p.channels;
    const uint64_t begin = part * plan.part_units;
    const uint64_t end =
        begin + plan.part_units < plan.units ? begin + plan.part_units : plan.units;
    const float origin = kind == SUM_BATCH ? p.x[channel * p.inner] : p.mean[channel];
    float near = origin, some = 0.0f, others = 0.0f;
    struct kelp__cuda_moments sums = {0.0, 0.0};
    uint32_t run = 0;
    bool begun = kind != SUM_BATCH; /* near is the thread's own */
    for (uint64_t unit = begin + group; unit < end; unit += groups) {
        const uint64_t offset = unit % plan.segments * plan.segment, left = p.inner - offset;
        const uint64_t at = (unit / plan.segments * p.channels + channel) * p.inner + offset;
        const uint64_t count = left < plan.segment ? left : plan.segment;
        const uint32_t mine = segment_count<layout>(count, lane, plan.lanes);
        if (!begun && mine != 0) {
            near = p.x[at + (layout == KELP_CUDA_SINGLES ? lane : 4 * lane)];
            begun = true;
        }
        sum_segment<kind, layout>(p.x + at, p.dy + at, count, near, lane, plan.lanes, &some,
                                  &others);
        run += mine;
        if (run >= KELP_CUDA_NORM_RUN || unit + groups >= end) {
            add_run<kind>(some, others, run, (double)near - (double)origin, &sums);
            near = kind == SUM_BATCH && run != 0 ? near + some / (float)run : near;
            some = others = 0.0f;
            run = 0;
        }
    }
    sums.first = kelp__cuda_block_sum(sums.first, partial[0]);
    sums.second = kelp__cuda_block_sum(sums.second, partial[1]);
    if (threadIdx.x == 0) {
        plan.partial[channel * plan.parts + part] = make_double2(sums.first, sums.second);
    }
}

template <enum batch_sum kind>
static void launch_sums(struct kelp_stream *stream, const struct kelp_batch_norm *p,
                        const struct batch_plan *plan)
{
    typedef void (*kernel_function)(const struct kelp_batch_norm, const struct batch_plan);
    static const kernel_function of_planes[KELP_CUDA_LAYOUTS] = {
        sum_planes<kind, KELP_CUDA_SINGLES>, sum_planes<kind, KELP_CUDA_QUADS>,
        sum_planes<kind, KELP_CUDA_VECTORS>};
    kernel_function kernel = of_planes[kelp__cuda_layout_of(p->inner, plan->vector)];
    uint64_t blocks = plan->parts * p->channels;
    if (plan->columns) {
        const bool vector = plan->vector && p->channels % 4 == 0;
        kernel = vector ? sum_columns<kind, true> : sum_columns<kind, false>;
        blocks = plan->parts * plan->across.blocks;
    }
    KELP_CUDA_LAUNCH(stream, kernel, blocks, KELP_CUDA_THREADS, *p, *plan);
}

/* ---- what follows from the sums -------------------------------------------------------------- */

static __device__ __forceinline__ void write_statistic(const struct kelp_batch_norm &p, float *to,
                                                       double value)
{
    kelp__cuda_put(to, *p.statistic_scale * (float)value, p.write_statistic);
}

/* y = (x - mean) a + b. */
static __device__ __forceinline__ void set_forward(const struct kelp_batch_norm &p, float *factors,
                                                   uint64_t c, float mean, float a, float b)
{
    factors[MEAN * (uint64_t)p.channels + c] = mean;
    factors[A * (uint64_t)p.channels + c] = a;
    factors[B * (uint64_t)p.channels + c] = b;
}

/* The channel's first element. */
static __device__ __forceinline__ double origin_of(const struct kelp_batch_norm &p,
                                                   const struct batch_plan &plan, uint64_t c)
{
    return (double)p.x[plan.columns ? c : c * p.inner];
}

/* What the mean loses as float32 goes into b. */
static __device__ __forceinline__ void finish_batch(const struct kelp_batch_norm &p,
                                                    const struct batch_plan &plan, uint64_t c,
                                                    double count, struct kelp__cuda_moments sums)
{
    const double mean = origin_of(p, plan, c) + sums.first / count;
    const double squares = kelp__cuda_squares_of(sums, count);
    const float rounded = (float)mean;
    const float rstd = (float)(1.0 / sqrt(squares / count + (double)p.eps));
    const float a = rstd * p.weight[c];
    p.mean[c] = rounded;
    p.rstd[c] = rstd;
    if (p.statistic_mean) {
        write_statistic(p, p.statistic_mean + c, mean);
    }
    if (p.statistic_variance) {
        write_statistic(p, p.statistic_variance + c, squares / (count - 1.0));
    }
    set_forward(p, plan.factors, c, rounded, a,
                (float)((double)p.bias[c] + ((double)rounded - mean) * (double)a));
}

/* dx = (dy - a - (x - mean) b) scale. */
static __device__ __forceinline__ void finish_gradient(const struct kelp_batch_norm &p,
                                                       float *factors, uint64_t c, double count,
                                                       struct kelp__cuda_moments sums)
{
    /* Without samples there was no forward pass that wrote it, and the sums are 0. */
    const double rstd = count > 0.0 ? (double)p.rstd[c] : 0.0;
    if (p.dweight) {
        kelp__cuda_put(p.dweight + c, (float)(sums.second * rstd), p.write_weight);
    }
    if (p.dbias) {
        kelp__cuda_put(p.dbias + c, (float)sums.first, p.write_bias);
    }
    factors[MEAN * (uint64_t)p.channels + c] = p.mean[c];
    factors[A * (uint64_t)p.channels + c] = (float)(sums.first / count);
    factors[B * (uint64_t)p.channels + c] = (float)(sums.second * rstd * rstd / count);
    factors[SCALE * (uint64_t)p.channels + c] = p.rstd[c] * p.weight[c];
}

/* A warp for each channel. */
template <enum batch_sum kind>
static __global__ void finish(const struct kelp_batch_norm p, const struct batch_plan plan)
{
    const uint32_t lane = threadIdx.x % KELP_CUDA_WARP;
    const uint64_t c = ((uint64_t)blockIdx.x * blockDim.x + threadIdx.x) / KELP_CUDA_WARP;
    const double count = (double)p.samples * (double)p.inner;
    struct kelp__cuda_moments sums = {0.0, 0.0};
    KELP_CUDA_UNROLL(4)
    KELP_CUDA_STEPS(i, c < p.channels ? lane : plan.parts, plan.parts, KELP_CUDA_WARP)
    {
        const double2 part = plan.partial[c * plan.parts + i];
        sums.first = sums.first + part.x;
        sums.second = sums.second + part.y;
    }
    sums.first = kelp__cuda_warp_sum(sums.first);
    sums.second = kelp__cuda_warp_sum(sums.second);
    if (lane != 0 || c >= p.channels) {
        return;
    }
    if (kind == SUM_BATCH) {
        finish_batch(p, plan, c, count, sums);
    } else {
        finish_gradient(p, plan.factors, c, count, sums);
    }
}

static __global__ void prepare_running(const struct kelp_batch_norm p, float *factors)
{
    KELP_CUDA_FOR (c, p.channels) {
        const double variance = (double)p.running_variance[c];
        const float rstd = (float)(1.0 / sqrt(variance + (double)p.eps));
        set_forward(p, factors, c, p.running_mean[c], rstd * p.weight[c], p.bias[c]);
    }
}

static uint64_t finish_blocks(const struct kelp_batch_norm *p)
{
    const uint64_t warps = KELP_CUDA_THREADS / KELP_CUDA_WARP;
    return (p->channels + warps - 1) / warps;
}

/* ---- all elements ---------------------------------------------------------------------------- */

/* y [samples, channels, inner] = or += what factors make of x, and of dy in the gradient. With the
 * channels last samples are those of all places of an image, and inner is 1. */
struct affine {
    const float *x, *dy;
    float *y;
    uint64_t samples, channels, inner;
    const float *factors;
    enum kelp_write write;
    bool counted; /* elements are, in 31 bits: by these */
    struct kelp__cuda_divider by_inner, by_channels;
};
struct factors {
    float mean, a, b, scale;
};

template <bool gradient>
static __device__ __forceinline__ float affine_element(float x, float dy, struct factors f)
{
    return gradient ? (dy - f.a - (x - f.mean) * f.b) * f.scale : (x - f.mean) * f.a + f.b;
}

template <bool gradient>
static __device__ __forceinline__ struct factors factors_of(const struct affine &p, uint64_t c)
{
    const float *f = p.factors;
    const struct factors factors = {f[MEAN * p.channels + c], f[A * p.channels + c],
                                    f[B * p.channels + c],
                                    gradient ? f[SCALE * p.channels + c] : 0.0f};
    return factors;
}

/* An element's place, from one to the next one. */
struct cursor {
    uint64_t offset, channel;
    struct factors factors;
};

template <bool gradient>
static __device__ __forceinline__ struct cursor cursor_at(const struct affine &p, uint64_t at)
{
    uint64_t plane, sample;
    if (p.counted) {
        plane = kelp__cuda_divide(p.by_inner, (uint32_t)at);
        sample = kelp__cuda_divide(p.by_channels, (uint32_t)plane);
    } else {
        plane = at / p.inner;
        sample = plane / p.channels;
    }
    struct cursor cursor = {at - plane * p.inner, plane - sample * p.channels, {}};
    cursor.factors = factors_of<gradient>(p, cursor.channel);
    return cursor;
}

template <bool gradient>
static __device__ __forceinline__ float affine_next(const struct affine &p, struct cursor *cursor,
                                                    float x, float dy)
{
    const float value = affine_element<gradient>(x, dy, cursor->factors);
    cursor->offset++;
    if (cursor->offset == p.inner) {
        cursor->offset = 0;
        cursor->channel = cursor->channel + 1 == p.channels ? 0 : cursor->channel + 1;
        cursor->factors = factors_of<gradient>(p, cursor->channel);
    }
    return value;
}

/* Four neighbours a thread, of one channel or not. */
template <bool gradient, bool vector> static __global__ void affine_planes(const struct affine p)
{
    const uint64_t count = p.samples * p.channels * p.inner;
    KELP_CUDA_FOR (i, (count + 3) / 4) {
        const uint64_t at = 4 * i, left = count - at;
        const bool whole = vector && left >= 4;
        const float4 x =
            whole ? kelp__cuda_load(p.x + at, true) : kelp__cuda_load_some(p.x + at, left);
        float4 dy = x, value;
        if (gradient) {
            dy = whole ? kelp__cuda_load(p.dy + at, true) : kelp__cuda_load_some(p.dy + at, left);
        }
        struct cursor cursor = cursor_at<gradient>(p, at);
        value.x = affine_next<gradient>(p, &cursor, x.x, dy.x);
        value.y = affine_next<gradient>(p, &cursor, x.y, dy.y);
        value.z = affine_next<gradient>(p, &cursor, x.z, dy.z);
        value.w = affine_element<gradient>(x.w, dy.w, cursor.factors);
        if (whole) {
            kelp__cuda_put4(p.y + at, value, p.write, true);
        } else {
            kelp__cuda_put_some(p.y + at, value, left, p.write);
        }
    }
}

/* Four channels a thread, in every so many rows; inner is 1, and all of it aligned. */
template <bool gradient>
static __global__ void affine_columns(const struct affine p, const struct kelp__cuda_columns plan)
{
    const uint32_t lane = threadIdx.x % plan.across, line = threadIdx.x / plan.across;
    const uint64_t c = (blockIdx.x % plan.blocks * plan.across + lane) * 4;
    const uint32_t step = (uint32_t)(gridDim.x / plan.blocks) * plan.lines;
    if (c >= p.channels) {
        return;
    }
    const struct factors f0 = factors_of<gradient>(p, c), f1 = factors_of<gradient>(p, c + 1);
    const struct factors f2 = factors_of<gradient>(p, c + 2), f3 = factors_of<gradient>(p, c + 3);
    const float *__restrict__ from = p.x + c;
    const float *__restrict__ slopes = p.dy + c;
    float *__restrict__ to = p.y + c;
    KELP_CUDA_UNROLL(4)
    KELP_CUDA_STEPS(s, blockIdx.x / plan.blocks * plan.lines + line, p.samples, step)
    {
        const float4 x = kelp__cuda_load(from + s * p.channels, true);
        const float4 dy = gradient ? kelp__cuda_load(slopes + s * p.channels, true) : x;
        const float4 value = make_float4(
            affine_element<gradient>(x.x, dy.x, f0), affine_element<gradient>(x.y, dy.y, f1),
            affine_element<gradient>(x.z, dy.z, f2), affine_element<gradient>(x.w, dy.w, f3));
        kelp__cuda_put4(to + s * p.channels, value, p.write, true);
    }
}

#define AFFINE_BLOCKS 2048u
#define AFFINE_ROWS   4u /* of a thread, if there are so many */

template <bool gradient>
static void launch_affine(struct kelp_stream *stream, const struct affine *p)
{
    const bool vector =
        kelp__cuda_aligned(p->x) && kelp__cuda_aligned(p->y) && kelp__cuda_aligned(p->dy);
    const uint64_t quads = (p->samples * p->channels * p->inner + 3) / 4;
    if (vector && p->inner == 1 && p->channels % 4 == 0 && quads != 0) {
        const struct kelp__cuda_columns plan = kelp__cuda_plan_columns(1, p->samples, p->channels);
        const uint64_t lines = AFFINE_ROWS * plan.lines, all = (p->samples + lines - 1) / lines;
        const uint64_t most = plan.blocks < AFFINE_BLOCKS ? AFFINE_BLOCKS / plan.blocks : 1;
        KELP_CUDA_LAUNCH(stream, affine_columns<gradient>, plan.blocks * (all < most ? all : most),
                         KELP_CUDA_THREADS, *p, plan);
    } else if (vector) {
        KELP_CUDA_LAUNCH(stream, (affine_planes<gradient, true>), kelp__cuda_blocks(quads),
                         KELP_CUDA_THREADS, *p);
    } else {
        KELP_CUDA_LAUNCH(stream, (affine_planes<gradient, false>), kelp__cuda_blocks(quads),
                         KELP_CUDA_THREADS, *p);
    }
}

/* ---- operators ------------------------------------------------------------------------------- */

#define SEGMENT     8192u /* elements at most; a multiple of four */
#define PART_BLOCKS 512u  /* of all parts, if there are planes enough */

static void plan_planes(struct batch_plan *plan, const struct kelp_batch_norm *p)
{
    plan->segment = p->inner < SEGMENT ? p->inner : SEGMENT;
    plan->segments = (p->inner + SEGMENT - 1) / SEGMENT;
    plan->units = p->samples * plan->segments;
    plan->lanes = kelp__cuda_lanes(plan->segment);
    const uint64_t groups = KELP_CUDA_THREADS / plan->lanes;
    const uint64_t most = (plan->units + 2 * groups - 1) / (2 * groups);
    const uint64_t wanted = PART_BLOCKS / p->channels;
    plan->parts = wanted < most ? wanted : most;
    plan->parts = plan->parts != 0 ? plan->parts : 1;
    plan->part_units = (plan->units + plan->parts - 1) / plan->parts;
    plan->parts = plan->units != 0 ? (plan->units + plan->part_units - 1) / plan->part_units : 1;
}

static bool is_columns(const struct kelp_batch_norm *p)
{
    return p->inner == 1 || p->layout == KELP_CHANNELS_LAST;
}

/* False: no memory, which is noted, or nothing to do. */
static bool plan_sums(struct kelp_stream *stream, const struct kelp_batch_norm *p, bool vector,
                      struct batch_plan *ret)
{
    *ret = {};
    if (p->channels == 0) {
        return false;
    }
    ret->columns = is_columns(p);
    ret->vector = vector;
    if (ret->columns) {
        ret->across = kelp__cuda_plan_columns(1, p->samples * p->inner, p->channels);
        ret->parts = ret->across.parts;
    } else {
        plan_planes(ret, p);
    }
    const uint64_t sums = ret->parts * p->channels;
    ret->partial = static_cast<double2 *>(kelp__cuda_scratch(
        kelp__cuda_stream_of(stream),
        sums * sizeof(double2) + (uint64_t)FACTORS * p->channels * sizeof(float)));
    ret->factors = reinterpret_cast<float *>(ret->partial + sums);
    return ret->partial != NULL;
}

/* From x and factors; where to, and from which dy, the caller says. */
static struct affine affine_of(const struct kelp_batch_norm *p, const float *factors)
{
    const bool columns = is_columns(p);
    struct affine affine = {};
    affine.x = p->x;
    affine.samples = columns ? p->samples * p->inner : p->samples;
    affine.channels = p->channels;
    affine.inner = columns ? 1 : p->inner;
    affine.factors = factors;
    affine.counted = affine.samples * affine.channels <= INT_MAX &&
                     affine.inner <= INT_MAX / (affine.samples * affine.channels != 0
                                                    ? affine.samples * affine.channels
                                                    : 1);
    if (affine.counted && affine.inner != 0) {
        affine.by_inner = kelp__cuda_divider_of((uint32_t)affine.inner);
        affine.by_channels = kelp__cuda_divider_of((uint32_t)affine.channels);
    }
    return affine;
}

void kelp__cuda_batch_norm(struct kelp_stream *stream, const struct kelp_batch_norm *p)
{
    struct batch_plan plan;
    if (p->samples == 0 || p->inner == 0 ||
        !plan_sums(stream, p, kelp__cuda_aligned(p->x), &plan)) {
        return;
    }
    if (p->training) {
        launch_sums<SUM_BATCH>(stream, p, &plan);
        KELP_CUDA_LAUNCH(stream, finish<SUM_BATCH>, finish_blocks(p), KELP_CUDA_THREADS, *p, plan);
    } else {
        KELP_CUDA_LAUNCH(stream, prepare_running, kelp__cuda_blocks(p->channels), KELP_CUDA_THREADS,
                         *p, plan.factors);
    }
    struct affine affine = affine_of(p, plan.factors);
    affine.y = p->y;
    affine.write = KELP_OVERWRITE;
    launch_affine<false>(stream, &affine);
}

void kelp__cuda_batch_norm_gradient(struct kelp_stream *stream, const struct kelp_batch_norm *p)
{
    struct batch_plan plan;
    if (!plan_sums(stream, p, kelp__cuda_aligned(p->x) && kelp__cuda_aligned(p->dy), &plan)) {
        return;
    }
    launch_sums<SUM_GRADIENT>(stream, p, &plan);
    KELP_CUDA_LAUNCH(stream, finish<SUM_GRADIENT>, finish_blocks(p), KELP_CUDA_THREADS, *p, plan);
    if (p->dx) {
        struct affine affine = affine_of(p, plan.factors);
        affine.dy = p->dy;
        affine.y = p->dx;
        affine.write = p->write_x;
        launch_affine<true>(stream, &affine);
    }
}

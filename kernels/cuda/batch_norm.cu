/*
 * Batch norm. See kernels/operators.h for what it does.
 *
 * A channel's sums are taken in float32 by each thread over a short run of elements, and in double
 * over those: parts of the samples first, then a warp adds up a channel's parts and makes of them
 * the few numbers by which the last kernel goes through all elements.
 */
#include "kernels/cuda/groups.cuh"

/* What is added up over a channel: two sums at once. */
enum batch_sum {
    SUM_X,       /* x and 0 */
    SUM_SQUARES, /* (x - mean)^2 and 0 */
    SUM_GRADIENT /* dy and dy (x - mean) */
};

template <enum batch_sum kind>
static __device__ __forceinline__ void sum_element(float x, float dy, float mean, float *first,
                                                   float *second)
{
    if (kind == SUM_X) {
        *first = *first + x;
    } else if (kind == SUM_SQUARES) {
        *first = *first + (x - mean) * (x - mean);
    } else {
        *first = *first + dy;
        *second = *second + dy * (x - mean);
    }
}

template <enum batch_sum kind>
static __device__ __forceinline__ void sum_quad(float4 x, float4 dy, float mean, float *first,
                                                float *second)
{
    sum_element<kind>(x.x, dy.x, mean, first, second);
    sum_element<kind>(x.y, dy.y, mean, first, second);
    sum_element<kind>(x.z, dy.z, mean, first, second);
    sum_element<kind>(x.w, dy.w, mean, first, second);
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

/* Rows of a thread whose sums are float32. */
#ifndef KELP_CUDA_NORM_RUN
#define KELP_CUDA_NORM_RUN 64u
#endif

/* The sums of four neighbouring channels. */
struct four {
    double of[4];
};

static __device__ __forceinline__ void add_four(struct four *sum, float4 values)
{
    sum->of[0] = sum->of[0] + (double)values.x;
    sum->of[1] = sum->of[1] + (double)values.y;
    sum->of[2] = sum->of[2] + (double)values.z;
    sum->of[3] = sum->of[3] + (double)values.w;
}

/* The sum over the lines of a block, right in the threads of line 0. `partial`: as
 * kelp__cuda_lines_sum()'s. */
static __device__ __forceinline__ struct four lines_sum(struct four value, uint32_t across,
                                                        struct four *partial)
{
    partial[threadIdx.x] = value;
    __syncthreads();
    for (uint32_t step = KELP_CUDA_THREADS / 2; step >= across; step /= 2) {
        if (threadIdx.x < step) {
            struct four *to = &partial[threadIdx.x];
            const struct four *other = &partial[threadIdx.x + step];
            KELP_CUDA_UNROLL_ALL
            for (int n = 0; n < 4; n++) {
                to->of[n] = to->of[n] + other->of[n];
            }
        }
        __syncthreads();
    }
    return partial[threadIdx.x];
}

template <enum batch_sum kind, bool vector>
static __global__ void sum_columns(const struct kelp_batch_norm p, const struct batch_plan plan)
{
    KELP_CUDA_SHARED struct four partial[KELP_CUDA_THREADS];
    const struct kelp__cuda_columns across = plan.across;
    const uint32_t lane = threadIdx.x % across.across, line = threadIdx.x / across.across;
    const uint64_t c = (blockIdx.x % across.blocks * across.across + lane) * 4;
    const uint64_t part = blockIdx.x / across.blocks, begin = part * across.part_rows;
    const uint64_t end =
        begin + across.part_rows < across.rows ? begin + across.part_rows : across.rows;
    const uint64_t left = c < across.columns ? across.columns - c : 0;
    const uint64_t run = (uint64_t)KELP_CUDA_NORM_RUN * across.lines;
    const float *x = p.x + c, *dy = p.dy + c;
    const float4 zeros = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    const float4 mean = kind == SUM_X ? zeros : kelp__cuda_load_some(p.mean + c, left);
    struct four first = {}, second = {};
    for (uint64_t from = left != 0 ? begin + line : end; from < end; from += run) {
        float4 some = zeros, others = zeros;
        KELP_CUDA_UNROLL(4)
        KELP_CUDA_STEPS(s, from, end - from < run ? end : from + run, across.lines)
        {
            const uint64_t at = s * across.columns;
            float4 slopes = zeros;
            const float4 values =
                vector ? kelp__cuda_load(x + at, true) : kelp__cuda_load_some(x + at, left);
            if (kind == SUM_GRADIENT) {
                slopes =
                    vector ? kelp__cuda_load(dy + at, true) : kelp__cuda_load_some(dy + at, left);
            }
            sum_element<kind>(values.x, slopes.x, mean.x, &some.x, &others.x);
            sum_element<kind>(values.y, slopes.y, mean.y, &some.y, &others.y);
            sum_element<kind>(values.z, slopes.z, mean.z, &some.z, &others.z);
            sum_element<kind>(values.w, slopes.w, mean.w, &some.w, &others.w);
        }
        add_four(&first, some);
        add_four(&second, others);
    }
    first = lines_sum(first, across.across, partial);
    if (kind == SUM_GRADIENT) {
        second = lines_sum(second, across.across, partial);
    }
    double2 *to = plan.partial + c * plan.parts + part;
    KELP_CUDA_UNROLL_ALL
    for (uint64_t n = 0; n < 4; n++) {
        if (line == 0 && left > n) {
            to[n * plan.parts] = make_double2(first.of[n], second.of[n]);
        }
    }
}

/* What a thread adds up of a segment. */
template <enum batch_sum kind, enum kelp__cuda_layout layout>
static __device__ __forceinline__ void sum_segment(const float *x, const float *dy, uint64_t count,
                                                   float mean, uint32_t lane, uint32_t lanes,
                                                   float *first, float *second)
{
    const bool vector = layout == KELP_CUDA_VECTORS;
    if constexpr (layout == KELP_CUDA_SINGLES) {
        KELP_CUDA_UNROLL(4)
        KELP_CUDA_STEPS(i, lane, count, lanes)
        {
            sum_element<kind>(x[i], kind == SUM_GRADIENT ? dy[i] : 0.0f, mean, first, second);
        }
    } else {
        KELP_CUDA_UNROLL(4)
        KELP_CUDA_STEPS(i, 4 * lane, count, 4 * lanes)
        {
            const float4 values = kelp__cuda_load(x + i, vector);
            sum_quad<kind>(values, kind == SUM_GRADIENT ? kelp__cuda_load(dy + i, vector) : values,
                           mean, first, second);
        }
    }
}

template <enum batch_sum kind, enum kelp__cuda_layout layout>
static __global__ void sum_planes(const struct kelp_batch_norm p, const struct batch_plan plan)
{
    KELP_CUDA_SHARED double partial[2][KELP_CUDA_THREADS / KELP_CUDA_WARP];
    const uint32_t lane = threadIdx.x % plan.lanes, group = threadIdx.x / plan.lanes;
    const uint32_t groups = KELP_CUDA_THREADS / plan.lanes;
    const uint64_t channel = blockIdx.x % p.channels, part = blockIdx.x / p.channels;
    const uint64_t begin = part * plan.part_units;
    const uint64_t end =
        begin + plan.part_units < plan.units ? begin + plan.part_units : plan.units;
    const float mean = kind == SUM_X ? 0.0f : p.mean[channel];
    double first = 0.0, second = 0.0;
    for (uint64_t unit = begin + group; unit < end; unit += groups) {
        const uint64_t offset = unit % plan.segments * plan.segment, left = p.inner - offset;
        const uint64_t at = (unit / plan.segments * p.channels + channel) * p.inner + offset;
        float some = 0.0f, others = 0.0f;
        sum_segment<kind, layout>(p.x + at, p.dy + at, left < plan.segment ? left : plan.segment,
                                  mean, lane, plan.lanes, &some, &others);
        first = first + (double)some;
        second = second + (double)others;
    }
    first = kelp__cuda_block_sum(first, partial[0]);
    if (kind == SUM_GRADIENT) {
        second = kelp__cuda_block_sum(second, partial[1]);
    }
    if (threadIdx.x == 0) {
        plan.partial[channel * plan.parts + part] = make_double2(first, second);
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
                                                   uint64_t c, float mean, float rstd)
{
    factors[MEAN * (uint64_t)p.channels + c] = mean;
    factors[A * (uint64_t)p.channels + c] = rstd * p.weight[c];
    factors[B * (uint64_t)p.channels + c] = p.bias[c];
}

/* dx = (dy - a - (x - mean) b) scale. */
static __device__ __forceinline__ void finish_gradient(const struct kelp_batch_norm &p,
                                                       float *factors, uint64_t c, double count,
                                                       double first, double second)
{
    /* Without samples there was no forward pass that wrote it, and the sums are 0. */
    const double rstd = count > 0.0 ? (double)p.rstd[c] : 0.0;
    if (p.dweight) {
        kelp__cuda_put(p.dweight + c, (float)(second * rstd), p.write_weight);
    }
    if (p.dbias) {
        kelp__cuda_put(p.dbias + c, (float)first, p.write_bias);
    }
    factors[MEAN * (uint64_t)p.channels + c] = p.mean[c];
    factors[A * (uint64_t)p.channels + c] = (float)(first / count);
    factors[B * (uint64_t)p.channels + c] = (float)(second * rstd * rstd / count);
    factors[SCALE * (uint64_t)p.channels + c] = p.rstd[c] * p.weight[c];
}

/* A warp for each channel. */
template <enum batch_sum kind>
static __global__ void finish(const struct kelp_batch_norm p, const struct batch_plan plan)
{
    const uint32_t lane = threadIdx.x % KELP_CUDA_WARP;
    const uint64_t c = ((uint64_t)blockIdx.x * blockDim.x + threadIdx.x) / KELP_CUDA_WARP;
    const double count = (double)p.samples * (double)p.inner;
    double first = 0.0, second = 0.0;
    KELP_CUDA_UNROLL(4)
    KELP_CUDA_STEPS(i, c < p.channels ? lane : plan.parts, plan.parts, KELP_CUDA_WARP)
    {
        const double2 sums = plan.partial[c * plan.parts + i];
        first = first + sums.x;
        second = second + sums.y;
    }
    first = kelp__cuda_warp_sum(first);
    second = kelp__cuda_warp_sum(second);
    if (lane != 0 || c >= p.channels) {
        return;
    }
    if (kind == SUM_X) {
        p.mean[c] = (float)(first / count);
        if (p.statistic_mean) {
            write_statistic(p, p.statistic_mean + c, first / count);
        }
    } else if (kind == SUM_SQUARES) {
        const float rstd = (float)(1.0 / sqrt(first / count + (double)p.eps));
        p.rstd[c] = rstd;
        if (p.statistic_variance) {
            write_statistic(p, p.statistic_variance + c, first / (count - 1.0));
        }
        set_forward(p, plan.factors, c, p.mean[c], rstd);
    } else {
        finish_gradient(p, plan.factors, c, count, first, second);
    }
}

static __global__ void prepare_running(const struct kelp_batch_norm p, float *factors)
{
    KELP_CUDA_FOR (c, p.channels) {
        const double variance = (double)p.running_variance[c];
        set_forward(p, factors, c, p.running_mean[c],
                    (float)(1.0 / sqrt(variance + (double)p.eps)));
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
        const uint64_t plane = at / p.inner;
        struct cursor cursor = {at - plane * p.inner, plane % p.channels, {}};
        cursor.factors = factors_of<gradient>(p, cursor.channel);
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
#define PART_BLOCKS 1024u /* of all parts, if there are planes enough */

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
        launch_sums<SUM_X>(stream, p, &plan);
        KELP_CUDA_LAUNCH(stream, finish<SUM_X>, finish_blocks(p), KELP_CUDA_THREADS, *p, plan);
        launch_sums<SUM_SQUARES>(stream, p, &plan);
        KELP_CUDA_LAUNCH(stream, finish<SUM_SQUARES>, finish_blocks(p), KELP_CUDA_THREADS, *p,
                         plan);
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

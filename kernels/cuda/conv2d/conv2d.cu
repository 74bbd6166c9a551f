/*
 * Convolution. With the channels last it goes by tiles, which gather what they multiply themselves
 * (conv2d_gather.cu, conv2d_weight.cu), or by channels, where groups have few of them
 * (conv2d_channels.cu). With the channels first it is matrix products, many samples
 * at a time. What each kernel position meets stands in
 * a row of `columns`, a group's rows after the other's, in one of two forms:
 *   by sample   [samples][channels * kernel][output]: a product for each sample, straight from dy
 *               or into y; for large outputs
 *   wide        [channels * kernel][samples * output]: one product for all samples, whose other
 *               operand or result [channels_out][samples * output] is turned from or into
 *               [samples][channels_out][output]; for small outputs, which make small products
 * A kernel of one position that skips nothing needs no columns by sample: x is that matrix.
 * conv2d_columns.cu makes both forms, and takes them apart.
 *
 * dweight is one long sum over samples and output. It is cut into parts, whose sums are added up in
 * order: one for each sample, or as many as it takes to fill a device.
 *
 * Everything, how many samples are taken at a time too, follows from the shape and the samples.
 */
#include <cstdlib>

#include "kernels/cuda/conv2d/conv2d.cuh"

#define BIAS_PART      8192u /* elements of dy that a block adds up */
#define BIAS_PARTS_MAX 1024u

kelp_status kelp__cuda_conv2d_create(struct kelp_device *device,
                                     const struct kelp_conv2d_shape *shape,
                                     struct kelp_conv2d **ret, struct kelp_error *reterr)
{
    (void)device;
    const kelp_status status = kelp__cuda_conv2d_check(shape, reterr);
    if (status != KELP_OK) {
        return status;
    }
    struct kelp_conv2d *conv = static_cast<struct kelp_conv2d *>(calloc(1, sizeof(*conv)));
    if (!conv) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "cannot allocate a convolution");
    }
    kelp__cuda_conv2d_plan(conv, shape);
    *ret = conv;
    return KELP_OK;
}

void kelp__cuda_conv2d_destroy(struct kelp_conv2d *conv)
{
    free(conv);
}

uint64_t kelp__cuda_conv2d_workspace(const struct kelp_conv2d *conv)
{
    return conv->workspace;
}

/* ---- products -------------------------------------------------------------------------------- */

/* A product for each sample and group, or for each part of a sum and group. */
struct products {
    struct kelp_matmul one;
    uint64_t a[2], b[2], c[2]; /* distances, from sample to sample and from group to group */
};

/* Batches of whichever are more. */
static void multiply(struct kelp_stream *stream, const struct products *products, uint32_t samples,
                     uint32_t groups)
{
    const unsigned int inner = samples >= groups ? 0 : 1, outer = 1 - inner;
    const uint32_t count = samples >= groups ? groups : samples;
    struct kelp_matmul one = products->one;
    one.batch = samples >= groups ? samples : groups;
    one.stride_a = products->a[inner];
    one.stride_b = products->b[inner];
    one.stride_c = products->c[inner];
    for (uint32_t i = 0; i < count; i++) {
        kelp__cuda_matmul(stream, &one);
        one.a += products->a[outer];
        one.b += products->b[outer];
        one.c += products->c[outer];
    }
}

static struct kelp__cuda_conv2d_chunk chunk_at(const struct kelp_conv2d_run *run, uint32_t first)
{
    const uint32_t left = run->samples - first, most = run->conv->chunk;
    return {run, run->conv, first, left < most ? left : most};
}

/* ---- forward --------------------------------------------------------------------------------- */

/* y = weight columns */
static void forward(struct kelp_stream *stream, const struct kelp__cuda_conv2d_chunk *chunk)
{
    const struct kelp_conv2d_run *run = chunk->run;
    const struct kelp_conv2d *conv = chunk->conv;
    const bool by_sample = conv->by_sample;
    const struct kelp__cuda_conv2d_layout columns =
        kelp__cuda_conv2d_columns_of(conv, by_sample, chunk->samples);
    float *y = run->y + chunk->first * conv->y, *turned = run->workspace + columns.elements;
    const uint64_t row = by_sample ? conv->output : columns.row;
    struct products products = {};
    products.one.m = conv->channels_out;
    products.one.n = by_sample ? conv->output : chunk->samples * conv->output;
    products.one.k = conv->depth;
    products.one.a = run->weight;
    products.one.lda = conv->depth;
    products.a[1] = (uint64_t)conv->channels_out * conv->depth;
    products.one.b = kelp__cuda_conv2d_unfold(stream, chunk, by_sample);
    products.one.ldb = columns.row;
    products.b[0] = columns.sample;
    products.b[1] = columns.group;
    products.one.c = by_sample ? y : turned;
    products.one.ldc = row;
    products.c[0] = conv->y;
    products.c[1] = conv->channels_out * row;
    multiply(stream, &products, by_sample ? chunk->samples : 1, conv->shape.groups);
    if (!by_sample) {
        kelp__cuda_conv2d_turn_y(stream, chunk, &columns);
    } else if (run->bias) {
        kelp__cuda_conv2d_bias_to(stream, conv, run->bias, y, chunk->samples);
    }
}

void kelp__cuda_conv2d(struct kelp_stream *stream, const struct kelp_conv2d_run *run)
{
    for (uint32_t first = 0; first < run->samples;) {
        const struct kelp__cuda_conv2d_chunk chunk = chunk_at(run, first);
        if (run->conv->by_tiles) {
            kelp__cuda_conv2d_tiles_y(stream, &chunk);
        } else if (run->conv->by_channels) {
            kelp__cuda_conv2d_channels_y(stream, &chunk);
        } else {
            forward(stream, &chunk);
        }
        first += chunk.samples;
    }
}

/* ---- dx -------------------------------------------------------------------------------------- */

/* columns = weight^T dy, then back to where they came from */
static void gradient_input(struct kelp_stream *stream, const struct kelp__cuda_conv2d_chunk *chunk)
{
    const struct kelp_conv2d_run *run = chunk->run;
    const struct kelp_conv2d *conv = chunk->conv;
    const bool by_sample = conv->by_sample, direct = by_sample && conv->direct;
    const struct kelp__cuda_conv2d_layout columns =
        kelp__cuda_conv2d_columns_of(conv, by_sample, chunk->samples);
    float *dx = run->dx + chunk->first * conv->x;
    const uint64_t row = by_sample ? conv->output : columns.row;
    struct products products = {};
    products.one.transpose_a = true;
    products.one.m = conv->depth;
    products.one.n = by_sample ? conv->output : chunk->samples * conv->output;
    products.one.k = conv->channels_out;
    products.one.a = run->weight;
    products.one.lda = conv->depth;
    products.a[1] = (uint64_t)conv->channels_out * conv->depth;
    products.one.b = by_sample ? run->dy + chunk->first * conv->y
                               : kelp__cuda_conv2d_turn_dy(stream, chunk, &columns);
    products.one.ldb = row;
    products.b[0] = conv->y;
    products.b[1] = conv->channels_out * row;
    products.one.c = direct ? dx : run->workspace;
    products.one.ldc = columns.row;
    products.one.write = direct ? run->write_x : KELP_OVERWRITE;
    products.c[0] = columns.sample;
    products.c[1] = columns.group;
    multiply(stream, &products, by_sample ? chunk->samples : 1, conv->shape.groups);
    if (!direct) {
        kelp__cuda_conv2d_fold(stream, chunk, &columns, by_sample);
    }
}

/* ---- dweight --------------------------------------------------------------------------------- */

/* The sums of parts, in order. */
static __global__ void add_parts(const float *parts, uint32_t part_count, float *dweight,
                                 enum kelp_write write, uint64_t count)
{
    KELP_CUDA_FOR (i, count) {
        float sum = parts[i];
        KELP_CUDA_UNROLL(16)
        for (uint32_t p = 1; p < part_count; p++) {
            sum = sum + parts[p * count + i];
        }
        kelp__cuda_put(&dweight[i], sum, write);
    }
}

/* How the products' results become dweight: there is one for each part. */
struct parts {
    float *sums; /* [count][weights] */
    uint32_t count;
    enum kelp_write write;
};

static void add_up(struct kelp_stream *stream, const struct kelp__cuda_conv2d_chunk *chunk,
                   const struct parts *parts)
{
    const uint64_t count = chunk->conv->weights;
    KELP_CUDA_LAUNCH(stream, add_parts, kelp__cuda_blocks(count), KELP_CUDA_THREADS, parts->sums,
                     parts->count, chunk->run->dweight, parts->write, count);
}

/* What both forms have in common. */
static struct products weight_products(const struct kelp__cuda_conv2d_chunk *chunk, float *to,
                                       enum kelp_write write)
{
    const struct kelp_conv2d *conv = chunk->conv;
    struct products products = {};
    products.one.transpose_b = true;
    products.one.m = conv->channels_out;
    products.one.n = conv->depth;
    products.one.c = to;
    products.one.ldc = conv->depth;
    products.one.write = write;
    products.c[0] = conv->weights;
    products.c[1] = (uint64_t)conv->channels_out * conv->depth;
    return products;
}

/* dweight = the sum over samples of dy columns^T */
static void gradient_weight_by_sample(struct kelp_stream *stream,
                                      const struct kelp__cuda_conv2d_chunk *chunk,
                                      enum kelp_write write)
{
    const struct kelp_conv2d_run *run = chunk->run;
    const struct kelp_conv2d *conv = chunk->conv;
    const struct kelp__cuda_conv2d_layout columns =
        kelp__cuda_conv2d_columns_of(conv, true, chunk->samples);
    const struct parts parts = {run->workspace + kelp__cuda_conv2d_padded(columns.elements),
                                chunk->samples, write};
    const bool one = parts.count == 1;
    struct products products =
        weight_products(chunk, one ? run->dweight : parts.sums, one ? write : KELP_OVERWRITE);
    products.one.k = conv->output;
    products.one.a = run->dy + chunk->first * conv->y;
    products.one.lda = conv->output;
    products.a[0] = conv->y;
    products.a[1] = (uint64_t)conv->channels_out * conv->output;
    products.one.b = kelp__cuda_conv2d_unfold(stream, chunk, true);
    products.one.ldb = columns.row;
    products.b[0] = columns.sample;
    products.b[1] = columns.group;
    multiply(stream, &products, chunk->samples, conv->shape.groups);
    if (!one) {
        add_up(stream, chunk, &parts);
    }
}

/* Zeros behind the last element of each row, for the last part's sum. */
static __global__ void clear_ends(float *rows, uint64_t row, uint32_t begin, uint64_t count)
{
    const uint32_t width = (uint32_t)(row - begin);
    KELP_CUDA_FOR (i, count) {
        rows[i / width * row + begin + i % width] = 0.0f;
    }
}

/* dweight = dy columns^T over all samples, in parts of one length */
static void gradient_weight_wide(struct kelp_stream *stream,
                                 const struct kelp__cuda_conv2d_chunk *chunk, enum kelp_write write)
{
    const struct kelp_conv2d_run *run = chunk->run;
    const struct kelp_conv2d *conv = chunk->conv;
    const struct kelp__cuda_conv2d_layout columns =
        kelp__cuda_conv2d_columns_of(conv, false, chunk->samples);
    const uint32_t all = chunk->samples * conv->output;
    const uint64_t rows = conv->rows + conv->outputs; /* of columns and of dy, behind them */
    const struct parts parts = {run->workspace + rows * columns.row,
                                kelp__cuda_conv2d_parts(conv, chunk->samples), write};
    const bool one = parts.count == 1;
    struct products products =
        weight_products(chunk, one ? run->dweight : parts.sums, one ? write : KELP_OVERWRITE);
    const uint64_t length = columns.row / parts.count;
    products.one.k = one ? all : (uint32_t)length;
    products.one.a = kelp__cuda_conv2d_turn_dy(stream, chunk, &columns);
    products.one.lda = columns.row;
    products.a[0] = length;
    products.a[1] = conv->channels_out * columns.row;
    products.one.b = kelp__cuda_conv2d_unfold(stream, chunk, false);
    products.one.ldb = columns.row;
    products.b[0] = length;
    products.b[1] = columns.group;
    if (!one) {
        const uint64_t ends = rows * (columns.row - all);
        KELP_CUDA_LAUNCH(stream, clear_ends, kelp__cuda_blocks(ends), KELP_CUDA_THREADS,
                         run->workspace, columns.row, all, ends);
    }
    multiply(stream, &products, parts.count, conv->shape.groups);
    if (!one) {
        add_up(stream, chunk, &parts);
    }
}

/* ---- dbias ----------------------------------------------------------------------------------- */

/* A part of dy's samples for one channel: its elements are [samples][output]. */
struct bias_parts {
    struct kelp__cuda_divider by_output;
    uint64_t sample;                 /* distance */
    uint32_t elements, length, each; /* of all parts, of a part; parts of a channel */
};

static __device__ __forceinline__ float bias_element(const struct bias_parts &parts,
                                                     const float *from, uint32_t i)
{
    const uint32_t sample = kelp__cuda_divide(parts.by_output, i);
    return from[sample * parts.sample + (i - sample * parts.by_output.by)];
}

/* A block adds up a part: few numbers in float32, these in double. */
static __global__ void add_bias_part(struct bias_parts parts, const float *dy, double *sums)
{
    KELP_CUDA_SHARED double partial[KELP_CUDA_THREADS / KELP_CUDA_WARP];
    const uint32_t channel = blockIdx.x / parts.each, part = blockIdx.x % parts.each;
    const uint32_t begin = part * parts.length;
    const uint32_t left = parts.elements - begin;
    const uint32_t end = begin + (left < parts.length ? left : parts.length);
    const float *from = dy + (uint64_t)channel * parts.by_output.by;
    const uint32_t step = KELP_CUDA_THREADS;
    uint32_t i = begin + threadIdx.x;
    float sum = 0.0f;
    for (; i + 3 * step < end; i += 4 * step) { /* four loads under way */
        const float first = bias_element(parts, from, i);
        const float second = bias_element(parts, from, i + step);
        const float third = bias_element(parts, from, i + 2 * step);
        const float fourth = bias_element(parts, from, i + 3 * step);
        sum = sum + first + second + third + fourth;
    }
    for (; i < end; i += step) {
        sum = sum + bias_element(parts, from, i);
    }
    const double all = kelp__cuda_block_sum((double)sum, partial);
    if (threadIdx.x == 0) {
        sums[blockIdx.x] = all;
    }
}

/* A warp for each channel. */
static __global__ void add_bias_parts(const double *sums, uint32_t each, float *dbias,
                                      enum kelp_write write, uint32_t channels)
{
    const uint32_t lane = threadIdx.x % KELP_CUDA_WARP;
    const uint32_t channel = (blockIdx.x * KELP_CUDA_THREADS + threadIdx.x) / KELP_CUDA_WARP;
    double sum = 0.0;
    if (channel < channels) {
        for (uint32_t i = lane; i < each; i += KELP_CUDA_WARP) {
            sum = sum + sums[(uint64_t)channel * each + i];
        }
    }
    sum = kelp__cuda_warp_sum(sum);
    if (channel < channels && lane == 0) {
        kelp__cuda_put(&dbias[channel], (float)sum, write);
    }
}

static struct bias_parts bias_parts_of(const struct kelp_conv2d *conv, uint32_t samples)
{
    struct bias_parts parts = {kelp__cuda_divider_of(conv->output), conv->y, 0, BIAS_PART, 0};
    parts.elements = samples * conv->output;
    uint32_t each = (parts.elements - 1) / BIAS_PART + 1;
    if (each > BIAS_PARTS_MAX) {
        parts.length = (parts.elements - 1) / BIAS_PARTS_MAX + 1;
        each = (parts.elements - 1) / parts.length + 1;
    }
    parts.each = each;
    return parts;
}

static void gradient_bias(struct kelp_stream *stream, const struct kelp_conv2d_run *run)
{
    const struct kelp_conv2d *conv = run->conv;
    const uint32_t channels = conv->shape.channels_out;
    const uint32_t most = run->samples < conv->whole ? run->samples : conv->whole;
    double *sums = static_cast<double *>(
        kelp__cuda_scratch(kelp__cuda_stream_of(stream),
                           (uint64_t)channels * bias_parts_of(conv, most).each * sizeof(double)));
    for (uint32_t first = 0; first < run->samples && sums;) {
        const uint32_t left = run->samples - first, samples = left < most ? left : most;
        const struct bias_parts parts = bias_parts_of(conv, samples);
        KELP_CUDA_LAUNCH(stream, add_bias_part, (uint64_t)channels * parts.each, KELP_CUDA_THREADS,
                         parts, run->dy + first * conv->y, sums);
        KELP_CUDA_LAUNCH(stream, add_bias_parts,
                         ((uint64_t)channels * KELP_CUDA_WARP - 1) / KELP_CUDA_THREADS + 1,
                         KELP_CUDA_THREADS, sums, parts.each, run->dbias,
                         first == 0 ? run->write_bias : KELP_ACCUMULATE, channels);
        first += samples;
    }
}

/* Channels are columns of a matrix whose rows are places. */
static void gradient_bias_of_rows(struct kelp_stream *stream, const struct kelp_conv2d_run *run)
{
    const struct kelp_conv2d *conv = run->conv;
    for (uint32_t first = 0; first < run->samples;) {
        const struct kelp__cuda_conv2d_chunk chunk = chunk_at(run, first);
        const struct kelp_bias_gradient gradient = {run->dy + first * conv->y,
                                                    conv->outputs,
                                                    chunk.samples * conv->output,
                                                    (uint32_t)conv->outputs,
                                                    run->dbias,
                                                    first == 0 ? run->write_bias : KELP_ACCUMULATE};
        kelp__cuda_bias_gradient(stream, &gradient);
        first += chunk.samples;
    }
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* The gradients of no samples. */
static void gradient_of_nothing(struct kelp_stream *stream, const struct kelp_conv2d_run *run)
{
    if (run->dweight && run->write_weight == KELP_OVERWRITE) {
        kelp__cuda_fill(stream, run->dweight, 0.0f, run->conv->weights);
    }
    if (run->dbias && run->write_bias == KELP_OVERWRITE) {
        kelp__cuda_fill(stream, run->dbias, 0.0f, run->conv->outputs);
    }
}

static void gradient_weight(struct kelp_stream *stream, const struct kelp__cuda_conv2d_chunk *chunk)
{
    const enum kelp_write write = chunk->first == 0 ? chunk->run->write_weight : KELP_ACCUMULATE;
    if (chunk->conv->by_tiles) {
        kelp__cuda_conv2d_tiles_dweight(stream, chunk, write);
    } else if (chunk->conv->by_channels) {
        kelp__cuda_conv2d_channels_dweight(stream, chunk, write);
    } else if (chunk->conv->weight_by_sample) {
        gradient_weight_by_sample(stream, chunk, write);
    } else {
        gradient_weight_wide(stream, chunk, write);
    }
}

void kelp__cuda_conv2d_gradient(struct kelp_stream *stream, const struct kelp_conv2d_run *run)
{
    if (run->samples == 0) {
        gradient_of_nothing(stream, run);
        return;
    }
    if (run->dbias && run->conv->shape.window.layout == KELP_CHANNELS_LAST) {
        gradient_bias_of_rows(stream, run);
    } else if (run->dbias) {
        gradient_bias(stream, run);
    }
    for (uint32_t first = 0; first < run->samples;) {
        const struct kelp__cuda_conv2d_chunk chunk = chunk_at(run, first);
        if (run->dweight) {
            gradient_weight(stream, &chunk);
        }
        if (run->dx && run->conv->by_tiles) {
            kelp__cuda_conv2d_tiles_dx(stream, &chunk);
        } else if (run->dx && run->conv->by_channels) {
            kelp__cuda_conv2d_channels_dx(stream, &chunk);
        } else if (run->dx) {
            gradient_input(stream, &chunk);
        }
        first += chunk.samples;
    }
}

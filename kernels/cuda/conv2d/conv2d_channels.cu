/*
 * A convolution of many groups with few channels each, of images with the channels last: depthwise,
 * and up to eight channels. Tiles would be padding for the most part, so there are none: a thread
 * has a channel of the result, and neighbouring threads have neighbouring channels, of which they
 * load and write whole lines. Where each group is one channel of either image a thread has four.
 *
 * y and dx are one kernel. A thread computes four neighbouring places of a row, and so loads each
 * weight once for four of them. The sum is taken along taps, and within a tap along the group's
 * channels of the other image, the source, as in tiles. Weights are turned before into that order,
 * [taps][channels of the source in a group][channels of the result].
 *
 * dweight is summed over places. A block has one row of the kernel, three neighbouring taps of it
 * and one channel of x in a group. Places are cut into parts (kernels/conv2d_sizes.h), and a part's
 * among the lines of a block; a second kernel adds up the parts in order.
 *
 * Operands are float32 in every precision: it is memory that these kernels wait for.
 */
#include "kernels/cuda/conv2d/conv2d.cuh"
#include "kernels/cuda/conv2d/tensor.cuh"

#define PLACES 4                             /* of a thread: neighbours in a row */
#define TAPS   KELP_CUDA_CONV2D_CHANNEL_TAPS /* of a block: neighbours in a row of the kernel */

/* ---- one channel or four --------------------------------------------------------------------- */

template <typename number>
static __device__ __forceinline__ number load(const float *from, bool vector);
template <> __device__ __forceinline__ float load<float>(const float *from, bool vector)
{
    (void)vector;
    return *from;
}
template <> __device__ __forceinline__ float4 load<float4>(const float *from, bool vector)
{
    return kelp__cuda_load(from, vector);
}

static __device__ __forceinline__ float plus(float a, float b)
{
    return a + b;
}
static __device__ __forceinline__ float4 plus(float4 a, float4 b)
{
    return kelp__cuda_add(a, b);
}

static __device__ __forceinline__ void add_product(float a, float b, float *sum)
{
    *sum = kelp__cuda_fma(a, b, *sum);
}
static __device__ __forceinline__ void add_product(float4 a, float4 b, float4 *sum)
{
    add_product(a.x, b.x, &sum->x);
    add_product(a.y, b.y, &sum->y);
    add_product(a.z, b.z, &sum->z);
    add_product(a.w, b.w, &sum->w);
}

static __device__ __forceinline__ void put(float *to, float value, enum kelp_write write, bool)
{
    kelp__cuda_put(to, value, write);
}
static __device__ __forceinline__ void put(float *to, float4 value, enum kelp_write write,
                                           bool vector)
{
    kelp__cuda_put4(to, value, write, vector);
}

/* ---- y and dx -------------------------------------------------------------------------------- */

struct image {
    int sides[2];
    uint32_t channels;
    uint64_t sample; /* elements */
};
struct channels {
    struct image source, result;
    const float *from, *weight, *bias; /* weight: turned; bias: NULL: none */
    float *to;
    enum kelp_write write;
    bool vector;           /* all of it is aligned */
    uint32_t depth, width; /* of a group: the source's, the result's */
    struct kelp__cuda_channel_blocks blocks;
    uint32_t places; /* fours of them */
    struct kelp__cuda_divider by_width, by_fours, by_rows, by_stride[2];
    int kernel[2], stride[2], padding[2];
};

/* Where a tap leads in the source from a place of the result; -1: nowhere. */
template <bool back>
static __device__ __forceinline__ int leads(const struct channels &p, int side, int place, int tap)
{
    int at = place * p.stride[side] + tap - p.padding[side];
    if (back) {
        const int padded = place + p.padding[side] - tap;
        at = padded < 0 ? -1 : (int)kelp__cuda_divide(p.by_stride[side], (uint32_t)padded);
        at = at * p.stride[side] == padded ? at : -1;
    }
    return at < p.source.sides[side] ? at : -1; /* less than 0: nowhere, too */
}

/* A row of taps. from: the sample's row and channel; weight: of the row's first tap. */
template <typename number, bool back>
static __device__ __forceinline__ void add_row(const struct channels &p, const float *from,
                                               const float *weight, int column,
                                               number (&sums)[PLACES])
{
    for (int tap = 0; tap < p.kernel[1]; tap++) {
        const float *at[PLACES];
        KELP_CUDA_UNROLL_ALL
        for (int i = 0; i < PLACES; i++) {
            const int there = leads<back>(p, 1, column + i, tap);
            at[i] = there < 0 ? NULL : from + (uint64_t)(uint32_t)there * p.source.channels;
        }
        for (uint32_t channel = 0; channel < p.depth; channel++) {
            const number by = load<number>(weight, p.vector);
            number values[PLACES] = {};
            KELP_CUDA_UNROLL_ALL
            for (int i = 0; i < PLACES; i++) {
                if (at[i]) {
                    values[i] = load<number>(at[i] + channel, p.vector);
                }
            }
            KELP_CUDA_UNROLL_ALL
            for (int i = 0; i < PLACES; i++) {
                add_product(values[i], by, &sums[i]);
            }
            weight += p.result.channels;
        }
    }
}

template <typename number, bool back> static __global__ void sum_taps(const struct channels p)
{
    const uint32_t lane = threadIdx.x % p.blocks.across, line = threadIdx.x / p.blocks.across;
    const uint32_t above = blockIdx.x / p.blocks.count, each = sizeof(number) / sizeof(float);
    const uint32_t unit = (blockIdx.x - above * p.blocks.count) * p.blocks.across + lane;
    const uint32_t place = above * (KELP_CUDA_THREADS / p.blocks.across) + line;
    if (unit >= p.blocks.units || place >= p.places) {
        return;
    }
    const uint32_t rows = kelp__cuda_divide(p.by_fours, place);
    const uint32_t sample = kelp__cuda_divide(p.by_rows, rows);
    const int column = PLACES * (int)(place - rows * p.by_fours.by);
    const int row = (int)(rows - sample * p.by_rows.by);
    const uint32_t channel = each * unit;
    const float *from = p.from + sample * p.source.sample +
                        kelp__cuda_divide(p.by_width, channel) * (uint64_t)p.depth;
    const uint64_t taps = (uint64_t)p.depth * p.result.channels; /* from one tap to the next */
    number sums[PLACES] = {};
    for (int tap = 0; tap < p.kernel[0]; tap++) {
        const int there = leads<back>(p, 0, row, tap);
        if (there >= 0) {
            add_row<number, back>(
                p,
                from + (uint64_t)(uint32_t)there * (uint32_t)p.source.sides[1] * p.source.channels,
                p.weight + (uint32_t)(tap * p.kernel[1]) * taps + channel, column, sums);
        }
    }
    float *to = p.to + sample * p.result.sample +
                ((uint64_t)(uint32_t)row * (uint32_t)p.result.sides[1] + (uint32_t)column) *
                    p.result.channels +
                channel;
    KELP_CUDA_UNROLL_ALL
    for (int i = 0; i < PLACES; i++) {
        if (column + i < p.result.sides[1]) {
            const number value =
                p.bias ? plus(sums[i], load<number>(p.bias + channel, p.vector)) : sums[i];
            put(to + (uint32_t)i * p.result.channels, value, p.write, p.vector);
        }
    }
}

/* ---- weights in the order of sums ------------------------------------------------------------ */

/* weight is [y's channels][x's channels in a group][taps]. */
struct order {
    struct kelp__cuda_divider by_channels; /* of the result */
    struct kelp__cuda_divider by_depth;    /* of the source in a group */
    struct kelp__cuda_divider by_width;    /* of the result in a group */
    uint32_t taps;
    bool back;
};

/* Where weight i of [taps][source's in a group][result's] stands. */
static __device__ __forceinline__ uint32_t weight_at(const struct order &order, uint32_t i)
{
    const uint32_t above = kelp__cuda_divide(order.by_channels, i);
    const uint32_t result = i - above * order.by_channels.by;
    const uint32_t tap = kelp__cuda_divide(order.by_depth, above);
    const uint32_t source = above - tap * order.by_depth.by;
    if (!order.back) {
        return (result * order.by_depth.by + source) * order.taps + tap;
    }
    const uint32_t group = kelp__cuda_divide(order.by_width, result);
    const uint32_t in = result - group * order.by_width.by;
    return ((group * order.by_depth.by + source) * order.by_width.by + in) * order.taps + tap;
}

static __global__ void turn_weights(struct order order, const float *weight, float *to,
                                    uint32_t count)
{
    KELP_CUDA_FOR (i, count) {
        to[i] = weight[weight_at(order, (uint32_t)i)];
    }
}

/* dweight = or += the sum of parts, in order. */
static __global__ void add_weight_parts(struct order order, const float *sums, uint32_t parts,
                                        float *dweight, enum kelp_write write, uint32_t count)
{
    KELP_CUDA_FOR (i, count) {
        float sum = sums[i];
        KELP_CUDA_UNROLL(16) /* few threads have many parts: so many loads are under way */
        for (uint32_t part = 1; part < parts; part++) {
            sum = sum + sums[(uint64_t)part * count + i];
        }
        kelp__cuda_put(&dweight[weight_at(order, (uint32_t)i)], sum, write);
    }
}

static struct order order_of(const struct kelp_conv2d *conv, bool back)
{
    const uint32_t depth = conv->shape.window.channels / conv->shape.groups;
    return {kelp__cuda_divider_of(back ? conv->shape.window.channels : conv->shape.channels_out),
            kelp__cuda_divider_of(back ? conv->channels_out : depth),
            kelp__cuda_divider_of(back ? depth : conv->channels_out),
            (uint32_t)kelp__conv2d_plane(conv->shape.window.kernel), back};
}

/* ---- dweight --------------------------------------------------------------------------------- */

struct sums {
    struct image x;
    const float *from, *dy;
    float *to;             /* [parts][taps][depth][y's channels] */
    bool vector;           /* all of it is aligned */
    uint32_t depth, width; /* of a group: x's, y's channels */
    uint32_t y_channels, parts, part, places, spans;
    struct kelp__cuda_channel_blocks blocks;
    struct kelp__cuda_divider by_width, by_output, by_output_columns;
    int kernel[2], stride[2], padding[2];
};

/* The lines' sums, in the threads of line 0. One channel's three stand in one vector. */
static __device__ __forceinline__ void add_lines(float (&sums)[TAPS], uint32_t across,
                                                 float4 *partial)
{
    const float4 all =
        kelp__cuda_lines_sum(make_float4(sums[0], sums[1], sums[2], 0.0f), across, partial);
    sums[0] = all.x;
    sums[1] = all.y;
    sums[2] = all.z;
}
static __device__ __forceinline__ void add_lines(float4 (&sums)[TAPS], uint32_t across,
                                                 float4 *partial)
{
    KELP_CUDA_UNROLL_ALL
    for (int i = 0; i < TAPS; i++) {
        sums[i] = kelp__cuda_lines_sum(sums[i], across, partial);
    }
}

template <typename number> static __global__ void sum_places(const struct sums p)
{
    KELP_CUDA_SHARED float4 partial[KELP_CUDA_THREADS];
    const uint32_t lane = threadIdx.x % p.blocks.across, line = threadIdx.x / p.blocks.across;
    const uint32_t each = sizeof(number) / sizeof(float);
    const uint32_t kinds = blockIdx.x / p.blocks.count;
    const uint32_t unit = (blockIdx.x - kinds * p.blocks.count) * p.blocks.across + lane;
    const uint32_t above = kinds / p.depth, in = kinds - above * p.depth;
    const uint32_t rows = above / p.spans, part = rows / (uint32_t)p.kernel[0];
    const int tap_row = (int)(rows - part * (uint32_t)p.kernel[0]);
    const int tap = TAPS * (int)(above - rows * p.spans); /* of the row: the first one */
    const int taps = p.kernel[1] - tap < TAPS ? p.kernel[1] - tap : TAPS;
    const uint32_t begin = part * p.part, left = p.places - begin;
    const uint32_t end = begin + (left < p.part ? left : p.part);
    const uint32_t channel = each * unit;
    const bool is = unit < p.blocks.units;
    const uint64_t x_channel = kelp__cuda_divide(p.by_width, channel) * (uint64_t)p.depth + in;
    number sums[TAPS] = {};
    KELP_CUDA_UNROLL(2)
    KELP_CUDA_STEPS(place, is ? begin + line : end, end, KELP_CUDA_THREADS / p.blocks.across)
    {
        const uint32_t sample = kelp__cuda_divide(p.by_output, (uint32_t)place);
        const uint32_t within = (uint32_t)place - sample * p.by_output.by;
        const uint32_t down = kelp__cuda_divide(p.by_output_columns, within);
        const uint32_t across = within - down * p.by_output_columns.by;
        const int row = (int)down * p.stride[0] + tap_row - p.padding[0];
        const int column = (int)across * p.stride[1] + tap - p.padding[1];
        const bool inside = (uint32_t)row < (uint32_t)p.x.sides[0];
        const float *from = p.from + sample * p.x.sample + x_channel;
        const number dy = load<number>(p.dy + place * p.y_channels + channel, p.vector);
        number values[TAPS] = {};
        KELP_CUDA_UNROLL_ALL
        for (int i = 0; i < TAPS; i++) {
            if (inside && i < taps && (uint32_t)(column + i) < (uint32_t)p.x.sides[1]) {
                const uint32_t at = (uint32_t)row * (uint32_t)p.x.sides[1] + (uint32_t)(column + i);
                values[i] = load<number>(from + (uint64_t)at * p.x.channels, p.vector);
            }
        }
        KELP_CUDA_UNROLL_ALL
        for (int i = 0; i < TAPS; i++) {
            add_product(dy, values[i], &sums[i]);
        }
    }
    add_lines(sums, p.blocks.across, partial);
    const uint32_t all = (uint32_t)(p.kernel[0] * p.kernel[1]);
    float *to = p.to + channel;
    KELP_CUDA_UNROLL_ALL
    for (int i = 0; i < TAPS; i++) {
        const uint32_t at = part * all + (uint32_t)(tap_row * p.kernel[1] + tap + i);
        if (is && line == 0 && i < taps) {
            put(to + ((uint64_t)at * p.depth + in) * p.y_channels, sums[i], KELP_OVERWRITE,
                p.vector);
        }
    }
}

/* ---- launches -------------------------------------------------------------------------------- */

static void set_window(int (&kernel)[2], int (&stride)[2], int (&padding)[2],
                       const struct kelp_window *window)
{
    for (int side = 0; side < 2; side++) {
        kernel[side] = (int)window->kernel[side];
        stride[side] = window->stride[side] <= INT_MAX ? (int)window->stride[side] : INT_MAX;
        padding[side] = (int)window->padding[side];
    }
}

static struct image image_of(const uint32_t sides[2], uint32_t channels, uint64_t sample)
{
    return {{(int)sides[0], (int)sides[1]}, channels, sample};
}

static void turn(struct kelp_stream *stream, const struct kelp__cuda_conv2d_chunk *chunk, bool back)
{
    const uint32_t count = (uint32_t)chunk->conv->weights;
    KELP_CUDA_LAUNCH(stream, turn_weights, kelp__cuda_blocks(count), KELP_CUDA_THREADS,
                     order_of(chunk->conv, back), chunk->run->weight, chunk->run->workspace, count);
}

static void launch(struct kelp_stream *stream, const struct kelp__cuda_conv2d_chunk *chunk,
                   struct channels *p, bool back)
{
    const struct kelp_conv2d *conv = chunk->conv;
    const bool fours = kelp__cuda_conv2d_in_fours(&conv->shape);
    const uint32_t fours_of_row = ((uint32_t)p->result.sides[1] - 1) / PLACES + 1;
    set_window(p->kernel, p->stride, p->padding, &conv->shape.window);
    for (int side = 0; side < 2; side++) {
        p->by_stride[side] = kelp__cuda_divider_of((uint32_t)p->stride[side]);
    }
    p->weight = chunk->run->workspace;
    p->vector = kelp__cuda_aligned(p->from) && kelp__cuda_aligned(p->weight) &&
                kelp__cuda_aligned(p->bias) && kelp__cuda_aligned(p->to);
    p->by_width = kelp__cuda_divider_of(p->width);
    p->by_fours = kelp__cuda_divider_of(fours_of_row);
    p->by_rows = kelp__cuda_divider_of((uint32_t)p->result.sides[0]);
    p->blocks = kelp__cuda_channel_blocks_of(&conv->shape, p->result.channels);
    p->places = chunk->samples * (uint32_t)p->result.sides[0] * fours_of_row;
    const uint32_t lines = KELP_CUDA_THREADS / p->blocks.across;
    const uint64_t blocks = (uint64_t)p->blocks.count * ((p->places - 1) / lines + 1);
    void (*const kernels[2][2])(const struct channels) = {
        {sum_taps<float, false>, sum_taps<float, true>},
        {sum_taps<float4, false>, sum_taps<float4, true>}};
    turn(stream, chunk, back);
    KELP_CUDA_LAUNCH(stream, kernels[fours ? 1 : 0][back ? 1 : 0], blocks, KELP_CUDA_THREADS, *p);
}

void kelp__cuda_conv2d_channels_y(struct kelp_stream *stream,
                                  const struct kelp__cuda_conv2d_chunk *chunk)
{
    const struct kelp_conv2d *conv = chunk->conv;
    const struct kelp_window *window = &conv->shape.window;
    struct channels p = {};
    p.source = image_of(window->input, window->channels, conv->x);
    p.result = image_of(window->output, conv->shape.channels_out, conv->y);
    p.from = chunk->run->x + chunk->first * conv->x;
    p.bias = chunk->run->bias;
    p.to = chunk->run->y + chunk->first * conv->y;
    p.write = KELP_OVERWRITE;
    p.depth = window->channels / conv->shape.groups;
    p.width = conv->channels_out;
    launch(stream, chunk, &p, false);
}

void kelp__cuda_conv2d_channels_dx(struct kelp_stream *stream,
                                   const struct kelp__cuda_conv2d_chunk *chunk)
{
    const struct kelp_conv2d *conv = chunk->conv;
    const struct kelp_window *window = &conv->shape.window;
    struct channels p = {};
    p.source = image_of(window->output, conv->shape.channels_out, conv->y);
    p.result = image_of(window->input, window->channels, conv->x);
    p.from = chunk->run->dy + chunk->first * conv->y;
    p.to = chunk->run->dx + chunk->first * conv->x;
    p.write = chunk->run->write_x;
    p.depth = conv->channels_out;
    p.width = window->channels / conv->shape.groups;
    launch(stream, chunk, &p, true);
}

void kelp__cuda_conv2d_channels_dweight(struct kelp_stream *stream,
                                        const struct kelp__cuda_conv2d_chunk *chunk,
                                        enum kelp_write write)
{
    const struct kelp_conv2d *conv = chunk->conv;
    const struct kelp_window *window = &conv->shape.window;
    const uint32_t count = (uint32_t)conv->weights;
    struct sums p = {};
    p.x = image_of(window->input, window->channels, conv->x);
    p.from = chunk->run->x + chunk->first * conv->x;
    p.dy = chunk->run->dy + chunk->first * conv->y;
    p.to = chunk->run->workspace;
    p.vector = kelp__cuda_aligned(p.from) && kelp__cuda_aligned(p.dy) && kelp__cuda_aligned(p.to);
    p.depth = window->channels / conv->shape.groups;
    p.width = conv->channels_out;
    p.y_channels = conv->shape.channels_out;
    p.places = chunk->samples * conv->output;
    p.part = kelp__cuda_conv2d_channel_part(conv, chunk->samples);
    p.parts = (p.places - 1) / p.part + 1;
    p.spans = kelp__cuda_conv2d_spans(window);
    p.blocks = kelp__cuda_channel_blocks_of(&conv->shape, p.y_channels);
    p.by_width = kelp__cuda_divider_of(p.width);
    p.by_output = kelp__cuda_divider_of(conv->output);
    p.by_output_columns = kelp__cuda_divider_of(window->output[1]);
    set_window(p.kernel, p.stride, p.padding, window);
    const uint64_t blocks = p.parts * kelp__cuda_conv2d_channel_kinds(conv);
    if (kelp__cuda_conv2d_in_fours(&conv->shape)) {
        KELP_CUDA_LAUNCH(stream, sum_places<float4>, blocks, KELP_CUDA_THREADS, p);
    } else {
        KELP_CUDA_LAUNCH(stream, sum_places<float>, blocks, KELP_CUDA_THREADS, p);
    }
    KELP_CUDA_LAUNCH(stream, add_weight_parts, kelp__cuda_blocks(count), KELP_CUDA_THREADS,
                     order_of(conv, false), p.to, p.parts, chunk->run->dweight, write, count);
}

/*
 * y and dx of a convolution whose images have the channels last, by tiles (conv2d_tiles.cuh).
 *
 * Both are one product. A row of the result is a place of an image, a column is one of its
 * channels, and k counts the kernel's taps and, within a tap, the channels of the other image, the
 * source. A row of the left operand is what the place meets there, gathered from the source as it
 * lies in memory; a row of the right one is that channel's weights in the order of k, which a
 * kernel before makes of them, rounded, in words.
 *
 * From y's places taps lead to x's. Back from x's places a stride lets only some taps lead to a
 * place of y at all, the same ones for every stride-th row and column. So x's places are taken in
 * that many phases, each with the taps that it has: none is multiplied by zeros, and what no tap
 * leads to is a sum of nothing.
 *
 * A step has 16 words of k. A quad of neighbouring words is loaded by one thread; word i of quad q
 * stands in row 4 i + q of the tile, so that a warp's stores go to all banks.
 */
#include "kernels/cuda/conv2d/conv2d_tiles.cuh"

/* Blocks that fill a large device. */
#ifdef KELP_CUDA_CONV2D_FILL
#define FILL KELP_CUDA_CONV2D_FILL
#else
#define FILL 264u
#endif

/* ---- weights as tiles take them -------------------------------------------------------------- */

/* How they are turned (kernels/conv2d_sizes.h). A group has `depth` channels of the source and
 * `width` of the result. */
struct turned {
    struct kelp__cuda_divider by_row, by_depth, by_width; /* by_row: words */
    uint32_t classes[2], kernel[2], stride[2];            /* rows, columns; back: of x's places */
    bool back;
};

/* Weight k of a class of a channel of the result; 0 behind the last one. */
static __device__ __forceinline__ float turned_weight(const struct turned &turned,
                                                      const float *weight, uint32_t channel,
                                                      const uint32_t (&first)[2], uint32_t k)
{
    const uint32_t tap = kelp__cuda_divide(turned.by_depth, k);
    const uint32_t source = k - tap * turned.by_depth.by;
    const uint32_t columns = (turned.kernel[1] - first[1] - 1) / turned.stride[1] + 1;
    const uint32_t row = tap / columns * turned.stride[0] + first[0];
    const uint32_t column = tap % columns * turned.stride[1] + first[1];
    const uint32_t group = kelp__cuda_divide(turned.by_width, channel);
    const uint32_t in_group = channel - group * turned.by_width.by;
    const uint32_t out = turned.back ? group * turned.by_depth.by + source : channel;
    const uint32_t in = turned.back ? in_group : source;
    const uint32_t ins = turned.back ? turned.by_width.by : turned.by_depth.by;
    const uint32_t at = ((out * ins + in) * turned.kernel[0] + row) * turned.kernel[1] + column;
    return row < turned.kernel[0] ? weight[at] : 0.0f;
}

template <enum kelp_product_precision precision>
static __global__ void turn_weights(struct turned turned, const float *__restrict__ weight,
                                    uint32_t *__restrict__ to, uint32_t count)
{
    const int per_word = kelp__cuda_word_elements(precision);
    KELP_CUDA_FOR (i, count) {
        const uint32_t row = kelp__cuda_divide(turned.by_row, (uint32_t)i);
        const uint32_t k = ((uint32_t)i - row * turned.by_row.by) * per_word;
        const uint32_t above = row / turned.classes[1], channel = above / turned.classes[0];
        const uint32_t first[2] = {above - channel * turned.classes[0],
                                   row - above * turned.classes[1]};
        const float one = turned_weight(turned, weight, channel, first, k);
        const float next =
            per_word > 1 ? turned_weight(turned, weight, channel, first, k + 1) : 0.0f;
        to[i] = kelp__cuda_word<precision>(one, next);
    }
}

/* ---- where taps lead ------------------------------------------------------------------------- */

struct gather {
    const float *source, *bias; /* bias: NULL: none */
    const uint32_t *weight;     /* turned, in words */
    uint32_t classes[2], row;   /* of the weights; row: words */
    bool vector_weight;         /* they are aligned */
    float *result;
    enum kelp_write write;
    bool back;                        /* from x's places to y's */
    bool vector;                      /* the result's rows are in fours, and aligned */
    uint32_t samples, groups, phases; /* phases of columns are neighbours */
    uint32_t phase_columns;
    uint32_t depth, width;                     /* channels of a group: the source's, the result's */
    uint32_t source_channels, result_channels; /* of all groups */
    int source_sides[2], result_sides[2];
    int kernel[2], stride[2], padding[2];
    struct kelp__cuda_divider by_depth;
    struct kelp__cuda_divider by_taps[2]; /* taps in a row: of phases with few, and with one more */
    uint32_t row_tiles, column_tiles;
};

/* Places and taps that belong together. Each pair is rows, columns. */
struct phase {
    int first[2], every[2], sides[2]; /* of the result */
    int tap[2], taps[2];              /* of the kernel: as many, `every` apart, from the first on */
    int origin[2], step[2]; /* in the source: of the first place and tap, to the next place */
    int sign;               /* to the next tap */
};

static __device__ __forceinline__ struct phase phase_of(const struct gather &gather, uint32_t index)
{
    struct phase phase;
    phase.sign = gather.back ? -1 : 1;
    KELP_CUDA_UNROLL_ALL
    for (int side = 0; side < 2; side++) {
        const int stride = gather.stride[side], padding = gather.padding[side];
        if (!gather.back) {
            phase.first[side] = 0;
            phase.every[side] = 1;
            phase.sides[side] = gather.result_sides[side];
            phase.tap[side] = 0;
            phase.taps[side] = gather.kernel[side];
            phase.origin[side] = -padding;
            phase.step[side] = stride;
            continue;
        }
        const uint32_t across = gather.phase_columns;
        const int first = (int)(side == 0 ? index / across : index % across);
        const int tap = (first + padding) % stride;
        const int left = gather.result_sides[side] - first; /* at least 1 */
        phase.first[side] = first;
        phase.every[side] = stride;
        phase.sides[side] = (left - 1) / stride + 1;
        phase.tap[side] = tap;
        phase.taps[side] =
            tap < gather.kernel[side] ? (gather.kernel[side] - tap - 1) / stride + 1 : 0;
        phase.origin[side] = (first + padding - tap) / stride;
        phase.step[side] = 1;
    }
    return phase;
}

/* Element k of a place's row: where its tap leads, from where the first one does. */
struct element {
    bool is;
    int row, column;
    uint32_t channel;
};

/* ---- operands -------------------------------------------------------------------------------- */

/* A thread loads a quad of words of a few rows and columns, 64 apart. vector: the source's channels
 * are in fours, and aligned. */
template <enum kelp_product_precision precision, bool vector, int rows, int columns>
struct gather_operands {
    static constexpr int per_word = kelp__cuda_word_elements(precision);
    static constexpr int per_quad = 4 * per_word;
    const struct gather &gather;
    const struct phase &phase;
    struct kelp__cuda_divider by_taps;
    uint32_t depth; /* of all taps of the phase */
    int row[rows / 64], column[rows / 64];
    const float *from[rows / 64];         /* the place's sample and group; NULL: no such row */
    const uint32_t *weight[columns / 64]; /* NULL: no such column */
    float left[rows / 64][per_quad];
    uint4 right[columns / 64];

    __device__ __forceinline__ gather_operands(const struct gather &of, const struct phase &at,
                                               uint32_t group, uint32_t first_row,
                                               uint32_t first_column)
        : gather(of), phase(at)
    {
        by_taps = of.by_taps[phase.taps[1] > (int)of.by_taps[0].by ? 1 : 0];
        depth = (uint32_t)(phase.taps[0] * phase.taps[1]) * of.depth;
        KELP_CUDA_UNROLL_ALL
        for (int i = 0; i < rows / 64; i++) {
            set_row(i, group, first_row + threadIdx.x / 4 + 64 * (uint32_t)i);
        }
        KELP_CUDA_UNROLL_ALL
        for (int i = 0; i < columns / 64; i++) {
            const uint32_t at = first_column + threadIdx.x / 4 + 64 * (uint32_t)i;
            const uint64_t channel = group * gather.width + at;
            const uint64_t row_of_weights =
                (channel * gather.classes[0] + (uint32_t)phase.tap[0]) * gather.classes[1] +
                (uint32_t)phase.tap[1];
            weight[i] = at < gather.width ? gather.weight + row_of_weights * gather.row : NULL;
        }
    }

    __device__ __forceinline__ void set_row(int i, uint32_t group, uint32_t place)
    {
        const uint32_t plane = (uint32_t)(phase.sides[0] * phase.sides[1]);
        const uint32_t sample = place / plane, within = place - sample * plane;
        const uint32_t down = within / (uint32_t)phase.sides[1];
        const uint32_t across = within - down * (uint32_t)phase.sides[1];
        const bool is = sample < gather.samples;
        const uint64_t size =
            (uint64_t)(gather.source_sides[0] * gather.source_sides[1]) * gather.source_channels;
        row[i] = phase.origin[0] + (int)down * phase.step[0];
        column[i] = phase.origin[1] + (int)across * phase.step[1];
        from[i] = is ? gather.source + sample * size + group * gather.depth : NULL;
    }

    __device__ __forceinline__ struct element element_of(uint32_t k) const
    {
        struct element element = {k < depth, 0, 0, 0};
        if (element.is) {
            const uint32_t tap = kelp__cuda_divide(gather.by_depth, k);
            const int down = (int)kelp__cuda_divide(by_taps, tap);
            const int across = (int)tap - down * phase.taps[1];
            element.channel = k - tap * gather.depth;
            element.row = down * phase.sign;
            element.column = across * phase.sign;
        }
        return element;
    }

    /* Where row i's element lies; NULL: outside. */
    __device__ __forceinline__ const float *meets(int i, const struct element &element) const
    {
        const int at_row = row[i] + element.row, at_column = column[i] + element.column;
        const bool inside = element.is && from[i] &&
                            (uint32_t)at_row < (uint32_t)gather.source_sides[0] &&
                            (uint32_t)at_column < (uint32_t)gather.source_sides[1];
        const uint32_t place =
            (uint32_t)at_row * (uint32_t)gather.source_sides[1] + (uint32_t)at_column;
        return inside ? from[i] + (place * gather.source_channels + element.channel) : NULL;
    }

    static __device__ __forceinline__ void take(const float *at, float *to)
    {
        if (vector) {
            const float4 four =
                at ? *reinterpret_cast<const float4 *>(at) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            to[0] = four.x;
            to[1] = four.y;
            to[2] = four.z;
            to[3] = four.w;
        } else {
            to[0] = at ? *at : 0.0f;
        }
    }

    __device__ __forceinline__ uint4 words_at(const uint32_t *at) const
    {
        if (!at) {
            return make_uint4(0, 0, 0, 0);
        }
        return gather.vector_weight ? *reinterpret_cast<const uint4 *>(at)
                                    : make_uint4(at[0], at[1], at[2], at[3]);
    }

    __device__ __forceinline__ void load(uint32_t step)
    {
        const uint32_t word = step * KELP_CUDA_TILE_WORDS + threadIdx.x % 4 * 4;
        KELP_CUDA_UNROLL_ALL
        for (int k = 0; k < per_quad; k += vector ? 4 : 1) {
            const struct element element = element_of(word * per_word + (uint32_t)k);
            KELP_CUDA_UNROLL_ALL
            for (int i = 0; i < rows / 64; i++) {
                take(meets(i, element), left[i] + k);
            }
        }
        const bool is = word * per_word < depth;
        KELP_CUDA_UNROLL_ALL
        for (int i = 0; i < columns / 64; i++) {
            right[i] = words_at(is && weight[i] ? weight[i] + word : NULL);
        }
    }

    __device__ __forceinline__ void put(struct kelp__cuda_tile_half<rows, columns> &half) const
    {
        const uint32_t quad = threadIdx.x % 4, at = threadIdx.x / 4;
        KELP_CUDA_UNROLL_ALL
        for (int i = 0; i < rows / 64; i++) {
            KELP_CUDA_UNROLL_ALL
            for (int word = 0; word < 4; word++) {
                const float *first = left[i] + word * per_word;
                half.left[4 * word + quad][at + 64 * i] =
                    kelp__cuda_word<precision>(first[0], first[per_word - 1]);
            }
        }
        KELP_CUDA_UNROLL_ALL
        for (int i = 0; i < columns / 64; i++) {
            half.right[quad][at + 64 * i] = right[i].x;
            half.right[4 + quad][at + 64 * i] = right[i].y;
            half.right[8 + quad][at + 64 * i] = right[i].z;
            half.right[12 + quad][at + 64 * i] = right[i].w;
        }
    }
};

/* ---- the result ------------------------------------------------------------------------------ */

/* Where a tile's rows go. */
struct gather_target : kelp__cuda_tile_row {
    const struct gather &gather;
    const struct phase &phase;
    uint32_t first_row, first_channel; /* of all groups */

    __device__ __forceinline__ gather_target(const struct gather &of, const struct phase &at,
                                             uint32_t group, uint32_t first, uint32_t first_column)
        : gather(of), phase(at)
    {
        first_row = first;
        first_channel = group * of.width + first_column;
        bias = of.bias ? of.bias + first_channel : NULL;
        columns = of.width - first_column;
        write = of.write;
        vector = of.vector;
    }

    __device__ __forceinline__ void row(uint32_t row)
    {
        const uint32_t plane = (uint32_t)(phase.sides[0] * phase.sides[1]);
        uint32_t place = first_row + row;
        if (place >= gather.samples * plane) {
            to = NULL;
            return;
        }
        if (gather.phases > 1) {
            const uint32_t sample = place / plane, within = place - sample * plane;
            const uint32_t down = within / (uint32_t)phase.sides[1];
            const uint32_t across = within - down * (uint32_t)phase.sides[1];
            place = (sample * (uint32_t)gather.result_sides[0] + (uint32_t)phase.first[0] +
                     down * (uint32_t)phase.every[0]) *
                        (uint32_t)gather.result_sides[1] +
                    (uint32_t)phase.first[1] + across * (uint32_t)phase.every[1];
        }
        to = gather.result + (uint64_t)place * gather.result_channels + first_channel;
    }
};

template <enum kelp_product_precision precision, bool vector, int rows, int columns>
static __global__ void __launch_bounds__(KELP_CUDA_THREADS,
                                         kelp__cuda_tile_blocks(precision == KELP_PRODUCT_TF32))
    gather_tiles(const struct gather gather)
{
    KELP_CUDA_SHARED struct kelp__cuda_tile_half<rows, columns> halves[2];
    const uint32_t column_tile = blockIdx.x % gather.column_tiles;
    const uint32_t row_tiles = blockIdx.x / gather.column_tiles;
    const uint32_t row_tile = row_tiles % gather.row_tiles;
    const uint32_t group = row_tiles / gather.row_tiles % gather.groups;
    const struct phase phase = phase_of(gather, row_tiles / gather.row_tiles / gather.groups);
    const uint32_t first_row = row_tile * rows, first_column = column_tile * columns;
    const uint32_t places = gather.samples * (uint32_t)(phase.sides[0] * phase.sides[1]);
    if (first_row >= places) { /* of the largest phase there are more */
        return;
    }
    struct gather_operands<precision, vector, rows, columns> operands(gather, phase, group,
                                                                      first_row, first_column);
    struct gather_target target(gather, phase, group, first_row, first_column);
    struct kelp__cuda_tile<precision, rows, columns> tile;
    const uint32_t per_step = KELP_CUDA_TILE_WORDS * operands.per_word;
    kelp__cuda_multiply_tile(halves, operands, (operands.depth + per_step - 1) / per_step, tile);
    tile.give(target);
}

/* ---- launches -------------------------------------------------------------------------------- */

enum size { LARGE, NARROW, SMALL, SIZES };
static const uint32_t size_rows[SIZES] = {128, 128, 64}, size_columns[SIZES] = {128, 64, 64};

typedef void (*gather_kernel)(const struct gather gather);
#define SIZES_OF(precision, vector)                                                                \
    {                                                                                              \
        gather_tiles<precision, vector, 128, 128>, gather_tiles<precision, vector, 128, 64>,       \
            gather_tiles<precision, vector, 64, 64>                                                \
    }
#define KERNELS_OF(precision)                                                                      \
    {                                                                                              \
        SIZES_OF(precision, false), SIZES_OF(precision, true)                                      \
    }
static const gather_kernel kernels[][2][SIZES] = {KERNELS_OF(KELP_PRODUCT_FLOAT32),
                                                  KERNELS_OF(KELP_PRODUCT_TF32),
                                                  KERNELS_OF(KELP_PRODUCT_BFLOAT16)};

static uint64_t blocks_of(struct gather *gather, uint32_t places, enum size size)
{
    gather->row_tiles = (places - 1) / size_rows[size] + 1;
    gather->column_tiles = (gather->width - 1) / size_columns[size] + 1;
    return (uint64_t)gather->row_tiles * gather->column_tiles * gather->groups * gather->phases;
}

/* The largest tiles of which there are enough to fill a large device. Sums are the same in all. */
static enum size size_of(struct gather *gather, uint32_t places)
{
    if (gather->width > 64 && blocks_of(gather, places, LARGE) >= FILL) {
        return LARGE;
    }
    return blocks_of(gather, places, NARROW) >= FILL ? NARROW : SMALL;
}

static void launch(struct kelp_stream *stream, struct gather *gather)
{
    const uint32_t plane =
        gather->back ? (uint32_t)((gather->result_sides[0] - 1) / gather->stride[0] + 1) *
                           (uint32_t)((gather->result_sides[1] - 1) / gather->stride[1] + 1)
                     : (uint32_t)(gather->result_sides[0] * gather->result_sides[1]);
    const uint32_t places = gather->samples * plane; /* of the largest phase */
    const enum size size = size_of(gather, places);
    const bool vector = gather->depth % 4 == 0 && kelp__cuda_aligned(gather->source);
    const gather_kernel kernel =
        kernels[kelp__cuda_stream_of(stream)->precision][vector ? 1 : 0][size];
    const uint64_t blocks = blocks_of(gather, places, size);
    KELP_CUDA_LAUNCH(stream, kernel, blocks, KELP_CUDA_THREADS, *gather);
}

typedef void (*turn_kernel)(struct turned turned, const float *weight, uint32_t *to,
                            uint32_t count);
static const turn_kernel turn_kernels[] = {turn_weights<KELP_PRODUCT_FLOAT32>,
                                           turn_weights<KELP_PRODUCT_TF32>,
                                           turn_weights<KELP_PRODUCT_BFLOAT16>};

static void turn_weights_of(struct kelp_stream *stream, const struct kelp_conv2d_run *run,
                            struct gather *gather)
{
    const struct kelp_window *window = &run->conv->shape.window;
    const enum kelp_product_precision precision = kelp__cuda_stream_of(stream)->precision;
    const uint32_t per_word = (uint32_t)kelp__cuda_word_elements(precision);
    const struct kelp__cuda_conv2d_turned sizes =
        kelp__cuda_conv2d_turned_of(&run->conv->shape, gather->back);
    struct turned turned = {};
    gather->row = (uint32_t)sizes.row / per_word;
    turned.by_row = kelp__cuda_divider_of(gather->row);
    turned.by_depth = gather->by_depth;
    turned.by_width = kelp__cuda_divider_of(gather->width);
    turned.back = gather->back;
    for (int side = 0; side < 2; side++) {
        gather->classes[side] = turned.classes[side] = sizes.classes[side];
        turned.kernel[side] = window->kernel[side];
        turned.stride[side] = gather->back ? window->stride[side] : 1;
    }
    const uint32_t count = (uint32_t)sizes.elements / per_word;
    uint32_t *to = reinterpret_cast<uint32_t *>(run->workspace);
    const turn_kernel kernel = turn_kernels[precision];
    KELP_CUDA_LAUNCH(stream, kernel, kelp__cuda_blocks(count), KELP_CUDA_THREADS, turned,
                     run->weight, to, count);
    gather->weight = to;
    gather->vector_weight = kelp__cuda_aligned(to);
}

/* What both directions have in common. */
static struct gather gather_of(const struct kelp__cuda_conv2d_chunk *chunk)
{
    const struct kelp_window *window = &chunk->conv->shape.window;
    struct gather gather = {};
    gather.samples = chunk->samples;
    gather.groups = chunk->conv->shape.groups;
    for (int side = 0; side < 2; side++) {
        gather.kernel[side] = (int)window->kernel[side];
        gather.stride[side] = window->stride[side] <= INT_MAX ? (int)window->stride[side] : INT_MAX;
        gather.padding[side] = (int)window->padding[side];
    }
    return gather;
}

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static void set_sides(int to[2], const uint32_t sides[2])
{
    to[0] = (int)sides[0];
    to[1] = (int)sides[1];
}

void kelp__cuda_conv2d_tiles_y(struct kelp_stream *stream,
                               const struct kelp__cuda_conv2d_chunk *chunk)
{
    const struct kelp_conv2d_run *run = chunk->run;
    const struct kelp_conv2d *conv = chunk->conv;
    const struct kelp_window *window = &conv->shape.window;
    struct gather gather = gather_of(chunk);
    gather.source = run->x + chunk->first * conv->x;
    gather.bias = run->bias;
    gather.result = run->y + chunk->first * conv->y;
    gather.phases = gather.phase_columns = 1;
    gather.source_channels = window->channels;
    gather.result_channels = conv->shape.channels_out;
    gather.depth = window->channels / conv->shape.groups;
    gather.width = conv->channels_out;
    set_sides(gather.source_sides, window->input);
    set_sides(gather.result_sides, window->output);
    gather.by_depth = kelp__cuda_divider_of(gather.depth);
    gather.by_taps[0] = gather.by_taps[1] = kelp__cuda_divider_of(window->kernel[1]);
    gather.vector = gather.width % 4 == 0 && kelp__cuda_aligned(gather.result);
    turn_weights_of(stream, run, &gather);
    launch(stream, &gather);
}

void kelp__cuda_conv2d_tiles_dx(struct kelp_stream *stream,
                                const struct kelp__cuda_conv2d_chunk *chunk)
{
    const struct kelp_conv2d_run *run = chunk->run;
    const struct kelp_conv2d *conv = chunk->conv;
    const struct kelp_window *window = &conv->shape.window;
    const uint32_t fewest = window->kernel[1] / window->stride[1];
    struct gather gather = gather_of(chunk);
    gather.back = true;
    gather.source = run->dy + chunk->first * conv->y;
    gather.result = run->dx + chunk->first * conv->x;
    gather.write = run->write_x;
    gather.phase_columns = smaller(window->stride[1], window->input[1]);
    gather.phases = smaller(window->stride[0], window->input[0]) * gather.phase_columns;
    gather.source_channels = conv->shape.channels_out;
    gather.result_channels = window->channels;
    gather.depth = conv->channels_out;
    gather.width = window->channels / conv->shape.groups;
    set_sides(gather.source_sides, window->output);
    set_sides(gather.result_sides, window->input);
    gather.by_depth = kelp__cuda_divider_of(gather.depth);
    gather.by_taps[0] = kelp__cuda_divider_of(fewest != 0 ? fewest : 1);
    gather.by_taps[1] = kelp__cuda_divider_of(fewest + 1);
    gather.vector = gather.width % 4 == 0 && kelp__cuda_aligned(gather.result);
    turn_weights_of(stream, run, &gather);
    launch(stream, &gather);
}

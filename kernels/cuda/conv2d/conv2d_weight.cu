/*
 * dweight of a convolution whose images have the channels last, by tiles (conv2d_tiles.cuh).
 *
 * A row of the result is a channel of y, a column is a weight of it, [taps][channels of x in a
 * group], and k counts the places of y in all samples. A row of the left operand is a channel of
 * dy, a column of the right one is what its tap meets of its channel of x: places are rows of both
 * in memory, as they are in a tile.
 *
 * The sum over places is cut into parts (kernels/conv2d_sizes.h), which a second kernel adds up in
 * order, and puts in dweight's own order.
 */
#include "kernels/cuda/conv2d/conv2d_tiles.cuh"

struct weights {
    const float *x, *dy;
    float *sums;                          /* [parts][y's channels][taps][x's channels in a group] */
    uint32_t groups, parts, part, places; /* a part's places, all places */
    uint32_t depth, width;                /* channels of a group: of x, of y */
    uint32_t x_channels, y_channels;      /* of all groups */
    uint32_t weights;                     /* of a channel of y */
    uint64_t all_weights, sample;         /* sample: elements of x */
    int input[2], stride[2], padding[2];
    struct kelp__cuda_divider by_depth, by_tap_columns, by_output, by_output_columns;
    bool vector_y; /* y's channels are in fours, and aligned */
    bool vector_sums;
    uint32_t row_tiles, column_tiles;
};

/* ---- operands -------------------------------------------------------------------------------- */

/* What a weight's tap adds to a place of y's own position in x. */
struct tap {
    bool is;
    int row, column;
    uint32_t channel; /* of all groups */
};

/* A thread loads fours of neighbouring rows and columns of a few words. vector: x's channels are in
 * fours, and aligned. */
template <enum kelp_product_precision precision, bool vector, int rows, int columns>
struct weight_operands {
    static constexpr int per_word = kelp__cuda_word_elements(precision);
    static constexpr int left_words = rows / 64, right_words = columns / 64;
    const struct weights &weights;
    uint32_t begin, end; /* of the part: places */
    const float *dy;     /* the thread's first row */
    uint32_t left_rows;  /* of the four; 0: none */
    struct tap taps[vector ? 1 : 4];
    float left[left_words][per_word][4], right[right_words][per_word][4];

    __device__ __forceinline__ weight_operands(const struct weights &of, uint32_t part,
                                               uint32_t group, uint32_t first_row,
                                               uint32_t first_column)
        : weights(of)
    {
        const uint32_t row = first_row + threadIdx.x % (rows / 4) * 4;
        const uint32_t column = first_column + threadIdx.x % (columns / 4) * 4;
        const uint32_t left_places = of.places - part * of.part;
        begin = part * of.part;
        end = begin + (left_places < of.part ? left_places : of.part);
        dy = of.dy + group * of.width + row;
        left_rows = row < of.width ? of.width - row : 0;
        KELP_CUDA_UNROLL_ALL
        for (int i = 0; i < (vector ? 1 : 4); i++) {
            taps[i] = tap_of(group, column + (uint32_t)i);
        }
    }

    __device__ __forceinline__ struct tap tap_of(uint32_t group, uint32_t weight) const
    {
        struct tap tap = {weight < weights.weights, 0, 0, 0};
        if (tap.is) {
            const uint32_t index = kelp__cuda_divide(weights.by_depth, weight);
            const uint32_t row = kelp__cuda_divide(weights.by_tap_columns, index);
            tap.row = (int)row - weights.padding[0];
            tap.column = (int)(index - row * weights.by_tap_columns.by) - weights.padding[1];
            tap.channel = group * weights.depth + weight - index * weights.depth;
        }
        return tap;
    }

    __device__ __forceinline__ void load_left(uint32_t place, float (&to)[4]) const
    {
        const float *from = dy + (uint64_t)place * weights.y_channels;
        float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (place < end && left_rows != 0) {
            four = weights.vector_y ? kelp__cuda_load(from, true)
                                    : kelp__cuda_load_some(from, left_rows);
        }
        to[0] = four.x;
        to[1] = four.y;
        to[2] = four.z;
        to[3] = four.w;
    }

    __device__ __forceinline__ void load_right(uint32_t place, float (&to)[4]) const
    {
        const bool is = place < end;
        const uint32_t sample = is ? kelp__cuda_divide(weights.by_output, place) : 0;
        const uint32_t within = place - sample * weights.by_output.by;
        const uint32_t down = is ? kelp__cuda_divide(weights.by_output_columns, within) : 0;
        const uint32_t across = within - down * weights.by_output_columns.by;
        const float *from = weights.x + sample * weights.sample;
        KELP_CUDA_UNROLL_ALL
        for (int i = 0; i < (vector ? 1 : 4); i++) {
            const int row = (int)down * weights.stride[0] + taps[i].row;
            const int column = (int)across * weights.stride[1] + taps[i].column;
            const bool inside = is && taps[i].is && (uint32_t)row < (uint32_t)weights.input[0] &&
                                (uint32_t)column < (uint32_t)weights.input[1];
            const uint32_t at = (uint32_t)row * (uint32_t)weights.input[1] + (uint32_t)column;
            const float *value = from + (at * weights.x_channels + taps[i].channel);
            if (vector) {
                const float4 four = inside ? *reinterpret_cast<const float4 *>(value)
                                           : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                to[0] = four.x;
                to[1] = four.y;
                to[2] = four.z;
                to[3] = four.w;
            } else {
                to[i] = inside ? *value : 0.0f;
            }
        }
    }

    __device__ __forceinline__ void load(uint32_t step)
    {
        const uint32_t first = begin + step * KELP_CUDA_TILE_WORDS * per_word;
        KELP_CUDA_UNROLL_ALL
        for (int i = 0; i < left_words; i++) {
            const uint32_t word = threadIdx.x / (rows / 4) + 1024 / rows * (uint32_t)i;
            KELP_CUDA_UNROLL_ALL
            for (int k = 0; k < per_word; k++) {
                load_left(first + word * per_word + (uint32_t)k, left[i][k]);
            }
        }
        KELP_CUDA_UNROLL_ALL
        for (int i = 0; i < right_words; i++) {
            const uint32_t word = threadIdx.x / (columns / 4) + 1024 / columns * (uint32_t)i;
            KELP_CUDA_UNROLL_ALL
            for (int k = 0; k < per_word; k++) {
                load_right(first + word * per_word + (uint32_t)k, right[i][k]);
            }
        }
    }

    static __device__ __forceinline__ uint4 words_of(const float (&values)[per_word][4])
    {
        const float(&first)[4] = values[0], (&last)[4] = values[per_word - 1];
        return make_uint4(kelp__cuda_word<precision>(first[0], last[0]),
                          kelp__cuda_word<precision>(first[1], last[1]),
                          kelp__cuda_word<precision>(first[2], last[2]),
                          kelp__cuda_word<precision>(first[3], last[3]));
    }

    __device__ __forceinline__ void put(struct kelp__cuda_tile_half<rows, columns> &half) const
    {
        KELP_CUDA_UNROLL_ALL
        for (int i = 0; i < left_words; i++) {
            const uint32_t word = threadIdx.x / (rows / 4) + 1024 / rows * (uint32_t)i;
            const uint32_t at = threadIdx.x % (rows / 4) * 4;
            *reinterpret_cast<uint4 *>(&half.left[word][at]) = words_of(left[i]);
        }
        KELP_CUDA_UNROLL_ALL
        for (int i = 0; i < right_words; i++) {
            const uint32_t word = threadIdx.x / (columns / 4) + 1024 / columns * (uint32_t)i;
            const uint32_t at = threadIdx.x % (columns / 4) * 4;
            *reinterpret_cast<uint4 *>(&half.right[word][at]) = words_of(right[i]);
        }
    }
};

/* ---- the result ------------------------------------------------------------------------------ */

/* Where a tile's rows go. */
struct weight_target : kelp__cuda_tile_row {
    float *first; /* the tile's first row */
    uint32_t rows, length;

    __device__ __forceinline__ weight_target(const struct weights &weights, uint32_t part,
                                             uint32_t group, uint32_t first_row,
                                             uint32_t first_column)
    {
        const uint64_t channel = group * weights.width + first_row;
        first =
            weights.sums + part * weights.all_weights + channel * weights.weights + first_column;
        rows = weights.width - first_row;
        length = weights.weights;
        bias = NULL;
        columns = weights.weights - first_column;
        write = KELP_OVERWRITE;
        vector = weights.vector_sums;
    }

    __device__ __forceinline__ void row(uint32_t row)
    {
        to = row < rows ? first + (uint64_t)row * length : NULL;
    }
};

template <enum kelp_product_precision precision, bool vector, int rows, int columns>
static __global__ void __launch_bounds__(KELP_CUDA_THREADS,
                                         kelp__cuda_tile_blocks(precision != KELP_PRODUCT_FLOAT32))
    weight_tiles(const struct weights weights)
{
    KELP_CUDA_SHARED struct kelp__cuda_tile_half<rows, columns> halves[2];
    const uint32_t column_tile = blockIdx.x % weights.column_tiles;
    const uint32_t row_tiles = blockIdx.x / weights.column_tiles;
    const uint32_t row_tile = row_tiles % weights.row_tiles;
    const uint32_t group = row_tiles / weights.row_tiles % weights.groups;
    const uint32_t part = row_tiles / weights.row_tiles / weights.groups;
    const uint32_t first_row = row_tile * rows, first_column = column_tile * columns;
    struct weight_operands<precision, vector, rows, columns> operands(weights, part, group,
                                                                      first_row, first_column);
    struct weight_target target(weights, part, group, first_row, first_column);
    struct kelp__cuda_tile<precision, rows, columns> tile;
    const uint32_t per_step = KELP_CUDA_TILE_WORDS * operands.per_word;
    const uint32_t places = operands.end - operands.begin;
    kelp__cuda_multiply_tile(halves, operands, (places - 1) / per_step + 1, tile);
    tile.give(target);
}

/* ---- parts ----------------------------------------------------------------------------------- */

/* dweight [y's channels][x's channels][taps] = or += the sum of parts, in order. */
static __global__ void add_weight_parts(struct kelp__cuda_divider by_depth,
                                        struct kelp__cuda_divider by_taps, const float *sums,
                                        uint32_t parts, float *dweight, enum kelp_write write,
                                        uint32_t count)
{
    KELP_CUDA_FOR (i, count) {
        const uint32_t above = kelp__cuda_divide(by_depth, (uint32_t)i);
        const uint32_t channel = kelp__cuda_divide(by_taps, above);
        const uint32_t tap = above - channel * by_taps.by, in = (uint32_t)i - above * by_depth.by;
        float sum = sums[i];
        KELP_CUDA_UNROLL(16) /* few threads have many parts: so many loads are under way */
        for (uint32_t part = 1; part < parts; part++) {
            sum = sum + sums[(uint64_t)part * count + i];
        }
        kelp__cuda_put(&dweight[(channel * by_depth.by + in) * by_taps.by + tap], sum, write);
    }
}

/* ---- launches -------------------------------------------------------------------------------- */

typedef void (*weight_kernel)(const struct weights weights);
#define COLUMNS KELP_CUDA_CONV2D_WEIGHT_COLUMNS
#define KERNELS_OF(precision)                                                                      \
    {                                                                                              \
        {weight_tiles<precision, false, 64, COLUMNS>,                                              \
         weight_tiles<precision, false, 128, COLUMNS>},                                            \
        {                                                                                          \
            weight_tiles<precision, true, 64, COLUMNS>,                                            \
                weight_tiles<precision, true, 128, COLUMNS>                                        \
        }                                                                                          \
    }
static const weight_kernel kernels[][2][2] = {KERNELS_OF(KELP_PRODUCT_FLOAT32),
                                              KERNELS_OF(KELP_PRODUCT_TF32),
                                              KERNELS_OF(KELP_PRODUCT_BFLOAT16)};

static struct weights weights_of(const struct kelp__cuda_conv2d_chunk *chunk)
{
    const struct kelp_conv2d_run *run = chunk->run;
    const struct kelp_conv2d *conv = chunk->conv;
    const struct kelp_window *window = &conv->shape.window;
    struct weights weights = {};
    weights.x = run->x + chunk->first * conv->x;
    weights.dy = run->dy + chunk->first * conv->y;
    weights.sums = run->workspace;
    weights.groups = conv->shape.groups;
    weights.places = chunk->samples * conv->output;
    weights.part = kelp__cuda_conv2d_tile_part(conv, chunk->samples);
    weights.parts = (weights.places - 1) / weights.part + 1;
    weights.depth = window->channels / conv->shape.groups;
    weights.width = conv->channels_out;
    weights.x_channels = window->channels;
    weights.y_channels = conv->shape.channels_out;
    weights.weights = conv->depth;
    weights.all_weights = conv->weights;
    weights.sample = conv->x;
    for (int side = 0; side < 2; side++) {
        weights.input[side] = (int)window->input[side];
        weights.stride[side] = (int)window->stride[side];
        weights.padding[side] = (int)window->padding[side];
    }
    weights.by_depth = kelp__cuda_divider_of(weights.depth);
    weights.by_tap_columns = kelp__cuda_divider_of(window->kernel[1]);
    weights.by_output = kelp__cuda_divider_of(conv->output);
    weights.by_output_columns = kelp__cuda_divider_of(window->output[1]);
    weights.vector_y = weights.width % 4 == 0 && kelp__cuda_aligned(weights.dy);
    weights.vector_sums = weights.weights % 4 == 0 && kelp__cuda_aligned(weights.sums);
    return weights;
}

void kelp__cuda_conv2d_tiles_dweight(struct kelp_stream *stream,
                                     const struct kelp__cuda_conv2d_chunk *chunk,
                                     enum kelp_write write)
{
    const struct kelp_conv2d *conv = chunk->conv;
    const uint32_t rows = kelp__cuda_conv2d_weight_rows(conv), count = (uint32_t)conv->weights;
    const uint32_t taps = (uint32_t)kelp__conv2d_plane(conv->shape.window.kernel);
    struct weights weights = weights_of(chunk);
    const bool vector = weights.depth % 4 == 0 && kelp__cuda_aligned(weights.x);
    weights.row_tiles = (weights.width - 1) / rows + 1;
    weights.column_tiles = (weights.weights - 1) / COLUMNS + 1;
    const weight_kernel kernel =
        kernels[kelp__cuda_stream_of(stream)->precision][vector ? 1 : 0][rows == 128 ? 1 : 0];
    const uint64_t blocks =
        (uint64_t)weights.parts * weights.groups * weights.row_tiles * weights.column_tiles;
    KELP_CUDA_LAUNCH(stream, kernel, blocks, KELP_CUDA_THREADS, weights);
    KELP_CUDA_LAUNCH(stream, add_weight_parts, kelp__cuda_blocks(count), KELP_CUDA_THREADS,
                     weights.by_depth, kelp__cuda_divider_of(taps), weights.sums, weights.parts,
                     chunk->run->dweight, write, count);
}

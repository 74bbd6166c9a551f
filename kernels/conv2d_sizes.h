/*
 * How the CUDA device cuts a convolution (kernels/cuda/conv2d/conv2d.cu explains the forms), and
 * the workspace that it needs: plans are made without a GPU, too (kernels/plan_device.c).
 *
 * Images in KELP_CHANNELS_LAST go by tiles, of any shape and in any number of groups, unless the
 * groups have few channels: a tile is at least 64 elements wide, and would be padding for the most
 * part. These go by channels (kernels/cuda/conv2d/conv2d_channels.cu).
 *
 * Private to kernels/.
 */
#ifndef KELP_KERNELS_CONV2D_SIZES_H
#define KELP_KERNELS_CONV2D_SIZES_H

#include "kernels/conv2d_check.h"

/* Elements that a workspace may have, unless one sample needs more: 256 MiB. */
#ifndef KELP_CUDA_CONV2D_WORKSPACE
#define KELP_CUDA_CONV2D_WORKSPACE (UINT64_C(64) << 20)
#endif
/* By tiles: places of x or y that are taken at a time, unless one sample has more. */
#ifndef KELP_CUDA_CONV2D_PLACES
#define KELP_CUDA_CONV2D_PLACES INT_MAX
#endif
#define KELP_CUDA_CONV2D_BY_SAMPLE_OUTPUT_MIN 256u /* elements of an output plane */
#define KELP_CUDA_CONV2D_TILE                 128u /* sides of a part that keeps a multiprocessor busy */
#define KELP_CUDA_CONV2D_TILES                264u /* of them keep a large device busy */
#define KELP_CUDA_CONV2D_PART_MIN             512u /* elements of a sum that are worth a part of their own */
#define KELP_CUDA_CONV2D_TILE_BLOCKS          528u /* by tiles: blocks that keep a large device busy */

struct kelp__cuda_conv2d {
    struct kelp_conv2d_shape shape;
    uint32_t depth;         /* rows of a group's columns */
    uint32_t channels_out;  /* of a group */
    uint32_t output;        /* elements of a plane */
    uint64_t rows, outputs; /* rows of columns, channels_out of all groups */
    uint64_t x, y;          /* elements of a sample */
    uint64_t weights;       /* of all groups */
    bool by_tiles;          /* channels last; the three below are of no interest then, */
    bool by_channels;       /* nor with these */
    bool by_sample;         /* y and dx */
    bool weight_by_sample;
    bool direct;        /* by sample x is columns */
    uint32_t whole;     /* samples whose elements of x, y and columns are counted in 31 bits; with
                         * the channels last those whose places are */
    uint32_t chunk;     /* samples at a time */
    uint64_t workspace; /* elements */
};

/* Distances in columns, and in what stands in their place. */
struct kelp__cuda_conv2d_layout {
    uint64_t row, sample, group;
    uint64_t elements; /* of all */
};

/* Rows and regions of the workspace begin at whole 16 bytes. */
static inline uint64_t kelp__cuda_conv2d_padded(uint64_t elements)
{
    return (elements + 3) / 4 * 4;
}

/* The most parts of dweight's sum in the wide form: as many as it takes to fill a device. */
static inline uint32_t kelp__cuda_conv2d_parts_max(const struct kelp__cuda_conv2d *conv)
{
    const uint64_t tiles = (uint64_t)conv->shape.groups *
                           ((conv->channels_out - 1) / KELP_CUDA_CONV2D_TILE + 1) *
                           ((conv->depth - 1) / KELP_CUDA_CONV2D_TILE + 1);
    return tiles < KELP_CUDA_CONV2D_TILES ? (uint32_t)(KELP_CUDA_CONV2D_TILES / tiles) : 1;
}

static inline uint32_t kelp__cuda_conv2d_parts(const struct kelp__cuda_conv2d *conv,
                                               uint32_t samples)
{
    const uint64_t worthwhile = (uint64_t)samples * conv->output / KELP_CUDA_CONV2D_PART_MIN;
    const uint32_t most = kelp__cuda_conv2d_parts_max(conv);
    if (worthwhile <= 1) {
        return 1;
    }
    return worthwhile < most ? (uint32_t)worthwhile : most;
}

/* Rows of the wide form are as long as all parts together, which are of one length. */
static inline struct kelp__cuda_conv2d_layout
kelp__cuda_conv2d_columns_of(const struct kelp__cuda_conv2d *conv, bool by_sample, uint32_t samples)
{
    struct kelp__cuda_conv2d_layout layout;
    if (by_sample) {
        layout.row = conv->direct ? conv->output : kelp__cuda_conv2d_padded(conv->output);
        layout.sample = conv->rows * layout.row;
        layout.elements = conv->direct ? 0 : samples * layout.sample;
    } else {
        const uint64_t all = (uint64_t)samples * conv->output;
        const uint32_t parts = kelp__cuda_conv2d_parts(conv, samples);
        layout.row = parts * kelp__cuda_conv2d_padded((all + parts - 1) / parts);
        layout.sample = conv->output;
        layout.elements = conv->rows * layout.row;
    }
    layout.group = conv->depth * layout.row;
    return layout;
}

/* Elements of workspace that are enough for so many samples, and for fewer: columns, what is
 * turned, sums of parts. */
static inline uint64_t kelp__cuda_conv2d_elements(const struct kelp__cuda_conv2d *conv,
                                                  uint32_t samples)
{
    const uint64_t parts = kelp__cuda_conv2d_parts_max(conv);
    const uint64_t by_sample = kelp__cuda_conv2d_columns_of(conv, true, samples).elements;
    const uint64_t wide_row = (uint64_t)samples * conv->output + 4 * parts;
    const uint64_t wide = (conv->rows + conv->outputs) * wide_row;
    const uint64_t first = conv->by_sample ? by_sample : wide;
    const uint64_t second = conv->weight_by_sample
                                ? kelp__cuda_conv2d_padded(by_sample) + samples * conv->weights
                                : wide + (parts > 1 ? parts * conv->weights : 0);
    return first > second ? first : second;
}

/* The most samples, in chunks of nearly one size, whose workspace is no larger than it may be. */
static inline uint32_t kelp__cuda_conv2d_chunk_of(const struct kelp__cuda_conv2d *conv)
{
    const uint32_t samples = conv->shape.samples_max != 0 ? conv->shape.samples_max : 1;
    uint32_t fits = 1, most = samples < conv->whole ? samples : conv->whole;
    while (fits < most) {
        const uint32_t middle = fits + (most - fits + 1) / 2;
        if (kelp__cuda_conv2d_elements(conv, middle) <= KELP_CUDA_CONV2D_WORKSPACE) {
            fits = middle;
        } else {
            most = middle - 1;
        }
    }
    const uint32_t chunks = (samples - 1) / fits + 1;
    return (samples - 1) / chunks + 1;
}

/* The weights as tiles take them: [channels of the result][classes][row]. A class are the taps that
 * one place of x needs; forward there is one. Rows are as long as the longest, in eights. */
struct kelp__cuda_conv2d_turned {
    uint32_t classes[2]; /* of the kernel's rows and columns */
    uint64_t row;        /* elements */
    uint64_t elements;   /* of all */
};

static inline struct kelp__cuda_conv2d_turned
kelp__cuda_conv2d_turned_of(const struct kelp_conv2d_shape *shape, bool back)
{
    const struct kelp_window *window = &shape->window;
    const uint32_t source = back ? shape->channels_out : window->channels;
    const uint32_t result = back ? window->channels : shape->channels_out;
    struct kelp__cuda_conv2d_turned turned = {{1, 1}, source / shape->groups, 0};
    for (unsigned int side = 0; side < 2; side++) {
        const uint32_t taps = window->kernel[side], stride = window->stride[side];
        turned.classes[side] = !back ? 1 : taps < stride ? taps : stride;
        turned.row *= back ? (taps - 1) / stride + 1 : taps;
    }
    turned.row = (turned.row + 7) / 8 * 8;
    turned.elements = result * (uint64_t)turned.classes[0] * turned.classes[1] * turned.row;
    return turned;
}

/* Columns of a sample are counted in 31 bits, too; by tiles weights are. */
static inline kelp_status kelp__cuda_conv2d_check(const struct kelp_conv2d_shape *shape,
                                                  struct kelp_error *reterr)
{
    const kelp_status status = kelp__conv2d_check(shape, reterr);
    const uint64_t rows = shape->window.channels * kelp__conv2d_plane(shape->window.kernel);
    if (status != KELP_OK) {
        return status;
    }
    const bool fits =
        shape->window.layout == KELP_CHANNELS_LAST
            ? kelp__cuda_conv2d_turned_of(shape, false).elements <= INT_MAX &&
                  kelp__cuda_conv2d_turned_of(shape, true).elements <= INT_MAX
            : rows <= INT_MAX && rows * kelp__conv2d_plane(shape->window.output) <= INT_MAX;
    return fits ? KELP_OK : kelp__conv2d_too_large(shape, reterr);
}

/* ---- by tiles -------------------------------------------------------------------------------- */

/* Rows of dweight's tiles are channels of y, columns are weights of one of them. */
#define KELP_CUDA_CONV2D_WEIGHT_COLUMNS 128u
static inline uint32_t kelp__cuda_conv2d_weight_rows(const struct kelp__cuda_conv2d *conv)
{
    return conv->channels_out > 64 ? 128 : 64;
}

static inline uint64_t kelp__cuda_conv2d_weight_tiles(const struct kelp__cuda_conv2d *conv)
{
    const uint32_t rows = kelp__cuda_conv2d_weight_rows(conv);
    return (uint64_t)conv->shape.groups * ((conv->channels_out - 1) / rows + 1) *
           ((conv->depth - 1) / KELP_CUDA_CONV2D_WEIGHT_COLUMNS + 1);
}

/* The most parts that dweight's sum is cut into, where each is so many blocks: as many as it takes
 * to fill a device. */
static inline uint32_t kelp__cuda_conv2d_parts_to_fill(uint64_t blocks)
{
    return blocks < KELP_CUDA_CONV2D_TILE_BLOCKS ? (uint32_t)(KELP_CUDA_CONV2D_TILE_BLOCKS / blocks)
                                                 : 1;
}

/* Places of y that a part adds up, all but the last one: whole steps, and `least` or more where
 * there is more than one part. */
static inline uint32_t kelp__cuda_conv2d_part(uint64_t places, uint64_t parts_max, uint64_t least,
                                              uint64_t step)
{
    const uint64_t worthwhile = places / least;
    const uint64_t parts = worthwhile < parts_max ? worthwhile : parts_max;
    return (uint32_t)(parts <= 1 ? places : ((places - 1) / parts / step + 1) * step);
}

static inline uint32_t kelp__cuda_conv2d_tile_parts_max(const struct kelp__cuda_conv2d *conv)
{
    return kelp__cuda_conv2d_parts_to_fill(kelp__cuda_conv2d_weight_tiles(conv));
}

/* The steps are a tile's. */
static inline uint32_t kelp__cuda_conv2d_tile_part(const struct kelp__cuda_conv2d *conv,
                                                   uint32_t samples)
{
    return kelp__cuda_conv2d_part((uint64_t)samples * conv->output,
                                  kelp__cuda_conv2d_tile_parts_max(conv), KELP_CUDA_CONV2D_PART_MIN,
                                  32);
}

/* Workspace: the weights as tiles take them, or the sums of dweight's parts. */
static inline uint64_t kelp__cuda_conv2d_tile_workspace(const struct kelp__cuda_conv2d *conv)
{
    const uint64_t there = kelp__cuda_conv2d_turned_of(&conv->shape, false).elements;
    const uint64_t back = kelp__cuda_conv2d_turned_of(&conv->shape, true).elements;
    const uint64_t sums = conv->weights * kelp__cuda_conv2d_tile_parts_max(conv);
    const uint64_t turned = there > back ? there : back;
    return turned > sums ? turned : sums;
}

/* ---- by channels ----------------------------------------------------------------------------- */

#define KELP_CUDA_CONV2D_CHANNELS     8u   /* of a group, at most */
#define KELP_CUDA_CONV2D_CHANNEL_TAPS 3    /* neighbours of a kernel's row, in a block of dweight */
#define KELP_CUDA_CONV2D_CHANNEL_PART 128u /* places that are worth a part of their own */

static inline bool kelp__cuda_conv2d_is_by_channels(const struct kelp_conv2d_shape *shape)
{
    return shape->groups > 1 &&
           shape->window.channels / shape->groups <= KELP_CUDA_CONV2D_CHANNELS &&
           shape->channels_out / shape->groups <= KELP_CUDA_CONV2D_CHANNELS;
}

/* A thread has four channels. */
static inline bool kelp__cuda_conv2d_in_fours(const struct kelp_conv2d_shape *shape)
{
    return shape->window.channels == shape->groups && shape->channels_out == shape->groups &&
           shape->groups % 4 == 0;
}

/* Blocks beside each other: `across` threads, a power of two, have as many of the units. */
struct kelp__cuda_channel_blocks {
    uint32_t units, across, count;
};

static inline struct kelp__cuda_channel_blocks
kelp__cuda_channel_blocks_of(const struct kelp_conv2d_shape *shape, uint32_t channels)
{
    struct kelp__cuda_channel_blocks blocks = {
        kelp__cuda_conv2d_in_fours(shape) ? channels / 4 : channels, 1, 0};
    while (blocks.across < 32 && blocks.across < blocks.units) {
        blocks.across *= 2;
    }
    blocks.count = (blocks.units - 1) / blocks.across + 1;
    return blocks;
}

/* What a kernel's row is cut into for dweight. */
static inline uint32_t kelp__cuda_conv2d_spans(const struct kelp_window *window)
{
    return (window->kernel[1] - 1) / KELP_CUDA_CONV2D_CHANNEL_TAPS + 1;
}

/* Blocks of dweight for one part. */
static inline uint64_t kelp__cuda_conv2d_channel_kinds(const struct kelp__cuda_conv2d *conv)
{
    const struct kelp_window *window = &conv->shape.window;
    return (uint64_t)kelp__cuda_channel_blocks_of(&conv->shape, conv->shape.channels_out).count *
           (window->channels / conv->shape.groups) * window->kernel[0] *
           kelp__cuda_conv2d_spans(window);
}

static inline uint32_t kelp__cuda_conv2d_channel_parts_max(const struct kelp__cuda_conv2d *conv)
{
    return kelp__cuda_conv2d_parts_to_fill(kelp__cuda_conv2d_channel_kinds(conv));
}

static inline uint32_t kelp__cuda_conv2d_channel_part(const struct kelp__cuda_conv2d *conv,
                                                      uint32_t samples)
{
    return kelp__cuda_conv2d_part((uint64_t)samples * conv->output,
                                  kelp__cuda_conv2d_channel_parts_max(conv),
                                  KELP_CUDA_CONV2D_CHANNEL_PART, 1);
}

/* ---- channels last --------------------------------------------------------------------------- */

static inline void kelp__cuda_conv2d_plan_last(struct kelp__cuda_conv2d *conv)
{
    const uint64_t input = kelp__conv2d_plane(conv->shape.window.input);
    const uint32_t samples = conv->shape.samples_max != 0 ? conv->shape.samples_max : 1;
    conv->by_channels = kelp__cuda_conv2d_is_by_channels(&conv->shape);
    conv->by_tiles = !conv->by_channels;
    conv->whole =
        (uint32_t)(KELP_CUDA_CONV2D_PLACES / (input > conv->output ? input : conv->output));
    conv->whole = conv->whole != 0 ? conv->whole : 1;
    conv->chunk = samples < conv->whole ? samples : conv->whole;
    /* By channels: the weights in the order of sums, or the sums of dweight's parts. */
    conv->workspace = conv->by_channels ? conv->weights * kelp__cuda_conv2d_channel_parts_max(conv)
                                        : kelp__cuda_conv2d_tile_workspace(conv);
}

/* ---- both ------------------------------------------------------------------------------------ */

static inline bool kelp__cuda_conv2d_is_direct(const struct kelp_window *window)
{
    return kelp__conv2d_plane(window->kernel) == 1 && kelp__conv2d_plane(window->stride) == 1 &&
           window->padding[0] == 0 && window->padding[1] == 0;
}

static inline void kelp__cuda_conv2d_set_sizes(struct kelp__cuda_conv2d *conv,
                                               const struct kelp_conv2d_shape *shape)
{
    const struct kelp_window *window = &shape->window;
    conv->shape = *shape;
    conv->rows = window->channels * kelp__conv2d_plane(window->kernel);
    conv->depth = (uint32_t)(conv->rows / shape->groups);
    conv->channels_out = shape->channels_out / shape->groups;
    conv->output = (uint32_t)kelp__conv2d_plane(window->output);
    conv->outputs = shape->channels_out;
    conv->x = window->channels * kelp__conv2d_plane(window->input);
    conv->y = conv->outputs * conv->output;
    conv->weights = conv->outputs * conv->depth;
}

/* By sample a part of dweight's sum is as large as dweight. If that is more than what has to be
 * turned otherwise, dweight is computed in the wide form. */
static inline void kelp__cuda_conv2d_choose_forms(struct kelp__cuda_conv2d *conv)
{
    conv->direct = kelp__cuda_conv2d_is_direct(&conv->shape.window);
    conv->by_sample = conv->output >= KELP_CUDA_CONV2D_BY_SAMPLE_OUTPUT_MIN;
    conv->weight_by_sample =
        conv->by_sample && conv->weights <= conv->y + (conv->direct ? conv->x : 0);
    const uint64_t columns = conv->rows * conv->output;
    uint64_t most = conv->x > conv->y ? conv->x : conv->y;
    most = most > columns ? most : columns;
    conv->whole = (uint32_t)(INT_MAX / most);
    conv->chunk = kelp__cuda_conv2d_chunk_of(conv);
    conv->workspace = kelp__cuda_conv2d_elements(conv, conv->chunk);
}

/* Of a shape that kelp__cuda_conv2d_check() takes. */
static inline void kelp__cuda_conv2d_plan(struct kelp__cuda_conv2d *conv,
                                          const struct kelp_conv2d_shape *shape)
{
    kelp__cuda_conv2d_set_sizes(conv, shape);
    if (shape->window.layout == KELP_CHANNELS_LAST) {
        kelp__cuda_conv2d_plan_last(conv);
    } else {
        kelp__cuda_conv2d_choose_forms(conv);
    }
}

#endif

/* Pooling and convolution: windows of all sizes, on borders, with gaps and without. */
#include "tests/lib/cuda/operator_cases.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define TOLERANCE 1e-5

static uint64_t plane_of(const uint32_t sides[2])
{
    return (uint64_t)sides[0] * sides[1];
}

static void set_output(struct kelp_window *window)
{
    for (uint32_t side = 0; side < 2; side++) {
        window->output[side] =
            (window->input[side] + 2 * window->padding[side] - window->kernel[side]) /
                window->stride[side] +
            1;
    }
}

/* As high as wide. */
static struct kelp_window square_window(uint32_t channels, uint32_t input, uint32_t kernel,
                                        uint32_t stride, uint32_t padding)
{
    struct kelp_window window = {.channels = channels,
                                 .input = {input, input},
                                 .kernel = {kernel, kernel},
                                 .stride = {stride, stride},
                                 .padding = {padding, padding}};
    set_output(&window);
    return window;
}

static void set_output_buffer(struct operator_cases *cases, struct case_buffer *buffer,
                              uint64_t count, enum case_content content)
{
    cases_set_buffer(cases, buffer, count, content);
    buffer->compared = true;
}

/* ---- pooling ---- */

struct pool_case {
    struct kelp_window window;
    uint32_t samples;
    enum kelp_write write;
    bool strange; /* NaN and infinities among the values */
};
enum pool_buffer { POOL_X, POOL_Y, POOL_CHOSEN, POOL_DY, POOL_DX };

/* In the middle of the first image, and so in several windows. */
static void put_strange_values(struct kelp_stream *stream, const struct pool_case *one, float *x)
{
    static const float values[] = {-INFINITY, -INFINITY, NAN, 1.0f, NAN, INFINITY, -INFINITY};
    const uint64_t all = one->samples * one->window.channels * plane_of(one->window.input);
    if (all >= sizeof(values) / sizeof(values[0])) {
        stream->table->copy_in(stream, x + (all - sizeof(values) / sizeof(values[0])) / 2, values,
                               sizeof(values));
    }
}

static void run_max_pool(struct kelp_stream *stream, void *const *buffers, const void *arguments)
{
    const struct pool_case *one = arguments;
    const struct kelp_max_pool pool = {.window = one->window,
                                       .samples = one->samples,
                                       .x = buffers[POOL_X],
                                       .y = buffers[POOL_Y],
                                       .chosen = buffers[POOL_CHOSEN],
                                       .dy = buffers[POOL_DY],
                                       .dx = buffers[POOL_DX],
                                       .write = one->write};
    if (one->strange) {
        put_strange_values(stream, one, buffers[POOL_X]);
    }
    stream->table->max_pool(stream, &pool);
    stream->table->max_pool_gradient(stream, &pool); /* of what has been chosen */
}

static void run_average_pool(struct kelp_stream *stream, void *const *buffers,
                             const void *arguments)
{
    const struct pool_case *one = arguments;
    const struct kelp_average_pool pool = {.window = one->window,
                                           .samples = one->samples,
                                           .x = buffers[POOL_X],
                                           .y = buffers[POOL_Y],
                                           .dy = buffers[POOL_DY],
                                           .dx = buffers[POOL_DX],
                                           .write = one->write};
    stream->table->average_pool(stream, &pool);
    stream->table->average_pool_gradient(stream, &pool);
}

static void add_pool(struct operator_cases *cases, bool max, const struct kelp_window *window,
                     uint32_t samples)
{
    const struct pool_case pool = {.window = *window,
                                   .samples = samples,
                                   .write = cases_draw_write(cases),
                                   .strange = max && cases_flip(cases)};
    struct operator_case *one = cases_add(
        cases, max ? run_max_pool : run_average_pool, &pool, sizeof(pool),
        "%s_pool %ux%ux%ux%u by %ux%u stride %ux%u padding %ux%u%s%s%s", max ? "max" : "average",
        samples, window->channels, window->input[0], window->input[1], window->kernel[0],
        window->kernel[1], window->stride[0], window->stride[1], window->padding[0],
        window->padding[1], pool.write == KELP_ACCUMULATE ? " +=" : "",
        pool.strange ? " strange" : "", window->layout == KELP_CHANNELS_LAST ? " last" : "");
    one->unrecorded = pool.strange; /* it copies them in */
    const uint64_t planes = (uint64_t)samples * window->channels;
    const uint64_t x = planes * plane_of(window->input), y = planes * plane_of(window->output);
    cases_set_buffer(cases, &one->buffers[POOL_X], x, CASE_SIGNED);
    if (cases_flip(cases)) { /* many equal ones */
        one->buffers[POOL_X].content = CASE_IDS;
        one->buffers[POOL_X].limit = 3;
    }
    set_output_buffer(cases, &one->buffers[POOL_Y], y, CASE_SIGNED);
    set_output_buffer(cases, &one->buffers[POOL_CHOSEN], max ? y : 0, CASE_NUMBERS);
    cases_set_buffer(cases, &one->buffers[POOL_DY], y, CASE_SIGNED);
    set_output_buffer(cases, &one->buffers[POOL_DX], x, CASE_SIGNED);
}

static struct kelp_window draw_pool_window(struct operator_cases *cases)
{
    struct kelp_window window = {.channels = cases_draw(cases, 1, 5)};
    const bool square = cases_flip(cases);
    for (uint32_t side = 0; side < 2; side++) {
        const bool same = square && side == 1;
        window.kernel[side] = same ? window.kernel[0] : cases_draw(cases, 1, 5);
        window.stride[side] = same ? window.stride[0] : cases_draw(cases, 1, 4);
        window.padding[side] =
            same ? window.padding[0] : cases_draw(cases, 0, (window.kernel[side] - 1) / 2);
        window.input[side] = window.kernel[side] + cases_draw(cases, 0, 15);
    }
    set_output(&window);
    return window;
}

/* In both layouts. */
static void add_pools(struct operator_cases *cases, const struct kelp_window *window,
                      uint32_t samples)
{
    struct kelp_window last = *window;
    last.layout = KELP_CHANNELS_LAST;
    add_pool(cases, true, window, samples);
    add_pool(cases, false, window, samples);
    add_pool(cases, true, &last, samples);
    add_pool(cases, false, &last, samples);
}

static void add_small_pools(struct operator_cases *cases)
{
    for (uint32_t i = 0; i < 24; i++) {
        const struct kelp_window window = draw_pool_window(cases);
        add_pools(cases, &window, cases_draw(cases, 1, 3));
    }
    /* Each size that has a kernel of its own; the whole image at once. */
    static const uint32_t squares[][4] = {{9, 1, 2, 0},  {12, 2, 2, 0}, {13, 2, 2, 1},
                                          {17, 3, 2, 1}, {11, 3, 1, 1}, {14, 3, 3, 0},
                                          {7, 7, 1, 0},  {15, 5, 2, 2}, {1, 1, 1, 0}};
    for (uint32_t i = 0; i < sizeof(squares) / sizeof(squares[0]); i++) {
        const uint32_t *sizes = squares[i];
        const struct kelp_window window =
            square_window(cases_draw(cases, 1, 4), sizes[0], sizes[1], sizes[2], sizes[3]);
        add_pools(cases, &window, cases_draw(cases, 1, 3));
    }
    const struct kelp_window nothing = square_window(3, 9, 3, 1, 1);
    add_pools(cases, &nothing, 0);
}

static void add_large_pools(struct operator_cases *cases)
{
    static const uint32_t sizes[][5] = {
        /* channels, input, kernel, stride, padding */
        {64, 112, 3, 2, 1}, {64, 112, 2, 2, 0}, {33, 101, 3, 1, 1},
        {128, 56, 5, 3, 2}, {512, 7, 7, 1, 0},
    };
    for (uint32_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        const uint32_t *size = sizes[i];
        const struct kelp_window window =
            square_window(size[0], size[1], size[2], size[3], size[4]);
        add_pools(cases, &window, 9);
    }
}

/* ---- convolution ---- */

struct conv_case {
    struct kelp_conv2d_shape shape;
    uint32_t samples;
    enum kelp_write write_x, write_weight, write_bias;
};
enum conv_buffer {
    CONV_X,
    CONV_WEIGHT,
    CONV_BIAS,
    CONV_Y,
    CONV_DY,
    CONV_DX,
    CONV_DWEIGHT,
    CONV_DBIAS
};

static void need(kelp_status status, const struct kelp_error *error)
{
    if (status != KELP_OK) {
        fprintf(stderr, "convolution: %s\n", error->text);
        abort();
    }
}

static void run_convolution(struct kelp_stream *stream, void *const *buffers, const void *arguments)
{
    const struct conv_case *one = arguments;
    const struct kelp_device_table *table = stream->table;
    struct kelp_error error;
    struct kelp_conv2d_run run = {.samples = one->samples,
                                  .x = buffers[CONV_X],
                                  .weight = buffers[CONV_WEIGHT],
                                  .bias = buffers[CONV_BIAS],
                                  .y = buffers[CONV_Y],
                                  .dy = buffers[CONV_DY],
                                  .dx = buffers[CONV_DX],
                                  .dweight = buffers[CONV_DWEIGHT],
                                  .dbias = buffers[CONV_DBIAS],
                                  .write_x = one->write_x,
                                  .write_weight = one->write_weight,
                                  .write_bias = one->write_bias};
    void *workspace = NULL;
    need(table->conv2d_create(stream->device, &one->shape, &run.conv, &error), &error);
    need(table->alloc(stream->device, table->conv2d_workspace(run.conv) * sizeof(float), &workspace,
                      &error),
         &error);
    run.workspace = workspace;
    table->conv2d(stream, &run);
    table->conv2d_gradient(stream, &run);
    need(table->wait(stream, &error), &error);
    table->free(stream->device, workspace);
    table->conv2d_destroy(run.conv);
}

/* Few sums may all come out near zero, with no large one to measure their errors by: then they are
 * made of positive numbers. */
static enum case_content content_for(uint64_t sums)
{
    return sums < 64 ? CASE_POSITIVE : CASE_MODERATE;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* wanted: one bit each for bias, dx, dweight, dbias. */
static void add_convolution(struct operator_cases *cases, struct kelp_conv2d_shape shape,
                            uint32_t samples, uint32_t wanted)
{
    const struct kelp_window *window = &shape.window;
    const struct conv_case conv = {.shape = shape,
                                   .samples = samples,
                                   .write_x = cases_draw_write(cases),
                                   .write_weight = cases_draw_write(cases),
                                   .write_bias = cases_draw_write(cases)};
    struct operator_case *one = cases_add(
        cases, run_convolution, &conv, sizeof(conv),
        "conv2d%s %u/%ux%ux%ux%u by %ux%u/%ux%u+%ux%u to %u groups=%u +=%u%u%u of %x",
        window->layout == KELP_CHANNELS_LAST ? " last" : "", samples, shape.samples_max,
        window->channels, window->input[0], window->input[1], window->kernel[0], window->kernel[1],
        window->stride[0], window->stride[1], window->padding[0], window->padding[1],
        shape.channels_out, shape.groups, conv.write_x, conv.write_weight, conv.write_bias, wanted);
    const uint64_t x = (uint64_t)samples * window->channels * plane_of(window->input);
    const uint64_t y = (uint64_t)samples * shape.channels_out * plane_of(window->output);
    const uint64_t weight =
        (uint64_t)shape.channels_out * (window->channels / shape.groups) * plane_of(window->kernel);
    struct case_buffer *buffers = one->buffers;
    one->unrecorded = true;
    one->tolerance = TOLERANCE;
    cases_set_buffer(cases, &buffers[CONV_X], x, content_for(smaller(y, weight)));
    cases_set_buffer(cases, &buffers[CONV_WEIGHT], weight, content_for(smaller(x, y)));
    cases_set_buffer(cases, &buffers[CONV_BIAS], (wanted & 1) != 0 ? shape.channels_out : 0,
                     content_for(y));
    set_output_buffer(cases, &buffers[CONV_Y], y, CASE_MODERATE);
    cases_set_buffer(cases, &buffers[CONV_DY], y,
                     content_for(smaller(shape.channels_out * UINT64_C(8), smaller(x, weight))));
    set_output_buffer(cases, &buffers[CONV_DX], (wanted & 2) != 0 ? x : 0, content_for(x));
    set_output_buffer(cases, &buffers[CONV_DWEIGHT], (wanted & 4) != 0 ? weight : 0,
                      content_for(weight));
    set_output_buffer(cases, &buffers[CONV_DBIAS], (wanted & 8) != 0 ? shape.channels_out : 0,
                      CASE_POSITIVE);
}

static void draw_conv_side(struct operator_cases *cases, struct kelp_window *window, uint32_t side)
{
    static const uint32_t kernels[] = {1, 2, 3, 3, 5, 7};
    window->kernel[side] = kernels[cases_draw(cases, 0, 5)];
    window->stride[side] = cases_draw(cases, 1, 3);
    window->padding[side] = cases_draw(cases, 0, window->kernel[side] / 2 + 1);
    const uint32_t padding = 2 * window->padding[side];
    const uint32_t least = window->kernel[side] > padding ? window->kernel[side] - padding : 1;
    window->input[side] = least + cases_draw(cases, 0, 17);
}

static struct kelp_conv2d_shape draw_shape(struct operator_cases *cases)
{
    struct kelp_conv2d_shape shape = {.groups = cases_flip(cases) ? 1 : cases_draw(cases, 2, 3)};
    shape.window.channels = shape.groups * cases_draw(cases, 1, 4);
    shape.channels_out = shape.groups * cases_draw(cases, 1, 4);
    draw_conv_side(cases, &shape.window, 0);
    draw_conv_side(cases, &shape.window, 1);
    if (cases_flip(cases)) { /* a kernel as high as wide, strides and padding aside */
        shape.window.kernel[1] = shape.window.kernel[0];
        shape.window.padding[1] = shape.window.padding[0];
        shape.window.input[1] = shape.window.input[0] + cases_draw(cases, 0, 3);
    }
    set_output(&shape.window);
    return shape;
}

/* What is listed: sizes that go each way a device may have. */
struct listed {
    uint32_t channels, input, kernel, stride, padding, channels_out, groups, samples;
};

static void add_listed(struct operator_cases *cases, const struct listed *listed, uint32_t wanted,
                       enum kelp_layout layout)
{
    struct kelp_conv2d_shape shape = {
        .window = square_window(listed->channels, listed->input, listed->kernel, listed->stride,
                                listed->padding),
        .channels_out = listed->channels_out,
        .groups = listed->groups,
        .samples_max = listed->samples + (cases_flip(cases) ? cases_draw(cases, 1, 5) : 0)};
    shape.window.layout = layout;
    add_convolution(cases, shape, listed->samples, wanted);
}

static void add_small_convolutions(struct operator_cases *cases)
{
    for (uint32_t i = 0; i < 24; i++) {
        struct kelp_conv2d_shape shape = draw_shape(cases);
        const uint32_t samples = cases_draw(cases, 1, 4);
        shape.samples_max = samples + cases_draw(cases, 0, 3);
        add_convolution(cases, shape, samples, cases_flip(cases) ? 15 : cases_draw(cases, 0, 15));
    }
    static const struct listed listed[] = {
        {2, 17, 3, 1, 1, 3, 1, 3},  /* large planes, odd; */
        {4, 16, 3, 1, 1, 6, 2, 3},  /* in fours; */
        {4, 16, 3, 1, 1, 4, 4, 2},  /* a group for each channel, more than there are samples; */
        {8, 16, 7, 1, 3, 2, 1, 3},  /* more weights than elements of y */
        {3, 15, 3, 1, 1, 2, 1, 5},  /* small planes: long sums of dweight, with a rest */
        {6, 16, 1, 1, 0, 4, 2, 3},  /* kernels of one: on large planes, */
        {5, 7, 1, 1, 0, 3, 1, 4},   /* on small ones, */
        {6, 17, 1, 2, 0, 4, 1, 3},  /* with gaps, */
        {3, 3, 1, 1, 1, 2, 1, 2},   /* on borders */
        {1, 17, 3, 1, 1, 1, 1, 32}, /* a long sum of dbias */
        {20, 6, 3, 1, 1, 18, 1, 3}, /* many channels */
        {3, 1, 1, 1, 0, 5, 1, 7},   /* images of one element */
        {2, 9, 3, 2, 1, 2, 1, 0},   /* no samples */
    };
    for (uint32_t i = 0; i < sizeof(listed) / sizeof(listed[0]); i++) {
        add_listed(cases, &listed[i], 15, KELP_CHANNELS_FIRST);
        add_listed(cases, &listed[i], 15, KELP_CHANNELS_FIRST);
    }
}

/* By tiles: with a rest in each direction, in fours and not, for each size that a tile has, and
 * where a step backwards leads to nothing. */
static void add_small_convolutions_last(struct operator_cases *cases)
{
    for (uint32_t i = 0; i < 12; i++) {
        struct kelp_conv2d_shape shape = draw_shape(cases);
        const uint32_t samples = cases_draw(cases, 1, 4);
        shape.window.layout = KELP_CHANNELS_LAST;
        shape.samples_max = samples + cases_draw(cases, 0, 3);
        add_convolution(cases, shape, samples, cases_flip(cases) ? 15 : cases_draw(cases, 0, 15));
    }
    static const struct listed listed[] = {
        {64, 5, 3, 1, 1, 64, 1, 3},  /* whole tiles of channels */
        {4, 9, 3, 1, 1, 132, 1, 2},  /* wide tiles, with a rest; */
        {132, 10, 3, 1, 1, 4, 1, 2}, /* back */
        {5, 9, 3, 2, 1, 68, 1, 2},   /* four phases of x's places */
        {8, 11, 1, 3, 0, 8, 2, 2},   /* most of which meet nothing */
        {4, 7, 2, 9, 1, 4, 1, 2},    /* a stride larger than the image */
        {3, 12, 7, 2, 3, 12, 1, 2},  /* the first layer of a ResNet */
        {1, 23, 3, 1, 0, 4, 1, 3},   /* that of digits */
        {4, 33, 3, 1, 1, 4, 1, 1},   /* parts of dweight's sum, with a rest */
        {36, 6, 5, 1, 2, 36, 3, 1},  /* groups in fours, */
        {30, 9, 3, 2, 1, 22, 2, 2},  /* and not */
        {20, 6, 1, 1, 0, 16, 1, 3},  /* kernels of one */
        {3, 1, 1, 1, 0, 5, 1, 7},    /* images of one element */
        {2, 9, 3, 2, 1, 2, 1, 0},    /* no samples */
    };
    for (uint32_t i = 0; i < sizeof(listed) / sizeof(listed[0]); i++) {
        add_listed(cases, &listed[i], 15, KELP_CHANNELS_LAST);
    }
}

/* Groups with few channels. */
static void add_small_groups_last(struct operator_cases *cases)
{
    static const struct listed listed[] = {
        {8, 11, 3, 1, 1, 8, 8, 3},      /* depthwise, in fours, rows with a rest; */
        {132, 6, 3, 1, 1, 132, 132, 2}, /* more channels than threads beside each other; */
        {8, 30, 3, 1, 1, 8, 8, 1},      /* parts of dweight's sum, with a rest; */
        {16, 9, 3, 2, 1, 16, 16, 2},    /* with gaps on the way back; */
        {4, 7, 2, 9, 1, 4, 4, 2},       /* a stride larger than the image; */
        {8, 12, 7, 2, 3, 8, 8, 1},      /* rows of taps in three pieces; */
        {8, 9, 5, 1, 2, 8, 8, 1},       /* in two; */
        {8, 6, 1, 1, 0, 8, 8, 2},       /* of one; */
        {7, 10, 3, 1, 1, 7, 7, 2},      /* not in fours */
        {6, 10, 3, 1, 1, 12, 6, 2},     /* two channels of one, */
        {12, 10, 3, 2, 1, 6, 6, 2},     /* one of two, */
        {32, 8, 3, 1, 1, 32, 4, 1},     /* eight of eight, */
        {6, 31, 3, 1, 1, 8, 2, 1},      /* four of three, in parts */
        {8, 1, 1, 1, 0, 8, 8, 5},       /* images of one element */
        {4, 9, 3, 2, 1, 4, 4, 0},       /* no samples */
    };
    for (uint32_t i = 0; i < sizeof(listed) / sizeof(listed[0]); i++) {
        add_listed(cases, &listed[i], 15, KELP_CHANNELS_LAST);
    }
    add_listed(cases, &listed[0], 0, KELP_CHANNELS_LAST);
}

static void add_large_convolutions(struct operator_cases *cases)
{
    static const struct listed listed[] = {
        {16, 224, 7, 1, 3, 8, 1, 3}, /* a workspace that one sample fills */
        {3, 224, 7, 2, 3, 64, 1, 8},    {64, 56, 3, 1, 1, 64, 1, 9},
        {256, 28, 3, 1, 1, 256, 1, 4},  {512, 7, 3, 1, 1, 512, 1, 16},
        {64, 56, 3, 1, 1, 64, 64, 4},   {600, 16, 1, 1, 0, 600, 1, 3},
        {1024, 7, 1, 1, 0, 256, 1, 8},  {256, 56, 1, 2, 0, 128, 1, 4},
        {64, 112, 3, 2, 1, 64, 64, 4},  {512, 14, 3, 1, 1, 512, 512, 16},
        {128, 56, 3, 1, 1, 128, 32, 4}, {96, 28, 7, 1, 3, 96, 96, 8},
    };
    for (uint32_t i = 0; i < sizeof(listed) / sizeof(listed[0]); i++) {
        add_listed(cases, &listed[i], 15, KELP_CHANNELS_FIRST);
        add_listed(cases, &listed[i], 15, KELP_CHANNELS_LAST);
    }
}

void cases_windows(struct operator_cases *cases, bool large)
{
    add_small_pools(cases);
    add_small_convolutions(cases);
    add_small_convolutions_last(cases);
    add_small_groups_last(cases);
    if (large) {
        add_large_pools(cases);
        add_large_convolutions(cases);
    }
}

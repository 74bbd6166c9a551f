/*
 * Convolution as one matrix product over channels for each position of the kernel ("tap").
 *
 * With images as [position][sample][channel], the input that a tap meets for a run of output
 * positions is already a matrix, and nothing is unfolded: y[positions] += x[positions + tap]
 * weight[tap]^T, dx += dy weight[tap], dweight += dy^T x. (The weights for y are transposed
 * beforehand, which is faster than in the product.) Products with padding are left out, which saves
 * most of the work for small images: of the nine taps over a 2x2 image each output meets four, over
 * 1x1 one.
 *
 * A chunk of samples at a time is transposed from [sample][channel][position] into the workspace,
 * and back. Chunks ascend; within a chunk, taps are in the order of the table that create() makes.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/conv2d.h"

/* Elements of transposed images in one chunk, so that they stay in a near cache. */
#define CHUNK_ELEMENTS (512u << 10)
#define CHUNK_MIN      8u

/* ---- the table of taps ---- */

/* The outputs [begin, end) of a side for which kernel position k meets the input. */
struct reach {
    uint32_t begin, end;
};

static struct reach reach_of(const struct kelp_window *window, uint32_t side, uint32_t k)
{
    const int64_t stride = window->stride[side], output = window->output[side];
    const int64_t start = (int64_t)k - window->padding[side];
    const int64_t room = (int64_t)window->input[side] - start;
    const int64_t first = start < 0 ? (-start + stride - 1) / stride : 0;
    const int64_t past = room > 0 ? (room + stride - 1) / stride : 0;
    const int64_t end = past < output ? past : output;
    return (struct reach){(uint32_t)(first < end ? first : end), (uint32_t)end};
}

static uint32_t met(const struct kelp_window *window, uint32_t side, uint32_t k, uint32_t at)
{
    return at * window->stride[side] + k - window->padding[side];
}

static uint64_t outputs_met(const struct kelp_window *window, uint32_t position)
{
    const struct reach rows = reach_of(window, 0, position / window->kernel[1]);
    const struct reach columns = reach_of(window, 1, position % window->kernel[1]);
    return (uint64_t)(rows.end - rows.begin) * (columns.end - columns.begin);
}

/* Extend the last run if this one continues it; otherwise add a run. */
static void add_run(struct kelp_conv2d *conv, struct kelp_conv2d_tap run)
{
    struct kelp_conv2d_tap *last = conv->tap_count != 0 ? &conv->taps[conv->tap_count - 1] : NULL;
    if (last && last->tap == run.tap && last->x + last->count == run.x &&
        last->y + last->count == run.y) {
        last->count += run.count;
    } else {
        conv->taps[conv->tap_count++] = run;
    }
}

static void add_position(struct kelp_conv2d *conv, uint32_t position)
{
    const struct kelp_window *window = &conv->shape.window;
    const uint32_t kr = position / window->kernel[1], kc = position % window->kernel[1];
    const struct reach rows = reach_of(window, 0, kr), columns = reach_of(window, 1, kc);
    if (outputs_met(window, position) == 0) {
        return;
    }
    for (uint32_t row = rows.begin; row < rows.end; row++) {
        for (uint32_t column = columns.begin; column < columns.end; column++) {
            const struct kelp_conv2d_tap run = {.tap = conv->used,
                                                .x = met(window, 0, kr, row) * window->input[1] +
                                                     met(window, 1, kc, column),
                                                .y = row * window->output[1] + column,
                                                .count = 1};
            add_run(conv, run);
        }
    }
    conv->kernel_positions[conv->used++] = position;
}

kelp_status kelp__conv2d_taps_create(struct kelp_conv2d *conv, struct kelp_error *reterr)
{
    const struct kelp_window *window = &conv->shape.window;
    const uint32_t kernel = (uint32_t)kelp__conv2d_plane(window->kernel);
    uint64_t products = 0;
    uint32_t first = 0; /* start with the tap that meets most outputs */
    for (uint32_t k = 0; k < kernel; k++) {
        products += outputs_met(window, k);
        first = outputs_met(window, k) > outputs_met(window, first) ? k : first;
    }
    conv->kernel_positions = calloc(kernel, sizeof(*conv->kernel_positions));
    conv->taps = products <= SIZE_MAX / sizeof(*conv->taps)
                     ? calloc(products != 0 ? products : 1, sizeof(*conv->taps))
                     : NULL;
    if (!conv->kernel_positions || !conv->taps) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "cannot allocate a convolution's table");
    }
    add_position(conv, first);
    for (uint32_t k = 0; k < kernel; k++) {
        if (k != first) {
            add_position(conv, k);
        }
    }
    conv->covers_output = outputs_met(window, first) == kelp__conv2d_plane(window->output);
    conv->covers_input = outputs_met(window, first) == kelp__conv2d_plane(window->input);
    const uint64_t elements = window->channels * kelp__conv2d_plane(window->input) +
                              conv->shape.channels_out * kelp__conv2d_plane(window->output);
    const uint64_t fitting = CHUNK_ELEMENTS / elements;
    conv->chunk = fitting > CHUNK_MIN ? (uint32_t)fitting : CHUNK_MIN;
    if (conv->chunk > conv->shape.samples_max) {
        conv->chunk = conv->shape.samples_max;
    }
    return KELP_OK;
}

/* ---- computing a run ---- */

struct buffers {
    uint64_t x, y, weight; /* elements: one sample's images, one tap's weights */
    float *turned_x, *turned_y, *weights, *dweights;
};

static struct buffers buffers_of(const struct kelp_conv2d *conv, float *workspace)
{
    const struct kelp_conv2d_shape *shape = &conv->shape;
    struct buffers buffers = {.x = shape->window.channels * kelp__conv2d_plane(shape->window.input),
                              .y = shape->channels_out * kelp__conv2d_plane(shape->window.output),
                              .weight = (uint64_t)shape->channels_out *
                                        (shape->window.channels / shape->groups)};
    buffers.turned_x = workspace;
    buffers.turned_y = buffers.turned_x + conv->chunk * buffers.x;
    buffers.weights = buffers.turned_y + conv->chunk * buffers.y;
    buffers.dweights = buffers.weights + conv->used * buffers.weight;
    return buffers;
}

uint64_t kelp__conv2d_taps_workspace(const struct kelp_conv2d *conv)
{
    const struct buffers buffers = buffers_of(conv, NULL);
    return conv->chunk * (buffers.x + buffers.y) + 2 * conv->used * buffers.weight;
}

static struct kelp_taps taps_of(const struct kelp_conv2d *conv, uint64_t rows)
{
    return (struct kelp_taps){.rows = rows,
                              .kernel = (uint32_t)kelp__conv2d_plane(conv->shape.window.kernel),
                              .used = conv->used,
                              .positions = conv->kernel_positions};
}

/* [sample][channel][position] to [position][sample][channel]. */
static void turn_in(const struct kelp_window_loops *loops, const float *images, float *turned,
                    uint32_t samples, uint32_t channels, uint32_t positions)
{
    for (uint32_t s = 0; s < samples; s++) {
        const struct kelp_turn turn = {.x = images + (uint64_t)s * channels * positions,
                                       .x_ld = positions,
                                       .y = turned + (uint64_t)s * channels,
                                       .y_ld = (uint64_t)samples * channels,
                                       .rows = channels,
                                       .columns = positions};
        loops->turn(&turn);
    }
}

struct turn_back {
    float *images;
    const float *turned, *bias;
    uint32_t samples, channels, positions;
    enum kelp_write write;
};

static void turn_out(const struct kelp_window_loops *loops, const struct turn_back *back)
{
    for (uint32_t s = 0; s < back->samples; s++) {
        const struct kelp_turn turn = {.x = back->turned + (uint64_t)s * back->channels,
                                       .x_ld = (uint64_t)back->samples * back->channels,
                                       .y = back->images +
                                            (uint64_t)s * back->channels * back->positions,
                                       .y_ld = back->positions,
                                       .rows = back->positions,
                                       .columns = back->channels,
                                       .bias = back->bias,
                                       .write = back->write};
        loops->turn(&turn);
    }
}

/* One of the three products, for all taps and groups, over `samples` transposed samples. */
enum product { PRODUCT_Y, PRODUCT_DX, PRODUCT_DWEIGHT };

static struct kelp_matmul product_of(const struct kelp_conv2d_shape *shape,
                                     const struct buffers *buffers,
                                     const struct kelp_conv2d_tap *tap, uint32_t samples,
                                     enum product which)
{
    const uint32_t in = shape->window.channels, in_group = in / shape->groups;
    const uint32_t out = shape->channels_out, out_group = out / shape->groups;
    const uint32_t rows = tap->count * samples;
    float *x = buffers->turned_x + (uint64_t)tap->x * samples * in;
    float *y = buffers->turned_y + (uint64_t)tap->y * samples * out;
    const float *weights = buffers->weights + tap->tap * buffers->weight;
    switch (which) {
    case PRODUCT_Y:
        return (struct kelp_matmul){.m = rows,
                                    .n = out_group,
                                    .k = in_group,
                                    .a = x,
                                    .lda = in,
                                    .b = weights,
                                    .ldb = out_group,
                                    .c = y,
                                    .ldc = out,
                                    .stride_a = in_group,
                                    .stride_b = (uint64_t)in_group * out_group,
                                    .stride_c = out_group};
    case PRODUCT_DX:
        return (struct kelp_matmul){.m = rows,
                                    .n = in_group,
                                    .k = out_group,
                                    .a = y,
                                    .lda = out,
                                    .b = weights,
                                    .ldb = in_group,
                                    .c = x,
                                    .ldc = in,
                                    .stride_a = out_group,
                                    .stride_b = (uint64_t)in_group * out_group,
                                    .stride_c = in_group};
    case PRODUCT_DWEIGHT:
        break;
    }
    return (struct kelp_matmul){.transpose_a = true,
                                .m = out_group,
                                .n = in_group,
                                .k = rows,
                                .a = y,
                                .lda = out,
                                .b = x,
                                .ldb = in,
                                .c = buffers->dweights + tap->tap * buffers->weight,
                                .ldc = in_group,
                                .stride_a = out_group,
                                .stride_b = in_group,
                                .stride_c = (uint64_t)in_group * out_group};
}

/* The first product that writes to a place overwrites it; the others add. */
static enum kelp_write write_of(const struct kelp_conv2d *conv, uint32_t index, enum product which,
                                bool first_chunk)
{
    const struct kelp_conv2d_tap *tap = &conv->taps[index];
    bool first = false;
    switch (which) {
    case PRODUCT_Y:
        first = tap->tap == 0 && conv->covers_output;
        break;
    case PRODUCT_DX:
        first = tap->tap == 0 && conv->covers_input;
        break;
    case PRODUCT_DWEIGHT:
        first = first_chunk && (index == 0 || conv->taps[index - 1].tap != tap->tap);
        break;
    }
    return first ? KELP_OVERWRITE : KELP_ACCUMULATE;
}

struct chunk {
    uint32_t first, samples;
};

static kelp_status multiply(const struct kelp_conv2d_context *context,
                            const struct buffers *buffers, struct chunk chunk, enum product which)
{
    const struct kelp_conv2d *conv = context->run->conv;
    if (which == PRODUCT_Y && !conv->covers_output) {
        memset(buffers->turned_y, 0, chunk.samples * buffers->y * sizeof(float));
    }
    if (which == PRODUCT_DX && !conv->covers_input) {
        memset(buffers->turned_x, 0, chunk.samples * buffers->x * sizeof(float));
    }
    for (uint32_t i = 0; i < conv->tap_count; i++) {
        struct kelp_matmul product =
            product_of(&conv->shape, buffers, &conv->taps[i], chunk.samples, which);
        product.write = write_of(conv, i, which, chunk.first == 0);
        for (uint32_t g = 0; g < conv->shape.groups; g++) {
            const kelp_status status = kelp__gemm_run(context->gemm, &product);
            if (status != KELP_OK) {
                return status;
            }
            product.a += product.stride_a;
            product.b += product.stride_b;
            product.c += product.stride_c;
        }
    }
    return KELP_OK;
}

static struct chunk chunk_at(const struct kelp_conv2d_run *run, uint32_t first)
{
    const uint32_t left = run->samples - first;
    return (struct chunk){first, left < run->conv->chunk ? left : run->conv->chunk};
}

/* [tap][channels in][channels out], group by group. */
static void gather_weights_turned(const struct kelp_conv2d_context *context,
                                  const struct buffers *buffers)
{
    const struct kelp_conv2d_shape *shape = &context->run->conv->shape;
    const struct kelp_tap_sizes sizes = {shape->window.channels / shape->groups,
                                         shape->channels_out / shape->groups};
    const uint64_t group = (uint64_t)sizes.inputs * sizes.outputs;
    struct kelp_taps taps = taps_of(context->run->conv, buffers->weight);
    for (uint32_t g = 0; g < shape->groups; g++) {
        context->loops->gather_taps_turned(&taps, sizes,
                                           context->run->weight + g * group * taps.kernel,
                                           buffers->weights + g * group);
    }
}

kelp_status kelp__conv2d_taps_forward(const struct kelp_conv2d_context *context)
{
    const struct kelp_conv2d_run *run = context->run;
    const struct kelp_conv2d_shape *shape = &run->conv->shape;
    const struct buffers buffers = buffers_of(run->conv, run->workspace);
    gather_weights_turned(context, &buffers);
    for (uint32_t first = 0; first < run->samples; first += run->conv->chunk) {
        const struct chunk chunk = chunk_at(run, first);
        turn_in(context->loops, run->x + first * buffers.x, buffers.turned_x, chunk.samples,
                shape->window.channels, (uint32_t)kelp__conv2d_plane(shape->window.input));
        const kelp_status status = multiply(context, &buffers, chunk, PRODUCT_Y);
        if (status != KELP_OK) {
            return status;
        }
        const struct turn_back back = {.images = run->y + first * buffers.y,
                                       .turned = buffers.turned_y,
                                       .bias = run->bias,
                                       .samples = chunk.samples,
                                       .channels = shape->channels_out,
                                       .positions =
                                           (uint32_t)kelp__conv2d_plane(shape->window.output)};
        turn_out(context->loops, &back);
    }
    return KELP_OK;
}

static kelp_status gradient_chunk(const struct kelp_conv2d_context *context,
                                  const struct buffers *buffers, struct chunk chunk)
{
    const struct kelp_conv2d_run *run = context->run;
    const struct kelp_conv2d_shape *shape = &run->conv->shape;
    const uint32_t input = (uint32_t)kelp__conv2d_plane(shape->window.input);
    kelp_status status = KELP_OK;
    turn_in(context->loops, run->dy + chunk.first * buffers->y, buffers->turned_y, chunk.samples,
            shape->channels_out, (uint32_t)kelp__conv2d_plane(shape->window.output));
    if (run->dweight) {
        turn_in(context->loops, run->x + chunk.first * buffers->x, buffers->turned_x, chunk.samples,
                shape->window.channels, input);
        status = multiply(context, buffers, chunk, PRODUCT_DWEIGHT);
    }
    if (status == KELP_OK && run->dx) {
        status = multiply(context, buffers, chunk, PRODUCT_DX);
        const struct turn_back back = {.images = run->dx + chunk.first * buffers->x,
                                       .turned = buffers->turned_x,
                                       .samples = chunk.samples,
                                       .channels = shape->window.channels,
                                       .positions = input,
                                       .write = run->write_x};
        turn_out(context->loops, &back);
    }
    return status;
}

kelp_status kelp__conv2d_taps_gradient(const struct kelp_conv2d_context *context)
{
    const struct kelp_conv2d_run *run = context->run;
    const struct buffers buffers = buffers_of(run->conv, run->workspace);
    if (run->dx) {
        const struct kelp_taps taps = taps_of(run->conv, buffers.weight);
        context->loops->gather_taps(&taps, run->weight, buffers.weights);
    }
    for (uint32_t first = 0; first < run->samples; first += run->conv->chunk) {
        const kelp_status status = gradient_chunk(context, &buffers, chunk_at(run, first));
        if (status != KELP_OK) {
            return status;
        }
    }
    if (run->dweight) {
        if (run->samples == 0) {
            memset(buffers.dweights, 0, run->conv->used * buffers.weight * sizeof(float));
        }
        const struct kelp_taps taps = taps_of(run->conv, buffers.weight);
        context->loops->scatter_taps(&taps, buffers.dweights, run->dweight, run->write_weight);
    }
    return KELP_OK;
}

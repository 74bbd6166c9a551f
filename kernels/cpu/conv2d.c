/*
 * Convolution as matrix products, a sample and a group at a time: what each kernel position meets
 * stands in a row of `columns` [channels / groups * kernel, output], so that
 *   y = weight columns,   dweight = dy columns^T,   dcolumns = weight^T dy.
 * Samples in ascending order. A kernel of one position that skips nothing needs no columns: the
 * input is that matrix.
 */
#include "kernels/cpu/conv2d.h"

#include <cblas.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

static uint64_t product(const uint32_t sides[2])
{
    return (uint64_t)sides[0] * sides[1];
}

/* Sizes of one group's matrices. */
struct sizes {
    int channels_out, depth, output; /* rows of weight, rows of columns, columns of both */
    uint64_t x, y, weight, columns;  /* elements of one group */
};

static struct sizes sizes_of(const struct kelp_conv2d_shape *shape)
{
    const struct kelp_window *window = &shape->window;
    const uint64_t channels_in = window->channels / shape->groups;
    const uint64_t depth = channels_in * product(window->kernel);
    struct sizes sizes = {.channels_out = (int)(shape->channels_out / shape->groups),
                          .depth = (int)depth,
                          .output = (int)product(window->output),
                          .x = channels_in * product(window->input)};
    sizes.y = (uint64_t)sizes.channels_out * (uint64_t)sizes.output;
    sizes.weight = (uint64_t)sizes.channels_out * depth;
    sizes.columns = depth * (uint64_t)sizes.output;
    return sizes;
}

static bool needs_columns(const struct kelp_window *window)
{
    return product(window->kernel) != 1 || product(window->stride) != 1 ||
           window->padding[0] != 0 || window->padding[1] != 0;
}

static bool is_side_valid(const struct kelp_window *window, uint32_t side)
{
    const uint64_t padded = window->input[side] + 2 * (uint64_t)window->padding[side];
    return window->input[side] != 0 && window->kernel[side] != 0 && window->stride[side] != 0 &&
           padded <= INT_MAX && padded >= window->kernel[side] &&
           window->output[side] == (padded - window->kernel[side]) / window->stride[side] + 1;
}

static kelp_status check(const struct kelp_conv2d_shape *shape, struct kelp_error *reterr)
{
    const struct kelp_window *window = &shape->window;
    if (!is_side_valid(window, 0) || !is_side_valid(window, 1) || shape->groups == 0 ||
        window->channels == 0 || window->channels % shape->groups != 0 ||
        shape->channels_out == 0 || shape->channels_out % shape->groups != 0) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "a convolution of %ux%ux%u by %ux%u to %ux%ux%u in %u groups does not "
                         "fit together",
                         window->channels, window->input[0], window->input[1], window->kernel[0],
                         window->kernel[1], shape->channels_out, window->output[0],
                         window->output[1], shape->groups);
    }
    const uint64_t depth = window->channels / shape->groups * product(window->kernel);
    if (shape->channels_out > INT_MAX || product(window->kernel) > INT_MAX || depth > INT_MAX ||
        product(window->output) > INT_MAX || product(window->input) > INT_MAX) {
        return kelp_fail(reterr, KELP_ERR_DEVICE, "a convolution of %ux%ux%u by %ux%u is too large",
                         window->channels, window->input[0], window->input[1], window->kernel[0],
                         window->kernel[1]);
    }
    return KELP_OK;
}

kelp_status kelp__conv2d_create(const struct kelp_conv2d_shape *shape, struct kelp_conv2d **ret,
                                struct kelp_error *reterr)
{
    const kelp_status status = check(shape, reterr);
    if (status != KELP_OK) {
        return status;
    }
    struct kelp_conv2d *conv = calloc(1, sizeof(*conv));
    if (conv == NULL) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "cannot allocate a convolution");
    }
    conv->shape = *shape;
    *ret = conv;
    return KELP_OK;
}

void kelp__conv2d_destroy(struct kelp_conv2d *conv)
{
    free(conv);
}

uint64_t kelp__conv2d_workspace(const struct kelp_conv2d *conv)
{
    return needs_columns(&conv->shape.window) ? conv->shape.groups * sizes_of(&conv->shape).columns
                                              : 0;
}

void kelp__conv2d_forward(const struct kelp_window_loops *loops, const struct kelp_conv2d_run *run)
{
    const struct kelp_conv2d_shape *shape = &run->conv->shape;
    const struct sizes sizes = sizes_of(shape);
    const bool unfolded = needs_columns(&shape->window);
    const float *x = run->x;
    float *y = run->y;
    for (uint32_t s = 0; s < run->samples; s++) {
        if (unfolded) {
            loops->unfold(&shape->window, x, run->workspace);
        }
        const float *columns = unfolded ? run->workspace : x;
        for (uint32_t g = 0; g < shape->groups; g++) {
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, sizes.channels_out, sizes.output,
                        sizes.depth, 1.0f, run->weight + g * sizes.weight, sizes.depth,
                        columns + g * sizes.columns, sizes.output, 0.0f, y + g * sizes.y,
                        sizes.output);
        }
        x += shape->groups * sizes.x;
        y += shape->groups * sizes.y;
    }
    if (run->bias != NULL) {
        loops->channel_bias_add(
            run->y, run->bias,
            &(struct kelp_channels){run->samples, shape->channels_out, (uint64_t)sizes.output});
    }
}

static void gradient_weight(const struct kelp_window_loops *loops,
                            const struct kelp_conv2d_run *run, const struct sizes *sizes)
{
    const struct kelp_conv2d_shape *shape = &run->conv->shape;
    const bool unfolded = needs_columns(&shape->window);
    const float *x = run->x, *dy = run->dy;
    if (run->samples == 0 && run->write_weight == KELP_OVERWRITE) {
        memset(run->dweight, 0, shape->groups * sizes->weight * sizeof(float));
    }
    for (uint32_t s = 0; s < run->samples; s++) {
        if (unfolded) {
            loops->unfold(&shape->window, x, run->workspace);
        }
        const float *columns = unfolded ? run->workspace : x;
        const float keep = s == 0 && run->write_weight == KELP_OVERWRITE ? 0.0f : 1.0f;
        for (uint32_t g = 0; g < shape->groups; g++) {
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, sizes->channels_out, sizes->depth,
                        sizes->output, 1.0f, dy + g * sizes->y, sizes->output,
                        columns + g * sizes->columns, sizes->output, keep,
                        run->dweight + g * sizes->weight, sizes->depth);
        }
        x += shape->groups * sizes->x;
        dy += shape->groups * sizes->y;
    }
}

static void gradient_input(const struct kelp_window_loops *loops, const struct kelp_conv2d_run *run,
                           const struct sizes *sizes)
{
    const struct kelp_conv2d_shape *shape = &run->conv->shape;
    const bool unfolded = needs_columns(&shape->window);
    const float keep = !unfolded && run->write_x == KELP_ACCUMULATE ? 1.0f : 0.0f;
    const float *dy = run->dy;
    float *dx = run->dx;
    for (uint32_t s = 0; s < run->samples; s++) {
        float *columns = unfolded ? run->workspace : dx;
        for (uint32_t g = 0; g < shape->groups; g++) {
            cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, sizes->depth, sizes->output,
                        sizes->channels_out, 1.0f, run->weight + g * sizes->weight, sizes->depth,
                        dy + g * sizes->y, sizes->output, keep, columns + g * sizes->columns,
                        sizes->output);
        }
        if (unfolded) {
            if (run->write_x == KELP_OVERWRITE) {
                memset(dx, 0, shape->groups * sizes->x * sizeof(*dx));
            }
            loops->fold_add(&shape->window, columns, dx);
        }
        dx += shape->groups * sizes->x;
        dy += shape->groups * sizes->y;
    }
}

void kelp__conv2d_gradient(const struct kelp_window_loops *loops, const struct kelp_conv2d_run *run)
{
    const struct sizes sizes = sizes_of(&run->conv->shape);
    if (run->dbias != NULL) {
        loops->channel_bias_gradient(run->dbias, run->dy,
                                     &(struct kelp_channels){run->samples,
                                                             run->conv->shape.channels_out,
                                                             (uint64_t)sizes.output},
                                     run->write_bias);
    }
    if (run->dweight != NULL) {
        gradient_weight(loops, run, &sizes);
    }
    if (run->dx != NULL) {
        gradient_input(loops, run, &sizes);
    }
}

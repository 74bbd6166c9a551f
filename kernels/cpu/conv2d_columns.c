/*
 * Convolution as matrix products, for one sample and group at a time. `columns` [depth, output] has
 * the inputs that each kernel position meets, with depth = channels / groups * kernel. So y =
 * weight columns, dweight = dy columns^T and dcolumns = weight^T dy. Samples are in ascending
 * order. A kernel of one position that skips nothing needs no columns: the input is that matrix.
 */
#include <string.h>

#include "kernels/cpu/conv2d.h"

/* Sizes of one group's matrices. */
struct sizes {
    uint32_t channels_out, depth, output; /* rows of weight, rows of columns, columns of both */
    uint64_t x, y, weight, columns;       /* elements of a group */
};

static struct sizes sizes_of(const struct kelp_conv2d_shape *shape)
{
    const struct kelp_window *window = &shape->window;
    const uint64_t channels_in = window->channels / shape->groups;
    const uint64_t depth = channels_in * kelp__conv2d_plane(window->kernel);
    struct sizes sizes = {.channels_out = shape->channels_out / shape->groups,
                          .depth = (uint32_t)depth,
                          .output = (uint32_t)kelp__conv2d_plane(window->output),
                          .x = channels_in * kelp__conv2d_plane(window->input)};
    sizes.y = (uint64_t)sizes.channels_out * sizes.output;
    sizes.weight = sizes.channels_out * depth;
    sizes.columns = depth * sizes.output;
    return sizes;
}

static bool needs_columns(const struct kelp_window *window)
{
    return kelp__conv2d_plane(window->kernel) != 1 || kelp__conv2d_plane(window->stride) != 1 ||
           window->padding[0] != 0 || window->padding[1] != 0;
}

uint64_t kelp__conv2d_columns_workspace(const struct kelp_conv2d_shape *shape)
{
    return needs_columns(&shape->window) ? shape->groups * sizes_of(shape).columns : 0;
}

static const float *columns_of(const struct kelp_conv2d_context *context, const float *x)
{
    const struct kelp_window *window = &context->run->conv->shape.window;
    if (!needs_columns(window)) {
        return x;
    }
    context->loops->unfold(window, x, context->run->workspace);
    return context->run->workspace;
}

kelp_status kelp__conv2d_columns_forward(const struct kelp_conv2d_context *context)
{
    const struct kelp_conv2d_run *run = context->run;
    const struct kelp_conv2d_shape *shape = &run->conv->shape;
    const struct sizes sizes = sizes_of(shape);
    for (uint32_t s = 0; s < run->samples; s++) {
        const float *columns = columns_of(context, run->x + s * shape->groups * sizes.x);
        for (uint32_t g = 0; g < shape->groups; g++) {
            const struct kelp_matmul product = {.m = sizes.channels_out,
                                                .n = sizes.output,
                                                .k = sizes.depth,
                                                .a = run->weight + g * sizes.weight,
                                                .lda = sizes.depth,
                                                .b = columns + g * sizes.columns,
                                                .ldb = sizes.output,
                                                .c = run->y +
                                                     ((uint64_t)s * shape->groups + g) * sizes.y,
                                                .ldc = sizes.output};
            const kelp_status status = kelp__gemm_run(context->gemm, &product);
            if (status != KELP_OK) {
                return status;
            }
        }
    }
    if (run->bias) {
        const struct kelp_channels all = {run->samples, shape->channels_out, sizes.output};
        context->loops->channel_bias_add(run->y, run->bias, &all);
    }
    return KELP_OK;
}

static kelp_status gradient_weight(const struct kelp_conv2d_context *context,
                                   const struct sizes *sizes)
{
    const struct kelp_conv2d_run *run = context->run;
    const struct kelp_conv2d_shape *shape = &run->conv->shape;
    if (run->samples == 0 && run->write_weight == KELP_OVERWRITE) {
        memset(run->dweight, 0, shape->groups * sizes->weight * sizeof(float));
    }
    for (uint32_t s = 0; s < run->samples; s++) {
        const float *columns = columns_of(context, run->x + s * shape->groups * sizes->x);
        for (uint32_t g = 0; g < shape->groups; g++) {
            const struct kelp_matmul product = {
                .transpose_b = true,
                .m = sizes->channels_out,
                .n = sizes->depth,
                .k = sizes->output,
                .a = run->dy + ((uint64_t)s * shape->groups + g) * sizes->y,
                .lda = sizes->output,
                .b = columns + g * sizes->columns,
                .ldb = sizes->output,
                .c = run->dweight + g * sizes->weight,
                .ldc = sizes->depth,
                .write = s == 0 ? run->write_weight : KELP_ACCUMULATE};
            const kelp_status status = kelp__gemm_run(context->gemm, &product);
            if (status != KELP_OK) {
                return status;
            }
        }
    }
    return KELP_OK;
}

static kelp_status gradient_input(const struct kelp_conv2d_context *context,
                                  const struct sizes *sizes)
{
    const struct kelp_conv2d_run *run = context->run;
    const struct kelp_conv2d_shape *shape = &run->conv->shape;
    const bool folds = needs_columns(&shape->window);
    for (uint32_t s = 0; s < run->samples; s++) {
        float *dx = run->dx + s * shape->groups * sizes->x;
        float *columns = folds ? run->workspace : dx;
        for (uint32_t g = 0; g < shape->groups; g++) {
            const struct kelp_matmul product = {.transpose_a = true,
                                                .m = sizes->depth,
                                                .n = sizes->output,
                                                .k = sizes->channels_out,
                                                .a = run->weight + g * sizes->weight,
                                                .lda = sizes->depth,
                                                .b = run->dy +
                                                     ((uint64_t)s * shape->groups + g) * sizes->y,
                                                .ldb = sizes->output,
                                                .c = columns + g * sizes->columns,
                                                .ldc = sizes->output,
                                                .write = folds ? KELP_OVERWRITE : run->write_x};
            const kelp_status status = kelp__gemm_run(context->gemm, &product);
            if (status != KELP_OK) {
                return status;
            }
        }
        if (folds && run->write_x == KELP_OVERWRITE) {
            memset(dx, 0, shape->groups * sizes->x * sizeof(*dx));
        }
        if (folds) {
            context->loops->fold_add(&shape->window, columns, dx);
        }
    }
    return KELP_OK;
}

kelp_status kelp__conv2d_columns_gradient(const struct kelp_conv2d_context *context)
{
    const struct sizes sizes = sizes_of(&context->run->conv->shape);
    kelp_status status = KELP_OK;
    if (context->run->dweight) {
        status = gradient_weight(context, &sizes);
    }
    if (status == KELP_OK && context->run->dx) {
        status = gradient_input(context, &sizes);
    }
    return status;
}

#include "kernels/cpu/conv2d.h"

#include <limits.h>
#include <stdlib.h>

/* Channels of a group from which products over channels only are faster than products over
 * channels and kernel positions, which need a copy of the input for each kernel position. */
#define TAPS_CHANNELS_MIN 16

kelp_status kelp__conv2d_create(const struct kelp_conv2d_shape *shape, struct kelp_conv2d **ret,
                                struct kelp_error *reterr)
{
    kelp_status status = kelp__conv2d_check(shape, reterr);
    if (status != KELP_OK) {
        return status;
    }
    if (shape->window.layout != KELP_CHANNELS_FIRST) {
        return kelp_fail(reterr, KELP_ERR_UNSUPPORTED,
                         "the CPU's convolutions take images with their channels first");
    }
    struct kelp_conv2d *conv = calloc(1, sizeof(*conv));
    if (!conv) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "cannot allocate a convolution");
    }
    conv->shape = *shape;
    conv->by_taps = shape->window.channels / shape->groups >= TAPS_CHANNELS_MIN;
    status = conv->by_taps ? kelp__conv2d_taps_create(conv, reterr) : KELP_OK;
    if (status != KELP_OK) {
        kelp__conv2d_destroy(conv);
        return status;
    }
    *ret = conv;
    return KELP_OK;
}

void kelp__conv2d_destroy(struct kelp_conv2d *conv)
{
    if (conv) {
        free(conv->taps);
        free(conv->kernel_positions);
        free(conv);
    }
}

uint64_t kelp__conv2d_workspace(const struct kelp_conv2d *conv)
{
    return conv->by_taps ? kelp__conv2d_taps_workspace(conv)
                         : kelp__conv2d_columns_workspace(&conv->shape);
}

kelp_status kelp__conv2d_forward(const struct kelp_conv2d_context *context)
{
    return context->run->conv->by_taps ? kelp__conv2d_taps_forward(context)
                                       : kelp__conv2d_columns_forward(context);
}

kelp_status kelp__conv2d_gradient(const struct kelp_conv2d_context *context)
{
    const struct kelp_conv2d_run *run = context->run;
    if (run->dbias) {
        const struct kelp_channels sizes = {run->samples, run->conv->shape.channels_out,
                                            kelp__conv2d_plane(run->conv->shape.window.output)};
        context->loops->channel_bias_gradient(run->dbias, run->dy, &sizes, run->write_bias);
    }
    return run->conv->by_taps ? kelp__conv2d_taps_gradient(context)
                              : kelp__conv2d_columns_gradient(context);
}

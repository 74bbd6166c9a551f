/*
 * Which convolutions (kernels/operators.h) a device takes. Private to kernels/.
 */
#ifndef KELP_KERNELS_CONV2D_CHECK_H
#define KELP_KERNELS_CONV2D_CHECK_H

#include <limits.h>

#include "kernels/operators.h"

static inline uint64_t kelp__conv2d_plane(const uint32_t sides[2])
{
    return (uint64_t)sides[0] * sides[1];
}

static inline bool kelp__conv2d_is_side_valid(const struct kelp_window *window, uint32_t side)
{
    const uint64_t padded = window->input[side] + 2 * (uint64_t)window->padding[side];
    return window->input[side] != 0 && window->kernel[side] != 0 && window->stride[side] != 0 &&
           padded <= INT_MAX && padded >= window->kernel[side] &&
           window->output[side] == (padded - window->kernel[side]) / window->stride[side] + 1;
}

/* KELP_ERR_DEVICE, in words. */
static inline kelp_status kelp__conv2d_too_large(const struct kelp_conv2d_shape *shape,
                                                 struct kelp_error *reterr)
{
    const struct kelp_window *window = &shape->window;
    return kelp_fail(reterr, KELP_ERR_DEVICE,
                     "a convolution of %ux%ux%u by %ux%u to %u channels is too large",
                     window->channels, window->input[0], window->input[1], window->kernel[0],
                     window->kernel[1], shape->channels_out);
}

/* Errors: KELP_ERR_INVALID (sizes that do not fit together), KELP_ERR_DEVICE (a sample's planes, or
 * what one output is summed over, are not counted in 31 bits). */
static inline kelp_status kelp__conv2d_check(const struct kelp_conv2d_shape *shape,
                                             struct kelp_error *reterr)
{
    const struct kelp_window *window = &shape->window;
    if (!kelp__conv2d_is_side_valid(window, 0) || !kelp__conv2d_is_side_valid(window, 1) ||
        shape->groups == 0 || window->channels == 0 || window->channels % shape->groups != 0 ||
        shape->channels_out == 0 || shape->channels_out % shape->groups != 0) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "a convolution of %ux%ux%u by %ux%u to %ux%ux%u in %u groups does not "
                         "fit together",
                         window->channels, window->input[0], window->input[1], window->kernel[0],
                         window->kernel[1], shape->channels_out, window->output[0],
                         window->output[1], shape->groups);
    }
    const uint64_t kernel = kelp__conv2d_plane(window->kernel);
    const uint64_t input = kelp__conv2d_plane(window->input);
    const uint64_t output = kelp__conv2d_plane(window->output);
    const bool fits = kernel <= INT_MAX && input <= INT_MAX && output <= INT_MAX &&
                      window->channels * input <= INT_MAX &&
                      shape->channels_out * output <= INT_MAX &&
                      window->channels / shape->groups * kernel <= INT_MAX;
    return fits ? KELP_OK : kelp__conv2d_too_large(shape, reterr);
}

#endif

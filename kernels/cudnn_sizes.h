/*
 * What cuDNN takes of a stream's memory for a convolution, at most: plans are made without a GPU,
 * too (kernels/plan_device.c). Which algorithm it takes, and what that one needs, it alone knows.
 *
 * Private to kernels/.
 */
#ifndef KELP_KERNELS_CUDNN_SIZES_H
#define KELP_KERNELS_CUDNN_SIZES_H

#include <limits.h>

#include "kernels/conv2d_check.h"

#define KELP_CUDNN_WORKSPACE_MAX ((size_t)256 << 20) /* bytes */

/* The samples that cuDNN takes at a time: it counts a tensor's elements in 31 bits. 0: none, of a
 * shape that kelp__conv2d_check() takes. */
static inline uint32_t kelp__cudnn_samples_max(const struct kelp_conv2d_shape *shape)
{
    const struct kelp_window *window = &shape->window;
    const uint64_t x = window->channels * kelp__conv2d_plane(window->input);
    const uint64_t y = shape->channels_out * kelp__conv2d_plane(window->output);
    const uint64_t weights = (uint64_t)shape->channels_out * (window->channels / shape->groups *
                                                              kelp__conv2d_plane(window->kernel));
    const bool fits =
        window->stride[0] <= INT_MAX && window->stride[1] <= INT_MAX && weights <= INT_MAX;
    return fits ? (uint32_t)(INT_MAX / (x > y ? x : y)) : 0;
}

/* Weights stand [out][in][kernel], and have to be turned where cuDNN wants [out][kernel][in]. */
static inline bool kelp__cudnn_turns_filter(const struct kelp_conv2d_shape *shape)
{
    return shape->window.layout == KELP_CHANNELS_LAST &&
           kelp__conv2d_plane(shape->window.kernel) != 1 && shape->window.channels != shape->groups;
}

/* Bytes of the turned weights, before the workspace; 0: they are not turned. */
static inline size_t kelp__cudnn_turned_bytes(const struct kelp_conv2d_shape *shape)
{
    const uint64_t weights = (uint64_t)shape->channels_out *
                             (shape->window.channels / shape->groups) *
                             kelp__conv2d_plane(shape->window.kernel);
    return kelp__cudnn_turns_filter(shape) ? (weights * sizeof(float) + 255) / 256 * 256 : 0;
}

/* Bytes of scratch memory that a run takes by any of its algorithms. */
static inline uint64_t kelp__cudnn_scratch_max(const struct kelp_conv2d_shape *shape)
{
    return kelp__cudnn_samples_max(shape) == 0
               ? 0
               : kelp__cudnn_turned_bytes(shape) + KELP_CUDNN_WORKSPACE_MAX;
}

#endif

/*
 * The CPU's 2-D convolution; kernels/device.h says what each function does. Private to kernels/ and
 * its tests.
 */
#ifndef KELP_KERNELS_CPU_CONV2D_H
#define KELP_KERNELS_CPU_CONV2D_H

#include "kernels/cpu/loops.h"
#include "kernels/device.h"

struct kelp_conv2d {
    struct kelp_conv2d_shape shape;
};

kelp_status kelp__conv2d_create(const struct kelp_conv2d_shape *shape, struct kelp_conv2d **ret,
                                struct kelp_error *reterr);
void kelp__conv2d_destroy(struct kelp_conv2d *conv);
uint64_t kelp__conv2d_workspace(const struct kelp_conv2d *conv);
/* The caller has set OpenBLAS's threads. */
void kelp__conv2d_forward(const struct kelp_window_loops *loops, const struct kelp_conv2d_run *run);
void kelp__conv2d_gradient(const struct kelp_window_loops *loops,
                           const struct kelp_conv2d_run *run);

#endif

/*
 * The CPU's 2-D convolution, in two ways; kernels/device.h describes each function. The shape alone
 * determines which way is used. Private to kernels/ and its tests.
 */
#ifndef KELP_KERNELS_CPU_CONV2D_H
#define KELP_KERNELS_CPU_CONV2D_H

#include "kernels/conv2d_check.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/loops/loops.h"
#include "kernels/device.h"

/* The product of one kernel position with `count` consecutive input positions, for as many
 * output positions. */
struct kelp_conv2d_tap {
    uint32_t tap;  /* index among the taps that meet the input */
    uint32_t x, y; /* first position in the input and output planes */
    uint32_t count;
};

struct kelp_conv2d {
    struct kelp_conv2d_shape shape;
    bool by_taps;                 /* otherwise by columns */
    struct kelp_conv2d_tap *taps; /* grouped by tap */
    uint32_t tap_count;
    uint32_t *kernel_positions; /* for each tap that meets the input */
    uint32_t used;              /* taps that meet the input */
    uint32_t chunk;             /* samples at a time */
    /* The first tap meets every position of the output, or of the input, so that sums need not
     * start from zeros. */
    bool covers_output, covers_input;
};

/* What both ways need. */
struct kelp_conv2d_context {
    const struct kelp_gemm *gemm;
    const struct kelp_window_loops *loops;
    const struct kelp_conv2d_run *run;
};

kelp_status kelp__conv2d_create(const struct kelp_conv2d_shape *shape, struct kelp_conv2d **ret,
                                struct kelp_error *reterr);
void kelp__conv2d_destroy(struct kelp_conv2d *conv);
uint64_t kelp__conv2d_workspace(const struct kelp_conv2d *conv);
/* Errors: those of kelp__gemm_run(). */
kelp_status kelp__conv2d_forward(const struct kelp_conv2d_context *context);
kelp_status kelp__conv2d_gradient(const struct kelp_conv2d_context *context);

/* By columns (conv2d_columns.c): for few channels. */
uint64_t kelp__conv2d_columns_workspace(const struct kelp_conv2d_shape *shape);
kelp_status kelp__conv2d_columns_forward(const struct kelp_conv2d_context *context);
kelp_status kelp__conv2d_columns_gradient(const struct kelp_conv2d_context *context);

/* By taps (conv2d_taps.c): for many channels. Errors of create: KELP_ERR_NO_MEMORY. */
kelp_status kelp__conv2d_taps_create(struct kelp_conv2d *conv, struct kelp_error *reterr);
uint64_t kelp__conv2d_taps_workspace(const struct kelp_conv2d *conv);
kelp_status kelp__conv2d_taps_forward(const struct kelp_conv2d_context *context);
kelp_status kelp__conv2d_taps_gradient(const struct kelp_conv2d_context *context);

#endif

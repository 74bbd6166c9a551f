/*
 * What the files of the benchmark gpu share.
 */
#ifndef KELP_BENCH_GPU_GPU_H
#define KELP_BENCH_GPU_GPU_H

#include "kernels/device.h"

/* Ends the program. */
_Noreturn void gpu_fail(const struct kelp_error *error);

/* Seconds of one launch by run(argument) on that stream: the median of several rounds. */
double gpu_measure(struct kelp_stream *on, void (*run)(const void *), const void *argument);

/* Device memory, larger than any convolution or product of the benchmark needs. The first three are
 * read alone. */
struct gpu_operands {
    const float *x, *weight, *dy;
    float *out, *workspace;
    double copy_gbs; /* of a copy within it */
};

/* A table of products in each precision, and of cuBLASLt's fastest kernel for each. */
void gpu_bench_products(const struct gpu_operands *operands);

/* A table of what Kelp does of those of ResNet-18 and the convnet in each precision, and of what
 * cuDNN does by its deterministic algorithms; and one of grouped ones against a copy. */
void gpu_bench_convolutions(const struct gpu_operands *operands);

#endif

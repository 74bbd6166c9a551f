/*
 * Measures the kernels that cuBLASLt offers for a product.
 */
#ifndef KELP_BENCH_GPU_CANDIDATES_H
#define KELP_BENCH_GPU_CANDIDATES_H

#include "bench/gpu/gpu.h"

/* A product of dense matrices: C [m, n] = op(A) op(B), as in struct kelp_matmul. */
struct gpu_product {
    uint32_t m, n, k;
    bool transpose_a, transpose_b;
};

/* Seconds of the fastest kernel; 0: built without the toolkit's headers. Ends the program if
 * cuBLASLt fails. */
double gpu_best_candidate(const struct gpu_operands *operands, const struct gpu_product *product,
                          enum kelp_product_precision precision);

#endif

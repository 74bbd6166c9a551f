/*
 * The kernels that cuBLASLt has for a product, measured.
 */
#ifndef KELP_BENCH_GPU_CANDIDATES_H
#define KELP_BENCH_GPU_CANDIDATES_H

#include "bench/gpu/gpu.h"

/* Of dense matrices: C [m, n] = op(A) op(B), as in struct kelp_matmul. */
struct gpu_product {
    uint32_t m, n, k;
    bool transpose_a, transpose_b;
};

/* Seconds of the fastest one; 0: this was built without the toolkit's headers. Ends the program
 * where cuBLASLt fails. */
double gpu_best_candidate(const struct gpu_operands *operands, const struct gpu_product *product,
                          enum kelp_product_precision precision);

#endif

/*
 * Matrix products of the CPU, by OpenBLAS, or by oneDNN if it uses wider vectors. Which library
 * computes a product depends on the processor, the libraries and the product's sizes; the compute
 * kind names the first two. Portable products always use OpenBLAS (kernels/cpu/portable.h). Private
 * to kernels/ and its tests.
 */
#ifndef KELP_KERNELS_CPU_GEMM_H
#define KELP_KERNELS_CPU_GEMM_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/operators.h"

#define KELP_GEMM_TEXT_SIZE 96

struct kelp_gemm {
    uint32_t threads;
    bool onednn;   /* oneDNN computes products that are not tiny */
    bool portable; /* onednn is false */
};

/* Sets the number of threads of both libraries. Errors: KELP_ERR_INVALID (more than OpenBLAS or
 * OpenMP supports), KELP_ERR_NO_MEMORY (no memory for OpenBLAS's buffers). */
kelp_status kelp__gemm_init(struct kelp_gemm *gemm, uint32_t threads,
                            struct kelp_error *reterr) KELP_MUST_USE;

/* The same bits on every supported processor. Errors: also those of kelp__portable_check(). */
kelp_status kelp__gemm_init_portable(struct kelp_gemm *gemm, uint32_t threads,
                                     struct kelp_error *reterr) KELP_MUST_USE;

/* "openblas-0.3.21 Haswell onednn-2.6.3 avx512_core"; portable: "openblas-0.3.21 Haswell". */
void kelp__gemm_describe(const struct kelp_gemm *gemm, char text[KELP_GEMM_TEXT_SIZE]);

/* One product; batch and strides are ignored. Errors: KELP_ERR_DEVICE (a size or ld over
 * INT_MAX; nothing is computed), KELP_ERR_NO_MEMORY (a library cannot allocate). */
kelp_status kelp__gemm_run(const struct kelp_gemm *gemm,
                           const struct kelp_matmul *product) KELP_MUST_USE;

#endif

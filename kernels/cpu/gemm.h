/*
 * Matrix products of the CPU: OpenBLAS, or oneDNN's product where that one has wider vectors. Which
 * of the two takes a product follows from the processor, the libraries and the product's sizes, all
 * of which the compute kind names. Portable products are OpenBLAS's alone (kernels/cpu/portable.h).
 * Private to kernels/ and its tests.
 */
#ifndef KELP_KERNELS_CPU_GEMM_H
#define KELP_KERNELS_CPU_GEMM_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/operators.h"

#define KELP_GEMM_TEXT_SIZE 96

struct kelp_gemm {
    uint32_t threads;
    bool onednn;   /* takes the products that are not tiny */
    bool portable; /* onednn is false */
};

/* Both libraries get the number of threads. Errors: KELP_ERR_INVALID (more than OpenBLAS
 * or OpenMP can), KELP_ERR_NO_MEMORY (no room for OpenBLAS's buffers). */
kelp_status kelp__gemm_init(struct kelp_gemm *gemm, uint32_t threads,
                            struct kelp_error *reterr) KELP_MUST_USE;

/* The same bits on every processor that can. Errors: also those of kelp__portable_check(). */
kelp_status kelp__gemm_init_portable(struct kelp_gemm *gemm, uint32_t threads,
                                     struct kelp_error *reterr) KELP_MUST_USE;

/* "openblas-0.3.21 Haswell onednn-2.6.3 avx512_core"; portable: "openblas-0.3.21 Haswell". */
void kelp__gemm_describe(const struct kelp_gemm *gemm, char text[KELP_GEMM_TEXT_SIZE]);

/* One product; batch and strides are not looked at. Sizes and lds of more than INT_MAX are
 * KELP_ERR_DEVICE, and nothing is done; memory that a library cannot get is KELP_ERR_NO_MEMORY. */
kelp_status kelp__gemm_run(const struct kelp_gemm *gemm,
                           const struct kelp_matmul *product) KELP_MUST_USE;

#endif

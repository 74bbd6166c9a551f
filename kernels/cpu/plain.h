/*
 * A matrix product in plain C, for builds without OpenBLAS and oneDNN (KELP_PARTS=kernels). Each
 * element is one sum in the order of k, with fused multiplications and additions where the variant
 * has them: its bits follow from that alone, not from the product's sizes.
 *
 * Private to kernels/ and its tests.
 */
#ifndef KELP_KERNELS_CPU_PLAIN_H
#define KELP_KERNELS_CPU_PLAIN_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/operators.h"

struct kelp_plain {
    const char *name; /* "base", "avx2", "avx512" */
    bool fused;       /* fmaf() of each product, not a product and then a sum */
    /* One product; batch and strides are not looked at. Errors: KELP_ERR_NO_MEMORY, and nothing is
     * done. */
    kelp_status (*run)(const struct kelp_matmul *product);
};

/* The variants that this processor can run, slowest first; NULL past the last. */
const struct kelp_plain *kelp__plain_variant(uint32_t index);
/* The fastest of them. */
const struct kelp_plain *kelp__plain(void);

#endif

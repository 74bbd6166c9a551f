/*
 * The matrix products of a linear layer (kernels/operators.h), which are the same on every device.
 * Private to kernels/.
 */
#ifndef KELP_KERNELS_LINEAR_PRODUCTS_H
#define KELP_KERNELS_LINEAR_PRODUCTS_H

#include <string.h>

#include "kernels/operators.h"

/* c [rows, y_ld] = x weight^T */
static inline struct kelp_matmul kelp__linear_sums(const struct kelp_linear *p, float *c)
{
    struct kelp_matmul product;
    memset(&product, 0, sizeof(product));
    product.transpose_b = true;
    product.m = p->rows;
    product.n = p->out;
    product.k = p->in;
    product.a = p->x;
    product.lda = p->x_ld;
    product.b = p->weight;
    product.ldb = p->in;
    product.c = c;
    product.ldc = p->y_ld;
    return product;
}

/* dweight = or += dsums^T x; dsums [rows, y_ld]: the gradient of the sums */
static inline struct kelp_matmul kelp__linear_dweight(const struct kelp_linear *p,
                                                      const float *dsums)
{
    struct kelp_matmul product;
    memset(&product, 0, sizeof(product));
    product.transpose_a = true;
    product.m = p->out;
    product.n = p->in;
    product.k = p->rows;
    product.a = dsums;
    product.lda = p->y_ld;
    product.b = p->x;
    product.ldb = p->x_ld;
    product.c = p->dweight;
    product.ldc = p->in;
    product.write = p->write_weight;
    return product;
}

/* dx = or += dsums weight */
static inline struct kelp_matmul kelp__linear_dx(const struct kelp_linear *p, const float *dsums)
{
    struct kelp_matmul product;
    memset(&product, 0, sizeof(product));
    product.m = p->rows;
    product.n = p->in;
    product.k = p->out;
    product.a = dsums;
    product.lda = p->y_ld;
    product.b = p->weight;
    product.ldb = p->in;
    product.c = p->dx;
    product.ldc = p->x_ld;
    product.write = p->write_x;
    return product;
}

#endif

/*
 * Matrix products of the emulated device, in cuBLASLt's place: plain sums over k, ascending.
 */
#include <cstdio>

#include "kernels/cuda/cuda.cuh"

#include "kernels/cuda_entry.h"

extern "C" {
#include "tests/lib/cuda/emulated_device.h"
}

kelp_status kelp__cuda_products_load(struct kelp_error *reterr)
{
    (void)reterr;
    return KELP_OK;
}

kelp_status kelp__cuda_products_create(struct kelp__cuda_products **ret, struct kelp_error *reterr)
{
    (void)reterr;
    *ret = NULL;
    return KELP_OK;
}

void kelp__cuda_products_destroy(struct kelp__cuda_products *products)
{
    (void)products;
}

void kelp__cuda_products_describe(char *text, size_t size)
{
    (void)snprintf(text, size, "emulated");
}

static __global__ void products(struct kelp_matmul p, uint64_t count)
{
    KELP_CUDA_FOR (i, count) {
        const uint64_t column = i % p.n, row = i / p.n % p.m, one = i / p.n / p.m;
        const float *a = p.a + one * p.stride_a, *b = p.b + one * p.stride_b;
        float sum = 0.0f;
        for (uint64_t j = 0; j < p.k; j++) {
            const float left = p.transpose_a ? a[j * p.lda + row] : a[row * p.lda + j];
            const float right = p.transpose_b ? b[column * p.ldb + j] : b[j * p.ldb + column];
            sum = sum + left * right;
        }
        kelp__cuda_put(&p.c[one * p.stride_c + row * p.ldc + column], sum, p.write);
    }
}

void kelp__cuda_matmul(struct kelp_stream *stream, const struct kelp_matmul *p)
{
    const uint64_t count = (uint64_t)(p->batch != 0 ? p->batch : 1) * p->m * p->n;
    KELP_CUDA_LAUNCH(stream, products, kelp__cuda_blocks(count), KELP_CUDA_THREADS, *p, count);
}

kelp_status kelp_device_cuda_create_emulated(struct kelp_device **ret, struct kelp_error *reterr)
{
    return kelp_cuda_entry(0, ret, reterr);
}

/*
 * Matrix products of the emulated device, in cuBLASLt's place: plain sums over k, ascending, of
 * operands that are rounded to the device's precision.
 */
#include <cstdio>
#include <cstdlib>
#include <cstring>

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

struct kelp__cuda_products {
    uint32_t lost; /* the last bits of a float32 that an operand loses */
};

kelp_status kelp__cuda_products_create(enum kelp_product_precision precision,
                                       struct kelp__cuda_products **ret, struct kelp_error *reterr)
{
    static const uint32_t lost[] = {0, 13, 16}; /* float32, tf32, bfloat16 */
    struct kelp__cuda_products *products =
        static_cast<struct kelp__cuda_products *>(malloc(sizeof(*products)));
    if (!products) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "cannot allocate a stream");
    }
    products->lost = lost[precision];
    *ret = products;
    return KELP_OK;
}

void kelp__cuda_products_destroy(struct kelp__cuda_products *products)
{
    free(products);
}

/* To the nearest, ties to the even one; infinities and NaN stay what they are. */
static __device__ float rounded(float value, uint32_t lost)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    if (lost == 0 || (bits & 0x7f800000u) == 0x7f800000u) {
        return value;
    }
    bits += (1u << (lost - 1)) - 1 + (bits >> lost & 1u);
    bits &= ~((1u << lost) - 1);
    memcpy(&value, &bits, sizeof(bits));
    return value;
}

kelp_status kelp__cuda_products_describe(enum kelp_product_precision precision, char *text,
                                         size_t size, struct kelp_error *reterr)
{
    (void)precision;
    (void)reterr;
    (void)snprintf(text, size, "emulated");
    return KELP_OK;
}

static __global__ void products(struct kelp_matmul p, uint64_t count, uint32_t lost)
{
    KELP_CUDA_FOR (i, count) {
        const uint64_t column = i % p.n, row = i / p.n % p.m, one = i / p.n / p.m;
        const float *a = p.a + one * p.stride_a, *b = p.b + one * p.stride_b;
        float sum = 0.0f;
        for (uint64_t j = 0; j < p.k; j++) {
            const float left = p.transpose_a ? a[j * p.lda + row] : a[row * p.lda + j];
            const float right = p.transpose_b ? b[column * p.ldb + j] : b[j * p.ldb + column];
            sum = sum + rounded(left, lost) * rounded(right, lost);
        }
        kelp__cuda_put(&p.c[one * p.stride_c + row * p.ldc + column], sum, p.write);
    }
}

void kelp__cuda_matmul(struct kelp_stream *stream, const struct kelp_matmul *p)
{
    const uint64_t count = (uint64_t)(p->batch != 0 ? p->batch : 1) * p->m * p->n;
    KELP_CUDA_LAUNCH(stream, products, kelp__cuda_blocks(count), KELP_CUDA_THREADS, *p, count,
                     kelp__cuda_stream_of(stream)->products->lost);
}

void kelp_cuda_emulated_leave(void)
{
    kelp_cuda_leave();
}

kelp_status kelp_device_cuda_create_emulated(struct kelp_device **ret, struct kelp_error *reterr)
{
    return kelp_cuda_entry(0, ret, reterr);
}

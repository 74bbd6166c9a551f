/*
 * One product of tensor cores, whose operands are dealt to the lanes of a warp element by element,
 * by the formulas of the PTX ISA ("Matrix Fragments for mma.m16n8k8", for tf32, and "... for
 * mma.m16n8k16 with floating point type"). kernels/cuda/conv2d/tensor.cuh and tensor.h say the same
 * in words of their own: both could be wrong alike.
 */
#include "kernels/cuda/conv2d/tensor.cuh"

extern "C" {
#include "tests/lib/cuda/emulated_device.h"
}

/* Element i of A, B and C in a lane, as the PTX ISA has them for tf32. */
struct k8 {
    static constexpr unsigned int k = 8, a = 4, b = 2;
    static unsigned int a_row(unsigned int group, unsigned int i)
    {
        return i == 0 || i == 2 ? group : group + 8;
    }
    static unsigned int a_column(unsigned int thread, unsigned int i)
    {
        return i == 0 || i == 1 ? thread : thread + 4;
    }
    static unsigned int b_row(unsigned int thread, unsigned int i)
    {
        return i == 0 ? thread : thread + 4;
    }
};

/* And for bfloat16. */
struct k16 {
    static constexpr unsigned int k = 16, a = 8, b = 4;
    static unsigned int a_row(unsigned int group, unsigned int i)
    {
        return i < 2 || (i >= 4 && i < 6) ? group : group + 8;
    }
    static unsigned int a_column(unsigned int thread, unsigned int i)
    {
        return thread * 2 + (i & 1) + (i < 4 ? 0 : 8);
    }
    static unsigned int b_row(unsigned int thread, unsigned int i)
    {
        return thread * 2 + (i & 1) + (i < 2 ? 0 : 8);
    }
};

/* "Elements (low to high)": of two in a register the first is in the low half. */
static __device__ void put(uint32_t *registers, unsigned int i, float value, bool pairs)
{
    const uint32_t bits = __float_as_uint(value);
    if (!pairs) {
        registers[i] = bits;
    } else if (i % 2 == 0) {
        registers[i / 2] = bits >> 16;
    } else {
        registers[i / 2] |= bits & 0xffff0000u;
    }
}

template <class fragments>
static __global__ void multiply_once(const float *a, const float *b, float *c)
{
    const unsigned int group = threadIdx.x >> 2, thread = threadIdx.x % 4;
    const bool pairs = fragments::k == 16;
    uint32_t left[4] = {0}, right[2] = {0};
    float sums[4];
    for (unsigned int i = 0; i < fragments::a; i++) {
        put(left, i, a[fragments::a_row(group, i) * fragments::k + fragments::a_column(thread, i)],
            pairs);
    }
    for (unsigned int i = 0; i < fragments::b; i++) {
        put(right, i, b[fragments::b_row(thread, i) * 8 + group], pairs);
    }
    for (unsigned int i = 0; i < 4; i++) {
        sums[i] = c[(i < 2 ? group : group + 8) * 8 + thread * 2 + (i & 1)];
    }
    if (pairs) {
        kelp__cuda_multiply_bfloat16(sums, left, right);
    } else {
        kelp__cuda_multiply_tf32(sums, left, right);
    }
    for (unsigned int i = 0; i < 4; i++) {
        c[(i < 2 ? group : group + 8) * 8 + thread * 2 + (i & 1)] = sums[i];
    }
}

void kelp_cuda_emulated_multiply(struct kelp_stream *stream, bool bfloat16, const float *a,
                                 const float *b, float *c)
{
    KELP_CUDA_LAUNCH(stream, bfloat16 ? multiply_once<k16> : multiply_once<k8>, 1, KELP_CUDA_WARP,
                     a, b, c);
}

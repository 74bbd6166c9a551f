/*
 * Arithmetic that is asked for by name: fused multiplication and addition, and what tensor cores
 * do. All of it is PTX written here, by which tests/gpu/check_ptx.sh tells it from operations that
 * the compiler fused. tests/lib/cuda/emulated/tensor.h has the same for g++.
 *
 * A tensor core multiplies [16, k] by [k, 8] for a warp. Operands come in words of 32 bits: one
 * tf32 number, k is 8; or two bfloat16 ones, of which the first is in the low half, k is 16. With
 * lane = 4 g + t a lane has
 *   a   word t of row g, word t of row g + 8, word t + 4 of row g, word t + 4 of row g + 8
 *   b   word t of column g, word t + 4 of column g
 *   sums  columns 2 t and 2 t + 1 of row g, then of row g + 8
 *
 * Private to kernels/cuda/conv2d.
 */
#ifndef KELP_KERNELS_CUDA_CONV2D_TENSOR_CUH
#define KELP_KERNELS_CUDA_CONV2D_TENSOR_CUH

#include "kernels/cuda/cuda.cuh"

#ifndef KELP_CUDA_TENSOR

/* Before Ampere there is none of it, and the device refuses these precisions. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define KELP_CUDA_TENSOR(...) asm volatile("trap;")
#else
#define KELP_CUDA_TENSOR(...) asm volatile(__VA_ARGS__)
#endif

/* a b + c, rounded once. */
static __device__ __forceinline__ float kelp__cuda_fma(float a, float b, float c)
{
    float sum;
    asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(sum) : "f"(a), "f"(b), "f"(c));
    return sum;
}

/* The nearest tf32 number; of two the one farther from zero. */
static __device__ __forceinline__ uint32_t kelp__cuda_tf32(float value)
{
    uint32_t word = 0;
    KELP_CUDA_TENSOR("cvt.rna.tf32.f32 %0, %1;" : "=r"(word) : "f"(value));
    return word;
}

/* The nearest bfloat16 numbers; of two the even one. */
static __device__ __forceinline__ uint32_t kelp__cuda_bfloat16_pair(float first, float second)
{
    uint32_t word = 0;
    KELP_CUDA_TENSOR("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
    return word;
}

/* sums += a b, by all 32 lanes at once. */
static __device__ __forceinline__ void
kelp__cuda_multiply_tf32(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    KELP_CUDA_TENSOR("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                     "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
static __device__ __forceinline__ void
kelp__cuda_multiply_bfloat16(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    KELP_CUDA_TENSOR("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                     "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#endif
#endif

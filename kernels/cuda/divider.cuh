/*
 * Division by multiplication: where a launch counts its elements in 31 bits, a place is found so.
 * The division of n < 2^31 by a number >= 1 is the high half of n times a factor, plus n, shifted.
 *
 * Private to kernels/cuda.
 */
#ifndef KELP_KERNELS_CUDA_DIVIDER_CUH
#define KELP_KERNELS_CUDA_DIVIDER_CUH

#include "kernels/cuda/cuda.cuh"

struct kelp__cuda_divider {
    uint32_t by, factor, shift;
};

static inline struct kelp__cuda_divider kelp__cuda_divider_of(uint32_t by)
{
    struct kelp__cuda_divider divider = {by, 0, 0};
    while ((UINT64_C(1) << divider.shift) < by) {
        divider.shift++;
    }
    const uint64_t above = (UINT64_C(1) << divider.shift) - by;
    divider.factor = (uint32_t)((above << 32) / by + 1);
    return divider;
}

static __device__ __forceinline__ uint32_t kelp__cuda_divide(struct kelp__cuda_divider divider,
                                                             uint32_t n)
{
    const uint32_t high = (uint32_t)((uint64_t)n * divider.factor >> 32);
    return (high + n) >> divider.shift;
}

#endif

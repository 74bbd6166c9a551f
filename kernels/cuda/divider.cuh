/*
 * Division by multiplication, of whole numbers by one that is known before the launch: n / by for
 * n < 2^31 and by >= 1 is the high half of n times a factor, plus n, shifted. Source: Granlund,
 * Montgomery, "Division by Invariant Integers using Multiplication" (1994).
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

/* The same for numbers of any size; larger ones are divided as they are. */
struct kelp__cuda_long_divider {
    uint64_t by;
    struct kelp__cuda_divider small; /* by < 2^31 */
};

static inline struct kelp__cuda_long_divider kelp__cuda_long_divider_of(uint64_t by)
{
    return {by, kelp__cuda_divider_of(by >> 31 == 0 && by != 0 ? (uint32_t)by : 1)};
}

static __device__ __forceinline__ uint64_t
kelp__cuda_long_divide(const struct kelp__cuda_long_divider &divider, uint64_t n)
{
    return (n | divider.by) >> 31 == 0 ? kelp__cuda_divide(divider.small, (uint32_t)n)
                                       : n / divider.by;
}

#endif

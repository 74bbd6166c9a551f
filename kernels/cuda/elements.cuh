/*
 * Functions of one element, of single numbers or of four at a time, for kernels that apply them on
 * their way.
 *
 * Private to kernels/cuda.
 */
#ifndef KELP_KERNELS_CUDA_ELEMENTS_CUH
#define KELP_KERNELS_CUDA_ELEMENTS_CUH

#include "kernels/cuda/cuda.cuh"

/* f of one number of each argument, or of each of four. */
template <typename function, typename... numbers>
static __device__ __forceinline__ float kelp__cuda_each(const function f, const float first,
                                                        const numbers... rest)
{
    return f(first, rest...);
}
template <typename function, typename... numbers>
static __device__ __forceinline__ float4 kelp__cuda_each(const function f, const float4 first,
                                                         const numbers... rest)
{
    return make_float4(f(first.x, rest.x...), f(first.y, rest.y...), f(first.z, rest.z...),
                       f(first.w, rest.w...));
}

static __device__ __forceinline__ float kelp__cuda_gelu_cdf(float x)
{
    return 0.5f * (1.0f + kelp__math_erf(x * 0x1.6a09e6p-1f)); /* 1 / sqrt(2) */
}

template <enum kelp_unary_kind kind> struct kelp__cuda_unary_function {
    static constexpr unsigned int inputs = 1;
    __device__ __forceinline__ float operator()(float x, float, float) const
    {
        if constexpr (kind == KELP_UNARY_RELU) {
            return x <= 0.0f ? 0.0f : x;
        } else if constexpr (kind == KELP_UNARY_GELU) {
            return x * kelp__cuda_gelu_cdf(x);
        } else if constexpr (kind == KELP_UNARY_ELU) {
            const float negative = kelp__math_expm1(x > 0.0f ? 0.0f : x);
            return x > 0.0f ? x : negative;
        } else if constexpr (kind == KELP_UNARY_SIGMOID) {
            return kelp__math_sigmoid(x);
        } else {
            return kelp__math_tanh(x);
        }
    }
};

/* v is x for gelu, y for the others. */
template <enum kelp_unary_kind kind>
static __device__ __forceinline__ float kelp__cuda_slope_times(float v, float dy)
{
    if constexpr (kind == KELP_UNARY_RELU) {
        return v > 0.0f ? dy : 0.0f;
    } else if constexpr (kind == KELP_UNARY_GELU) {
        const float density = 0x1.988454p-2f * kelp__math_exp(-0.5f * v * v); /* 1 / sqrt(2 pi) */
        return dy * (kelp__cuda_gelu_cdf(v) + v * density);
    } else if constexpr (kind == KELP_UNARY_ELU) {
        const float negative = dy * (v + 1.0f);
        return v > 0.0f ? dy : negative;
    } else if constexpr (kind == KELP_UNARY_SIGMOID) {
        return dy * (v * (1.0f - v));
    } else {
        return dy * (1.0f - v * v);
    }
}

#endif

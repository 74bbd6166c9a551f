/*
 * kernels/cuda/conv2d/tensor.cuh for g++: what its PTX does. Operands lose what a tensor core does
 * not look at; products are exact, and sums are taken in float32, k ascending, from what was there
 * on.
 */
#ifndef KELP_TESTS_EMULATED_TENSOR_H
#define KELP_TESTS_EMULATED_TENSOR_H

#define KELP_CUDA_TENSOR

/* By way of double, which rounds twice, and differs from fmaf() about once in 2^29 times. That one
 * is a call, ten times as long. */
inline float kelp__cuda_fma(float a, float b, float c)
{
    return (float)((double)a * (double)b + (double)c);
}

inline bool kelp__cuda_is_finite(uint32_t word)
{
    return (word & 0x7f800000u) != 0x7f800000u;
}

inline uint32_t kelp__cuda_tf32(float value)
{
    const uint32_t word = __float_as_uint(value);
    if (value != value) {
        return 0x7fffffffu & ~0x1fffu;
    }
    return kelp__cuda_is_finite(word) ? (word + 0x1000u) & ~0x1fffu : word;
}

inline uint32_t kelp__cuda_bfloat16(float value)
{
    const uint32_t word = __float_as_uint(value);
    if (value != value) {
        return 0x7fffu;
    }
    return (kelp__cuda_is_finite(word) ? word + 0x7fffu + (word >> 16 & 1u) : word) >> 16;
}

inline uint32_t kelp__cuda_bfloat16_pair(float first, float second)
{
    return kelp__cuda_bfloat16(second) << 16 | kelp__cuda_bfloat16(first);
}

namespace kelp_emulated {

struct tensor_lane : together {
    float *sums;
    const uint32_t *a, *b;
};

/* The numbers in a word, as many as it has. */
inline float number_of(uint32_t word, unsigned int index, unsigned int numbers)
{
    const uint32_t one = numbers == 1 ? word & ~0x1fffu : index == 0 ? word << 16 : word;
    return __uint_as_float(numbers == 1 ? one : one & 0xffff0000u);
}

template <unsigned int numbers> void multiply_warp(struct together *const lanes[32])
{
    float a[16][8 * numbers], b[8][8 * numbers]; /* b by columns */
    for (unsigned int lane = 0; lane < 32; lane++) {
        const struct tensor_lane *one = static_cast<const struct tensor_lane *>(lanes[lane]);
        for (unsigned int i = 0; i < 6 * numbers; i++) {
            const unsigned int word = i / numbers, index = i % numbers;
            const unsigned int g = lane / 4, t = lane % 4 + (word < 4 ? word / 2 : word - 4) * 4;
            float *row = word < 4 ? a[g + 8 * (word % 2)] : b[g];
            row[t * numbers + index] =
                number_of(word < 4 ? one->a[word] : one->b[word - 4], index, numbers);
        }
    }
    for (unsigned int i = 0; i < 32 * 4; i++) {
        const unsigned int lane = i / 4, place = i % 4;
        const float *row = a[lane / 4 + 8 * (place / 2)];
        const float *column = b[lane % 4 * 2 + place % 2];
        float *sum = &static_cast<struct tensor_lane *>(lanes[lane])->sums[place];
        for (unsigned int k = 0; k < 8 * numbers; k++) {
            *sum = *sum + row[k] * column[k];
        }
    }
}

template <unsigned int numbers> void multiply(float *sums, const uint32_t *a, const uint32_t *b)
{
    struct tensor_lane lane;
    lane.run = multiply_warp<numbers>;
    lane.sums = sums;
    lane.a = a;
    lane.b = b;
    meet_together(&lane);
}

} // namespace kelp_emulated

inline void kelp__cuda_multiply_tf32(float (&sums)[4], const uint32_t (&a)[4],
                                     const uint32_t (&b)[2])
{
    kelp_emulated::multiply<1>(sums, a, b);
}
inline void kelp__cuda_multiply_bfloat16(float (&sums)[4], const uint32_t (&a)[4],
                                         const uint32_t (&b)[2])
{
    kelp_emulated::multiply<2>(sums, a, b);
}

#endif

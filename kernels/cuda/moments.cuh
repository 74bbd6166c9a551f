/*
 * Mean and variance from one pass over memory.
 *
 * What is added up is differences from a number, and their squares: in float32 over a short run of
 * elements, in double over a thread's runs and over threads. In double the number is the origin, an
 * element of the sum that is the same for all threads, whose sums so add up. It is one of n
 * elements, so the sum of squares is at most n + 1 times what is left of it in the variance, which
 * double has digits for. A run has a number of its own, which lies nearer; a caller's comment says
 * which.
 *
 * Private to kernels/cuda.
 */
#ifndef KELP_KERNELS_CUDA_MOMENTS_CUH
#define KELP_KERNELS_CUDA_MOMENTS_CUH

#include "kernels/cuda/cuda.cuh"

/* Sums of differences from the origin, and of their squares. */
struct kelp__cuda_moments {
    double first, second;
};

/* A run's sums of `count` elements join: of the differences from its own number, and of their
 * squares. shift: what that number is from the origin. */
static __device__ __forceinline__ void kelp__cuda_add_run(float some, float squares, double count,
                                                          double shift,
                                                          struct kelp__cuda_moments *moments)
{
    const double sum = (double)some, moved = shift * count;
    moments->first = moments->first + (sum + moved);
    moments->second = moments->second + ((double)squares + shift * (2.0 * sum + moved));
}

/* The sum of squares of differences from the mean of `count` elements. */
static __device__ __forceinline__ double kelp__cuda_squares_of(struct kelp__cuda_moments moments,
                                                               double count)
{
    const double mean = moments.first * moments.first / count;
    return moments.second < mean ? 0.0 : moments.second - mean;
}

#endif

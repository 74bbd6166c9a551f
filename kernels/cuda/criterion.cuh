/*
 * What the losses of elements (criterion.cu) and of classes (criterion_classes.cu) share: the group
 * of 1 to 32 lanes of a warp that takes a sample, and how a block's sums are stored.
 *
 * Private to kernels/cuda.
 */
#ifndef KELP_KERNELS_CUDA_CRITERION_CUH
#define KELP_KERNELS_CUDA_CRITERION_CUH

#include "kernels/cuda/groups.cuh"

/* A group's lanes have four elements each before it grows. */
#define KELP_CUDA_SAMPLE_EACH 4u

/* A power of two, so that a group lies within one warp. */
static inline unsigned int kelp__cuda_sample_group(uint64_t elements)
{
    unsigned int group = 1;
    while (group < KELP_CUDA_WARP && (uint64_t)group * KELP_CUDA_SAMPLE_EACH < elements) {
        group *= 2;
    }
    return group;
}

/* The sums of a block's samples, from shared memory to where they belong, in one piece. */
static __device__ __forceinline__ void kelp__cuda_store_sums(const struct kelp_criterion &criterion,
                                                             uint64_t first, unsigned int samples,
                                                             const double *sums)
{
    const uint64_t left = criterion.samples - first;
    const unsigned int count =
        (unsigned int)(left < samples ? left : samples) * (unsigned int)KELP_LOSS_SUMS;
    for (unsigned int i = threadIdx.x; i < count; i += KELP_CUDA_THREADS) {
        criterion.sums[first * KELP_LOSS_SUMS + i] = sums[i];
    }
}

/* kelp__cuda_criterion() for the losses of classes, cross entropy and nll. A sample whose target
 * is no class is reported to kelp__cuda_fault(); its gradient and its sums are zeros. */
void kelp__cuda_class_losses(struct kelp_stream *stream, const struct kelp_criterion *criterion);

#endif

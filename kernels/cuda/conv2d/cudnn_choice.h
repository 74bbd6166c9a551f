/*
 * What is decided of cuDNN's convolutions, apart from the library: which of the algorithms that its
 * heuristic lists is taken, and what a shape is in its words.
 *
 * The first one is taken that is deterministic, is one of those known to round as a sum does (no
 * Fourier transform, Winograd's with the smallest tiles alone), reads its operands no less exactly
 * than the precision allows, and needs no more workspace than there may be. Nothing is timed.
 *
 * tf32 and bfloat16 are one to cuDNN: it reads tensors of float32 as TensorFloat-32 at the least,
 * and copies in bfloat16 would have to be made of all of them.
 *
 * Private to kernels/cuda/conv2d.
 */
#ifndef KELP_KERNELS_CUDA_CONV2D_CUDNN_CHOICE_H
#define KELP_KERNELS_CUDA_CONV2D_CUDNN_CHOICE_H

#include "kernels/cuda/conv2d/cudnn_functions.h"
#include "kernels/cudnn_sizes.h"

#define KELP_CUDNN_CANDIDATES_MAX 16

enum kelp__cudnn_direction { KELP_CUDNN_FORWARD, KELP_CUDNN_DATA, KELP_CUDNN_FILTER };
#define KELP_CUDNN_DIRECTIONS 3

static inline bool kelp__cudnn_is_known(enum kelp__cudnn_direction direction, int algorithm)
{
    switch (direction) {
    case KELP_CUDNN_FORWARD:
        return algorithm == KELP_CUDNN_FORWARD_IMPLICIT_GEMM ||
               algorithm == KELP_CUDNN_FORWARD_IMPLICIT_PRECOMP_GEMM ||
               algorithm == KELP_CUDNN_FORWARD_GEMM || algorithm == KELP_CUDNN_FORWARD_DIRECT ||
               algorithm == KELP_CUDNN_FORWARD_WINOGRAD;
    case KELP_CUDNN_DATA:
        return algorithm == KELP_CUDNN_DATA_1 || algorithm == KELP_CUDNN_DATA_WINOGRAD;
    case KELP_CUDNN_FILTER:
        return algorithm == KELP_CUDNN_FILTER_1;
    }
    return false;
}

/* What is asked for. */
static inline int kelp__cudnn_math_of(enum kelp_product_precision precision)
{
    return precision == KELP_PRODUCT_FLOAT32 ? KELP_CUDNN_MATH_FMA : KELP_CUDNN_MATH_DEFAULT;
}

/* What an algorithm that the heuristic listed is run with. float32: FMA, whatever it says. */
static inline int kelp__cudnn_math_for(enum kelp_product_precision precision,
                                       const struct kelp__cudnn_candidate *candidate)
{
    return precision == KELP_PRODUCT_FLOAT32 ? KELP_CUDNN_MATH_FMA : candidate->math;
}

/* But for the workspace, which depends on what it is run with. */
static inline bool kelp__cudnn_may_take(enum kelp__cudnn_direction direction,
                                        enum kelp_product_precision precision,
                                        const struct kelp__cudnn_candidate *candidate)
{
    const bool exact =
        candidate->math == KELP_CUDNN_MATH_DEFAULT || candidate->math == KELP_CUDNN_MATH_FMA ||
        (candidate->math == KELP_CUDNN_MATH_TENSOR && precision != KELP_PRODUCT_FLOAT32);
    return candidate->status == KELP_CUDNN_SUCCESS &&
           candidate->determinism == KELP_CUDNN_DETERMINISTIC && exact &&
           kelp__cudnn_is_known(direction, candidate->algorithm);
}

/* The place in the list, in its order; -1: none. */
static inline int kelp__cudnn_choose(enum kelp__cudnn_direction direction,
                                     enum kelp_product_precision precision,
                                     const struct kelp__cudnn_candidate *candidates, int count)
{
    for (int i = 0; i < count; i++) {
        if (kelp__cudnn_may_take(direction, precision, &candidates[i]) &&
            candidates[i].workspace <= KELP_CUDNN_WORKSPACE_MAX) {
            return i;
        }
    }
    return -1;
}

/* Sizes and distances in the order samples, channels, height, width, whatever the layout. */
struct kelp__cudnn_tensor {
    int sizes[4], strides[4];
};

/* Of images whose elements are counted in 31 bits. */
static inline struct kelp__cudnn_tensor kelp__cudnn_tensor_of(uint32_t samples, uint32_t channels,
                                                              const uint32_t sides[2],
                                                              enum kelp_layout layout)
{
    const int c = (int)channels, h = (int)sides[0], w = (int)sides[1];
    const struct kelp__cudnn_tensor first = {{(int)samples, c, h, w}, {c * h * w, h * w, w, 1}};
    const struct kelp__cudnn_tensor last = {{(int)samples, c, h, w}, {c * h * w, 1, c * w, c}};
    return layout == KELP_CHANNELS_LAST ? last : first;
}

#endif

/*
 * A double of cuDNN for the emulated device (emulated_device.h), in the library's place: the real
 * one starts on no machine without a GPU. It lists what a test tells it to, computes convolutions
 * as plain sums, and records what it was called with. It refuses what cuDNN does not promise:
 * operands that are not at 16 bytes, another workspace than it asked for, a filter in another
 * layout than the images, a handle or descriptor that is not one. Of what cuDNN lists, and how fast
 * it is, it shows nothing.
 *
 * One for the process; one caller at a time. With EMULATED_CUDNN in the environment it is there.
 */
#ifndef KELP_TESTS_LIB_CUDA_EMULATED_CUDNN_H
#define KELP_TESTS_LIB_CUDA_EMULATED_CUDNN_H

#include "kernels/cuda/conv2d/cudnn_choice.h"

struct emulated_cudnn {
    bool found;  /* false, as at the beginning: the machine has none */
    bool starts; /* a handle can be made */
    bool runs;   /* otherwise a convolution is refused when it runs */
    /* What the heuristic lists, for any shape; `workspace` is what the algorithm needs. */
    struct kelp__cudnn_candidate lists[KELP_CUDNN_DIRECTIONS][4];
    int counts[KELP_CUDNN_DIRECTIONS]; /* -1: it has none for it; -2: it fails */
    /* Of each direction, since emulated_cudnn_reset(): how often it ran, and with what at last. */
    uint32_t run_count[KELP_CUDNN_DIRECTIONS], list_count[KELP_CUDNN_DIRECTIONS];
    int algorithm[KELP_CUDNN_DIRECTIONS], math[KELP_CUDNN_DIRECTIONS];
    uint32_t handles, descriptors; /* that are there */
};
struct emulated_cudnn *emulated_cudnn(void);
/* Found and in order, with lists whose first algorithms may not be taken; nothing recorded. */
void emulated_cudnn_reset(void);

#endif

/*
 * A double of cuDNN for the emulated device (emulated_device.h), in place of the library, which
 * does not start without a GPU. It lists the algorithms that a test gives it, computes convolutions
 * as plain sums, and records its calls. It refuses what cuDNN does not promise: operands not
 * aligned to 16 bytes, a workspace of another size than it asked for, a filter in another layout
 * than the images, invalid handles and descriptors. It does not show which algorithms cuDNN lists,
 * or how fast they are. One for the process; one caller at a time. It exists if EMULATED_CUDNN is
 * in the environment.
 */
#ifndef KELP_TESTS_LIB_CUDA_EMULATED_CUDNN_H
#define KELP_TESTS_LIB_CUDA_EMULATED_CUDNN_H

#include "kernels/cuda/conv2d/cudnn_choice.h"

struct emulated_cudnn {
    bool found;  /* false at first: not installed */
    bool starts; /* handles can be created */
    bool runs;   /* false: convolutions fail when they run */
    /* What the heuristic lists for every shape; `workspace` is what the algorithm needs. */
    struct kelp__cudnn_candidate lists[KELP_CUDNN_DIRECTIONS][4];
    int counts[KELP_CUDNN_DIRECTIONS]; /* -1: no algorithm; -2: the call fails */
    /* For each direction since emulated_cudnn_reset(): how often it ran, and the last arguments. */
    uint32_t run_count[KELP_CUDNN_DIRECTIONS], list_count[KELP_CUDNN_DIRECTIONS];
    int algorithm[KELP_CUDNN_DIRECTIONS], math[KELP_CUDNN_DIRECTIONS];
    uint32_t handles, descriptors; /* existing ones */
};
struct emulated_cudnn *emulated_cudnn(void);
/* Installed and working, with lists whose first algorithms must not be used; no calls recorded. */
void emulated_cudnn_reset(void);

#endif

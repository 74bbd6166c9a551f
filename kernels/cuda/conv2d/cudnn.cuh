/*
 * Convolutions by cuDNN, where it is there and the job lets it. cudnn_library.cu finds it, cudnn.cu
 * asks and runs it, cudnn_choice.h has what is decided. Private to kernels/cuda/conv2d.
 */
#ifndef KELP_KERNELS_CUDA_CONV2D_CUDNN_CUH
#define KELP_KERNELS_CUDA_CONV2D_CUDNN_CUH

extern "C" {
#include "kernels/cuda/conv2d/cudnn_choice.h"
}
#include "kernels/cuda/cuda.cuh"

/* cuDNN's functions, found once for the process. Errors: KELP_ERR_NOT_FOUND, with the places looked
 * at; KELP_ERR_UNSUPPORTED (it is another one). */
kelp_status kelp__cuda_cudnn_load(const struct kelp__cudnn_functions **ret,
                                  struct kelp_error *reterr);

/* A convolution's plans: one for each number of samples that it is run with. */
struct kelp__cuda_cudnn_conv;
void kelp__cuda_cudnn_conv_destroy(struct kelp__cuda_cudnn_conv *conv); /* NULL: nothing */

#endif

/*
 * Convolutions by cuDNN, where it is there and the job lets it. cudnn_library.cu finds it, cudnn.cu
 * asks and runs it, cudnn_choice.h has what is decided. Private to kernels/cuda.
 */
#ifndef KELP_KERNELS_CUDA_CUDNN_CUH
#define KELP_KERNELS_CUDA_CUDNN_CUH

extern "C" {
#include "kernels/cuda/cudnn_choice.h"
#include "kernels/device.h"
}

/* cuDNN's functions, found once for the process. Errors: KELP_ERR_NOT_FOUND, with the places looked
 * at; KELP_ERR_UNSUPPORTED (it is another one). */
kelp_status kelp__cuda_cudnn_load(const struct kelp__cudnn_functions **ret,
                                  struct kelp_error *reterr);

/* What a device asks cuDNN with. Errors: those of kelp__cuda_cudnn_load(), KELP_ERR_DEVICE (it does
 * not start), KELP_ERR_NO_MEMORY. The calling thread's GPU is the device's, here and below. */
struct kelp__cuda_cudnn;
kelp_status kelp__cuda_cudnn_create(struct kelp__cuda_cudnn **ret, struct kelp_error *reterr);
void kelp__cuda_cudnn_destroy(struct kelp__cuda_cudnn *cudnn); /* NULL: nothing */
/* "cudnn-9.19.0 0123abcd": its version, and a hash of what it chooses for a list of shapes. */
void kelp__cuda_cudnn_describe(struct kelp__cuda_cudnn *cudnn,
                               enum kelp_product_precision precision, char *text, size_t size);

/* A convolution's plans: one for each number of samples that it is run with. */
struct kelp__cuda_cudnn_conv;
void kelp__cuda_cudnn_conv_destroy(struct kelp__cuda_cudnn_conv *conv); /* NULL: nothing */

#endif

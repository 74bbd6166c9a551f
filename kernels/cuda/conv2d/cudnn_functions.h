/*
 * What Kelp uses of cuDNN 9, in types of its own: a build needs neither cuDNN nor its headers.
 * Names, arguments and numbers are those of NVIDIA's "cuDNN Backend API", the libraries cudnn_ops
 * and cudnn_cnn; tests/gpu/cudnn_library.cu compares them with the headers where there are any.
 *
 * An enum of cuDNN is an int, and a handle or descriptor a pointer.
 *
 * Private to kernels/cuda/conv2d.
 */
#ifndef KELP_KERNELS_CUDA_CONV2D_CUDNN_FUNCTIONS_H
#define KELP_KERNELS_CUDA_CONV2D_CUDNN_FUNCTIONS_H

#include <stddef.h>

#define KELP_CUDNN_MAJOR 9 /* of its version, and the last number of its library's name */

enum {
    KELP_CUDNN_SUCCESS = 0,           /* cudnnStatus_t */
    KELP_CUDNN_NOT_SUPPORTED = 3000,  /* the first of such, below 4000 */
    KELP_CUDNN_FLOAT = 0,             /* cudnnDataType_t */
    KELP_CUDNN_NCHW = 0,              /* cudnnTensorFormat_t */
    KELP_CUDNN_NHWC = 1,              /* of filters: [out][kernel][in] */
    KELP_CUDNN_CROSS_CORRELATION = 1, /* cudnnConvolutionMode_t */
    KELP_CUDNN_DETERMINISTIC = 1,     /* cudnnDeterminism_t */
};
/* cudnnMathType_t. DEFAULT may read float32 operands as TensorFloat-32, from Ampere on; FMA never
 * does. TENSOR_CONVERTED may read them as float16. */
enum kelp__cudnn_math {
    KELP_CUDNN_MATH_DEFAULT = 0,
    KELP_CUDNN_MATH_TENSOR = 1,
    KELP_CUDNN_MATH_TENSOR_CONVERTED = 2,
    KELP_CUDNN_MATH_FMA = 3,
};
/* cudnnConvolutionFwdAlgo_t, cudnnConvolutionBwdDataAlgo_t, cudnnConvolutionBwdFilterAlgo_t: those
 * that are known to add up in one order and to round as a sum does. */
enum {
    KELP_CUDNN_FORWARD_IMPLICIT_GEMM = 0,
    KELP_CUDNN_FORWARD_IMPLICIT_PRECOMP_GEMM = 1,
    KELP_CUDNN_FORWARD_GEMM = 2,
    KELP_CUDNN_FORWARD_DIRECT = 3,
    KELP_CUDNN_FORWARD_WINOGRAD = 6,
    KELP_CUDNN_DATA_1 = 1,
    KELP_CUDNN_DATA_WINOGRAD = 4,
    KELP_CUDNN_FILTER_1 = 1,
};

/* cudnnConvolutionFwdAlgoPerf_t, and its two likes: what the heuristic says of an algorithm. */
struct kelp__cudnn_candidate {
    int algorithm;
    int status;
    float time; /* an estimate */
    size_t workspace;
    int determinism;
    int math;
    int reserved[3];
};

/* The first, second and third tensor of a direction: x, weight, y; weight, dy, dx; x, dy, dweight.
 */
#define KELP_CUDNN_LIST                                                                            \
    (void *handle, void *first, void *second, void *convolution, void *third, int wanted,          \
     int *found, struct kelp__cudnn_candidate *candidates)
#define KELP_CUDNN_SIZE                                                                            \
    (void *handle, void *first, void *second, void *convolution, void *third, int algorithm,       \
     size_t *bytes)
#define KELP_CUDNN_RUN                                                                             \
    (void *handle, const void *alpha, void *first, const void *first_data, void *second,           \
     const void *second_data, void *convolution, int algorithm, void *workspace, size_t bytes,     \
     const void *beta, void *third, void *third_data)

/* X(result, name, arguments): the function cudnn<name>. */
#define KELP_CUDNN_FUNCTIONS(X)                                                                    \
    X(size_t, GetVersion, (void))                                                                  \
    X(int, Create, (void **handle))                                                                \
    X(int, Destroy, (void *handle))                                                                \
    X(int, SetStream, (void *handle, void *stream))                                                \
    X(int, CreateTensorDescriptor, (void **tensor))                                                \
    X(int, DestroyTensorDescriptor, (void *tensor))                                                \
    X(int, SetTensor4dDescriptorEx,                                                                \
      (void *tensor, int type, int n, int c, int h, int w, int n_stride, int c_stride,             \
       int h_stride, int w_stride))                                                                \
    X(int, CreateFilterDescriptor, (void **filter))                                                \
    X(int, DestroyFilterDescriptor, (void *filter))                                                \
    X(int, SetFilter4dDescriptor,                                                                  \
      (void *filter, int type, int format, int out, int in, int h, int w))                         \
    X(int, CreateConvolutionDescriptor, (void **convolution))                                      \
    X(int, DestroyConvolutionDescriptor, (void *convolution))                                      \
    X(int, SetConvolution2dDescriptor,                                                             \
      (void *convolution, int pad_h, int pad_w, int stride_h, int stride_w, int dilation_h,        \
       int dilation_w, int mode, int type))                                                        \
    X(int, SetConvolutionGroupCount, (void *convolution, int groups))                              \
    X(int, SetConvolutionMathType, (void *convolution, int math))                                  \
    X(int, GetConvolutionForwardAlgorithm_v7, KELP_CUDNN_LIST)                                     \
    X(int, GetConvolutionBackwardDataAlgorithm_v7, KELP_CUDNN_LIST)                                \
    X(int, GetConvolutionBackwardFilterAlgorithm_v7, KELP_CUDNN_LIST)                              \
    X(int, GetConvolutionForwardWorkspaceSize, KELP_CUDNN_SIZE)                                    \
    X(int, GetConvolutionBackwardDataWorkspaceSize, KELP_CUDNN_SIZE)                               \
    X(int, GetConvolutionBackwardFilterWorkspaceSize, KELP_CUDNN_SIZE)                             \
    X(int, ConvolutionForward, KELP_CUDNN_RUN)                                                     \
    X(int, ConvolutionBackwardData, KELP_CUDNN_RUN)                                                \
    X(int, ConvolutionBackwardFilter, KELP_CUDNN_RUN)

struct kelp__cudnn_functions {
#define KELP_CUDNN_ENTRY(result, name, arguments) result(*name) arguments;
    KELP_CUDNN_FUNCTIONS(KELP_CUDNN_ENTRY)
#undef KELP_CUDNN_ENTRY
};

#endif

/*
 * What is said of cuDNN in kernels/cuda/conv2d/cudnn_functions.h, against cuDNN itself where it is
 * there: the numbers and the struct against its headers, and the functions against its library, as
 * far as it works without a GPU. There it makes and checks descriptors, and no handle: nothing is
 * asked of the heuristic, and nothing computed.
 *
 * Exit status: 0; 1: a line says what is wrong; 77: this machine has no cuDNN.
 */
#include <cstddef>
#include <cstdio>
#include <dlfcn.h>

#include "kernels/cuda/conv2d/cudnn.cuh"

#if __has_include(<cudnn.h>)
#include <cudnn.h>

#define SAME(ours, theirs) static_assert((int)(ours) == (int)(theirs), #theirs)
SAME(KELP_CUDNN_MAJOR, CUDNN_MAJOR);
SAME(KELP_CUDNN_SUCCESS, CUDNN_STATUS_SUCCESS);
SAME(KELP_CUDNN_NOT_SUPPORTED, CUDNN_STATUS_NOT_SUPPORTED);
SAME(KELP_CUDNN_FLOAT, CUDNN_DATA_FLOAT);
SAME(KELP_CUDNN_NCHW, CUDNN_TENSOR_NCHW);
SAME(KELP_CUDNN_NHWC, CUDNN_TENSOR_NHWC);
SAME(KELP_CUDNN_CROSS_CORRELATION, CUDNN_CROSS_CORRELATION);
SAME(KELP_CUDNN_DETERMINISTIC, CUDNN_DETERMINISTIC);
SAME(KELP_CUDNN_MATH_DEFAULT, CUDNN_DEFAULT_MATH);
SAME(KELP_CUDNN_MATH_TENSOR, CUDNN_TENSOR_OP_MATH);
SAME(KELP_CUDNN_MATH_TENSOR_CONVERTED, CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION);
SAME(KELP_CUDNN_MATH_FMA, CUDNN_FMA_MATH);
SAME(KELP_CUDNN_FORWARD_IMPLICIT_GEMM, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM);
SAME(KELP_CUDNN_FORWARD_IMPLICIT_PRECOMP_GEMM, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM);
SAME(KELP_CUDNN_FORWARD_GEMM, CUDNN_CONVOLUTION_FWD_ALGO_GEMM);
SAME(KELP_CUDNN_FORWARD_DIRECT, CUDNN_CONVOLUTION_FWD_ALGO_DIRECT);
SAME(KELP_CUDNN_FORWARD_WINOGRAD, CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD);
SAME(KELP_CUDNN_DATA_1, CUDNN_CONVOLUTION_BWD_DATA_ALGO_1);
SAME(KELP_CUDNN_DATA_WINOGRAD, CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD);
SAME(KELP_CUDNN_FILTER_1, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1);

#define SAME_CANDIDATE(type)                                                                       \
    static_assert(sizeof(struct kelp__cudnn_candidate) == sizeof(type), #type);                    \
    SAME_FIELD(type, algorithm, algo);                                                             \
    SAME_FIELD(type, status, status);                                                              \
    SAME_FIELD(type, time, time);                                                                  \
    SAME_FIELD(type, workspace, memory);                                                           \
    SAME_FIELD(type, determinism, determinism);                                                    \
    SAME_FIELD(type, math, mathType)
#define SAME_FIELD(type, ours, theirs)                                                             \
    static_assert(offsetof(struct kelp__cudnn_candidate, ours) == offsetof(type, theirs), #theirs)
SAME_CANDIDATE(cudnnConvolutionFwdAlgoPerf_t);
SAME_CANDIDATE(cudnnConvolutionBwdDataAlgoPerf_t);
SAME_CANDIDATE(cudnnConvolutionBwdFilterAlgoPerf_t);

/* As many arguments, of types that are passed alike: an int for an enum, a pointer for a pointer.
 */
template <typename type>
using passed = std::conditional_t<std::is_pointer_v<type>, void *,
                                  std::conditional_t<std::is_enum_v<type>, int, type>>;
template <typename function> struct form;
template <typename result, typename... arguments> struct form<result (*)(arguments...)> {
    using type = passed<result> (*)(passed<arguments>...);
};
#define SAME_FUNCTION(result, name, arguments)                                                     \
    static_assert(std::is_same_v<typename form<decltype(kelp__cudnn_functions::name)>::type,       \
                                 typename form<decltype(&cudnn##name)>::type>,                     \
                  #name);
KELP_CUDNN_FUNCTIONS(SAME_FUNCTION)
#endif

#define EXIT_SKIPPED 77

/* What the library makes of the descriptors for one shape; false: something else than we do. */
typedef int output_function(void *convolution, void *tensor, void *filter, int *n, int *c, int *h,
                            int *w);

static bool check_shape(const struct kelp__cudnn_functions *cudnn, output_function *output,
                        const struct kelp_conv2d_shape *shape, uint32_t samples)
{
    const struct kelp_window *window = &shape->window;
    const struct kelp__cudnn_tensor x =
        kelp__cudnn_tensor_of(samples, window->channels, window->input, window->layout);
    void *tensor = NULL, *filter = NULL, *convolution = NULL;
    int sizes[4] = {0, 0, 0, 0};
    const bool made =
        cudnn->CreateTensorDescriptor(&tensor) == 0 &&
        cudnn->CreateFilterDescriptor(&filter) == 0 &&
        cudnn->CreateConvolutionDescriptor(&convolution) == 0 &&
        cudnn->SetTensor4dDescriptorEx(tensor, KELP_CUDNN_FLOAT, x.sizes[0], x.sizes[1], x.sizes[2],
                                       x.sizes[3], x.strides[0], x.strides[1], x.strides[2],
                                       x.strides[3]) == 0 &&
        cudnn->SetFilter4dDescriptor(
            filter, KELP_CUDNN_FLOAT,
            window->layout == KELP_CHANNELS_LAST ? KELP_CUDNN_NHWC : KELP_CUDNN_NCHW,
            (int)shape->channels_out, (int)(window->channels / shape->groups),
            (int)window->kernel[0], (int)window->kernel[1]) == 0 &&
        cudnn->SetConvolution2dDescriptor(
            convolution, (int)window->padding[0], (int)window->padding[1], (int)window->stride[0],
            (int)window->stride[1], 1, 1, KELP_CUDNN_CROSS_CORRELATION, KELP_CUDNN_FLOAT) == 0 &&
        cudnn->SetConvolutionGroupCount(convolution, (int)shape->groups) == 0 &&
        cudnn->SetConvolutionMathType(convolution, KELP_CUDNN_MATH_FMA) == 0 &&
        output(convolution, tensor, filter, &sizes[0], &sizes[1], &sizes[2], &sizes[3]) == 0;
    const bool same = made && sizes[0] == (int)samples && sizes[1] == (int)shape->channels_out &&
                      sizes[2] == (int)window->output[0] && sizes[3] == (int)window->output[1];
    (void)cudnn->DestroyTensorDescriptor(tensor);
    (void)cudnn->DestroyFilterDescriptor(filter);
    (void)cudnn->DestroyConvolutionDescriptor(convolution);
    if (!same) {
        printf("FAILED: %u samples of %ux%ux%u: made %d, to %dx%dx%dx%d\n", samples,
               window->channels, window->input[0], window->input[1], made, sizes[0], sizes[1],
               sizes[2], sizes[3]);
    }
    return same;
}

int main()
{
    static const uint32_t shapes[][7] = {
        /* channels, input, kernel, stride, padding, channels out, groups */
        {3, 224, 7, 2, 3, 64, 1}, {64, 56, 3, 1, 1, 64, 1}, {64, 56, 1, 2, 0, 128, 1},
        {6, 17, 5, 3, 2, 9, 3},   {1, 1, 1, 1, 0, 5, 1},    {8, 9, 2, 1, 0, 8, 8},
    };
    const struct kelp__cudnn_functions *cudnn = NULL;
    struct kelp_error error = {KELP_OK, ""};
    bool fine = true;
    const kelp_status status = kelp__cuda_cudnn_load(&cudnn, &error);
    if (status == KELP_ERR_NOT_FOUND) {
        printf("skipped: %s\n", error.text);
        return EXIT_SKIPPED;
    }
    if (status != KELP_OK || cudnn->GetVersion() / 10000 != KELP_CUDNN_MAJOR) {
        printf("FAILED: %s\n", status != KELP_OK ? error.text : "its version is another");
        return 1;
    }
    Dl_info info;
    if (dladdr(reinterpret_cast<void *>(cudnn->GetVersion), &info) == 0) {
        printf("FAILED: cuDNN is in no library\n");
        return 1;
    }
    void *library = dlopen(info.dli_fname, RTLD_NOW | RTLD_LOCAL);
    output_function *output = reinterpret_cast<output_function *>(
        dlsym(library, "cudnnGetConvolution2dForwardOutputDim"));
    for (const uint32_t *one : shapes) {
        struct kelp_conv2d_shape shape = {};
        shape.window.channels = one[0];
        for (int side = 0; side < 2; side++) {
            shape.window.input[side] = one[1];
            shape.window.kernel[side] = one[2];
            shape.window.stride[side] = one[3];
            shape.window.padding[side] = one[4];
            shape.window.output[side] = (one[1] + 2 * one[4] - one[2]) / one[3] + 1;
        }
        shape.channels_out = one[5];
        shape.groups = one[6];
        fine = check_shape(cudnn, output, &shape, 8) && fine;
        shape.window.layout = KELP_CHANNELS_LAST;
        fine = check_shape(cudnn, output, &shape, 8) && fine;
    }
    printf("cuDNN %zu\n", cudnn->GetVersion());
    return fine ? 0 : 1;
}

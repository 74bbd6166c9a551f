/* The double of cuDNN: kernels/cuda/conv2d/cudnn_library.cu's place, and all of the library behind
 * it. */
#include <cstdlib>
#include <cstring>

#include "kernels/cuda/conv2d/cudnn.cuh"
#include "kernels/cuda/cuda.cuh"

extern "C" {
#include "tests/lib/cuda/emulated_cudnn.h"
}

#define VERSION       99999 /* 9.99.99 */
#define REFUSED       2000  /* CUDNN_STATUS_BAD_PARAM */
#define NOT_SUPPORTED 3004  /* CUDNN_STATUS_NOT_SUPPORTED_LAYOUT */
#define NOT_STARTED   1001
#define ALIGNMENT     16u

static struct emulated_cudnn state;

extern "C" struct emulated_cudnn *emulated_cudnn(void)
{
    return &state;
}

/* ---- what is listed -------------------------------------------------------------------------- */

static struct kelp__cudnn_candidate listed(int algorithm, bool deterministic, size_t workspace)
{
    struct kelp__cudnn_candidate candidate = {};
    candidate.algorithm = algorithm;
    candidate.workspace = workspace;
    candidate.determinism = deterministic ? KELP_CUDNN_DETERMINISTIC : 0;
    candidate.math = KELP_CUDNN_MATH_DEFAULT;
    return candidate;
}

extern "C" void emulated_cudnn_reset(void)
{
    const size_t too_much = KELP_CUDNN_WORKSPACE_MAX + 1;
    state = {};
    state.found = state.starts = state.runs = true;
    state.lists[KELP_CUDNN_FORWARD][0] = listed(5, true, 0); /* by Fourier transforms */
    state.lists[KELP_CUDNN_FORWARD][1] = listed(KELP_CUDNN_FORWARD_GEMM, true, too_much);
    state.lists[KELP_CUDNN_FORWARD][2] =
        listed(KELP_CUDNN_FORWARD_IMPLICIT_PRECOMP_GEMM, true, 1000);
    state.lists[KELP_CUDNN_FORWARD][3] = listed(KELP_CUDNN_FORWARD_IMPLICIT_GEMM, true, 0);
    state.counts[KELP_CUDNN_FORWARD] = 4;
    state.lists[KELP_CUDNN_DATA][0] = listed(0, false, 0);
    state.lists[KELP_CUDNN_DATA][1] = listed(KELP_CUDNN_DATA_1, true, 0);
    state.counts[KELP_CUDNN_DATA] = 2;
    state.lists[KELP_CUDNN_FILTER][0] = listed(3, false, 0);
    state.lists[KELP_CUDNN_FILTER][1] = listed(0, false, 0);
    state.lists[KELP_CUDNN_FILTER][2] = listed(KELP_CUDNN_FILTER_1, true, 512);
    state.counts[KELP_CUDNN_FILTER] = 3;
}

/* ---- handles and descriptors ----------------------------------------------------------------- */

enum what { HANDLE = 0x6b68, TENSOR, FILTER, CONVOLUTION };
struct thing {
    enum what what;
    cudaStream_t stream;
    int sizes[4], strides[4]; /* of tensors, and of filters: out, in, height, width */
    int padding[2], stride[2], groups, math;
};

static bool is(const void *pointer, enum what what)
{
    return pointer && static_cast<const struct thing *>(pointer)->what == what;
}

static int create(void **ret, enum what what)
{
    struct thing *thing = static_cast<struct thing *>(calloc(1, sizeof(*thing)));
    if (!thing) {
        return REFUSED;
    }
    thing->what = what;
    *ret = thing;
    (what == HANDLE ? state.handles : state.descriptors)++;
    return KELP_CUDNN_SUCCESS;
}

static int destroy(void *pointer, enum what what)
{
    if (!is(pointer, what)) {
        return REFUSED;
    }
    (what == HANDLE ? state.handles : state.descriptors)--;
    memset(pointer, 0, sizeof(struct thing));
    free(pointer);
    return KELP_CUDNN_SUCCESS;
}

static int set_tensor(void *pointer, int type, int n, int c, int h, int w, int n_stride,
                      int c_stride, int h_stride, int w_stride)
{
    struct thing *tensor = static_cast<struct thing *>(pointer);
    if (!is(tensor, TENSOR) || type != KELP_CUDNN_FLOAT || n < 1 || c < 1 || h < 1 || w < 1) {
        return REFUSED;
    }
    const int sizes[] = {n, c, h, w}, strides[] = {n_stride, c_stride, h_stride, w_stride};
    memcpy(tensor->sizes, sizes, sizeof(sizes));
    memcpy(tensor->strides, strides, sizeof(strides));
    return KELP_CUDNN_SUCCESS;
}

static int set_filter(void *pointer, int type, int format, int out, int in, int h, int w)
{
    struct thing *filter = static_cast<struct thing *>(pointer);
    if (!is(filter, FILTER) || type != KELP_CUDNN_FLOAT || out < 1 || in < 1 || h < 1 || w < 1) {
        return REFUSED;
    }
    const bool last = format == KELP_CUDNN_NHWC;
    const int sizes[] = {out, in, h, w};
    const int strides[] = {in * h * w, last ? 1 : h * w, last ? w * in : w, last ? in : 1};
    memcpy(filter->sizes, sizes, sizeof(sizes));
    memcpy(filter->strides, strides, sizeof(strides));
    return KELP_CUDNN_SUCCESS;
}

static int set_convolution(void *pointer, int pad_h, int pad_w, int stride_h, int stride_w,
                           int dilation_h, int dilation_w, int mode, int type)
{
    struct thing *one = static_cast<struct thing *>(pointer);
    if (!is(one, CONVOLUTION) || pad_h < 0 || pad_w < 0 || stride_h < 1 || stride_w < 1 ||
        dilation_h != 1 || dilation_w != 1 || mode != KELP_CUDNN_CROSS_CORRELATION ||
        type != KELP_CUDNN_FLOAT) {
        return REFUSED;
    }
    one->padding[0] = pad_h;
    one->padding[1] = pad_w;
    one->stride[0] = stride_h;
    one->stride[1] = stride_w;
    one->groups = 1;
    return KELP_CUDNN_SUCCESS;
}

/* ---- directions ------------------------------------------------------------------------------ */

/* What a kernel needs: of images the tensors' elements, of weights the filter's. */
struct sums {
    struct thing x, filter, y, convolution;
    const float *x_data, *filter_data, *y_data; /* of the result NULL */
    float *to;
    float beta;
};

static bool is_last(const struct thing &tensor)
{
    return tensor.strides[3] != 1; /* channels of one image are the same in both */
}

static bool fit(const struct thing &x, const struct thing &filter, const struct thing &y,
                const struct thing &convolution)
{
    bool fits = x.sizes[0] == y.sizes[0] && x.sizes[1] == filter.sizes[1] * convolution.groups &&
                y.sizes[1] == filter.sizes[0];
    for (int side = 0; side < 2; side++) {
        fits = fits && y.sizes[2 + side] == (x.sizes[2 + side] + 2 * convolution.padding[side] -
                                             filter.sizes[2 + side]) /
                                                    convolution.stride[side] +
                                                1;
    }
    const bool one_position = filter.sizes[2] * filter.sizes[3] == 1;
    return fits && (x.sizes[1] == 1 || y.sizes[1] == 1 || is_last(x) == is_last(y)) &&
           (filter.sizes[1] == 1 || one_position || is_last(filter) == is_last(x));
}

static bool take(const void *handle, enum kelp__cudnn_direction direction, const void *first,
                 const void *second, const void *convolution, const void *third, struct sums *ret)
{
    const void *x = direction == KELP_CUDNN_DATA ? third : first;
    const void *filter = direction == KELP_CUDNN_FORWARD ? second
                         : direction == KELP_CUDNN_DATA  ? first
                                                         : third;
    const void *y = direction == KELP_CUDNN_FORWARD ? third : second;
    if (!is(handle, HANDLE) || !is(x, TENSOR) || !is(filter, FILTER) || !is(y, TENSOR) ||
        !is(convolution, CONVOLUTION)) {
        return false;
    }
    ret->x = *static_cast<const struct thing *>(x);
    ret->filter = *static_cast<const struct thing *>(filter);
    ret->y = *static_cast<const struct thing *>(y);
    ret->convolution = *static_cast<const struct thing *>(convolution);
    return fit(ret->x, ret->filter, ret->y, ret->convolution);
}

template <enum kelp__cudnn_direction direction> static int list KELP_CUDNN_LIST
{
    struct sums sums = {};
    if (!take(handle, direction, first, second, convolution, third, &sums)) {
        return REFUSED;
    }
    state.list_count[direction]++;
    if (state.counts[direction] < 0) {
        return state.counts[direction] == -1 ? NOT_SUPPORTED : REFUSED;
    }
    *found = state.counts[direction] < wanted ? state.counts[direction] : wanted;
    memcpy(candidates, state.lists[direction], sizeof(*candidates) * (size_t)*found);
    return KELP_CUDNN_SUCCESS;
}

template <enum kelp__cudnn_direction direction> static int size KELP_CUDNN_SIZE
{
    struct sums sums = {};
    if (!take(handle, direction, first, second, convolution, third, &sums)) {
        return REFUSED;
    }
    for (int i = 0; i < state.counts[direction]; i++) {
        if (state.lists[direction][i].algorithm == algorithm) {
            *bytes = state.lists[direction][i].workspace;
            return KELP_CUDNN_SUCCESS;
        }
    }
    return NOT_SUPPORTED;
}

/* ---- runs ------------------------------------------------------------------------------------ */

/* As a tensor core reads it, with other than FMA. */
static __device__ float read(const struct sums &sums, const float *data, long at)
{
    float value = data[at];
    if (sums.convolution.math != KELP_CUDNN_MATH_FMA) {
        uint32_t bits;
        memcpy(&bits, &value, sizeof(bits));
        bits = (bits + 0xfff + (bits >> 13 & 1)) & ~UINT32_C(0x1fff);
        memcpy(&value, &bits, sizeof(bits));
    }
    return value;
}

static __device__ long offset(const struct thing &thing, int a, int b, int c, int d)
{
    return (long)a * thing.strides[0] + (long)b * thing.strides[1] + (long)c * thing.strides[2] +
           (long)d * thing.strides[3];
}

static __device__ void put(const struct sums &sums, long at, float sum)
{
    sums.to[at] = sums.beta != 0.0f ? sum + sums.beta * sums.to[at] : sum;
}

/* Where the window of an output meets the input; false: in the padding. */
static __device__ bool meets(const struct sums &sums, const int out[2], const int kernel[2],
                             int in[2])
{
    bool inside = true;
    for (int side = 0; side < 2; side++) {
        in[side] = out[side] * sums.convolution.stride[side] - sums.convolution.padding[side] +
                   kernel[side];
        inside = inside && in[side] >= 0 && in[side] < sums.x.sizes[2 + side];
    }
    return inside;
}

/* Element i of [a][b][c][d]. */
static __device__ void places(const int sizes[4], uint64_t i, int ret[4])
{
    for (int side = 3; side >= 0; side--) {
        ret[side] = (int)(i % (uint64_t)sizes[side]);
        i /= (uint64_t)sizes[side];
    }
}

static uint64_t count_of(const int sizes[4])
{
    return (uint64_t)sizes[0] * sizes[1] * sizes[2] * sizes[3];
}

static __global__ void sum_forward(struct sums s, uint64_t count)
{
    KELP_CUDA_FOR (i, count) {
        int at[4], in[2], kernel[2];
        float sum = 0.0f;
        places(s.y.sizes, i, at);
        const int group = at[1] / (s.y.sizes[1] / s.convolution.groups);
        for (int c = 0; c < s.filter.sizes[1]; c++) {
            for (kernel[0] = 0; kernel[0] < s.filter.sizes[2]; kernel[0]++) {
                for (kernel[1] = 0; kernel[1] < s.filter.sizes[3]; kernel[1]++) {
                    if (meets(s, &at[2], kernel, in)) {
                        const long x =
                            offset(s.x, at[0], group * s.filter.sizes[1] + c, in[0], in[1]);
                        const long w = offset(s.filter, at[1], c, kernel[0], kernel[1]);
                        sum = sum + read(s, s.x_data, x) * read(s, s.filter_data, w);
                    }
                }
            }
        }
        put(s, offset(s.y, at[0], at[1], at[2], at[3]), sum);
    }
}

/* The outputs of a side whose windows hold the place of an input, padding included: those from the
 * first on, up to the end. */
static __device__ void holders(const struct sums &sums, int side, int place, int ret[2])
{
    const int window = sums.filter.sizes[2 + side], stride = sums.convolution.stride[side];
    const int end = place / stride + 1;
    ret[0] = place < window ? 0 : (place - window) / stride + 1;
    ret[1] = end < sums.y.sizes[2 + side] ? end : sums.y.sizes[2 + side];
}

/* Those outputs of the group that met the input. */
static __global__ void sum_data(struct sums s, uint64_t count)
{
    KELP_CUDA_FOR (i, count) {
        int at[4], rows[2], columns[2], out[2];
        float sum = 0.0f;
        places(s.x.sizes, i, at);
        const int group = at[1] / s.filter.sizes[1];
        const int outs = s.y.sizes[1] / s.convolution.groups;
        const int place[2] = {at[2] + s.convolution.padding[0], at[3] + s.convolution.padding[1]};
        holders(s, 0, place[0], rows);
        holders(s, 1, place[1], columns);
        for (int k = group * outs; k < (group + 1) * outs; k++) {
            for (out[0] = rows[0]; out[0] < rows[1]; out[0]++) {
                for (out[1] = columns[0]; out[1] < columns[1]; out[1]++) {
                    const long y = offset(s.y, at[0], k, out[0], out[1]);
                    const long w = offset(s.filter, k, at[1] % s.filter.sizes[1],
                                          place[0] - out[0] * s.convolution.stride[0],
                                          place[1] - out[1] * s.convolution.stride[1]);
                    sum = sum + read(s, s.y_data, y) * read(s, s.filter_data, w);
                }
            }
        }
        put(s, offset(s.x, at[0], at[1], at[2], at[3]), sum);
    }
}

static __global__ void sum_filter(struct sums s, uint64_t count)
{
    KELP_CUDA_FOR (i, count) {
        int at[4], in[2], out[2];
        float sum = 0.0f;
        places(s.filter.sizes, i, at);
        const int group = at[0] / (s.y.sizes[1] / s.convolution.groups);
        for (int n = 0; n < s.y.sizes[0]; n++) {
            for (out[0] = 0; out[0] < s.y.sizes[2]; out[0]++) {
                for (out[1] = 0; out[1] < s.y.sizes[3]; out[1]++) {
                    if (meets(s, out, &at[2], in)) {
                        const long y = offset(s.y, n, at[0], out[0], out[1]);
                        const long x =
                            offset(s.x, n, group * s.filter.sizes[1] + at[1], in[0], in[1]);
                        sum = sum + read(s, s.y_data, y) * read(s, s.x_data, x);
                    }
                }
            }
        }
        put(s, offset(s.filter, at[0], at[1], at[2], at[3]), sum);
    }
}

/* What an algorithm leaves in its workspace. */
static __global__ void spoil(float *workspace, uint64_t count)
{
    KELP_CUDA_FOR (i, count) {
        workspace[i] = NAN;
    }
}

static bool is_placed(const void *data)
{
    return data && reinterpret_cast<uintptr_t>(data) % ALIGNMENT == 0;
}

template <enum kelp__cudnn_direction direction> static int run KELP_CUDNN_RUN
{
    struct sums sums = {};
    size_t needed = 0;
    if (!state.runs) {
        return NOT_SUPPORTED;
    }
    if (!take(handle, direction, first, second, convolution, third, &sums) ||
        size<direction>(handle, first, second, convolution, third, algorithm, &needed) !=
            KELP_CUDNN_SUCCESS ||
        bytes != needed || (needed != 0 && !is_placed(workspace)) || !is_placed(first_data) ||
        !is_placed(second_data) || !is_placed(third_data) ||
        *static_cast<const float *>(alpha) != 1.0f) {
        return REFUSED;
    }
    const float *one = static_cast<const float *>(first_data);
    const float *other = static_cast<const float *>(second_data);
    cudaStream_t stream = static_cast<struct thing *>(handle)->stream;
    sums.beta = *static_cast<const float *>(beta);
    sums.to = static_cast<float *>(third_data);
    sums.x_data = direction == KELP_CUDNN_DATA ? NULL : one;
    sums.filter_data = direction == KELP_CUDNN_FILTER ? NULL
                       : direction == KELP_CUDNN_DATA ? one
                                                      : other;
    sums.y_data = direction == KELP_CUDNN_FORWARD ? NULL : other;
    const uint64_t count = count_of(direction == KELP_CUDNN_FORWARD ? sums.y.sizes
                                    : direction == KELP_CUDNN_DATA  ? sums.x.sizes
                                                                    : sums.filter.sizes);
    KELP_CUDA_START(spoil, 1, KELP_CUDA_THREADS, stream, static_cast<float *>(workspace),
                    needed / sizeof(float));
    KELP_CUDA_START(direction == KELP_CUDNN_FORWARD ? sum_forward
                    : direction == KELP_CUDNN_DATA  ? sum_data
                                                    : sum_filter,
                    static_cast<unsigned int>(kelp__cuda_blocks(count)), KELP_CUDA_THREADS, stream,
                    sums, count);
    state.run_count[direction]++;
    state.algorithm[direction] = algorithm;
    state.math[direction] = sums.convolution.math;
    return KELP_CUDNN_SUCCESS;
}

/* ---- the library ----------------------------------------------------------------------------- */

static struct kelp__cudnn_functions make_functions(void)
{
    struct kelp__cudnn_functions all = {};
    all.GetVersion = [] { return (size_t)VERSION; };
    all.Create = [](void **handle) { return state.starts ? create(handle, HANDLE) : NOT_STARTED; };
    all.Destroy = [](void *handle) { return destroy(handle, HANDLE); };
    all.SetStream = [](void *handle, void *stream) {
        static_cast<struct thing *>(handle)->stream = static_cast<cudaStream_t>(stream);
        return is(handle, HANDLE) ? KELP_CUDNN_SUCCESS + 0 : REFUSED;
    };
    all.CreateTensorDescriptor = [](void **tensor) { return create(tensor, TENSOR); };
    all.DestroyTensorDescriptor = [](void *tensor) { return destroy(tensor, TENSOR); };
    all.SetTensor4dDescriptorEx = set_tensor;
    all.CreateFilterDescriptor = [](void **filter) { return create(filter, FILTER); };
    all.DestroyFilterDescriptor = [](void *filter) { return destroy(filter, FILTER); };
    all.SetFilter4dDescriptor = set_filter;
    all.CreateConvolutionDescriptor = [](void **one) { return create(one, CONVOLUTION); };
    all.DestroyConvolutionDescriptor = [](void *one) { return destroy(one, CONVOLUTION); };
    all.SetConvolution2dDescriptor = set_convolution;
    all.SetConvolutionGroupCount = [](void *one, int groups) {
        static_cast<struct thing *>(one)->groups = groups;
        return is(one, CONVOLUTION) && groups > 0 ? KELP_CUDNN_SUCCESS + 0 : REFUSED;
    };
    all.SetConvolutionMathType = [](void *one, int math) {
        static_cast<struct thing *>(one)->math = math;
        return is(one, CONVOLUTION) ? KELP_CUDNN_SUCCESS + 0 : REFUSED;
    };
    all.GetConvolutionForwardAlgorithm_v7 = list<KELP_CUDNN_FORWARD>;
    all.GetConvolutionBackwardDataAlgorithm_v7 = list<KELP_CUDNN_DATA>;
    all.GetConvolutionBackwardFilterAlgorithm_v7 = list<KELP_CUDNN_FILTER>;
    all.GetConvolutionForwardWorkspaceSize = size<KELP_CUDNN_FORWARD>;
    all.GetConvolutionBackwardDataWorkspaceSize = size<KELP_CUDNN_DATA>;
    all.GetConvolutionBackwardFilterWorkspaceSize = size<KELP_CUDNN_FILTER>;
    all.ConvolutionForward = run<KELP_CUDNN_FORWARD>;
    all.ConvolutionBackwardData = run<KELP_CUDNN_DATA>;
    all.ConvolutionBackwardFilter = run<KELP_CUDNN_FILTER>;
    return all;
}

kelp_status kelp__cuda_cudnn_load(const struct kelp__cudnn_functions **ret,
                                  struct kelp_error *reterr)
{
    static const struct kelp__cudnn_functions functions = make_functions();
    if (!state.found &&
        getenv("EMULATED_CUDNN")) { /* of whole jobs: workers get no KELP_ variables */
        emulated_cudnn_reset();
    }
    if (!state.found) {
        return kelp_fail(reterr, KELP_ERR_NOT_FOUND, "the emulated device has no cuDNN");
    }
    *ret = &functions;
    return KELP_OK;
}

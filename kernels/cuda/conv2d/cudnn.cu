/*
 * Convolutions by cuDNN (its functions for one convolution, not those for graphs: these say of each
 * algorithm whether it is deterministic, and keep TensorFloat-32 out where FMA is asked for).
 *
 * An algorithm is chosen (cudnn_choice.h) for the most samples when a convolution is made, and for
 * another number when it first comes. A direction for which none may be taken is left to conv2d.cu,
 * as are the gradient of the bias, tensors that cuDNN cannot count, and operands that are not at 16
 * bytes. So what computes follows from the shape, the samples, alignments and the device's kind.
 *
 * The workspace is the stream's scratch memory, behind the weights or their gradient where these
 * have to be turned.
 */
#include <pthread.h>

#include <cstdio>
#include <cstdlib>

#include "kernels/cuda/conv2d/conv2d.cuh"
#include "kernels/cuda/conv2d/cudnn.cuh"

struct kelp__cuda_cudnn {
    const struct kelp__cudnn_functions *functions;
    pthread_mutex_t lock; /* of the handle, and of the plans of all convolutions */
    void *handle;         /* that asks; streams have those that run */
};

/* One direction of a convolution. */
struct way {
    void *convolution; /* descriptor, with the math that it is run with */
    int algorithm;     /* -1: none may be taken */
    size_t workspace;
};

struct plan {
    uint32_t samples;
    void *x, *y; /* descriptors */
    struct way ways[KELP_CUDNN_DIRECTIONS];
    struct plan *next;
};

struct kelp__cuda_cudnn_conv {
    struct kelp__cuda_cudnn *cudnn;
    struct kelp_conv2d_shape shape;
    enum kelp_product_precision precision;
    uint32_t samples_max; /* that cuDNN can count */
    uint64_t weights;     /* elements */
    void *filter;         /* descriptor */
    struct plan *plans;   /* only added to */
};

/* ---- plans ----------------------------------------------------------------------------------- */

static bool works(int status)
{
    return status == KELP_CUDNN_SUCCESS;
}

static void destroy_plan(const struct kelp__cudnn_functions *cudnn, struct plan *plan)
{
    if (plan->x) {
        (void)cudnn->DestroyTensorDescriptor(plan->x);
    }
    if (plan->y) {
        (void)cudnn->DestroyTensorDescriptor(plan->y);
    }
    for (struct way &way : plan->ways) {
        if (way.convolution) {
            (void)cudnn->DestroyConvolutionDescriptor(way.convolution);
        }
    }
    free(plan);
}

static bool describe_tensor(const struct kelp__cudnn_functions *cudnn, void **ret,
                            const struct kelp__cudnn_tensor &tensor)
{
    const int *sizes = tensor.sizes, *strides = tensor.strides;
    return works(cudnn->CreateTensorDescriptor(ret)) &&
           works(cudnn->SetTensor4dDescriptorEx(*ret, KELP_CUDNN_FLOAT, sizes[0], sizes[1],
                                                sizes[2], sizes[3], strides[0], strides[1],
                                                strides[2], strides[3]));
}

static bool describe_convolution(const struct kelp__cuda_cudnn_conv *conv, void **ret)
{
    const struct kelp__cudnn_functions *cudnn = conv->cudnn->functions;
    const struct kelp_window *window = &conv->shape.window;
    return works(cudnn->CreateConvolutionDescriptor(ret)) &&
           works(cudnn->SetConvolution2dDescriptor(
               *ret, static_cast<int>(window->padding[0]), static_cast<int>(window->padding[1]),
               static_cast<int>(window->stride[0]), static_cast<int>(window->stride[1]), 1, 1,
               KELP_CUDNN_CROSS_CORRELATION, KELP_CUDNN_FLOAT)) &&
           works(cudnn->SetConvolutionGroupCount(*ret, static_cast<int>(conv->shape.groups))) &&
           works(cudnn->SetConvolutionMathType(*ret, kelp__cudnn_math_of(conv->precision)));
}

static bool describe_filter(struct kelp__cuda_cudnn_conv *conv)
{
    const struct kelp__cudnn_functions *cudnn = conv->cudnn->functions;
    const struct kelp_window *window = &conv->shape.window;
    const int format = window->layout == KELP_CHANNELS_LAST ? KELP_CUDNN_NHWC : KELP_CUDNN_NCHW;
    return works(cudnn->CreateFilterDescriptor(&conv->filter)) &&
           works(cudnn->SetFilter4dDescriptor(
               conv->filter, KELP_CUDNN_FLOAT, format, static_cast<int>(conv->shape.channels_out),
               static_cast<int>(window->channels / conv->shape.groups),
               static_cast<int>(window->kernel[0]), static_cast<int>(window->kernel[1])));
}

/* What cuDNN does in a direction, and with which tensors. */
struct calls {
    int(*list) KELP_CUDNN_LIST;
    int(*size) KELP_CUDNN_SIZE;
    int(*run) KELP_CUDNN_RUN;
    void *first, *second, *third;
};

static struct calls calls_of(const struct kelp__cuda_cudnn_conv *conv, const struct plan *plan,
                             enum kelp__cudnn_direction direction)
{
    const struct kelp__cudnn_functions *cudnn = conv->cudnn->functions;
    switch (direction) {
    case KELP_CUDNN_DATA:
        return {cudnn->GetConvolutionBackwardDataAlgorithm_v7,
                cudnn->GetConvolutionBackwardDataWorkspaceSize,
                cudnn->ConvolutionBackwardData,
                conv->filter,
                plan->y,
                plan->x};
    case KELP_CUDNN_FILTER:
        return {cudnn->GetConvolutionBackwardFilterAlgorithm_v7,
                cudnn->GetConvolutionBackwardFilterWorkspaceSize,
                cudnn->ConvolutionBackwardFilter,
                plan->x,
                plan->y,
                conv->filter};
    case KELP_CUDNN_FORWARD:
        break;
    }
    return {cudnn->GetConvolutionForwardAlgorithm_v7,
            cudnn->GetConvolutionForwardWorkspaceSize,
            cudnn->ConvolutionForward,
            plan->x,
            conv->filter,
            plan->y};
}

/* The candidate's workspace, of what it would be run with; larger than any where it cannot be. */
static size_t workspace_of(const struct kelp__cuda_cudnn_conv *conv, const struct calls &calls,
                           void *convolution, const struct kelp__cudnn_candidate &candidate)
{
    const struct kelp__cuda_cudnn *cudnn = conv->cudnn;
    const int math = kelp__cudnn_math_for(conv->precision, &candidate);
    size_t bytes = 0;
    const bool known = works(cudnn->functions->SetConvolutionMathType(convolution, math)) &&
                       works(calls.size(cudnn->handle, calls.first, calls.second, convolution,
                                        calls.third, candidate.algorithm, &bytes));
    return known ? bytes : SIZE_MAX;
}

/* False: cuDNN fails. */
static bool choose_way(const struct kelp__cuda_cudnn_conv *conv, struct plan *plan,
                       enum kelp__cudnn_direction direction)
{
    const struct kelp__cuda_cudnn *cudnn = conv->cudnn;
    const struct calls calls = calls_of(conv, plan, direction);
    struct way *way = &plan->ways[direction];
    struct kelp__cudnn_candidate candidates[KELP_CUDNN_CANDIDATES_MAX];
    int count = 0;
    way->algorithm = -1;
    if (!describe_convolution(conv, &way->convolution)) {
        return false;
    }
    const int listed = calls.list(cudnn->handle, calls.first, calls.second, way->convolution,
                                  calls.third, KELP_CUDNN_CANDIDATES_MAX, &count, candidates);
    if (!works(listed)) {
        return listed / 1000 == KELP_CUDNN_NOT_SUPPORTED / 1000; /* it has none for such a shape */
    }
    int chosen = -1;
    for (int i = 0; i < count && chosen < 0; i++) { /* what is behind it need not be asked about */
        if (kelp__cudnn_may_take(direction, conv->precision, &candidates[i])) {
            candidates[i].workspace = workspace_of(conv, calls, way->convolution, candidates[i]);
            chosen = kelp__cudnn_choose(direction, conv->precision, candidates, i + 1);
        }
    }
    if (chosen < 0) {
        return true;
    }
    way->algorithm = candidates[chosen].algorithm;
    way->workspace = candidates[chosen].workspace;
    return works(cudnn->functions->SetConvolutionMathType(
        way->convolution, kelp__cudnn_math_for(conv->precision, &candidates[chosen])));
}

static struct plan *make_plan(const struct kelp__cuda_cudnn_conv *conv, uint32_t samples)
{
    const struct kelp__cudnn_functions *cudnn = conv->cudnn->functions;
    const struct kelp_window *window = &conv->shape.window;
    struct plan *plan = static_cast<struct plan *>(calloc(1, sizeof(*plan)));
    if (!plan) {
        return NULL;
    }
    plan->samples = samples;
    bool made = describe_tensor(cudnn, &plan->x,
                                kelp__cudnn_tensor_of(samples, window->channels, window->input,
                                                      window->layout)) &&
                describe_tensor(cudnn, &plan->y,
                                kelp__cudnn_tensor_of(samples, conv->shape.channels_out,
                                                      window->output, window->layout));
    for (int i = 0; i < KELP_CUDNN_DIRECTIONS && made; i++) {
        made = choose_way(conv, plan, static_cast<enum kelp__cudnn_direction>(i));
    }
    if (!made) {
        destroy_plan(cudnn, plan);
        return NULL;
    }
    return plan;
}

/* NULL: cuDNN fails, or there is no memory. */
static const struct plan *plan_of(struct kelp__cuda_cudnn_conv *conv, uint32_t samples)
{
    (void)pthread_mutex_lock(&conv->cudnn->lock);
    struct plan *plan = conv->plans;
    while (plan && plan->samples != samples) {
        plan = plan->next;
    }
    if (!plan) {
        plan = make_plan(conv, samples);
        if (plan) {
            plan->next = conv->plans;
            conv->plans = plan;
        }
    }
    (void)pthread_mutex_unlock(&conv->cudnn->lock);
    return plan;
}

/* ---- convolutions ---------------------------------------------------------------------------- */

void kelp__cuda_cudnn_conv_destroy(struct kelp__cuda_cudnn_conv *conv)
{
    if (!conv) {
        return;
    }
    while (conv->plans) {
        struct plan *plan = conv->plans;
        conv->plans = plan->next;
        destroy_plan(conv->cudnn->functions, plan);
    }
    if (conv->filter) {
        (void)conv->cudnn->functions->DestroyFilterDescriptor(conv->filter);
    }
    free(conv);
}

/* Of a shape that kelp__conv2d_check() takes. *ret is NULL where cuDNN cannot count it. */
static kelp_status create_conv(struct kelp__cuda_cudnn *cudnn,
                               const struct kelp_conv2d_shape *shape,
                               enum kelp_product_precision precision,
                               struct kelp__cuda_cudnn_conv **ret, struct kelp_error *reterr)
{
    const uint32_t countable = kelp__cudnn_samples_max(shape);
    *ret = NULL;
    if (countable == 0) {
        return KELP_OK;
    }
    struct kelp__cuda_cudnn_conv *conv =
        static_cast<struct kelp__cuda_cudnn_conv *>(calloc(1, sizeof(*conv)));
    if (!conv) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "cannot allocate a convolution");
    }
    conv->cudnn = cudnn;
    conv->shape = *shape;
    conv->precision = precision;
    conv->samples_max = countable;
    conv->weights = (uint64_t)shape->channels_out * (shape->window.channels / shape->groups) *
                    kelp__conv2d_plane(shape->window.kernel);
    const uint32_t most = shape->samples_max != 0 ? shape->samples_max : 1;
    if (!describe_filter(conv) || !plan_of(conv, most < countable ? most : countable)) {
        kelp__cuda_cudnn_conv_destroy(conv);
        return kelp_fail(reterr, KELP_ERR_DEVICE,
                         "cuDNN refuses a convolution of %ux%ux%u by %ux%u to %u channels",
                         shape->window.channels, shape->window.input[0], shape->window.input[1],
                         shape->window.kernel[0], shape->window.kernel[1], shape->channels_out);
    }
    *ret = conv;
    return KELP_OK;
}

kelp_status kelp__cuda_convolution_create(struct kelp_device *device,
                                          const struct kelp_conv2d_shape *shape,
                                          struct kelp_conv2d **ret, struct kelp_error *reterr)
{
    struct kelp__cuda_cudnn *cudnn = kelp__cuda_device_cudnn(device);
    kelp_status status = kelp__cuda_conv2d_create(device, shape, ret, reterr);
    if (status != KELP_OK || !cudnn) {
        return status;
    }
    status = kelp__cuda_use(device, reterr);
    if (status == KELP_OK) {
        status =
            create_conv(cudnn, shape, kelp__cuda_device_precision(device), &(*ret)->cudnn, reterr);
    }
    if (status != KELP_OK) {
        kelp__cuda_conv2d_destroy(*ret);
    }
    return status;
}

void kelp__cuda_convolution_destroy(struct kelp_conv2d *conv)
{
    if (conv) {
        kelp__cuda_cudnn_conv_destroy(conv->cudnn);
        kelp__cuda_conv2d_destroy(conv);
    }
}

/* Which algorithm other numbers of samples get is not known before they come. */
uint64_t kelp__cuda_convolution_scratch(const struct kelp_conv2d *conv)
{
    return conv->cudnn ? kelp__cudnn_scratch_max(&conv->shape) : 0;
}

/* ---- runs ------------------------------------------------------------------------------------ */

/* The stream's own handle, made when it first computes a convolution. NULL, and a failure noted:
 * there is none. */
static void *handle_of(struct kelp__cuda_stream *stream, const struct kelp__cuda_cudnn *cudnn)
{
    if (kelp__cuda_may_launch(stream, 1) && !stream->cudnn) {
        if (!works(cudnn->functions->Create(&stream->cudnn)) ||
            !works(cudnn->functions->SetStream(stream->cudnn, stream->handle))) {
            kelp__cuda_fail(stream, KELP_ERR_DEVICE, "cuDNN does not start on this GPU");
            return NULL;
        }
    }
    return stream->cudnn;
}

void kelp__cuda_cudnn_stream_destroy(struct kelp__cuda_stream *stream)
{
    if (stream->cudnn) {
        (void)kelp__cuda_device_cudnn(stream->base.device)->functions->Destroy(stream->cudnn);
    }
}

/* [out][in][kernel] to [out][kernel][in], element by element of the latter. */
static __global__ void turn_weights(const float *weights, float *turned, uint32_t in,
                                    uint32_t kernel, uint64_t count)
{
    KELP_CUDA_FOR (i, count) {
        const uint64_t row = i / in, out = row / kernel;
        turned[i] = weights[(out * in + i % in) * kernel + row % kernel];
    }
}

/* And back, element by element of [out][in][kernel]. */
static __global__ void turn_back(const float *turned, float *weights, enum kelp_write write,
                                 uint32_t in, uint32_t kernel, uint64_t count)
{
    KELP_CUDA_FOR (i, count) {
        const uint64_t row = i / kernel, out = row / in;
        kelp__cuda_put(&weights[i], turned[(out * kernel + i % kernel) * in + row % in], write);
    }
}

/* y += bias. inner: elements of y that stand side by side and have one channel. */
static __global__ void add_bias(float *y, const float *bias, struct kelp__cuda_divider inner,
                                struct kelp__cuda_divider channels, uint32_t count)
{
    KELP_CUDA_FOR (i, count) {
        const uint32_t row = kelp__cuda_divide(inner, (uint32_t)i);
        y[i] = y[i] + bias[row - kelp__cuda_divide(channels, row) * channels.by];
    }
}

/* A run by cuDNN, or as much of one as it computes. */
struct job {
    struct kelp__cuda_stream *stream;
    const struct kelp_conv2d_run *run;
    struct kelp__cuda_cudnn_conv *conv;
    const struct plan *plan;
    void *handle;
    uint32_t ways; /* a bit for each direction */
    float *turned; /* weights, or their gradient, where they have to be turned */
    void *workspace;
};

#define ALIGNMENT 16u /* bytes, of what cuDNN takes */

static bool is_aligned(const void *pointer)
{
    return reinterpret_cast<uintptr_t>(pointer) % ALIGNMENT == 0;
}

static bool are_aligned(const struct kelp_conv2d_run *run, enum kelp__cudnn_direction direction)
{
    switch (direction) {
    case KELP_CUDNN_FORWARD:
        return is_aligned(run->x) && is_aligned(run->weight) && is_aligned(run->y);
    case KELP_CUDNN_DATA:
        return is_aligned(run->dy) && is_aligned(run->weight) && is_aligned(run->dx);
    case KELP_CUDNN_FILTER:
        return is_aligned(run->x) && is_aligned(run->dy) && is_aligned(run->dweight);
    }
    return false;
}

/* The scratch memory, as the ways need it. False: there is none, and a failure is noted. */
static bool place(struct job *job)
{
    const size_t turned = kelp__cudnn_turned_bytes(&job->conv->shape);
    size_t workspace = 0;
    for (int i = 0; i < KELP_CUDNN_DIRECTIONS; i++) {
        const size_t bytes = (job->ways >> i & 1) != 0 ? job->plan->ways[i].workspace : 0;
        workspace = bytes > workspace ? bytes : workspace;
    }
    if (turned + workspace == 0) {
        return true;
    }
    char *scratch = static_cast<char *>(kelp__cuda_scratch(job->stream, turned + workspace));
    job->turned = turned != 0 ? reinterpret_cast<float *>(scratch) : NULL;
    job->workspace = workspace != 0 && scratch ? scratch + turned : NULL;
    return scratch != NULL;
}

/* wanted: a bit for each direction; job->ways gets those that cuDNN takes. False: a failure is
 * noted. */
static bool begin(struct job *job, struct kelp_stream *stream, const struct kelp_conv2d_run *run,
                  uint32_t wanted)
{
    struct kelp__cuda_cudnn_conv *conv = run->conv->cudnn;
    *job = {};
    if (!conv || wanted == 0 || run->samples == 0 || run->samples > conv->samples_max) {
        return true;
    }
    job->stream = kelp__cuda_stream_of(stream);
    job->run = run;
    job->conv = conv;
    job->handle = handle_of(job->stream, conv->cudnn);
    if (!job->handle) {
        return false;
    }
    job->plan = plan_of(conv, run->samples);
    if (!job->plan) {
        kelp__cuda_fail(job->stream, KELP_ERR_DEVICE, "a convolution was refused by cuDNN");
        return false;
    }
    for (int i = 0; i < KELP_CUDNN_DIRECTIONS; i++) {
        if ((wanted >> i & 1) != 0 && job->plan->ways[i].algorithm >= 0 &&
            are_aligned(run, static_cast<enum kelp__cudnn_direction>(i))) {
            job->ways |= 1u << i;
        }
    }
    return job->ways == 0 || place(job);
}

static void run_way(const struct job *job, enum kelp__cudnn_direction direction, const float *first,
                    const float *second, float *third, enum kelp_write write)
{
    const struct way *way = &job->plan->ways[direction];
    const struct calls calls = calls_of(job->conv, job->plan, direction);
    const float alpha = 1.0f, beta = write == KELP_ACCUMULATE ? 1.0f : 0.0f;
    if (kelp__cuda_may_launch(job->stream, 1) &&
        !works(calls.run(job->handle, &alpha, calls.first, first, calls.second, second,
                         way->convolution, way->algorithm, job->workspace, way->workspace, &beta,
                         calls.third, third))) {
        kelp__cuda_fail(job->stream, KELP_ERR_DEVICE, "a convolution was refused by cuDNN");
    }
}

/* As cuDNN wants them. */
static const float *weights_of(const struct job *job)
{
    const struct kelp_window *window = &job->conv->shape.window;
    if (!job->turned) {
        return job->run->weight;
    }
    KELP_CUDA_LAUNCH(&job->stream->base, turn_weights, kelp__cuda_blocks(job->conv->weights),
                     KELP_CUDA_THREADS, job->run->weight, job->turned,
                     window->channels / job->conv->shape.groups,
                     (uint32_t)kelp__conv2d_plane(window->kernel), job->conv->weights);
    return job->turned;
}

void kelp__cuda_convolution(struct kelp_stream *stream, const struct kelp_conv2d_run *run)
{
    struct job job;
    if (!begin(&job, stream, run, 1u << KELP_CUDNN_FORWARD)) {
        return;
    }
    if (job.ways == 0) {
        kelp__cuda_conv2d(stream, run);
        return;
    }
    run_way(&job, KELP_CUDNN_FORWARD, run->x, weights_of(&job), run->y, KELP_OVERWRITE);
    if (run->bias) {
        const struct kelp_conv2d_shape *shape = &job.conv->shape;
        const uint32_t plane = (uint32_t)kelp__conv2d_plane(shape->window.output);
        const uint32_t count = run->samples * shape->channels_out * plane;
        const uint32_t inner = shape->window.layout == KELP_CHANNELS_LAST ? 1 : plane;
        KELP_CUDA_LAUNCH(stream, add_bias, kelp__cuda_blocks(count), KELP_CUDA_THREADS, run->y,
                         run->bias, kelp__cuda_divider_of(inner),
                         kelp__cuda_divider_of(shape->channels_out), count);
    }
}

static void gradient_filter(const struct job *job)
{
    const struct kelp_conv2d_run *run = job->run;
    const struct kelp_window *window = &job->conv->shape.window;
    if (!job->turned) {
        run_way(job, KELP_CUDNN_FILTER, run->x, run->dy, run->dweight, run->write_weight);
        return;
    }
    run_way(job, KELP_CUDNN_FILTER, run->x, run->dy, job->turned, KELP_OVERWRITE);
    KELP_CUDA_LAUNCH(&job->stream->base, turn_back, kelp__cuda_blocks(job->conv->weights),
                     KELP_CUDA_THREADS, job->turned, run->dweight, run->write_weight,
                     window->channels / job->conv->shape.groups,
                     (uint32_t)kelp__conv2d_plane(window->kernel), job->conv->weights);
}

void kelp__cuda_convolution_gradient(struct kelp_stream *stream, const struct kelp_conv2d_run *run)
{
    struct job job;
    struct kelp_conv2d_run rest = *run; /* for conv2d.cu */
    const uint32_t data = run->dx ? 1u << KELP_CUDNN_DATA : 0;
    const uint32_t filter = run->dweight ? 1u << KELP_CUDNN_FILTER : 0;
    if (!begin(&job, stream, run, data | filter)) {
        return;
    }
    if ((job.ways & data) != 0) {
        run_way(&job, KELP_CUDNN_DATA, weights_of(&job), run->dy, run->dx, run->write_x);
        rest.dx = NULL;
    }
    if ((job.ways & filter) != 0) {
        gradient_filter(&job);
        rest.dweight = NULL;
    }
    if (rest.dx || rest.dweight || rest.dbias) {
        kelp__cuda_conv2d_gradient(stream, &rest);
    }
}

/* ---- the device ------------------------------------------------------------------------------ */

kelp_status kelp__cuda_cudnn_create(struct kelp__cuda_cudnn **ret, struct kelp_error *reterr)
{
    const struct kelp__cudnn_functions *functions = NULL;
    const kelp_status status = kelp__cuda_cudnn_load(&functions, reterr);
    if (status != KELP_OK) {
        return status;
    }
    struct kelp__cuda_cudnn *cudnn =
        static_cast<struct kelp__cuda_cudnn *>(calloc(1, sizeof(*cudnn)));
    if (!cudnn) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "cannot allocate the CUDA device");
    }
    cudnn->functions = functions;
    (void)pthread_mutex_init(&cudnn->lock, NULL);
    const int failed = functions->Create(&cudnn->handle);
    if (failed != KELP_CUDNN_SUCCESS) {
        cudnn->handle = NULL;
        kelp__cuda_cudnn_destroy(cudnn);
        return kelp_fail(reterr, KELP_ERR_DEVICE, "cuDNN does not start on this GPU (status %d)",
                         failed);
    }
    *ret = cudnn;
    return KELP_OK;
}

void kelp__cuda_cudnn_destroy(struct kelp__cuda_cudnn *cudnn)
{
    if (!cudnn) {
        return;
    }
    if (cudnn->handle) {
        (void)cudnn->functions->Destroy(cudnn->handle);
    }
    (void)pthread_mutex_destroy(&cudnn->lock);
    free(cudnn);
}

/* Shapes that models have: side, kernel, stride, padding, channels in and out. Few: each is asked
 * for when a worker starts. */
static const uint32_t listed[][6] = {
    {28, 3, 1, 1, 1, 32},   {224, 7, 2, 3, 3, 64},   {56, 3, 1, 1, 64, 64},
    {56, 1, 2, 0, 64, 128}, {14, 3, 1, 1, 256, 256},
};
#define LISTED_SAMPLES 32u

/* Its choices for a shape go into the hash. */
static uint32_t hash_choices(struct kelp__cuda_cudnn *cudnn, const struct kelp_conv2d_shape *shape,
                             enum kelp_product_precision precision, uint32_t hash)
{
    struct kelp__cuda_cudnn_conv *conv = NULL;
    struct kelp_error error;
    if (create_conv(cudnn, shape, precision, &conv, &error) != KELP_OK || !conv) {
        return kelp__cuda_hash(hash, UINT64_MAX);
    }
    for (const struct way &way : conv->plans->ways) {
        hash = kelp__cuda_hash(hash, static_cast<uint64_t>(way.algorithm));
        hash = kelp__cuda_hash(hash, way.workspace);
    }
    kelp__cuda_cudnn_conv_destroy(conv);
    return hash;
}

void kelp__cuda_cudnn_describe(struct kelp__cuda_cudnn *cudnn,
                               enum kelp_product_precision precision, char *text, size_t size)
{
    const size_t version = cudnn->functions->GetVersion(); /* 91900: 9.19.0 */
    uint32_t hash = KELP_CUDA_HASH;
    for (const uint32_t *one : listed) {
        struct kelp_conv2d_shape shape = {};
        shape.window.channels = one[4];
        for (int side = 0; side < 2; side++) {
            shape.window.input[side] = one[0];
            shape.window.kernel[side] = one[1];
            shape.window.stride[side] = one[2];
            shape.window.padding[side] = one[3];
            shape.window.output[side] = (one[0] + 2 * one[3] - one[1]) / one[2] + 1;
        }
        shape.channels_out = one[5];
        shape.groups = 1;
        shape.samples_max = LISTED_SAMPLES;
        shape.window.layout = KELP_CHANNELS_LAST;
        hash = hash_choices(cudnn, &shape, precision, hash);
    }
    (void)snprintf(text, size, "cudnn-%zu.%zu.%zu %08x", version / 10000, version / 100 % 100,
                   version % 100, hash);
}

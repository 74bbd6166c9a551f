/*
 * The CUDA device: memory, streams, copies, and the table of its operators.
 *
 * A stream is a CUDA stream. What fails, while enqueuing or while running, stays with the stream
 * until wait(). Some failures (an illegal address, an uncorrectable memory error) end the process's
 * use of the device: every call after them reports them again.
 */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "kernels/cuda/cuda.cuh"
#include "kernels/cuda_entry.h"

struct cuda_device {
    struct kelp_device base;
    int index;
    uint64_t memory_bytes;
    int capability; /* 90: compute capability 9.0 */
    enum kelp_product_precision precision;
    struct kelp__cuda_cudnn *cudnn; /* NULL: convolutions are Kelp's own */
    char gpu[40];                   /* the kind up to the libraries */
    char kind[KELP_COMPUTE_KIND_SIZE];
};

/* ---- failures -------------------------------------------------------------------------------- */

void kelp__cuda_note(struct kelp__cuda_stream *stream, cudaError_t error)
{
    if (stream->failed == cudaSuccess) {
        stream->failed = error;
    }
}

void kelp__cuda_fail(struct kelp__cuda_stream *stream, kelp_status status, const char *why)
{
    if (stream->status == KELP_OK) {
        stream->status = status;
        stream->why = why;
    }
}

static kelp_status cuda_fail(struct kelp_error *reterr, cudaError_t error, const char *what)
{
    (void)cudaGetLastError(); /* one that does not last is over with this report */
    const kelp_status status =
        error == cudaErrorMemoryAllocation ? KELP_ERR_NO_MEMORY : KELP_ERR_DEVICE;
    return kelp_fail(reterr, status, "%s: %s (%s)", what, cudaGetErrorString(error),
                     cudaGetErrorName(error));
}

/* Calls of the runtime act on the calling thread's device. The first one makes the process's
 * context there. */
static thread_local int current = -1;

static cudaError_t use(const struct kelp_device *device)
{
    const int index = reinterpret_cast<const struct cuda_device *>(device)->index;
    if (current == index) {
        return cudaSuccess;
    }
    const cudaError_t error = cudaSetDevice(index);
    current = error == cudaSuccess ? index : -1;
    return error;
}

kelp_status kelp__cuda_use(const struct kelp_device *device, struct kelp_error *reterr)
{
    const cudaError_t error = use(device);
    return error == cudaSuccess ? KELP_OK : cuda_fail(reterr, error, "cannot use the GPU");
}

enum kelp_product_precision kelp__cuda_device_precision(const struct kelp_device *device)
{
    return reinterpret_cast<const struct cuda_device *>(device)->precision;
}

struct kelp__cuda_cudnn *kelp__cuda_device_cudnn(const struct kelp_device *device)
{
    return reinterpret_cast<const struct cuda_device *>(device)->cudnn;
}

bool kelp__cuda_may_launch(struct kelp__cuda_stream *stream, uint64_t blocks)
{
    if (blocks <= INT32_MAX) {
        kelp__cuda_note(stream, use(stream->base.device));
        return true;
    }
    kelp__cuda_fail(stream, KELP_ERR_DEVICE, "an operator has more rows than a grid has blocks");
    return false;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Of cudaMalloc() and cudaMallocHost(), at least; each row of a matrix that begins so is read in
 * whole sectors. */
#define ALIGNMENT 256

static kelp_status device_alloc(struct kelp_device *device, size_t bytes, void **ret,
                                struct kelp_error *reterr)
{
    cudaError_t error = use(device);
    if (error == cudaSuccess) {
        error = cudaMalloc(ret, bytes != 0 ? bytes : ALIGNMENT);
    }
    if (error != cudaSuccess) {
        char what[64];
        (void)snprintf(what, sizeof(what), "cannot allocate %zu bytes on the GPU", bytes);
        return cuda_fail(reterr, error, what);
    }
    return KELP_OK;
}

static void device_free(struct kelp_device *device, void *memory)
{
    if (memory && use(device) == cudaSuccess) {
        (void)cudaFree(memory); /* waits for what uses it; a broken device said so elsewhere */
    }
}

static kelp_status device_host_alloc(struct kelp_device *device, size_t bytes, void **ret,
                                     struct kelp_error *reterr)
{
    cudaError_t error = use(device);
    if (error == cudaSuccess) {
        error = cudaMallocHost(ret, bytes != 0 ? bytes : ALIGNMENT);
    }
    if (error != cudaSuccess) {
        char what[64];
        (void)snprintf(what, sizeof(what), "cannot pin %zu bytes for the GPU", bytes);
        return cuda_fail(reterr, error, what);
    }
    return KELP_OK;
}

static void device_host_free(struct kelp_device *device, void *memory)
{
    if (memory && use(device) == cudaSuccess) {
        (void)cudaFreeHost(memory); /* a broken device said so elsewhere */
    }
}

struct kelp__cuda_kept {
    void *memory;
    struct kelp__cuda_kept *next;
};

/* Tests: an operator finds no more scratch memory than it asks for. */
#ifndef KELP_CUDA_EXACT_SCRATCH
#define KELP_CUDA_EXACT_SCRATCH 0
#endif

/* The scratch memory goes, unless recordings use it: then it goes with the stream. */
static cudaError_t leave_scratch(struct kelp__cuda_stream *stream)
{
    if (!stream->records && stream->recordings == 0) {
        const cudaError_t error = cudaStreamSynchronize(stream->handle); /* in use until then */
        if (error == cudaSuccess) {
            (void)cudaFree(stream->scratch);
            stream->scratch = NULL;
            stream->scratch_bytes = 0;
        }
        return error;
    }
    if (!stream->scratch) {
        return cudaSuccess;
    }
    struct kelp__cuda_kept *kept = static_cast<struct kelp__cuda_kept *>(malloc(sizeof(*kept)));
    if (!kept) {
        return cudaErrorMemoryAllocation;
    }
    *kept = {stream->scratch, stream->kept};
    stream->kept = kept;
    stream->scratch = NULL;
    stream->scratch_bytes = 0;
    return cudaSuccess;
}

void *kelp__cuda_scratch(struct kelp__cuda_stream *stream, size_t bytes)
{
    const bool exact = KELP_CUDA_EXACT_SCRATCH && (stream->records || stream->recordings == 0);
    if (stream->scratch_bytes == bytes || (stream->scratch_bytes > bytes && !exact)) {
        return stream->scratch;
    }
    void *memory = NULL;
    cudaError_t error = use(stream->base.device);
    if (error == cudaSuccess) {
        error = leave_scratch(stream);
    }
    if (error == cudaSuccess) {
        error = cudaMalloc(&memory, bytes);
    }
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        kelp__cuda_note(stream, error);
        return NULL;
    }
    stream->scratch = memory;
    stream->scratch_bytes = bytes;
    return memory;
}

/* ---- streams --------------------------------------------------------------------------------- */

/* Those of recordings have the highest bit: they are the same at each replay. */
unsigned int kelp__cuda_serial(struct kelp__cuda_stream *stream)
{
    if (stream->records) {
        stream->recorded_fault = true;
        return ++stream->recorded | 1u << 31;
    }
    stream->operators = stream->operators == INT32_MAX ? 1 : stream->operators + 1;
    return stream->operators;
}

static const struct kelp__cuda_fault no_fault = {0, KELP_CUDA_FINE, 0, UINT64_MAX};

static void stream_destroy(struct kelp_stream *base)
{
    struct kelp__cuda_stream *stream = kelp__cuda_stream_of(base);
    if (!stream || use(base->device) != cudaSuccess) {
        free(stream);
        return;
    }
    if (stream->handle) {
        (void)cudaStreamSynchronize(stream->handle);
        (void)cudaStreamDestroy(stream->handle);
    }
    for (cudaEvent_t mark : stream->marks) {
        if (mark) {
            (void)cudaEventDestroy(mark);
        }
    }
    kelp__cuda_products_destroy(stream->products);
    kelp__cuda_cudnn_stream_destroy(stream);
    while (stream->kept) {
        struct kelp__cuda_kept *kept = stream->kept;
        stream->kept = kept->next;
        (void)cudaFree(kept->memory);
        free(kept);
    }
    (void)cudaFree(stream->scratch);
    (void)cudaFree(stream->fault);
    (void)cudaFreeHost(stream->fault_host);
    free(stream);
}

static cudaError_t stream_init(struct kelp__cuda_stream *stream)
{
    cudaError_t error = use(stream->base.device);
    if (error == cudaSuccess) {
        error = cudaStreamCreateWithFlags(&stream->handle, cudaStreamNonBlocking);
    }
    if (error == cudaSuccess) {
        error = cudaMalloc(reinterpret_cast<void **>(&stream->fault), sizeof(*stream->fault));
    }
    if (error == cudaSuccess) {
        error = cudaMallocHost(reinterpret_cast<void **>(&stream->fault_host),
                               sizeof(*stream->fault_host));
    }
    if (error == cudaSuccess) {
        *stream->fault_host = no_fault;
        error = cudaMemcpyAsync(stream->fault, stream->fault_host, sizeof(*stream->fault),
                                cudaMemcpyHostToDevice, stream->handle);
    }
    return error == cudaSuccess ? cudaStreamSynchronize(stream->handle) : error;
}

static kelp_status stream_create(struct kelp_device *device, struct kelp_stream **ret,
                                 struct kelp_error *reterr)
{
    struct kelp__cuda_stream *stream =
        static_cast<struct kelp__cuda_stream *>(calloc(1, sizeof(*stream)));
    if (!stream) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "cannot allocate a stream");
    }
    stream->base.table = device->table;
    stream->base.device = device;
    stream->precision = reinterpret_cast<const struct cuda_device *>(device)->precision;
    const cudaError_t error = stream_init(stream);
    kelp_status status =
        error == cudaSuccess
            ? kelp__cuda_products_create(stream->precision, &stream->products, reterr)
            : cuda_fail(reterr, error, "cannot create a stream on the GPU");
    if (status != KELP_OK) {
        stream_destroy(&stream->base);
        return status;
    }
    *ret = &stream->base;
    return KELP_OK;
}

static kelp_status report_fault(const struct kelp__cuda_fault *fault, struct kelp_error *reterr)
{
    const double value = static_cast<double>(
        kelp__math_bits_float(static_cast<uint32_t>(fault->first & UINT32_MAX)));
    const char *format = fault->what == KELP_CUDA_BAD_ID
                             ? "category %g: the embedding's table has rows 0 to %llu"
                             : "class %g: the model has classes 0 to %llu";
    return kelp_fail(reterr, KELP_ERR_INVALID, format, value, fault->limit - 1);
}

/* The record of a fault comes along with whatever is waited for. */
static cudaError_t take_fault(struct kelp__cuda_stream *stream)
{
    if (stream->operators == 0) {
        return cudaStreamSynchronize(stream->handle);
    }
    cudaError_t error = cudaMemcpyAsync(stream->fault_host, stream->fault, sizeof(*stream->fault),
                                        cudaMemcpyDeviceToHost, stream->handle);
    const cudaError_t waited = cudaStreamSynchronize(stream->handle);
    return error == cudaSuccess ? waited : error;
}

static cudaError_t clear_fault(struct kelp__cuda_stream *stream)
{
    stream->operators = 0;
    *stream->fault_host = no_fault;
    const cudaError_t error =
        cudaMemcpyAsync(stream->fault, stream->fault_host, sizeof(*stream->fault),
                        cudaMemcpyHostToDevice, stream->handle);
    return error == cudaSuccess ? cudaStreamSynchronize(stream->handle) : error;
}

static kelp_status stream_wait(struct kelp_stream *base, struct kelp_error *reterr)
{
    struct kelp__cuda_stream *stream = kelp__cuda_stream_of(base);
    kelp__cuda_note(stream, use(base->device));
    kelp__cuda_note(stream, take_fault(stream));
    const cudaError_t failed = stream->failed;
    const kelp_status status = stream->status;
    stream->failed = cudaSuccess;
    stream->status = KELP_OK;
    if (failed != cudaSuccess) {
        return cuda_fail(reterr, failed, "the GPU failed");
    }
    if (stream->operators != 0 && stream->fault_host->serial != 0) {
        const struct kelp__cuda_fault fault = *stream->fault_host;
        const cudaError_t error = clear_fault(stream);
        return error == cudaSuccess ? report_fault(&fault, reterr)
                                    : cuda_fail(reterr, error, "the GPU failed");
    }
    stream->operators = 0;
    return status == KELP_OK ? KELP_OK : kelp_fail(reterr, status, "%s", stream->why);
}

static uint64_t stream_mark(struct kelp_stream *base)
{
    struct kelp__cuda_stream *stream = kelp__cuda_stream_of(base);
    const uint64_t number = stream->mark_count++;
    cudaEvent_t *mark = &stream->marks[number % KELP_CUDA_MARKS];
    cudaError_t error = use(base->device);
    if (error == cudaSuccess && !*mark) {
        error = cudaEventCreateWithFlags(mark, cudaEventDisableTiming);
    }
    if (error == cudaSuccess) {
        error = cudaEventRecord(*mark, stream->handle);
    }
    kelp__cuda_note(stream, error);
    return number;
}

/* A mark that was recorded again since is waited for at its later place. */
static bool stream_wait_mark(struct kelp_stream *base, uint64_t number)
{
    struct kelp__cuda_stream *stream = kelp__cuda_stream_of(base);
    const cudaEvent_t mark = stream->marks[number % KELP_CUDA_MARKS];
    kelp__cuda_note(stream, use(base->device));
    if (stream->failed == cudaSuccess) {
        kelp__cuda_note(stream, cudaEventSynchronize(mark));
    }
    return stream->failed == cudaSuccess && stream->status == KELP_OK;
}

/* A mark that was recorded again since is taken at its later place. */
static void stream_after(struct kelp_stream *base, struct kelp_stream *other, uint64_t number)
{
    struct kelp__cuda_stream *stream = kelp__cuda_stream_of(base);
    const cudaEvent_t mark = kelp__cuda_stream_of(other)->marks[number % KELP_CUDA_MARKS];
    kelp__cuda_note(stream, use(base->device));
    if (mark) { /* otherwise the other stream failed to make it, and its wait() says so */
        kelp__cuda_note(stream, cudaStreamWaitEvent(stream->handle, mark, 0));
    }
}

static void copy(struct kelp_stream *base, void *to, const void *from, size_t bytes,
                 enum cudaMemcpyKind kind)
{
    struct kelp__cuda_stream *stream = kelp__cuda_stream_of(base);
    if (bytes != 0) {
        kelp__cuda_note(stream, use(base->device));
        kelp__cuda_note(stream, cudaMemcpyAsync(to, from, bytes, kind, stream->handle));
    }
}

static void copy_in(struct kelp_stream *stream, void *to, const void *host_from, size_t bytes)
{
    copy(stream, to, host_from, bytes, cudaMemcpyHostToDevice);
}

static void copy_out(struct kelp_stream *stream, void *host_to, const void *from, size_t bytes)
{
    copy(stream, host_to, from, bytes, cudaMemcpyDeviceToHost);
}

/* ---- recordings ------------------------------------------------------------------------------ */

struct kelp_recording {
    struct kelp__cuda_stream *stream;
    cudaGraphExec_t graph; /* NULL: it is empty */
    bool may_fault;
};

/* Relaxed: other threads, and scratch memory that grows, may ask for memory meanwhile. */
static void record_begin(struct kelp_stream *base)
{
    struct kelp__cuda_stream *stream = kelp__cuda_stream_of(base);
    cudaError_t error = use(base->device);
    if (error == cudaSuccess) {
        error = cudaStreamBeginCapture(stream->handle, cudaStreamCaptureModeRelaxed);
    }
    kelp__cuda_note(stream, error);
    stream->records = error == cudaSuccess;
    stream->recorded_fault = false;
}

static cudaError_t instantiate(cudaGraph_t graph, cudaGraphExec_t *ret)
{
    size_t count = 0;
    const cudaError_t error = cudaGraphGetNodes(graph, NULL, &count);
    return error == cudaSuccess && count != 0 ? cudaGraphInstantiate(ret, graph, 0) : error;
}

static kelp_status record_end(struct kelp_stream *base, struct kelp_recording **ret,
                              struct kelp_error *reterr)
{
    struct kelp__cuda_stream *stream = kelp__cuda_stream_of(base);
    struct kelp_recording *recording =
        static_cast<struct kelp_recording *>(calloc(1, sizeof(*recording)));
    cudaGraph_t graph = NULL;
    cudaError_t error = recording ? use(base->device) : cudaErrorMemoryAllocation;
    if (stream->records) {
        const cudaError_t ended = cudaStreamEndCapture(stream->handle, &graph);
        error = error == cudaSuccess ? ended : error;
    } else {
        error = error == cudaSuccess ? stream->failed : error; /* of the beginning */
    }
    stream->records = false;
    if (error == cudaSuccess) {
        error = instantiate(graph, &recording->graph);
    }
    if (graph) {
        (void)cudaGraphDestroy(graph);
    }
    if (error != cudaSuccess) {
        free(recording);
        return cuda_fail(reterr, error, "cannot record a step on the GPU");
    }
    recording->stream = stream;
    recording->may_fault = stream->recorded_fault;
    stream->recordings++;
    *ret = recording;
    return KELP_OK;
}

static void replay(struct kelp_stream *base, struct kelp_recording *recording)
{
    struct kelp__cuda_stream *stream = kelp__cuda_stream_of(base);
    if (recording->graph) {
        kelp__cuda_note(stream, use(base->device));
        kelp__cuda_note(stream, cudaGraphLaunch(recording->graph, stream->handle));
    }
    if (recording->may_fault && stream->operators == 0) {
        stream->operators = 1;
    }
}

static void recording_destroy(struct kelp_recording *recording)
{
    if (!recording) {
        return;
    }
    recording->stream->recordings--;
    if (recording->graph && use(recording->stream->base.device) == cudaSuccess) {
        (void)cudaGraphExecDestroy(recording->graph); /* a broken device said so elsewhere */
    }
    free(recording);
}

/* ---- the device ------------------------------------------------------------------------------ */

static void device_destroy(struct kelp_device *device)
{
    struct cuda_device *cuda = reinterpret_cast<struct cuda_device *>(device);
    if (cuda->cudnn && use(device) == cudaSuccess) {
        kelp__cuda_cudnn_destroy(cuda->cudnn);
    }
    free(cuda);
}

static uint64_t device_memory_bytes(const struct kelp_device *device)
{
    return reinterpret_cast<const struct cuda_device *>(device)->memory_bytes;
}

/* Others of the GPU count, too. */
static uint64_t device_memory_free(const struct kelp_device *device)
{
    size_t left = 0, all = 0;
    cudaError_t error = use(device);
    if (error == cudaSuccess) {
        error = cudaMemGetInfo(&left, &all);
    }
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
    }
    return error == cudaSuccess ? left : 0;
}

static void device_describe(const struct kelp_device *device, char text[KELP_COMPUTE_KIND_SIZE])
{
    memcpy(text, reinterpret_cast<const struct cuda_device *>(device)->kind,
           KELP_COMPUTE_KIND_SIZE);
}

/* What decides the bits: the architecture, the number of multiprocessors (cuBLASLt picks its
 * kernels by it), versions, what cuBLASLt picks, and cuDNN where it is used, and the precision. The
 * device is the thread's. */
static kelp_status name_kind(struct cuda_device *device, struct kelp_error *reterr)
{
    static const char *const names[] = {"float32", "tf32", "bfloat16"};
    char products[40], cudnn[32] = "";
    const kelp_status status =
        kelp__cuda_products_describe(device->precision, products, sizeof(products), reterr);
    if (status != KELP_OK) {
        return status;
    }
    if (device->cudnn) {
        kelp__cuda_cudnn_describe(device->cudnn, device->precision, cudnn, sizeof(cudnn));
    }
    (void)snprintf(device->kind, sizeof(device->kind), "%s %s%s%s %s", device->gpu, products,
                   device->cudnn ? " " : "", cudnn, names[device->precision]);
    return KELP_OK;
}

/* Tensor cores have both from Ampere on. */
static kelp_status device_set_precision(struct kelp_device *base,
                                        enum kelp_product_precision precision,
                                        struct kelp_error *reterr)
{
    struct cuda_device *device = reinterpret_cast<struct cuda_device *>(base);
    if (precision != KELP_PRODUCT_FLOAT32 && device->capability < 80) {
        return kelp_fail(reterr, KELP_ERR_UNSUPPORTED,
                         "GPU %d has compute capability %d.%d, and tf32 and bfloat16 need 8.0",
                         device->index, device->capability / 10, device->capability % 10);
    }
    device->precision = precision;
    const kelp_status status = kelp__cuda_use(base, reterr);
    return status == KELP_OK ? name_kind(device, reterr) : status;
}

static kelp_status device_set_cudnn(struct kelp_device *base, enum kelp_cudnn cudnn,
                                    struct kelp_error *reterr)
{
    struct cuda_device *device = reinterpret_cast<struct cuda_device *>(base);
    if (cudnn == KELP_CUDNN_NEVER || device->cudnn) {
        return KELP_OK;
    }
    kelp_status status = kelp__cuda_use(base, reterr);
    if (status == KELP_OK) {
        status = kelp__cuda_cudnn_create(&device->cudnn, reterr);
    }
    if (status == KELP_ERR_NOT_FOUND && cudnn == KELP_CUDNN_AUTO) {
        return KELP_OK;
    }
    return status == KELP_OK ? name_kind(device, reterr) : status;
}

static const struct kelp_device_table table = {
    .name = "cuda",
    .alignment = ALIGNMENT,
    .host_memory = false,
    .channels_last = KELP_CUDA_CHANNELS_LAST,
    .destroy = device_destroy,
    .memory_bytes = device_memory_bytes,
    .memory_free = device_memory_free,
    .describe = device_describe,
    .set_precision = device_set_precision,
    .set_cudnn = device_set_cudnn,
    .alloc = device_alloc,
    .free = device_free,
    .host_alloc = device_host_alloc,
    .host_free = device_host_free,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .wait = stream_wait,
    .mark = stream_mark,
    .wait_mark = stream_wait_mark,
    .after = stream_after,
    .copy_in = copy_in,
    .copy_out = copy_out,
    .record_begin = record_begin,
    .record_end = record_end,
    .replay = replay,
    .recording_destroy = recording_destroy,
#define CUDA_OPERATOR(name, ...) .name = kelp__cuda_##name,
    KELP_PRODUCT_OPERATORS(CUDA_OPERATOR) KELP_OPERATORS(CUDA_OPERATOR)
#undef CUDA_OPERATOR
        .conv2d_create = kelp__cuda_convolution_create,
    .conv2d_destroy = kelp__cuda_convolution_destroy,
    .conv2d_workspace = kelp__cuda_conv2d_workspace,
    .conv2d_scratch = kelp__cuda_convolution_scratch,
    .conv2d = kelp__cuda_convolution,
    .conv2d_gradient = kelp__cuda_convolution_gradient,
};

/* Of the oldest architecture that the kernels are compiled for. */
#define OLDEST_MAJOR 7
#define OLDEST_MINOR 5

static kelp_status check(int index, struct cudaDeviceProp *ret, struct kelp_error *reterr)
{
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaErrorInsufficientDriver) {
        (void)cudaGetLastError();
        return kelp_fail(reterr, KELP_ERR_NOT_FOUND,
                         "no NVIDIA driver for CUDA %d.%d is loaded on this machine",
                         CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    }
    if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0)) {
        (void)cudaGetLastError();
        return kelp_fail(reterr, KELP_ERR_NOT_FOUND, "this machine has no CUDA GPU");
    }
    if (error == cudaSuccess && index >= count) {
        return kelp_fail(reterr, KELP_ERR_NOT_FOUND, "GPU %d: this machine has %d, from 0 on",
                         index, count);
    }
    if (error == cudaSuccess) {
        error = cudaGetDeviceProperties(ret, index);
    }
    if (error != cudaSuccess) {
        return cuda_fail(reterr, error, "cannot look at the GPU");
    }
    if (ret->major * 10 + ret->minor < OLDEST_MAJOR * 10 + OLDEST_MINOR) {
        return kelp_fail(reterr, KELP_ERR_UNSUPPORTED,
                         "GPU %d has compute capability %d.%d: at least %d.%d is needed", index,
                         ret->major, ret->minor, OLDEST_MAJOR, OLDEST_MINOR);
    }
    return KELP_OK;
}

kelp_status kelp_cuda_entry(uint32_t index, struct kelp_device **ret, struct kelp_error *reterr)
{
    struct cudaDeviceProp properties;
    if (index > INT32_MAX) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "GPU %u: no machine has so many", index);
    }
    kelp_status status = check(static_cast<int>(index), &properties, reterr);
    if (status == KELP_OK) {
        status = kelp__cuda_products_load(reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    struct cuda_device *device = static_cast<struct cuda_device *>(calloc(1, sizeof(*device)));
    if (!device) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "cannot allocate the CUDA device");
    }
    device->base.table = &table;
    device->index = static_cast<int>(index);
    device->memory_bytes = properties.totalGlobalMem;
    device->capability = 10 * properties.major + properties.minor;
    (void)snprintf(device->gpu, sizeof(device->gpu), "cuda sm_%d%d sms=%d cuda-%d.%d",
                   properties.major, properties.minor, properties.multiProcessorCount,
                   CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    status = kelp__cuda_use(&device->base, reterr);
    if (status == KELP_OK) {
        status = name_kind(device, reterr);
    }
    if (status != KELP_OK) {
        device_destroy(&device->base);
        return status;
    }
    *ret = &device->base;
    return KELP_OK;
}

void kelp_cuda_leave(void)
{
    if (current != -1) {
        (void)cudaDeviceReset(); /* a broken device said so elsewhere */
        current = -1;
    }
}

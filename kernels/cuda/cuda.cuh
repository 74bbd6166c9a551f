/*
 * What the CUDA device's files share: the stream, launches, sums over a block.
 *
 * Rules for kernels here (tests/gpu/check_ptx.sh looks at what the compiler made of them):
 *   - No float atomics. A sum is added up in an order that follows from the sizes alone: never from
 *     the number of multiprocessors, the grid that happens to be launched or the thread that ends
 *     first. Integer atomics may be used where their order leaves no trace.
 *   - Multiplications and additions are not contracted (-fmad=false), and what one element needs is
 *     written as the CPU's loops have it (kernels/cpu/loops/functions.h), so that operators without
 * sums give the CPU's bits.
 *   - No local memory: no arrays that are indexed at run time.
 *   - Everything a kernel needs comes as arguments by value, device memory aside.
 *
 * The same files are compiled by g++ against tests/lib/cuda/emulated, which runs a kernel's threads
 * one after the other in a drawn order. So they keep to what that folder's headers offer: one-
 * dimensional blocks, static shared memory (KELP_CUDA_SHARED), the warp operations listed there.
 *
 * Private to kernels/cuda.
 */
#ifndef KELP_KERNELS_CUDA_CUDA_CUH
#define KELP_KERNELS_CUDA_CUDA_CUH

#include <cuda_runtime.h>

extern "C" {
#include "kernels/device.h"
}
#include "kernels/cpu/loops/functions.h"

/* A launch whose failure the stream remembers: KELP_CUDA_LAUNCH(stream, kernel, blocks, threads,
 * arguments ...). blocks and threads are one-dimensional; 0 blocks launch nothing. */
#ifndef KELP_CUDA_START
#define KELP_CUDA_START(kernel, blocks, threads, stream, ...)                                      \
    kernel<<<(blocks), (threads), 0, (stream)>>>(__VA_ARGS__)
#endif
#define KELP_CUDA_LAUNCH(stream, kernel, blocks, threads, ...)                                     \
    do {                                                                                           \
        struct kelp__cuda_stream *cuda_ = kelp__cuda_stream_of(stream);                            \
        const uint64_t blocks_ = (blocks);                                                         \
        if (blocks_ != 0 && kelp__cuda_may_launch(cuda_, blocks_)) {                               \
            KELP_CUDA_START(kernel, (unsigned int)blocks_, (threads), cuda_->handle, __VA_ARGS__); \
            kelp__cuda_note(cuda_, cudaGetLastError());                                            \
        }                                                                                          \
    } while (0)
#ifndef KELP_CUDA_SHARED
#define KELP_CUDA_SHARED __shared__
#endif

#define KELP_CUDA_WARP    32u
#define KELP_CUDA_THREADS 256u /* of a block, where nothing else is better */

/* What an operator met that it cannot compute: the first row of the first such operator. In device
 * memory; kernels write it through kelp__cuda_fault(). */
enum kelp__cuda_fault_what { KELP_CUDA_FINE, KELP_CUDA_BAD_ID, KELP_CUDA_BAD_CLASS };
struct kelp__cuda_fault {
    unsigned int serial;      /* of the operator that owns the record; 0: none */
    unsigned int what;        /* enum kelp__cuda_fault_what */
    unsigned long long limit; /* how many rows or classes there are */
    unsigned long long first; /* the row << 32 | the bits of its value; the smallest one wins */
};

/* Marks that are kept apart: more than the parts of a gradient of a GiB, of which each has one
 * (worker/model/mirror.c). */
#define KELP_CUDA_MARKS 1100

struct kelp__cuda_products;
struct kelp__cuda_cudnn;
struct kelp__cuda_kept; /* memory that recordings use, and operators do not any more */
struct kelp__cuda_stream {
    struct kelp_stream base;
    cudaStream_t handle;
    enum kelp_product_precision precision; /* the device's, when the stream was made */
    cudaError_t failed;                    /* the first since the last wait() */
    kelp_status status; /* the first failure that is not CUDA's: out of range, no memory */
    const char *why;    /* in words; static */
    struct kelp__cuda_fault *fault;      /* device memory */
    struct kelp__cuda_fault *fault_host; /* pinned */
    unsigned int operators;              /* that may fault, counted: serials */
    cudaEvent_t marks[KELP_CUDA_MARKS];  /* made when they are needed, and recorded in turn */
    uint64_t mark_count;
    void *scratch; /* device memory, grown by kelp__cuda_scratch() */
    size_t scratch_bytes;
    bool records;                 /* between record_begin() and record_end() */
    bool recorded_fault;          /* of what is being recorded, something may fault */
    uint32_t recordings;          /* that are there */
    unsigned int recorded;        /* of recordings' operators that may fault, counted: serials */
    struct kelp__cuda_kept *kept; /* until the stream goes */
    struct kelp__cuda_products *products; /* kernels/cuda/products.cu */
    void *cudnn; /* cuDNN's handle, made when it is needed: kernels/cuda/conv2d/cudnn.cu */
};

static inline struct kelp__cuda_stream *kelp__cuda_stream_of(struct kelp_stream *stream)
{
    return reinterpret_cast<struct kelp__cuda_stream *>(stream);
}

/* Keep the first failure for wait(). */
void kelp__cuda_note(struct kelp__cuda_stream *stream, cudaError_t error);
void kelp__cuda_fail(struct kelp__cuda_stream *stream, kelp_status status, const char *why);
/* False, and a failure noted, when a grid has more blocks than a device takes (2^31 - 1). */
bool kelp__cuda_may_launch(struct kelp__cuda_stream *stream, uint64_t blocks);

/*
 * `bytes` of device memory, 256-byte aligned, that belong to the operator being enqueued: the next
 * operator of the stream gets the same memory. One call for each operator. NULL, and a failure
 * noted: there is none; the operator launches nothing then.
 */
void *kelp__cuda_scratch(struct kelp__cuda_stream *stream, size_t bytes);

/* A number for an operator that may fault, behind its launch: never 0. */
unsigned int kelp__cuda_serial(struct kelp__cuda_stream *stream);

/* Calls of CUDA's runtime and libraries act on the calling thread's device: make it this one. */
kelp_status kelp__cuda_use(const struct kelp_device *device, struct kelp_error *reterr);
enum kelp_product_precision kelp__cuda_device_precision(const struct kelp_device *device);
/* NULL: convolutions are Kelp's own. */
struct kelp__cuda_cudnn *kelp__cuda_device_cudnn(const struct kelp_device *device);

/* Find cuBLASLt, once for the process. Errors: KELP_ERR_NOT_FOUND, with the places looked at. */
kelp_status kelp__cuda_products_load(struct kelp_error *reterr);
/* What a stream needs for its products; its workspace comes with the first. Errors:
 * KELP_ERR_DEVICE, KELP_ERR_NO_MEMORY. */
kelp_status kelp__cuda_products_create(enum kelp_product_precision precision,
                                       struct kelp__cuda_products **ret, struct kelp_error *reterr);
void kelp__cuda_products_destroy(struct kelp__cuda_products *products); /* NULL: nothing */
/* "cublaslt-13.1.0 0123abcd": the version, and a hash of the kernels that it picks for some sizes.
 * The device is the thread's. Errors: as kelp__cuda_products_create(). */
kelp_status kelp__cuda_products_describe(enum kelp_product_precision precision, char *text,
                                         size_t size, struct kelp_error *reterr);

/* What a device asks cuDNN with. Errors: KELP_ERR_NOT_FOUND, with the places
 * looked at; KELP_ERR_UNSUPPORTED (it is another one), KELP_ERR_DEVICE (it does not start),
 * KELP_ERR_NO_MEMORY. The calling thread's GPU is the device's, here and below. */
struct kelp__cuda_cudnn;
kelp_status kelp__cuda_cudnn_create(struct kelp__cuda_cudnn **ret, struct kelp_error *reterr);
void kelp__cuda_cudnn_destroy(struct kelp__cuda_cudnn *cudnn); /* NULL: nothing */
/* "cudnn-9.19.0 0123abcd": its version, and a hash of what it chooses for a list of shapes. */
void kelp__cuda_cudnn_describe(struct kelp__cuda_cudnn *cudnn,
                               enum kelp_product_precision precision, char *text, size_t size);

/* FNV-1a, from KELP_CUDA_HASH on. */
#define KELP_CUDA_HASH UINT32_C(0x811c9dc5)
static inline uint32_t kelp__cuda_hash(uint32_t hash, uint64_t value)
{
    for (int i = 0; i < 8; i++) {
        hash = (hash ^ (value >> 8 * i & 0xff)) * UINT32_C(0x01000193);
    }
    return hash;
}

/* Operators of kernels/operators.h, and the convolution's. */
#define KELP_CUDA_DECLARE(name, ...)                                                               \
    void kelp__cuda_##name(struct kelp_stream *stream, __VA_ARGS__);
KELP_PRODUCT_OPERATORS(KELP_CUDA_DECLARE)
KELP_OPERATORS(KELP_CUDA_DECLARE)
#undef KELP_CUDA_DECLARE
kelp_status kelp__cuda_conv2d_create(struct kelp_device *device,
                                     const struct kelp_conv2d_shape *shape,
                                     struct kelp_conv2d **ret, struct kelp_error *reterr);
void kelp__cuda_conv2d_destroy(struct kelp_conv2d *conv);
uint64_t kelp__cuda_conv2d_workspace(const struct kelp_conv2d *conv);
void kelp__cuda_conv2d(struct kelp_stream *stream, const struct kelp_conv2d_run *run);
void kelp__cuda_conv2d_gradient(struct kelp_stream *stream, const struct kelp_conv2d_run *run);

/* A convolution by cuDNN, and what it does not take by the above (kernels/cuda/conv2d/cudnn.cu). */
kelp_status kelp__cuda_convolution_create(struct kelp_device *device,
                                          const struct kelp_conv2d_shape *shape,
                                          struct kelp_conv2d **ret, struct kelp_error *reterr);
void kelp__cuda_convolution_destroy(struct kelp_conv2d *conv);
uint64_t kelp__cuda_convolution_scratch(const struct kelp_conv2d *conv);
void kelp__cuda_convolution(struct kelp_stream *stream, const struct kelp_conv2d_run *run);
void kelp__cuda_convolution_gradient(struct kelp_stream *stream, const struct kelp_conv2d_run *run);
/* Before the stream and its device go. */
void kelp__cuda_cudnn_stream_destroy(struct kelp__cuda_stream *stream);

/* ---- in kernels -------------------------------------------------------------------------------
 */

/* Blocks of KELP_CUDA_THREADS for a loop over `count` elements: enough to fill any device, each
 * thread going on in strides of the whole grid. For operators in which elements do not meet. */
static inline uint64_t kelp__cuda_blocks(uint64_t count)
{
    const uint64_t all = (count + KELP_CUDA_THREADS - 1) / KELP_CUDA_THREADS;
    return all < 4096 ? all : 4096;
}
/* The loop of such a kernel. */
#define KELP_CUDA_FOR(i, count)                                                                    \
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < (count);                \
         i += (uint64_t)gridDim.x * blockDim.x)

/* In front of a loop: so many rounds at once, or all, so that its arrays live in registers. */
#ifdef __NVCC__
#define KELP_CUDA_UNROLL(count) _Pragma(KELP_CUDA_TEXT(unroll count))
#define KELP_CUDA_UNROLL_ALL    _Pragma("unroll")
#define KELP_CUDA_TEXT(text)    #text
#else
#define KELP_CUDA_UNROLL(count)
#define KELP_CUDA_UNROLL_ALL
#endif

/* y = or += value. */
static __device__ __forceinline__ void kelp__cuda_put(float *y, float value, enum kelp_write write)
{
    *y = write == KELP_ACCUMULATE ? *y + value : value;
}

/* The sum, or the largest, over neighbouring lanes of a warp, a power of two of them, in each of
 * them; all 32 take part. */
template <typename number>
static __device__ __forceinline__ number kelp__cuda_warp_sum(number value,
                                                             uint32_t lanes = KELP_CUDA_WARP)
{
    for (uint32_t distance = lanes / 2; distance > 0; distance /= 2) {
        value = value + __shfl_xor_sync(0xffffffffu, value, (int)distance);
    }
    return value;
}
static __device__ __forceinline__ float kelp__cuda_warp_max(float value,
                                                            uint32_t lanes = KELP_CUDA_WARP)
{
    for (uint32_t distance = lanes / 2; distance > 0; distance /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, value, (int)distance);
        value = other > value ? other : value;
    }
    return value;
}

/* The sum over a block of KELP_CUDA_THREADS threads, in each thread. `partial` is shared memory of
 * eight numbers that nobody else uses until the next barrier behind the call. All threads call. */
template <typename number>
static __device__ __forceinline__ number kelp__cuda_block_sum(number value, number *partial)
{
    value = kelp__cuda_warp_sum(value);
    if (threadIdx.x % KELP_CUDA_WARP == 0) {
        partial[threadIdx.x / KELP_CUDA_WARP] = value;
    }
    __syncthreads();
    number sum = partial[0];
    for (unsigned int i = 1; i < KELP_CUDA_THREADS / KELP_CUDA_WARP; i++) {
        sum = sum + partial[i];
    }
    return sum;
}

/* Row `row` cannot be computed for its `value`. The first operator that says so owns the record,
 * and of its rows the first one stays: the order of threads leaves no trace. */
static __device__ __forceinline__ void kelp__cuda_fault(struct kelp__cuda_fault *fault,
                                                        unsigned int serial,
                                                        enum kelp__cuda_fault_what what,
                                                        uint64_t limit, uint64_t row, float value)
{
    const unsigned int owner = atomicCAS(&fault->serial, 0u, serial);
    if (owner != 0u && owner != serial) {
        return;
    }
    fault->what = what; /* all threads of the operator write the same */
    fault->limit = limit;
    const unsigned long long place = row < UINT32_MAX ? row : UINT32_MAX;
    (void)atomicMin(&fault->first, place << 32 | kelp__math_float_bits(value));
}

#endif

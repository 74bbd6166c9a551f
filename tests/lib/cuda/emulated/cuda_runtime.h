/*
 * What kernels/cuda needs of CUDA's runtime, for g++: "device" memory is memory of the host, a
 * stream does everything at once, and a kernel's threads are fibers of the calling thread
 * (runtime.cu). Blocks come one after the other in a drawn order, and so do the threads of a block,
 * each as far as its next barrier. A result that depends on the order shows when another is drawn;
 * AddressSanitizer sees what runs over an end.
 *
 * Blocks and grids are one-dimensional, blocks a multiple of 32 threads. A kernel whose threads do
 * not all come to a barrier is ended with a message. Fresh memory is full of NaN.
 *
 * C++ for the .cu files alone, under the name that they include.
 */
#ifndef KELP_TESTS_EMULATED_CUDA_RUNTIME_H
#define KELP_TESTS_EMULATED_CUDA_RUNTIME_H

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__    __attribute__((noinline))
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define KELP_CUDA_SHARED static
#define KELP_CUDA_START(kernel, blocks, threads, stream, ...)                                      \
    kelp_emulated::start(stream, #kernel, kernel, (blocks), (threads), __VA_ARGS__)

#define CUDART_VERSION 13000

/* ---- the host's side ------------------------------------------------------------------------- */

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorStreamCaptureUnsupported = 900,
};
enum cudaMemcpyKind {
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost = 2,
    cudaMemcpyDeviceToDevice = 3
};
struct kelp_emulated_stream;
typedef struct kelp_emulated_stream *cudaStream_t;
struct kelp_emulated_event;
typedef struct kelp_emulated_event *cudaEvent_t;
struct kelp_emulated_graph;
typedef struct kelp_emulated_graph *cudaGraph_t;
struct kelp_emulated_graph_exec;
typedef struct kelp_emulated_graph_exec *cudaGraphExec_t;
struct kelp_emulated_node;
typedef struct kelp_emulated_node *cudaGraphNode_t;
enum cudaStreamCaptureMode { cudaStreamCaptureModeRelaxed = 2 };
struct cudaDeviceProp {
    int major, minor, multiProcessorCount;
    size_t totalGlobalMem;
};
#define cudaStreamNonBlocking  1u
#define cudaEventDisableTiming 2u

cudaError_t cudaGetLastError(void);
const char *cudaGetErrorString(cudaError_t error);
const char *cudaGetErrorName(cudaError_t error);
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int index);
cudaError_t cudaMemGetInfo(size_t *left, size_t *all);
cudaError_t cudaSetDevice(int index);
cudaError_t cudaDeviceReset(void);
cudaError_t cudaMalloc(void **memory, size_t bytes);
cudaError_t cudaFree(void *memory);
cudaError_t cudaMallocHost(void **memory, size_t bytes);
cudaError_t cudaFreeHost(void *memory);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
/* What a captured stream is given to do is kept, and done at each launch. It is an error to wait
 * for such a stream, or to copy to and from the host's memory on it. */
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph);
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph,
                                 unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);

/* ---- a kernel's side ------------------------------------------------------------------------- */

struct dim3 {
    unsigned int x = 1, y = 1, z = 1;
};
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned int x, y;
};
struct alignas(16) uint4 {
    unsigned int x, y, z, w;
};
struct alignas(16) double2 {
    double x, y;
};
inline float2 make_float2(float x, float y)
{
    return {x, y};
}
inline float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}
inline uint2 make_uint2(unsigned int x, unsigned int y)
{
    return {x, y};
}
inline uint4 make_uint4(unsigned int x, unsigned int y, unsigned int z, unsigned int w)
{
    return {x, y, z, w};
}
inline double2 make_double2(double x, double y)
{
    return {x, y};
}

namespace kelp_emulated {

typedef void (*body_function)(void *arguments);
void run(const char *name, unsigned int blocks, unsigned int threads, body_function body,
         void *arguments, size_t argument_bytes);
/* True: the stream is captured, and does it later. */
bool capture(cudaStream_t stream, const std::function<void()> &work);

template <typename call>
void run_call(const char *name, unsigned int blocks, unsigned int threads, call one)
{
    run(
        name, blocks, threads,
        [](void *user) {
            const call *self = static_cast<const call *>(user);
            std::apply(self->kernel, self->arguments);
        },
        &one, sizeof(one));
}

template <typename... Parameters, typename... Arguments>
void start(cudaStream_t stream, const char *name, void (*kernel)(Parameters...),
           unsigned int blocks, unsigned int threads, Arguments &&...arguments)
{
    struct call {
        void (*kernel)(Parameters...);
        std::tuple<Parameters...> arguments;
    } one = {kernel, std::tuple<Parameters...>(static_cast<Parameters>(arguments)...)};
    if (!capture(stream, [=] { run_call(name, blocks, threads, one); })) {
        run_call(name, blocks, threads, one);
    }
}

/* What a lane of a warp gives to, and takes from, an operation of all 32. */
enum operation {
    SYNC_BLOCK,
    SYNC_WARP,
    SHUFFLE_XOR,
    SHUFFLE_DOWN,
    SHUFFLE_UP,
    SHUFFLE,
    BALLOT,
    TOGETHER
};
uint64_t meet(enum operation operation, uint64_t value, unsigned int which);
/* A barrier: SYNC_BLOCK or SYNC_WARP. */
void sync(enum operation operation, const char *file, int line);

/* What the lanes of a warp do as one: run() is called once with what each of them gave. */
struct together {
    void (*run)(struct together *const lanes[32]);
};
inline void meet_together(struct together *mine)
{
    (void)meet(TOGETHER, reinterpret_cast<uintptr_t>(mine), 0);
}

template <typename number>
inline number exchange(enum operation operation, number value, unsigned int which)
{
    static_assert(sizeof(number) <= sizeof(uint64_t));
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof(value));
    bits = meet(operation, bits, which);
    memcpy(&value, &bits, sizeof(value));
    return value;
}

} // namespace kelp_emulated

inline void __syncthreads(const char *file = __builtin_FILE(), int line = __builtin_LINE())
{
    kelp_emulated::sync(kelp_emulated::SYNC_BLOCK, file, line);
}
inline void __syncwarp(unsigned int = 0xffffffffu, const char *file = __builtin_FILE(),
                       int line = __builtin_LINE())
{
    kelp_emulated::sync(kelp_emulated::SYNC_WARP, file, line);
}
template <typename number> inline number __shfl_xor_sync(unsigned int, number value, int mask)
{
    return kelp_emulated::exchange(kelp_emulated::SHUFFLE_XOR, value, (unsigned int)mask);
}
template <typename number>
inline number __shfl_down_sync(unsigned int, number value, unsigned int by)
{
    return kelp_emulated::exchange(kelp_emulated::SHUFFLE_DOWN, value, by);
}
template <typename number> inline number __shfl_up_sync(unsigned int, number value, unsigned int by)
{
    return kelp_emulated::exchange(kelp_emulated::SHUFFLE_UP, value, by);
}
template <typename number> inline number __shfl_sync(unsigned int, number value, int lane)
{
    return kelp_emulated::exchange(kelp_emulated::SHUFFLE, value, (unsigned int)lane);
}
inline unsigned int __ballot_sync(unsigned int, int predicate)
{
    return (unsigned int)kelp_emulated::meet(kelp_emulated::BALLOT, predicate != 0, 0);
}

/* One thread runs at a time: plain memory is atomic enough. */
#ifdef KELP_EMULATED_RACES
namespace kelp_emulated {
void races_atomic(const void *memory, size_t bytes, const void *code);
}
#define KELP_EMULATED_ATOMIC __attribute__((noinline, no_sanitize("thread")))
#define KELP_EMULATED_ATOMIC_AT(at)                                                                \
    kelp_emulated::races_atomic((at), sizeof(*(at)), __builtin_return_address(0))
#else
#define KELP_EMULATED_ATOMIC
#define KELP_EMULATED_ATOMIC_AT(at) (void)0
#endif
template <typename number>
KELP_EMULATED_ATOMIC inline number atomicCAS(number *at, number expected, number value)
{
    KELP_EMULATED_ATOMIC_AT(at);
    const number before = *at;
    *at = before == expected ? value : before;
    return before;
}
template <typename number>
KELP_EMULATED_ATOMIC inline number atomicMin(number *at, number value)
{
    KELP_EMULATED_ATOMIC_AT(at);
    const number before = *at;
    *at = value < before ? value : before;
    return before;
}
template <typename number>
KELP_EMULATED_ATOMIC inline number atomicMax(number *at, number value)
{
    KELP_EMULATED_ATOMIC_AT(at);
    const number before = *at;
    *at = value > before ? value : before;
    return before;
}
template <typename number>
KELP_EMULATED_ATOMIC inline number atomicAdd(number *at, number value)
{
    KELP_EMULATED_ATOMIC_AT(at);
    static_assert(!std::is_floating_point_v<number>, "sums of floats need a fixed order");
    const number before = *at;
    *at = before + value;
    return before;
}
template <typename number>
KELP_EMULATED_ATOMIC inline number atomicOr(number *at, number value)
{
    KELP_EMULATED_ATOMIC_AT(at);
    const number before = *at;
    *at = before | value;
    return before;
}
template <typename number> inline number __ldg(const number *at)
{
    return *at;
}
inline int __popc(unsigned int bits)
{
    return __builtin_popcount(bits);
}
inline int __ffs(int bits)
{
    return __builtin_ffs(bits);
}
inline int __clz(int bits)
{
    return bits == 0 ? 32 : __builtin_clz((unsigned int)bits);
}
inline unsigned int __float_as_uint(float value)
{
    unsigned int bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}
inline float __uint_as_float(unsigned int bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

#include "tests/lib/cuda/emulated/tensor.h"

#endif

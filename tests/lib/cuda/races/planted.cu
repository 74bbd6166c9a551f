/* Kernels that the search for races is tried on: in each pair, one has a fault and the other has
 * none. */
#include <cstdlib>

#include "kernels/cuda/cuda.cuh"

extern "C" {
#include "tests/lib/cuda/emulated_races.h"
}

#define THREADS 64u

enum order { NOTHING, SHUFFLE, WARP, BLOCK };

/* Each thread reads what its neighbour wrote, at a distance of `by`. */
template <enum order order> static __global__ void neighbours(float *y, unsigned int by)
{
    KELP_CUDA_SHARED float values[THREADS];
    values[threadIdx.x] = (float)threadIdx.x;
    if (order == SHUFFLE) {
        (void)__ballot_sync(0xffffffffu, 1);
    } else if (order == WARP) {
        __syncwarp();
    } else if (order == BLOCK) {
        __syncthreads();
    }
    y[blockIdx.x * THREADS + threadIdx.x] = values[threadIdx.x ^ by];
}

/* A loop whose rounds use the same shared memory. */
template <bool barrier> static __global__ void rounds(float *y)
{
    KELP_CUDA_SHARED float value;
    for (unsigned int i = 0; i < 2; i++) {
        if (threadIdx.x == 0) {
            value = (float)i;
        }
        __syncthreads();
        y[i * THREADS + threadIdx.x] = value;
        if (barrier) {
            __syncthreads();
        }
    }
}

/* A thread writes what others only read before. */
template <bool barrier> static __global__ void late_write(float *y)
{
    const float value = y[0];
    if (barrier) {
        __syncthreads();
    }
    y[THREADS + threadIdx.x] = value;
    if (threadIdx.x == 1) {
        y[0] = value + 1.0f;
    }
}

/* All threads write the same place, the same value or each its own. */
template <bool same> static __global__ void all_write(float *y)
{
    y[0] = same ? 1.0f : (float)threadIdx.x;
}

/* A block reads what others write. */
template <bool own> static __global__ void blocks(float *y)
{
    y[blockIdx.x * THREADS + threadIdx.x] = 1.0f;
    __syncthreads();
    const unsigned int block = own ? blockIdx.x : 0;
    y[(2 + blockIdx.x) * THREADS + threadIdx.x] = y[block * THREADS + (threadIdx.x ^ 1u)];
}

template <bool plain> static __global__ void count(float *y)
{
    unsigned int *counts = reinterpret_cast<unsigned int *>(y);
    (void)atomicAdd(counts, 1u);
    if (plain && threadIdx.x == 1) {
        counts[0] = 0;
    }
}

/* Halves of a word belong to two threads. */
template <bool apart> static __global__ void halves(float *y)
{
    uint16_t *at = reinterpret_cast<uint16_t *>(y) + (apart ? threadIdx.x : threadIdx.x / 2);
    *at = (uint16_t)threadIdx.x;
}

/* Each adds up what is its own, with a copy of a struct on the way. */
struct four {
    double values[4];
};
template <bool own> static __global__ void structs(float *y)
{
    struct four *all = reinterpret_cast<struct four *>(y);
    all[threadIdx.x] = {{1.0, 2.0, 3.0, (double)threadIdx.x}};
    const struct four taken = all[own ? threadIdx.x : threadIdx.x ^ 1u];
    y[blockDim.x * 8 + threadIdx.x] = (float)(taken.values[0] + taken.values[3]);
}

/* Reads what nobody wrote: of shared memory, of global memory. */
template <bool written> static __global__ void unwritten_shared(float *y)
{
    KELP_CUDA_SHARED float values[2 * THREADS];
    values[threadIdx.x] = 1.0f;
    y[threadIdx.x] = values[threadIdx.x + (written ? 0 : THREADS)];
}
static __global__ void add_one(float *y, const float *x)
{
    y[threadIdx.x] = x[threadIdx.x] + 1.0f;
}

#define PLANTED(X)                                                                                 \
    X("neighbours, no barrier", true, neighbours<NOTHING>, 1, y, 1u)                               \
    X("neighbours, a vote is no barrier", true, neighbours<SHUFFLE>, 1, y, 1u)                     \
    X("neighbours, a warp's barrier", false, neighbours<WARP>, 1, y, 1u)                           \
    X("neighbours in another warp, a warp's barrier", true, neighbours<WARP>, 1, y, 32u)           \
    X("neighbours in another warp, a barrier", false, neighbours<BLOCK>, 2, y, 32u)                \
    X("rounds, no barrier at the end", true, rounds<false>, 1, y)                                  \
    X("rounds, a barrier at the end", false, rounds<true>, 2, y)                                   \
    X("a late write, no barrier", true, late_write<false>, 1, y)                                   \
    X("a late write, a barrier", false, late_write<true>, 1, y)                                    \
    X("all write their own value", true, all_write<false>, 1, y)                                   \
    X("all write the same value", false, all_write<true>, 2, y)                                    \
    X("a block reads another's", true, blocks<false>, 2, y)                                        \
    X("a block reads its own", false, blocks<true>, 2, y)                                          \
    X("atomic and plain", true, count<true>, 1, y)                                                 \
    X("atomic", false, count<false>, 2, y)                                                         \
    X("a half of a word for two", true, halves<false>, 1, y)                                       \
    X("a half of a word for each", false, halves<true>, 1, y)                                      \
    X("structs of others", true, structs<false>, 1, y)                                             \
    X("structs of one's own", false, structs<true>, 1, y)                                          \
    X("unwritten shared memory", true, unwritten_shared<false>, 1, y)                              \
    X("written shared memory", false, unwritten_shared<true>, 2, y)                                \
    X("unwritten global memory", true, add_one, 1, y, fresh)                                       \
    X("written global memory", false, add_one, 1, y, y)                                            \
    X("memory of the host", true, add_one, 1, y, host)

static const struct kelp_cuda_planted planted[] = {
#define NAME(name, races, ...) {name, races},
    PLANTED(NAME)
#undef NAME
};

uint32_t kelp_cuda_planted_count(void)
{
    return sizeof(planted) / sizeof(planted[0]);
}

struct kelp_cuda_planted kelp_cuda_planted(uint32_t index)
{
    return planted[index];
}

void kelp_cuda_planted_run(uint32_t index)
{
    cudaStream_t stream = NULL;
    void *memory = NULL, *more = NULL;
    uint32_t at = 0;
    const float host[THREADS] = {};
    if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess ||
        cudaMalloc(&memory, 16 * THREADS * sizeof(float)) != cudaSuccess ||
        cudaMalloc(&more, THREADS * sizeof(float)) != cudaSuccess) {
        abort();
    }
    float *y = static_cast<float *>(memory);
    const float *fresh = static_cast<const float *>(more);
    cudaMemsetAsync(memory, 0, 16 * THREADS * sizeof(float), stream);
#define RUN(name, races, kernel, blocks, ...)                                                      \
    if (index == at++) {                                                                           \
        kelp_emulated::start(stream, name, kernel, blocks, THREADS, __VA_ARGS__);                  \
    }
    PLANTED(RUN)
#undef RUN
    cudaFree(memory);
    cudaFree(more);
    cudaStreamDestroy(stream);
}

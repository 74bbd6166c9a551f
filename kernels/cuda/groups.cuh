/*
 * How operators with sums deal rows and columns to threads. Everything here follows from sizes
 * alone, so that sums have one order; whether memory is aligned decides how elements are loaded,
 * and never which thread adds them to what.
 *
 * Private to kernels/cuda.
 */
#ifndef KELP_KERNELS_CUDA_GROUPS_CUH
#define KELP_KERNELS_CUDA_GROUPS_CUH

#include "kernels/cuda/cuda.cuh"

/* for (i = begin; i < end; i += step), with its rounds counted before: the compiler unrolls it
 * (KELP_CUDA_UNROLL) and then loads for several rounds at once. */
#define KELP_CUDA_STEPS(i, begin, end, step)                                                       \
    for (uint64_t i = (begin), rounds_ = kelp__cuda_rounds(i, (end), (step)), round_ = 0;          \
         round_ < rounds_; round_++, i += (step))

static __device__ __forceinline__ uint64_t kelp__cuda_rounds(uint64_t begin, uint64_t end,
                                                             uint32_t step)
{
    return begin < end ? (end - begin + step - 1) / step : 0;
}

/* ---- four neighbours at once ----------------------------------------------------------------- */

/* The elements of a row that a thread takes: single ones, or four neighbours at a time where the
 * row's length is a multiple of four. VECTORS are QUADS that one instruction loads. */
enum kelp__cuda_layout { KELP_CUDA_SINGLES, KELP_CUDA_QUADS, KELP_CUDA_VECTORS };
#define KELP_CUDA_LAYOUTS 3

static inline bool kelp__cuda_aligned(const void *memory)
{
    return (uintptr_t)memory % sizeof(float4) == 0; /* NULL, too: it is not read */
}

static inline enum kelp__cuda_layout kelp__cuda_layout_of(uint64_t width, bool aligned)
{
    if (width % 4 != 0) {
        return KELP_CUDA_SINGLES;
    }
    return aligned ? KELP_CUDA_VECTORS : KELP_CUDA_QUADS;
}

static __device__ __forceinline__ float4 kelp__cuda_load(const float *x, bool vector)
{
    if (vector) {
        return *reinterpret_cast<const float4 *>(x);
    }
    return make_float4(x[0], x[1], x[2], x[3]);
}

static __device__ __forceinline__ void kelp__cuda_store(float *y, float4 value, bool vector)
{
    if (vector) {
        *reinterpret_cast<float4 *>(y) = value;
        return;
    }
    y[0] = value.x;
    y[1] = value.y;
    y[2] = value.z;
    y[3] = value.w;
}

static __device__ __forceinline__ float4 kelp__cuda_add(float4 a, float4 b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/* y = or += value, four of them. */
static __device__ __forceinline__ void kelp__cuda_put4(float *y, float4 value,
                                                       enum kelp_write write, bool vector)
{
    if (write == KELP_ACCUMULATE) {
        value = kelp__cuda_add(kelp__cuda_load(y, vector), value);
    }
    kelp__cuda_store(y, value, vector);
}

/* The first `left` of four, if there are fewer; zeros behind them. */
static __device__ __forceinline__ float4 kelp__cuda_load_some(const float *x, uint64_t left)
{
    return make_float4(left > 0 ? x[0] : 0.0f, left > 1 ? x[1] : 0.0f, left > 2 ? x[2] : 0.0f,
                       left > 3 ? x[3] : 0.0f);
}

static __device__ __forceinline__ void kelp__cuda_put_some(float *y, float4 value, uint64_t left,
                                                           enum kelp_write write)
{
    if (left > 0) {
        kelp__cuda_put(y, value.x, write);
    }
    if (left > 1) {
        kelp__cuda_put(y + 1, value.y, write);
    }
    if (left > 2) {
        kelp__cuda_put(y + 2, value.z, write);
    }
    if (left > 3) {
        kelp__cuda_put(y + 3, value.w, write);
    }
}

/* ---- rows: a group of threads has one -------------------------------------------------------- */

/* Threads that share a row of `width` elements: a part of a warp, a warp, or a whole block. A power
 * of two, so that a block holds whole groups. */
static inline uint32_t kelp__cuda_lanes(uint64_t width)
{
    if (width > 1024) {
        return KELP_CUDA_THREADS;
    }
    uint32_t lanes = 4;
    while (lanes < KELP_CUDA_WARP && 4 * lanes < width) {
        lanes *= 2;
    }
    return lanes;
}

/* Blocks for a loop over rows: 256 / lanes of them in a block at once. */
static inline uint64_t kelp__cuda_row_blocks(uint64_t rows, uint32_t lanes)
{
    const uint64_t groups = KELP_CUDA_THREADS / lanes, all = (rows + groups - 1) / groups;
    return all < (1u << 20) ? all : 1u << 20;
}

/* The sum over the threads of a group, in each of them. `partial` is shared memory of eight
 * numbers. All threads of the block call. */
template <typename number>
static __device__ __forceinline__ number kelp__cuda_group_sum(number value, uint32_t lanes,
                                                              number *partial)
{
    value = kelp__cuda_warp_sum(value, lanes < KELP_CUDA_WARP ? lanes : KELP_CUDA_WARP);
    if (lanes <= KELP_CUDA_WARP) {
        return value;
    }
    if (threadIdx.x % KELP_CUDA_WARP == 0) {
        partial[threadIdx.x / KELP_CUDA_WARP] = value;
    }
    __syncthreads();
    number sum = partial[0];
    for (uint32_t i = 1; i < KELP_CUDA_THREADS / KELP_CUDA_WARP; i++) {
        sum = sum + partial[i];
    }
    __syncthreads(); /* `partial` is free again */
    return sum;
}

/* The largest, likewise. */
static __device__ __forceinline__ float kelp__cuda_group_max(float value, uint32_t lanes,
                                                             float *partial)
{
    value = kelp__cuda_warp_max(value, lanes < KELP_CUDA_WARP ? lanes : KELP_CUDA_WARP);
    if (lanes <= KELP_CUDA_WARP) {
        return value;
    }
    if (threadIdx.x % KELP_CUDA_WARP == 0) {
        partial[threadIdx.x / KELP_CUDA_WARP] = value;
    }
    __syncthreads();
    float largest = partial[0];
    for (uint32_t i = 1; i < KELP_CUDA_THREADS / KELP_CUDA_WARP; i++) {
        largest = partial[i] > largest ? partial[i] : largest;
    }
    __syncthreads();
    return largest;
}

/* ---- columns: a thread has four neighbours, and every so many rows of them ------------------- */

/* A block is `across` threads wide, a power of two, and 256 / across lines high. Rows are split
 * into parts, a block for each, where there are too few columns to keep a device busy. */
struct kelp__cuda_columns {
    uint64_t rows, columns;
    uint32_t across, lines;
    uint64_t blocks; /* side by side */
    uint64_t parts, part_rows;
};

#define KELP_CUDA_COLUMN_BLOCKS 512u /* of all parts, if there are rows enough */
#define KELP_CUDA_COLUMN_ROWS   8u   /* at least, of one thread in a part */

/* outer: how many such matrices there are. */
static inline struct kelp__cuda_columns kelp__cuda_plan_columns(uint64_t outer, uint64_t rows,
                                                                uint64_t columns)
{
    struct kelp__cuda_columns plan = {rows, columns, 1, 0, 0, 1, rows};
    while (plan.across < KELP_CUDA_WARP && 4 * (uint64_t)plan.across < columns) {
        plan.across *= 2;
    }
    plan.lines = KELP_CUDA_THREADS / plan.across;
    plan.blocks = (columns + 4 * plan.across - 1) / (4 * plan.across);
    const uint64_t blocks = outer * plan.blocks;
    const uint64_t least = KELP_CUDA_COLUMN_ROWS * plan.lines, most = (rows + least - 1) / least;
    if (blocks == 0 || blocks > KELP_CUDA_COLUMN_BLOCKS / 2 || most < 2) {
        return plan;
    }
    const uint64_t wanted = KELP_CUDA_COLUMN_BLOCKS / blocks;
    plan.parts = wanted < most ? wanted : most;
    plan.part_rows = (rows + plan.parts - 1) / plan.parts;
    plan.parts = (rows + plan.part_rows - 1) / plan.part_rows;
    return plan;
}

/* The sum over the lines of a block, right in the threads of line 0. `partial` is shared memory of
 * KELP_CUDA_THREADS elements. All threads call. `partial` may be used for the next such sum at
 * once: behind the last barrier a thread reads its own element alone, which is also the one that it
 * writes first. */
static __device__ __forceinline__ float4 kelp__cuda_lines_sum(float4 value, uint32_t across,
                                                              float4 *partial)
{
    partial[threadIdx.x] = value;
    __syncthreads();
    for (uint32_t step = KELP_CUDA_THREADS / 2; step >= across; step /= 2) {
        if (threadIdx.x < step) {
            partial[threadIdx.x] =
                kelp__cuda_add(partial[threadIdx.x], partial[threadIdx.x + step]);
        }
        __syncthreads();
    }
    return partial[threadIdx.x];
}

/* y[c] = or += the sum over rows of x [rows, columns], dense, without a split: for what a first
 * kernel has left of long sums. kernels/cuda/sums.cu. */
void kelp__cuda_add_rows(struct kelp_stream *stream, const float *x, uint64_t rows,
                         uint64_t columns, float *y, enum kelp_write write);

#endif

/*
 * For operators that look at a whole row of a matrix before they write any of it: a group of
 * threads has a row.
 *
 * Rows of up to 4096 columns stay in the group's registers. Longer ones have a block, which takes a
 * chunk of KELP_CUDA_CHUNK columns at a time, in ascending order for what it needs to know of the
 * row, and then backwards: the last chunk is in registers still, and those before it are likelier
 * in a cache the later they were read.
 *
 * Private to kernels/cuda.
 */
#ifndef KELP_KERNELS_CUDA_ROWS_CUH
#define KELP_KERNELS_CUDA_ROWS_CUH

#include "kernels/cuda/groups.cuh"

/* Shapes of a group: 16 << i columns at most of shape i, and behind the shapes whatever is longer.
 * A group has up to 32 threads of 4 elements, a warp with 8 and 16, a block with 4, 8 and 16. */
#define KELP_CUDA_SHAPES 9

/* What a block takes of a longer row at a time, and each of its threads. */
#define KELP_CUDA_CHUNK      4096u
#define KELP_CUDA_CHUNK_SIZE (KELP_CUDA_CHUNK / KELP_CUDA_THREADS)

struct kelp__cuda_rows {
    uint64_t rows;
    uint32_t columns;
    uint32_t shape; /* KELP_CUDA_SHAPES: too long for registers */
    bool quads;     /* how columns are dealt to threads */
    bool vector;    /* quads are loaded and stored as such */
};

static inline struct kelp__cuda_rows kelp__cuda_plan_rows(uint64_t rows, uint32_t columns,
                                                          bool aligned)
{
    struct kelp__cuda_rows plan = {columns != 0 ? rows : 0, columns, 0, columns % 4 == 0,
                                   columns % 4 == 0 && aligned};
    while (plan.shape < KELP_CUDA_SHAPES && 16u << plan.shape < columns) {
        plan.shape++;
    }
    return plan;
}

/* The threads of a group of that plan, and the elements of each. */
static inline uint32_t kelp__cuda_lanes_of(const struct kelp__cuda_rows *plan)
{
    return plan->shape < 3 ? 4u << plan->shape : plan->shape < 6 ? 32u : KELP_CUDA_THREADS;
}

static inline uint32_t kelp__cuda_size_of(const struct kelp__cuda_rows *plan)
{
    return plan->shape < 4 || plan->shape == 6 ? 4 : plan->shape % 3 == 1 ? 8 : 16;
}

/* Launch kernel<lanes, elements of a thread, quads> of the plan's shape, or long_kernel<quads>. */
#define KELP_CUDA_ROW_KERNELS(kernel, long_kernel, quads)                                          \
    {                                                                                              \
        kernel<4, 4, quads>, kernel<8, 4, quads>, kernel<16, 4, quads>, kernel<32, 4, quads>,      \
            kernel<32, 8, quads>, kernel<32, 16, quads>, kernel<256, 4, quads>,                    \
            kernel<256, 8, quads>, kernel<256, 16, quads>, long_kernel<quads>                      \
    }
#define KELP_CUDA_LAUNCH_ROWS(stream, kernel, long_kernel, type, plan, p)                          \
    KELP_CUDA_LAUNCH_PARTS(stream, kernel, long_kernel, type, plan,                                \
                           kelp__cuda_row_blocks((plan).rows, kelp__cuda_lanes_of(&(plan))), p)
/* The same in that many blocks. */
#define KELP_CUDA_LAUNCH_PARTS(stream, kernel, long_kernel, type, plan, parts, p)                  \
    do {                                                                                           \
        static void (*const kernels_[2][KELP_CUDA_SHAPES + 1])(const struct type,                  \
                                                               const struct kelp__cuda_rows) = {   \
            KELP_CUDA_ROW_KERNELS(kernel, long_kernel, false),                                     \
            KELP_CUDA_ROW_KERNELS(kernel, long_kernel, true)};                                     \
        KELP_CUDA_LAUNCH(stream, kernels_[(plan).quads ? 1 : 0][(plan).shape], parts,              \
                         KELP_CUDA_THREADS, p, plan);                                              \
    } while (0)

/* ---- rows in registers ----------------------------------------------------------------------- */

/* The row of a group of threads, again and again. All threads of a block do as many rounds, since
 * there are barriers: kelp__cuda_width_of() a row behind the last one is 0. */
#define KELP_CUDA_FOR_ROWS(row, lanes, plan)                                                       \
    for (uint64_t row =                                                                            \
             (uint64_t)blockIdx.x * (KELP_CUDA_THREADS / (lanes)) + threadIdx.x / (lanes);         \
         row - threadIdx.x / (lanes) < (plan).rows;                                                \
         row += (uint64_t)gridDim.x * (KELP_CUDA_THREADS / (lanes)))

static __device__ __forceinline__ uint32_t kelp__cuda_width_of(uint64_t row,
                                                               const struct kelp__cuda_rows &plan)
{
    return row < plan.rows ? plan.columns : 0;
}

/* The column of a thread's element i. */
template <uint32_t lanes, bool quads>
static __device__ __forceinline__ uint32_t kelp__cuda_column_of(uint32_t i)
{
    const uint32_t lane = threadIdx.x % lanes;
    return quads ? i / 4 * 4 * lanes + 4 * lane + i % 4 : i * lanes + lane;
}

/* A thread's elements of the first `columns` of a row; a whole number of quads where those are
 * dealt. `otherwise` stands for those behind them. */
template <uint32_t lanes, bool quads, uint32_t size>
static __device__ __forceinline__ void kelp__cuda_load_row(float (&values)[size], const float *x,
                                                           uint32_t columns, float otherwise,
                                                           bool vector)
{
    if (quads && vector) {
        KELP_CUDA_UNROLL_ALL
        for (uint32_t i = 0; i < size; i += 4) {
            const uint32_t c = kelp__cuda_column_of<lanes, quads>(i);
            const float4 quad = c < columns
                                    ? kelp__cuda_load(x + c, true)
                                    : make_float4(otherwise, otherwise, otherwise, otherwise);
            values[i] = quad.x;
            values[i + 1] = quad.y;
            values[i + 2] = quad.z;
            values[i + 3] = quad.w;
        }
    } else {
        KELP_CUDA_UNROLL_ALL
        for (uint32_t i = 0; i < size; i++) {
            const uint32_t c = kelp__cuda_column_of<lanes, quads>(i);
            values[i] = c < columns ? x[c] : otherwise;
        }
    }
}

template <uint32_t lanes, bool quads, uint32_t size>
static __device__ __forceinline__ void kelp__cuda_put_row(float *y, const float (&values)[size],
                                                          uint32_t columns, enum kelp_write write,
                                                          bool vector)
{
    if (quads && vector) {
        KELP_CUDA_UNROLL_ALL
        for (uint32_t i = 0; i < size; i += 4) {
            const uint32_t c = kelp__cuda_column_of<lanes, quads>(i);
            if (c < columns) {
                kelp__cuda_put4(y + c,
                                make_float4(values[i], values[i + 1], values[i + 2], values[i + 3]),
                                write, true);
            }
        }
    } else {
        KELP_CUDA_UNROLL_ALL
        for (uint32_t i = 0; i < size; i++) {
            const uint32_t c = kelp__cuda_column_of<lanes, quads>(i);
            if (c < columns) {
                kelp__cuda_put(y + c, values[i], write);
            }
        }
    }
}

/* ---- longer rows ----------------------------------------------------------------------------- */

/* Of a kernel by which a block takes such rows: three blocks of a multiprocessor at once. */
#define KELP_CUDA_LONG_BOUNDS __launch_bounds__(KELP_CUDA_THREADS, 3)
#define KELP_CUDA_FOR_LONG_ROWS(row, plan)                                                         \
    for (uint64_t row = blockIdx.x; row < (plan).rows; row += gridDim.x)

/* Where a row's last chunk begins; the one before it begins KELP_CUDA_CHUNK columns before. */
static __device__ __forceinline__ uint32_t kelp__cuda_last_chunk(uint32_t columns)
{
    return (columns - 1) / KELP_CUDA_CHUNK * KELP_CUDA_CHUNK;
}

/* A thread's elements of the chunk that begins at a column of a row, and where they go. */
template <bool quads>
static __device__ __forceinline__ void
kelp__cuda_load_chunk(float (&values)[KELP_CUDA_CHUNK_SIZE], const float *x, uint32_t begin,
                      float otherwise, const struct kelp__cuda_rows &plan)
{
    kelp__cuda_load_row<KELP_CUDA_THREADS, quads>(values, x + begin, plan.columns - begin,
                                                  otherwise, plan.vector);
}

template <bool quads>
static __device__ __forceinline__ void
kelp__cuda_put_chunk(float *y, const float (&values)[KELP_CUDA_CHUNK_SIZE], uint32_t begin,
                     enum kelp_write write, const struct kelp__cuda_rows &plan)
{
    kelp__cuda_put_row<KELP_CUDA_THREADS, quads>(y + begin, values, plan.columns - begin, write,
                                                 plan.vector);
}

#endif

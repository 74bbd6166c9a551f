/*
 * Products of matrices by tiles, for convolutions whose operands no memory holds as matrices. A
 * block of 256 threads computes `rows` by `columns` elements of the result. It goes along k in
 * steps: while it multiplies what one half of its shared memory holds, each thread loads its share
 * of the next step into registers, rounds it and puts it into the other half.
 *
 * In shared memory operands are words (kernels/cuda/conv2d/tensor.cuh), [word of k][row or column]:
 * a float32, a tf32 number, or two bfloat16 ones that are neighbours in k. How a kernel's loader
 * deals k to words is its own affair, as long as it does so for both operands; sums go along words,
 * and so have one order, which neither the tile's size nor the alignment of operands changes.
 *
 * Private to kernels/cuda/conv2d.
 */
#ifndef KELP_KERNELS_CUDA_CONV2D_CONV2D_TILES_CUH
#define KELP_KERNELS_CUDA_CONV2D_CONV2D_TILES_CUH

#include "kernels/cuda/conv2d/conv2d.cuh"
#include "kernels/cuda/conv2d/tensor.cuh"

#define KELP_CUDA_TILE_WORDS 16 /* of k, in a step */
#define KELP_CUDA_TILE_PAD   8  /* words behind a row: those that a warp reads lie in all banks */

/* Blocks of a kernel that a multiprocessor runs at once, and that get registers for as many: two on
 * Hopper, where they are wanted. Others would spill some. */
static constexpr __host__ __device__ int kelp__cuda_tile_blocks(bool two)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1000
    return two ? 2 : 1;
#else
    (void)two;
    return 1;
#endif
}

/* Elements of k in a word. */
static constexpr __host__ __device__ int
kelp__cuda_word_elements(enum kelp_product_precision precision)
{
    return precision == KELP_PRODUCT_BFLOAT16 ? 2 : 1;
}

/* The word of elements that are neighbours in k; the second one of bfloat16 alone. */
template <enum kelp_product_precision precision>
static __device__ __forceinline__ uint32_t kelp__cuda_word(float first, float second)
{
    if constexpr (precision == KELP_PRODUCT_BFLOAT16) {
        return kelp__cuda_bfloat16_pair(first, second);
    } else if constexpr (precision == KELP_PRODUCT_TF32) {
        return kelp__cuda_tf32(first);
    } else {
        return __float_as_uint(first);
    }
}

template <int rows, int columns> struct alignas(16) kelp__cuda_tile_half {
    uint32_t left[KELP_CUDA_TILE_WORDS][rows + KELP_CUDA_TILE_PAD];
    uint32_t right[KELP_CUDA_TILE_WORDS][columns + KELP_CUDA_TILE_PAD];
};

/* ---- float32 --------------------------------------------------------------------------------- */

/* A thread's share of the result: fours of neighbours, 64 apart, down and across. */
template <enum kelp_product_precision precision, int rows, int columns> struct kelp__cuda_tile {
    float sums[rows / 16][columns / 16];

    __device__ __forceinline__ void clear()
    {
        KELP_CUDA_UNROLL_ALL
        for (int i = 0; i < rows / 16; i++) {
            KELP_CUDA_UNROLL_ALL
            for (int j = 0; j < columns / 16; j++) {
                sums[i][j] = 0.0f;
            }
        }
    }

    template <int count>
    static __device__ __forceinline__ void load(const uint32_t *words, float (&values)[count])
    {
        KELP_CUDA_UNROLL_ALL
        for (int i = 0; i < count; i += 4) {
            const uint4 four = *reinterpret_cast<const uint4 *>(words + 16 * i);
            values[i] = __uint_as_float(four.x);
            values[i + 1] = __uint_as_float(four.y);
            values[i + 2] = __uint_as_float(four.z);
            values[i + 3] = __uint_as_float(four.w);
        }
    }

    __device__ __forceinline__ void add(const struct kelp__cuda_tile_half<rows, columns> &half)
    {
        const uint32_t down = threadIdx.x / 16, across = threadIdx.x % 16;
        KELP_CUDA_UNROLL_ALL
        for (int word = 0; word < KELP_CUDA_TILE_WORDS; word++) {
            float left[rows / 16], right[columns / 16];
            load(half.left[word] + 4 * down, left);
            load(half.right[word] + 4 * across, right);
            KELP_CUDA_UNROLL_ALL
            for (int i = 0; i < rows / 16; i++) {
                KELP_CUDA_UNROLL_ALL
                for (int j = 0; j < columns / 16; j++) {
                    sums[i][j] = kelp__cuda_fma(left[i], right[j], sums[i][j]);
                }
            }
        }
    }

    /* to.row(row in the tile), then to.four(column in the tile, values). */
    template <class target> __device__ __forceinline__ void give(target &to) const
    {
        const uint32_t down = threadIdx.x / 16, across = threadIdx.x % 16;
        KELP_CUDA_UNROLL_ALL
        for (int i = 0; i < rows / 16; i++) {
            to.row(4 * down + 64 * (i / 4) + i % 4);
            KELP_CUDA_UNROLL_ALL
            for (int j = 0; j < columns / 16; j += 4) {
                to.four(4 * across + 16 * j,
                        make_float4(sums[i][j], sums[i][j + 1], sums[i][j + 2], sums[i][j + 3]));
            }
        }
    }
};

/* ---- tensor cores ---------------------------------------------------------------------------- */

/* Eight warps, each with [16 down, 8 across] products of tensor cores. */
template <enum kelp_product_precision precision, int rows, int columns> struct kelp__cuda_tensor {
    static constexpr int warps_across = rows > columns ? 2 : 4;
    static constexpr int warp_rows = rows * warps_across / 8;
    static constexpr int warp_columns = columns / warps_across;
    static constexpr int down = warp_rows / 16, across = warp_columns / 8;
    float sums[down][across][4];

    __device__ __forceinline__ void clear()
    {
        KELP_CUDA_UNROLL_ALL
        for (int i = 0; i < down * across * 4; i++) {
            sums[i / 4 / across][i / 4 % across][i % 4] = 0.0f;
        }
    }

    static __device__ __forceinline__ uint32_t first_row()
    {
        return threadIdx.x / KELP_CUDA_WARP / warps_across * warp_rows;
    }
    static __device__ __forceinline__ uint32_t first_column()
    {
        return threadIdx.x / KELP_CUDA_WARP % warps_across * warp_columns;
    }

    static __device__ __forceinline__ void multiply(float (&to)[4], const uint32_t (&a)[4],
                                                    const uint32_t (&b)[2])
    {
        if constexpr (precision == KELP_PRODUCT_BFLOAT16) {
            kelp__cuda_multiply_bfloat16(to, a, b);
        } else {
            kelp__cuda_multiply_tf32(to, a, b);
        }
    }

    __device__ __forceinline__ void add(const struct kelp__cuda_tile_half<rows, columns> &half)
    {
        const uint32_t g = threadIdx.x % KELP_CUDA_WARP / 4, t = threadIdx.x % 4;
        KELP_CUDA_UNROLL_ALL
        for (int word = 0; word < KELP_CUDA_TILE_WORDS; word += 8) {
            uint32_t right[across][2];
            KELP_CUDA_UNROLL_ALL
            for (int i = 0; i < 2 * across; i++) {
                right[i / 2][i % 2] =
                    half.right[word + t + 4 * (i % 2)][first_column() + 8 * (i / 2) + g];
            }
            KELP_CUDA_UNROLL_ALL
            for (int i = 0; i < down; i++) {
                uint32_t left[4];
                KELP_CUDA_UNROLL_ALL
                for (int j = 0; j < 4; j++) {
                    left[j] =
                        half.left[word + t + j / 2 * 4][first_row() + 16 * i + g + 8 * (j % 2)];
                }
                KELP_CUDA_UNROLL_ALL
                for (int j = 0; j < across; j++) {
                    multiply(sums[i][j], left, right[j]);
                }
            }
        }
    }

    /* to.row(row in the tile), then to.two(column in the tile, values). */
    template <class target> __device__ __forceinline__ void give(target &to) const
    {
        const uint32_t g = threadIdx.x % KELP_CUDA_WARP / 4, t = threadIdx.x % 4;
        KELP_CUDA_UNROLL_ALL
        for (int i = 0; i < 2 * down; i++) {
            to.row(first_row() + 16 * (i / 2) + g + 8 * (i % 2));
            KELP_CUDA_UNROLL_ALL
            for (int j = 0; j < across; j++) {
                to.two(first_column() + 8 * j + 2 * t,
                       make_float2(sums[i / 2][j][i % 2 * 2], sums[i / 2][j][i % 2 * 2 + 1]));
            }
        }
    }
};

template <int rows, int columns>
struct kelp__cuda_tile<KELP_PRODUCT_TF32, rows, columns>
    : kelp__cuda_tensor<KELP_PRODUCT_TF32, rows, columns> {
};
template <int rows, int columns>
struct kelp__cuda_tile<KELP_PRODUCT_BFLOAT16, rows, columns>
    : kelp__cuda_tensor<KELP_PRODUCT_BFLOAT16, rows, columns> {
};

/* ---- a tile ---------------------------------------------------------------------------------- */

/* The tile of `steps` steps: loader.load(step) into registers, loader.put(half) from there. All
 * threads of the block call. */
template <int rows, int columns, class tile, class loader>
static __device__ __forceinline__ void
    kelp__cuda_multiply_tile(struct kelp__cuda_tile_half<rows, columns> (&halves)[2],
                             loader &operands, uint32_t steps, tile &to)
{
    to.clear();
    if (steps == 0) {
        return;
    }
    operands.load(0);
    operands.put(halves[0]);
    __syncthreads();
    for (uint32_t step = 0; step < steps; step++) {
        const bool more = step + 1 < steps;
        if (more) {
            operands.load(step + 1);
        }
        to.add(halves[step % 2]);
        if (more) {
            operands.put(halves[(step + 1) % 2]);
        }
        __syncthreads();
    }
}

/* The result's columns of one row: how many there are from the tile's first one on, and how four
 * or two of them are written. */
struct kelp__cuda_tile_row {
    float *to;         /* the tile's first column; NULL: no such row */
    const float *bias; /* of the tile's first column; NULL: none */
    uint32_t columns;
    enum kelp_write write;
    bool vector; /* columns are in fours, and aligned */

    __device__ __forceinline__ void four(uint32_t column, float4 value) const
    {
        if (!to || column >= columns) {
            return;
        }
        const uint32_t left = columns - column;
        if (bias) {
            value = kelp__cuda_add(value, kelp__cuda_load_some(bias + column, left));
        }
        if (vector) {
            kelp__cuda_put4(to + column, value, write, true);
        } else {
            kelp__cuda_put_some(to + column, value, left, write);
        }
    }

    __device__ __forceinline__ void two(uint32_t column, float2 value) const
    {
        if (!to || column >= columns) {
            return;
        }
        const bool both = column + 1 < columns;
        if (bias) {
            value.x = value.x + bias[column];
            value.y = both ? value.y + bias[column + 1] : 0.0f;
        }
        if (vector) {
            float2 *at = reinterpret_cast<float2 *>(to + column);
            const float2 before = write == KELP_ACCUMULATE ? *at : make_float2(0.0f, 0.0f);
            *at = write == KELP_ACCUMULATE ? make_float2(before.x + value.x, before.y + value.y)
                                           : value;
            return;
        }
        kelp__cuda_put(to + column, value.x, write);
        if (both) {
            kelp__cuda_put(to + column + 1, value.y, write);
        }
    }
};

#endif

/*
 * Operators that move elements: copies from strides to strides, and transposition, which is one of
 * them. See kernels/operators.h for what each does.
 *
 * A copy is first brought to as few dimensions as possible. If the same dimension is the closest
 * one on both sides, threads walk along it; if not, the two go through tiles in shared memory, so
 * that both sides are walked along their own.
 */
#include <stdint.h>

extern "C" {
#include "kernels/copy_plan.h"
}
#include "kernels/cuda/divider.cuh"

/* ---- dimensions ------------------------------------------------------------------------------ */

static void take_out(struct kelp__copy_loops *loops, uint32_t which)
{
    loops->rank--;
    for (uint32_t i = which; i < loops->rank; i++) {
        loops->dims[i] = loops->dims[i + 1];
        loops->x[i] = loops->x[i + 1];
        loops->y[i] = loops->y[i + 1];
    }
}

/* At least one loop stays. False when there is nothing to copy. */
static bool plan(const struct kelp_copy *p, struct kelp__copy_loops *ret)
{
    if (!kelp__copy_plan(p, ret)) {
        return false;
    }
    if (ret->rank == 0) {
        kelp__copy_loops_insert(ret, 1, 1, 1);
    }
    return true;
}

static uint64_t elements_of(const struct kelp__copy_loops *loops)
{
    uint64_t elements = 1;
    for (uint32_t i = 0; i < loops->rank; i++) {
        elements *= loops->dims[i];
    }
    return elements;
}

/* What a kernel is given of them: the innermost one is always the last of the array, so that all
 * indices are constants. */
struct dimensions {
    uint32_t outermost;
    struct kelp__cuda_long_divider dims[KELP_COPY_RANK_MAX];
    uint64_t x[KELP_COPY_RANK_MAX], y[KELP_COPY_RANK_MAX];
};

static struct dimensions dimensions_of(const struct kelp__copy_loops *loops)
{
    struct dimensions ret = {};
    ret.outermost = KELP_COPY_RANK_MAX - loops->rank;
    for (uint32_t i = 0; i < loops->rank; i++) {
        ret.dims[ret.outermost + i] = kelp__cuda_long_divider_of(loops->dims[i]);
        ret.x[ret.outermost + i] = loops->x[i];
        ret.y[ret.outermost + i] = loops->y[i];
    }
    return ret;
}

struct places {
    uint64_t x, y;
};

/* Where the n-th element lies, the innermost dimension counted up first. */
static __device__ __forceinline__ struct places places_of(const struct dimensions &dimensions,
                                                          uint64_t n)
{
    struct places ret = {0, 0};
    KELP_CUDA_UNROLL_ALL
    for (uint32_t i = KELP_COPY_RANK_MAX; i-- > 0;) {
        if (i > dimensions.outermost) {
            const uint64_t rest = kelp__cuda_long_divide(dimensions.dims[i], n);
            const uint64_t digit = n - rest * dimensions.dims[i].by;
            ret.x += digit * dimensions.x[i];
            ret.y += digit * dimensions.y[i];
            n = rest;
        } else if (i == dimensions.outermost) {
            ret.x += n * dimensions.x[i];
            ret.y += n * dimensions.y[i];
        }
    }
    return ret;
}

/* ---- copies along y -------------------------------------------------------------------------- */

struct copy_run {
    const float *x;
    float *y;
    uint64_t count; /* of numbers: elements or fours of them */
    float scale;
    enum kelp_write write;
    struct dimensions dimensions; /* strides and the innermost dimension in numbers */
};

static __device__ __forceinline__ float scaled(float scale, float x)
{
    return scale * x;
}
static __device__ __forceinline__ float4 scaled(float scale, float4 x)
{
    return make_float4(scale * x.x, scale * x.y, scale * x.z, scale * x.w);
}
static __device__ __forceinline__ float sum_of(float a, float b)
{
    return a + b;
}
static __device__ __forceinline__ float4 sum_of(float4 a, float4 b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/* A thread has several numbers on their way at once: all are read before the first is written. */
template <typename number> static __global__ void copy(const struct copy_run run)
{
    constexpr unsigned int several = sizeof(number) == sizeof(float) ? 4 : 2;
    constexpr unsigned int of_block = several * KELP_CUDA_THREADS;
    const number *x = reinterpret_cast<const number *>(run.x);
    number *y = reinterpret_cast<number *>(run.y);
    for (uint64_t first = (uint64_t)blockIdx.x * of_block + threadIdx.x; first < run.count;
         first += (uint64_t)gridDim.x * of_block) {
        number *to[several], values[several];
        KELP_CUDA_UNROLL_ALL
        for (unsigned int s = 0; s < several; s++) {
            const uint64_t i = first + s * KELP_CUDA_THREADS;
            const struct places at = places_of(run.dimensions, i < run.count ? i : first);
            to[s] = y + at.y;
            values[s] = scaled(run.scale, x[at.x]);
            if (run.write == KELP_ACCUMULATE) {
                values[s] = sum_of(*to[s], values[s]);
            }
        }
        KELP_CUDA_UNROLL_ALL
        for (unsigned int s = 0; s < several; s++) {
            if (first + s * KELP_CUDA_THREADS < run.count) {
                *to[s] = values[s];
            }
        }
    }
}

static void launch_floats(struct kelp_stream *stream, const struct kelp_copy *p,
                          const struct kelp__copy_loops *loops)
{
    const struct copy_run run = {.x = p->x,
                                 .y = p->y,
                                 .count = elements_of(loops),
                                 .scale = p->scale,
                                 .write = p->write,
                                 .dimensions = dimensions_of(loops)};
    KELP_CUDA_LAUNCH(stream, copy<float>, kelp__cuda_blocks((run.count + 3) / 4), KELP_CUDA_THREADS,
                     run);
}

/* Both sides are dense along the innermost dimension, and all its rows begin at a four. */
static bool in_fours(const struct kelp_copy *p, const struct kelp__copy_loops *loops)
{
    const uint32_t last = loops->rank - 1;
    const uintptr_t bytes = reinterpret_cast<uintptr_t>(p->x) | reinterpret_cast<uintptr_t>(p->y);
    uint64_t all = loops->dims[last];
    for (uint32_t i = 0; i < last; i++) {
        all |= loops->x[i] | loops->y[i];
    }
    return loops->x[last] == 1 && loops->y[last] == 1 && bytes % sizeof(float4) == 0 &&
           all % 4 == 0;
}

static void launch_fours(struct kelp_stream *stream, const struct kelp_copy *p,
                         struct kelp__copy_loops loops)
{
    const uint32_t last = loops.rank - 1;
    loops.dims[last] /= 4;
    for (uint32_t i = 0; i < last; i++) {
        loops.x[i] /= 4;
        loops.y[i] /= 4;
    }
    const struct copy_run run = {.x = p->x,
                                 .y = p->y,
                                 .count = elements_of(&loops),
                                 .scale = p->scale,
                                 .write = p->write,
                                 .dimensions = dimensions_of(&loops)};
    KELP_CUDA_LAUNCH(stream, copy<float4>, kelp__cuda_blocks((run.count + 1) / 2),
                     KELP_CUDA_THREADS, run);
}

/* ---- copies through tiles -------------------------------------------------------------------- */

/* Blocks that a multiprocessor has room for at once, so that enough of them wait for memory while
 * others write. Before compute capability 8.0 it takes no more than 1,024 threads, and from 12.0 on
 * the compiler spills registers for so many. */
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ < 800 || __CUDA_ARCH__ >= 1200)
#define MORE_BLOCKS 4
#else
#define MORE_BLOCKS 6
#endif

/* A tile of elements that are read and written one by one, or in fours. With a gap behind each row
 * it takes up to half as much again: the narrowest rows have two elements, or four. */
template <typename number> struct tile_kind {
    static constexpr uint32_t lanes = 1, elements = 1024, room = 1536, side = 32;
    static constexpr uint32_t blocks = MORE_BLOCKS;
};
template <> struct tile_kind<float4> {
    static constexpr uint32_t lanes = 4, elements = 4096, room = 5120, side = 64;
    static constexpr uint32_t blocks = 4;
};
#define TILE_EACH  4u   /* numbers of a tile for each thread */
#define TILE_SMALL 512u /* smaller matrices fill no tile: the nearest cache holds some of them */
#define TILE_MANY  (1u << 18) /* elements, from which on there are tiles of fours for all */

/* Matrices [rows, columns]: x is closest along a column, y along a row. */
struct tiles_run {
    const float *x;
    float *y;
    float scale;
    enum kelp_write write;
    uint64_t rows, columns;
    uint64_t x_row, x_column, y_row, y_column; /* strides */
    uint32_t tile_rows, tile_columns;          /* elements of a tile */
    struct kelp__cuda_divider number_rows,
        number_columns; /* numbers in a column of a tile, a row */
    struct kelp__cuda_long_divider row_tiles, column_tiles; /* tiles of a matrix */
    struct dimensions matrices;
};

/* The n-th number of a tile, counted along its columns (to read) or its rows (to write). */
struct tile_place {
    uint32_t row, column;
};
template <uint32_t lanes>
static __device__ __forceinline__ struct tile_place down(const struct tiles_run &run, uint32_t n)
{
    const uint32_t column = kelp__cuda_divide(run.number_rows, n);
    return {lanes * (n - column * run.number_rows.by), column};
}
template <uint32_t lanes>
static __device__ __forceinline__ struct tile_place across(const struct tiles_run &run, uint32_t n)
{
    const uint32_t row = kelp__cuda_divide(run.number_columns, n);
    return {row, lanes * (n - row * run.number_columns.by)};
}

struct tile {
    uint32_t rows, columns; /* that the matrix has of it */
    const float *x;
    float *y;
};

static __device__ __forceinline__ uint32_t at_most(uint64_t left, uint32_t whole)
{
    return (uint32_t)(left < whole ? left : whole);
}

static __device__ __forceinline__ struct tile tile_of(const struct tiles_run &run, uint64_t n)
{
    const uint64_t line = kelp__cuda_long_divide(run.column_tiles, n),
                   matrix = kelp__cuda_long_divide(run.row_tiles, line);
    const uint64_t column = (n - line * run.column_tiles.by) * run.tile_columns;
    const uint64_t row = (line - matrix * run.row_tiles.by) * run.tile_rows;
    const struct places at = places_of(run.matrices, matrix);
    struct tile ret;
    ret.rows = at_most(run.rows - row, run.tile_rows);
    ret.columns = at_most(run.columns - column, run.tile_columns);
    ret.x = run.x + at.x + row * run.x_row + column * run.x_column;
    ret.y = run.y + at.y + row * run.y_row + column * run.y_column;
    return ret;
}

/* A number that lies along a column of the tile to its room; one that lies along a row from it. */
static __device__ __forceinline__ void spread(float *room, uint32_t pitch, float value)
{
    room[0] = value;
}
static __device__ __forceinline__ void spread(float *room, uint32_t pitch, float4 value)
{
    room[0] = value.x;
    room[pitch] = value.y;
    room[2 * pitch] = value.z;
    room[3 * pitch] = value.w;
}
static __device__ __forceinline__ void collect(const float *room, float *ret)
{
    *ret = room[0];
}
static __device__ __forceinline__ void collect(const float *room, float4 *ret)
{
    *ret = make_float4(room[0], room[1], room[2], room[3]);
}

template <typename number>
static __device__ __forceinline__ void
read_tile(const struct tiles_run &run, const struct tile &tile, float *room, uint32_t pitch)
{
    constexpr uint32_t lanes = tile_kind<number>::lanes;
    number values[TILE_EACH];
    KELP_CUDA_UNROLL_ALL
    for (uint32_t s = 0; s < TILE_EACH; s++) {
        const struct tile_place at = down<lanes>(run, s * KELP_CUDA_THREADS + threadIdx.x);
        const float *x = tile.x + at.row * run.x_row + at.column * run.x_column;
        const bool there = at.row < tile.rows && at.column < tile.columns;
        values[s] = there ? *reinterpret_cast<const number *>(x) : number();
    }
    KELP_CUDA_UNROLL_ALL
    for (uint32_t s = 0; s < TILE_EACH; s++) {
        const struct tile_place at = down<lanes>(run, s * KELP_CUDA_THREADS + threadIdx.x);
        if (at.row < tile.rows && at.column < tile.columns) {
            spread(room + at.row * pitch + at.column, pitch, scaled(run.scale, values[s]));
        }
    }
}

template <typename number>
static __device__ __forceinline__ void
write_tile(const struct tiles_run &run, const struct tile &tile, const float *room, uint32_t pitch)
{
    constexpr uint32_t lanes = tile_kind<number>::lanes;
    number values[TILE_EACH];
    number *to[TILE_EACH];
    KELP_CUDA_UNROLL_ALL
    for (uint32_t s = 0; s < TILE_EACH; s++) {
        const struct tile_place at = across<lanes>(run, s * KELP_CUDA_THREADS + threadIdx.x);
        float *y = tile.y + at.row * run.y_row + at.column * run.y_column;
        const bool there = at.row < tile.rows && at.column < tile.columns;
        to[s] = there ? reinterpret_cast<number *>(y) : nullptr;
        values[s] = there && run.write == KELP_ACCUMULATE ? *to[s] : number();
    }
    KELP_CUDA_UNROLL_ALL
    for (uint32_t s = 0; s < TILE_EACH; s++) {
        const struct tile_place at = across<lanes>(run, s * KELP_CUDA_THREADS + threadIdx.x);
        if (to[s]) {
            number value;
            collect(room + at.row * pitch + at.column, &value);
            *to[s] = run.write == KELP_ACCUMULATE ? sum_of(values[s], value) : value;
        }
    }
}

/* A block for each tile. The distance between rows is odd, so that few threads of a warp meet in a
 * bank either way. */
template <typename number>
static __global__ void __launch_bounds__(KELP_CUDA_THREADS, tile_kind<number>::blocks)
    copy_tiles(const struct tiles_run run)
{
    KELP_CUDA_SHARED float room[tile_kind<number>::room];
    const uint32_t pitch = run.tile_columns | 1u;
    const struct tile tile = tile_of(run, blockIdx.x);
    read_tile<number>(run, tile, room, pitch);
    __syncthreads();
    write_tile<number>(run, tile, room, pitch);
}

/* A tile is square, but for matrices with a side below that: as much of the other as there is room
 * for then. */
template <typename number> static void tile_sizes(struct tiles_run *run)
{
    constexpr uint64_t elements = tile_kind<number>::elements, side = tile_kind<number>::side;
    constexpr uint64_t lanes = tile_kind<number>::lanes;
    const uint64_t height = run->rows < side ? run->rows : side;
    const uint64_t width = run->columns < side ? run->columns : side;
    const uint64_t most_rows = elements / width / side * side;
    const uint64_t most_columns = elements / height / side * side;
    run->tile_rows = (uint32_t)(run->rows < most_rows ? run->rows : most_rows);
    run->tile_columns = (uint32_t)(run->columns < most_columns ? run->columns : most_columns);
    run->number_rows = kelp__cuda_divider_of(run->tile_rows / (uint32_t)lanes);
    run->number_columns = kelp__cuda_divider_of(run->tile_columns / (uint32_t)lanes);
    run->row_tiles = kelp__cuda_long_divider_of((run->rows + run->tile_rows - 1) / run->tile_rows);
    run->column_tiles =
        kelp__cuda_long_divider_of((run->columns + run->tile_columns - 1) / run->tile_columns);
}

/* The dimension that x walks most closely; the last one if x stands still along that. */
static uint32_t closest(const struct kelp__copy_loops *loops)
{
    uint32_t ret = loops->rank - 1;
    for (uint32_t i = 0; i < loops->rank; i++) {
        ret = loops->x[i] != 0 && loops->x[i] < loops->x[ret] ? i : ret;
    }
    return ret;
}

/* x is dense along the columns, y along the rows, and all of them begin at a four. */
static bool tiles_in_fours(const struct tiles_run *run, const struct kelp__copy_loops *outer)
{
    const uintptr_t bytes =
        reinterpret_cast<uintptr_t>(run->x) | reinterpret_cast<uintptr_t>(run->y);
    uint64_t all = run->rows | run->columns | run->x_column | run->y_row;
    for (uint32_t i = 0; i < outer->rank; i++) {
        all |= outer->x[i] | outer->y[i];
    }
    return run->x_row == 1 && run->y_column == 1 && bytes % sizeof(float4) == 0 && all % 4 == 0;
}

template <typename number>
static void start_tiles(struct kelp_stream *stream, struct tiles_run *run, uint64_t matrices)
{
    tile_sizes<number>(run);
    const uint64_t tiles = matrices * run->row_tiles.by * run->column_tiles.by;
    KELP_CUDA_LAUNCH(stream, copy_tiles<number>, tiles, KELP_CUDA_THREADS, *run);
}

static void launch_tiles(struct kelp_stream *stream, const struct kelp_copy *p,
                         struct kelp__copy_loops loops, uint32_t row)
{
    const uint32_t column = loops.rank - 1;
    struct tiles_run run = {};
    run.x = p->x;
    run.y = p->y;
    run.scale = p->scale;
    run.write = p->write;
    run.rows = loops.dims[row];
    run.columns = loops.dims[column];
    run.x_row = loops.x[row];
    run.x_column = loops.x[column];
    run.y_row = loops.y[row];
    run.y_column = loops.y[column];
    take_out(&loops, column);
    take_out(&loops, row);
    if (loops.rank == 0) {
        kelp__copy_loops_insert(&loops, 1, 0, 0);
    }
    run.matrices = dimensions_of(&loops);
    const uint64_t matrices = elements_of(&loops);
    if (tiles_in_fours(&run, &loops) && matrices * run.rows * run.columns >= TILE_MANY) {
        start_tiles<float4>(stream, &run, matrices);
    } else {
        start_tiles<float>(stream, &run, matrices);
    }
}

/* ---- operators ------------------------------------------------------------------------------- */

/* A dense copy whose size is no multiple of four: the elements behind the fours. */
static void launch_rest(struct kelp_stream *stream, const struct kelp_copy *p, uint64_t first,
                        struct kelp__copy_loops loops)
{
    struct kelp_copy rest = *p;
    rest.x = p->x + first;
    rest.y = p->y + first;
    loops.dims[0] -= first;
    launch_floats(stream, &rest, &loops);
}

static void launch_dense(struct kelp_stream *stream, const struct kelp_copy *p,
                         struct kelp__copy_loops loops)
{
    const uint64_t rest = loops.dims[0] % 4, whole = loops.dims[0] - rest;
    if (rest != 0) {
        launch_rest(stream, p, whole, loops);
    }
    loops.dims[0] = whole;
    if (whole != 0) {
        launch_fours(stream, p, loops);
    }
}

static bool dense(const struct kelp_copy *p, struct kelp__copy_loops loops)
{
    loops.dims[0] -= loops.dims[0] % 4;
    return loops.rank == 1 && in_fours(p, &loops);
}

void kelp__cuda_copy(struct kelp_stream *stream, const struct kelp_copy *p)
{
    struct kelp__copy_loops loops;
    if (!plan(p, &loops)) {
        return;
    }
    const uint32_t last = loops.rank - 1, row = closest(&loops);
    if (dense(p, loops)) {
        launch_dense(stream, p, loops);
    } else if (row != last && loops.dims[row] * loops.dims[last] >= TILE_SMALL) {
        launch_tiles(stream, p, loops, row);
    } else if (in_fours(p, &loops)) {
        launch_fours(stream, p, loops);
    } else {
        launch_floats(stream, p, &loops);
    }
}

void kelp__cuda_transpose(struct kelp_stream *stream, const struct kelp_transpose *p)
{
    const uint64_t rows = p->rows, columns = p->columns;
    const struct kelp_copy turned = {.rank = 3,
                                     .dims = {p->batch, columns, rows},
                                     .x = p->x,
                                     .x_strides = {rows * columns, 1, columns},
                                     .y = p->y,
                                     .y_strides = {rows * columns, rows, 1},
                                     .scale = 1.0f,
                                     .write = p->write};
    kelp__cuda_copy(stream, &turned);
}

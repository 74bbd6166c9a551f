/*
 * Rows sorted by their key with a radix sort: digits of a key from the lowest on, each of at most
 * eight bits, as many as the largest key needs. A pass counts each tile's digits, adds the counts
 * up over (digit, tile), and moves each row to its place.
 */
#include "kernels/cuda/embedding.cuh"
#include "kernels/cuda/groups.cuh"

/* A tile is what a block sorts: each warp has TILE_EACH times 32 rows that follow each other. */
#define TILE_EACH  8u
#define TILE_ROWS  (TILE_EACH * KELP_CUDA_THREADS)
#define TILE_WARPS (KELP_CUDA_THREADS / KELP_CUDA_WARP)
#define DIGIT_BITS 8u
#define DIGITS     (1u << DIGIT_BITS)

static_assert(DIGITS == KELP_CUDA_THREADS, "each thread of a block looks after one digit");

/* One pass: what it sorts by, from where to where. */
struct sort_pass {
    uint32_t count; /* rows */
    uint32_t tiles;
    unsigned int shift, bits;    /* of the digit */
    const uint32_t *keys, *rows; /* rows NULL: 0, 1, ... */
    uint32_t *keys_to, *rows_to;
    uint32_t *counts; /* [1 << bits][tiles]: of a digit in a tile, then in the tiles before it */
    uint32_t *totals; /* [1 << bits]: of a digit */
};

/* Where a lane's row stands in its warp's part of a tile: TILE_EACH rows a lane. */
struct tile_part {
    uint32_t keys[TILE_EACH];
    unsigned int digits[TILE_EACH];
    unsigned int ranks[TILE_EACH]; /* among the part's rows of that digit */
};

static __device__ __forceinline__ uint32_t tile_place(unsigned int k)
{
    const unsigned int warp = threadIdx.x / KELP_CUDA_WARP, lane = threadIdx.x % KELP_CUDA_WARP;
    return blockIdx.x * TILE_ROWS + (warp * TILE_EACH + k) * KELP_CUDA_WARP + lane;
}

/* The part of the calling warp; `counts`, which begins as zeros and is the warp's alone, gets the
 * part's rows of each digit. */
static __device__ __forceinline__ void look_at_part(const struct sort_pass &pass,
                                                    unsigned int *counts, struct tile_part *part)
{
    const unsigned int before = (1u << (threadIdx.x % KELP_CUDA_WARP)) - 1;
    KELP_CUDA_UNROLL_ALL
    for (unsigned int k = 0; k < TILE_EACH; k++) {
        const uint32_t place = tile_place(k);
        part->keys[k] = place < pass.count ? pass.keys[place] : 0;
        part->digits[k] = part->keys[k] >> pass.shift & ((1u << pass.bits) - 1);
    }
    KELP_CUDA_UNROLL_ALL
    for (unsigned int k = 0; k < TILE_EACH; k++) {
        const bool there = tile_place(k) < pass.count;
        unsigned int same = __ballot_sync(0xffffffffu, there);
        for (unsigned int bit = 0; bit < pass.bits; bit++) {
            const bool set = (part->digits[k] >> bit & 1) != 0;
            const unsigned int lanes = __ballot_sync(0xffffffffu, set);
            same &= set ? lanes : ~lanes;
        }
        const unsigned int found = there ? counts[part->digits[k]] : 0;
        part->ranks[k] = found + (unsigned int)__popc(same & before);
        __syncwarp();
        if (there && (same & before) == 0) { /* the first lane of a digit */
            counts[part->digits[k]] = found + (unsigned int)__popc(same);
        }
        __syncwarp();
    }
}

static __device__ __forceinline__ void clear_counts(unsigned int (*counts)[DIGITS])
{
    KELP_CUDA_UNROLL_ALL
    for (unsigned int warp = 0; warp < TILE_WARPS; warp++) {
        counts[warp][threadIdx.x] = 0;
    }
    __syncthreads();
}

/* A block for each tile. */
static __global__ void count_digits(struct sort_pass pass)
{
    KELP_CUDA_SHARED unsigned int counts[TILE_WARPS][DIGITS];
    struct tile_part part;
    clear_counts(counts);
    look_at_part(pass, counts[threadIdx.x / KELP_CUDA_WARP], &part);
    __syncthreads();
    if (threadIdx.x < 1u << pass.bits) {
        uint32_t sum = 0;
        KELP_CUDA_UNROLL_ALL
        for (unsigned int warp = 0; warp < TILE_WARPS; warp++) {
            sum += counts[warp][threadIdx.x];
        }
        pass.counts[(uint64_t)threadIdx.x * pass.tiles + blockIdx.x] = sum;
    }
}

/* The sum of the values of the block's threads before the calling one. partial: shared memory that
 * nobody else uses until the next barrier behind the call. */
static __device__ __forceinline__ unsigned int
sum_before(unsigned int value, unsigned int partial[TILE_WARPS], unsigned int *ret_all)
{
    const unsigned int warp = threadIdx.x / KELP_CUDA_WARP, lane = threadIdx.x % KELP_CUDA_WARP;
    unsigned int sum = value;
    for (unsigned int distance = 1; distance < KELP_CUDA_WARP; distance *= 2) {
        const unsigned int other = __shfl_up_sync(0xffffffffu, sum, distance);
        sum += lane >= distance ? other : 0;
    }
    if (lane == KELP_CUDA_WARP - 1) {
        partial[warp] = sum;
    }
    __syncthreads();
    unsigned int before = 0, all = 0;
    KELP_CUDA_UNROLL_ALL
    for (unsigned int i = 0; i < TILE_WARPS; i++) {
        before += i < warp ? partial[i] : 0;
        all += partial[i];
    }
    *ret_all = all;
    return before + sum - value;
}

/* A block for each digit: counts become the sums over the tiles before. */
static __global__ void add_up_counts(struct sort_pass pass)
{
    KELP_CUDA_SHARED unsigned int partial[TILE_WARPS];
    uint32_t *counts = pass.counts + (uint64_t)blockIdx.x * pass.tiles;
    unsigned int carried = 0;
    for (uint32_t first = 0; first < pass.tiles; first += KELP_CUDA_THREADS) {
        const uint32_t tile = first + threadIdx.x;
        const unsigned int count = tile < pass.tiles ? counts[tile] : 0;
        unsigned int all = 0;
        const unsigned int before = sum_before(count, partial, &all);
        if (tile < pass.tiles) {
            counts[tile] = carried + before;
        }
        carried += all;
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        pass.totals[blockIdx.x] = carried;
    }
}

/* A block for each tile: a row goes behind all rows of smaller digits, those of its digit in tiles
 * and warps before, and those of its digit before it in its warp's part. */
static __global__ void move_rows(struct sort_pass pass)
{
    KELP_CUDA_SHARED unsigned int counts[TILE_WARPS][DIGITS];
    KELP_CUDA_SHARED unsigned int partial[TILE_WARPS];
    struct tile_part part;
    clear_counts(counts);
    look_at_part(pass, counts[threadIdx.x / KELP_CUDA_WARP], &part);
    const bool used = threadIdx.x < 1u << pass.bits;
    unsigned int all = 0;
    unsigned int begin = sum_before(used ? pass.totals[threadIdx.x] : 0, partial, &all);
    if (used) { /* all warps have counted: there was a barrier on the way */
        begin += pass.counts[(uint64_t)threadIdx.x * pass.tiles + blockIdx.x];
        KELP_CUDA_UNROLL_ALL
        for (unsigned int warp = 0; warp < TILE_WARPS; warp++) {
            const unsigned int count = counts[warp][threadIdx.x];
            counts[warp][threadIdx.x] = begin;
            begin += count;
        }
    }
    __syncthreads();
    KELP_CUDA_UNROLL_ALL
    for (unsigned int k = 0; k < TILE_EACH; k++) {
        const uint32_t place = tile_place(k);
        if (place < pass.count) {
            const uint32_t to =
                counts[threadIdx.x / KELP_CUDA_WARP][part.digits[k]] + part.ranks[k];
            pass.keys_to[to] = part.keys[k];
            pass.rows_to[to] = pass.rows ? pass.rows[place] : place;
        }
    }
}

static size_t rounded(uint64_t numbers)
{
    return (size_t)((numbers * sizeof(uint32_t) + 255) / 256 * 256);
}

static uint32_t tiles_for(uint64_t count)
{
    return (uint32_t)((count + TILE_ROWS - 1) / TILE_ROWS);
}

bool kelp__cuda_sort_memory_find(struct kelp_stream *stream, uint64_t count,
                                 struct kelp__cuda_sort_memory *ret)
{
    const size_t rows = rounded(count), counts = rounded((uint64_t)DIGITS * tiles_for(count));
    unsigned char *memory = static_cast<unsigned char *>(
        kelp__cuda_scratch(kelp__cuda_stream_of(stream), 4 * rows + counts + rounded(DIGITS)));
    if (!memory) {
        return false;
    }
    ret->keys[0] = reinterpret_cast<uint32_t *>(memory);
    ret->keys[1] = reinterpret_cast<uint32_t *>(memory + rows);
    ret->rows[0] = reinterpret_cast<uint32_t *>(memory + 2 * rows);
    ret->rows[1] = reinterpret_cast<uint32_t *>(memory + 3 * rows);
    ret->counts = reinterpret_cast<uint32_t *>(memory + 4 * rows);
    ret->totals = reinterpret_cast<uint32_t *>(memory + 4 * rows + counts);
    return true;
}

unsigned int kelp__cuda_sort(struct kelp_stream *stream,
                             const struct kelp__cuda_sort_memory *memory, uint32_t count,
                             uint32_t largest)
{
    unsigned int bits = 1; /* one pass at least, which makes the rows' numbers */
    while (bits < 32 && largest >> bits != 0) {
        bits++;
    }
    const unsigned int passes = (bits + DIGIT_BITS - 1) / DIGIT_BITS;
    const unsigned int each = (bits + passes - 1) / passes;
    for (unsigned int i = 0; i < passes; i++) {
        const unsigned int from = i % 2, to = 1 - from, left = bits - i * each;
        struct sort_pass pass = {};
        pass.count = count;
        pass.tiles = tiles_for(count);
        pass.shift = i * each;
        pass.bits = left < each ? left : each;
        pass.keys = memory->keys[from];
        pass.rows = i == 0 ? NULL : memory->rows[from];
        pass.keys_to = memory->keys[to];
        pass.rows_to = memory->rows[to];
        pass.counts = memory->counts;
        pass.totals = memory->totals;
        KELP_CUDA_LAUNCH(stream, count_digits, pass.tiles, KELP_CUDA_THREADS, pass);
        KELP_CUDA_LAUNCH(stream, add_up_counts, 1u << pass.bits, KELP_CUDA_THREADS, pass);
        KELP_CUDA_LAUNCH(stream, move_rows, pass.tiles, KELP_CUDA_THREADS, pass);
    }
    return passes % 2;
}

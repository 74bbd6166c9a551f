/*
 * Rows of a table, and their gradient. See kernels/operators.h for what each does.
 *
 * The gradient of a table's row is a sum over the rows with its id, and the order of such a sum is
 * defined: rows ascending, one after the other, beginning with what the table holds. So all bits
 * are the CPU's. The rows are sorted by their id, those of one id staying in order
 * (embedding_sort.cu). Then rows with one id are neighbours: a segment.
 *
 * A short segment is added up by as many threads as a row of the table has elements or, where that
 * is more, by 32. A long one has a warp, whose lanes load many rows at once. It still adds them one
 * after the other, at best four cycles a row: a table of a few rows that a million rows refer to
 * takes as long as its most frequent id says, and no device can change that.
 */
#include "kernels/cuda/embedding.cuh"
#include "kernels/cuda/groups.cuh"

/* What the operators share: the record of faults, and the operator's number there. */
struct id_faults {
    struct kelp__cuda_fault *fault;
    unsigned int serial;
};

static struct id_faults faults_of(struct kelp_stream *stream)
{
    struct kelp__cuda_stream *cuda = kelp__cuda_stream_of(stream);
    return {cuda->fault, kelp__cuda_serial(cuda)};
}

/* The number of the table's row; `vocab` where the id is none. */
static __device__ __forceinline__ uint32_t table_row(const struct kelp_embedding &embedding,
                                                     float id)
{
    /* The first comparison also refuses NaN, and keeps what follows within the range of uint32_t.
     */
    if (id >= 0.0f && id < (float)embedding.vocab && (float)(uint32_t)id == id &&
        (uint32_t)id < embedding.vocab) {
        return (uint32_t)id;
    }
    return embedding.vocab;
}

static __device__ __forceinline__ void report(const struct kelp_embedding &embedding,
                                              const struct id_faults &faults, uint64_t row,
                                              float id)
{
    kelp__cuda_fault(faults.fault, faults.serial, KELP_CUDA_BAD_ID, embedding.vocab, row, id);
}

/* Rows can be read and written as units of 16 bytes. */
static bool fits_vectors(uint32_t width, const void *a, const void *b)
{
    return width % 4 == 0 && ((uintptr_t)a | (uintptr_t)b) % sizeof(float4) == 0;
}

/* The long division is slow, and seldom needed. */
static __device__ __forceinline__ uint64_t divide(uint64_t a, uint32_t b)
{
    return a >> 32 != 0 ? a / b : (uint32_t)a / b;
}

/* ---- the rows of a table --------------------------------------------------------------------- */

/* Units that a thread gathers at once. */
#define GATHERED 4u

static __device__ __forceinline__ void clear(float *unit)
{
    *unit = 0.0f;
}

static __device__ __forceinline__ void clear(float4 *unit)
{
    *unit = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

/* y in units of one or four elements, `units` of them a row. A row without an id gets zeros. */
template <typename unit>
static __global__ void gather(struct kelp_embedding embedding, uint32_t units, const unit *table,
                              unit *y, struct id_faults faults)
{
    const uint64_t count = embedding.rows * units, block = GATHERED * KELP_CUDA_THREADS;
    for (uint64_t first = blockIdx.x * block; first < count; first += gridDim.x * block) {
        /* Loads for all before any is needed; what is beyond the end takes the first one's. */
        uint64_t rows[GATHERED], from[GATHERED];
        float ids[GATHERED];
        KELP_CUDA_UNROLL_ALL
        for (unsigned int k = 0; k < GATHERED; k++) {
            const uint64_t i = first + k * KELP_CUDA_THREADS + threadIdx.x;
            rows[k] = divide(i < count ? i : first, units);
            ids[k] = embedding.ids[rows[k] * embedding.ids_stride];
            from[k] = i - rows[k] * units;
        }
        unit values[GATHERED];
        KELP_CUDA_UNROLL_ALL
        for (unsigned int k = 0; k < GATHERED; k++) {
            const uint64_t i = first + k * KELP_CUDA_THREADS + threadIdx.x;
            const uint32_t found = table_row(embedding, ids[k]);
            clear(&values[k]);
            if (i < count && found != embedding.vocab) {
                values[k] = table[(uint64_t)found * units + from[k]];
            }
        }
        KELP_CUDA_UNROLL_ALL
        for (unsigned int k = 0; k < GATHERED; k++) {
            const uint64_t i = first + k * KELP_CUDA_THREADS + threadIdx.x;
            if (i < count) {
                y[i] = values[k];
            }
            if (i < count && from[k] == 0 && table_row(embedding, ids[k]) == embedding.vocab) {
                report(embedding, faults, rows[k], ids[k]);
            }
        }
    }
}

/* Each thread has GATHERED units; the loop in the kernel is for what exceeds the largest grid. */
static uint64_t gather_blocks(uint64_t units)
{
    const uint64_t each = GATHERED * KELP_CUDA_THREADS, all = (units + each - 1) / each;
    return all < (UINT64_C(1) << 24) ? all : UINT64_C(1) << 24;
}

void kelp__cuda_embedding(struct kelp_stream *stream, const struct kelp_embedding *embedding)
{
    if (embedding->rows == 0 || embedding->width == 0) {
        return;
    }
    const struct id_faults faults = faults_of(stream);
    if (fits_vectors(embedding->width, embedding->table, embedding->y)) {
        const uint32_t units = embedding->width / 4;
        KELP_CUDA_LAUNCH(stream, gather<float4>, gather_blocks(embedding->rows * units),
                         KELP_CUDA_THREADS, *embedding, units,
                         reinterpret_cast<const float4 *>(embedding->table),
                         reinterpret_cast<float4 *>(embedding->y), faults);
    } else {
        KELP_CUDA_LAUNCH(stream, gather<float>, gather_blocks(embedding->rows * embedding->width),
                         KELP_CUDA_THREADS, *embedding, embedding->width, embedding->table,
                         embedding->y, faults);
    }
}

/* ---- the gradient of a few rows -------------------------------------------------------------- */

/* So few that comparing each with all others costs less than sorting them. */
#define FEW_ROWS 1024u
/* Rows of one id that are loaded before they are added. */
#define FEW_AT_ONCE 8u

/* The lowest bit's index, and mask without it; 32 when there is none. */
static __device__ __forceinline__ unsigned int take_lowest(unsigned int *mask)
{
    const unsigned int lowest = *mask != 0 ? (unsigned int)__ffs((int)*mask) - 1 : KELP_CUDA_WARP;
    *mask &= *mask - 1;
    return lowest;
}

/* sum plus column `column` of the rows base + (the bits of mask), ascending. Adding minus zero, for
 * rows that are not there, changes nothing: the sum of zero and minus zero is zero. */
static __device__ __forceinline__ float add_masked(const struct kelp_embedding &embedding,
                                                   float sum, uint64_t base, unsigned int mask,
                                                   uint64_t column)
{
    const bool there = column < embedding.width;
    while (mask != 0) {
        float values[FEW_AT_ONCE];
        KELP_CUDA_UNROLL_ALL
        for (unsigned int k = 0; k < FEW_AT_ONCE; k++) {
            const unsigned int bit = take_lowest(&mask);
            values[k] = there && bit < KELP_CUDA_WARP
                            ? embedding.dy[(base + bit) * embedding.width + column]
                            : -0.0f;
        }
        KELP_CUDA_UNROLL_ALL
        for (unsigned int k = 0; k < FEW_AT_ONCE; k++) {
            sum = sum + values[k];
        }
    }
    return sum;
}

/* A warp for each row and 32 of its columns: the first row of an id adds up all of the id's. */
static __global__ void add_few(struct kelp_embedding embedding, uint32_t chunks,
                               struct id_faults faults)
{
    KELP_CUDA_SHARED uint32_t keys[FEW_ROWS];
    const unsigned int rows = (unsigned int)embedding.rows, lane = threadIdx.x % KELP_CUDA_WARP;
    for (unsigned int i = threadIdx.x; i < FEW_ROWS; i += KELP_CUDA_THREADS) {
        keys[i] = embedding.vocab;
        if (i < rows) {
            const float id = embedding.ids[i * embedding.ids_stride];
            keys[i] = table_row(embedding, id);
            if (blockIdx.x == 0 && keys[i] == embedding.vocab) {
                report(embedding, faults, i, id);
            }
        }
    }
    __syncthreads();
    const unsigned int row =
        blockIdx.x / chunks * (KELP_CUDA_THREADS / KELP_CUDA_WARP) + threadIdx.x / KELP_CUDA_WARP;
    if (row >= rows || keys[row] == embedding.vocab) {
        return;
    }
    const uint32_t key = keys[row];
    const unsigned int in_warp = row % KELP_CUDA_WARP, base = row - in_warp;
    for (unsigned int i = 0; i < base; i += KELP_CUDA_WARP) {
        if (__ballot_sync(0xffffffffu, keys[i + lane] == key) != 0) {
            return;
        }
    }
    unsigned int mask = __ballot_sync(0xffffffffu, keys[base + lane] == key);
    if ((mask & ((1u << in_warp) - 1)) != 0) {
        return;
    }
    const uint64_t column = (uint64_t)(blockIdx.x % chunks) * KELP_CUDA_WARP + lane;
    float *place = embedding.dtable + (uint64_t)key * embedding.width + column;
    float sum = column < embedding.width ? *place : 0.0f;
    for (unsigned int i = base;;) {
        sum = add_masked(embedding, sum, i, mask, column);
        i += KELP_CUDA_WARP;
        if (i >= rows) {
            break;
        }
        mask = __ballot_sync(0xffffffffu, keys[i + lane] == key);
    }
    if (column < embedding.width) {
        *place = sum;
    }
}

static void few_rows(struct kelp_stream *stream, const struct kelp_embedding *embedding,
                     const struct id_faults &faults)
{
    const uint64_t warps = KELP_CUDA_THREADS / KELP_CUDA_WARP;
    const uint32_t chunks =
        (uint32_t)(((uint64_t)embedding->width + KELP_CUDA_WARP - 1) / KELP_CUDA_WARP);
    KELP_CUDA_LAUNCH(stream, add_few, (embedding->rows + warps - 1) / warps * chunks,
                     KELP_CUDA_THREADS, *embedding, chunks, faults);
}

/* ---- segments -------------------------------------------------------------------------------- */

static __global__ void make_keys(struct kelp_embedding embedding, uint64_t first, uint32_t count,
                                 uint32_t *keys, struct id_faults faults)
{
    KELP_CUDA_FOR (i, count) {
        const float id = embedding.ids[(first + i) * embedding.ids_stride];
        keys[i] = table_row(embedding, id);
        if (keys[i] == embedding.vocab) {
            report(embedding, faults, first + i, id);
        }
    }
}

/* Rows in the order of their ids. */
struct sorted_rows {
    const uint32_t *keys, *rows;
    uint32_t count;
    uint32_t vocab;  /* the key of rows without an id, which stand last */
    const float *dy; /* of row 0 */
    float *dtable;
};

/* A segment is long if one key stands at two neighbouring places of LONG_STEP, 2 LONG_STEP, ...:
 * easy to tell from wherever one stands in it. Short ones have fewer than 2 LONG_STEP rows. */
#define LONG_STEP KELP_CUDA_WARP

/* The key at a place; vocab, that of no row, behind the end. */
static __device__ __forceinline__ uint32_t key_at(const struct sorted_rows &sorted, uint64_t place)
{
    return place < sorted.count ? sorted.keys[place] : sorted.vocab;
}

/* Where a segment that begins at `begin` has its key once more if it is long. */
static __device__ __forceinline__ uint64_t long_place(uint64_t begin)
{
    return (begin + LONG_STEP - 1) / LONG_STEP * LONG_STEP + LONG_STEP;
}

static __device__ __forceinline__ float plus(float a, float b)
{
    return a + b;
}

static __device__ __forceinline__ float4 plus(float4 a, float4 b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/* Rows that a thread loads before it adds them. */
#define SHORT_AT_ONCE 4u

/* A group of threads for each place of the sorted rows and `group` units of a row's width; what is
 * not the beginning of a short segment has nothing to do. */
template <typename unit>
static __global__ void add_short(struct sorted_rows sorted, uint32_t units, unsigned int group,
                                 uint32_t chunks)
{
    const unit *dy = reinterpret_cast<const unit *>(sorted.dy);
    unit *dtable = reinterpret_cast<unit *>(sorted.dtable);
    const uint32_t begin = blockIdx.x / chunks * (KELP_CUDA_THREADS / group) + threadIdx.x / group;
    const uint64_t column = (uint64_t)(blockIdx.x % chunks) * group + threadIdx.x % group;
    if (begin >= sorted.count || column >= units) {
        return;
    }
    const uint32_t key = sorted.keys[begin];
    const uint32_t before = begin != 0 ? sorted.keys[begin - 1] : sorted.vocab;
    const uint32_t ahead = key_at(sorted, long_place(begin));
    if (key == sorted.vocab || before == key || ahead == key) {
        return;
    }
    unit *place = dtable + (uint64_t)key * units + column;
    unit sum = *place;
    bool more = true;
    for (uint64_t i = begin; more; i += SHORT_AT_ONCE) {
        uint32_t keys[SHORT_AT_ONCE], rows[SHORT_AT_ONCE];
        unit values[SHORT_AT_ONCE];
        KELP_CUDA_UNROLL_ALL
        for (unsigned int k = 0; k < SHORT_AT_ONCE; k++) {
            keys[k] = key_at(sorted, i + k);
            rows[k] = i + k < sorted.count ? sorted.rows[i + k] : 0;
        }
        KELP_CUDA_UNROLL_ALL
        for (unsigned int k = 0; k < SHORT_AT_ONCE; k++) {
            clear(&values[k]);
            if (keys[k] == key) {
                values[k] = dy[(uint64_t)rows[k] * units + column];
            }
        }
        KELP_CUDA_UNROLL_ALL
        for (unsigned int k = 0; k < SHORT_AT_ONCE; k++) {
            sum = keys[k] == key ? plus(sum, values[k]) : sum;
        }
        more = keys[SHORT_AT_ONCE - 1] == key;
    }
    *place = sum;
}

/* No row. */
#define NO_ROW UINT32_MAX

/* What a warp adds in one go: ROWS rows at each load, 32 / ROWS columns of each. With many rows at
 * a load fewer loads make a batch. */
template <unsigned int ROWS> struct batch_of {
    static constexpr unsigned int loads = ROWS <= 4 ? 32 : 128 / ROWS;
    static constexpr unsigned int rows = loads * ROWS;
    static constexpr unsigned int numbers = rows / KELP_CUDA_WARP; /* of rows, in each lane */
};

/* The rows at places first, first + 1, ... that have the key: lane l has those at first + l,
 * first + 32 + l, ... */
template <unsigned int ROWS>
static __device__ __forceinline__ void load_numbers(const struct sorted_rows &sorted,
                                                    uint64_t first, uint32_t key, uint32_t *numbers)
{
    KELP_CUDA_UNROLL_ALL
    for (unsigned int q = 0; q < batch_of<ROWS>::numbers; q++) {
        const uint64_t place = first + q * KELP_CUDA_WARP + threadIdx.x % KELP_CUDA_WARP;
        const bool inside = place < sorted.count;
        const uint32_t found = inside ? sorted.keys[place] : sorted.vocab;
        const uint32_t row = inside ? sorted.rows[place] : NO_ROW;
        numbers[q] = found == key ? row : NO_ROW; /* key is not vocab */
    }
}

/* Lane l gets column l % (32 / ROWS) of row l / (32 / ROWS) of each load. Minus zero stands for
 * rows that are not there: adding it changes nothing. */
template <unsigned int ROWS>
static __device__ __forceinline__ void load_values(const struct sorted_rows &sorted, uint32_t width,
                                                   uint64_t column, const uint32_t *numbers,
                                                   float *values)
{
    const unsigned int mine = threadIdx.x % KELP_CUDA_WARP / (KELP_CUDA_WARP / ROWS);
    KELP_CUDA_UNROLL_ALL
    for (unsigned int u = 0; u < batch_of<ROWS>::loads; u++) {
        const unsigned int first = u * ROWS;
        const uint32_t row = __shfl_sync(0xffffffffu, numbers[first / KELP_CUDA_WARP],
                                         (int)(first % KELP_CUDA_WARP + mine));
        values[u] =
            row != NO_ROW && column < width ? sorted.dy[(uint64_t)row * width + column] : -0.0f;
    }
}

template <unsigned int ROWS>
static __device__ __forceinline__ float add_values(float sum, const float *values)
{
    const unsigned int column = threadIdx.x % (KELP_CUDA_WARP / ROWS);
    KELP_CUDA_UNROLL_ALL
    for (unsigned int u = 0; u < batch_of<ROWS>::loads; u++) {
        KELP_CUDA_UNROLL_ALL
        for (unsigned int row = 0; row < ROWS; row++) {
            const float value = ROWS == 1
                                    ? values[u]
                                    : __shfl_sync(0xffffffffu, values[u],
                                                  (int)(row * (KELP_CUDA_WARP / ROWS) + column));
            sum = sum + value;
        }
    }
    return sum;
}

#define LONG_THREADS 128u

/* A warp for every LONG_STEP-th place of the sorted rows and 32 columns, or all columns where there
 * are fewer: the first of them in a long segment adds it up. While a batch of rows is added the
 * next one is on its way, and the numbers of the one behind that. */
template <unsigned int ROWS>
static __global__ void add_long(struct sorted_rows sorted, uint32_t width, uint32_t chunks)
{
    const unsigned int lane = threadIdx.x % KELP_CUDA_WARP;
    const uint64_t place = ((uint64_t)(blockIdx.x / chunks) * (LONG_THREADS / KELP_CUDA_WARP) +
                            threadIdx.x / KELP_CUDA_WARP) *
                           LONG_STEP;
    const uint64_t column =
        (uint64_t)(blockIdx.x % chunks) * KELP_CUDA_WARP + lane % (KELP_CUDA_WARP / ROWS);
    if (place >= sorted.count) {
        return;
    }
    const uint32_t key = sorted.keys[place];
    const uint32_t before = place != 0 ? sorted.keys[place - LONG_STEP] : sorted.vocab;
    const uint32_t ahead = key_at(sorted, place + LONG_STEP);
    if (key == sorted.vocab || before == key || ahead != key) {
        return;
    }
    const bool earlier = place > lane && sorted.keys[place - 1 - lane] == key;
    uint64_t first = place - (uint64_t)__popc(__ballot_sync(0xffffffffu, earlier));
    float *element = sorted.dtable + (uint64_t)key * width + column;
    const bool mine = lane < KELP_CUDA_WARP / ROWS && column < width;
    float sum = mine ? *element : 0.0f;
    uint32_t numbers[batch_of<ROWS>::numbers];
    float values[batch_of<ROWS>::loads], next[batch_of<ROWS>::loads];
    load_numbers<ROWS>(sorted, first, key, numbers);
    load_values<ROWS>(sorted, width, column, numbers, values);
    first += batch_of<ROWS>::rows;
    load_numbers<ROWS>(sorted, first, key, numbers);
    while (__shfl_sync(0xffffffffu, numbers[0], 0) != NO_ROW) {
        load_values<ROWS>(sorted, width, column, numbers, next);
        first += batch_of<ROWS>::rows;
        load_numbers<ROWS>(sorted, first, key, numbers);
        sum = add_values<ROWS>(sum, values);
        KELP_CUDA_UNROLL_ALL
        for (unsigned int u = 0; u < batch_of<ROWS>::loads; u++) {
            values[u] = next[u];
        }
    }
    sum = add_values<ROWS>(sum, values);
    if (mine) {
        *element = sum;
    }
}

/* A power of two of threads for `units`, within one warp, and how often that is. */
static unsigned int group_for(uint32_t units, uint32_t *ret_chunks)
{
    unsigned int group = 1;
    while (group < KELP_CUDA_WARP && group < units) {
        group *= 2;
    }
    *ret_chunks = (uint32_t)(((uint64_t)units + group - 1) / group);
    return group;
}

static void short_segments(struct kelp_stream *stream, const struct sorted_rows *sorted,
                           uint32_t width)
{
    const bool vectors = fits_vectors(width, sorted->dy, sorted->dtable);
    const uint32_t units = vectors ? width / 4 : width;
    uint32_t chunks = 0;
    const unsigned int group = group_for(units, &chunks), each = KELP_CUDA_THREADS / group;
    const uint64_t blocks = ((uint64_t)sorted->count + each - 1) / each * chunks;
    if (vectors) {
        KELP_CUDA_LAUNCH(stream, add_short<float4>, blocks, KELP_CUDA_THREADS, *sorted, units,
                         group, chunks);
    } else {
        KELP_CUDA_LAUNCH(stream, add_short<float>, blocks, KELP_CUDA_THREADS, *sorted, units, group,
                         chunks);
    }
}

static void long_segments(struct kelp_stream *stream, const struct sorted_rows *sorted,
                          uint32_t width)
{
    uint32_t chunks = 0;
    const unsigned int columns = group_for(width, &chunks);
    const uint64_t each = LONG_STEP * LONG_THREADS / KELP_CUDA_WARP;
    const uint64_t blocks = (sorted->count + each - 1) / each * chunks;
#define LAUNCH_LONG(rows)                                                                          \
    KELP_CUDA_LAUNCH(stream, add_long<rows>, blocks, LONG_THREADS, *sorted, width, chunks)
    switch (columns) {
    case 1:
        LAUNCH_LONG(32);
        break;
    case 2:
        LAUNCH_LONG(16);
        break;
    case 4:
        LAUNCH_LONG(8);
        break;
    case 8:
        LAUNCH_LONG(4);
        break;
    case 16:
        LAUNCH_LONG(2);
        break;
    default:
        LAUNCH_LONG(1);
        break;
    }
#undef LAUNCH_LONG
}

/* Rows first to first + count, behind those before. */
static void add_sorted(struct kelp_stream *stream, const struct kelp_embedding *embedding,
                       uint64_t first, uint32_t count, const struct kelp__cuda_sort_memory *memory,
                       const struct id_faults &faults)
{
    KELP_CUDA_LAUNCH(stream, make_keys, kelp__cuda_blocks(count), KELP_CUDA_THREADS, *embedding,
                     first, count, memory->keys[0], faults);
    const unsigned int at = kelp__cuda_sort(stream, memory, count, embedding->vocab);
    struct sorted_rows sorted = {};
    sorted.keys = memory->keys[at];
    sorted.rows = memory->rows[at];
    sorted.count = count;
    sorted.vocab = embedding->vocab;
    sorted.dy = embedding->dy + first * embedding->width;
    sorted.dtable = embedding->dtable;
    short_segments(stream, &sorted, embedding->width);
    if (count > LONG_STEP) {
        long_segments(stream, &sorted, embedding->width);
    }
}

static void many_rows(struct kelp_stream *stream, const struct kelp_embedding *embedding,
                      const struct id_faults &faults)
{
    struct kelp__cuda_sort_memory memory = {};
    const uint64_t most =
        embedding->rows < KELP_CUDA_SORTED_MAX ? embedding->rows : KELP_CUDA_SORTED_MAX;
    if (!kelp__cuda_sort_memory_find(stream, most, &memory)) {
        return;
    }
    for (uint64_t first = 0; first < embedding->rows; first += KELP_CUDA_SORTED_MAX) {
        const uint64_t left = embedding->rows - first;
        add_sorted(stream, embedding, first,
                   (uint32_t)(left < KELP_CUDA_SORTED_MAX ? left : KELP_CUDA_SORTED_MAX), &memory,
                   faults);
    }
}

void kelp__cuda_embedding_gradient(struct kelp_stream *stream,
                                   const struct kelp_embedding *embedding)
{
    if (embedding->width == 0) {
        return;
    }
    if (embedding->write == KELP_OVERWRITE) {
        kelp__cuda_fill(stream, embedding->dtable, 0.0f,
                        (uint64_t)embedding->vocab * embedding->width);
    }
    if (embedding->rows == 0) {
        return;
    }
    const struct id_faults faults = faults_of(stream);
    if (embedding->rows <= FEW_ROWS) {
        few_rows(stream, embedding, faults);
    } else {
        many_rows(stream, embedding, faults);
    }
}

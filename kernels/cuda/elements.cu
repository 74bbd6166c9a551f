/*
 * Operators whose elements do not meet. See kernels/operators.h for what each does.
 *
 * Most of them are a function of up to three numbers, and one kernel walks the arrays for all of
 * them. Arrays are read and written four numbers at a time wherever all of them are aligned alike.
 */
#include <assert.h>
#include <stdint.h>

#include "kernels/cuda/divider.cuh"
#include "kernels/cuda/elements.cuh"

/* Each points to four numbers that can be read at once. */
template <typename... numbers> static bool aligned(const numbers *...arrays)
{
    return ((reinterpret_cast<uintptr_t>(arrays) | ...) % sizeof(float4)) == 0;
}
static bool fours(uint64_t count)
{
    return count % 4 == 0;
}

/* ---- functions of single numbers ------------------------------------------------------------- */

/* y = f(a, b, c), element by element; f::inputs says how many of a, b and c are there. y may be any
 * of them. */
struct arrays {
    float *y = nullptr;
    const float *a = nullptr, *b = nullptr, *c = nullptr;
    uint64_t count = 0;
    uint64_t head = 0; /* elements in front of the first aligned one */
};

template <typename function>
static __device__ __forceinline__ void one_element(const function f, const struct arrays arrays,
                                                   uint64_t i)
{
    const float a = function::inputs > 0 ? arrays.a[i] : 0.0f;
    const float b = function::inputs > 1 ? arrays.b[i] : 0.0f;
    const float c = function::inputs > 2 ? arrays.c[i] : 0.0f;
    arrays.y[i] = f(a, b, c);
}

/* A thread has several numbers on their way at once: all are read before the first is written. */
template <typename number, typename function>
static __device__ __forceinline__ void walk(const function f, const struct arrays arrays,
                                            uint64_t begin, uint64_t count)
{
    constexpr unsigned int several = sizeof(number) == sizeof(float) ? 4 : 2;
    constexpr unsigned int of_block = several * KELP_CUDA_THREADS;
    number *y = reinterpret_cast<number *>(arrays.y + begin);
    const number *a = reinterpret_cast<const number *>(arrays.a + begin);
    const number *b = reinterpret_cast<const number *>(arrays.b + begin);
    const number *c = reinterpret_cast<const number *>(arrays.c + begin);
    for (uint64_t first = (uint64_t)blockIdx.x * of_block + threadIdx.x; first < count;
         first += (uint64_t)gridDim.x * of_block) {
        number va[several], vb[several], vc[several];
        KELP_CUDA_UNROLL_ALL
        for (unsigned int s = 0; s < several; s++) {
            const uint64_t i = first + s * KELP_CUDA_THREADS;
            const bool there = i < count;
            va[s] = function::inputs > 0 && there ? a[i] : number();
            vb[s] = function::inputs > 1 && there ? b[i] : number();
            vc[s] = function::inputs > 2 && there ? c[i] : number();
        }
        KELP_CUDA_UNROLL_ALL
        for (unsigned int s = 0; s < several; s++) {
            const uint64_t i = first + s * KELP_CUDA_THREADS;
            if (i < count) {
                y[i] = kelp__cuda_each(f, va[s], vb[s], vc[s]);
            }
        }
    }
}

template <typename function>
static __global__ void elements(const function f, const struct arrays arrays)
{
    walk<float>(f, arrays, 0, arrays.count);
}

/* The elements in front of the aligned ones and behind them are done one by one. */
template <typename function>
static __global__ void elements_in_fours(const function f, const struct arrays arrays)
{
    const uint64_t whole = (arrays.count - arrays.head) / 4;
    const uint64_t rest = (arrays.count - arrays.head) % 4;
    walk<float4>(f, arrays, arrays.head, whole);
    const uint64_t thread = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (thread < arrays.head + rest) {
        one_element(f, arrays, thread < arrays.head ? thread : thread + 4 * whole);
    }
}

/* Elements in front of the next aligned one. */
static uint64_t unaligned(const float *array)
{
    return (sizeof(float4) - reinterpret_cast<uintptr_t>(array) % sizeof(float4)) / sizeof(float) %
           4;
}

static bool aligned_alike(const struct arrays &arrays)
{
    const uint64_t head = unaligned(arrays.y);
    return unaligned(arrays.a) == head && unaligned(arrays.b) == head &&
           unaligned(arrays.c) == head;
}

template <typename function>
static void launch(struct kelp_stream *stream, const function &f, struct arrays arrays)
{
    /* What f does not look at points somewhere, too. */
    arrays.a = f.inputs < 1 ? arrays.y : arrays.a;
    arrays.b = f.inputs < 2 ? arrays.y : arrays.b;
    arrays.c = f.inputs < 3 ? arrays.y : arrays.c;
    const uint64_t blocks = kelp__cuda_blocks((arrays.count + 3) / 4);
    if (!aligned_alike(arrays)) {
        KELP_CUDA_LAUNCH(stream, elements<function>, blocks, KELP_CUDA_THREADS, f, arrays);
        return;
    }
    const uint64_t head = unaligned(arrays.y);
    arrays.head = head < arrays.count ? head : arrays.count;
    const uint64_t in_fours = kelp__cuda_blocks((arrays.count + 7) / 8);
    KELP_CUDA_LAUNCH(stream, elements_in_fours<function>, in_fours, KELP_CUDA_THREADS, f, arrays);
}

struct fill_function {
    static constexpr unsigned int inputs = 0;
    float value;
    __device__ float operator()(float, float, float) const
    {
        return value;
    }
};

void kelp__cuda_fill(struct kelp_stream *stream, float *values, float value, uint64_t count)
{
    const struct arrays arrays = {.y = values, .count = count};
    launch(stream, fill_function{value}, arrays);
}

struct axpy_function {
    static constexpr unsigned int inputs = 2;
    float alpha;
    __device__ float operator()(float x, float y, float) const
    {
        return y + alpha * x;
    }
};

void kelp__cuda_axpy(struct kelp_stream *stream, float *y, float alpha, const float *x,
                     uint64_t count)
{
    const struct arrays arrays = {.y = y, .a = x, .b = y, .count = count};
    launch(stream, axpy_function{alpha}, arrays);
}

struct add_function {
    static constexpr unsigned int inputs = 2;
    __device__ float operator()(float a, float b, float) const
    {
        return a + b;
    }
};

void kelp__cuda_add(struct kelp_stream *stream, float *y, const float *a, const float *b,
                    uint64_t count)
{
    const struct arrays arrays = {.y = y, .a = a, .b = b, .count = count};
    launch(stream, add_function{}, arrays);
}

struct subtract_function {
    static constexpr unsigned int inputs = 2;
    __device__ float operator()(float a, float b, float) const
    {
        return a - b;
    }
};

void kelp__cuda_subtract(struct kelp_stream *stream, float *y, const float *a, const float *b,
                         uint64_t count)
{
    const struct arrays arrays = {.y = y, .a = a, .b = b, .count = count};
    launch(stream, subtract_function{}, arrays);
}

template <enum kelp_write write> struct multiply_function {
    static constexpr unsigned int inputs = write == KELP_ACCUMULATE ? 3 : 2;
    __device__ float operator()(float a, float b, float y) const
    {
        return write == KELP_ACCUMULATE ? y + a * b : a * b;
    }
};

void kelp__cuda_multiply(struct kelp_stream *stream, const struct kelp_multiply *p)
{
    const struct arrays arrays = {.y = p->y, .a = p->a, .b = p->b, .c = p->y, .count = p->count};
    if (p->write == KELP_ACCUMULATE) {
        launch(stream, multiply_function<KELP_ACCUMULATE>{}, arrays);
    } else {
        launch(stream, multiply_function<KELP_OVERWRITE>{}, arrays);
    }
}

/* ---- activations ----------------------------------------------------------------------------- */

void kelp__cuda_unary(struct kelp_stream *stream, const struct kelp_unary *p)
{
    const struct arrays arrays = {.y = p->y, .a = p->x, .count = p->count};
    switch (p->kind) {
    case KELP_UNARY_RELU:
        launch(stream, kelp__cuda_unary_function<KELP_UNARY_RELU>{}, arrays);
        break;
    case KELP_UNARY_GELU:
        launch(stream, kelp__cuda_unary_function<KELP_UNARY_GELU>{}, arrays);
        break;
    case KELP_UNARY_ELU:
        launch(stream, kelp__cuda_unary_function<KELP_UNARY_ELU>{}, arrays);
        break;
    case KELP_UNARY_SIGMOID:
        launch(stream, kelp__cuda_unary_function<KELP_UNARY_SIGMOID>{}, arrays);
        break;
    case KELP_UNARY_TANH:
        launch(stream, kelp__cuda_unary_function<KELP_UNARY_TANH>{}, arrays);
        break;
    }
}

template <enum kelp_unary_kind kind, enum kelp_write write>
struct slope_function {
    static constexpr unsigned int inputs = write == KELP_ACCUMULATE ? 3 : 2;
    __device__ __forceinline__ float operator()(float v, float dy, float dx)
        const {const float value = kelp__cuda_slope_times<kind>(v, dy);
               return write == KELP_ACCUMULATE ? dx + value : value;}
}
;

template <enum kelp_unary_kind kind>
static void launch_slope(struct kelp_stream *stream, const struct kelp_unary_gradient *p)
{
    const struct arrays arrays = {.y = p->dx,
                                  .a = kind == KELP_UNARY_GELU ? p->x : p->y,
                                  .b = p->dy,
                                  .c = p->dx,
                                  .count = p->count};
    if (p->write == KELP_ACCUMULATE) {
        launch(stream, slope_function<kind, KELP_ACCUMULATE>{}, arrays);
    } else {
        launch(stream, slope_function<kind, KELP_OVERWRITE>{}, arrays);
    }
}

void kelp__cuda_unary_gradient(struct kelp_stream *stream, const struct kelp_unary_gradient *p)
{
    switch (p->kind) {
    case KELP_UNARY_RELU:
        launch_slope<KELP_UNARY_RELU>(stream, p);
        break;
    case KELP_UNARY_GELU:
        launch_slope<KELP_UNARY_GELU>(stream, p);
        break;
    case KELP_UNARY_ELU:
        launch_slope<KELP_UNARY_ELU>(stream, p);
        break;
    case KELP_UNARY_SIGMOID:
        launch_slope<KELP_UNARY_SIGMOID>(stream, p);
        break;
    case KELP_UNARY_TANH:
        launch_slope<KELP_UNARY_TANH>(stream, p);
        break;
    }
}

/* ---- rows -------------------------------------------------------------------------------------
 *
 * Kernels over rows take a type `number`, float or float4: with the second, the columns and the
 * distances between rows are counted in fours.
 */

template <typename number> static __device__ __forceinline__ number sum_of(number a, number b)
{
    return kelp__cuda_each([](float x, float y) { return x + y; }, a, b);
}

template <typename number>
static __device__ __forceinline__ void put(number *y, number value, enum kelp_write write)
{
    *y = write == KELP_ACCUMULATE ? sum_of(*y, value) : value;
}

/* by_columns: in numbers, as by_width below. */
template <typename number>
static __global__ void bias_add(const struct kelp_bias p,
                                const struct kelp__cuda_long_divider by_columns)
{
    const uint64_t columns = by_columns.by, ld = p.ld / (sizeof(number) / sizeof(float));
    number *matrix = reinterpret_cast<number *>(p.matrix);
    const number *bias = reinterpret_cast<const number *>(p.bias);
    KELP_CUDA_FOR (i, p.rows * columns) {
        const uint64_t row = kelp__cuda_long_divide(by_columns, i), column = i - row * columns;
        number *at = matrix + row * ld + column;
        *at = sum_of(*at, bias[column]);
    }
}

void kelp__cuda_bias_add(struct kelp_stream *stream, const struct kelp_bias *p)
{
    const uint64_t count = (uint64_t)p->rows * p->columns;
    if (fours(p->columns) && fours(p->ld) && aligned(p->matrix, p->bias)) {
        KELP_CUDA_LAUNCH(stream, bias_add<float4>, kelp__cuda_blocks(count / 4), KELP_CUDA_THREADS,
                         *p, kelp__cuda_long_divider_of(p->columns / 4));
    } else {
        KELP_CUDA_LAUNCH(stream, bias_add<float>, kelp__cuda_blocks(count), KELP_CUDA_THREADS, *p,
                         kelp__cuda_long_divider_of(p->columns));
    }
}

template <typename number>
static __global__ void glu(const struct kelp_glu p, const struct kelp__cuda_long_divider by_width)
{
    const uint64_t width = by_width.by;
    const number *x = reinterpret_cast<const number *>(p.x);
    number *y = reinterpret_cast<number *>(p.y);
    KELP_CUDA_FOR (i, p.rows * width) {
        const uint64_t at = i + kelp__cuda_long_divide(by_width, i) * width;
        const number value = x[at], gate = x[at + width];
        y[i] = kelp__cuda_each([](float v, float g) { return v * kelp__math_sigmoid(g); }, value,
                               gate);
    }
}

void kelp__cuda_glu(struct kelp_stream *stream, const struct kelp_glu *p)
{
    const uint64_t count = p->rows * p->width;
    if (fours(p->width) && aligned(p->x, p->y)) {
        KELP_CUDA_LAUNCH(stream, glu<float4>, kelp__cuda_blocks(count / 4), KELP_CUDA_THREADS, *p,
                         kelp__cuda_long_divider_of(p->width / 4));
    } else {
        KELP_CUDA_LAUNCH(stream, glu<float>, kelp__cuda_blocks(count), KELP_CUDA_THREADS, *p,
                         kelp__cuda_long_divider_of(p->width));
    }
}

template <typename number>
static __global__ void glu_gradient(const struct kelp_glu p,
                                    const struct kelp__cuda_long_divider by_width)
{
    const uint64_t width = by_width.by;
    const number *x = reinterpret_cast<const number *>(p.x);
    const number *dy = reinterpret_cast<const number *>(p.dy);
    number *dx = reinterpret_cast<number *>(p.dx);
    KELP_CUDA_FOR (i, p.rows * width) {
        const uint64_t at = i + kelp__cuda_long_divide(by_width, i) * width;
        const number value = x[at], gate = x[at + width], slope = dy[i];
        const number s = kelp__cuda_each([](float g) { return kelp__math_sigmoid(g); }, gate);
        const number first = kelp__cuda_each([](float d, float t) { return d * t; }, slope, s);
        const number second = kelp__cuda_each(
            [](float d, float v, float t) { return d * v * (t * (1.0f - t)); }, slope, value, s);
        put(dx + at, first, p.write);
        put(dx + at + width, second, p.write);
    }
}

void kelp__cuda_glu_gradient(struct kelp_stream *stream, const struct kelp_glu *p)
{
    const uint64_t count = p->rows * p->width;
    if (fours(p->width) && aligned(p->x, p->dy, p->dx)) {
        KELP_CUDA_LAUNCH(stream, glu_gradient<float4>, kelp__cuda_blocks(count / 4),
                         KELP_CUDA_THREADS, *p, kelp__cuda_long_divider_of(p->width / 4));
    } else {
        KELP_CUDA_LAUNCH(stream, glu_gradient<float>, kelp__cuda_blocks(count), KELP_CUDA_THREADS,
                         *p, kelp__cuda_long_divider_of(p->width));
    }
}

/* ---- dropout: Philox4x32-10, one block of four elements for each thread ---------------------- */

struct dropout_run {
    const float *x;
    float *y;
    const uint64_t *seed_step;
    const uint32_t *positions;
    uint64_t elements, blocks; /* of one sample */
    uint64_t all_blocks;
    uint32_t use, threshold;
    float scale;
    enum kelp_write write;
};

/* The finaliser of SplitMix64, as kernels/cpu/loops/loops_dropout.c has it. */
static __device__ __forceinline__ uint64_t mixed_key(uint64_t seed, uint32_t use)
{
    uint64_t h = seed + (use + UINT64_C(1)) * UINT64_C(0x9E3779B97F4A7C15);
    h = (h ^ h >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    h = (h ^ h >> 27) * UINT64_C(0x94D049BB133111EB);
    return h ^ h >> 31;
}

static __device__ __forceinline__ uint4 philox(uint4 counter, uint64_t key)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        const uint64_t first = UINT64_C(0xD2511F53) * counter.x;
        const uint64_t second = UINT64_C(0xCD9E8D57) * counter.z;
        counter = make_uint4((uint32_t)(second >> 32) ^ counter.y ^ k0, (uint32_t)second,
                             (uint32_t)(first >> 32) ^ counter.w ^ k1, (uint32_t)first);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return counter;
}

static __device__ __forceinline__ float kept(const struct dropout_run &run, uint32_t word, float x)
{
    return word >= run.threshold ? x * run.scale : 0.0f;
}

/* The last block of a sample may have fewer than four elements. */
static __device__ __forceinline__ void drop_block(const struct dropout_run &run, uint4 words,
                                                  uint64_t at, uint64_t count)
{
    const float *x = run.x + at;
    float *y = run.y + at;
    kelp__cuda_put(&y[0], kept(run, words.x, x[0]), run.write);
    if (count > 1) {
        kelp__cuda_put(&y[1], kept(run, words.y, x[1]), run.write);
    }
    if (count > 2) {
        kelp__cuda_put(&y[2], kept(run, words.z, x[2]), run.write);
    }
    if (count > 3) {
        kelp__cuda_put(&y[3], kept(run, words.w, x[3]), run.write);
    }
}

static __device__ __forceinline__ bool four_at_once(const float *x, const float *y)
{
    return (reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(y)) % sizeof(float4) == 0;
}

static __global__ void dropout(const struct dropout_run run)
{
    const uint64_t key = mixed_key(run.seed_step[0], run.use), step = run.seed_step[1];
    KELP_CUDA_FOR (i, run.all_blocks) {
        const uint64_t sample = i / run.blocks, block = i - sample * run.blocks;
        const uint64_t at = sample * run.elements + 4 * block, left = run.elements - 4 * block;
        const bool whole = left >= 4 && four_at_once(run.x + at, run.y + at);
        const float4 x =
            whole ? *reinterpret_cast<const float4 *>(run.x + at) : make_float4(0, 0, 0, 0);
        const uint4 words = philox(make_uint4((uint32_t)block, run.positions[sample],
                                              (uint32_t)step, (uint32_t)(step >> 32)),
                                   key);
        if (whole) {
            const float4 value = make_float4(kept(run, words.x, x.x), kept(run, words.y, x.y),
                                             kept(run, words.z, x.z), kept(run, words.w, x.w));
            put(reinterpret_cast<float4 *>(run.y + at), value, run.write);
        } else {
            drop_block(run, words, at, left);
        }
    }
}

void kelp__cuda_dropout(struct kelp_stream *stream, const struct kelp_dropout *p)
{
    assert(p->p >= 0.0f && p->p < 1.0f);
    assert(p->elements / 4 < UINT32_MAX / 2);
    const uint64_t blocks = (p->elements + 3) / 4;
    const struct dropout_run run = {
        .x = p->x,
        .y = p->y,
        .seed_step = p->seed_step,
        .positions = p->positions,
        .elements = p->elements,
        .blocks = blocks,
        .all_blocks = p->samples * blocks,
        .use = p->use,
        .threshold = (uint32_t)((double)p->p * 0x1p32),
        .scale = 1.0f / (1.0f - p->p),
        .write = p->write,
    };
    KELP_CUDA_LAUNCH(stream, dropout, kelp__cuda_blocks(run.all_blocks), KELP_CUDA_THREADS, run);
}

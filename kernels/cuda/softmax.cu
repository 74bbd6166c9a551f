/*
 * Softmax, its logarithm, and their gradient. See kernels/operators.h for what each does.
 */
#include "kernels/cuda/rows.cuh"

#define PARTIAL (KELP_CUDA_THREADS / KELP_CUDA_WARP)

static __device__ __forceinline__ float lowest(void)
{
    return -__builtin_inff();
}

/* What row r sees of its columns. */
static __device__ __forceinline__ uint32_t visible(const struct kelp_softmax &p, uint64_t r)
{
    if (!p.causal) {
        return p.columns;
    }
    const uint64_t end = r % p.queries + p.offset + 1;
    return end < p.columns ? (uint32_t)end : p.columns;
}

static __device__ __forceinline__ float logarithm(float value)
{
    return (float)kelp__math_log((double)value);
}

template <uint32_t lanes, uint32_t size, bool quads>
static __global__ void softmax(const struct kelp_softmax p, const struct kelp__cuda_rows plan)
{
    KELP_CUDA_SHARED float partial[PARTIAL];
    KELP_CUDA_FOR_ROWS(r, lanes, plan)
    {
        const uint32_t width = kelp__cuda_width_of(r, plan);
        const uint32_t seen = width != 0 ? visible(p, r) : 0;
        float values[size], largest = lowest(), sum = 0.0f;
        kelp__cuda_load_row<lanes, quads>(values, p.x + r * p.columns, width, lowest(),
                                          plan.vector);
        KELP_CUDA_UNROLL_ALL
        for (uint32_t i = 0; i < size; i++) {
            const bool sees = kelp__cuda_column_of<lanes, quads>(i) < seen;
            largest = sees && values[i] > largest ? values[i] : largest;
        }
        largest = kelp__cuda_group_max(largest, lanes, partial);
        KELP_CUDA_UNROLL_ALL
        for (uint32_t i = 0; i < size; i++) {
            const bool sees = kelp__cuda_column_of<lanes, quads>(i) < seen;
            values[i] = values[i] - largest;
            const float exponential = sees ? kelp__math_exp(values[i]) : 0.0f;
            sum = sum + exponential;
            values[i] = p.logarithm ? values[i] : exponential;
        }
        sum = kelp__cuda_group_sum(sum, lanes, partial);
        const float taken = p.logarithm ? logarithm(sum) : 0.0f;
        KELP_CUDA_UNROLL_ALL
        for (uint32_t i = 0; i < size; i++) {
            const bool sees = kelp__cuda_column_of<lanes, quads>(i) < seen;
            values[i] = p.logarithm ? values[i] - taken : sees ? values[i] / sum : 0.0f;
        }
        kelp__cuda_put_row<lanes, quads>(p.y + r * p.columns, values, width, KELP_OVERWRITE,
                                         plan.vector);
    }
}

/* What a thread has found of its elements so far: the largest, and the sum of their exponentials,
 * the largest taken off first. */
struct exponentials {
    float largest, sum;
};

/* Take in a chunk, of which the first `seen` columns count; its elements become exponentials, where
 * those are what is kept. */
template <bool quads>
static __device__ __forceinline__ void add_exponentials(float (&values)[KELP_CUDA_CHUNK_SIZE],
                                                        uint32_t seen, bool kept,
                                                        struct exponentials *found)
{
    float largest = found->largest;
    KELP_CUDA_UNROLL_ALL
    for (uint32_t i = 0; i < KELP_CUDA_CHUNK_SIZE; i++) {
        const bool sees = kelp__cuda_column_of<KELP_CUDA_THREADS, quads>(i) < seen;
        largest = sees && values[i] > largest ? values[i] : largest;
    }
    if (largest > found->largest) {
        found->sum = found->sum * kelp__math_exp(found->largest - largest);
        found->largest = largest;
    }
    /* Elements that are all minus infinity add nothing. */
    const float base = largest == lowest() ? 0.0f : largest;
    KELP_CUDA_UNROLL_ALL
    for (uint32_t i = 0; i < KELP_CUDA_CHUNK_SIZE; i++) {
        const bool sees = kelp__cuda_column_of<KELP_CUDA_THREADS, quads>(i) < seen;
        const float exponential = sees ? kelp__math_exp(values[i] - base) : 0.0f;
        found->sum = found->sum + exponential;
        values[i] = kept ? exponential : values[i];
    }
}

/* All threads' together: the sum is at least 1, unless something is not finite. */
static __device__ __forceinline__ struct exponentials join(const struct exponentials &own,
                                                           float *partial)
{
    struct exponentials all;
    all.largest = kelp__cuda_group_max(own.largest, KELP_CUDA_THREADS, partial);
    const float sum =
        own.largest == all.largest ? own.sum : own.sum * kelp__math_exp(own.largest - all.largest);
    all.sum = kelp__cuda_group_sum(sum, KELP_CUDA_THREADS, partial);
    return all;
}

/* Zeros in the chunks of a row behind that one. */
template <bool quads>
static __device__ __forceinline__ void clear_chunks(float *y, uint32_t begin,
                                                    const struct kelp__cuda_rows &plan)
{
    const float zeros[KELP_CUDA_CHUNK_SIZE] = {};
    while (begin != kelp__cuda_last_chunk(plan.columns)) {
        begin += KELP_CUDA_CHUNK;
        kelp__cuda_put_chunk<quads>(y, zeros, begin, KELP_OVERWRITE, plan);
    }
}

template <bool quads>
static __global__ void KELP_CUDA_LONG_BOUNDS softmax_long(const struct kelp_softmax p,
                                                          const struct kelp__cuda_rows plan)
{
    KELP_CUDA_SHARED float partial[PARTIAL];
    KELP_CUDA_FOR_LONG_ROWS(r, plan)
    {
        const uint32_t seen = visible(p, r),
                       last = kelp__cuda_last_chunk(seen); /* of what is seen */
        const float *x = p.x + r * p.columns;
        float *y = p.y + r * p.columns;
        float values[KELP_CUDA_CHUNK_SIZE];
        struct exponentials own = {lowest(), 0.0f};
        for (uint32_t begin = 0;; begin += KELP_CUDA_CHUNK) {
            kelp__cuda_load_chunk<quads>(values, x, begin, lowest(), plan);
            add_exponentials<quads>(values, seen - begin, begin == last && !p.logarithm, &own);
            if (begin == last) {
                break;
            }
        }
        const struct exponentials all = join(own, partial);
        const float taken = p.logarithm ? logarithm(all.sum) : 0.0f, share = 1.0f / all.sum;
        const float kept = kelp__math_exp(own.largest - all.largest) * share;
        for (uint32_t begin = last;; begin -= KELP_CUDA_CHUNK) {
            if (begin != last) {
                kelp__cuda_load_chunk<quads>(values, x, begin, lowest(), plan);
            }
            KELP_CUDA_UNROLL_ALL
            for (uint32_t i = 0; i < KELP_CUDA_CHUNK_SIZE; i++) {
                const bool sees = kelp__cuda_column_of<KELP_CUDA_THREADS, quads>(i) < seen - begin;
                float value = values[i] - all.largest - taken;
                if (!p.logarithm) {
                    value = begin == last ? values[i] * kept
                                          : kelp__math_exp(values[i] - all.largest) * share;
                }
                values[i] = sees ? value : 0.0f;
            }
            kelp__cuda_put_chunk<quads>(y, values, begin, KELP_OVERWRITE, plan);
            if (begin == 0) {
                break;
            }
        }
        clear_chunks<quads>(y, last, plan);
    }
}

void kelp__cuda_softmax(struct kelp_stream *stream, const struct kelp_softmax *p)
{
    const struct kelp__cuda_rows plan = kelp__cuda_plan_rows(
        p->rows, p->columns, kelp__cuda_aligned(p->x) && kelp__cuda_aligned(p->y));
    KELP_CUDA_LAUNCH_ROWS(stream, softmax, softmax_long, kelp_softmax, plan, *p);
}

/* What the sum of a row is of: y dy, of the logarithm dy alone. */
static __device__ __forceinline__ float softmax_term(float y, float dy, bool logarithm)
{
    return logarithm ? dy : y * dy;
}
static __device__ __forceinline__ float softmax_slope(float y, float dy, float sum, bool logarithm)
{
    return logarithm ? dy - kelp__math_exp(y) * sum : y * (dy - sum);
}

template <uint32_t lanes, uint32_t size, bool quads>
static __global__ void softmax_gradient(const struct kelp_softmax p,
                                        const struct kelp__cuda_rows plan)
{
    KELP_CUDA_SHARED float partial[PARTIAL];
    KELP_CUDA_FOR_ROWS(r, lanes, plan)
    {
        const uint32_t width = kelp__cuda_width_of(r, plan);
        float y[size], dy[size], sum = 0.0f;
        kelp__cuda_load_row<lanes, quads>(y, p.y + r * p.columns, width, 0.0f, plan.vector);
        kelp__cuda_load_row<lanes, quads>(dy, p.dy + r * p.columns, width, 0.0f, plan.vector);
        KELP_CUDA_UNROLL_ALL
        for (uint32_t i = 0; i < size; i++) {
            sum = sum + softmax_term(y[i], dy[i], p.logarithm);
        }
        sum = kelp__cuda_group_sum(sum, lanes, partial);
        KELP_CUDA_UNROLL_ALL
        for (uint32_t i = 0; i < size; i++) {
            dy[i] = softmax_slope(y[i], dy[i], sum, p.logarithm);
        }
        kelp__cuda_put_row<lanes, quads>(p.dx + r * p.columns, dy, width, p.write, plan.vector);
    }
}

template <bool quads>
static __global__ void KELP_CUDA_LONG_BOUNDS
softmax_gradient_long(const struct kelp_softmax p, const struct kelp__cuda_rows plan)
{
    KELP_CUDA_SHARED float partial[PARTIAL];
    KELP_CUDA_FOR_LONG_ROWS(r, plan)
    {
        const uint32_t last = kelp__cuda_last_chunk(plan.columns);
        const float *y_row = p.y + r * p.columns, *dy_row = p.dy + r * p.columns;
        float y[KELP_CUDA_CHUNK_SIZE], dy[KELP_CUDA_CHUNK_SIZE], sum = 0.0f;
        for (uint32_t begin = 0;; begin += KELP_CUDA_CHUNK) {
            kelp__cuda_load_chunk<quads>(y, y_row, begin, 0.0f, plan);
            kelp__cuda_load_chunk<quads>(dy, dy_row, begin, 0.0f, plan);
            KELP_CUDA_UNROLL_ALL
            for (uint32_t i = 0; i < KELP_CUDA_CHUNK_SIZE; i++) {
                sum = sum + softmax_term(y[i], dy[i], p.logarithm);
            }
            if (begin == last) {
                break;
            }
        }
        sum = kelp__cuda_group_sum(sum, KELP_CUDA_THREADS, partial);
        for (uint32_t begin = last;; begin -= KELP_CUDA_CHUNK) {
            if (begin != last) {
                kelp__cuda_load_chunk<quads>(y, y_row, begin, 0.0f, plan);
                kelp__cuda_load_chunk<quads>(dy, dy_row, begin, 0.0f, plan);
            }
            KELP_CUDA_UNROLL_ALL
            for (uint32_t i = 0; i < KELP_CUDA_CHUNK_SIZE; i++) {
                dy[i] = softmax_slope(y[i], dy[i], sum, p.logarithm);
            }
            kelp__cuda_put_chunk<quads>(p.dx + r * p.columns, dy, begin, p.write, plan);
            if (begin == 0) {
                break;
            }
        }
    }
}

void kelp__cuda_softmax_gradient(struct kelp_stream *stream, const struct kelp_softmax *p)
{
    const struct kelp__cuda_rows plan = kelp__cuda_plan_rows(
        p->rows, p->columns,
        kelp__cuda_aligned(p->y) && kelp__cuda_aligned(p->dy) && kelp__cuda_aligned(p->dx));
    KELP_CUDA_LAUNCH_ROWS(stream, softmax_gradient, softmax_gradient_long, kelp_softmax, plan, *p);
}

/*
 * Losses of classes: a group of lanes keeps its sample's outputs in registers; a sample of many
 * classes has a block, which takes them as rows are taken that are longer than a block's registers.
 * See kernels/operators.h for what each does.
 */
#include "kernels/cuda/criterion.cuh"
#include "kernels/cuda/rows.cuh"

/* Samples of more classes are taken by blocks. */
#define GROUP_CLASSES_MAX 1024u

struct class_criterion {
    struct kelp_criterion criterion;
    struct kelp__cuda_fault *fault;
    unsigned int serial;
};

/* The sample's class; false: the target is none. */
static __device__ __forceinline__ bool class_of(const struct kelp_criterion &criterion,
                                                float target, uint64_t *ret)
{
    /* The first comparisons also refuse NaN, and keep what follows within the range. */
    if (target >= 0.0f && target < (float)criterion.elements && (float)(uint32_t)target == target &&
        (uint32_t)target < criterion.elements) {
        *ret = (uint32_t)target;
        return true;
    }
    return false;
}

/* The largest output, and its class: the first of equal ones. Each thread begins with class 0,
 * so that one which is NaN stays, as nothing is larger. */
struct class_best {
    float value;
    uint64_t index;
};

static __device__ __forceinline__ void better(struct class_best *best, float value, uint64_t index)
{
    if (value > best->value || (value == best->value && index < best->index)) {
        best->value = value;
        best->index = index;
    }
}

static __device__ __forceinline__ void group_best(struct class_best *best, unsigned int group)
{
    for (unsigned int distance = group / 2; distance > 0; distance /= 2) {
        const float value = __shfl_xor_sync(0xffffffffu, best->value, (int)distance);
        const unsigned long long index =
            __shfl_xor_sync(0xffffffffu, (unsigned long long)best->index, (int)distance);
        better(best, value, index);
    }
}

/* What makes the loss of cross entropy out of a sample's sums. shifted: the sum of all outputs, the
 * largest taken off each. */
struct class_sums {
    float largest, exponentials;
    double shifted; /* with label smoothing */
};

static __device__ __forceinline__ double cross_entropy(const struct kelp_criterion &criterion,
                                                       const struct class_sums &sums, float output)
{
    const double smoothing = criterion.label_smoothing, count = (double)criterion.elements;
    const double logarithm = kelp__math_log((double)sums.exponentials);
    const double loss = logarithm - (double)(output - sums.largest);
    if (smoothing == 0.0) {
        return loss;
    }
    const double all = count * logarithm - sums.shifted;
    return (1.0 - smoothing) * loss + smoothing / count * all;
}

/* The sums of a sample that has a class; output: the sample's first. */
static __device__ __forceinline__ void
finish_class(const struct kelp_criterion &criterion, const struct class_sums &sums,
             const struct class_best &best, const float *output, uint64_t right, double *ret)
{
    const bool entropy = criterion.kind == KELP_LOSS_CROSS_ENTROPY;
    ret[KELP_LOSS_SUM_LOSS] =
        entropy ? cross_entropy(criterion, sums, output[right]) : -(double)output[right];
    if (criterion.loss_alone) {
        return;
    }
    ret[KELP_LOSS_SUM_CORRECT] = best.index == right ? 1.0 : 0.0;
    if (criterion.elements == 2) {
        ret[KELP_LOSS_SUM_SCORE] = (double)(entropy ? kelp__math_sigmoid(output[1] - output[0])
                                                    : kelp__math_exp(output[1]));
    }
}

static __device__ __forceinline__ void clear_sums(double *sums)
{
    KELP_CUDA_UNROLL_ALL
    for (unsigned int i = 0; i < (unsigned int)KELP_LOSS_SUMS; i++) {
        sums[i] = 0.0;
    }
}

/* The factors of the gradient. */
struct class_slope {
    bool entropy;
    float scale, spread, whole;
};

static __device__ __forceinline__ struct class_slope
slope_of(const struct kelp_criterion &criterion)
{
    struct class_slope slope;
    slope.entropy = criterion.kind == KELP_LOSS_CROSS_ENTROPY;
    slope.scale = *criterion.gradient_scale;
    slope.spread = (float)(criterion.label_smoothing / (double)criterion.elements);
    slope.whole = (float)(1.0 - criterion.label_smoothing);
    return slope;
}

/* The gradient of one output of a sample whose class is known. share: the output's exponential by
 * the sum of all; right: the output is that class's. */
static __device__ __forceinline__ float class_gradient(const struct class_slope &slope, float share,
                                                       bool right)
{
    if (!slope.entropy) {
        return right ? -slope.scale : 0.0f;
    }
    const float spread = share - slope.spread;
    return slope.scale * (right ? spread - slope.whole : spread);
}

/* The largest of a group's outputs; lane l has those of classes l, l + group, ... in x. */
template <int VALUES>
static __device__ __forceinline__ void find_best(const float *x, unsigned int count,
                                                 unsigned int group, struct class_best *best)
{
    KELP_CUDA_UNROLL_ALL
    for (int k = 0; k < VALUES; k++) {
        const unsigned int c = threadIdx.x % group + (unsigned int)k * group;
        if (c < count) {
            better(best, x[k], c);
        }
    }
    group_best(best, group);
}

/* The outputs become their exponentials, the largest taken off first. */
template <int VALUES>
static __device__ __forceinline__ void take_exponentials(float *x, unsigned int count,
                                                         unsigned int group, bool smoothing,
                                                         struct class_sums *sums)
{
    float largest = -__builtin_inff();
    KELP_CUDA_UNROLL_ALL
    for (int k = 0; k < VALUES; k++) {
        largest = x[k] > largest ? x[k] : largest;
    }
    sums->largest = kelp__cuda_warp_max(largest, group);
    KELP_CUDA_UNROLL_ALL
    for (int k = 0; k < VALUES; k++) {
        const bool there = threadIdx.x % group + (unsigned int)k * group < count;
        const float shifted = x[k] - sums->largest;
        if (there && smoothing) {
            sums->shifted = sums->shifted + (double)shifted;
        }
        x[k] = there ? kelp__math_exp(shifted) : 0.0f;
        sums->exponentials = sums->exponentials + x[k];
    }
    sums->exponentials = kelp__cuda_warp_sum(sums->exponentials, group);
    if (smoothing) {
        sums->shifted = kelp__cuda_warp_sum(sums->shifted, group);
    }
}

/* fine: the sample has a class. */
template <int VALUES>
static __device__ __forceinline__ void
store_gradient(const struct kelp_criterion &criterion, const float *x, float sum, bool fine,
               uint64_t right, unsigned int group, float *gradient)
{
    const struct class_slope slope = slope_of(criterion);
    KELP_CUDA_UNROLL_ALL
    for (int k = 0; k < VALUES; k++) {
        const unsigned int c = threadIdx.x % group + (unsigned int)k * group;
        if (c < (unsigned int)criterion.elements) {
            gradient[c] = fine ? class_gradient(slope, x[k] / sum, c == right) : 0.0f;
        }
    }
}

/* A group of lanes for each sample, VALUES outputs in each lane's registers. */
template <int VALUES>
static __global__ void few_classes(struct class_criterion values, unsigned int group)
{
    KELP_CUDA_SHARED double all[KELP_CUDA_THREADS * (unsigned int)KELP_LOSS_SUMS];
    const struct kelp_criterion &criterion = values.criterion;
    const unsigned int samples = KELP_CUDA_THREADS / group, mine = threadIdx.x / group;
    const unsigned int lane = threadIdx.x % group, count = (unsigned int)criterion.elements;
    const uint64_t first = (uint64_t)blockIdx.x * samples, sample = first + mine;
    const bool there = sample < criterion.samples;
    const bool entropy = criterion.kind == KELP_LOSS_CROSS_ENTROPY;
    const float target = there ? criterion.target[sample] : 0.0f;
    uint64_t right = 0;
    const bool fine = there && class_of(criterion, target, &right);
    const bool wanted = fine && (entropy || !criterion.loss_alone);
    const float *output = criterion.output + sample * count;
    float x[VALUES];
    KELP_CUDA_UNROLL_ALL
    for (int k = 0; k < VALUES; k++) {
        const unsigned int c = lane + (unsigned int)k * group;
        x[k] = wanted && c < count ? output[c] : -__builtin_inff();
    }
    struct class_best best = {wanted ? output[0] : 0.0f, 0};
    if (!criterion.loss_alone) {
        find_best<VALUES>(x, count, group, &best);
    }
    struct class_sums sums = {0.0f, 0.0f, 0.0};
    if (entropy) {
        take_exponentials<VALUES>(x, count, group, criterion.label_smoothing != 0.0, &sums);
    }
    if (criterion.gradient && there) {
        store_gradient<VALUES>(criterion, x, sums.exponentials, fine, right, group,
                               criterion.gradient + sample * count);
    }
    if (lane == 0 && there) {
        double *ret = all + mine * (unsigned int)KELP_LOSS_SUMS;
        clear_sums(ret);
        if (fine) {
            finish_class(criterion, sums, best, output, right, ret);
        } else {
            kelp__cuda_fault(values.fault, values.serial, KELP_CUDA_BAD_CLASS, criterion.elements,
                             sample, target);
        }
    }
    __syncthreads();
    kelp__cuda_store_sums(criterion, first, samples, all);
}

/* The outputs of a sample of many classes: a row. */
struct class_row {
    uint64_t count;
    bool vector;
};

static __device__ __forceinline__ uint32_t chunk_of(const struct class_row &row, uint64_t begin)
{
    const uint64_t left = row.count - begin;
    return left < KELP_CUDA_CHUNK ? (uint32_t)left : KELP_CUDA_CHUNK;
}

/* Where the last chunk begins. */
static __device__ __forceinline__ uint64_t last_chunk(const struct class_row &row)
{
    return (row.count - 1) / KELP_CUDA_CHUNK * KELP_CUDA_CHUNK;
}

/* Take in a chunk of outputs; those behind the last class are minus infinity. The sum of
 * exponentials begins anew from e^(largest before - largest) of itself when a larger output comes.
 */
template <bool quads>
static __device__ __forceinline__ void
add_classes(const struct kelp_criterion &criterion, float (&x)[KELP_CUDA_CHUNK_SIZE],
            uint64_t begin, uint32_t count, struct class_sums *sums, struct class_best *best)
{
    KELP_CUDA_UNROLL_ALL
    for (uint32_t i = 0; i < KELP_CUDA_CHUNK_SIZE && !criterion.loss_alone; i++) {
        const uint32_t c = kelp__cuda_column_of<KELP_CUDA_THREADS, quads>(i);
        if (c < count) {
            better(best, x[i], begin + c);
        }
    }
    if (criterion.kind != KELP_LOSS_CROSS_ENTROPY) {
        return;
    }
    float largest = sums->largest;
    KELP_CUDA_UNROLL_ALL
    for (uint32_t i = 0; i < KELP_CUDA_CHUNK_SIZE; i++) {
        const uint32_t c = kelp__cuda_column_of<KELP_CUDA_THREADS, quads>(i);
        largest = x[i] > largest ? x[i] : largest;
        if (criterion.label_smoothing != 0.0 && c < count) {
            sums->shifted = sums->shifted + (double)x[i];
        }
    }
    if (largest > sums->largest) {
        sums->exponentials = sums->exponentials * kelp__math_exp(sums->largest - largest);
        sums->largest = largest;
    }
    /* Outputs that are all minus infinity add nothing. */
    const float base = largest == -__builtin_inff() ? 0.0f : largest;
    KELP_CUDA_UNROLL_ALL
    for (uint32_t i = 0; i < KELP_CUDA_CHUNK_SIZE; i++) {
        x[i] = kelp__math_exp(x[i] - base);
        sums->exponentials = sums->exponentials + x[i];
    }
}

/* What one thread finds in its part of the outputs; shifted is the sum of them as they are. The
 * last chunk's exponentials stay in x. */
template <bool quads>
static __device__ __forceinline__ void
walk_classes(const struct kelp_criterion &criterion, const struct class_row &row,
             const float *output, float (&x)[KELP_CUDA_CHUNK_SIZE], struct class_sums *sums,
             struct class_best *best)
{
    for (uint64_t begin = 0; begin < row.count; begin += KELP_CUDA_CHUNK) {
        const uint32_t count = chunk_of(row, begin);
        kelp__cuda_load_row<KELP_CUDA_THREADS, quads>(x, output + begin, count, -__builtin_inff(),
                                                      row.vector);
        add_classes<quads>(criterion, x, begin, count, sums, best);
    }
}

/* The gradient of a sample whose class is known, by a block. x: as walk_classes() has left it;
 * largest: the thread's own, of these. */
template <bool quads>
static __device__ __forceinline__ void
store_class_gradients(const struct kelp_criterion &criterion, const struct class_row &row,
                      const float *output, float (&x)[KELP_CUDA_CHUNK_SIZE], float largest,
                      const struct class_sums &sums, uint64_t right, float *gradient)
{
    const struct class_slope slope = slope_of(criterion);
    const float share = 1.0f / sums.exponentials;
    const float kept = kelp__math_exp(largest - sums.largest) * share;
    for (uint64_t begin = last_chunk(row);; begin -= KELP_CUDA_CHUNK) {
        const uint32_t count = chunk_of(row, begin);
        const bool loads = begin != last_chunk(row) && slope.entropy;
        if (loads) {
            kelp__cuda_load_row<KELP_CUDA_THREADS, quads>(x, output + begin, count, 0.0f,
                                                          row.vector);
        }
        KELP_CUDA_UNROLL_ALL
        for (uint32_t i = 0; i < KELP_CUDA_CHUNK_SIZE; i++) {
            const uint64_t c = begin + kelp__cuda_column_of<KELP_CUDA_THREADS, quads>(i);
            const float of_all = loads ? kelp__math_exp(x[i] - sums.largest) * share : x[i] * kept;
            x[i] = class_gradient(slope, of_all, c == right);
        }
        kelp__cuda_put_row<KELP_CUDA_THREADS, quads>(gradient + begin, x, count, KELP_OVERWRITE,
                                                     row.vector);
        if (begin == 0) {
            break;
        }
    }
}

/* What a block's threads found, put together in each of them. */
static __device__ __forceinline__ void join_classes(uint64_t count, struct class_sums *sums,
                                                    struct class_best *best)
{
    KELP_CUDA_SHARED float largest[KELP_CUDA_THREADS / KELP_CUDA_WARP];
    KELP_CUDA_SHARED float exponentials[KELP_CUDA_THREADS / KELP_CUDA_WARP];
    KELP_CUDA_SHARED double plain[KELP_CUDA_THREADS / KELP_CUDA_WARP];
    KELP_CUDA_SHARED float best_value[KELP_CUDA_THREADS / KELP_CUDA_WARP];
    KELP_CUDA_SHARED uint64_t best_index[KELP_CUDA_THREADS / KELP_CUDA_WARP];
    const unsigned int warp = threadIdx.x / KELP_CUDA_WARP;
    const float own = sums->largest, warps = kelp__cuda_warp_max(own);
    group_best(best, KELP_CUDA_WARP);
    if (threadIdx.x % KELP_CUDA_WARP == 0) {
        largest[warp] = warps;
        best_value[warp] = best->value;
        best_index[warp] = best->index;
    }
    __syncthreads();
    for (unsigned int i = 0; i < KELP_CUDA_THREADS / KELP_CUDA_WARP; i++) {
        sums->largest = largest[i] > sums->largest ? largest[i] : sums->largest;
        better(best, best_value[i], best_index[i]);
    }
    if (own != sums->largest) {
        sums->exponentials = sums->exponentials * kelp__math_exp(own - sums->largest);
    }
    sums->exponentials = kelp__cuda_block_sum(sums->exponentials, exponentials);
    sums->shifted =
        kelp__cuda_block_sum(sums->shifted, plain) - (double)count * (double)sums->largest;
}

/* A sample whose target is no class, by a block. */
static __device__ __forceinline__ void refuse_class(const struct class_criterion &values,
                                                    uint64_t sample, float target, float *gradient)
{
    const struct kelp_criterion &criterion = values.criterion;
    for (uint64_t c = threadIdx.x; gradient && c < criterion.elements; c += KELP_CUDA_THREADS) {
        gradient[c] = 0.0f;
    }
    if (threadIdx.x == 0) {
        clear_sums(criterion.sums + sample * KELP_LOSS_SUMS);
        kelp__cuda_fault(values.fault, values.serial, KELP_CUDA_BAD_CLASS, criterion.elements,
                         sample, target);
    }
}

/* A block for each sample. */
template <bool quads>
static __global__ void KELP_CUDA_LONG_BOUNDS many_classes(struct class_criterion values,
                                                          const struct class_row row)
{
    const struct kelp_criterion &criterion = values.criterion;
    const uint64_t sample = blockIdx.x;
    const float *output = criterion.output + sample * row.count;
    float *gradient = criterion.gradient ? criterion.gradient + sample * row.count : NULL;
    const float target = criterion.target[sample];
    uint64_t right = 0;
    if (!class_of(criterion, target, &right)) { /* the same in all threads */
        refuse_class(values, sample, target, gradient);
        return;
    }
    float x[KELP_CUDA_CHUNK_SIZE] = {};
    struct class_sums sums = {-__builtin_inff(), 0.0f, 0.0};
    struct class_best best = {output[0], 0};
    if (criterion.kind == KELP_LOSS_CROSS_ENTROPY || !criterion.loss_alone) {
        walk_classes<quads>(criterion, row, output, x, &sums, &best);
    }
    const float largest = sums.largest;
    join_classes(row.count, &sums, &best);
    if (threadIdx.x == 0) {
        double *ret = criterion.sums + sample * KELP_LOSS_SUMS;
        clear_sums(ret);
        finish_class(criterion, sums, best, output, right, ret);
    }
    if (gradient) {
        store_class_gradients<quads>(criterion, row, output, x, largest, sums, right, gradient);
    }
}

void kelp__cuda_class_losses(struct kelp_stream *stream, const struct kelp_criterion *criterion)
{
    struct kelp__cuda_stream *cuda = kelp__cuda_stream_of(stream);
    struct class_criterion values = {};
    values.criterion = *criterion;
    values.criterion.quantiles = NULL; /* host memory */
    values.fault = cuda->fault;
    values.serial = kelp__cuda_serial(cuda);
    const uint64_t samples = criterion->samples, count = criterion->elements;
    if (count > GROUP_CLASSES_MAX) {
        const bool quads = count % 4 == 0;
        const struct class_row row = {count, quads && kelp__cuda_aligned(criterion->output) &&
                                                 kelp__cuda_aligned(criterion->gradient)};
        void (*const kernel)(struct class_criterion, const struct class_row) =
            quads ? many_classes<true> : many_classes<false>;
        KELP_CUDA_LAUNCH(stream, kernel, samples, KELP_CUDA_THREADS, values, row);
        return;
    }
    const unsigned int group = kelp__cuda_sample_group(count), each = KELP_CUDA_THREADS / group;
    const uint64_t blocks = (samples + each - 1) / each;
    if (count <= KELP_CUDA_WARP * 4) {
        KELP_CUDA_LAUNCH(stream, few_classes<4>, blocks, KELP_CUDA_THREADS, values, group);
    } else if (count <= KELP_CUDA_WARP * 16) {
        KELP_CUDA_LAUNCH(stream, few_classes<16>, blocks, KELP_CUDA_THREADS, values, group);
    } else {
        KELP_CUDA_LAUNCH(stream, few_classes<32>, blocks, KELP_CUDA_THREADS, values, group);
    }
}

/*
 * Losses of classes: a group of lanes keeps its sample's outputs in registers; a sample of many
 * classes has a block, which reads the outputs twice. See kernels/operators.h for what each does.
 */
#include "kernels/cuda/criterion.cuh"

/* Samples of more classes are taken by blocks. */
#define GROUP_CLASSES_MAX 1024u

/* The largest over the lanes of a group, as kelp__cuda_sample_sum(). */
static __device__ __forceinline__ float group_max(float value, unsigned int group)
{
    for (unsigned int distance = group / 2; distance > 0; distance /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, value, (int)distance);
        value = other > value ? other : value;
    }
    return value;
}

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

/* The gradient of one output of a sample whose class is known; right: the output is that class's.
 */
static __device__ __forceinline__ float class_gradient(const struct class_slope &slope,
                                                       float exponential, float sum, bool right)
{
    if (!slope.entropy) {
        return right ? -slope.scale : 0.0f;
    }
    const float share = exponential / sum - slope.spread;
    return slope.scale * (right ? share - slope.whole : share);
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
    sums->largest = group_max(largest, group);
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
    sums->exponentials = kelp__cuda_sample_sum(sums->exponentials, group);
    if (smoothing) {
        sums->shifted = kelp__cuda_sample_sum(sums->shifted, group);
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
            gradient[c] = fine ? class_gradient(slope, x[k], sum, c == right) : 0.0f;
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

/* Outputs that a thread of a sample of many classes loads before it works on them. */
#define CLASSES_AT_ONCE 8u

/* What one thread finds in its part of the outputs in one go: the sum of exponentials begins anew
 * from e^(largest before - largest) of itself whenever a larger output comes. */
static __device__ __forceinline__ void walk_classes(const struct kelp_criterion &criterion,
                                                    const float *output, struct class_sums *sums,
                                                    struct class_best *best)
{
    const float infinity = __builtin_inff();
    const uint64_t count = criterion.elements;
    double plain = 0.0; /* the sum of all outputs */
    for (uint64_t i = threadIdx.x; i < count; i += CLASSES_AT_ONCE * KELP_CUDA_THREADS) {
        float x[CLASSES_AT_ONCE], largest = sums->largest;
        KELP_CUDA_UNROLL_ALL
        for (unsigned int k = 0; k < CLASSES_AT_ONCE; k++) {
            const uint64_t c = i + k * KELP_CUDA_THREADS;
            x[k] = output[c < count ? c : i]; /* loads that nothing has to wait for */
        }
        KELP_CUDA_UNROLL_ALL
        for (unsigned int k = 0; k < CLASSES_AT_ONCE; k++) {
            const uint64_t c = i + k * KELP_CUDA_THREADS;
            x[k] = c < count ? x[k] : -infinity;
            largest = x[k] > largest ? x[k] : largest;
            if (c < count) {
                better(best, x[k], c);
                plain = plain + (double)x[k];
            }
        }
        if (largest > sums->largest) {
            sums->exponentials = sums->exponentials * kelp__math_exp(sums->largest - largest);
            sums->largest = largest;
        }
        /* A part whose outputs are all minus infinity adds nothing. */
        const float base = largest == -infinity ? 0.0f : largest;
        KELP_CUDA_UNROLL_ALL
        for (unsigned int k = 0; k < CLASSES_AT_ONCE; k++) {
            const float e = kelp__math_exp(x[k] - base);
            sums->exponentials =
                i + k * KELP_CUDA_THREADS < count ? sums->exponentials + e : sums->exponentials;
        }
    }
    sums->shifted = plain;
}

/* The gradient of a sample whose class is known, by a block. */
static __device__ __forceinline__ void store_class_gradients(const struct kelp_criterion &criterion,
                                                             const float *output,
                                                             const struct class_sums &sums,
                                                             uint64_t right, float *gradient)
{
    const struct class_slope slope = slope_of(criterion);
    const uint64_t count = criterion.elements;
    for (uint64_t i = threadIdx.x; i < count; i += CLASSES_AT_ONCE * KELP_CUDA_THREADS) {
        float x[CLASSES_AT_ONCE];
        KELP_CUDA_UNROLL_ALL
        for (unsigned int k = 0; k < CLASSES_AT_ONCE; k++) {
            const uint64_t c = i + k * KELP_CUDA_THREADS;
            x[k] = slope.entropy ? output[c < count ? c : i] : 0.0f;
        }
        KELP_CUDA_UNROLL_ALL
        for (unsigned int k = 0; k < CLASSES_AT_ONCE; k++) {
            const uint64_t c = i + k * KELP_CUDA_THREADS;
            const float e = kelp__math_exp(x[k] - sums.largest);
            if (c < count) {
                gradient[c] = class_gradient(slope, e, sums.exponentials, c == right);
            }
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
static __global__ void many_classes(struct class_criterion values)
{
    const struct kelp_criterion &criterion = values.criterion;
    const uint64_t sample = blockIdx.x, count = criterion.elements;
    const float *output = criterion.output + sample * count;
    float *gradient = criterion.gradient ? criterion.gradient + sample * count : NULL;
    const float target = criterion.target[sample];
    uint64_t right = 0;
    if (!class_of(criterion, target, &right)) { /* the same in all threads */
        refuse_class(values, sample, target, gradient);
        return;
    }
    struct class_sums sums = {-__builtin_inff(), 0.0f, 0.0};
    struct class_best best = {output[0], 0};
    if (criterion.kind == KELP_LOSS_CROSS_ENTROPY || !criterion.loss_alone) {
        walk_classes(criterion, output, &sums, &best);
    }
    join_classes(count, &sums, &best);
    if (threadIdx.x == 0) {
        double *ret = criterion.sums + sample * KELP_LOSS_SUMS;
        clear_sums(ret);
        finish_class(criterion, sums, best, output, right, ret);
    }
    if (gradient) {
        store_class_gradients(criterion, output, sums, right, gradient);
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
        KELP_CUDA_LAUNCH(stream, many_classes, samples, KELP_CUDA_THREADS, values);
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

/*
 * The losses: sums for the metrics, and the gradient. See kernels/operators.h for what each does.
 * Those of classes are in criterion_classes.cu.
 *
 * Losses of elements: a sample is taken by a group of 1 to 32 lanes of a warp, or in parts by whole
 * blocks when it is long. Which thread takes an element, and in what order a thread's elements and
 * the threads' sums are added up, follows from the number of elements alone. Output and target are
 * read once, and the gradient is written on the way.
 */
#include "kernels/cuda/criterion.cuh"

#include "kernels/cpu/loops/losses.h"

/* Elements that a thread loads before it works on them. */
#define AT_ONCE 4u
/* Samples of more elements are taken by blocks, in parts of PART elements. */
#define GROUP_ELEMENTS_MAX 512u
#define PART               8192u

/* What a kernel needs: the criterion without its host memory, and the quantiles. */
struct element_criterion {
    struct kelp_criterion criterion;
    double quantiles[KELP_JOB_LIST_MAX];
};

/* Kernels are made for each loss when the loss alone is wanted, as in training. One that computes
 * all sums is made for all losses together. */
#define ANY_LOSS (-1)

/* The loss of one element, not yet divided by their number; quantile: that of the element. */
static __device__ __forceinline__ double element_loss(int kind, double beta, double quantile,
                                                      float output, float target)
{
    if (kind == KELP_LOSS_QUANTILE) {
        const double e = (double)(target - output);
        return e > 0.0 ? quantile * e : (quantile - 1.0) * e;
    }
    return kelp__loss_of(kind, beta, output, target);
}

static __device__ __forceinline__ float element_slope(int kind, float beta, float quantile,
                                                      float output, float target)
{
    return kind == KELP_LOSS_QUANTILE ? kelp__loss_quantile_slope(quantile, output, target)
                                      : kelp__loss_slope(kind, beta, output, target);
}

struct element_sums {
    double loss, squared, absolute, relative, relative_squared, target, target_squared, correct;
};

static __device__ __forceinline__ float forecast_of(int kind, float output)
{
    return kind == KELP_LOSS_BCE_WITH_LOGITS ? kelp__math_sigmoid(output) : output;
}

static __device__ __forceinline__ void add_metrics(struct element_sums *sums, float forecast,
                                                   float target)
{
    const double d = (double)(forecast - target);
    const double ratio = (double)((forecast - target) / target);
    const double t = (double)target;
    sums->squared = sums->squared + d * d;
    sums->absolute = sums->absolute + kelp__loss_absolute(d);
    sums->relative = sums->relative + kelp__loss_absolute(ratio);
    sums->relative_squared = sums->relative_squared + ratio * ratio;
    sums->target = sums->target + t;
    sums->target_squared = sums->target_squared + t * t;
    sums->correct = sums->correct + ((forecast >= 0.5f) == (target >= 0.5f) ? 1.0 : 0.0);
}

/* One sample as a thread goes through it. */
struct element_walk {
    const float *output, *target;
    float *gradient; /* or NULL */
    float scale;     /* of the gradient */
    const double *quantiles;
};

static __device__ __forceinline__ struct element_walk
walk_of(const struct kelp_criterion &all, uint64_t sample, const double *quantiles)
{
    struct element_walk walk;
    walk.output = all.output + sample * all.elements;
    walk.target = all.target + sample * all.target_elements;
    walk.gradient = all.gradient ? all.gradient + sample * all.elements : NULL;
    walk.scale = all.gradient ? (float)((double)*all.gradient_scale / (double)all.elements) : 0.0f;
    walk.quantiles = quantiles;
    return walk;
}

/* The target that an element of the output is compared with: all quantiles of one stand together.
 * The long division is slow, and seldom needed. */
static __device__ __forceinline__ uint64_t target_of(uint64_t element, uint32_t quantiles)
{
    return element >> 32 != 0 ? element / quantiles : (uint32_t)element / quantiles;
}

/* Elements first, first + stride, ... below `end`: what they add to the sums, and their gradient.
 */
template <int LOSS>
static __device__ __forceinline__ void
walk_elements(const struct kelp_criterion &criterion, const struct element_walk &walk,
              uint64_t first, uint64_t end, unsigned int stride, struct element_sums *sums)
{
    const bool metrics = LOSS == ANY_LOSS;
    const int kind = metrics ? (int)criterion.kind : LOSS;
    const double beta = criterion.beta;
    const uint32_t count = criterion.quantile_count;
    for (uint64_t i = first; i < end; i += (uint64_t)AT_ONCE * stride) {
        float output[AT_ONCE], target[AT_ONCE];
        uint32_t which[AT_ONCE]; /* of the quantiles */
        KELP_CUDA_UNROLL_ALL
        for (unsigned int k = 0; k < AT_ONCE; k++) {
            const uint64_t wanted = i + (uint64_t)k * stride;
            const uint64_t at = wanted < end ? wanted : i; /* loads that nothing has to wait for */
            const uint64_t place = kind == KELP_LOSS_QUANTILE ? target_of(at, count) : at;
            output[k] = walk.output[at];
            target[k] = walk.target[place];
            which[k] = kind == KELP_LOSS_QUANTILE ? (uint32_t)(at - place * count) : 0;
        }
        KELP_CUDA_UNROLL_ALL
        for (unsigned int k = 0; k < AT_ONCE; k++) {
            const uint64_t at = i + (uint64_t)k * stride;
            if (at >= end) {
                break;
            }
            const double q = kind == KELP_LOSS_QUANTILE ? walk.quantiles[which[k]] : 0.0;
            sums->loss = sums->loss + element_loss(kind, beta, q, output[k], target[k]);
            if (metrics && (kind != KELP_LOSS_QUANTILE || which[k] == count / 2)) {
                add_metrics(sums, forecast_of(kind, output[k]), target[k]);
            }
            if (walk.gradient) {
                walk.gradient[at] =
                    walk.scale * element_slope(kind, (float)beta, (float)q, output[k], target[k]);
            }
        }
    }
}

/* The sums of one sample, as the operator gives them. */
template <int LOSS>
static __device__ __forceinline__ void finish_elements(const struct kelp_criterion &criterion,
                                                       const struct element_sums &sums,
                                                       uint64_t sample, double *ret)
{
    const bool metrics = LOSS == ANY_LOSS, empty = criterion.target_elements == 0;
    const uint32_t middle = criterion.kind == KELP_LOSS_QUANTILE ? criterion.quantile_count / 2 : 0;
    ret[KELP_LOSS_SUM_LOSS] = empty ? 0.0 : sums.loss / (double)criterion.elements;
    ret[KELP_LOSS_SUM_SQUARED] = metrics ? sums.squared : 0.0;
    ret[KELP_LOSS_SUM_ABSOLUTE] = metrics ? sums.absolute : 0.0;
    ret[KELP_LOSS_SUM_RELATIVE] = metrics ? sums.relative : 0.0;
    ret[KELP_LOSS_SUM_RELATIVE_SQUARED] = metrics ? sums.relative_squared : 0.0;
    ret[KELP_LOSS_SUM_TARGET] = metrics ? sums.target : 0.0;
    ret[KELP_LOSS_SUM_TARGET_SQUARED] = metrics ? sums.target_squared : 0.0;
    ret[KELP_LOSS_SUM_CORRECT] = metrics ? sums.correct : 0.0;
    ret[KELP_LOSS_SUM_SCORE] = 0.0;
    if (metrics && !empty) {
        const float output = criterion.output[sample * criterion.elements + middle];
        ret[KELP_LOSS_SUM_SCORE] = (double)forecast_of((int)criterion.kind, output);
    }
    ret[KELP_LOSS_SUMS - 1] = 0.0;
}

/* Into shared memory, where each lane can have another one at no cost. */
static __device__ __forceinline__ void load_quantiles(const struct element_criterion &values,
                                                      double *quantiles)
{
    for (unsigned int i = threadIdx.x; i < values.criterion.quantile_count; i += blockDim.x) {
        quantiles[i] = values.quantiles[i];
    }
    __syncthreads();
}

/* A group of lanes for each sample: of one element, as many samples as threads. */
template <int LOSS>
static __global__ void short_samples(struct element_criterion values, unsigned int group)
{
    KELP_CUDA_SHARED double quantiles[KELP_JOB_LIST_MAX];
    KELP_CUDA_SHARED double all[KELP_CUDA_THREADS * (unsigned int)KELP_LOSS_SUMS];
    load_quantiles(values, quantiles);
    const struct kelp_criterion &criterion = values.criterion;
    const unsigned int samples = KELP_CUDA_THREADS / group, mine = threadIdx.x / group;
    const unsigned int lane = threadIdx.x % group;
    const uint64_t first = (uint64_t)blockIdx.x * samples, sample = first + mine;
    struct element_sums sums = {0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0};
    if (sample < criterion.samples) {
        walk_elements<LOSS>(criterion, walk_of(criterion, sample, quantiles), lane,
                            criterion.elements, group, &sums);
    }
    sums.loss = kelp__cuda_warp_sum(sums.loss, group);
    if (LOSS == ANY_LOSS) {
        sums.squared = kelp__cuda_warp_sum(sums.squared, group);
        sums.absolute = kelp__cuda_warp_sum(sums.absolute, group);
        sums.relative = kelp__cuda_warp_sum(sums.relative, group);
        sums.relative_squared = kelp__cuda_warp_sum(sums.relative_squared, group);
        sums.target = kelp__cuda_warp_sum(sums.target, group);
        sums.target_squared = kelp__cuda_warp_sum(sums.target_squared, group);
        sums.correct = kelp__cuda_warp_sum(sums.correct, group);
    }
    if (lane == 0 && sample < criterion.samples) {
        finish_elements<LOSS>(criterion, sums, sample, all + mine * (unsigned int)KELP_LOSS_SUMS);
    }
    __syncthreads();
    kelp__cuda_store_sums(criterion, first, samples, all);
}

/* Over the block, in each thread. */
template <int LOSS> static __device__ __forceinline__ void block_sums(struct element_sums *sums)
{
    KELP_CUDA_SHARED double partial[8][KELP_CUDA_THREADS / KELP_CUDA_WARP];
    sums->loss = kelp__cuda_block_sum(sums->loss, partial[0]);
    if (LOSS == ANY_LOSS) {
        sums->squared = kelp__cuda_block_sum(sums->squared, partial[1]);
        sums->absolute = kelp__cuda_block_sum(sums->absolute, partial[2]);
        sums->relative = kelp__cuda_block_sum(sums->relative, partial[3]);
        sums->relative_squared = kelp__cuda_block_sum(sums->relative_squared, partial[4]);
        sums->target = kelp__cuda_block_sum(sums->target, partial[5]);
        sums->target_squared = kelp__cuda_block_sum(sums->target_squared, partial[6]);
        sums->correct = kelp__cuda_block_sum(sums->correct, partial[7]);
    }
}

/* A block for each part of each sample. The sums of one part are the sample's; those of several go
 * to `partial`. */
template <int LOSS>
static __global__ void long_samples(struct element_criterion values, uint64_t parts,
                                    struct element_sums *partial)
{
    KELP_CUDA_SHARED double quantiles[KELP_JOB_LIST_MAX];
    load_quantiles(values, quantiles);
    const struct kelp_criterion &criterion = values.criterion;
    const uint64_t sample = blockIdx.x / parts, first = blockIdx.x % parts * PART;
    const uint64_t left = criterion.elements - first;
    struct element_sums sums = {0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0};
    walk_elements<LOSS>(criterion, walk_of(criterion, sample, quantiles), first + threadIdx.x,
                        first + (left < PART ? left : PART), KELP_CUDA_THREADS, &sums);
    block_sums<LOSS>(&sums);
    if (threadIdx.x != 0) {
        return;
    }
    if (parts == 1) {
        finish_elements<LOSS>(criterion, sums, sample, criterion.sums + sample * KELP_LOSS_SUMS);
    } else {
        partial[blockIdx.x] = sums;
    }
}

/* The parts of a sample, by a block. */
template <int LOSS>
static __global__ void add_parts(struct kelp_criterion criterion, uint64_t parts,
                                 const struct element_sums *partial)
{
    struct element_sums sums = {0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0};
    for (uint64_t i = threadIdx.x; i < parts; i += KELP_CUDA_THREADS) {
        const struct element_sums *part = &partial[blockIdx.x * parts + i];
        sums.loss = sums.loss + part->loss;
        if (LOSS == ANY_LOSS) {
            sums.squared = sums.squared + part->squared;
            sums.absolute = sums.absolute + part->absolute;
            sums.relative = sums.relative + part->relative;
            sums.relative_squared = sums.relative_squared + part->relative_squared;
            sums.target = sums.target + part->target;
            sums.target_squared = sums.target_squared + part->target_squared;
            sums.correct = sums.correct + part->correct;
        }
    }
    block_sums<LOSS>(&sums);
    if (threadIdx.x == 0) {
        finish_elements<LOSS>(criterion, sums, blockIdx.x,
                              criterion.sums + (uint64_t)blockIdx.x * KELP_LOSS_SUMS);
    }
}

template <int LOSS>
static void run_elements(struct kelp_stream *stream, const struct element_criterion *values)
{
    const struct kelp_criterion *criterion = &values->criterion;
    const uint64_t samples = criterion->samples;
    if (criterion->elements <= GROUP_ELEMENTS_MAX) {
        const unsigned int group = kelp__cuda_sample_group(criterion->elements);
        const unsigned int each = KELP_CUDA_THREADS / group;
        KELP_CUDA_LAUNCH(stream, short_samples<LOSS>, (samples + each - 1) / each,
                         KELP_CUDA_THREADS, *values, group);
        return;
    }
    const uint64_t parts = (criterion->elements + PART - 1) / PART;
    struct element_sums *partial = NULL;
    if (parts > 1) {
        partial = static_cast<struct element_sums *>(
            kelp__cuda_scratch(kelp__cuda_stream_of(stream), samples * parts * sizeof(*partial)));
        if (!partial) {
            return;
        }
    }
    KELP_CUDA_LAUNCH(stream, long_samples<LOSS>, samples * parts, KELP_CUDA_THREADS, *values, parts,
                     partial);
    if (parts > 1) {
        KELP_CUDA_LAUNCH(stream, add_parts<LOSS>, samples, KELP_CUDA_THREADS, *criterion, parts,
                         partial);
    }
}

static void run_loss_alone(struct kelp_stream *stream, const struct element_criterion *values)
{
    switch (values->criterion.kind) {
    case KELP_LOSS_MAE:
        run_elements<KELP_LOSS_MAE>(stream, values);
        break;
    case KELP_LOSS_SMOOTH_L1:
        run_elements<KELP_LOSS_SMOOTH_L1>(stream, values);
        break;
    case KELP_LOSS_HUBER:
        run_elements<KELP_LOSS_HUBER>(stream, values);
        break;
    case KELP_LOSS_BCE:
        run_elements<KELP_LOSS_BCE>(stream, values);
        break;
    case KELP_LOSS_BCE_WITH_LOGITS:
        run_elements<KELP_LOSS_BCE_WITH_LOGITS>(stream, values);
        break;
    case KELP_LOSS_QUANTILE:
        run_elements<KELP_LOSS_QUANTILE>(stream, values);
        break;
    default:
        run_elements<KELP_LOSS_MSE>(stream, values);
        break;
    }
}

static void element_losses(struct kelp_stream *stream, const struct kelp_criterion *criterion)
{
    struct element_criterion values = {};
    values.criterion = *criterion;
    values.criterion.quantiles = NULL; /* host memory */
    if (criterion->kind != KELP_LOSS_QUANTILE) {
        values.criterion.quantile_count = 0;
    } else if (criterion->quantile_count > KELP_JOB_LIST_MAX) {
        kelp__cuda_fail(kelp__cuda_stream_of(stream), KELP_ERR_INVALID,
                        "a loss has more quantiles than a GPU takes");
        return;
    } else {
        memcpy(values.quantiles, criterion->quantiles,
               criterion->quantile_count * sizeof(values.quantiles[0]));
    }
    if (criterion->loss_alone) {
        run_loss_alone(stream, &values);
    } else {
        run_elements<ANY_LOSS>(stream, &values);
    }
}

void kelp__cuda_criterion(struct kelp_stream *stream, const struct kelp_criterion *criterion)
{
    if (criterion->kind == KELP_LOSS_CROSS_ENTROPY || criterion->kind == KELP_LOSS_NLL) {
        kelp__cuda_class_losses(stream, criterion);
    } else {
        element_losses(stream, criterion);
    }
}

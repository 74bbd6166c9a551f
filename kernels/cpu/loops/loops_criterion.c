/*
 * The losses: sums for the metrics, and the gradient. See kernels/operators.h for what each does.
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/loops/loops.h"
#include "kernels/cpu/loops/losses.h"
#include "kernels/cpu/loops/sums.h"

/* Elements of a sample are taken in pieces of this many, a multiple of LANES, so that what must be
 * computed or gathered first stays in the nearest cache. */
#define PIECE 256u

static bool is_class_loss(const struct kelp_criterion *criterion)
{
    return criterion->kind == KELP_LOSS_CROSS_ENTROPY || criterion->kind == KELP_LOSS_NLL;
}

struct sample_sums {
    double loss[LANES], squared[LANES], absolute[LANES], relative[LANES], relative_squared[LANES];
    double target[LANES], target_squared[LANES], correct[LANES];
    float first; /* forecast */
};

/* Two or three of the sums over one piece, each group in a loop of its own on copies, so that the
 * compiler keeps them in registers. RUN(j, i) adds element i to the running sums j. */
#define COPY_SUMS(to, from) memcpy(to, from, sizeof(to))
#define EACH_ELEMENT(count, RUN)                                                                   \
    do {                                                                                           \
        const uint32_t whole = (count) - (count) % LANES;                                          \
        for (uint32_t i = 0; i < whole; i += LANES) {                                              \
            for (uint32_t j = 0; j < LANES; j++) {                                                 \
                RUN(j, i + j);                                                                     \
            }                                                                                      \
        }                                                                                          \
        for (uint32_t i = whole; i < (count); i++) {                                               \
            RUN(i - whole, i);                                                                     \
        }                                                                                          \
    } while (0)

INLINE void add_differences(struct sample_sums *sums, const float *restrict forecast,
                            const float *restrict target, uint32_t count)
{
    double squared[LANES], absolutes[LANES];
    COPY_SUMS(squared, sums->squared);
    COPY_SUMS(absolutes, sums->absolute);
#define RUN(lane, at)                                                                              \
    const double d = (double)(forecast[at] - target[at]);                                          \
    squared[lane] = squared[lane] + d * d;                                                         \
    absolutes[lane] = absolutes[lane] + kelp__loss_absolute(d)
    EACH_ELEMENT(count, RUN);
#undef RUN
    COPY_SUMS(sums->squared, squared);
    COPY_SUMS(sums->absolute, absolutes);
}

INLINE void add_relative(struct sample_sums *sums, const float *restrict forecast,
                         const float *restrict target, uint32_t count)
{
    double relative[LANES], squared[LANES];
    COPY_SUMS(relative, sums->relative);
    COPY_SUMS(squared, sums->relative_squared);
#define RUN(lane, at)                                                                              \
    const double ratio = (double)((forecast[at] - target[at]) / target[at]);                       \
    relative[lane] = relative[lane] + kelp__loss_absolute(ratio);                                  \
    squared[lane] = squared[lane] + ratio * ratio
    EACH_ELEMENT(count, RUN);
#undef RUN
    COPY_SUMS(sums->relative, relative);
    COPY_SUMS(sums->relative_squared, squared);
}

INLINE void add_targets(struct sample_sums *sums, const float *restrict forecast,
                        const float *restrict target, uint32_t count)
{
    double plain[LANES], squared[LANES], correct[LANES];
    COPY_SUMS(plain, sums->target);
    COPY_SUMS(squared, sums->target_squared);
    COPY_SUMS(correct, sums->correct);
#define RUN(lane, at)                                                                              \
    const double t = (double)target[at];                                                           \
    const float at_or_above = forecast[at] >= 0.5f ? 1.0f : 0.0f;                                  \
    const float wanted = target[at] >= 0.5f ? 1.0f : 0.0f;                                         \
    plain[lane] = plain[lane] + t;                                                                 \
    squared[lane] = squared[lane] + t * t;                                                         \
    correct[lane] = correct[lane] + (double)(at_or_above == wanted ? 1.0f : 0.0f)
    EACH_ELEMENT(count, RUN);
#undef RUN
    COPY_SUMS(sums->target, plain);
    COPY_SUMS(sums->target_squared, squared);
    COPY_SUMS(sums->correct, correct);
}

INLINE void add_losses(struct sample_sums *sums, const struct kelp_criterion *criterion,
                       const enum kelp_loss_kind kind, const float *restrict output,
                       const float *restrict target, uint32_t count)
{
    const double beta = criterion->beta;
    double loss[LANES];
    COPY_SUMS(loss, sums->loss);
#define RUN(lane, at)                                                                              \
    loss[lane] = loss[lane] + kelp__loss_of((int)kind, beta, output[at], target[at])
    EACH_ELEMENT(count, RUN);
#undef RUN
    COPY_SUMS(sums->loss, loss);
}

static void add_piece_losses(struct sample_sums *sums, const struct kelp_criterion *criterion,
                             const float *output, const float *target, uint32_t count)
{
    switch (criterion->kind) {
    case KELP_LOSS_SMOOTH_L1:
        add_losses(sums, criterion, KELP_LOSS_SMOOTH_L1, output, target, count);
        break;
    case KELP_LOSS_HUBER:
        add_losses(sums, criterion, KELP_LOSS_HUBER, output, target, count);
        break;
    case KELP_LOSS_BCE:
        add_losses(sums, criterion, KELP_LOSS_BCE, output, target, count);
        break;
    case KELP_LOSS_BCE_WITH_LOGITS:
        add_losses(sums, criterion, KELP_LOSS_BCE_WITH_LOGITS, output, target, count);
        break;
    default: /* the sums that are there anyhow */
        break;
    }
}

/* The forecasts of a piece, which the output has as they are, or every so often, or as logits. */
INLINE const float *piece_forecast(const struct kelp_criterion *criterion, const float *output,
                                   uint64_t first, uint32_t count, float room[PIECE])
{
    if (criterion->kind == KELP_LOSS_BCE_WITH_LOGITS) {
        for (uint32_t i = 0; i < count; i++) {
            room[i] = kelp__math_sigmoid(output[first + i]);
        }
        return room;
    }
    if (criterion->kind == KELP_LOSS_QUANTILE) {
        const uint64_t stride = criterion->quantile_count;
        for (uint32_t i = 0; i < count; i++) {
            room[i] = output[(first + i) * stride + stride / 2];
        }
        return room;
    }
    return output + first;
}

/* The piece of a sample that begins at element `first`: everything that compares its forecast. */
static void add_metrics(struct sample_sums *sums, const struct kelp_criterion *criterion,
                        const float *output, const float *target, uint64_t first, uint32_t count)
{
    float room[PIECE];
    const float *forecast = piece_forecast(criterion, output, first, count, room);
    add_differences(sums, forecast, target + first, count);
    add_relative(sums, forecast, target + first, count);
    add_targets(sums, forecast, target + first, count);
    sums->first = first == 0 && count != 0 ? forecast[0] : sums->first;
}

static double quantile_loss(const struct kelp_criterion *criterion, const float *output,
                            const float *target)
{
    const uint32_t count = criterion->quantile_count;
    double sum = 0.0;
    for (uint64_t i = 0; i < criterion->target_elements; i++) {
        for (uint32_t k = 0; k < count; k++) {
            const double q = criterion->quantiles[k];
            const double e = (double)(target[i] - output[i * count + k]);
            sum = sum + (e > 0.0 ? q * e : (q - 1.0) * e);
        }
    }
    return sum;
}

static double finish_loss(const struct kelp_criterion *criterion, const struct sample_sums *sums,
                          const float *output, const float *target)
{
    double loss;
    switch (criterion->kind) {
    case KELP_LOSS_MSE:
        loss = kelp__sums_add_up_double(sums->squared);
        break;
    case KELP_LOSS_MAE:
        loss = kelp__sums_add_up_double(sums->absolute);
        break;
    case KELP_LOSS_QUANTILE:
        loss = quantile_loss(criterion, output, target);
        break;
    default:
        loss = kelp__sums_add_up_double(sums->loss);
        break;
    }
    return criterion->target_elements == 0 ? 0.0 : loss / (double)criterion->elements;
}

static void set_metrics(const struct sample_sums *sums, double *ret)
{
    ret[KELP_LOSS_SUM_SQUARED] = kelp__sums_add_up_double(sums->squared);
    ret[KELP_LOSS_SUM_ABSOLUTE] = kelp__sums_add_up_double(sums->absolute);
    ret[KELP_LOSS_SUM_RELATIVE] = kelp__sums_add_up_double(sums->relative);
    ret[KELP_LOSS_SUM_RELATIVE_SQUARED] = kelp__sums_add_up_double(sums->relative_squared);
    ret[KELP_LOSS_SUM_TARGET] = kelp__sums_add_up_double(sums->target);
    ret[KELP_LOSS_SUM_TARGET_SQUARED] = kelp__sums_add_up_double(sums->target_squared);
    ret[KELP_LOSS_SUM_CORRECT] = kelp__sums_add_up_double(sums->correct);
    ret[KELP_LOSS_SUM_SCORE] = (double)sums->first;
}

static void elementwise_sums(const struct kelp_criterion *criterion, const float *output,
                             const float *target, double *ret)
{
    const uint64_t elements = criterion->target_elements;
    const bool of_differences =
        criterion->kind == KELP_LOSS_MSE || criterion->kind == KELP_LOSS_MAE;
    struct sample_sums sums = {.first = 0.0f};
    for (uint64_t i = 0; i < elements; i += PIECE) {
        const uint32_t count = elements - i < PIECE ? (uint32_t)(elements - i) : PIECE;
        if (!criterion->loss_alone) {
            add_metrics(&sums, criterion, output, target, i, count);
        } else if (of_differences) {
            add_differences(&sums, output + i, target + i, count);
        }
        add_piece_losses(&sums, criterion, output + i, target + i, count);
    }
    ret[KELP_LOSS_SUM_LOSS] = finish_loss(criterion, &sums, output, target);
    if (!criterion->loss_alone) {
        set_metrics(&sums, ret);
    }
}

/* The losses of samples of one element, without the detour over running sums, which would be all of
 * their cost. */
INLINE void single_losses(const struct kelp_criterion *criterion, const enum kelp_loss_kind kind)
{
    for (uint32_t s = 0; s < criterion->samples; s++) {
        criterion->sums[(uint64_t)s * KELP_LOSS_SUMS + KELP_LOSS_SUM_LOSS] =
            kelp__loss_of((int)kind, criterion->beta, criterion->output[s], criterion->target[s]);
    }
}

static void all_single_losses(const struct kelp_criterion *criterion)
{
    switch (criterion->kind) {
    case KELP_LOSS_MSE:
        single_losses(criterion, KELP_LOSS_MSE);
        break;
    case KELP_LOSS_MAE:
        single_losses(criterion, KELP_LOSS_MAE);
        break;
    case KELP_LOSS_SMOOTH_L1:
        single_losses(criterion, KELP_LOSS_SMOOTH_L1);
        break;
    case KELP_LOSS_HUBER:
        single_losses(criterion, KELP_LOSS_HUBER);
        break;
    case KELP_LOSS_BCE:
        single_losses(criterion, KELP_LOSS_BCE);
        break;
    default:
        single_losses(criterion, KELP_LOSS_BCE_WITH_LOGITS);
        break;
    }
}

INLINE void slopes(const struct kelp_criterion *criterion, const enum kelp_loss_kind kind)
{
    const uint64_t count = criterion->samples * criterion->elements;
    const float *restrict output = criterion->output;
    const float *restrict target = criterion->target;
    float *restrict gradient = criterion->gradient;
    const float beta = (float)criterion->beta;
    const float scale = (float)((double)*criterion->gradient_scale / (double)criterion->elements);
    for (uint64_t i = 0; i < count; i++) {
        gradient[i] = scale * kelp__loss_slope((int)kind, beta, output[i], target[i]);
    }
}

static void quantile_gradient(const struct kelp_criterion *criterion)
{
    const uint32_t count = criterion->quantile_count;
    const uint64_t rows = criterion->samples * criterion->target_elements;
    const float scale = (float)((double)*criterion->gradient_scale / (double)criterion->elements);
    for (uint32_t k = 0; k < count; k++) {
        const float q = (float)criterion->quantiles[k];
        const float *output = criterion->output + k;
        float *gradient = criterion->gradient + k;
        for (uint64_t i = 0; i < rows; i++) {
            gradient[i * count] =
                scale * kelp__loss_quantile_slope(q, output[i * count], criterion->target[i]);
        }
    }
}

static void elementwise_gradient(const struct kelp_criterion *criterion)
{
    switch (criterion->kind) {
    case KELP_LOSS_MAE:
        slopes(criterion, KELP_LOSS_MAE);
        break;
    case KELP_LOSS_SMOOTH_L1:
        slopes(criterion, KELP_LOSS_SMOOTH_L1);
        break;
    case KELP_LOSS_HUBER:
        slopes(criterion, KELP_LOSS_HUBER);
        break;
    case KELP_LOSS_BCE:
        slopes(criterion, KELP_LOSS_BCE);
        break;
    case KELP_LOSS_BCE_WITH_LOGITS:
        slopes(criterion, KELP_LOSS_BCE_WITH_LOGITS);
        break;
    case KELP_LOSS_QUANTILE:
        quantile_gradient(criterion);
        break;
    default:
        slopes(criterion, KELP_LOSS_MSE);
        break;
    }
}

/* False: the target is not one of the classes. */
static bool class_of(struct kelp_stream *stream, const struct kelp_criterion *criterion,
                     uint32_t sample, uint64_t *ret)
{
    const float target = criterion->target[sample];
    /* The first comparisons also refuse NaN, and keep what follows within the range. */
    if (target >= 0.0f && target < (float)criterion->elements &&
        (float)(uint32_t)target == target && (uint32_t)target < criterion->elements) {
        *ret = (uint32_t)target;
        return true;
    }
    kelp__cpu_fault(stream, (struct kelp_loop_fault){.what = KELP_LOOP_BAD_CLASS,
                                                     .value = target,
                                                     .limit = criterion->elements});
    return false;
}

static uint64_t index_of_largest(const float *x, uint64_t count)
{
    uint64_t largest = 0;
    for (uint64_t i = 1; i < count; i++) {
        largest = x[i] > x[largest] ? i : largest;
    }
    return largest;
}

static void class_score(const struct kelp_criterion *criterion, const float *output, uint64_t class,
                        double *ret)
{
    ret[KELP_LOSS_SUM_CORRECT] = index_of_largest(output, criterion->elements) == class ? 1.0 : 0.0;
    if (criterion->elements == 2) {
        const bool logits = criterion->kind == KELP_LOSS_CROSS_ENTROPY;
        ret[KELP_LOSS_SUM_SCORE] = (double)(logits ? kelp__math_sigmoid(output[1] - output[0])
                                                   : kelp__math_exp(output[1]));
    }
}

/* The loss of one sample, and e^(output - largest) and its sum for the gradient. */
static double cross_entropy(const struct kelp_criterion *criterion, const float *output,
                            uint64_t class, float *exponentials, float *ret_sum)
{
    const uint64_t count = criterion->elements;
    const double smoothing = criterion->label_smoothing;
    const float largest = kelp__sums_row_max(output, count);
    for (uint64_t c = 0; c < count; c++) {
        exponentials[c] = kelp__math_exp(output[c] - largest);
    }
    *ret_sum = kelp__sums_row_sum(exponentials, count);
    const double logarithm = kelp__math_log((double)*ret_sum);
    double loss = logarithm - (double)(output[class] - largest);
    if (smoothing != 0.0) {
        double all = 0.0;
        for (uint64_t c = 0; c < count; c++) {
            all = all + (logarithm - (double)(output[c] - largest));
        }
        loss = (1.0 - smoothing) * loss + smoothing / (double)count * all;
    }
    return loss;
}

static void cross_entropy_gradient(const struct kelp_criterion *criterion, uint64_t class,
                                   const float *exponentials, float sum, float *gradient)
{
    const uint64_t count = criterion->elements;
    const float scale = *criterion->gradient_scale;
    const float spread = (float)(criterion->label_smoothing / (double)count);
    for (uint64_t c = 0; c < count; c++) {
        gradient[c] = scale * (exponentials[c] / sum - spread);
    }
    gradient[class] =
        scale * (exponentials[class] / sum - spread - (float)(1.0 - criterion->label_smoothing));
}

static void class_loss(struct kelp_stream *stream, const struct kelp_criterion *criterion)
{
    const uint64_t count = criterion->elements;
    for (uint32_t s = 0; s < criterion->samples; s++) {
        const float *output = criterion->output + s * count;
        float *gradient = criterion->gradient ? criterion->gradient + s * count : NULL;
        double *sums = criterion->sums + (uint64_t)s * KELP_LOSS_SUMS;
        uint64_t class = 0;
        if (!class_of(stream, criterion, s, &class)) {
            for (uint64_t c = 0; gradient && c < count; c++) {
                gradient[c] = 0.0f;
            }
            continue;
        }
        if (criterion->kind == KELP_LOSS_CROSS_ENTROPY) {
            float *exponentials = criterion->workspace + s * count, sum = 0.0f;
            sums[KELP_LOSS_SUM_LOSS] = cross_entropy(criterion, output, class, exponentials, &sum);
            if (gradient) {
                cross_entropy_gradient(criterion, class, exponentials, sum, gradient);
            }
        } else {
            sums[KELP_LOSS_SUM_LOSS] = -(double)output[class];
            for (uint64_t c = 0; gradient && c < count; c++) {
                gradient[c] = c == class ? -*criterion->gradient_scale : 0.0f;
            }
        }
        if (!criterion->loss_alone) {
            class_score(criterion, output, class, sums);
        }
    }
}

void KELP_LOOP(criterion)(struct kelp_stream *stream, const struct kelp_criterion *criterion)
{
    for (uint64_t i = 0; i < (uint64_t)criterion->samples * KELP_LOSS_SUMS; i++) {
        criterion->sums[i] = 0.0;
    }
    if (is_class_loss(criterion)) {
        class_loss(stream, criterion);
        return;
    }
    const bool single =
        criterion->loss_alone && criterion->elements == 1 && criterion->kind != KELP_LOSS_QUANTILE;
    if (single) {
        all_single_losses(criterion);
    }
    for (uint32_t s = 0; !single && s < criterion->samples; s++) {
        elementwise_sums(criterion, criterion->output + s * criterion->elements,
                         criterion->target + s * criterion->target_elements,
                         criterion->sums + (uint64_t)s * KELP_LOSS_SUMS);
    }
    if (criterion->gradient && criterion->elements != 0) {
        elementwise_gradient(criterion);
    }
}

#include "common/training/metrics.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>

uint32_t kelp_metric_sum_trim(const double *sums, uint32_t count)
{
    while (count > 0 && sums[count - 1] == 0.0 && !signbit(sums[count - 1])) {
        count--;
    }
    return count;
}

const char *kelp_metric_name(enum kelp_metric metric)
{
    static const char *const names[KELP_METRIC_COUNT] = {
        "loss", "mse",      "mae", "rmse",         "mape",         "mspe",
        "rse",  "accuracy", "auc", "mae_unscaled", "rmse_unscaled"};

    assert(metric < KELP_METRIC_COUNT);
    return names[metric];
}

void kelp_metrics_set(struct kelp_metrics *metrics, enum kelp_metric metric, double value)
{
    metrics->present |= 1u << metric;
    metrics->of[metric] = value;
}

enum kelp_metric kelp_metric_of_sum(uint32_t index)
{
    static const enum kelp_metric places[KELP_JOB_SUMS_MAX] = {
        KELP_METRIC_AUC,  KELP_METRIC_MAE_UNSCALED, KELP_METRIC_RMSE_UNSCALED,
        KELP_METRIC_MAPE, KELP_METRIC_MSPE,         KELP_METRIC_RSE};

    assert(index < KELP_JOB_SUMS_MAX);
    return places[index];
}

/* The entry of model.sums that has this metric; false: none. */
static bool sum_at(const struct kelp_job *job, enum kelp_metric metric,
                   struct kelp_job_sum *ret_sum)
{
    for (uint32_t i = 0; i < KELP_JOB_SUMS_MAX && kelp_job_sum(job, i, ret_sum); i++) {
        if (kelp_metric_of_sum(i) == metric) {
            return true;
        }
    }
    return false;
}

void kelp_metric_name_in(const struct kelp_job *job, enum kelp_metric metric,
                         char name[KELP_JOB_SUM_NAME_MAX + 1])
{
    struct kelp_job_sum sum;

    (void)snprintf(name, KELP_JOB_SUM_NAME_MAX + 1, "%s",
                   job && sum_at(job, metric, &sum) ? sum.name : kelp_metric_name(metric));
}

static enum kelp_metric metric_named(const struct kelp_job *job, enum kelp_monitored monitored,
                                     const char *sum)
{
    static const enum kelp_metric metrics[] = {[KELP_MONITOR_LOSS] = KELP_METRIC_LOSS,
                                               [KELP_MONITOR_MSE] = KELP_METRIC_MSE,
                                               [KELP_MONITOR_MAE] = KELP_METRIC_MAE,
                                               [KELP_MONITOR_ACCURACY] = KELP_METRIC_ACCURACY,
                                               [KELP_MONITOR_AUC] = KELP_METRIC_AUC};
    uint32_t index = 0;

    if (monitored != KELP_MONITOR_SUM) {
        return metrics[monitored];
    }
    const bool found = kelp_job_sum_find(job, sum, &index);
    assert(found); /* kelp_job_file_finish() */
    (void)found;
    return kelp_metric_of_sum(index);
}

enum kelp_metric kelp_metric_monitored(const struct kelp_job *job)
{
    return metric_named(job, job->train.monitor, job->train.monitor_sum);
}

_Static_assert((int)KELP_CHECKPOINT_VAL_LOSS == KELP_MONITOR_LOSS &&
                   (int)KELP_CHECKPOINT_VAL_MSE == KELP_MONITOR_MSE &&
                   (int)KELP_CHECKPOINT_VAL_MAE == KELP_MONITOR_MAE &&
                   (int)KELP_CHECKPOINT_VAL_ACCURACY == KELP_MONITOR_ACCURACY &&
                   (int)KELP_CHECKPOINT_VAL_AUC == KELP_MONITOR_AUC &&
                   (int)KELP_CHECKPOINT_VAL_SUM == KELP_MONITOR_SUM &&
                   KELP_CHECKPOINT_VAL_AUC == KELP_CHECKPOINT_METRICS - 1,
               "checkpoint.metric names what train.monitor does");

enum kelp_metric kelp_metric_of_keeping(const struct kelp_job *job)
{
    return metric_named(job, (enum kelp_monitored)job->checkpoint.metric,
                        job->checkpoint.metric_sum);
}

uint32_t kelp_checkpoint_metric_index(const struct kelp_job *job)
{
    return job->checkpoint.metric == KELP_CHECKPOINT_VAL_SUM ? (uint32_t)KELP_CHECKPOINT_VAL_AUC
                                                             : (uint32_t)job->checkpoint.metric;
}

enum kelp_metric kelp_metric_of_checkpoint(const struct kelp_job *job, uint32_t index)
{
    return job->checkpoint.metric == KELP_CHECKPOINT_VAL_SUM && index == KELP_CHECKPOINT_VAL_AUC
               ? kelp_metric_of_keeping(job)
               : metric_named(job, (enum kelp_monitored)index, "");
}

void kelp_metrics_for_checkpoint(const struct kelp_job *job, const struct kelp_metrics *metrics,
                                 double ret_metric[KELP_CHECKPOINT_METRICS])
{
    for (uint32_t i = 0; i < KELP_CHECKPOINT_METRICS; i++) {
        enum kelp_metric metric = kelp_metric_of_checkpoint(job, i);
        /* A program has no AUC: the place of val_auc may hold another sum than the requested
         * one. */
        bool other = job->model.kind == KELP_MODEL_PROGRAM && i == KELP_CHECKPOINT_VAL_AUC &&
                     job->checkpoint.metric != KELP_CHECKPOINT_VAL_SUM;
        bool finite = !other && kelp_metrics_have(metrics, metric) && isfinite(metrics->of[metric]);
        ret_metric[i] = finite ? metrics->of[metric] : (double)NAN;
    }
}

bool kelp_metric_larger(const struct kelp_job *job, enum kelp_metric metric)
{
    struct kelp_job_sum sum;

    return sum_at(job, metric, &sum) ? sum.larger
                                     : metric == KELP_METRIC_ACCURACY || metric == KELP_METRIC_AUC;
}

bool kelp_metric_better(bool larger, double value, double than, double delta)
{
    return isfinite(value) && (larger ? value > than + delta : value < than - delta);
}

double kelp_metric_worst(bool larger)
{
    return larger ? -INFINITY : INFINITY;
}

/*
 * The share of pairs of a positive and a negative sample in which the positive one scores higher.
 * Counts are whole numbers, so the order of summation does not matter below 2^53. False: no pairs.
 */
static bool auc_of(const double sums[KELP_METRIC_SUM_COUNT], double *ret_auc)
{
    double below = 0, ordered = 0, positives = 0;

    for (uint32_t bin = 0; bin < KELP_METRIC_SUM_BINS; bin++) {
        double negative = sums[KELP_METRIC_SUM_NEGATIVE + bin];
        double positive = sums[KELP_METRIC_SUM_POSITIVE + bin];
        ordered += positive * (below + 0.5 * negative);
        below += negative;
        positives += positive;
    }
    if (!(positives > 0) || !(below > 0)) {
        return false;
    }
    *ret_auc = ordered / (positives * below);
    return true;
}

static void set_classes(const double sums[KELP_METRIC_SUM_COUNT], struct kelp_metrics *metrics)
{
    double auc;

    kelp_metrics_set(metrics, KELP_METRIC_ACCURACY,
                     sums[KELP_METRIC_SUM_CORRECT] / sums[KELP_METRIC_SUM_ELEMENTS]);
    if (auc_of(sums, &auc)) {
        kelp_metrics_set(metrics, KELP_METRIC_AUC, auc);
    }
}

/* mse, rmse, and rse if the target's sums give its deviation. */
static void set_squared(const double sums[KELP_METRIC_SUM_COUNT], struct kelp_metrics *metrics)
{
    double elements = sums[KELP_METRIC_SUM_ELEMENTS];
    double mse = sums[KELP_METRIC_SUM_SQUARED] / elements;
    double target = sums[KELP_METRIC_SUM_TARGET], squares = sums[KELP_METRIC_SUM_TARGET_SQUARED];
    double deviations = squares - target / elements * target;

    kelp_metrics_set(metrics, KELP_METRIC_MSE, mse);
    kelp_metrics_set(metrics, KELP_METRIC_RMSE, sqrt(mse));
    if (deviations > 0) {
        kelp_metrics_set(metrics, KELP_METRIC_RSE,
                         sqrt(sums[KELP_METRIC_SUM_SQUARED]) / sqrt(deviations));
    }
}

static void set_errors(const double sums[KELP_METRIC_SUM_COUNT], struct kelp_metrics *metrics)
{
    double elements = sums[KELP_METRIC_SUM_ELEMENTS];
    double target = sums[KELP_METRIC_SUM_TARGET], squares = sums[KELP_METRIC_SUM_TARGET_SQUARED];

    set_squared(sums, metrics);
    kelp_metrics_set(metrics, KELP_METRIC_MAE, sums[KELP_METRIC_SUM_ABSOLUTE] / elements);
    if (sums[KELP_METRIC_SUM_UNSCALED_SAMPLES] > 0 &&
        sums[KELP_METRIC_SUM_UNSCALED_SAMPLES] == sums[KELP_METRIC_SUM_SAMPLES]) {
        kelp_metrics_set(metrics, KELP_METRIC_MAE_UNSCALED,
                         sums[KELP_METRIC_SUM_UNSCALED_ABSOLUTE] / elements);
        kelp_metrics_set(metrics, KELP_METRIC_RMSE_UNSCALED,
                         sqrt(sums[KELP_METRIC_SUM_UNSCALED_SQUARED] / elements));
    }
    if (squares > 0 && target == squares) {
        set_classes(sums, metrics);
    } else if (squares > 0 && !isinf(sums[KELP_METRIC_SUM_RELATIVE])) {
        kelp_metrics_set(metrics, KELP_METRIC_MAPE, sums[KELP_METRIC_SUM_RELATIVE] / elements);
        kelp_metrics_set(metrics, KELP_METRIC_MSPE,
                         sums[KELP_METRIC_SUM_RELATIVE_SQUARED] / elements);
    }
}

static void set_loss(const double sums[KELP_METRIC_SUM_COUNT], struct kelp_metrics *metrics)
{
    double samples = sums[KELP_METRIC_SUM_SAMPLES];

    kelp_metrics_set(metrics, KELP_METRIC_LOSS,
                     samples > 0 ? sums[KELP_METRIC_SUM_LOSS] / samples : 0.0);
}

/* Does the sum have terms, and was no target zero? */
static bool is_relative(double sum)
{
    return sum != 0 && !isinf(sum);
}

/* Sums of model.sums get metrics in their order in the job. */
static void set_named(const struct kelp_job *job, const double sums[KELP_METRIC_SUM_COUNT],
                      struct kelp_metrics *metrics)
{
    const double samples = sums[KELP_METRIC_SUM_SAMPLES];
    struct kelp_job_sum sum;

    for (uint32_t i = 0; i < KELP_JOB_SUMS_MAX && kelp_job_sum(job, i, &sum); i++) {
        const enum kelp_metric place = kelp_metric_of_sum(i);
        metrics->present &= ~(1u << place);
        metrics->of[place] = 0;
        if (samples > 0 && sums[KELP_METRIC_SUM_GAVE_NAMED + i] > 0) {
            kelp_metrics_set(metrics, place, sums[KELP_METRIC_SUM_NAMED + i] / samples);
        }
    }
}

void kelp_metrics_of_given(const struct kelp_job *job, const double sums[KELP_METRIC_SUM_COUNT],
                           struct kelp_metrics *ret_metrics)
{
    struct kelp_metrics metrics = {.present = 0};
    const double elements = sums[KELP_METRIC_SUM_ELEMENTS];
    const struct {
        enum kelp_metric metric;
        double sum;
        bool given;
    } means[] = {
        {KELP_METRIC_MAE, sums[KELP_METRIC_SUM_ABSOLUTE], sums[KELP_METRIC_SUM_GAVE_ABSOLUTE] > 0},
        {KELP_METRIC_ACCURACY, sums[KELP_METRIC_SUM_CORRECT],
         sums[KELP_METRIC_SUM_GAVE_CORRECT] > 0},
        {KELP_METRIC_MAPE, sums[KELP_METRIC_SUM_RELATIVE],
         is_relative(sums[KELP_METRIC_SUM_RELATIVE])},
        {KELP_METRIC_MSPE, sums[KELP_METRIC_SUM_RELATIVE_SQUARED],
         is_relative(sums[KELP_METRIC_SUM_RELATIVE_SQUARED])},
    };

    set_loss(sums, &metrics);
    if (elements > 0 && sums[KELP_METRIC_SUM_GAVE_SQUARED] > 0) {
        set_squared(sums, &metrics);
    }
    for (size_t i = 0; i < KELP_ARRAY_COUNT(means) && elements > 0; i++) {
        if (means[i].given) {
            kelp_metrics_set(&metrics, means[i].metric, means[i].sum / elements);
        }
    }
    set_named(job, sums, &metrics);
    *ret_metrics = metrics;
}

void kelp_metrics_of_sums(const double sums[KELP_METRIC_SUM_COUNT], enum kelp_loss_kind loss,
                          struct kelp_metrics *ret_metrics)
{
    struct kelp_metrics metrics = {.present = 0};

    set_loss(sums, &metrics);
    if (sums[KELP_METRIC_SUM_ELEMENTS] > 0) {
        if (loss == KELP_LOSS_CROSS_ENTROPY || loss == KELP_LOSS_NLL) {
            set_classes(sums, &metrics);
        } else {
            set_errors(sums, &metrics);
        }
    }
    *ret_metrics = metrics;
}

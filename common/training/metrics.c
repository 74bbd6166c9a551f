#include "common/training/metrics.h"

#include <assert.h>
#include <math.h>

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

enum kelp_metric kelp_metric_of_monitored(enum kelp_monitored monitored)
{
    switch (monitored) {
    case KELP_MONITOR_LOSS:
        return KELP_METRIC_LOSS;
    case KELP_MONITOR_MSE:
        return KELP_METRIC_MSE;
    case KELP_MONITOR_MAE:
        return KELP_METRIC_MAE;
    case KELP_MONITOR_ACCURACY:
        return KELP_METRIC_ACCURACY;
    case KELP_MONITOR_AUC:
        return KELP_METRIC_AUC;
    }
    assert(false && "monitored");
    return KELP_METRIC_LOSS;
}

_Static_assert((int)KELP_CHECKPOINT_VAL_LOSS == KELP_MONITOR_LOSS &&
                   (int)KELP_CHECKPOINT_VAL_MSE == KELP_MONITOR_MSE &&
                   (int)KELP_CHECKPOINT_VAL_MAE == KELP_MONITOR_MAE &&
                   (int)KELP_CHECKPOINT_VAL_ACCURACY == KELP_MONITOR_ACCURACY &&
                   (int)KELP_CHECKPOINT_VAL_AUC == KELP_MONITOR_AUC &&
                   KELP_CHECKPOINT_VAL_AUC == KELP_CHECKPOINT_METRICS - 1,
               "checkpoint.metric names what train.monitor does");

enum kelp_metric kelp_metric_of_checkpoint(enum kelp_checkpoint_metric metric)
{
    return kelp_metric_of_monitored((enum kelp_monitored)metric);
}

void kelp_metrics_for_checkpoint(const struct kelp_metrics *metrics,
                                 double ret_metric[KELP_CHECKPOINT_METRICS])
{
    for (uint32_t i = 0; i < KELP_CHECKPOINT_METRICS; i++) {
        enum kelp_metric metric = kelp_metric_of_checkpoint(i);
        bool finite = kelp_metrics_have(metrics, metric) && isfinite(metrics->of[metric]);
        ret_metric[i] = finite ? metrics->of[metric] : (double)NAN;
    }
}

static bool larger_is_better(enum kelp_metric metric)
{
    return metric == KELP_METRIC_ACCURACY || metric == KELP_METRIC_AUC;
}

bool kelp_metric_better(enum kelp_metric metric, double value, double than, double delta)
{
    return isfinite(value) &&
           (larger_is_better(metric) ? value > than + delta : value < than - delta);
}

double kelp_metric_worst(enum kelp_metric metric)
{
    return larger_is_better(metric) ? -INFINITY : INFINITY;
}

/*
 * The share of pairs of a positive and a negative sample in which the positive one has the higher
 * score. Counts are whole numbers, so no order of the sums matters below 2^53. False: there are no
 * pairs.
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

/* mse, rmse, and rse where the target's sums tell how far it deviates. */
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

/* Was anything added to it, and was no target zero? */
static bool is_relative(double sum)
{
    return sum != 0 && !isinf(sum);
}

void kelp_metrics_of_given(const double sums[KELP_METRIC_SUM_COUNT],
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

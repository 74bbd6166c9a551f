#include "common/training/metrics.h"

#include <assert.h>
#include <math.h>

uint32_t kelp_metric_trim(const double *sums, uint32_t count)
{
    while (count > 0 && sums[count - 1] == 0.0 && !signbit(sums[count - 1])) {
        count--;
    }
    return count;
}

const char *kelp_measure_name(enum kelp_measure measure)
{
    static const char *const names[KELP_MEASURE_COUNT] = {"loss", "mse", "mae",      "rmse", "mape",
                                                          "mspe", "rse", "accuracy", "auc"};

    assert(measure < KELP_MEASURE_COUNT);
    return names[measure];
}

void kelp_measures_set(struct kelp_measures *measures, enum kelp_measure measure, double value)
{
    measures->present |= 1u << measure;
    measures->of[measure] = value;
}

enum kelp_measure kelp_monitored_measure(enum kelp_monitored monitored)
{
    switch (monitored) {
    case KELP_MONITOR_LOSS:
        return KELP_MEASURE_LOSS;
    case KELP_MONITOR_MSE:
        return KELP_MEASURE_MSE;
    case KELP_MONITOR_MAE:
        return KELP_MEASURE_MAE;
    case KELP_MONITOR_ACCURACY:
        return KELP_MEASURE_ACCURACY;
    case KELP_MONITOR_AUC:
        return KELP_MEASURE_AUC;
    }
    assert(false && "monitored");
    return KELP_MEASURE_LOSS;
}

_Static_assert((int)KELP_CHECKPOINT_VAL_LOSS == KELP_MONITOR_LOSS &&
                   (int)KELP_CHECKPOINT_VAL_MSE == KELP_MONITOR_MSE &&
                   (int)KELP_CHECKPOINT_VAL_MAE == KELP_MONITOR_MAE &&
                   (int)KELP_CHECKPOINT_VAL_ACCURACY == KELP_MONITOR_ACCURACY &&
                   (int)KELP_CHECKPOINT_VAL_AUC == KELP_MONITOR_AUC &&
                   KELP_CHECKPOINT_VAL_AUC == KELP_CHECKPOINT_METRICS - 1,
               "checkpoint.metric names what train.monitor does");

enum kelp_measure kelp_checkpoint_measure(enum kelp_checkpoint_metric metric)
{
    return kelp_monitored_measure((enum kelp_monitored)metric);
}

void kelp_measures_for_checkpoint(const struct kelp_measures *measures,
                                  double ret_metric[KELP_CHECKPOINT_METRICS])
{
    for (uint32_t i = 0; i < KELP_CHECKPOINT_METRICS; i++) {
        enum kelp_measure measure = kelp_checkpoint_measure(i);
        ret_metric[i] = kelp_measures_have(measures, measure) ? measures->of[measure] : (double)NAN;
    }
}

static bool larger_is_better(enum kelp_measure measure)
{
    return measure == KELP_MEASURE_ACCURACY || measure == KELP_MEASURE_AUC;
}

bool kelp_measure_better(enum kelp_measure measure, double value, double than, double delta)
{
    return larger_is_better(measure) ? value > than + delta : value < than - delta;
}

double kelp_measure_worst(enum kelp_measure measure)
{
    return larger_is_better(measure) ? -INFINITY : INFINITY;
}

/*
 * The share of pairs of a positive and a negative sample in which the positive one has the higher
 * score. Counts are whole numbers, so no order of the sums matters below 2^53. False: there are no
 * pairs.
 */
static bool auc_of(const double sums[KELP_METRIC_COUNT], double *ret_auc)
{
    double below = 0, ordered = 0, positives = 0;

    for (uint32_t bin = 0; bin < KELP_METRIC_BINS; bin++) {
        double negative = sums[KELP_METRIC_NEGATIVE + bin];
        double positive = sums[KELP_METRIC_POSITIVE + bin];
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

static void set_classes(const double sums[KELP_METRIC_COUNT], struct kelp_measures *measures)
{
    double auc;

    kelp_measures_set(measures, KELP_MEASURE_ACCURACY,
                      sums[KELP_METRIC_CORRECT] / sums[KELP_METRIC_ELEMENTS]);
    if (auc_of(sums, &auc)) {
        kelp_measures_set(measures, KELP_MEASURE_AUC, auc);
    }
}

static void set_errors(const double sums[KELP_METRIC_COUNT], struct kelp_measures *measures)
{
    double elements = sums[KELP_METRIC_ELEMENTS];
    double mse = sums[KELP_METRIC_SQUARED] / elements;
    double target = sums[KELP_METRIC_TARGET], squares = sums[KELP_METRIC_TARGET_SQUARED];
    double deviations = squares - target / elements * target;

    kelp_measures_set(measures, KELP_MEASURE_MSE, mse);
    kelp_measures_set(measures, KELP_MEASURE_MAE, sums[KELP_METRIC_ABSOLUTE] / elements);
    kelp_measures_set(measures, KELP_MEASURE_RMSE, sqrt(mse));
    if (deviations > 0) {
        kelp_measures_set(measures, KELP_MEASURE_RSE,
                          sqrt(sums[KELP_METRIC_SQUARED]) / sqrt(deviations));
    }
    if (squares > 0 && target == squares) {
        set_classes(sums, measures);
    } else if (squares > 0 && !isinf(sums[KELP_METRIC_RELATIVE])) {
        kelp_measures_set(measures, KELP_MEASURE_MAPE, sums[KELP_METRIC_RELATIVE] / elements);
        kelp_measures_set(measures, KELP_MEASURE_MSPE,
                          sums[KELP_METRIC_RELATIVE_SQUARED] / elements);
    }
}

void kelp_measures_of(const double sums[KELP_METRIC_COUNT], enum kelp_loss_kind loss,
                      struct kelp_measures *ret_measures)
{
    struct kelp_measures measures = {.present = 0};
    double samples = sums[KELP_METRIC_SAMPLES];

    kelp_measures_set(&measures, KELP_MEASURE_LOSS,
                      samples > 0 ? sums[KELP_METRIC_LOSS] / samples : 0.0);
    if (sums[KELP_METRIC_ELEMENTS] > 0) {
        if (loss == KELP_LOSS_CROSS_ENTROPY || loss == KELP_LOSS_NLL) {
            set_classes(sums, &measures);
        } else {
            set_errors(sums, &measures);
        }
    }
    *ret_measures = measures;
}

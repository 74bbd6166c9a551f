/*
 * Sums over samples, which travel along the reduction tree, and the metrics that follow from them:
 * what people call metrics. Pure.
 */
#ifndef KELP_COMMON_TRAINING_METRICS_H
#define KELP_COMMON_TRAINING_METRICS_H

#include <stdint.h>

#include "common/job/job.h"

/*
 * Sums that travel with every node pushed to partition 0, added along the tree in double. A
 * forecast is what enum kelp_loss_sum (kernels/operators.h) compares with the target. On the wire
 * zeros at the end are left out, so that training steps, which have no histogram, carry a handful.
 */
#define KELP_METRIC_SUM_BINS 512
enum kelp_metric_sum {
    KELP_METRIC_SUM_LOSS,             /* sum over samples of the sample's loss */
    KELP_METRIC_SUM_SAMPLES,          /* samples */
    KELP_METRIC_SUM_SQUARED,          /* sum over elements of the squared error */
    KELP_METRIC_SUM_ABSOLUTE,         /* of the absolute error */
    KELP_METRIC_SUM_ELEMENTS,         /* elements of the target; a class is one */
    KELP_METRIC_SUM_RELATIVE,         /* of |error / target| */
    KELP_METRIC_SUM_RELATIVE_SQUARED, /* of its square */
    KELP_METRIC_SUM_TARGET,           /* of the target */
    KELP_METRIC_SUM_TARGET_SQUARED,   /* of its square */
    KELP_METRIC_SUM_CORRECT,          /* elements whose class is right */
    /* Of samples whose target has one scale, in the data's own unit; evaluations only. */
    KELP_METRIC_SUM_UNSCALED_SQUARED,
    KELP_METRIC_SUM_UNSCALED_ABSOLUTE,
    KELP_METRIC_SUM_UNSCALED_SAMPLES, /* how many these are */
    /* Of programs of one's own (libkelp-worker): lanes that added to the sum, whatever it is. */
    KELP_METRIC_SUM_GAVE_SQUARED,
    KELP_METRIC_SUM_GAVE_ABSOLUTE,
    KELP_METRIC_SUM_GAVE_CORRECT,
    KELP_METRIC_SUM_SCALARS = 16, /* up to here it is zero */
    /* Evaluations of one score for each sample (one element, or two classes): samples by score, in
     * equal bins over [0, 1], of those whose target is below 0.5 (class 0) and of the others. */
    KELP_METRIC_SUM_NEGATIVE = KELP_METRIC_SUM_SCALARS,
    KELP_METRIC_SUM_POSITIVE = KELP_METRIC_SUM_NEGATIVE + KELP_METRIC_SUM_BINS,
    /* Jobs whose program has the model have no such scores: there stand the sums of model.sums, and
     * behind them how many lanes added to each. */
    KELP_METRIC_SUM_NAMED = KELP_METRIC_SUM_SCALARS,
    KELP_METRIC_SUM_GAVE_NAMED = KELP_METRIC_SUM_NAMED + KELP_JOB_SUMS_MAX,
    KELP_METRIC_SUM_NAMED_END = KELP_METRIC_SUM_GAVE_NAMED + KELP_JOB_SUMS_MAX,
    KELP_METRIC_SUM_COUNT = KELP_METRIC_SUM_POSITIVE + KELP_METRIC_SUM_BINS
};

/* The bin of a score: 0 also for what lies below (NaN too), the last one for what lies above. */
static inline uint32_t kelp_metric_sum_bin(double score)
{
    double at = score * KELP_METRIC_SUM_BINS;
    return !(at > 0) ? 0 : at >= KELP_METRIC_SUM_BINS ? KELP_METRIC_SUM_BINS - 1 : (uint32_t)at;
}

/* How many of the first `count` sums are left without the zeros at the end (+0, not -0, so that
 * sums come to the same bits however they travelled). */
uint32_t kelp_metric_sum_trim(const double *sums, uint32_t count);

/* What is printed: "val/mse". The order is that of Record.values on the wire. */
enum kelp_metric {
    KELP_METRIC_LOSS, /* mean over samples of the job's loss */
    KELP_METRIC_MSE,  /* this and the following over all elements, each weighing the same */
    KELP_METRIC_MAE,
    KELP_METRIC_RMSE,
    KELP_METRIC_MAPE, /* as a fraction: 0.1 is 10 % */
    KELP_METRIC_MSPE,
    KELP_METRIC_RSE, /* root of the squared error over the target's squared deviations */
    KELP_METRIC_ACCURACY,
    KELP_METRIC_AUC,          /* from the histogram: equal scores, those of one bin, count half */
    KELP_METRIC_MAE_UNSCALED, /* in the data's own unit, where the target is scaled */
    KELP_METRIC_RMSE_UNSCALED,
    KELP_METRIC_COUNT
};
struct kelp_metrics {
    uint32_t present; /* a bit for each that there is */
    double of[KELP_METRIC_COUNT];
};

/*
 * The metrics of an evaluation. Of a class loss: loss, accuracy, with two classes AUC. Of others
 * loss, mse, mae, rmse; unless all targets are zero rse; where the targets are all 0 or 1 accuracy
 * and, with one score for each sample of which both kinds are there, AUC; else mape and mspe if no
 * target is zero. Where every sample's target has one scale mae_unscaled and rmse_unscaled. A NaN
 * that training produced is a value like any other.
 */
void kelp_metrics_of_sums(const double sums[KELP_METRIC_SUM_COUNT], enum kelp_loss_kind loss,
                          struct kelp_metrics *ret_metrics);

/* Those of a job whose model is a program: of the sums that its lanes added to, and no others. */
void kelp_metrics_of_given(const struct kelp_job *job, const double sums[KELP_METRIC_SUM_COUNT],
                           struct kelp_metrics *ret_metrics);

/* Where the mean of a sum of model.sums stands: instead of a metric that such a job does not
 * have, or gives up for it (mape, mspe, rse). */
enum kelp_metric kelp_metric_of_sum(uint32_t index);

/* "mse". */
const char *kelp_metric_name(enum kelp_metric metric);
/* The same in a job, which may have a sum of model.sums there. job NULL: it has none. */
void kelp_metric_name_in(const struct kelp_job *job, enum kelp_metric metric,
                         char name[KELP_JOB_SUM_NAME_MAX + 1]);

static inline bool kelp_metrics_have(const struct kelp_metrics *metrics, enum kelp_metric metric)
{
    return (metrics->present >> metric & 1) != 0;
}
void kelp_metrics_set(struct kelp_metrics *metrics, enum kelp_metric metric, double value);

/* What train.monitor and checkpoint.metric of a job name. */
enum kelp_metric kelp_metric_monitored(const struct kelp_job *job);
enum kelp_metric kelp_metric_of_keeping(const struct kelp_job *job);
/* Which of the metrics that are kept of a checkpoint its checkpoint.metric is, and which metric of
 * the job each of them is. */
uint32_t kelp_checkpoint_metric_index(const struct kelp_job *job);
enum kelp_metric kelp_metric_of_checkpoint(const struct kelp_job *job, uint32_t index);
/* Those that a checkpoint may go by; NaN where there is none, or where it is not finite. */
void kelp_metrics_for_checkpoint(const struct kelp_job *job, const struct kelp_metrics *metrics,
                                 double ret_metric[KELP_CHECKPOINT_METRICS]);
/* Is a larger value of it better? */
bool kelp_metric_larger(const struct kelp_job *job, enum kelp_metric metric);
/* Of two values, is the first one better, by more than delta? What is not finite never is. */
bool kelp_metric_better(bool larger, double value, double than, double delta);
/* Worse than any. */
double kelp_metric_worst(bool larger);

#endif

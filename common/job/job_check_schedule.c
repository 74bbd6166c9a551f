/* Keys of a job that must fit together: the learning rate over time, and evaluations and what
 * depends on them. */
#include <inttypes.h>

#include "common/job/job_options.h"

static bool class_loss(const struct kelp_job *job)
{
    return job->train.loss == KELP_LOSS_CROSS_ENTROPY || job->train.loss == KELP_LOSS_NLL;
}

/* Do evaluations give accuracy and AUC? Numeric targets may happen to be 0 and 1, but decisions
 * by a metric must not depend on that: without the metric nothing would ever count as better. */
static bool tells_classes(const struct kelp_job *job)
{
    return class_loss(job) || job->train.loss == KELP_LOSS_BCE ||
           job->train.loss == KELP_LOSS_BCE_WITH_LOGITS;
}

static kelp_status check_rates(const struct kelp_job_file *file, struct kelp_error *reterr)
{
    const struct kelp_job *job = &file->job;
    bool cosine = job->train.schedule == KELP_SCHEDULE_COSINE ||
                  job->train.schedule == KELP_SCHEDULE_COSINE_RESTARTS;

    for (uint32_t i = 1; i < job->train.milestone_count; i++) {
        if (job->train.milestones[i] <= job->train.milestones[i - 1]) {
            return kelp__job_refuse(file, "train.milestones", reterr,
                                    "%" PRIu32 " after %" PRIu32 "; they must ascend",
                                    job->train.milestones[i], job->train.milestones[i - 1]);
        }
    }
    if ((cosine || job->train.schedule == KELP_SCHEDULE_PLATEAU) &&
        job->train.lr_min > job->train.lr) {
        return kelp__job_refuse(file, "train.lr_min", reterr, "%g is over train.lr (%g)",
                                job->train.lr_min, job->train.lr);
    }
    if (job->train.schedule == KELP_SCHEDULE_COSINE && job->train.schedule_total > 0 &&
        job->train.warmup >= job->train.schedule_total) {
        return kelp__job_refuse(file, "train.warmup", reterr,
                                "%" PRIu32 " leaves no steps of train.schedule_total (%" PRIu32 ")",
                                job->train.warmup, job->train.schedule_total);
    }
    return KELP_OK;
}

/* AUC needs the scores of single samples, while programs submit sums. */
static kelp_status refuse_auc(const struct kelp_job_file *file, const char *key,
                              struct kelp_error *reterr)
{
    return kelp__job_refuse(file, key, reterr,
                            "val/auc is for Kelp's own models; a program's sums give val/loss, "
                            "val/mse, val/mae or val/accuracy");
}

/* Keys that use evaluations need periodic ones; the one at the end of training comes too late. */
static kelp_status check_turns(const struct kelp_job_file *file, struct kelp_error *reterr)
{
    const struct kelp_job *job = &file->job;
    bool turns =
        job->train.evaluate && (job->train.evaluate_epochs > 0 || job->train.evaluate_steps > 0);
    bool errors = job->train.monitor == KELP_MONITOR_MSE || job->train.monitor == KELP_MONITOR_MAE;
    bool classes =
        job->train.monitor == KELP_MONITOR_ACCURACY || job->train.monitor == KELP_MONITOR_AUC;

    if (job->train.schedule == KELP_SCHEDULE_PLATEAU && !turns) {
        return kelp__job_refuse(file, "train.schedule", reterr,
                                "plateau follows evaluations; it needs train.evaluate with "
                                "train.evaluate_epochs or train.evaluate_steps");
    }
    if (job->train.patience > 0 && !turns) {
        return kelp__job_refuse(file, "train.patience", reterr,
                                "counts evaluations; it needs train.evaluate with "
                                "train.evaluate_epochs or train.evaluate_steps");
    }
    if (job->model.kind == KELP_MODEL_PROGRAM) {
        return job->train.monitor == KELP_MONITOR_AUC ? refuse_auc(file, "train.monitor", reterr)
                                                      : KELP_OK;
    }
    if (class_loss(job) && errors) {
        return kelp__job_refuse(file, "train.monitor", reterr,
                                "train.loss compares classes; use val/loss, val/accuracy or "
                                "val/auc");
    }
    if (!tells_classes(job) && classes) {
        return kelp__job_refuse(file, "train.monitor", reterr,
                                "train.loss compares numbers; use val/loss, val/mse or val/mae");
    }
    return KELP_OK;
}

static kelp_status check_best(const struct kelp_job_file *file, struct kelp_error *reterr)
{
    const struct kelp_job *job = &file->job;
    bool errors = job->checkpoint.metric == KELP_CHECKPOINT_VAL_MSE ||
                  job->checkpoint.metric == KELP_CHECKPOINT_VAL_MAE;
    struct kelp_job_sum sum = {.larger = false};
    uint32_t index = 0;
    if (job->checkpoint.metric == KELP_CHECKPOINT_VAL_SUM &&
        kelp_job_sum_find(job, job->checkpoint.metric_sum, &index)) {
        (void)kelp_job_sum(job, index, &sum);
    }
    bool larger = job->checkpoint.metric == KELP_CHECKPOINT_VAL_ACCURACY ||
                  job->checkpoint.metric == KELP_CHECKPOINT_VAL_AUC || sum.larger;

    if (job->checkpoint.keep_best == 0) {
        return KELP_OK;
    }
    if (job->model.kind == KELP_MODEL_PROGRAM &&
        job->checkpoint.metric == KELP_CHECKPOINT_VAL_AUC) {
        return refuse_auc(file, "checkpoint.metric", reterr);
    }
    if (job->model.kind != KELP_MODEL_PROGRAM && class_loss(job) && errors) {
        return kelp__job_refuse(file, "checkpoint.metric", reterr,
                                "train.loss compares classes; with checkpoint.keep_best use "
                                "val/loss, val/accuracy or val/auc");
    }
    if (job->model.kind != KELP_MODEL_PROGRAM && !tells_classes(job) && larger) {
        return kelp__job_refuse(file, "checkpoint.metric", reterr,
                                "train.loss compares numbers; with checkpoint.keep_best use "
                                "val/loss, val/mse or val/mae");
    }
    if (larger != (job->checkpoint.order == KELP_ORDER_MAX)) {
        return kelp__job_refuse(file, "checkpoint.order", reterr,
                                "a %s value of checkpoint.metric is better: set it to %s",
                                larger ? "larger" : "smaller", larger ? "max" : "min");
    }
    return KELP_OK;
}

kelp_status kelp__job_check_schedule(const struct kelp_job_file *file, struct kelp_error *reterr)
{
    kelp_status status = check_rates(file, reterr);

    if (status == KELP_OK) {
        status = check_turns(file, reterr);
    }
    return status == KELP_OK ? check_best(file, reterr) : status;
}

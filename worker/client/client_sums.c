/* Sums of a lane, from which metrics are computed. */
#include <inttypes.h>

#include "worker/client/client_internal.h"
#include "worker/compute/gradients.h"

_Static_assert((int)KELP_WORKER_SUM_LOSS == KELP_METRIC_SUM_LOSS &&
                   (int)KELP_WORKER_SUM_SQUARED == KELP_METRIC_SUM_SQUARED &&
                   (int)KELP_WORKER_SUM_ABSOLUTE == KELP_METRIC_SUM_ABSOLUTE &&
                   (int)KELP_WORKER_SUM_ELEMENTS == KELP_METRIC_SUM_ELEMENTS &&
                   (int)KELP_WORKER_SUM_RELATIVE == KELP_METRIC_SUM_RELATIVE &&
                   (int)KELP_WORKER_SUM_RELATIVE_SQUARED == KELP_METRIC_SUM_RELATIVE_SQUARED &&
                   (int)KELP_WORKER_SUM_TARGET == KELP_METRIC_SUM_TARGET &&
                   (int)KELP_WORKER_SUM_TARGET_SQUARED == KELP_METRIC_SUM_TARGET_SQUARED &&
                   (int)KELP_WORKER_SUM_CORRECT == KELP_METRIC_SUM_CORRECT,
               "the public sums are the metrics'");

int kelp__client_find_sum(const struct kelp_worker *worker, const char *what, const char *name,
                          uint32_t *ret_index)
{
    const struct kelp_job *job = kelp_job_link_job(worker->job_link);

    return name && kelp_job_sum_find(job, name, ret_index)
               ? KELP_WORKER_OK
               : kelp__client_invalid("%s: the job has no sum '%.40s'; name it in model.sums", what,
                                      name ? name : "");
}

int kelp_worker_add(struct kelp_worker *worker, uint32_t sum, double value)
{
    if (!worker->lane) {
        return kelp__client_invalid("kelp_worker_add(): there is no lane");
    }
    if (sum > KELP_WORKER_SUM_CORRECT || sum == KELP_METRIC_SUM_SAMPLES) {
        return kelp__client_invalid(
            "kelp_worker_add(): %" PRIu32 " is none of enum kelp_worker_sum", sum);
    }
    double *sums = worker->lane->gradient->sums;
    sums[sum] += value;
    if (sum == KELP_METRIC_SUM_SQUARED) {
        sums[KELP_METRIC_SUM_GAVE_SQUARED] = 1;
    } else if (sum == KELP_METRIC_SUM_ABSOLUTE) {
        sums[KELP_METRIC_SUM_GAVE_ABSOLUTE] = 1;
    } else if (sum == KELP_METRIC_SUM_CORRECT) {
        sums[KELP_METRIC_SUM_GAVE_CORRECT] = 1;
    }
    return KELP_WORKER_OK;
}

int kelp_worker_add_named(struct kelp_worker *worker, const char *name, double value)
{
    uint32_t index = 0;

    if (!worker->lane) {
        return kelp__client_invalid("kelp_worker_add_named(): there is no lane");
    }
    int result = kelp__client_find_sum(worker, "kelp_worker_add_named()", name, &index);
    if (result != KELP_WORKER_OK || worker->work->word.kind == KELP_STEP_TRAIN) {
        return result;
    }
    struct kelp_gradient *gradient = worker->lane->gradient;
    gradient->sum_count = KELP_METRIC_SUM_NAMED_END;
    gradient->sums[KELP_METRIC_SUM_NAMED + index] += value;
    gradient->sums[KELP_METRIC_SUM_GAVE_NAMED + index] = 1;
    return KELP_WORKER_OK;
}

/* The monitored metric must be among the sums; without it training would never see an
 * improvement. */
static int check_monitored(const struct kelp_job *job, enum kelp_metric metric, const double *sums)
{
    char name[KELP_JOB_SUM_NAME_MAX + 1];
    struct kelp_metrics metrics;

    kelp_metrics_of_given(job, sums, &metrics);
    kelp_metric_name_in(job, metric, name);
    return job->model.kind != KELP_MODEL_PROGRAM || kelp_metrics_have(&metrics, metric)
               ? KELP_WORKER_OK
               : kelp__client_invalid("the job goes by val/%s: the lane has no sums for it", name);
}

int kelp__client_check_sums(const struct kelp_worker *worker)
{
    const struct kelp_job *job = kelp_job_link_job(worker->job_link);
    const double *sums = worker->lane->gradient->sums;

    if (worker->work->word.kind != KELP_STEP_EVALUATE_VAL) {
        return KELP_WORKER_OK;
    }
    int result = check_monitored(job, kelp_metric_monitored(job), sums);
    if (result == KELP_WORKER_OK && job->checkpoint.keep_best > 0) {
        result = check_monitored(job, kelp_metric_of_keeping(job), sums);
    }
    return result;
}

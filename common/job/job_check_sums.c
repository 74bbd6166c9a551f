/* A job's own sums (model.sums), and keys that name one of them. */
#include <stdio.h>
#include <string.h>

#include "common/base/value.h"
#include "common/job/job_options.h"

static bool is_taken(const char *name)
{
    static const char *const taken[] = {"loss", "step_loss", "mse",          "mae",
                                        "rmse", "mape",      "mspe",         "rse",
                                        "auc",  "accuracy",  "mae_unscaled", "rmse_unscaled"};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(taken); i++) {
        if (strcmp(name, taken[i]) == 0) {
            return true;
        }
    }
    return false;
}

static bool is_name(const char *text, size_t bytes)
{
    return bytes > 0 && bytes <= KELP_JOB_SUM_NAME_MAX &&
           strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") >=
               bytes;
}

static kelp_status check_entry(const struct kelp_job_file *file, uint32_t index, const char *entry,
                               size_t bytes, struct kelp_error *reterr)
{
    const char *equal = memchr(entry, '=', bytes);
    const size_t length = equal ? (size_t)(equal - entry) : bytes;
    const size_t rest = bytes - length;
    struct kelp_job_sum sum;
    uint32_t first = 0;

    if (!is_name(entry, length) || (rest > 0 && (rest != 4 || (memcmp(equal, "=min", 4) != 0 &&
                                                               memcmp(equal, "=max", 4) != 0)))) {
        return kelp__job_refuse(
            file, "model.sums", reterr,
            "'%.*s' is not a sum: NAME, NAME=max or NAME=min, with a name of 1 to "
            "%d letters, digits, '-', '_' or '.'",
            (int)(bytes < 64 ? bytes : 64), entry, KELP_JOB_SUM_NAME_MAX);
    }
    (void)kelp_job_sum(&file->job, index, &sum);
    if (is_taken(sum.name)) {
        return kelp__job_refuse(file, "model.sums", reterr,
                                "%s is a built-in metric; choose another name", sum.name);
    }
    return kelp_job_sum_find(&file->job, sum.name, &first) && first < index
               ? kelp__job_refuse(file, "model.sums", reterr, "%s is there twice", sum.name)
               : KELP_OK;
}

/* A key for a metric names one of Kelp's metrics or a sum of the job. */
static kelp_status check_named(const struct kelp_job_file *file, const char *name, uint32_t value,
                               const char *sum, struct kelp_error *reterr)
{
    const struct kelp_job_key *key = &kelp__job_keys[kelp__job_key_find(name)];
    char typed[KELP_JOB_SUM_NAME_MAX + sizeof("val/")];
    struct kelp_error error;
    uint32_t index = 0;

    if (value != KELP_MONITOR_SUM || kelp_job_sum_find(&file->job, sum, &index)) {
        return KELP_OK;
    }
    (void)snprintf(typed, sizeof(typed), "val/%s", sum);
    return kelp_value_choice(typed, key->choices, &index, &error) == KELP_OK
               ? KELP_OK
               : kelp__job_refuse(
                     file, name, reterr, "%s%s", error.text,
                     file->job.model.kind == KELP_MODEL_PROGRAM ? "; model.sums names others" : "");
}

kelp_status kelp__job_check_sums(const struct kelp_job_file *file, struct kelp_error *reterr)
{
    const struct kelp_job *job = &file->job;
    const char *entry = job->model.sums;

    for (uint32_t i = 0; *entry != '\0'; i++) {
        const size_t bytes = strcspn(entry, "\n");
        kelp_status status = i < KELP_JOB_SUMS_MAX
                                 ? check_entry(file, i, entry, bytes, reterr)
                                 : kelp__job_refuse(file, "model.sums", reterr,
                                                    "has more than %d names", KELP_JOB_SUMS_MAX);
        if (status != KELP_OK) {
            return status;
        }
        entry += bytes;
        entry += *entry == '\n' ? 1 : 0;
    }
    kelp_status status = check_named(file, "train.monitor", (uint32_t)job->train.monitor,
                                     job->train.monitor_sum, reterr);
    return status == KELP_OK
               ? check_named(file, "checkpoint.metric", (uint32_t)job->checkpoint.metric,
                             job->checkpoint.metric_sum, reterr)
               : status;
}

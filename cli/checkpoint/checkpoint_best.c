/* Which checkpoint holds the weights of the best evaluation. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/checkpoint/checkpoint_read.h"
#include "common/base/files.h"
#include "common/base/json.h"
#include "common/training/metrics.h"

#define FILE_MAX (1u << 30) /* bytes of metrics.jsonl, as the coordinator reads them */

/* The best evaluation so far, as training itself finds it: the first of equal ones. */
struct best {
    bool larger;   /* is better */
    char name[32]; /* "val/mse" */
    bool known;
    uint64_t step;
    double value;
};

static kelp_status compare_line(struct best *best, const char *text, size_t bytes,
                                struct kelp_error *reterr)
{
    cJSON *json = NULL;
    uint64_t step = 0;
    kelp_status status = kelp_json_parse(text, bytes, &json, reterr);

    if (status == KELP_OK) {
        status = kelp_json_u64(json, "step", KELP_JSON_INTEGER_MAX, &step, reterr);
    }
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(json, best->name);
    double than = best->known ? best->value : kelp_metric_worst(best->larger);
    if (status == KELP_OK && cJSON_IsNumber(value) &&
        kelp_metric_better(best->larger, value->valuedouble, than, 0)) {
        best->known = true;
        best->step = step;
        best->value = value->valuedouble;
    }
    cJSON_Delete(json);
    return status;
}

/* The last line may be under way. */
static kelp_status read_evaluations(const char *path, struct best *best, struct kelp_error *reterr)
{
    char *text = NULL;
    size_t bytes = 0;
    unsigned number = 1;

    kelp_status status = kelp_files_read(path, FILE_MAX, &text, &bytes, reterr);
    if (status != KELP_OK) {
        return status;
    }
    const char *line = text;
    for (const char *end; status == KELP_OK && (end = strchr(line, '\n')) != NULL; number++) {
        status = compare_line(best, line, (size_t)(end - line), reterr);
        line = end + 1;
    }
    free(text);
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "%s:%u", path, number - 1);
    }
    return status;
}

/* The job's train.monitor. */
static kelp_status find_metric(const struct kelp_checkpoint *checkpoint, struct best *best,
                               struct kelp_error *reterr)
{
    struct kelp_job_file *file = NULL;
    struct kelp_plan plan;

    kelp_status status = kelp_checkpoint_job(checkpoint, &file, &plan, reterr);
    if (status == KELP_OK) {
        const struct kelp_job *job = kelp_job_file_job(file);
        char name[KELP_JOB_SUM_NAME_MAX + 1];
        best->larger = kelp_metric_larger(job, kelp_metric_monitored(job));
        kelp_metric_name_in(job, kelp_metric_monitored(job), name);
        (void)snprintf(best->name, sizeof(best->name), "val/%s", name);
        kelp_plan_fini(&plan);
        kelp_job_file_destroy(file);
    }
    return status;
}

/* metrics.jsonl of the run in whose folder the checkpoint lies. */
static kelp_status metrics_path(const struct kelp_checkpoint *checkpoint, char *path,
                                size_t path_bytes, struct kelp_error *reterr)
{
    size_t behind = strlen(checkpoint->name) + strlen("/" KELP_CHECKPOINTS_FOLDER "/");
    size_t length = strlen(checkpoint->path);

    int written = snprintf(path, path_bytes, "%.*s/metrics.jsonl",
                           length > behind ? (int)(length - behind) : 0, checkpoint->path);
    return written > 0 && (size_t)written < path_bytes
               ? KELP_OK
               : kelp_fail(reterr, KELP_ERR_LIMIT, "the path of the run is too long");
}

const struct kelp_checkpoint *kelp_checkpoints_at(const struct kelp_checkpoints *list,
                                                  uint64_t step)
{
    const struct kelp_checkpoint *newest = kelp_checkpoints_before(list, step);

    return newest && newest->manifest.step == step ? newest : NULL;
}

kelp_status kelp_checkpoints_best(const struct kelp_checkpoints *list,
                                  const struct kelp_checkpoint **ret_checkpoint,
                                  struct kelp_error *reterr)
{
    const struct kelp_checkpoint *newest = kelp_checkpoints_before(list, UINT64_MAX);
    char path[sizeof(newest->path) + 32];
    struct best best = {.known = false};

    if (!newest) {
        return kelp_fail(reterr, KELP_ERR_NOT_FOUND, "the run has no checkpoint");
    }
    kelp_status status = find_metric(newest, &best, reterr);
    if (status == KELP_OK) {
        status = metrics_path(newest, path, sizeof(path), reterr);
    }
    if (status == KELP_OK) {
        status = read_evaluations(path, &best, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    if (!best.known) {
        return kelp_fail(reterr, KELP_ERR_NOT_FOUND, "%s: no evaluation with a finite %s yet", path,
                         best.name);
    }
    *ret_checkpoint = kelp_checkpoints_at(list, best.step);
    return *ret_checkpoint
               ? KELP_OK
               : kelp_fail(reterr, KELP_ERR_NOT_FOUND,
                           "the best %s (%.6g) was that of step %" PRIu64
                           ", of which there is no checkpoint; kelp checkpoint ls lists those that "
                           "exist; checkpoint.epochs: 1 with checkpoint.keep_best: 1 and "
                           "checkpoint.metric: %s keeps the best, unless an epoch takes less time "
                           "than writing one",
                           best.name, best.value, best.step, best.name);
}

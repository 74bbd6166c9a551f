#include "cli/runs/run_info.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/cluster/run_client.h"
#include "cli/cluster/status_view.h"
#include "cli/run/metrics_log.h"
#include "common/training/metrics.h"

static const char *const names[] = {
    [KELP_RUN_STATE_RUNNING] = "running", [KELP_RUN_STATE_DONE] = "done",
    [KELP_RUN_STATE_FAILED] = "failed",   [KELP_RUN_STATE_PAUSED] = "paused",
    [KELP_RUN_STATE_STOPPED] = "stopped", [KELP_RUN_STATE_BROKEN] = "broken"};

const char *kelp_run_state_name(enum kelp_run_state state)
{
    return names[state];
}

bool kelp_run_info_is_run(const char *path)
{
    return kelp_run_dir_is_run(path) || kelp_run_dir_running(path);
}

/* When a file of the run was written last; 0: it is not there. */
static time_t written(const char *run_path, const char *name)
{
    char path[KELP_RUN_PATH_MAX + 64];
    struct stat info;

    return kelp_run_dir_path(run_path, name, path, sizeof(path), NULL) == KELP_OK &&
                   stat(path, &info) == 0
               ? info.st_mtime
               : 0;
}

/* The newest of the files; a run without any was being made when its folder was. */
static double age_of(const char *run_path, const char *const *files, size_t count, time_t now)
{
    time_t newest = 0;

    for (size_t i = 0; i < count; i++) {
        time_t time = written(run_path, files[i]);
        newest = time > newest ? time : newest;
    }
    if (newest == 0) {
        newest = written(run_path, ".");
    }
    return newest < now ? difftime(now, newest) : 0;
}

static void read_job(struct kelp_run_info *info)
{
    char name[KELP_JOB_SUM_NAME_MAX + 1];
    struct kelp_job_file *file = NULL;

    if (kelp_run_job_read(info->path, &file, NULL) != KELP_OK) {
        return;
    }
    const struct kelp_job *job = kelp_job_file_job(file);
    (void)snprintf(info->job, sizeof(info->job), "%s", job->name);
    kelp_metric_name_in(job, kelp_metric_monitored(job), name);
    (void)snprintf(info->monitor, sizeof(info->monitor), "val/%s", name);
    info->inference = job->run.mode != KELP_RUN_TRAIN;
    info->epochs = info->inference ? 0 : job->train.epochs;
    kelp_job_file_destroy(file);
}

static void copy_result(struct kelp_run_info *info, const struct kelp_result *result)
{
    info->step = result->step;
    info->epoch = result->epoch;
    memcpy(info->metrics, result->metrics, sizeof(info->metrics));
    info->metric_count = result->metric_count;
    info->best_known = result->best_known;
    info->best_step = result->best_step;
    info->best_epoch = result->best_epoch;
    memcpy(info->best, result->best, sizeof(info->best));
    info->best_count = result->best_count;
}

static void add_metric(struct kelp_run_info *info, const char *name, double value)
{
    for (uint32_t i = 0; i < info->metric_count; i++) {
        if (strcmp(info->metrics[i].name, name) == 0) {
            info->metrics[i].value = value;
            return;
        }
    }
    if (info->metric_count < KELP_RESULT_METRICS_MAX) {
        struct kelp_result_metric *metric = &info->metrics[info->metric_count++];
        (void)snprintf(metric->name, sizeof(metric->name), "%s", name);
        metric->value = value;
    }
}

/* Of a run without a result: what its metrics.jsonl says last. */
static void read_metrics_log(struct kelp_run_info *info)
{
    struct kelp_metrics_log log;

    if (kelp_metrics_log_read_end(info->path, &log, NULL) != KELP_OK) {
        return;
    }
    for (size_t i = 0; i < log.row_count; i++) {
        const struct kelp_metrics_row *row = &log.rows[i];
        info->step = row->step > info->step ? row->step : info->step;
        if (kelp_metrics_log_cell(&log, row, "train/loss")) { /* an epoch's end */
            info->epoch = row->epoch;
        }
        for (uint32_t c = 0; c < row->cell_count; c++) {
            const struct kelp_metrics_cell *cell = &log.cells[row->cell_first + c];
            if (strchr(log.names[cell->name], '/')) { /* not lr and such */
                add_metric(info, log.names[cell->name], cell->value);
            }
        }
    }
    kelp_metrics_log_fini(&log);
}

/* Ask the run's coordinator; false when it does not answer. */
static bool ask(struct kelp_run_info *info, uint32_t timeout_ms, struct kelp_result *result)
{
    struct kelp_job_client *client = NULL;
    Kelp__V1__StatusReply *reply = NULL;

    bool answered = kelp_run_client_open(info->path, &client, NULL) == KELP_OK &&
                    kelp_job_client_status(client, timeout_ms, &reply, NULL) == KELP_OK;
    if (answered) {
        kelp_status_result(reply, result);
        copy_result(info, result);
        (void)snprintf(info->reason, sizeof(info->reason), "%s", reply->reason);
    }
    kelp_job_client_status_free(reply);
    kelp_job_client_close(client);
    return answered;
}

static void look_at_running(struct kelp_run_info *info, const struct kelp_run_look *look,
                            struct kelp_result *result)
{
    static const char *const begun[] = {"cluster.json"};

    info->state = KELP_RUN_STATE_RUNNING;
    info->age_s = age_of(info->path, begun, KELP_ARRAY_COUNT(begun), look->now);
    if (!ask(info, look->timeout_ms, result)) {
        read_metrics_log(info);
    }
}

static void look_at_broken(struct kelp_run_info *info, time_t now, const char *why)
{
    static const char *const traces[] = {"job.yaml", "cluster.json", "metrics.jsonl",
                                         "digests.jsonl", "result.json"};

    info->state = KELP_RUN_STATE_BROKEN;
    (void)snprintf(info->reason, sizeof(info->reason), "%s", why);
    info->age_s = age_of(info->path, traces, KELP_ARRAY_COUNT(traces), now);
    read_metrics_log(info);
}

static enum kelp_run_state state_of(const char *word)
{
    for (enum kelp_run_state i = KELP_RUN_STATE_DONE; i < KELP_RUN_STATE_BROKEN; i++) {
        if (strcmp(names[i], word) == 0) {
            return i;
        }
    }
    return KELP_RUN_STATE_BROKEN;
}

static void look_at_ended(struct kelp_run_info *info, time_t now, struct kelp_result *result)
{
    static const char *const ended[] = {"result.json"};
    struct kelp_error error = {.status = KELP_OK};

    kelp_status status = kelp_run_result_read(info->path, result, &error);
    if (status != KELP_OK) {
        look_at_broken(info, now,
                       status == KELP_ERR_NOT_FOUND ? "it was killed: there is no result.json"
                                                    : error.text);
        return;
    }
    info->state = state_of(result->status);
    if (info->state == KELP_RUN_STATE_BROKEN) {
        look_at_broken(info, now, "result.json: its status is not known");
        return;
    }
    copy_result(info, result);
    (void)snprintf(info->reason, sizeof(info->reason), "%s", result->reason);
    info->age_s = age_of(info->path, ended, KELP_ARRAY_COUNT(ended), now);
}

void kelp_run_info_read(const char *path, const struct kelp_run_look *look,
                        struct kelp_run_info *ret_info)
{
    struct kelp_run_info *info = ret_info;
    struct kelp_result *result = calloc(1, sizeof(*result));

    memset(info, 0, sizeof(*info));
    (void)snprintf(info->path, sizeof(info->path), "%s", path);
    read_job(info);
    if (!result) {
        look_at_broken(info, look->now, "out of memory");
    } else if (kelp_run_dir_running(path)) {
        look_at_running(info, look, result);
    } else {
        look_at_ended(info, look->now, result);
    }
    free(result);
}

static const struct kelp_result_metric *find(const struct kelp_result_metric *metrics,
                                             uint32_t count, const char *name)
{
    for (uint32_t i = 0; i < count; i++) {
        if (strcmp(metrics[i].name, name) == 0) {
            return &metrics[i];
        }
    }
    return NULL;
}

bool kelp_run_info_metric(const struct kelp_run_info *info, const char *name, double *ret_value)
{
    const struct kelp_result_metric *metric =
        info->best_known ? find(info->best, info->best_count, name) : NULL;

    if (!metric) {
        metric = find(info->metrics, info->metric_count, name);
    }
    if (!metric) {
        return false;
    }
    *ret_value = metric->value;
    return true;
}

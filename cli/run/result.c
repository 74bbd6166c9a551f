#include "cli/run/result.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/verb/meter.h"
#include "common/base/json.h"
#include "common/base/utf8.h"
#include "common/training/metrics.h"

static void add(struct kelp_result_metric *metrics, uint32_t *count, const char *name, double value)
{
    if (*count < KELP_RESULT_METRICS_MAX) {
        struct kelp_result_metric *metric = &metrics[(*count)++];
        (void)snprintf(metric->name, sizeof(metric->name), "%s", name);
        metric->value = value;
    }
}

void kelp_result_add(struct kelp_result *result, const char *name, double value)
{
    add(result->metrics, &result->metric_count, name, value);
}

void kelp_result_add_best(struct kelp_result *result, const char *name, double value)
{
    add(result->best, &result->best_count, name, value);
}

void kelp_result_print_metrics(FILE *out, const struct kelp_result_metric *metrics, uint32_t count)
{
    (void)fputs("\"metrics\":{", out);
    for (uint32_t i = 0; i < count; i++) {
        (void)fputs(i > 0 ? "," : "", out);
        kelp_json_print_string(out, metrics[i].name);
        (void)fputc(':', out);
        kelp_json_print_double(out, metrics[i].value);
    }
    (void)fputc('}', out);
}

void kelp_result_print_best(FILE *out, const struct kelp_result *result, bool with_checkpoint)
{
    if (!result->best_known) {
        (void)fputs(",\"best\":null", out);
        return;
    }
    (void)fprintf(out, ",\"best\":{\"step\":%" PRIu64 ",\"epoch\":%u,", result->best_step,
                  result->best_epoch);
    kelp_result_print_metrics(out, result->best, result->best_count);
    if (with_checkpoint && result->best_checkpoint[0]) {
        kelp_json_print_member(out, ",", "checkpoint", result->best_checkpoint);
    } else if (with_checkpoint) {
        (void)fputs(",\"checkpoint\":null", out);
    }
    (void)fputc('}', out);
}

static void print_stamp(FILE *out, const char *before, const struct kelp_result *result)
{
    kelp_json_print_member(out, before, "started", result->started);
    kelp_json_print_member(out, ",", "ended", result->ended);
    kelp_json_print_member(out, ",", "host", result->host);
    kelp_json_print_member(out, ",", "version", result->version);
}

void kelp_result_print_history(const struct kelp_result *result, FILE *out)
{
    print_stamp(out, "{", result);
    kelp_json_print_member(out, ",", "status", result->status);
    (void)fprintf(out, ",\"step\":%" PRIu64 ",\"wall_s\":", result->step);
    kelp_json_print_double(out, result->wall_s);
    (void)fputs("}\n", out);
}

static void print_time(time_t at, char *text, size_t text_bytes)
{
    struct tm utc;

    text[0] = '\0';
    if (gmtime_r(&at, &utc)) {
        (void)strftime(text, text_bytes, "%Y-%m-%dT%H:%M:%SZ", &utc);
    }
}

void kelp_result_stamp(struct kelp_result *result, time_t now, double wall_s)
{
    print_time(now, result->ended, sizeof(result->ended));
    print_time(now - (time_t)wall_s, result->started, sizeof(result->started));
}

/* The only name in the list; "" if there is not exactly one. */
static const char *only_name(const char *names)
{
    return strchr(names, '\n') ? "" : names;
}

void kelp_result_unit(const struct kelp_job *job, struct kelp_result *result)
{
    const char *unit = job->data.unit;

    if (unit[0] == '\0' &&
        (job->data.kind == KELP_DATA_CSV || job->data.kind == KELP_DATA_SYNTHETIC)) {
        unit = job->data.features == KELP_FEATURES_M ? "" : job->data.target;
    } else if (unit[0] == '\0') {
        unit = only_name(job->data.targets);
    }
    (void)snprintf(result->unit, sizeof(result->unit), "%.63s", unit);
}

void kelp_result_print(const struct kelp_result *result, FILE *out)
{
    kelp_json_print_member(out, "{", "status", result->status);
    (void)fprintf(out, ",\"step\":%" PRIu64 ",\"epoch\":%u,\"steps_skipped\":%" PRIu64 ",",
                  result->step, result->epoch, result->steps_skipped);
    kelp_result_print_metrics(out, result->metrics, result->metric_count);
    kelp_result_print_best(out, result, true);
    kelp_json_print_member(out, ",", "digest", result->digest);
    (void)fputs(",\"steps_per_s\":", out);
    kelp_json_print_double(out, result->steps_per_s);
    (void)fputs(",\"wall_s\":", out);
    kelp_json_print_double(out, result->wall_s);
    kelp_json_print_member(out, ",", "job", result->job);
    kelp_json_print_member(out, ",", "reason", result->reason);
    kelp_json_print_member(out, ",", "unit", result->unit);
    print_stamp(out, ",", result);
    (void)fprintf(out,
                  ",\"restarts\":%u,\"restores\":%" PRIu64 ",\"steps_recomputed\":%" PRIu64 ","
                  "\"checkpoints\":%" PRIu64 ",\"conflicts\":%" PRIu64,
                  result->restarts, result->restores, result->steps_recomputed, result->checkpoints,
                  result->conflicts);
    kelp_json_print_member(out, ",", "conflict", result->conflict);
    (void)fputs(",\"workers\":[", out);
    for (uint32_t i = 0; i < result->worker_count; i++) {
        kelp_json_print_member(out, i > 0 ? ",{" : "{", "id", result->workers[i].id);
        (void)fprintf(out, ",\"lanes_computed\":%" PRIu64 "}", result->workers[i].lanes_computed);
    }
    (void)fputs("]}\n", out);
}

static kelp_status parse_metrics(const cJSON *json, struct kelp_result_metric *ret_metrics,
                                 uint32_t *ret_count, struct kelp_error *reterr)
{
    const cJSON *metrics = cJSON_GetObjectItemCaseSensitive(json, "metrics");
    const cJSON *metric;

    if (!cJSON_IsObject(metrics)) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "metrics: an object is expected");
    }
    cJSON_ArrayForEach(metric, metrics)
    {
        if (strlen(metric->string) >= sizeof(ret_metrics->name) ||
            *ret_count == KELP_RESULT_METRICS_MAX) {
            return kelp_fail(reterr, KELP_ERR_FORMAT, "metrics: too many, or too long a name");
        }
        /* null stands for a value that is not finite */
        add(ret_metrics, ret_count, metric->string,
            cJSON_IsNumber(metric) ? metric->valuedouble : (double)NAN);
    }
    return KELP_OK;
}

static kelp_status parse_best(const cJSON *json, struct kelp_result *result,
                              struct kelp_error *reterr)
{
    const cJSON *best = cJSON_GetObjectItemCaseSensitive(json, "best");

    if (!best || cJSON_IsNull(best)) { /* no value, or a run of a version that did not record it */
        return KELP_OK;
    }
    kelp_status status =
        kelp_json_u64(best, "step", KELP_JSON_INTEGER_MAX, &result->best_step, reterr);
    if (status == KELP_OK) {
        status = kelp_json_u32(best, "epoch", UINT32_MAX, &result->best_epoch, reterr);
    }
    if (status == KELP_OK) {
        status = parse_metrics(best, result->best, &result->best_count, reterr);
    }
    if (status == KELP_OK && cJSON_IsString(cJSON_GetObjectItemCaseSensitive(best, "checkpoint"))) {
        status = kelp_json_string(best, "checkpoint", result->best_checkpoint,
                                  sizeof(result->best_checkpoint), reterr);
    }
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "best");
        return status;
    }
    result->best_known = true;
    return KELP_OK;
}

static kelp_status parse_workers(const cJSON *json, struct kelp_result *result,
                                 struct kelp_error *reterr)
{
    const cJSON *workers = NULL;
    const cJSON *worker;

    kelp_status status =
        kelp_json_array(json, "workers", KELP_RESULT_WORKERS_MAX, &workers, reterr);
    if (status != KELP_OK) {
        return status;
    }
    cJSON_ArrayForEach(worker, workers)
    {
        struct kelp_result_worker *item = &result->workers[result->worker_count++];
        status = kelp_json_string(worker, "id", item->id, sizeof(item->id), reterr);
        if (status == KELP_OK) {
            status = kelp_json_u64(worker, "lanes_computed", KELP_JSON_INTEGER_MAX,
                                   &item->lanes_computed, reterr);
        }
        if (status != KELP_OK) {
            return status;
        }
    }
    return KELP_OK;
}

static kelp_status parse_counts(const cJSON *json, struct kelp_result *result,
                                struct kelp_error *reterr)
{
    const struct {
        const char *name;
        uint64_t *value;
    } counts[] = {{"restores", &result->restores},
                  {"steps_recomputed", &result->steps_recomputed},
                  {"checkpoints", &result->checkpoints},
                  {"conflicts", &result->conflicts},
                  {"steps_skipped", &result->steps_skipped}};
    kelp_status status = kelp_json_u32(json, "restarts", UINT32_MAX, &result->restarts, reterr);

    for (size_t i = 0; status == KELP_OK && i < KELP_ARRAY_COUNT(counts); i++) {
        if (!cJSON_GetObjectItemCaseSensitive(json, counts[i].name)) {
            continue; /* a run of a version that did not count these */
        }
        status =
            kelp_json_u64(json, counts[i].name, KELP_JSON_INTEGER_MAX, counts[i].value, reterr);
    }
    return status;
}

/* Texts that earlier versions did not write. */
static kelp_status parse_stamp(const cJSON *json, struct kelp_result *result,
                               struct kelp_error *reterr)
{
    const struct {
        const char *name;
        char *text;
        size_t bytes;
    } texts[] = {{"started", result->started, sizeof(result->started)},
                 {"ended", result->ended, sizeof(result->ended)},
                 {"host", result->host, sizeof(result->host)},
                 {"version", result->version, sizeof(result->version)},
                 {"unit", result->unit, sizeof(result->unit)},
                 {"conflict", result->conflict, sizeof(result->conflict)}};
    kelp_status status = KELP_OK;

    for (size_t i = 0; status == KELP_OK && i < KELP_ARRAY_COUNT(texts); i++) {
        if (cJSON_GetObjectItemCaseSensitive(json, texts[i].name)) {
            status = kelp_json_string(json, texts[i].name, texts[i].text, texts[i].bytes, reterr);
        }
    }
    return status;
}

static kelp_status parse_members(const cJSON *json, void *into, struct kelp_error *reterr)
{
    struct kelp_result *result = into;
    kelp_status status =
        kelp_json_string(json, "status", result->status, sizeof(result->status), reterr);

    if (status == KELP_OK) {
        status = kelp_json_u64(json, "step", KELP_JSON_INTEGER_MAX, &result->step, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_json_u32(json, "epoch", UINT32_MAX, &result->epoch, reterr);
    }
    if (status == KELP_OK) {
        status = parse_metrics(json, result->metrics, &result->metric_count, reterr);
    }
    if (status == KELP_OK) {
        status = parse_best(json, result, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_json_string(json, "digest", result->digest, sizeof(result->digest), reterr);
    }
    if (status == KELP_OK) {
        status = kelp_json_double(json, "steps_per_s", &result->steps_per_s, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_json_double(json, "wall_s", &result->wall_s, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_json_string(json, "job", result->job, sizeof(result->job), reterr);
    }
    if (status == KELP_OK) {
        status = kelp_json_string(json, "reason", result->reason, sizeof(result->reason), reterr);
    }
    if (status == KELP_OK) {
        status = parse_stamp(json, result, reterr);
    }
    if (status == KELP_OK) {
        status = parse_counts(json, result, reterr);
    }
    if (status == KELP_OK) {
        status = parse_workers(json, result, reterr);
    }
    return status;
}

kelp_status kelp_result_parse(const char *text, size_t text_bytes, struct kelp_result *ret_result,
                              struct kelp_error *reterr)
{
    struct kelp_result result;

    memset(&result, 0, sizeof(result));
    kelp_status status = kelp_json_read(text, text_bytes, parse_members, &result, reterr);
    if (status == KELP_OK) {
        *ret_result = result;
    }
    return status;
}

static void print_outcome(FILE *out, const struct kelp_result *result)
{
    char wall[64];

    kelp_meter_duration(result->wall_s, wall, sizeof(wall));
    (void)fprintf(out, "%s: %s after %" PRIu64 " steps, %u epoch%s in %s", result->job,
                  result->status, result->step, result->epoch, result->epoch == 1 ? "" : "s", wall);
    if (result->steps_per_s > 0) {
        (void)fprintf(out, " (%.0f steps/s)", result->steps_per_s);
    }
    (void)fputc('\n', out);
    if (result->reason[0]) {
        (void)fprintf(out, "reason     %s\n", result->reason);
    }
    if (result->steps_skipped > 0) {
        (void)fprintf(
            out, "skipped    %" PRIu64 " of %" PRIu64 " steps: their gradient was not finite\n",
            result->steps_skipped, result->step);
    }
    if (result->conflicts > 0) {
        (void)fprintf(out, "conflicts  %" PRIu64 ", the newest: %s\n", result->conflicts,
                      result->conflict);
    }
}

/* The metric "SPLIT/NAME", or NULL. */
static const struct kelp_result_metric *find_metric(const struct kelp_result_metric *metrics,
                                                    uint32_t count, const char *split,
                                                    const char *name)
{
    char full[sizeof(metrics->name)];

    (void)snprintf(full, sizeof(full), "%.7s/%.23s", split, name);
    for (uint32_t i = 0; i < count; i++) {
        if (strcmp(metrics[i].name, full) == 0) {
            return &metrics[i];
        }
    }
    return NULL;
}

/* The metrics of the table that this job has, followed by its program's own sums. */
static const char *const columns[] = {"loss", "mse", "mae", "mae_unscaled", "accuracy", "auc"};

static bool is_own(const struct kelp_result_metric *metric)
{
    if (strncmp(metric->name, "val/", 4) != 0) {
        return false;
    }
    for (enum kelp_metric i = 0; i < KELP_METRIC_COUNT; i++) {
        if (strcmp(metric->name + 4, kelp_metric_name(i)) == 0) {
            return false;
        }
    }
    return true;
}

/* The name of a column; NULL: there are no more. */
static const char *column_name(const struct kelp_result *result, size_t column)
{
    size_t left = column - KELP_ARRAY_COUNT(columns);

    if (column < KELP_ARRAY_COUNT(columns)) {
        return columns[column];
    }
    for (uint32_t i = 0; i < result->metric_count; i++) {
        if (is_own(&result->metrics[i]) && left-- == 0) {
            return result->metrics[i].name + 4;
        }
    }
    return NULL;
}

static bool has_column(const struct kelp_result *result, size_t column)
{
    const char *name = column_name(result, column);
    return column == 0 || find_metric(result->metrics, result->metric_count, "val", name) ||
           find_metric(result->metrics, result->metric_count, "test", name);
}

/* The head "mae (rides)" of the column, and its width. */
static int column_head(const struct kelp_result *result, size_t column, char text[96])
{
    const char *name = column_name(result, column);
    const bool unscaled = strcmp(name, "mae_unscaled") == 0;

    (void)snprintf(text, 96, unscaled ? "mae (%s)" : "%s",
                   !unscaled         ? name
                   : result->unit[0] ? result->unit
                                     : "unscaled");
    int own = (int)kelp_utf8_columns(text);
    return own > 12 ? own : 12;
}

static void print_row(FILE *out, const struct kelp_result *result, const char *title,
                      const struct kelp_result_metric *metrics, uint32_t count, const char *split)
{
    if (!find_metric(metrics, count, split, columns[0])) {
        return;
    }
    (void)fprintf(out, "%-10s", title);
    for (size_t i = 0; column_name(result, i); i++) {
        const struct kelp_result_metric *metric =
            find_metric(metrics, count, split, column_name(result, i));
        char head[96];
        int width = column_head(result, i, head);
        if (has_column(result, i) && metric && !isnan(metric->value)) {
            (void)fprintf(out, " %*.6g", width, metric->value);
        } else if (has_column(result, i) && (metric || strcmp(split, "train") != 0)) {
            (void)fprintf(out, " %*s", width, "-");
        }
    }
    (void)fputc('\n', out);
}

void kelp_result_table(FILE *out, const struct kelp_result *result)
{
    static const char *const splits[] = {"train", "val", "test"};

    if (result->metric_count == 0) {
        return;
    }
    (void)fprintf(out, "%-10s", "METRIC");
    for (size_t i = 0; column_name(result, i); i++) {
        if (has_column(result, i)) {
            char head[96];
            int width = column_head(result, i, head);
            (void)fprintf(out, " %*s", kelp_utf8_field(head, (size_t)width), head);
        }
    }
    (void)fputc('\n', out);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(splits); i++) {
        print_row(out, result, splits[i], result->metrics, result->metric_count, splits[i]);
    }
    if (result->best_known && result->best_step != result->step) {
        print_row(out, result, "best val", result->best, result->best_count, "val");
        print_row(out, result, "best test", result->best, result->best_count, "test");
        (void)fprintf(out, "best       epoch %u, step %" PRIu64 "%s%s\n", result->best_epoch,
                      result->best_step, result->best_checkpoint[0] ? ", " : "",
                      result->best_checkpoint);
    }
}

void kelp_result_summary(const struct kelp_result *result, const char *run_path, FILE *out)
{
    print_outcome(out, result);
    kelp_result_table(out, result);
    if (result->restarts > 0) {
        (void)fprintf(out, "restarts   %u\n", result->restarts);
    }
    if (result->restores > 0) {
        (void)fprintf(out, "restores   %" PRIu64 ", %" PRIu64 " step%s computed again\n",
                      result->restores, result->steps_recomputed,
                      result->steps_recomputed == 1 ? "" : "s");
    }
    if (result->digest[0]) {
        (void)fprintf(out, "digest     %s\n", result->digest);
    }
    (void)fprintf(out, "run        %s\n", run_path);
    if (strcmp(result->status, "done") == 0 && result->step > 0) { /* else nothing was trained */
        (void)fprintf(out, "model      %s/model.safetensors\n", run_path);
    }
}

#include "cli/result.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/meter.h"
#include "common/json.h"

void kelp_result_add(struct kelp_result *result, const char *name, double value)
{
    if (result->metric_count < KELP_RESULT_METRICS_MAX) {
        struct kelp_result_metric *metric = &result->metrics[result->metric_count++];
        (void)snprintf(metric->name, sizeof(metric->name), "%s", name);
        metric->value = value;
    }
}

/* Close a memory stream and hand its text on, or say that memory ran out. */
static kelp_status finish_text(FILE *out, char **text, char **ret_text, struct kelp_error *reterr)
{
    bool failed = ferror(out) != 0;

    if (fclose(out) != 0 || failed || !*text) {
        free(*text);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    *ret_text = *text;
    return KELP_OK;
}

kelp_status kelp_result_print(const struct kelp_result *result, char **ret_text,
                              struct kelp_error *reterr)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);

    if (!out) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    (void)fputs("{\"status\":", out);
    kelp_json_print_string(out, result->status);
    (void)fprintf(out, ",\"step\":%llu,\"epoch\":%u,\"metrics\":{",
                  (unsigned long long)result->step, result->epoch);
    for (uint32_t i = 0; i < result->metric_count; i++) {
        (void)fputs(i > 0 ? "," : "", out);
        kelp_json_print_string(out, result->metrics[i].name);
        (void)fputc(':', out);
        kelp_json_print_double(out, result->metrics[i].value);
    }
    (void)fputs("},\"digest\":", out);
    kelp_json_print_string(out, result->digest);
    (void)fputs(",\"steps_per_s\":", out);
    kelp_json_print_double(out, result->steps_per_s);
    (void)fputs(",\"wall_s\":", out);
    kelp_json_print_double(out, result->wall_s);
    (void)fputs(",\"job\":", out);
    kelp_json_print_string(out, result->job);
    (void)fputs(",\"reason\":", out);
    kelp_json_print_string(out, result->reason);
    (void)fprintf(out,
                  ",\"restarts\":%u,\"restores\":%llu,\"steps_recomputed\":%llu,"
                  "\"checkpoints\":%llu,\"workers\":[",
                  result->restarts, (unsigned long long)result->restores,
                  (unsigned long long)result->steps_recomputed,
                  (unsigned long long)result->checkpoints);
    for (uint32_t i = 0; i < result->worker_count; i++) {
        (void)fputs(i > 0 ? ",{\"id\":" : "{\"id\":", out);
        kelp_json_print_string(out, result->workers[i].id);
        (void)fprintf(out, ",\"lanes_computed\":%llu}",
                      (unsigned long long)result->workers[i].lanes_computed);
    }
    (void)fputs("]}\n", out);
    return finish_text(out, &text, ret_text, reterr);
}

static kelp_status parse_metrics(const cJSON *json, struct kelp_result *result,
                                 struct kelp_error *reterr)
{
    const cJSON *metrics = cJSON_GetObjectItemCaseSensitive(json, "metrics");
    const cJSON *metric;

    if (!cJSON_IsObject(metrics)) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "metrics: an object is expected");
    }
    cJSON_ArrayForEach(metric, metrics)
    {
        if (strlen(metric->string) >= sizeof(result->metrics[0].name) ||
            result->metric_count == KELP_RESULT_METRICS_MAX) {
            return kelp_fail(reterr, KELP_ERR_FORMAT, "metrics: too many, or too long a name");
        }
        /* null stands for a value that is not finite */
        kelp_result_add(result, metric->string,
                        cJSON_IsNumber(metric) ? metric->valuedouble : (double)__builtin_nanf(""));
    }
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
                  {"checkpoints", &result->checkpoints}};
    kelp_status status = kelp_json_u32(json, "restarts", UINT32_MAX, &result->restarts, reterr);

    for (size_t i = 0; status == KELP_OK && i < KELP_ARRAY_COUNT(counts); i++) {
        if (!cJSON_GetObjectItemCaseSensitive(json, counts[i].name)) {
            continue; /* a run that was made before these were counted */
        }
        status =
            kelp_json_u64(json, counts[i].name, KELP_JSON_INTEGER_MAX, counts[i].value, reterr);
    }
    return status;
}

static kelp_status parse_members(const cJSON *json, struct kelp_result *result,
                                 struct kelp_error *reterr)
{
    kelp_status status =
        kelp_json_string(json, "status", result->status, sizeof(result->status), reterr);

    if (status == KELP_OK) {
        status = kelp_json_u64(json, "step", KELP_JSON_INTEGER_MAX, &result->step, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_json_u32(json, "epoch", UINT32_MAX, &result->epoch, reterr);
    }
    if (status == KELP_OK) {
        status = parse_metrics(json, result, reterr);
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
    cJSON *json = NULL;

    memset(&result, 0, sizeof(result));
    kelp_status status = kelp_json_parse(text, text_bytes, &json, reterr);
    if (status == KELP_OK) {
        status = parse_members(json, &result, reterr);
    }
    cJSON_Delete(json);
    if (status == KELP_OK) {
        *ret_result = result;
    }
    return status;
}

static void print_outcome(FILE *out, const struct kelp_result *result)
{
    char wall[64];

    kelp_meter_duration(result->wall_s, wall, sizeof(wall));
    (void)fprintf(out, "%s: %s after %llu steps, %u epoch%s in %s", result->job, result->status,
                  (unsigned long long)result->step, result->epoch, result->epoch == 1 ? "" : "s",
                  wall);
    if (result->steps_per_s > 0) {
        (void)fprintf(out, " (%.0f steps/s)", result->steps_per_s);
    }
    (void)fputc('\n', out);
    if (result->reason[0]) {
        (void)fprintf(out, "reason     %s\n", result->reason);
    }
}

/* The metric "PART/NAME", or NULL. */
static const struct kelp_result_metric *find_metric(const struct kelp_result *result,
                                                    const char *part, const char *name)
{
    char full[sizeof(result->metrics[0].name)];

    (void)snprintf(full, sizeof(full), "%.15s/%.15s", part, name);
    for (uint32_t i = 0; i < result->metric_count; i++) {
        if (strcmp(result->metrics[i].name, full) == 0) {
            return &result->metrics[i];
        }
    }
    return NULL;
}

void kelp_result_table(FILE *out, const struct kelp_result *result)
{
    static const char *const parts[] = {"train", "val", "test"};
    static const char *const names[] = {"loss", "mse", "mae"};

    if (result->metric_count == 0) {
        return;
    }
    (void)fprintf(out, "%-10s %12s %12s %12s\n", "METRIC", names[0], names[1], names[2]);
    for (size_t part = 0; part < KELP_ARRAY_COUNT(parts); part++) {
        if (!find_metric(result, parts[part], "loss")) {
            continue;
        }
        (void)fprintf(out, "%-10s", parts[part]);
        for (size_t name = 0; name < KELP_ARRAY_COUNT(names); name++) {
            const struct kelp_result_metric *metric = find_metric(result, parts[part], names[name]);
            if (metric) {
                (void)fprintf(out, " %12.6g", metric->value);
            }
        }
        (void)fputc('\n', out);
    }
}

kelp_status kelp_result_summary(const struct kelp_result *result, const char *run_path,
                                char **ret_text, struct kelp_error *reterr)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);

    if (!out) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    print_outcome(out, result);
    kelp_result_table(out, result);
    if (result->restarts > 0) {
        (void)fprintf(out, "restarts   %u\n", result->restarts);
    }
    if (result->restores > 0) {
        (void)fprintf(out, "restores   %llu, %llu step%s computed again\n",
                      (unsigned long long)result->restores,
                      (unsigned long long)result->steps_recomputed,
                      result->steps_recomputed == 1 ? "" : "s");
    }
    if (result->digest[0]) {
        (void)fprintf(out, "digest     %s\n", result->digest);
    }
    (void)fprintf(out, "run        %s\n", run_path);
    if (strcmp(result->status, "done") == 0) {
        (void)fprintf(out, "model      %s/model.safetensors\n", run_path);
    }
    return finish_text(out, &text, ret_text, reterr);
}

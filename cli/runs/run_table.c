#include "cli/runs/run_table.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/verb/csv_text.h"
#include "common/base/json.h"
#include "common/base/utf8.h"

#define CELL_BYTES 48

enum column {
    COLUMN_STATUS,
    COLUMN_EPOCH,
    COLUMN_STEP,
    COLUMN_LOSS,
    COLUMN_VAL,
    COLUMN_TEST,
    COLUMN_AGE,
    COLUMN_COUNT
};

struct row {
    const char *name; /* borrowed */
    char cells[COLUMN_COUNT][CELL_BYTES];
};

void kelp_run_table_age(double seconds, char *text, size_t text_bytes)
{
    static const struct {
        double most;
        double unit;
        const char *name;
    } units[] = {{120, 1, "s"}, {120 * 60, 60, "min"}, {48 * 3600, 3600, "h"}};
    size_t i = 0;

    while (i < KELP_ARRAY_COUNT(units) && seconds >= units[i].most) {
        i++;
    }
    (void)snprintf(text, text_bytes, "%.0f %s",
                   floor(seconds / (i < KELP_ARRAY_COUNT(units) ? units[i].unit : 86400)),
                   i < KELP_ARRAY_COUNT(units) ? units[i].name : "d");
}

/* ---- for people ---------------------------------------------------------------------------- */

static const char *monitor_of(const struct kelp_run_info *info)
{
    return info->monitor[0] ? info->monitor : "val/loss";
}

/* What all runs go by, or NULL when it is not the same. */
static const char *common_monitor(const struct kelp_run_list *list)
{
    for (size_t i = 1; i < list->count; i++) {
        if (strcmp(monitor_of(&list->items[i]), monitor_of(&list->items[0])) != 0) {
            return NULL;
        }
    }
    return monitor_of(&list->items[0]);
}

/* named: the cell says which metric it is. */
static void put_metric(const struct kelp_run_info *info, const char *name, bool named,
                       char cell[CELL_BYTES])
{
    double value;

    if (!kelp_run_info_metric(info, name, &value)) {
        (void)snprintf(cell, CELL_BYTES, "-");
    } else if (named) {
        (void)snprintf(cell, CELL_BYTES, "%s %.5g", strchr(name, '/') + 1, value);
    } else {
        (void)snprintf(cell, CELL_BYTES, "%.5g", value);
    }
}

static void put_epoch(const struct kelp_run_info *info, char cell[CELL_BYTES])
{
    if (info->inference) {
        (void)snprintf(cell, CELL_BYTES, "-");
    } else if (info->epochs > 0) {
        (void)snprintf(cell, CELL_BYTES, "%u/%u", info->epoch, info->epochs);
    } else {
        (void)snprintf(cell, CELL_BYTES, "%u", info->epoch);
    }
}

static void fill_row(const struct kelp_run_info *info, bool named, struct row *row)
{
    const char *monitor = monitor_of(info);
    char test[40];

    row->name = kelp_run_list_name(info);
    (void)snprintf(test, sizeof(test), "test/%s", monitor + strlen("val/"));
    (void)snprintf(row->cells[COLUMN_STATUS], CELL_BYTES, "%s", kelp_run_state_name(info->state));
    put_epoch(info, row->cells[COLUMN_EPOCH]);
    if (info->inference) {
        (void)snprintf(row->cells[COLUMN_STEP], CELL_BYTES, "-");
    } else {
        (void)snprintf(row->cells[COLUMN_STEP], CELL_BYTES, "%" PRIu64, info->step);
    }
    put_metric(info, "train/loss", false, row->cells[COLUMN_LOSS]);
    put_metric(info, monitor, named, row->cells[COLUMN_VAL]);
    put_metric(info, test, named, row->cells[COLUMN_TEST]);
    kelp_run_table_age(info->age_s, row->cells[COLUMN_AGE], CELL_BYTES);
}

/* "VAL LOSS", or "VAL" when the rows say which metric it is. */
static void head_metric(const char *part, const char *monitor, char cell[CELL_BYTES])
{
    (void)snprintf(cell, CELL_BYTES, "%s%s%s", part, monitor ? " " : "",
                   monitor ? strchr(monitor, '/') + 1 : "");
    for (char *at = cell; *at; at++) {
        *at = (char)toupper((unsigned char)*at);
    }
}

static void fill_head(const char *monitor, struct row *row)
{
    *row = (struct row){.name = "NAME",
                        .cells = {[COLUMN_STATUS] = "STATUS",
                                  [COLUMN_EPOCH] = "EPOCH",
                                  [COLUMN_STEP] = "STEP",
                                  [COLUMN_LOSS] = "LOSS",
                                  [COLUMN_AGE] = "AGE"}};
    head_metric("val", monitor, row->cells[COLUMN_VAL]);
    head_metric("test", monitor, row->cells[COLUMN_TEST]);
}

static void print_row(const struct row *row, const size_t widths[COLUMN_COUNT + 1], FILE *out)
{
    (void)fprintf(out, "%-*s", kelp_utf8_field(row->name, widths[COLUMN_COUNT]), row->name);
    for (int i = 0; i < COLUMN_COUNT; i++) {
        bool left = i == COLUMN_STATUS;
        (void)fprintf(out, left ? "  %-*s" : "  %*s", kelp_utf8_field(row->cells[i], widths[i]),
                      row->cells[i]);
    }
    (void)fputc('\n', out);
}

void kelp_run_table_text(const struct kelp_run_list *list, FILE *out)
{
    struct row *rows = calloc(list->count + 1, sizeof(*rows));
    size_t widths[COLUMN_COUNT + 1] = {0};

    if (!rows) {
        (void)fputs("out of memory\n", out);
        return;
    }
    const char *monitor = common_monitor(list);
    fill_head(monitor, &rows[0]);
    for (size_t i = 0; i < list->count; i++) {
        fill_row(&list->items[i], monitor == NULL, &rows[i + 1]);
    }
    for (size_t i = 0; i <= list->count; i++) {
        for (int c = 0; c <= COLUMN_COUNT; c++) {
            size_t own = kelp_utf8_columns(c < COLUMN_COUNT ? rows[i].cells[c] : rows[i].name);
            widths[c] = own > widths[c] ? own : widths[c];
        }
    }
    for (size_t i = 0; i <= list->count; i++) {
        print_row(&rows[i], widths, out);
    }
    free(rows);
}

/* ---- JSON ---------------------------------------------------------------------------------- */

static void json_best(const struct kelp_run_info *info, FILE *out)
{
    if (!info->best_known) {
        (void)fputs(",\"best\":null", out);
        return;
    }
    (void)fprintf(out, ",\"best\":{\"step\":%" PRIu64 ",\"epoch\":%u,", info->best_step,
                  info->best_epoch);
    kelp_result_print_metrics(out, info->best, info->best_count);
    (void)fputc('}', out);
}

void kelp_run_table_json_run(const struct kelp_run_info *info, FILE *out)
{
    kelp_json_print_member(out, "{", "name", kelp_run_list_name(info));
    kelp_json_print_member(out, ",", "run", info->path);
    kelp_json_print_member(out, ",", "job", info->job);
    (void)fprintf(out, ",\"inference\":%s", info->inference ? "true" : "false");
    kelp_json_print_member(out, ",", "status", kelp_run_state_name(info->state));
    kelp_json_print_member(out, ",", "reason", info->reason);
    (void)fprintf(out, ",\"age_s\":%.0f,\"step\":%" PRIu64 ",\"epoch\":%u,\"epochs\":%u,",
                  info->age_s, info->step, info->epoch, info->epochs);
    kelp_result_print_metrics(out, info->metrics, info->metric_count);
    json_best(info, out);
    (void)fputc('}', out);
}

void kelp_run_table_json(const struct kelp_run_list *list, FILE *out)
{
    (void)fputs("{\"runs\":[", out);
    for (size_t i = 0; i < list->count; i++) {
        (void)fputs(i > 0 ? "," : "", out);
        kelp_run_table_json_run(&list->items[i], out);
    }
    (void)fputs("]}\n", out);
}

/* ---- CSV ----------------------------------------------------------------------------------- */

static void csv_metrics(const struct kelp_result_metric *metrics, uint32_t count,
                        const char *const *names, uint32_t name_count, FILE *out)
{
    for (uint32_t i = 0; i < name_count; i++) {
        (void)fputc(',', out);
        for (uint32_t m = 0; m < count; m++) {
            if (strcmp(metrics[m].name, names[i]) == 0) {
                kelp_csv_print_double(out, metrics[m].value);
            }
        }
    }
}

static void csv_names(const char *prefix, const char *const *names, uint32_t count, FILE *out)
{
    char name[64];

    for (uint32_t i = 0; i < count; i++) {
        (void)snprintf(name, sizeof(name), "%s%.40s", prefix, names[i]);
        (void)fputc(',', out);
        kelp_csv_print_text(out, name);
    }
}

static void csv_head(const struct kelp_run_info *info, FILE *out)
{
    const char *texts[] = {kelp_run_list_name(info), info->path, info->job,
                           kelp_run_state_name(info->state), info->reason};

    for (size_t i = 0; i < KELP_ARRAY_COUNT(texts); i++) {
        kelp_csv_print_text(out, texts[i]);
        (void)fputc(',', out);
    }
    (void)fprintf(out, "%.0f,%" PRIu64 ",%u,%u,", info->age_s, info->step, info->epoch,
                  info->epochs);
    if (info->best_known) {
        (void)fprintf(out, "%" PRIu64 ",%u", info->best_step, info->best_epoch);
    } else {
        (void)fputc(',', out);
    }
}

void kelp_run_table_csv(const struct kelp_run_list *list, FILE *out)
{
    const char *newest[KELP_RUN_LIST_METRICS_MAX];
    const char *best[KELP_RUN_LIST_METRICS_MAX];
    uint32_t newest_count = kelp_run_list_metrics(list, false, newest);
    uint32_t best_count = kelp_run_list_metrics(list, true, best);

    (void)fputs("name,run,job,status,reason,age_s,step,epoch,epochs,best_step,best_epoch", out);
    csv_names("", newest, newest_count, out);
    csv_names("best/", best, best_count, out);
    (void)fputc('\n', out);
    for (size_t i = 0; i < list->count; i++) {
        const struct kelp_run_info *info = &list->items[i];
        csv_head(info, out);
        csv_metrics(info->metrics, info->metric_count, newest, newest_count, out);
        csv_metrics(info->best, info->best_count, best, best_count, out);
        (void)fputc('\n', out);
    }
}

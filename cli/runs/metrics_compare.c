#include "cli/runs/metrics_compare.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "cli/runs/run_table.h"
#include "common/base/json.h"
#include "common/base/utf8.h"

/* ---- where the logs differ ----------------------------------------------------------------- */

/* The first row of the step or a later one. */
static size_t row_at(const struct kelp_metrics_log *log, uint64_t step)
{
    size_t low = 0;
    size_t high = log->row_count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (log->rows[middle].step < step) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* What the log says of that name at the row's step: of the row's version, where it has that. */
static const struct kelp_metrics_cell *find(const struct kelp_metrics_log *log,
                                            const struct kelp_metrics_row *row, const char *name)
{
    const struct kelp_metrics_cell *found = NULL;

    for (size_t i = row_at(log, row->step); i < log->row_count && log->rows[i].step == row->step;
         i++) {
        const struct kelp_metrics_cell *cell = kelp_metrics_log_cell(log, &log->rows[i], name);
        if (cell && (!found || log->rows[i].version == row->version)) {
            found = cell;
        }
    }
    return found;
}

static bool equal(double a, double b)
{
    return a == b || (isnan(a) && isnan(b));
}

void kelp_metrics_log_compare(const struct kelp_metrics_log *a, const struct kelp_metrics_log *b,
                              struct kelp_metrics_difference *ret_difference)
{
    struct kelp_metrics_difference difference = {.common = 0};

    for (size_t i = 0; i < a->row_count && !difference.found; i++) {
        const struct kelp_metrics_row *row = &a->rows[i];
        for (uint32_t c = 0; c < row->cell_count && !difference.found; c++) {
            const struct kelp_metrics_cell *cell = &a->cells[row->cell_first + c];
            const struct kelp_metrics_cell *other = find(b, row, a->names[cell->name]);
            difference.common += other != NULL;
            if (!other || equal(cell->value, other->value)) {
                continue;
            }
            difference.found = true;
            difference.step = row->step;
            difference.epoch = row->epoch;
            difference.values[0] = cell->value;
            difference.values[1] = other->value;
            memcpy(difference.name, a->names[cell->name], sizeof(difference.name));
        }
    }
    *ret_difference = difference;
}

static void compare_logs(const char *const paths[2], struct kelp_metrics_compare *compare)
{
    struct kelp_metrics_log logs[2] = {{.name_count = 0}, {.name_count = 0}};
    struct kelp_error error;
    kelp_status status = KELP_OK;

    for (int i = 0; i < 2 && status == KELP_OK; i++) {
        status = kelp_metrics_log_read(paths[i], &logs[i], &error);
    }
    if (status == KELP_OK) {
        kelp_metrics_log_compare(&logs[0], &logs[1], &compare->difference);
    } else {
        (void)snprintf(compare->text, sizeof(compare->text), "%.250s", error.text);
    }
    kelp_metrics_log_fini(&logs[0]);
    kelp_metrics_log_fini(&logs[1]);
}

void kelp_metrics_compare_read(const char *const paths[2], const struct kelp_run_look *look,
                               struct kelp_metrics_compare *ret_compare)
{
    memset(ret_compare, 0, sizeof(*ret_compare));
    compare_logs(paths, ret_compare);
    for (int i = 0; i < 2; i++) {
        kelp_run_info_read(paths[i], look, &ret_compare->runs[i]);
    }
}

/* ---- for people ---------------------------------------------------------------------------- */

static void print_value(const struct kelp_result_metric *metrics, uint32_t count, const char *name,
                        FILE *out)
{
    for (uint32_t i = 0; i < count; i++) {
        if (strcmp(metrics[i].name, name) == 0) {
            (void)fprintf(out, " %13.6g", metrics[i].value);
            return;
        }
    }
    (void)fprintf(out, " %13s", "-");
}

static void print_table(const struct kelp_run_info runs[2], FILE *out)
{
    const char *names[KELP_RUN_LIST_METRICS_MAX];
    const struct kelp_run_list both = {.items = (struct kelp_run_info *)runs, .count = 2};
    uint32_t count = kelp_run_list_metrics(&both, false, names);

    if (count == 0) {
        return;
    }
    (void)fprintf(out, "%-15s %13s %13s %13s %13s\n", "METRIC", "A", "B", "BEST A", "BEST B");
    for (uint32_t i = 0; i < count; i++) {
        (void)fprintf(out, "%-*s", kelp_utf8_field(names[i], 15), names[i]);
        print_value(runs[0].metrics, runs[0].metric_count, names[i], out);
        print_value(runs[1].metrics, runs[1].metric_count, names[i], out);
        print_value(runs[0].best, runs[0].best_count, names[i], out);
        print_value(runs[1].best, runs[1].best_count, names[i], out);
        (void)fputc('\n', out);
    }
    (void)fprintf(out, "%-15s %13" PRIu64 " %13" PRIu64, "step", runs[0].step, runs[1].step);
    for (int i = 0; i < 2; i++) {
        if (runs[i].best_known) {
            (void)fprintf(out, " %13" PRIu64, runs[i].best_step);
        } else {
            (void)fprintf(out, " %13s", "-");
        }
    }
    (void)fprintf(out, "\nA          %s\nB          %s\n", runs[0].path, runs[1].path);
}

void kelp_metrics_compare_text(const struct kelp_metrics_compare *compare, FILE *out)
{
    const struct kelp_metrics_difference *difference = &compare->difference;

    if (compare->text[0]) {
        (void)fprintf(out, "metrics    not compared: %s\n", compare->text);
    } else if (difference->found) {
        (void)fprintf(out, "metrics    differ at step %" PRIu64 ", epoch %u: %s %.9g, %.9g\n",
                      difference->step, difference->epoch, difference->name, difference->values[0],
                      difference->values[1]);
    } else {
        (void)fprintf(out, "metrics    same: %zu values that both have\n", difference->common);
    }
    print_table(compare->runs, out);
}

/* ---- JSON ---------------------------------------------------------------------------------- */

static void json_difference(const struct kelp_metrics_difference *difference, FILE *out)
{
    (void)fprintf(out, ",\"first\":{\"step\":%" PRIu64 ",\"epoch\":%u", difference->step,
                  difference->epoch);
    kelp_json_print_member(out, ",", "name", difference->name);
    (void)fputs(",\"values\":[", out);
    kelp_json_print_double(out, difference->values[0]);
    (void)fputc(',', out);
    kelp_json_print_double(out, difference->values[1]);
    (void)fputs("]}", out);
}

void kelp_metrics_compare_json(const struct kelp_metrics_compare *compare, FILE *out)
{
    (void)fprintf(out, ",\"metrics\":{\"common\":%zu", compare->difference.common);
    if (compare->text[0]) {
        kelp_json_print_member(out, ",", "text", compare->text);
    }
    if (compare->difference.found) {
        json_difference(&compare->difference, out);
    }
    (void)fputs(",\"runs\":[", out);
    for (int i = 0; i < 2; i++) {
        (void)fputs(i > 0 ? "," : "", out);
        kelp_run_table_json_run(&compare->runs[i], out);
    }
    (void)fputs("]}", out);
}

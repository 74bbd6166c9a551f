#include <inttypes.h>
#include <stdio.h>

#include "cli/cluster/run_client.h"
#include "cli/run/metrics_log.h"
#include "cli/verb/csv_text.h"
#include "cli/verb/out_file.h"
#include "cli/verbs.h"
#include "common/base/files.h"
#include "common/base/json.h"

static const char *const outputs[] = {"csv", "json", NULL};

static const struct kelp_option options[] = {
    {.name = "output",
     .letter = 'o',
     .type = KELP_OPTION_CHOICE,
     .choices = outputs,
     .default_text = "csv",
     .help = "a column for each metric, or one JSON object"},
    KELP_VERB_TEXT("out", "FILE", NULL, "where to write (default: standard output)"),
};

static const struct kelp_program program = {
    .name = "kelp metrics",
    .summary = "writes everything a run measured, as CSV for spreadsheets and data frames",
    .positional = "[RUN]",
    .positional_max = 1,
    .examples = "  kelp metrics >metrics.csv\n"
                "  kelp metrics runs/etth1-dlinear-20260131-120000 --out metrics.csv\n",
    KELP_VERB_OPTIONS(options),
};

static void print_csv(const void *what, FILE *out)
{
    const struct kelp_metrics_log *log = what;

    (void)fputs("version,step,epoch", out);
    for (uint32_t i = 0; i < log->name_count; i++) {
        (void)fputc(',', out);
        kelp_csv_print_text(out, log->names[i]);
    }
    (void)fputc('\n', out);
    for (size_t i = 0; i < log->row_count; i++) {
        const struct kelp_metrics_row *row = &log->rows[i];
        (void)fprintf(out, "%" PRIu64 ",%" PRIu64 ",%u", row->version, row->step, row->epoch);
        for (uint32_t name = 0; name < log->name_count; name++) {
            const struct kelp_metrics_cell *cell =
                kelp_metrics_log_cell(log, row, log->names[name]);
            (void)fputc(',', out);
            if (cell) {
                kelp_csv_print_double(out, cell->value);
            }
        }
        (void)fputc('\n', out);
    }
}

static void print_json(const void *what, FILE *out)
{
    const struct kelp_metrics_log *log = what;

    (void)fputs("{\"lines\":[", out);
    for (size_t i = 0; i < log->row_count; i++) {
        const struct kelp_metrics_row *row = &log->rows[i];
        (void)fprintf(out, "%s{\"version\":%" PRIu64 ",\"step\":%" PRIu64 ",\"epoch\":%u",
                      i > 0 ? "," : "", row->version, row->step, row->epoch);
        for (uint32_t c = 0; c < row->cell_count; c++) {
            const struct kelp_metrics_cell *cell = &log->cells[row->cell_first + c];
            (void)fputc(',', out);
            kelp_json_print_string(out, log->names[cell->name]);
            (void)fputc(':', out);
            kelp_json_print_double(out, cell->value);
        }
        (void)fputc('}', out);
    }
    (void)fputs("]}\n", out);
}

static int metrics(const struct kelp_options *given)
{
    void (*print)(const void *what, FILE *out) =
        kelp_options_choice(given, "output") == 0 ? print_csv : print_json;
    const char *path = kelp_options_text(given, "out");
    char run_path[KELP_RUN_PATH_MAX + 1];
    struct kelp_metrics_log log;
    struct kelp_error error;

    if (path && kelp_out_file_check("--out", path, &error) != KELP_OK) {
        return kelp_complain(KELP_EXIT_USAGE, "%s", error.text);
    }
    kelp_status status = kelp_run_choose(kelp_verb_typed(given), run_path, &error);
    if (status == KELP_OK) {
        status = kelp_metrics_log_read(run_path, &log, &error);
    }
    if (status != KELP_OK) {
        return kelp_complain(status == KELP_ERR_NOT_FOUND ? KELP_EXIT_USAGE : KELP_EXIT_FAILED,
                             "%s", error.text);
    }
    if (path) {
        status = kelp_files_print(path, print, &log, &error); /* whole, or not there */
    } else {
        print(&log, stdout);
    }
    kelp_metrics_log_fini(&log);
    return status == KELP_OK ? KELP_EXIT_OK : kelp_complain(KELP_EXIT_FAILED, "%s", error.text);
}

const struct kelp_verb kelp_verb_metrics = {
    "metrics", "write everything a run measured, as CSV or JSON", &program, metrics, NULL};

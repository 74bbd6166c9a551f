/* `kelp plot`, and the pictures at the end of a run. */
#include "cli/plot.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/plot_curves.h"
#include "cli/plot_forecast.h"
#include "cli/result.h"
#include "cli/run_client.h"
#include "cli/run_dir.h"
#include "cli/verbs.h"
#include "common/files.h"
#include "common/options.h"

static const struct kelp_option options[] = {
    {.name = "out",
     .type = KELP_OPTION_TEXT,
     .placeholder = "FOLDER",
     .help = "where to write, instead of RUN/" KELP_PLOTS_FOLDER},
};

static const struct kelp_program program = {
    .name = "kelp plot",
    .summary = "draws a run: metrics.svg and .png, and forecasts of time series",
    .positional = "[RUN]",
    .positional_max = 1,
    .examples = "  kelp plot\n"
                "  kelp plot runs/etth1-dlinear-20260131-120000 --out /tmp/plots\n",
    .options = options,
    .option_count = KELP_ARRAY_COUNT(options),
};

static kelp_status write_picture(const struct kelp_chart *chart, const char *folder,
                                 const char *name, bool png, struct kelp_error *reterr)
{
    char path[KELP_RUN_PATH_MAX + 128], *bytes = NULL;
    size_t count = 0;

    if (snprintf(path, sizeof(path), "%s/%s.%s", folder, name, png ? "png" : "svg") >=
        (int)sizeof(path)) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "the folder's path is too long");
    }
    kelp_status status = (png ? kelp_chart_png : kelp_chart_svg)(chart, &bytes, &count, reterr);
    if (status == KELP_OK) {
        status = kelp_files_write(path, bytes, count, reterr);
    }
    free(bytes);
    return status;
}

static kelp_status write_pictures(const struct kelp_chart *chart, const char *folder,
                                  const char *name, struct kelp_error *reterr)
{
    kelp_status status = write_picture(chart, folder, name, false, reterr);
    return status == KELP_OK ? write_picture(chart, folder, name, true, reterr) : status;
}

/* Where the best evaluation is, once the run has a result. */
static void mark_best(const char *run_path, struct kelp_chart_panel *panels, size_t count)
{
    struct kelp_result *result = calloc(1, sizeof(*result));

    if (result && kelp_run_result_read(run_path, result, NULL) == KELP_OK && result->best_known) {
        for (size_t i = 0; i < count; i++) {
            panels[i].has_mark = true;
            panels[i].mark = (double)result->best_step;
            (void)snprintf(panels[i].mark_text, sizeof(panels[i].mark_text), "best");
        }
    }
    free(result);
}

static kelp_status plot_curves(const char *run_path, const char *name, const char *folder,
                               struct kelp_error *reterr)
{
    struct kelp_chart_panel *panels = calloc(KELP_CHART_PANELS_MAX, sizeof(*panels));
    struct kelp_curves *curves = calloc(1, sizeof(*curves));
    struct kelp_chart chart = {.panels = panels};
    kelp_status status;

    if (!panels || !curves) {
        status = kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    } else {
        status = kelp_curves_read(run_path, curves, reterr);
    }
    if (status == KELP_OK) {
        chart.panel_count = kelp_curves_panels(curves, panels);
        if (chart.panel_count == 0) {
            status = kelp_fail(reterr, KELP_ERR_NOT_FOUND,
                               "%s/metrics.jsonl has no line yet: nothing to draw", run_path);
        }
    }
    if (status == KELP_OK) {
        (void)snprintf(chart.title, sizeof(chart.title), "%.80s", name);
        mark_best(run_path, panels, chart.panel_count);
        status = write_pictures(&chart, folder, "metrics", reterr);
    }
    if (curves) {
        kelp_curves_fini(curves);
    }
    free(curves);
    free(panels);
    return status;
}

static kelp_status plot_forecasts(const char *run_path, const struct kelp_job *job,
                                  const char *folder, struct kelp_error *reterr)
{
    char weights[KELP_RUN_PATH_MAX + 64];
    struct kelp_forecasts *forecasts;

    kelp_status status =
        kelp_run_dir_path(run_path, "model.safetensors", weights, sizeof(weights), reterr);
    if (status != KELP_OK || !kelp_forecasts_apply(job) || access(weights, R_OK) != 0) {
        return status; /* no weights yet: the run goes on, or failed */
    }
    forecasts = calloc(1, sizeof(*forecasts));
    if (!forecasts) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    status = kelp_forecasts_make(job, weights, forecasts, reterr);
    if (status == KELP_OK && forecasts->count > 0) {
        struct kelp_chart chart = {.panels = forecasts->panels, .panel_count = forecasts->count};
        (void)snprintf(chart.title, sizeof(chart.title), "%.63s: forecasts", job->name);
        status = write_pictures(&chart, folder, "forecast", reterr);
    }
    if (status == KELP_OK || forecasts->values) {
        kelp_forecasts_fini(forecasts);
    }
    free(forecasts);
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "forecasts");
    }
    return status;
}

kelp_status kelp_plot_run(const char *run_path, const struct kelp_job *job, const char *folder,
                          struct kelp_error *reterr)
{
    struct kelp_job_file *file = NULL;
    char own[KELP_RUN_PATH_MAX + 64];
    kelp_status status = KELP_OK;

    if (!job) {
        status = kelp_run_job_read(run_path, &file, reterr);
        job = status == KELP_OK ? kelp_job_file_job(file) : NULL;
    }
    if (status == KELP_OK && !folder) {
        status = kelp_run_dir_path(run_path, KELP_PLOTS_FOLDER, own, sizeof(own), reterr);
        folder = own;
    }
    if (status == KELP_OK) {
        status = kelp_files_make_folder(folder, reterr);
    }
    if (status == KELP_OK) {
        status = plot_curves(run_path, job->name, folder, reterr);
    }
    if (status == KELP_OK) {
        status = plot_forecasts(run_path, job, folder, reterr);
    }
    kelp_job_file_destroy(file);
    return status;
}

static int plot(const struct kelp_options *given)
{
    const char *typed =
        kelp_options_positional_count(given) > 0 ? kelp_options_positional(given, 0) : NULL;
    const char *out = kelp_options_text(given, "out");
    char run_path[KELP_RUN_PATH_MAX + 1];
    struct kelp_error error;

    kelp_status status = kelp_run_choose(typed, run_path, &error);
    if (status != KELP_OK) {
        return kelp_complain(KELP_EXIT_USAGE, "%s", error.text);
    }
    status = kelp_plot_run(run_path, NULL, out, &error);
    if (status != KELP_OK) {
        enum kelp_status_group group = kelp_status_group(status);
        bool input = group == KELP_GROUP_CALLER || group == KELP_GROUP_DATA;
        return kelp_complain(input ? KELP_EXIT_USAGE : KELP_EXIT_FAILED, "%s", error.text);
    }
    (void)printf("%s%s\n", out ? out : run_path, out ? "" : "/" KELP_PLOTS_FOLDER);
    return KELP_EXIT_OK;
}

int kelp_verb_plot(int argc, char **argv)
{
    struct kelp_options *given = NULL;
    int exit_status = KELP_EXIT_OK;

    if (kelp_options_read(&program, argc, argv, &given, &exit_status)) {
        exit_status = plot(given);
        kelp_options_destroy(given);
    }
    return exit_status;
}

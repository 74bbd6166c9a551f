/* The pictures of a run: what `kelp plot` draws, and `kelp train` at the end. */
#include "cli/plot/plot_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cluster/run_client.h"
#include "cli/plot/plot_curves.h"
#include "cli/plot/plot_forecast.h"
#include "cli/run/plugin_consent.h"
#include "cli/run/result.h"
#include "cli/run/run_dir.h"
#include "common/base/files.h"

static kelp_status write_picture(const struct kelp_chart *chart, const char *folder,
                                 const char *name, bool png, struct kelp_error *reterr)
{
    char path[KELP_RUN_PATH_MAX + 128], *bytes = NULL;
    size_t count = 0;

    if (snprintf(path, sizeof(path), "%s/%s.%s", folder, name, png ? "png" : "svg") >=
        (int)sizeof(path)) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "the folder's path is too long");
    }
    const struct kelp_picture picture = kelp_chart_picture(chart);
    kelp_status status =
        (png ? kelp_picture_png : kelp_picture_svg)(&picture, &bytes, &count, reterr);
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
        goto free_tables;
    }
    status = kelp_curves_read(run_path, curves, reterr);
    if (status != KELP_OK) {
        goto free_tables;
    }
    chart.panel_count = kelp_curves_panels(curves, panels);
    if (chart.panel_count == 0) {
        status = kelp_fail(reterr, KELP_ERR_NOT_FOUND,
                           "%s/metrics.jsonl has no line yet: nothing to draw", run_path);
    } else {
        (void)snprintf(chart.title, sizeof(chart.title), "%.80s", name);
        mark_best(run_path, panels, chart.panel_count);
        status = write_pictures(&chart, folder, "metrics", reterr);
    }
    kelp_curves_fini(curves);
free_tables:
    free(curves);
    free(panels);
    return status;
}

static kelp_status plot_forecasts(const char *weights, const struct kelp_job *job,
                                  const char *folder, struct kelp_error *reterr)
{
    struct kelp_forecasts *forecasts;
    kelp_status status;

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
    return status;
}

/* Is there anything to forecast with? */
static bool has_forecasts(const char *run_path, const struct kelp_job *job,
                          char weights[KELP_RUN_PATH_MAX + 64])
{
    return kelp_forecasts_apply(job) &&
           kelp_run_dir_path(run_path, "model.safetensors", weights, KELP_RUN_PATH_MAX + 64,
                             NULL) == KELP_OK &&
           access(weights, R_OK) == 0; /* no weights yet: the run goes on, or failed */
}

/* The run's own job, whose library, if it has one, may be loaded. */
static kelp_status consent(struct kelp_job_file *file, const struct kelp_plot_what *what,
                           struct kelp_error *reterr)
{
    const struct kelp_plugin_consent given = {.allowed = what->allow_plugin};

    return file ? kelp_plugin_consent(file, &given, reterr) : KELP_OK;
}

static kelp_status draw(const char *run_path, struct kelp_job_file *file,
                        const struct kelp_plot_what *what, struct kelp_error *reterr)
{
    const struct kelp_job *job = file ? kelp_job_file_job(file) : what->job;
    const char *folder = what->folder;
    char own[KELP_RUN_PATH_MAX + 64], weights[KELP_RUN_PATH_MAX + 64];
    kelp_status status = KELP_OK;

    if (!folder) {
        status = kelp_run_dir_path(run_path, KELP_PLOTS_FOLDER, own, sizeof(own), reterr);
        folder = own;
    }
    if (status == KELP_OK) {
        status = kelp_files_make_folder(folder, reterr);
    }
    if (status == KELP_OK) {
        status = plot_curves(run_path, job->name, folder, reterr);
    }
    if (status != KELP_OK || !has_forecasts(run_path, job, weights)) {
        return status;
    }
    status = consent(file, what, reterr);
    if (status == KELP_OK) {
        status = plot_forecasts(weights, job, folder, reterr);
    }
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "forecasts");
    }
    return status;
}

kelp_status kelp_plot_run(const char *run_path, const struct kelp_plot_what *what,
                          struct kelp_error *reterr)
{
    struct kelp_job_file *file = NULL;
    kelp_status status = what->job ? KELP_OK : kelp_run_job_read(run_path, &file, reterr);

    if (status == KELP_OK) {
        status = draw(run_path, file, what, reterr);
    }
    kelp_job_file_destroy(file);
    return status;
}

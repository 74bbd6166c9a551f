/*
 * Forecasts of a trained model against what came, for jobs on time series: some windows of the test
 * split, in the data's own scale, computed here and now on one thread.
 */
#ifndef KELP_CLI_PLOT_PLOT_FORECAST_H
#define KELP_CLI_PLOT_PLOT_FORECAST_H

#include "cli/plot/plot_chart.h"
#include "common/job/job.h"

#define KELP_FORECASTS_MAX 4

struct kelp_forecasts {
    struct kelp_chart_panel panels[KELP_FORECASTS_MAX];
    size_t count;
    double *values; /* owned; what the panels' lines point at */
};

/* Does the job have windows of a time series? */
bool kelp_forecasts_apply(const struct kelp_job *job);

/*
 * Read the data and the weights in the safetensors file, and compute. Errors: those of the data
 * set, the model and the file; KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_forecasts_make(const struct kelp_job *job, const char *weights_path,
                                struct kelp_forecasts *ret_forecasts,
                                struct kelp_error *reterr) KELP_MUST_USE;
void kelp_forecasts_fini(struct kelp_forecasts *forecasts);

#endif

/*
 * The pictures of a run, in <run>/plots: metrics.svg and .png, and for time series forecast.svg and
 * .png.
 */
#ifndef KELP_CLI_PLOT_PLOT_RUN_H
#define KELP_CLI_PLOT_PLOT_RUN_H

#include "common/base/status.h"
#include "common/job/job.h"

#define KELP_PLOTS_FOLDER "plots"

struct kelp_plot_what {
    const struct kelp_job *job; /* of the run; NULL: that of its folder */
    const char *folder;         /* to write to, made where it is missing; NULL: <run>/plots */
    bool allow_plugin;          /* for a job of its folder (cli/run/plugin_consent.h) */
};

/*
 * Draw what the folder has: the curves of metrics.jsonl (none: KELP_ERR_NOT_FOUND), and forecasts
 * where the job has a time series and the folder a model. Files are replaced as a whole.
 *
 * Errors: those of reading them and of kelp_plugin_consent(), KELP_ERR_IO, KELP_ERR_NO_SPACE,
 * KELP_ERR_NO_MEMORY. Curves that were drawn stay when the forecasts fail.
 */
kelp_status kelp_plot_run(const char *run_path, const struct kelp_plot_what *what,
                          struct kelp_error *reterr) KELP_MUST_USE;

#endif

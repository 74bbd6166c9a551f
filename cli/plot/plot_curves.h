/*
 * The curves of a run: what metrics.jsonl says, by name, over training steps.
 */
#ifndef KELP_CLI_PLOT_PLOT_CURVES_H
#define KELP_CLI_PLOT_PLOT_CURVES_H

#include "cli/plot/plot_chart.h"
#include "cli/run/metrics_log.h"

#define KELP_CURVES_MAX KELP_METRICS_LOG_NAMES_MAX

struct kelp_curve {
    char name[KELP_METRICS_LOG_NAME_MAX + 1]; /* "val/mse", "lr" */
    double *x, *y;                            /* owned; y is NaN where the file has null */
    size_t count;
};

struct kelp_curves {
    struct kelp_curve items[KELP_CURVES_MAX];
    size_t count;
};

/* Every number of every line but version, step and epoch. Errors: those of
 * kelp_metrics_log_read(). */
kelp_status kelp_curves_read(const char *run_path, struct kelp_curves *ret_curves,
                             struct kelp_error *reterr) KELP_MUST_USE;
void kelp_curves_fini(struct kelp_curves *curves);

/*
 * A panel for each metric with the splits that have it, the loss first, and one for the learning
 * rate. panels has room for KELP_CHART_PANELS_MAX; lines borrow the curves. Returns how many.
 */
size_t kelp_curves_panels(const struct kelp_curves *curves, struct kelp_chart_panel *panels);

#endif

/*
 * The curves of a run: what metrics.jsonl says, by name, over training steps.
 */
#ifndef KELP_CLI_PLOT_PLOT_CURVES_H
#define KELP_CLI_PLOT_PLOT_CURVES_H

#include "cli/plot/plot_chart.h"

#define KELP_CURVES_MAX 40

struct kelp_curve {
    char name[32]; /* "val/mse", "lr" */
    double *x, *y; /* owned; y is NaN where the file has null */
    size_t count, capacity;
};

struct kelp_curves {
    struct kelp_curve items[KELP_CURVES_MAX];
    size_t count;
};

/*
 * Every number of every line but version, step and epoch. A last line that is cut off is left out,
 * since the run may be writing it. Errors: KELP_ERR_NOT_FOUND, KELP_ERR_IO, KELP_ERR_CORRUPT
 * ("FILE:LINE: what"), KELP_ERR_LIMIT, KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_curves_read(const char *run_path, struct kelp_curves *ret_curves,
                             struct kelp_error *reterr) KELP_MUST_USE;
void kelp_curves_fini(struct kelp_curves *curves);

/*
 * A panel for each metric with the splits that have it, the loss first, and one for the learning
 * rate. panels has room for KELP_CHART_PANELS_MAX; lines borrow the curves. Returns how many.
 */
size_t kelp_curves_panels(const struct kelp_curves *curves, struct kelp_chart_panel *panels);

#endif

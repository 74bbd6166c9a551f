/* Rates over sizes as a picture: a line for each way. */
#ifndef KELP_CLI_BENCH_BENCH_PLOT_H
#define KELP_CLI_BENCH_BENCH_PLOT_H

#include "cli/bench/bench_rate.h"
#include "common/base/status.h"

#define KELP_BENCH_ROWS_MAX 96 /* sixteen sizes, by six ways */

/* As SVG: gigabytes a second, and processor time for them. *ret_bytes is owned (free()), with a NUL
 * behind it. Rows beyond KELP_BENCH_ROWS_MAX, and ways beyond KELP_CHART_LINES_MAX, are left out.
 * Errors: KELP_ERR_NO_MEMORY. */
kelp_status kelp_bench_plot(const struct kelp_bench_rate *rates, uint32_t count, const char *title,
                            char **ret_bytes, size_t *ret_count,
                            struct kelp_error *reterr) KELP_MUST_USE;

#endif

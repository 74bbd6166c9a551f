/*
 * metrics.jsonl of a run as a table: a row for each line, a cell for each number in it.
 */
#ifndef KELP_CLI_RUN_METRICS_LOG_H
#define KELP_CLI_RUN_METRICS_LOG_H

#include <stdint.h>

#include "common/base/status.h"

#define KELP_METRICS_LOG_NAMES_MAX 64
#define KELP_METRICS_LOG_NAME_MAX  31          /* bytes of "val/mse" */
#define KELP_METRICS_LOG_FILE_MAX  (256 << 20) /* bytes */
#define KELP_METRICS_LOG_END_BYTES (64 << 10)  /* that kelp_metrics_log_read_end() reads */

struct kelp_metrics_cell {
    uint32_t name; /* index of names */
    double value;  /* NaN where the file has null */
};

struct kelp_metrics_row {
    uint64_t version, step;
    uint32_t epoch;
    uint32_t cell_count;
    size_t cell_first; /* index of cells */
};

struct kelp_metrics_log {
    char names[KELP_METRICS_LOG_NAMES_MAX][KELP_METRICS_LOG_NAME_MAX + 1]; /* as they first come */
    uint32_t name_count;
    struct kelp_metrics_row *rows; /* owned; in the order of the file */
    size_t row_count, row_capacity;
    struct kelp_metrics_cell *cells; /* owned */
    size_t cell_count, cell_capacity;
};

/*
 * Every number of every line but version, step and epoch, which are the row's own. A last line that
 * is cut off is left out, since the run may be writing it. Errors: KELP_ERR_NOT_FOUND, KELP_ERR_IO,
 * KELP_ERR_CORRUPT ("FILE:LINE: what"), KELP_ERR_LIMIT, KELP_ERR_NO_MEMORY. ret_log is to be given
 * to kelp_metrics_log_fini() after success.
 */
kelp_status kelp_metrics_log_read(const char *run_path, struct kelp_metrics_log *ret_log,
                                  struct kelp_error *reterr) KELP_MUST_USE;
/* The same of the file's end, for a glance at a run that may be damaged: lines that cannot be read
 * are left out. Errors: the same, without KELP_ERR_CORRUPT. */
kelp_status kelp_metrics_log_read_end(const char *run_path, struct kelp_metrics_log *ret_log,
                                      struct kelp_error *reterr) KELP_MUST_USE;
void kelp_metrics_log_fini(struct kelp_metrics_log *log); /* all zero is fine */

/* The row's cell of that name, or NULL. */
const struct kelp_metrics_cell *kelp_metrics_log_cell(const struct kelp_metrics_log *log,
                                                      const struct kelp_metrics_row *row,
                                                      const char *name);

#endif

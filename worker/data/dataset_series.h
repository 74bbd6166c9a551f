/*
 * A table of numbers over time, and the data set of its windows. Internal to the data sets: a
 * source (CSV file, generator) fills a series, dataset_series.c makes samples of it.
 */
#ifndef KELP_WORKER_DATA_DATASET_SERIES_H
#define KELP_WORKER_DATA_DATASET_SERIES_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/job/job.h"
#include "worker/data/limits.h"
#include "worker/data/model_card.h"

struct kelp_series {
    uint64_t row_count;
    uint32_t column_count;
    double *values; /* [row_count, column_count], owned */
    int64_t *times; /* [row_count] seconds since 1970, owned; NULL: not known */
    char (*column_names)[KELP_CSV_COLUMN_NAME_MAX + 1]; /* owned */
};

void kelp_series_fini(struct kelp_series *series);

/*
 * Allocate a series of column_count columns, all zero, with names empty.
 * Errors: KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_series_init(struct kelp_series *series, uint64_t row_count, uint32_t column_count,
                             struct kelp_error *reterr) KELP_MUST_USE;

/*
 * Parse the text of a CSV file with a header line. target names the one column to take; NULL takes
 * all but the first. name stands for the file in errors ("FILE:LINE: column NAME: ..."). What is
 * accepted stands in worker/data/text/csv.h.
 * Errors: KELP_ERR_FORMAT, KELP_ERR_INVALID (no such column), KELP_ERR_LIMIT, KELP_ERR_NO_MEMORY.
 *         *ret_series is set on success only.
 */
kelp_status kelp_series_parse(const char *name, const char *text, size_t text_bytes,
                              const char *target, struct kelp_series *ret_series,
                              struct kelp_error *reterr) KELP_MUST_USE;

/*
 * The same of the file at path, which need not fit into memory as a text. columns: those that a
 * model was trained with are taken instead of the target, in its order, and the file may have
 * others; NULL: none. Errors: also KELP_ERR_NOT_FOUND, KELP_ERR_IO; KELP_ERR_INVALID when a column
 * of the model is not there (the text names it, and all of them).
 */
kelp_status kelp_series_read(const char *path, const char *target,
                             const struct kelp_card_columns *columns,
                             struct kelp_series *ret_series,
                             struct kelp_error *reterr) KELP_MUST_USE;

/* Generate row_count rows of the synthetic series; target as in kelp_series_parse(). */
kelp_status kelp_synthetic_generate(uint64_t row_count, uint64_t seed, const char *target,
                                    struct kelp_series *ret_series,
                                    struct kelp_error *reterr) KELP_MUST_USE;

#endif

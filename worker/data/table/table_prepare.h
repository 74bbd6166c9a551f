/*
 * From a job's CSV files to prepared data, through the cache: what a table and a panel have in
 * common.
 */
#ifndef KELP_WORKER_DATA_TABLE_TABLE_PREPARE_H
#define KELP_WORKER_DATA_TABLE_TABLE_PREPARE_H

#include "worker/data/table/prepared.h"
#include "worker/data/table/table_input.h"

/* Turn all rows into prepared data: begin, floats and end of the writer. */
typedef kelp_status kelp_table_arrange(const struct kelp_table_input *input,
                                       struct kelp_spool *spool, struct kelp_prepared *ret_prepared,
                                       struct kelp_error *reterr);

/*
 * source: data set, job and schema are set; the schema is set to unlabelled where the files to
 * predict have no targets. *ret_prepared points into spool, which the caller frees
 * (kelp_spool_fini()), in every case. Errors: those of kelp_dataset_open().
 */
kelp_status kelp_table_prepare(const struct kelp_table_input *source, kelp_table_arrange *arrange,
                               struct kelp_spool *spool, struct kelp_prepared *ret_prepared,
                               struct kelp_error *reterr) KELP_MUST_USE;

/* Say that prepared data out of the cache are those of another job. */
kelp_status kelp_table_foreign(const struct kelp_job *job, struct kelp_error *reterr);

/* What becomes of missing values while rows are read: data.missing, but that rows to forecast (of a
 * panel in a file of its own) may lack what is to be observed in them, and are looked at later. */
enum kelp_missing_policy kelp_table_missing(const struct kelp_table_input *input);

/* Rows in an order of the caller's. */
struct kelp_table_rows {
    uint64_t (*at)(const void *context, uint64_t index);
    const void *context;
    uint64_t count;
};

/* Fit numbers [first, first + count) over rows, into fits[0] and on. */
void kelp_table_fit(const struct kelp_table_input *input, const struct kelp_table_rows *rows,
                    uint32_t first, uint32_t count, struct kelp_fit *fits);

/*
 * The scale of number `number` (of the schema), fitted over the training split.
 * Errors: KELP_ERR_INVALID when it has no value to fill with, or cannot be scaled.
 */
kelp_status kelp_table_scale(const struct kelp_table_input *input, uint32_t number,
                             const struct kelp_fit *fit, enum kelp_normalize_kind kind,
                             struct kelp_target_scale *ret_scale,
                             struct kelp_error *reterr) KELP_MUST_USE;

/* These numbers of a row as samples have them. Errors: KELP_ERR_FORMAT, with the row's place. */
kelp_status kelp_table_values(const struct kelp_table_input *input, uint64_t row,
                              const struct kelp_table_numbers *numbers, float *ret_values,
                              struct kelp_error *reterr) KELP_MUST_USE;

#endif

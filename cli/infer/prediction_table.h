/*
 * Predictions of a job, which lie in one file for each lane of each block, joined in the order of
 * the samples into one CSV or NPY file. What a sample is called, and how its values are scaled
 * back, the data set says.
 */
#ifndef KELP_CLI_INFER_PREDICTION_TABLE_H
#define KELP_CLI_INFER_PREDICTION_TABLE_H

#include "common/job/job.h"
#include "common/training/plan.h"
#include "worker/data/dataset.h"

enum kelp_prediction_format { KELP_PREDICTION_CSV, KELP_PREDICTION_NPY };

struct kelp_prediction_table {
    const struct kelp_job *job; /* of the predictions: run.mode predict */
    const struct kelp_plan *plan;
    const struct kelp_dataset *dataset; /* NULL: a program has it, and no sample a name */
    const char *folder;                 /* with the parts, which are removed as they are taken */
    const char *path;                   /* to write; replaced as a whole */
    enum kelp_prediction_format format;
    bool targets;    /* CSV: what was to be predicted, too */
    bool normalized; /* leave values as the model gives them */
};

/*
 * Each sample of run.part exactly once and in order, or an error and no file.
 * Errors: those of kelp_prediction_read(), KELP_ERR_IO, KELP_ERR_NO_SPACE, KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_prediction_table_write(const struct kelp_prediction_table *table,
                                        struct kelp_error *reterr) KELP_MUST_USE;

#endif

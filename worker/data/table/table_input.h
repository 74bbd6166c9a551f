/* What the files of a table or panel pass on to one another while data are prepared. */
#ifndef KELP_WORKER_DATA_TABLE_TABLE_INPUT_H
#define KELP_WORKER_DATA_TABLE_TABLE_INPUT_H

#include "worker/data/dataset_internal.h"
#include "worker/data/table/table_fit.h"
#include "worker/data/table/table_raw.h"

/* The files of a job, and what is read from them; all borrowed. */
struct kelp_table_input {
    const struct kelp_dataset *dataset; /* its card, where there is one, has the fit */
    const struct kelp_job *job;
    struct kelp_table_schema *schema;
    struct kelp_table_files files[KELP_SPLIT_COUNT];
    struct kelp_table_raw *raw;
};

/* Numbers [first, first + count) of the schema, with what scales each. */
struct kelp_table_numbers {
    uint32_t first;
    uint32_t count;
    const struct kelp_fit *fits;
    const struct kelp_target_scale *scales;
};

#endif

/* What a data set is inside: two arrays and how far samples lie apart in them. */
#ifndef KELP_WORKER_DATASET_INTERNAL_H
#define KELP_WORKER_DATASET_INTERNAL_H

#include "worker/dataset.h"
#include "worker/dataset_series.h"

/*
 * Sample i of a part is input_count elements at input + (first[part] + i) * input_stride, and
 * likewise the target. The windows of a series overlap: their stride is one row.
 */
struct kelp_dataset {
    struct kelp_dataset_info info;
    uint64_t first[KELP_PART_COUNT];
    const float *input;
    const float *target;
    uint64_t input_count;
    uint64_t target_count;
    uint64_t input_stride;
    uint64_t target_stride;
    float *values; /* owned: what input and target point into */
};

/* Fill an empty data set; it keeps what it got also on an error, for kelp_dataset_close(). source
 * names the series in errors, is_file says that its row r stands in line r + 2. */
struct kelp_series_source {
    const char *name;
    bool is_file;
};
kelp_status kelp__dataset_open_series(struct kelp_dataset *dataset, const struct kelp_job *job,
                                      const struct kelp_series *series,
                                      const struct kelp_series_source *source,
                                      struct kelp_error *reterr) KELP_MUST_USE;
kelp_status kelp__dataset_open_tensors(struct kelp_dataset *dataset, const struct kelp_job *job,
                                       struct kelp_error *reterr) KELP_MUST_USE;

#endif

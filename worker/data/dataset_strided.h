/*
 * Samples in two arrays in memory, at equal distances: sample i of a split is input_count elements
 * at input + (first[split] + i) * input_stride, and likewise the target. The windows of a series
 * overlap: their stride is one row.
 */
#ifndef KELP_WORKER_DATA_DATASET_STRIDED_H
#define KELP_WORKER_DATA_DATASET_STRIDED_H

#include "worker/data/dataset_internal.h"

struct kelp_strided {
    uint64_t first[KELP_SPLIT_COUNT];
    const float *input;
    const float *target;
    uint64_t input_stride;
    uint64_t target_stride;
    float *values;       /* owned: what input and target point into */
    int64_t *times;      /* owned: of the series' rows, seconds since 1970; NULL: none */
    uint64_t time_ahead; /* rows from a window's first one to its target's */
    struct kelp_card_columns columns; /* owned: of a series, with their scales */
};

/*
 * Make an empty data set a strided one with room for value_count floats, all zero; *ret_strided is
 * its state. Errors: KELP_ERR_NO_MEMORY.
 */
kelp_status kelp__dataset_make_strided(struct kelp_dataset *dataset, uint64_t value_count,
                                       struct kelp_strided **ret_strided,
                                       struct kelp_error *reterr) KELP_MUST_USE;

#endif

/*
 * Which rows make the training, validation and test split. Pure.
 *
 * For the kinds whose rows are samples each (table, npy, binary):
 * Rows are counted over all files end to end: those of data.path, then those of data.val_path,
 * then those of data.test_path. Of the rows of data.path, data.test_every takes each n-th for the
 * test split; data.fractions divides the others from the top; without it all of them are training
 * rows. A file of its own replaces the split that would be made of rows of data.path, and
 * those are in no split: so other data can be predicted with the training split as it was.
 */
#ifndef KELP_WORKER_DATA_DATASET_SPLIT_H
#define KELP_WORKER_DATA_DATASET_SPLIT_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/job/job.h"
#include "common/tensors/philox.h"
#include "common/training/plan.h"

/* Sample i of a split stands at place p = first + i * stride, which is row p, or where every skip
 * rows one is left out, row p + p / skip. */
struct kelp_split_rows {
    uint64_t count;
    uint64_t first;
    uint64_t stride;
    uint64_t skip; /* 0: none is left out */
};

struct kelp_splits {
    struct kelp_split_rows rows[KELP_SPLIT_COUNT];
    bool random; /* rows of data.path stand in the order of a permutation (data.random_split) */
    struct kelp_permutation order;
};

/*
 * row_counts  rows of data.path, data.val_path and data.test_path; 0 for a file that is not given.
 * Errors: KELP_ERR_INVALID, also when a split that the job asks for has no row.
 */
kelp_status kelp_splits_init(struct kelp_splits *splits, const struct kelp_job *job,
                             const uint64_t row_counts[KELP_SPLIT_COUNT],
                             struct kelp_error *reterr) KELP_MUST_USE;

/* The row of sample index, below rows[split].count, of a split. Rises with index, unless the
 * split is random. */
uint64_t kelp_splits_row(const struct kelp_splits *splits, enum kelp_split split, uint64_t index);
/* And back: whether the split has the row, and as which sample. */
bool kelp_splits_find(const struct kelp_splits *splits, enum kelp_split split, uint64_t row,
                      uint64_t *ret_index);

/*
 * For the kinds whose samples are windows of a time series (csv, synthetic, panel), data.split has
 * the rows of each split. *ret_rows is their sum; of: whose rows they are, for the error.
 * Errors: KELP_ERR_INVALID when a split is too short for one window.
 */
kelp_status kelp_windows_check(const struct kelp_job *job, const char *of, uint64_t *ret_rows,
                               struct kelp_error *reterr) KELP_MUST_USE;
/* The row where each split's first window begins, and its windows; the check has passed. */
void kelp_windows_place(const struct kelp_job *job, uint64_t ret_first[KELP_SPLIT_COUNT],
                        uint64_t ret_counts[KELP_SPLIT_COUNT]);

#endif

/*
 * What a column has in the training split: the mean that fills missing values, and the scale of
 * data.normalize. In double, in two passes in row order, so that the result is the same everywhere.
 * Pure.
 */
#ifndef KELP_WORKER_DATA_TABLE_TABLE_FIT_H
#define KELP_WORKER_DATA_TABLE_TABLE_FIT_H

#include <stdint.h>

#include "common/job/job.h"
#include "worker/data/dataset.h"

struct kelp_fit {
    uint64_t count;   /* values, missing ones too */
    uint64_t present; /* that are not missing */
    double sum;
    double min;
    double max;
    double squares; /* of the distances from the mean; a missing value has none */
    double mean;
};

/* First pass: any number of values, then the end of the pass. NaN is missing. */
void kelp_fit_first(struct kelp_fit *fit, double value);
void kelp_fit_first_end(struct kelp_fit *fit);
/* Second pass, for KELP_NORMALIZE_STANDARD. */
void kelp_fit_second(struct kelp_fit *fit, double value);

/*
 * scaled = (value - shift) / factor. False when there is no scale: the values are constant, or too
 * large; *ret_scale is then only a shift.
 */
bool kelp_fit_scale(const struct kelp_fit *fit, enum kelp_normalize_kind kind,
                    struct kelp_target_scale *ret_scale);

/* The value as samples have it, a missing one filled by the mean. */
float kelp_fit_apply(const struct kelp_fit *fit, const struct kelp_target_scale *scale,
                     double value);

#endif

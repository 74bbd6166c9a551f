/* The windows of a time series in the ETT protocol: borders, scaling, fingerprint. */
#include "worker/dataset_series.h"

#include <assert.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "common/digest.h"
#include "worker/dataset_internal.h"

kelp_status kelp_series_init(struct kelp_series *series, uint64_t row_count, uint32_t column_count,
                             struct kelp_error *reterr)
{
    *series = (struct kelp_series){.row_count = row_count, .column_count = column_count};
    uint64_t elem_count = 0;
    if (!__builtin_mul_overflow(row_count, (uint64_t)column_count, &elem_count) &&
        elem_count < SIZE_MAX / sizeof(double)) {
        series->values = calloc((size_t)elem_count + 1, sizeof(*series->values));
        series->column_names = calloc((size_t)column_count + 1, sizeof(*series->column_names));
    }
    if (series->values == NULL || series->column_names == NULL) {
        kelp_series_fini(series);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory for %llu rows of %u columns",
                         (unsigned long long)row_count, column_count);
    }
    return KELP_OK;
}

void kelp_series_fini(struct kelp_series *series)
{
    free(series->values);
    free(series->column_names);
    *series = (struct kelp_series){0};
}

/* ---- borders ------------------------------------------------------------------------------- */

static kelp_status check_rows(const struct kelp_job *job, const struct kelp_series *series,
                              const struct kelp_series_source *source, struct kelp_error *reterr)
{
    static const char *const part_names[KELP_PART_COUNT] = {"training", "validation", "test"};
    uint64_t needed = 0;
    for (int part = 0; part < KELP_PART_COUNT; part++) {
        if (__builtin_add_overflow(needed, job->data.split[part], &needed)) {
            return kelp_fail(reterr, KELP_ERR_INVALID, "data.split: the sum is out of range");
        }
        uint64_t window =
            (uint64_t)job->data.pred_len + (part == KELP_PART_TRAIN ? job->data.seq_len : 0u);
        if (job->data.split[part] < window &&
            (part == KELP_PART_TRAIN || job->data.split[part] > 0)) {
            return kelp_fail(
                reterr, KELP_ERR_INVALID,
                "data.split: the %s part has %llu rows, too few for one window; data.seq_len=%u "
                "and data.pred_len=%u need at least %llu%s",
                part_names[part], (unsigned long long)job->data.split[part], job->data.seq_len,
                job->data.pred_len, (unsigned long long)window,
                part == KELP_PART_TRAIN ? "" : " (or 0 for no such part)");
        }
    }
    if (series->row_count < needed) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "%s: has %llu rows, too few for data.split [%llu, %llu, %llu], which "
                         "needs %llu; give more rows or a smaller split",
                         source->name, (unsigned long long)series->row_count,
                         (unsigned long long)job->data.split[KELP_PART_TRAIN],
                         (unsigned long long)job->data.split[KELP_PART_VAL],
                         (unsigned long long)job->data.split[KELP_PART_TEST],
                         (unsigned long long)needed);
    }
    return KELP_OK;
}

static void set_parts(struct kelp_dataset *dataset, const struct kelp_job *job)
{
    uint64_t border = 0;
    for (int part = 0; part < KELP_PART_COUNT; part++) {
        uint64_t rows = job->data.split[part];
        /* Validation and test start seq_len rows earlier; training cannot. */
        uint64_t early = part == KELP_PART_TRAIN ? 0 : job->data.seq_len;
        dataset->first[part] = border - early;
        dataset->info.samples[part] =
            rows > 0 ? rows + early - job->data.seq_len - job->data.pred_len + 1 : 0;
        border += rows;
    }
}

/* ---- scaling ------------------------------------------------------------------------------- */

struct column_scale {
    double mean;
    double deviation;
    bool constant;
};

/* Two passes in row order, so that the result is the same on every machine. */
static struct column_scale fit_column(const struct kelp_series *series, uint32_t column,
                                      uint64_t train_rows)
{
    const double *values = series->values + column;
    struct column_scale scale = {.constant = true};
    double sum = 0.0;
    for (uint64_t row = 0; row < train_rows; row++) {
        double value = values[row * series->column_count];
        sum += value;
        scale.constant = scale.constant && value == values[0];
    }
    scale.mean = sum / (double)train_rows;
    double squares = 0.0;
    for (uint64_t row = 0; row < train_rows; row++) {
        double off = values[row * series->column_count] - scale.mean;
        squares += off * off;
    }
    scale.deviation = sqrt(squares / (double)train_rows);
    return scale;
}

static kelp_status bad_scale(const struct kelp_series_source *source, const char *column,
                             const char *what, struct kelp_error *reterr)
{
    return kelp_fail(reterr, KELP_ERR_INVALID,
                     "%s: column %s: %s in the training rows, so that it cannot be scaled to a "
                     "standard deviation of 1; leave the column out",
                     source->name, column, what);
}

static kelp_status scale_column(struct kelp_dataset *dataset, const struct kelp_series *series,
                                uint32_t column, const struct kelp_job *job,
                                const struct kelp_series_source *source, struct kelp_error *reterr)
{
    const char *name = series->column_names[column];
    const uint64_t *split = job->data.split;
    uint64_t rows = split[KELP_PART_TRAIN] + split[KELP_PART_VAL] + split[KELP_PART_TEST];
    struct column_scale scale = fit_column(series, column, split[KELP_PART_TRAIN]);
    if (scale.constant) {
        return bad_scale(source, name, "is constant", reterr);
    }
    if (!isfinite(scale.deviation) || !(scale.deviation > 0.0)) {
        return bad_scale(source, name, "is too large or varies too little", reterr);
    }
    for (uint64_t row = 0; row < rows; row++) {
        uint64_t at = row * series->column_count + column;
        float scaled = (float)((series->values[at] - scale.mean) / scale.deviation);
        if (!isfinite(scaled)) {
            return kelp_fail(reterr, KELP_ERR_FORMAT,
                             "%s:%llu: column %s: %.9g is out of range once scaled by the mean "
                             "and standard deviation of the training rows",
                             source->name, (unsigned long long)(row + (source->is_file ? 2 : 1)),
                             name, series->values[at]);
        }
        dataset->values[at] = scaled;
    }
    return KELP_OK;
}

/* ---- data set ------------------------------------------------------------------------------ */

/* Unscaled values: they are what was read, and the scaling follows from them. */
static uint64_t take_fingerprint(const struct kelp_job *job, const struct kelp_series *series,
                                 uint64_t rows)
{
    const uint64_t borders[] = {series->column_count, job->data.split[KELP_PART_TRAIN],
                                job->data.split[KELP_PART_VAL], job->data.split[KELP_PART_TEST]};
    struct kelp_digest digest;
    kelp_digest_init(&digest);
    kelp_digest_update(&digest, borders, sizeof(borders));
    kelp_digest_update(&digest, series->values,
                       (size_t)(rows * series->column_count) * sizeof(*series->values));
    return kelp_digest_short(&digest);
}

static void set_windows(struct kelp_dataset *dataset, const struct kelp_job *job,
                        uint32_t column_count)
{
    dataset->info.shape = (struct kelp_sample_shape){
        .input_count = 1,
        .inputs[0] = {.rank = 2, .dims = {job->data.seq_len, column_count}},
        .target = {.rank = 2, .dims = {job->data.pred_len, column_count}},
    };
    dataset->input_count = kelp_sample_input_count(&dataset->info.shape);
    dataset->target_count = kelp_sample_target_count(&dataset->info.shape);
    dataset->input_stride = column_count;
    dataset->target_stride = column_count;
    dataset->input = dataset->values;
    dataset->target = dataset->values + dataset->input_count;
}

kelp_status kelp__dataset_open_series(struct kelp_dataset *dataset, const struct kelp_job *job,
                                      const struct kelp_series *series,
                                      const struct kelp_series_source *source,
                                      struct kelp_error *reterr)
{
    assert(series->column_count > 0);
    kelp_status status = check_rows(job, series, source, reterr);
    if (status != KELP_OK) {
        return status;
    }
    uint64_t rows = job->data.split[KELP_PART_TRAIN] + job->data.split[KELP_PART_VAL] +
                    job->data.split[KELP_PART_TEST];
    dataset->values = calloc((size_t)(rows * series->column_count), sizeof(*dataset->values));
    if (dataset->values == NULL) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "%s: out of memory", source->name);
    }
    for (uint32_t column = 0; column < series->column_count; column++) {
        status = scale_column(dataset, series, column, job, source, reterr);
        if (status != KELP_OK) {
            return status;
        }
    }
    set_parts(dataset, job);
    set_windows(dataset, job, series->column_count);
    dataset->info.fingerprint = take_fingerprint(job, series, rows);
    return KELP_OK;
}

/* The windows of a time series in the ETT protocol: borders, scaling, fingerprint. */
#include "worker/data/dataset_series.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/tensors/digest.h"
#include "worker/data/dataset_split.h"
#include "worker/data/dataset_strided.h"
#include "worker/data/text/calendar.h"

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
    if (!series->values || !series->column_names) {
        kelp_series_fini(series);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY,
                         "out of memory for %" PRIu64 " rows of %u columns", row_count,
                         column_count);
    }
    return KELP_OK;
}

void kelp_series_fini(struct kelp_series *series)
{
    free(series->values);
    free(series->times);
    free(series->column_names);
    *series = (struct kelp_series){0};
}

/* The name of the series in errors; is_file says that its row r is in line r + 2. */
struct kelp_series_source {
    const char *name;
    bool is_file;
};

/* ---- borders --------------------------------------------------------------------------------- */

static kelp_status check_rows(const struct kelp_job *job, const struct kelp_series *series,
                              const struct kelp_series_source *source, struct kelp_error *reterr)
{
    uint64_t needed = 0;
    kelp_status status = kelp_windows_check(job, "", &needed, reterr);
    if (status != KELP_OK) {
        return status;
    }
    if (series->row_count < needed) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "%s: has %" PRIu64 " rows, too few for data.split [%" PRIu64 ", %" PRIu64
                         ", %" PRIu64 "], which "
                         "needs %" PRIu64 "; give more rows or a smaller split",
                         source->name, series->row_count, job->data.split[KELP_SPLIT_TRAIN],
                         job->data.split[KELP_SPLIT_VAL], job->data.split[KELP_SPLIT_TEST], needed);
    }
    return KELP_OK;
}

/* If the first column has times, the rows in use must be consecutive in time: otherwise a window is
 * no window. */
static kelp_status check_times(const struct kelp_series *series,
                               const struct kelp_series_source *source, uint64_t rows,
                               struct kelp_error *reterr)
{
    for (uint64_t row = 1; series->times && row < rows; row++) {
        int64_t step = series->times[row] - series->times[row - 1];
        if (step > 0) {
            continue;
        }
        char before[KELP_CALENDAR_TEXT_BYTES];
        char here[KELP_CALENDAR_TEXT_BYTES];
        kelp_calendar_print(series->times[row - 1], before);
        kelp_calendar_print(series->times[row], here);
        uint64_t line = row + (source->is_file ? 2 : 1);
        return kelp_fail(reterr, KELP_ERR_FORMAT,
                         "%s:%" PRIu64 ": %s %s (%s:%" PRIu64
                         ": %s); the rows of a series must be in the order of time, one for each",
                         source->name, line, here,
                         step == 0 ? "is the same time as in the row before it"
                                   : "does not follow the row before it",
                         source->name, line - 1, before);
    }
    return KELP_OK;
}

/* ---- all rows of a file ------------------------------------------------------------------------
 */

/* Rows that are used: all of a file that a trained model is used on, otherwise those of the splits.
 */
static uint64_t rows_taken(const struct kelp_job *job, const struct kelp_series *series)
{
    const uint64_t *split = job->data.split;
    return kelp__dataset_is_whole(job)
               ? series->row_count
               : split[KELP_SPLIT_TRAIN] + split[KELP_SPLIT_VAL] + split[KELP_SPLIT_TEST];
}

/* Rows after the last one that targets may reach. */
static uint64_t rows_beyond(const struct kelp_job *job)
{
    return kelp__dataset_is_whole(job) && job->run.mode == KELP_RUN_PREDICT ? job->data.pred_len
                                                                            : 0;
}

static kelp_status check_whole(const struct kelp_job *job, const struct kelp_series *series,
                               const struct kelp_series_source *source, struct kelp_error *reterr)
{
    uint64_t needed = (uint64_t)job->data.seq_len + job->data.pred_len - rows_beyond(job);
    return series->row_count >= needed
               ? KELP_OK
               : kelp_fail(reterr, KELP_ERR_INVALID,
                           "%s: has %" PRIu64 " rows; a window of the model takes %" PRIu64,
                           source->name, series->row_count, needed);
}

/* Values after the end are unknown; times continue at the last interval. */
static kelp_status go_beyond(const struct kelp_job *job, struct kelp_series *series,
                             struct kelp_strided *strided, struct kelp_error *reterr)
{
    uint64_t rows = series->row_count;
    uint64_t beyond = rows_beyond(job);
    for (uint64_t i = rows * series->column_count; i < (rows + beyond) * series->column_count;
         i++) {
        strided->values[i] = NAN;
    }
    if (!series->times || rows < 2 || beyond == 0) {
        return KELP_OK;
    }
    int64_t *times = realloc(series->times, (size_t)(rows + beyond) * sizeof(*times));
    if (!times) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    series->times = times;
    int64_t step = times[rows - 1] - times[rows - 2];
    for (uint64_t i = rows; i < rows + beyond; i++) {
        times[i] = times[i - 1] + step;
    }
    return KELP_OK;
}

static void place_whole(const struct kelp_job *job, const struct kelp_series *series,
                        struct kelp_strided *strided, uint64_t samples[KELP_SPLIT_COUNT])
{
    for (int split = 0; split < KELP_SPLIT_COUNT; split++) {
        strided->first[split] = 0;
        samples[split] = 0;
    }
    samples[KELP_SPLIT_TEST] =
        series->row_count + rows_beyond(job) - job->data.seq_len - job->data.pred_len + 1;
}

/* ---- scaling --------------------------------------------------------------------------------- */

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

struct column {
    const struct kelp_series *series;
    const struct kelp_series_source *source;
    uint32_t index;
};

/* The scaling: from the training rows, or from the model that is used. */
static kelp_status find_scale(const struct kelp_dataset *dataset, const struct kelp_job *job,
                              const struct column *column, struct column_scale *scale,
                              struct kelp_error *reterr)
{
    const char *name = column->series->column_names[column->index];
    if (dataset->card) {
        const struct kelp_card_number *number = &dataset->card->inputs.items[column->index].number;
        *scale = (struct column_scale){.mean = number->shift, .deviation = number->factor};
        return KELP_OK;
    }
    *scale = fit_column(column->series, column->index, job->data.split[KELP_SPLIT_TRAIN]);
    if (scale->constant) {
        return bad_scale(column->source, name, "is constant", reterr);
    }
    if (!isfinite(scale->deviation) || !(scale->deviation > 0.0)) {
        return bad_scale(column->source, name, "is too large or varies too little", reterr);
    }
    return KELP_OK;
}

static kelp_status scale_column(struct kelp_dataset *dataset, const struct kelp_job *job,
                                const struct column *column, struct kelp_error *reterr)
{
    struct kelp_strided *strided = dataset->state;
    const struct kelp_series *series = column->series;
    const struct kelp_series_source *source = column->source;
    const char *name = series->column_names[column->index];
    uint64_t rows = rows_taken(job, series);
    struct column_scale scale;
    kelp_status status = find_scale(dataset, job, column, &scale, reterr);
    if (status != KELP_OK) {
        return status;
    }
    struct kelp_card_column *carried = &strided->columns.items[column->index];
    memcpy(carried->name, name, sizeof(carried->name));
    carried->number.shift = scale.mean;
    carried->number.factor = scale.deviation;
    for (uint64_t row = 0; row < rows; row++) {
        uint64_t at = row * series->column_count + column->index;
        float scaled = (float)((series->values[at] - scale.mean) / scale.deviation);
        if (!isfinite(scaled)) {
            return kelp_fail(
                reterr, KELP_ERR_FORMAT,
                "%s:%" PRIu64 ": column %s: %.9g is out of range once scaled by the mean "
                "and standard deviation of the training rows",
                source->name, (row + (source->is_file ? 2 : 1)), name, series->values[at]);
        }
        strided->values[at] = scaled;
    }
    if (column->index + dataset->info.target_columns >= series->column_count) { /* a target too */
        uint32_t out = column->index + dataset->info.target_columns - series->column_count;
        dataset->scales[out] =
            (struct kelp_target_scale){.factor = scale.deviation, .shift = scale.mean};
        memcpy(dataset->names[out], name, sizeof(*dataset->names));
    }
    return KELP_OK;
}

/* ---- data set -------------------------------------------------------------------------------- */

/* Unscaled values: they are what was read, and the scaling follows from them. */
static uint64_t compute_fingerprint(const struct kelp_job *job, const struct kelp_series *series,
                                    uint64_t rows)
{
    const uint64_t borders[] = {series->column_count, job->data.split[KELP_SPLIT_TRAIN],
                                job->data.split[KELP_SPLIT_VAL], job->data.split[KELP_SPLIT_TEST]};
    struct kelp_digest digest;
    kelp_digest_init(&digest);
    kelp_digest_update(&digest, borders, sizeof(borders));
    if (job->data.features == KELP_FEATURES_MS) {
        kelp_digest_update(&digest, "MS", 2);
    }
    kelp_digest_update(&digest, series->values,
                       (size_t)(rows * series->column_count) * sizeof(*series->values));
    return kelp_digest_short(&digest);
}

static void set_windows(struct kelp_dataset *dataset, struct kelp_strided *strided,
                        const struct kelp_job *job, uint32_t column_count)
{
    dataset->info.shape = (struct kelp_sample_shape){
        .input_count = 1,
        .inputs[0] = {.rank = 2, .dims = {job->data.seq_len, column_count}},
        .target = {.rank = 2, .dims = {job->data.pred_len, dataset->info.target_columns}},
    };
    strided->input_stride = column_count;
    strided->target_stride = dataset->info.target_columns;
    strided->input = strided->values;
    strided->target = strided->values + kelp_sample_input_count(&dataset->info.shape);
}

/* With MS the target is among the other columns: copy it into an array of its own after them. */
static void set_target_alone(struct kelp_strided *strided, const struct kelp_job *job,
                             uint32_t column_count, uint64_t rows)
{
    float *target = strided->values + rows * column_count;
    for (uint64_t row = 0; row < rows; row++) {
        target[row] = strided->values[(row + 1) * column_count - 1];
    }
    strided->target = target + job->data.seq_len;
}

/* Move the target's column after the others, which keep their order (MS). */
static kelp_status put_target_last(struct kelp_series *series, const struct kelp_job *job,
                                   const struct kelp_series_source *source,
                                   struct kelp_error *reterr)
{
    uint32_t last = series->column_count - 1, at = 0;
    while (at <= last && strcmp(series->column_names[at], job->data.target) != 0) {
        at++;
    }
    if (at > last) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "%s: column %s: no such column behind the first; set data.target to one "
                         "of them",
                         source->name, job->data.target);
    }
    for (; at < last; at++) {
        char name[sizeof(*series->column_names)];
        memcpy(name, series->column_names[at], sizeof(name));
        memcpy(series->column_names[at], series->column_names[at + 1], sizeof(name));
        memcpy(series->column_names[at + 1], name, sizeof(name));
        for (uint64_t row = 0; row < series->row_count; row++) {
            double *values = series->values + row * series->column_count;
            double value = values[at];
            values[at] = values[at + 1];
            values[at + 1] = value;
        }
    }
    return KELP_OK;
}

static kelp_status open_series(struct kelp_dataset *dataset, const struct kelp_job *job,
                               struct kelp_series *series, const struct kelp_series_source *source,
                               struct kelp_error *reterr)
{
    assert(series->column_count > 0);
    bool whole = kelp__dataset_is_whole(job);
    kelp_status status =
        whole ? check_whole(job, series, source, reterr) : check_rows(job, series, source, reterr);
    if (status == KELP_OK && job->data.features == KELP_FEATURES_MS) {
        status = put_target_last(series, job, source, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    uint64_t rows = rows_taken(job, series);
    status = check_times(series, source, rows, reterr);
    if (status != KELP_OK) {
        return status;
    }
    bool alone = job->data.features == KELP_FEATURES_MS;
    struct kelp_strided *strided = NULL;
    uint64_t columns = series->column_count + (alone ? 1 : 0);
    status =
        kelp__dataset_make_strided(dataset, (rows + rows_beyond(job)) * columns, &strided, reterr);
    if (status == KELP_OK) {
        status = kelp_card_columns_init(&strided->columns, series->column_count, reterr);
    }
    if (status == KELP_OK && whole) {
        status = go_beyond(job, series, strided, reterr);
    }
    if (status == KELP_OK) {
        status = kelp__dataset_name_targets(dataset, alone ? 1 : series->column_count, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    for (uint32_t i = 0; i < series->column_count; i++) {
        const struct column column = {.series = series, .source = source, .index = i};
        status = scale_column(dataset, job, &column, reterr);
        if (status != KELP_OK) {
            return status;
        }
    }
    strided->times = series->times; /* handed over */
    strided->time_ahead = job->data.seq_len;
    series->times = NULL;
    if (whole) {
        place_whole(job, series, strided, dataset->info.samples);
    } else {
        kelp_windows_place(job, strided->first, dataset->info.samples);
    }
    set_windows(dataset, strided, job, series->column_count);
    if (alone) {
        set_target_alone(strided, job, series->column_count, rows + rows_beyond(job));
    }
    dataset->info.fingerprint = compute_fingerprint(job, series, rows);
    return KELP_OK;
}

/* ---- kinds ----------------------------------------------------------------------------------- */

static const char *target_column(const struct kelp_job *job)
{
    return job->data.features == KELP_FEATURES_S ? job->data.target : NULL;
}

kelp_status kelp__dataset_open_csv(struct kelp_dataset *dataset, const struct kelp_job *job,
                                   struct kelp_error *reterr)
{
    const char *path = kelp__dataset_is_whole(job) ? job->data.test_path : job->data.path;
    if (path[0] == '\0') {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "data.path: is not set; data.kind csv needs the path of a CSV file");
    }
    struct kelp_series series = {0};
    const struct kelp_card_columns *columns = dataset->card ? &dataset->card->inputs : NULL;
    kelp_status status = kelp_series_read(path, target_column(job), columns, &series, reterr);
    if (status == KELP_OK) {
        const struct kelp_series_source source = {.name = path, .is_file = true};
        status = open_series(dataset, job, &series, &source, reterr);
    }
    kelp_series_fini(&series);
    return status;
}

kelp_status kelp__dataset_open_synthetic(struct kelp_dataset *dataset, const struct kelp_job *job,
                                         struct kelp_error *reterr)
{
    if (kelp__dataset_is_whole(job)) { /* a file that looks like the generated series */
        return kelp__dataset_open_csv(dataset, job, reterr);
    }
    struct kelp_series series = {0};
    kelp_status status =
        kelp_synthetic_generate(job->data.rows, job->seed, target_column(job), &series, reterr);
    if (status == KELP_OK && dataset->card && dataset->card->inputs.count != series.column_count) {
        status = kelp_fail(reterr, KELP_ERR_MISMATCH,
                           "data.features: the model in %s was trained with %u columns, not %u",
                           job->model.init, dataset->card->inputs.count, series.column_count);
    }
    if (status == KELP_OK) {
        const struct kelp_series_source source = {.name = "data.rows"};
        status = open_series(dataset, job, &series, &source, reterr);
    }
    kelp_series_fini(&series);
    return status;
}

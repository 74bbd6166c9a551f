#include "worker/data/dataset_split.h"

#include <assert.h>
#include <math.h>

static kelp_status check_fractions(const struct kelp_job *job, struct kelp_error *reterr)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < job->data.fraction_count; i++) {
        sum += job->data.fractions[i];
    }
    if (job->data.fraction_count > KELP_SPLIT_COUNT || sum > 1.0 + 1e-9) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "data.fractions: needs the shares of the training, validation and test "
                         "split, together at most 1, as [0.8, 0.1, 0.1]");
    }
    return KELP_OK;
}

static kelp_status check_every(const struct kelp_job *job, struct kelp_error *reterr)
{
    if (job->data.test_every == 1) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "data.test_every: 1 leaves no row for training; it must be 0 or at least "
                         "2");
    }
    if (job->data.test_every > 0 && job->data.fraction_count > KELP_SPLIT_TEST &&
        job->data.fractions[KELP_SPLIT_TEST] > 0.0) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "data.test_every: is set, and data.fractions has a test split too; give "
                         "one of them");
    }
    return KELP_OK;
}

/* The borders, rounded to whole rows; exact for shares such as 0.8, whatever their last bit. */
static void divide(struct kelp_splits *split, const struct kelp_job *job, uint64_t rows)
{
    double share = 0.0;
    uint64_t border = 0;
    for (uint32_t i = 0; i < job->data.fraction_count; i++) {
        share += job->data.fractions[i];
        double ideal = floor((double)rows * share + 0.5);
        uint64_t end = ideal >= (double)rows ? rows : (uint64_t)ideal;
        if (end > border) {
            split->parts[i].first = border;
            split->parts[i].count = end - border;
            border = end;
        }
    }
}

static kelp_status check_parts(const struct kelp_splits *split, const struct kelp_job *job,
                               uint64_t rows, struct kelp_error *reterr)
{
    if (split->parts[KELP_SPLIT_TRAIN].count == 0) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "data.path: its %llu rows leave none for the training split; give more "
                         "rows or another split",
                         (unsigned long long)rows);
    }
    for (uint32_t i = 1; i < job->data.fraction_count; i++) {
        if (job->data.fractions[i] > 0.0 && split->parts[i].count == 0) {
            return kelp_fail(reterr, KELP_ERR_INVALID,
                             "data.fractions: a share of %g of %llu rows is none; give a larger "
                             "share, or 0",
                             job->data.fractions[i], (unsigned long long)rows);
        }
    }
    return KELP_OK;
}

static struct kelp_splits make_split(const struct kelp_job *job,
                                     const uint64_t row_counts[KELP_SPLIT_COUNT])
{
    struct kelp_splits split = {0};
    struct kelp_split_rows *train = &split.parts[KELP_SPLIT_TRAIN];
    struct kelp_split_rows *val = &split.parts[KELP_SPLIT_VAL];
    struct kelp_split_rows *test = &split.parts[KELP_SPLIT_TEST];
    uint64_t every = job->data.test_every;
    uint64_t rows = row_counts[0] - (every > 0 ? row_counts[0] / every : 0);
    if (job->data.fraction_count > 0) {
        divide(&split, job, rows);
    } else {
        train->count = rows;
    }
    for (int part = 0; part < KELP_SPLIT_COUNT; part++) {
        split.parts[part].stride = 1;
        split.parts[part].skip = every > 0 ? every - 1 : 0;
    }
    if (every > 0) {
        *test = (struct kelp_split_rows){
            .first = every - 1, .count = row_counts[0] / every, .stride = every};
    }
    if (job->data.val_path[0] != '\0') {
        *val =
            (struct kelp_split_rows){.first = row_counts[0], .count = row_counts[1], .stride = 1};
    }
    if (job->data.test_path[0] != '\0') {
        *test = (struct kelp_split_rows){
            .first = row_counts[0] + row_counts[1], .count = row_counts[2], .stride = 1};
    }
    return split;
}

kelp_status kelp_splits_init(struct kelp_splits *split, const struct kelp_job *job,
                             const uint64_t row_counts[KELP_SPLIT_COUNT], struct kelp_error *reterr)
{
    kelp_status status = check_fractions(job, reterr);
    if (status == KELP_OK) {
        status = check_every(job, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    struct kelp_splits result = make_split(job, row_counts);
    status = check_parts(&result, job, row_counts[0], reterr);
    if (status == KELP_OK) {
        *split = result;
    }
    return status;
}

uint64_t kelp_splits_row(const struct kelp_splits *split, enum kelp_split part, uint64_t index)
{
    const struct kelp_split_rows *from = &split->parts[part];
    assert(index < from->count);
    uint64_t place = from->first + index * from->stride;
    return from->skip > 0 ? place + place / from->skip : place;
}

#include "worker/data/dataset_split.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>

/* The epoch number whose permutation makes the splits. Training never reaches it, so no epoch
 * has this order of samples. */
#define SPLIT_EPOCH UINT32_MAX

static kelp_status check_fractions(const struct kelp_job *job, struct kelp_error *reterr)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < job->data.fraction_count; i++) {
        sum += job->data.fractions[i];
    }
    if (job->data.fraction_count > KELP_SPLIT_COUNT || sum > 1.0 + 1e-9) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "data.fractions: needs the shares of the training, validation and test "
                         "split, together at most 1, such as [0.8, 0.1, 0.1]");
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

/* Compute the borders, rounded to whole rows; exact for fractions such as 0.8, despite their
 * last bit. */
static void divide(struct kelp_splits *splits, const struct kelp_job *job, uint64_t rows)
{
    double share = 0.0;
    uint64_t border = 0;
    for (uint32_t i = 0; i < job->data.fraction_count; i++) {
        share += job->data.fractions[i];
        double ideal = floor((double)rows * share + 0.5);
        uint64_t end = ideal >= (double)rows ? rows : (uint64_t)ideal;
        if (end > border) {
            splits->rows[i].first = border;
            splits->rows[i].count = end - border;
            border = end;
        }
    }
}

static kelp_status check_splits(const struct kelp_splits *splits, const struct kelp_job *job,
                                uint64_t rows, struct kelp_error *reterr)
{
    if (rows == 0 && job->run.mode != KELP_RUN_TRAIN) {
        return KELP_OK; /* a model is used on another file, which is not split */
    }
    if (splits->rows[KELP_SPLIT_TRAIN].count == 0) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "data.path: its %" PRIu64
                         " rows leave none for the training split; give more "
                         "rows or another split",
                         rows);
    }
    for (uint32_t i = 1; i < job->data.fraction_count; i++) {
        if (job->data.fractions[i] > 0.0 && splits->rows[i].count == 0) {
            return kelp_fail(reterr, KELP_ERR_INVALID,
                             "data.fractions: a share of %g of %" PRIu64
                             " rows is none; give a larger "
                             "share, or 0",
                             job->data.fractions[i], rows);
        }
    }
    return KELP_OK;
}

static struct kelp_splits make_split(const struct kelp_job *job,
                                     const uint64_t row_counts[KELP_SPLIT_COUNT])
{
    struct kelp_splits splits = {0};
    struct kelp_split_rows *train = &splits.rows[KELP_SPLIT_TRAIN];
    struct kelp_split_rows *val = &splits.rows[KELP_SPLIT_VAL];
    struct kelp_split_rows *test = &splits.rows[KELP_SPLIT_TEST];
    uint64_t every = job->data.test_every;
    uint64_t rows = row_counts[0] - (every > 0 ? row_counts[0] / every : 0);
    if (job->data.fraction_count > 0) {
        divide(&splits, job, rows);
    } else {
        train->count = rows;
    }
    for (int split = 0; split < KELP_SPLIT_COUNT; split++) {
        splits.rows[split].stride = 1;
        splits.rows[split].skip = every > 0 ? every - 1 : 0;
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
    splits.random = job->data.random_split && row_counts[0] > 0;
    if (splits.random) {
        kelp_permutation_init(&splits.order, job->seed, SPLIT_EPOCH, row_counts[0]);
    }
    return splits;
}

kelp_status kelp_splits_init(struct kelp_splits *splits, const struct kelp_job *job,
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
    status = check_splits(&result, job, row_counts[0], reterr);
    if (status == KELP_OK) {
        *splits = result;
    }
    return status;
}

uint64_t kelp_splits_row(const struct kelp_splits *splits, enum kelp_split split, uint64_t index)
{
    const struct kelp_split_rows *from = &splits->rows[split];
    assert(index < from->count);
    uint64_t place = from->first + index * from->stride;
    uint64_t row = from->skip > 0 ? place + place / from->skip : place;
    return splits->random && row < splits->order.n ? kelp_permutation_at(&splits->order, row) : row;
}

bool kelp_splits_find(const struct kelp_splits *splits, enum kelp_split split, uint64_t row,
                      uint64_t *ret_index)
{
    const struct kelp_split_rows *from = &splits->rows[split];
    uint64_t place =
        splits->random && row < splits->order.n ? kelp_permutation_find(&splits->order, row) : row;
    if (from->skip > 0) { /* the last of every skip + 1 rows is left out */
        if (place % (from->skip + 1) == from->skip) {
            return false;
        }
        place -= place / (from->skip + 1);
    }
    if (from->count == 0 || place < from->first || (place - from->first) % from->stride != 0 ||
        (place - from->first) / from->stride >= from->count) {
        return false;
    }
    *ret_index = (place - from->first) / from->stride;
    return true;
}

/* ---- windows of a time series ---------------------------------------------------------------- */

kelp_status kelp_windows_check(const struct kelp_job *job, const char *of, uint64_t *ret_rows,
                               struct kelp_error *reterr)
{
    static const char *const names[KELP_SPLIT_COUNT] = {"training", "validation", "test"};
    *ret_rows = 0;
    for (int split = 0; split < KELP_SPLIT_COUNT; split++) {
        bool train = split == KELP_SPLIT_TRAIN;
        uint64_t rows = job->data.split[split];
        uint64_t window = (uint64_t)job->data.pred_len + (train ? job->data.seq_len : 0u);
        if (__builtin_add_overflow(*ret_rows, rows, ret_rows)) {
            return kelp_fail(reterr, KELP_ERR_INVALID, "data.split: the sum is out of range");
        }
        if (rows < window && (train || rows > 0)) {
            return kelp_fail(reterr, KELP_ERR_INVALID,
                             "data.split: the %s split has %" PRIu64
                             " rows%s, too few for one window; data.seq_len=%u and "
                             "data.pred_len=%u need at least %" PRIu64 "%s",
                             names[split], rows, of, job->data.seq_len, job->data.pred_len, window,
                             train ? "" : " (or 0 for no such split)");
        }
    }
    return KELP_OK;
}

void kelp_windows_place(const struct kelp_job *job, uint64_t ret_first[KELP_SPLIT_COUNT],
                        uint64_t ret_counts[KELP_SPLIT_COUNT])
{
    uint64_t border = 0;
    for (int split = 0; split < KELP_SPLIT_COUNT; split++) {
        uint64_t rows = job->data.split[split];
        /* Validation and test start seq_len rows earlier; training has no rows before it. */
        uint64_t early = split == KELP_SPLIT_TRAIN ? 0 : job->data.seq_len;
        ret_first[split] = border - early;
        ret_counts[split] =
            rows > 0 ? rows + early - job->data.seq_len - job->data.pred_len + 1 : 0;
        border += rows;
    }
}

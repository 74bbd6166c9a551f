/* Which rows make the parts: by shares, by every n-th row, by files. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/suite.h"
#include "worker/data/dataset_split.h"

static struct kelp_job job;

static void reset_job(void)
{
    memset(&job, 0, sizeof(job));
}

static struct kelp_splits split_or_fail(uint64_t rows, uint64_t val_rows, uint64_t test_rows)
{
    struct kelp_splits splits = {0};
    struct kelp_error error = {0};
    const uint64_t counts[KELP_SPLIT_COUNT] = {rows, val_rows, test_rows};
    kelp_status status = kelp_splits_init(&splits, &job, counts, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    return splits;
}

static void check_refused(uint64_t rows, const char *what)
{
    struct kelp_splits splits = {0};
    struct kelp_error error = {0};
    const uint64_t counts[KELP_SPLIT_COUNT] = {rows, 0, 0};
    ck_assert_int_eq(kelp_splits_init(&splits, &job, counts, &error), KELP_ERR_INVALID);
    ck_assert_msg(strstr(error.text, what) != NULL, "%s", error.text);
}

static void set_fractions(double train, double val, double test)
{
    job.data.fractions[0] = train;
    job.data.fractions[1] = val;
    job.data.fractions[2] = test;
    job.data.fraction_count = 3;
}

/* A row is found in its split, as its sample, and in no other. */
static void expect_found(const struct kelp_splits *splits, enum kelp_split split, uint64_t index)
{
    uint64_t row = kelp_splits_row(splits, split, index);
    for (int other = 0; other < KELP_SPLIT_COUNT; other++) {
        uint64_t found = UINT64_MAX;
        bool there = kelp_splits_find(splits, (enum kelp_split)other, row, &found);
        if (there != (other == (int)split) || (there && found != index)) { /* thousands of rows */
            ck_abort_msg("split %d: row %llu is found as %llu of split %d", (int)split,
                         (unsigned long long)row, (unsigned long long)found, other);
        }
    }
}

/* Whatever the split, every row is in at most one split, splits rise, and nothing is out of range.
 */
static void check_disjoint(const struct kelp_splits *splits, uint64_t all_rows, uint64_t used)
{
    unsigned char *seen = calloc(all_rows, 1);
    uint64_t count = 0;
    for (int split = 0; split < KELP_SPLIT_COUNT; split++) {
        uint64_t before = 0;
        for (uint64_t i = 0; i < splits->rows[split].count; i++) {
            uint64_t row = kelp_splits_row(splits, (enum kelp_split)split, i);
            ck_assert_uint_lt(row, all_rows);
            ck_assert(i == 0 || row > before);
            ck_assert_uint_eq(seen[row]++, 0);
            expect_found(splits, (enum kelp_split)split, i);
            before = row;
            count++;
        }
    }
    ck_assert_uint_eq(count, used);
    free(seen);
}

KELP_CASE("dataset_split", .setup = reset_job)

KELP_TEST(everything_trains_by_default)
{
    struct kelp_splits splits = split_or_fail(7, 0, 0);
    ck_assert_uint_eq(splits.rows[KELP_SPLIT_TRAIN].count, 7);
    ck_assert_uint_eq(kelp_splits_row(&splits, KELP_SPLIT_TRAIN, 6), 6);
    check_disjoint(&splits, 7, 7);
}

/* Shares that are not sums of powers of two still fall on the rows that people expect. */
KELP_TEST(shares)
{
    set_fractions(0.8, 0.1, 0.1);
    for (uint64_t rows = 10; rows < 400; rows++) {
        struct kelp_splits splits = split_or_fail(rows, 0, 0);
        check_disjoint(&splits, rows, rows);
        if (rows % 10 == 0) {
            ck_assert_uint_eq(splits.rows[KELP_SPLIT_TRAIN].count, rows / 10 * 8);
            ck_assert_uint_eq(splits.rows[KELP_SPLIT_VAL].count, rows / 10);
        }
    }
    set_fractions(0.5, 0.0, 0.25);
    struct kelp_splits splits = split_or_fail(100, 0, 0);
    ck_assert_uint_eq(splits.rows[KELP_SPLIT_VAL].count, 0);
    ck_assert_uint_eq(splits.rows[KELP_SPLIT_TEST].count, 25);
    ck_assert_uint_eq(kelp_splits_row(&splits, KELP_SPLIT_TEST, 0), 50);
}

/* Rows 9, 19, ... are the test split, and the others stay in order; shares divide those. */
KELP_TEST(every_nth_row)
{
    job.data.test_every = 10;
    struct kelp_splits splits = split_or_fail(50265, 0, 0);
    ck_assert_uint_eq(splits.rows[KELP_SPLIT_TRAIN].count, 45239);
    ck_assert_uint_eq(splits.rows[KELP_SPLIT_TEST].count, 5026);
    ck_assert_uint_eq(kelp_splits_row(&splits, KELP_SPLIT_TEST, 1), 19);
    ck_assert_uint_eq(kelp_splits_row(&splits, KELP_SPLIT_TRAIN, 8), 8);
    ck_assert_uint_eq(kelp_splits_row(&splits, KELP_SPLIT_TRAIN, 9), 10);
    check_disjoint(&splits, 50265, 50265);
    set_fractions(0.5, 0.5, 0.0);
    splits = split_or_fail(21, 0, 0);
    ck_assert_uint_eq(kelp_splits_row(&splits, KELP_SPLIT_VAL, 0), 11);
    check_disjoint(&splits, 21, 21);
    job.data.test_every = 2;
    splits = split_or_fail(21, 0, 0);
    check_disjoint(&splits, 21, 21);
}

/* Parts of files of their own stand behind the rows of the first file. */
KELP_TEST(files_of_their_own)
{
    job.data.val_path[0] = 'v';
    job.data.test_path[0] = 't';
    struct kelp_splits splits = split_or_fail(10, 4, 3);
    ck_assert_uint_eq(kelp_splits_row(&splits, KELP_SPLIT_VAL, 0), 10);
    ck_assert_uint_eq(kelp_splits_row(&splits, KELP_SPLIT_TEST, 2), 16);
    check_disjoint(&splits, 17, 17);
    job.data.test_path[0] = '\0';
    job.data.test_every = 5;
    splits = split_or_fail(10, 4, 0);
    ck_assert_uint_eq(kelp_splits_row(&splits, KELP_SPLIT_VAL, 0), 10);
    ck_assert_uint_eq(kelp_splits_row(&splits, KELP_SPLIT_TEST, 1), 9);
    check_disjoint(&splits, 14, 14);
    /* A file takes the place of such a split; the training split stays what it was. */
    job.data.test_path[0] = 't';
    splits = split_or_fail(10, 4, 3);
    ck_assert_uint_eq(splits.rows[KELP_SPLIT_TRAIN].count, 8);
    ck_assert_uint_eq(kelp_splits_row(&splits, KELP_SPLIT_TEST, 2), 16);
    check_disjoint(&splits, 17, 15);
    job.data.test_every = 0;
    set_fractions(0.5, 0.2, 0.3);
    splits = split_or_fail(10, 4, 3);
    ck_assert_uint_eq(splits.rows[KELP_SPLIT_TRAIN].count, 5);
    ck_assert_uint_eq(kelp_splits_row(&splits, KELP_SPLIT_VAL, 0), 10);
    check_disjoint(&splits, 17, 12);
}

KELP_TEST(mistakes)
{
    set_fractions(0.8, 0.2, 0.1);
    check_refused(100, "data.fractions");
    set_fractions(0.9, 0.01, 0.09);
    check_refused(10, "data.fractions: a share of 0.01");
    set_fractions(0.8, 0.1, 0.1);
    job.data.test_every = 3;
    check_refused(100, "data.test_every");
    reset_job();
    job.data.test_every = 1;
    check_refused(100, "data.test_every: 1");
    reset_job();
    check_refused(0, "data.path");
}

/* A random split has each row once, in the same order for the same seed, and no other of files of
 * their own. */
KELP_TEST(random_rows)
{
    unsigned char seen[100] = {0};
    uint64_t moved = 0;
    reset_job();
    job.seed = 7;
    job.data.random_split = true;
    job.data.test_every = 10;
    job.data.fractions[0] = 0.9;
    job.data.fractions[1] = 0.1;
    job.data.fraction_count = 2;
    struct kelp_splits splits = split_or_fail(100, 0, 0), again = split_or_fail(100, 0, 0);
    for (int split = 0; split < KELP_SPLIT_COUNT; split++) {
        for (uint64_t i = 0; i < splits.rows[split].count; i++) {
            uint64_t row = kelp_splits_row(&splits, (enum kelp_split)split, i);
            ck_assert_uint_lt(row, 100);
            ck_assert_uint_eq(seen[row]++, 0);
            ck_assert_uint_eq(row, kelp_splits_row(&again, (enum kelp_split)split, i));
            moved += split == KELP_SPLIT_TEST && row % 10 != 9;
            expect_found(&splits, (enum kelp_split)split, i);
        }
    }
    ck_assert_uint_eq(splits.rows[KELP_SPLIT_TRAIN].count, 81);
    ck_assert_uint_eq(splits.rows[KELP_SPLIT_TEST].count, 10);
    ck_assert_uint_gt(moved, 0);
    job.seed = 8;
    again = split_or_fail(100, 0, 0);
    ck_assert_uint_ne(kelp_splits_row(&splits, KELP_SPLIT_TEST, 0),
                      kelp_splits_row(&again, KELP_SPLIT_TEST, 0));
    (void)snprintf(job.data.test_path, sizeof(job.data.test_path), "t.csv");
    job.data.test_every = 0;
    splits = split_or_fail(100, 0, 5);
    ck_assert_uint_eq(kelp_splits_row(&splits, KELP_SPLIT_TEST, 3), 103);
}

/*
 * A job whose data is a table in its own folder, for tests of how rows are processed.
 */
#ifndef KELP_TESTS_LIB_MODELS_TABLE_BENCH_H
#define KELP_TESTS_LIB_MODELS_TABLE_BENCH_H

#include <check.h>
#include <stdio.h>

#include "worker/data/dataset.h"

extern struct table_bench {
    char folder[64];
    char data_path[128]; /* FOLDER/data.csv */
    struct kelp_job job; /* columns x and y, target y, unless a test changes it */
} table_bench;

/* Set a text field of the job. */
#define TABLE_SET(field, text)                                                                     \
    ck_assert_int_lt(snprintf(field, sizeof(field), "%s", text), (int)sizeof(field))

/* Fixtures of each test. */
void table_setup(void);
void table_teardown(void);

void table_write(const char *name, const char *text); /* FOLDER/name */
/* The job's data set; owned (kelp_dataset_close()). */
struct kelp_dataset *table_open(void);
/* Check that the data is refused with this status, in one line that contains each of the texts
 * separated by bars. */
void table_refused(kelp_status expected_status, const char *expected);
uint64_t table_fingerprint(void);
/* Check that sample `index` of a split has these numbers: inputs, then targets. */
void table_sample_is(const struct kelp_dataset *dataset, enum kelp_split part, uint64_t index,
                     const double *expected);

#endif

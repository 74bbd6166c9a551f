/*
 * A job whose data are a table in a folder of its own, for tests of what becomes of its rows.
 */
#ifndef KELP_TESTS_LIB_MODELS_TABLE_BENCH_H
#define KELP_TESTS_LIB_MODELS_TABLE_BENCH_H

#include <check.h>
#include <stdio.h>

#include "worker/data/dataset.h"

extern struct table_bench {
    char folder[64];
    char data_path[128]; /* FOLDER/data.csv */
    struct kelp_job job; /* of columns x and y, y the target, until a test changes it */
} table_bench;

/* A text of the job. */
#define TABLE_SET(field, text)                                                                     \
    ck_assert_int_lt(snprintf(field, sizeof(field), "%s", text), (int)sizeof(field))

/* Around each test. */
void table_setup(void);
void table_teardown(void);

void table_write(const char *name, const char *text); /* FOLDER/name */
/* The data of the job; owned (kelp_dataset_close()). */
struct kelp_dataset *table_open(void);
/* They are refused with this status, in one line that has each of the texts between bars. */
void table_refused(kelp_status expected_status, const char *expected);
uint64_t table_fingerprint(void);
/* Sample `index` of a part is these numbers, inputs and then targets. */
void table_sample_is(const struct kelp_dataset *dataset, enum kelp_split part, uint64_t index,
                     const double *expected);

#endif

/*
 * Run `kelp train` as a user would, in a temporary folder, and look at what it left there.
 */
#ifndef KELP_TESTS_LIB_RUN_TRAIN_H
#define KELP_TESTS_LIB_RUN_TRAIN_H

#include <cjson/cJSON.h>

#include "common/base/status.h"

#define KELP_TEST_ARGS_MAX 64

struct kelp_run {
    char folder[256]; /* temporary; removed by kelp_run_fini() */
    char run_folder[300];
    int exit_code; /* -1: ended by a signal */
    char *output;  /* standard output and error */
    cJSON *result; /* result.json, or NULL */
};

/* ${KELP_BIN}/NAME into path. */
void kelp_test_program(const char *name, char *path, size_t path_bytes);

/* Write text as FOLDER/name and return its path (static storage, until the next call). */
const char *kelp_test_write(const char *folder, const char *name, const char *text);

/* A new temporary folder into run->folder. */
void kelp_run_prepare(struct kelp_run *run);

/*
 * `kelp train JOB --run FOLDER/run ARGS...` to its end; fails the test when that takes longer than
 * timeout_s. args is NULL-terminated. Everything it printed stays in run->output.
 */
void kelp_run_train(struct kelp_run *run, const char *job_path, const char *const *args,
                    unsigned timeout_s);

/* A number or text of result.json by its key; fails the test when it is missing. */
double kelp_run_metric(const struct kelp_run *run, const char *name);
const char *kelp_run_digest(const struct kelp_run *run);

/* The value of `field` in the last line of FILE.jsonl whose `key` equals number; fails the test
 * when missing. */
double kelp_run_line_number(const struct kelp_run *run, const char *file, const char *key,
                            double number, const char *field);

void kelp_run_fini(struct kelp_run *run);

#endif

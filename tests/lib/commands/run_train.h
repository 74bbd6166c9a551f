/*
 * Runs `kelp train` as a user would, in a temporary folder, to its end or with kills and
 * resumptions in between (tests/lib/commands/run_watch.h shows its progress), and checks what it
 * leaves there.
 */
#ifndef KELP_TESTS_LIB_COMMANDS_RUN_TRAIN_H
#define KELP_TESTS_LIB_COMMANDS_RUN_TRAIN_H

#include <cjson/cJSON.h>

#include "common/base/status.h"
#include "tests/lib/commands/run_command.h"

#define KELP_TEST_ARGS_MAX 48

struct kelp_run {
    char folder[256];     /* temporary; removed by kelp_run_fini() */
    char run_folder[300]; /* FOLDER/run */
    struct kelp_test_command command;
    int exit_code; /* -1: ended by a signal */
    char *output;  /* standard output and error */
    cJSON *result; /* result.json, or NULL */
};

/* Make a temporary folder: run->folder. */
void kelp_run_prepare(struct kelp_run *run);
/* The same, with that text as its job.yaml. */
void kelp_run_prepare_job(struct kelp_run *run, const char *job_text);
void kelp_run_fini(struct kelp_run *run);

/*
 * `kelp train JOB --run FOLDER/run ARGS...` to its end; fails the test when that takes longer than
 * timeout_s. args is NULL-terminated. Everything it printed stays in run->output.
 */
void kelp_run_train(struct kelp_run *run, const char *job_path, const char *const *args,
                    unsigned timeout_s);

/* Start `kelp train FIRST --run run ARGS...` in the folder, where FIRST is a job's file or
 * "--resume". args: NULL-terminated, or NULL. */
void kelp_run_start(struct kelp_run *run, const char *first, const char *const *args);
/* Wait for its end; fails the test if the exit status differs. */
void kelp_run_finish(struct kelp_run *run, int exit_code);
void kelp_run_finish_within(struct kelp_run *run, int exit_code, uint32_t timeout_ms);
/* Resume the existing run, and wait for its end. */
void kelp_run_resume(struct kelp_run *run, const char *const *args, int exit_code);
/* Fails the test if the last command ended with another digest; an empty digest is filled in. */
void kelp_run_expect_digest(const struct kelp_run *run, const char *what, char digest[33]);

/* A number or text of result.json by its key; fails the test if it is missing. */
double kelp_run_number(const struct kelp_run *run, const char *name);
const char *kelp_run_text(const struct kelp_run *run, const char *name);
double kelp_run_metric(const struct kelp_run *run, const char *name); /* one of its metrics */
const char *kelp_run_digest(const struct kelp_run *run);

/* The value of `field` in the last line of FILE.jsonl whose `key` equals number; fails the test
 * if it is missing. */
double kelp_run_line_number(const struct kelp_run *run, const char *file, const char *key,
                            double number, const char *field);

#endif

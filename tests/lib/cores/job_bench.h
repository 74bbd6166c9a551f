/*
 * A job file under test, in which the two kinds that every job must name are there.
 */
#ifndef KELP_TESTS_LIB_CORES_JOB_BENCH_H
#define KELP_TESTS_LIB_CORES_JOB_BENCH_H

#include "common/job/job.h"

extern struct job_bench {
    struct kelp_job_file *file;
    struct kelp_error error; /* the newest */
} job_bench;

/* Around each test. */
void job_setup(void);
void job_teardown(void);

/* Read a text as job.yaml, and finish it. */
kelp_status job_parse(const char *text);
/* Its canonical text, or with where each value comes from; owned (free()). */
char *job_print(bool with_origin);

#endif

/*
 * A job file under test, with the two kinds that every job must name.
 */
#ifndef KELP_TESTS_LIB_CORES_JOB_BENCH_H
#define KELP_TESTS_LIB_CORES_JOB_BENCH_H

#include "common/job/job.h"

extern struct job_bench {
    struct kelp_job_file *file;
    struct kelp_error error; /* the newest */
} job_bench;

/* Fixtures of each test. */
void job_setup(void);
void job_teardown(void);

/* Read a text as job.yaml, and finish the job. */
kelp_status job_parse(const char *text);
/* Its canonical text, optionally with the origin of each value; owned (free()). */
char *job_print(bool with_origin);

#endif

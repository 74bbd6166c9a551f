/*
 * A small job of each model that comes with Kelp, on data of its own: with batch norm, dropout,
 * gradients in pieces, and optimizers and schedules that people use with them. Two epochs of three
 * steps, the last one short.
 */
#ifndef KELP_TESTS_LIB_COMMANDS_MODEL_JOBS_H
#define KELP_TESTS_LIB_COMMANDS_MODEL_JOBS_H

#include <stdint.h>

#define MODEL_JOB_COUNT 8

const char *model_job_name(int index);
int model_job_find(const char *name); /* fails the test when there is none */

/* Its files into the folder. Path of the job's, until kelp_test_write() is called again. */
const char *model_job_write(const char *folder, int index);

#endif

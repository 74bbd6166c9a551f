/*
 * A small job for each model of Kelp, with its own data: with batch norm, dropout, accumulated
 * gradients, and the optimizers and schedules commonly used with them. Two epochs of three steps,
 * the last one short.
 */
#ifndef KELP_TESTS_LIB_COMMANDS_MODEL_JOBS_H
#define KELP_TESTS_LIB_COMMANDS_MODEL_JOBS_H

#include <stdint.h>

#define MODEL_JOB_COUNT 8

const char *model_job_name(int index);
int model_job_find(const char *name); /* fails the test if there is none */

/* Write its files to the folder. Returns the path of the job file, valid until the next
 * kelp_test_write(). */
const char *model_job_write(const char *folder, int index);

#endif

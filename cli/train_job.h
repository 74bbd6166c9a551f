/*
 * The job of `kelp train`: file, environment and options laid over one another.
 */
#ifndef KELP_CLI_TRAIN_JOB_H
#define KELP_CLI_TRAIN_JOB_H

#include "common/job.h"
#include "common/options.h"
#include "common/status.h"

/*
 * Precedence: option, environment, file, default. With --resume and without a file, the job is the
 * run's own. *ret_file is owned (kelp_job_file_destroy()).
 * Errors: KELP_ERR_NOT_FOUND, KELP_ERR_INVALID, …: the text is one line for people.
 */
kelp_status kelp_train_job_read(const struct kelp_options *given, struct kelp_job_file **ret_file,
                                struct kelp_error *reterr) KELP_MUST_USE;

/*
 * Is this job the one of the run in run_path, but for what cannot change its result (how many
 * workers, how failures are met)? Errors: KELP_ERR_MISMATCH, KELP_ERR_NOT_FOUND.
 */
kelp_status kelp_train_job_same(const struct kelp_job_file *file, const char *run_path,
                                struct kelp_error *reterr) KELP_MUST_USE;

/* The digest of a job's text with the keys that cannot change its result at their defaults. */
kelp_status kelp_train_job_digest(const char *name, const char *text, uint64_t *ret_digest,
                                  struct kelp_error *reterr) KELP_MUST_USE;

#endif

/*
 * The job of `kelp train`: file, environment and options laid over one another.
 */
#ifndef KELP_CLI_PREFLIGHT_TRAIN_JOB_H
#define KELP_CLI_PREFLIGHT_TRAIN_JOB_H

#include "common/base/status.h"
#include "common/job/job.h"
#include "common/program/options/options.h"
#include "common/training/plan.h"

/*
 * Precedence: option, environment, file, default. With --resume and without a file, the job is the
 * run's own. *ret_file is owned (kelp_job_file_destroy()).
 * Errors: KELP_ERR_NOT_FOUND, KELP_ERR_INVALID, …: the text is one line for people.
 */
kelp_status kelp_train_job_read(const struct kelp_options *given, struct kelp_job_file **ret_file,
                                struct kelp_error *reterr) KELP_MUST_USE;

/* Lay the options over a job that has been read, and with --resume the run's folder. Errors:
 * KELP_ERR_NOT_FOUND, KELP_ERR_INVALID. */
kelp_status kelp_train_job_lay(struct kelp_job_file *file, const struct kelp_options *given,
                               struct kelp_error *reterr) KELP_MUST_USE;

/* What differs from the job that a run had. */
struct kelp_train_changes {
    char text[384]; /* "cluster.workers 2:2 -> 3:3", or "" */
    bool longer;    /* there is more to do than before: the earlier end does not count */
};

/*
 * May a run that was made as the text `before` (called `name` in errors) go on as the text `now`?
 * Errors: KELP_ERR_MISMATCH (the text names the keys that may not differ), and those of the parser.
 */
kelp_status kelp_train_job_may_follow(const char *name, const char *before, const char *now,
                                      struct kelp_error *reterr) KELP_MUST_USE;

/*
 * The same against job.yaml of the run in run_path; with force, keys that shape the result may
 * differ too, but not its name. Errors: KELP_ERR_MISMATCH, KELP_ERR_NOT_FOUND.
 */
kelp_status kelp_train_job_follows(const struct kelp_job_file *file, const char *run_path,
                                   bool force, struct kelp_train_changes *ret_changes,
                                   struct kelp_error *reterr) KELP_MUST_USE;

/* Before a run goes on: are the data those that it began with? card: what the model would carry
 * now, or NULL. A run that carries nothing is not checked here. Errors: KELP_ERR_MISMATCH. */
kelp_status kelp_train_job_same_data(const struct kelp_job *job, const char *run_path,
                                     const char *card, struct kelp_error *reterr) KELP_MUST_USE;

/* Before a run goes on: would it be computed as before? before: the plan of a checkpoint; now: the
 * text of this machine's. Errors: KELP_ERR_MISMATCH, those of kelp_plan_parse(). */
kelp_status kelp_train_job_same_compute(const struct kelp_plan *before, const char *now,
                                        const char *run_path,
                                        struct kelp_error *reterr) KELP_MUST_USE;

#endif

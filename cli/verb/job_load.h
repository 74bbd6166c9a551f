/*
 * How a verb loads a job: the file, the environment and options laid over one another.
 */
#ifndef KELP_CLI_VERB_JOB_LOAD_H
#define KELP_CLI_VERB_JOB_LOAD_H

#include "common/base/status.h"
#include "common/job/job.h"
#include "common/program/options/options.h"

#define KELP_JOB_SOURCE_INPUT "-" /* the path that means standard input */

struct kelp_job_source {
    const char *path; /* of the job file */
    bool environment; /* KELP_ variables are laid over it */
    /* Lays more over both; NULL: nothing. */
    kelp_status (*lay)(struct kelp_job_file *file, const void *user, struct kelp_error *reterr);
    const void *user;
    bool unfinished; /* the caller sets more keys and calls kelp_job_file_finish() */
};

/* *ret_file is owned (kelp_job_file_destroy()). Errors: KELP_ERR_NOT_FOUND, KELP_ERR_INVALID, …:
 * the text is one line for people. */
kelp_status kelp_job_load(const struct kelp_job_source *source, struct kelp_job_file **ret_file,
                          struct kelp_error *reterr) KELP_MUST_USE;
/* The same of a text, called name in errors, and nothing else. */
kelp_status kelp_job_load_text(const char *name, const char *text, struct kelp_job_file **ret_file,
                               struct kelp_error *reterr) KELP_MUST_USE;

/*
 * Must come before a verb computes anything of the job, makes anything, or prints: a portable job
 * may need this command to begin again (common/program/portable.h). path: of the job, or NULL; what
 * kelp_job_load() has read of standard input is there again. Errors: those of
 * kelp_portable_again().
 */
kelp_status kelp_job_begin_portable(const struct kelp_job *job, const char *path,
                                    struct kelp_error *reterr) KELP_MUST_USE;

struct kelp_job_setting {
    const char *key;
    const char *value;
};

/* Set keys as an option does. Errors: KELP_ERR_INVALID. */
kelp_status kelp_job_set(struct kelp_job_file *file, const struct kelp_job_setting *settings,
                         size_t count, struct kelp_error *reterr) KELP_MUST_USE;
kelp_status kelp_job_set_u64(struct kelp_job_file *file, const char *key, uint64_t value,
                             struct kelp_error *reterr) KELP_MUST_USE;

/* The option --set alone; and --workers, --shards, --run and --set. Errors: KELP_ERR_INVALID. */
kelp_status kelp_job_set_pairs(struct kelp_job_file *file, const struct kelp_options *given,
                               struct kelp_error *reterr) KELP_MUST_USE;
kelp_status kelp_job_set_options(struct kelp_job_file *file, const struct kelp_options *given,
                                 struct kelp_error *reterr) KELP_MUST_USE;

#endif

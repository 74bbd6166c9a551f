/*
 * The program that computes instead of kelp-worker: that of the job (model.program, model.python),
 * or of kelp train --worker-program. What it needs to take part is in its environment, as
 * KELP_ variables of the options of kelp_worker_options_read() (kelp/worker.h): the command line
 * has the job's arguments alone.
 */
#ifndef KELP_CLI_RUN_WORKER_PROGRAM_H
#define KELP_CLI_RUN_WORKER_PROGRAM_H

#include "common/base/status.h"
#include "common/job/job.h"
#include "common/process/process.h"

#define KELP_WORKER_ARGUMENTS_MAX 256

struct kelp_worker_program {
    /* NULL-terminated: what is executed, then its arguments. argv[0] NULL: kelp-worker computes. */
    const char *argv[KELP_WORKER_ARGUMENTS_MAX + 3];
    bool python; /* what is executed is Python */
    char file[KELP_PROCESS_PATH_MAX];
    char interpreter[KELP_PROCESS_PATH_MAX];
    char arguments[KELP_JOB_TEXTS_MAX + 1];
};

static inline bool kelp_worker_program_is(const struct kelp_worker_program *program)
{
    return program->argv[0] != NULL;
}

/*
 * Find it on this host; instead: --worker-program, or NULL. It must not move from then on: argv
 * points into it. A job of kelp-worker's own leaves argv[0] NULL. Errors: KELP_ERR_NOT_FOUND,
 * KELP_ERR_INVALID (it cannot be executed, or read by Python), KELP_ERR_LIMIT.
 */
kelp_status kelp_worker_program_find(const struct kelp_job *job, const char *instead,
                                     struct kelp_worker_program *ret_program,
                                     struct kelp_error *reterr) KELP_MUST_USE;

/* For verbs that compute with models of Kelp's own: refuse a job of a program, whose verb this
 * cannot be. Errors: KELP_ERR_UNSUPPORTED. */
kelp_status kelp_worker_program_refuse(const struct kelp_job *job, const char *verb,
                                       struct kelp_error *reterr) KELP_MUST_USE;

#endif

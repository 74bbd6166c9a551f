/*
 * A script that says its job itself (kelp run): it is run once to describe it, and then by workers.
 *
 *     KELP_DESCRIBE=FOLDER python3 train.py --its-own
 *
 * writes FOLDER/job.yaml, with the keys that it decides, and perhaps a file beside it that
 * model.init names. It does so where it creates its worker, and ends with status 0.
 */
#ifndef KELP_CLI_PREFLIGHT_SCRIPT_H
#define KELP_CLI_PREFLIGHT_SCRIPT_H

#include <limits.h>
#include <signal.h>
#include <stdbool.h>

#include "common/base/status.h"
#include "common/job/job.h"
#include "common/program/options/options.h"

#define KELP_SCRIPT_SIGNALS     3
#define KELP_SCRIPT_INIT_FOLDER "init" /* of a run: the weights that it began with */

struct kelp_script {
    const struct kelp_options *given; /* the script is its first argument, the others follow */
    char path[PATH_MAX];              /* absolute */
    char folder[PATH_MAX];            /* private, with what the script has written; "": none */
    bool told;                        /* it failed, and has said why itself */
    int signal;                       /* that ended it and is to end us; 0: there was none */
    /* From before the folder is made until it is removed: */
    bool catches_signals;
    int signal_fd; /* a byte for each signal that we got, its number */
    struct sigaction before[KELP_SCRIPT_SIGNALS];
};

/*
 * Run the script to describe its job; what it prints goes where ours goes. kelp_script_fini() in
 * every case, which removes the folder: a Ctrl-C, SIGTERM or SIGHUP that came before it ends us
 * then, and none leaves the folder behind. While the script runs they end it, and then this. One
 * caller at a time. Errors: KELP_ERR_NOT_FOUND, KELP_ERR_INVALID (it failed, or described nothing:
 * the text is one line), KELP_ERR_CLOSED (by a signal), those of files and processes.
 */
kelp_status kelp_script_describe(const struct kelp_options *given, struct kelp_script *ret_script,
                                 struct kelp_error *reterr) KELP_MUST_USE;
void kelp_script_fini(struct kelp_script *script);

/*
 * Its job: what it has described, with the script as model.python and its arguments as
 * model.arguments, and the environment and options over that. One without a name has the script's.
 * *ret_file is owned (kelp_job_file_destroy()). Errors: those of kelp_train_job_read().
 */
kelp_status kelp_script_job(const struct kelp_script *script, struct kelp_job_file **ret_file,
                            struct kelp_error *reterr) KELP_MUST_USE;

/* Before a run goes on: the job names the weights that the run began with, where it has them.
 * Errors: KELP_ERR_LIMIT. */
kelp_status kelp_script_init_find(const struct kelp_script *script, struct kelp_job_file *file,
                                  const char *run_path, struct kelp_error *reterr) KELP_MUST_USE;

/* Copy the described weights into the run's folder, which is there; the job names the copy. Nothing
 * where model.init is no file of the script's. Errors: of files. */
kelp_status kelp_script_init_keep(const struct kelp_script *script, struct kelp_job_file *file,
                                  const char *run_path, struct kelp_error *reterr) KELP_MUST_USE;

#endif

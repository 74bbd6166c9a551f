/*
 * May the library that a job names be loaded, or its program be run? It is code of others that runs
 * as the user. What the user's own command names, by a job file, --set or a variable such as
 * KELP_MODEL_PLUGIN, is meant. A library that a run, a checkpoint or a model brings along must be
 * known by its SHA-256: a command of this user named it once, or let it in by --allow-plugin. A
 * program must be known by path and arguments, whatever the file holds by now: it is there to be
 * worked on, and whoever can write it needs no job.
 *
 * What is known is in $XDG_STATE_HOME/kelp/plugins (or $HOME/.local/state/kelp/plugins), a file
 * without contents for each.
 */
#ifndef KELP_CLI_RUN_PLUGIN_CONSENT_H
#define KELP_CLI_RUN_PLUGIN_CONSENT_H

#include "cli/verb/verb.h"
#include "common/base/status.h"
#include "common/job/job.h"

#define KELP_VERB_ALLOW_PLUGIN                                                                     \
    KELP_VERB_FLAG("allow-plugin", NULL,                                                           \
                   "trust the library (model.plugin) or the program (model.program, "              \
                   "model.python) of the run's job, and do not ask again")

struct kelp_plugin_consent {
    bool own_job; /* the command line names the file of the job */
    bool allowed; /* --allow-plugin, or a program is named instead */
};

/* Has this user named the library of that SHA-256, or let it in? */
bool kelp_plugin_is_known(const char *sha256);

/* Or the program of a job (model.program, model.python), with its arguments? */
bool kelp_program_is_known(const struct kelp_job *job);

/*
 * After kelp_job_file_finish(), before anything is made of the job. Where the library may be loaded
 * the job has its SHA-256 as model.plugin_sha256 from now on, so that no other one is; and it is
 * known from now on, where that can be written. A program becomes known likewise. A job with
 * neither: nothing happens.
 * Errors: KELP_ERR_DENIED, KELP_ERR_MISMATCH (another one than model.plugin_sha256 says), those of
 * reading it.
 */
kelp_status kelp_plugin_consent(struct kelp_job_file *file,
                                const struct kelp_plugin_consent *consent,
                                struct kelp_error *reterr) KELP_MUST_USE;

#endif

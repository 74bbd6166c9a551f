/*
 * The library of model.plugin in the run's folder: the run works with its own copy, whatever
 * becomes of the file that the job named: <run>/plugin/<XXH3-64 of its bytes>/<its name>.
 */
#ifndef KELP_CLI_PREFLIGHT_RUN_PLUGIN_H
#define KELP_CLI_PREFLIGHT_RUN_PLUGIN_H

#include "common/base/status.h"
#include "common/job/job.h"

#define KELP_RUN_PLUGIN_FOLDER "plugin"

/*
 * Before a run goes on: when its folder has a copy of the job's library, the job names the copy
 * from now on. With force another library is no error; kelp_run_plugin_keep() then copies it
 * too. Errors: KELP_ERR_MISMATCH (the library is another one), KELP_ERR_IO, KELP_ERR_NOT_FOUND.
 */
kelp_status kelp_run_plugin_find(struct kelp_job_file *file, const char *run_path, bool force,
                                 struct kelp_error *reterr) KELP_MUST_USE;

/* Copy the job's library into the run's folder, which is there, unless it lies there already; the
 * job names the copy. Errors: KELP_ERR_IO, KELP_ERR_NO_SPACE, KELP_ERR_NOT_FOUND. */
kelp_status kelp_run_plugin_keep(struct kelp_job_file *file, const char *run_path,
                                 struct kelp_error *reterr) KELP_MUST_USE;

#endif

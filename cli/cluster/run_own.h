/*
 * The folder of a run on one of several hosts that share none (cli/cluster/run_home.h): its logs
 * are there, and while the host leads, the run's records and what it comes to.
 */
#ifndef KELP_CLI_CLUSTER_RUN_OWN_H
#define KELP_CLI_CLUSTER_RUN_OWN_H

#include "cli/cluster/run_home.h"
#include "cli/run/run_dir.h"
#include "common/base/status.h"
#include "common/job/job.h"

/* What kelp submit would have laid into a folder that hosts share. */
struct kelp_run_own {
    const struct kelp_run_home *place;
    const struct kelp_job_file *file;
    const char *card; /* the model's; NULL: it has none */
};

/* Where the folder is: `typed`, the job's run.dir as paths has it, or one with the host's name in
 * the current folder. Errors: KELP_ERR_LIMIT. */
kelp_status kelp_run_own_path(const struct kelp_run_own *own, const char *typed, const char *host,
                              const struct kelp_path_map *paths,
                              char ret_path[KELP_RUN_PATH_MAX + 1],
                              struct kelp_error *reterr) KELP_MUST_USE;

/* Make it, or take it as an earlier start of this run left it. Errors: KELP_ERR_MISMATCH (it is of
 * another run), KELP_ERR_EXISTS (it holds something else), those of writing. */
kelp_status kelp_run_own_make(const struct kelp_run_own *own, const char *path,
                              struct kelp_error *reterr) KELP_MUST_USE;

#endif

/*
 * Files that a job reads, looked for on this host.
 */
#ifndef KELP_CLI_RUN_JOB_FILES_H
#define KELP_CLI_RUN_JOB_FILES_H

#include <stdbool.h>

#include "common/job/job.h"

#define KELP_JOB_FILES_MAX 16 /* keys that name one */

/* Must that one be there before the job begins? The run's folder and a cache need not. */
bool kelp_job_files_needed(const struct kelp_job_path *path);

/* Is nothing at a path? Of a pattern: at the folder that it begins with. May hang as long as the
 * file system does. */
bool kelp_job_files_missing(const char *here);

#endif

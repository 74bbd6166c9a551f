/*
 * How many files the processes of a run may have open (RLIMIT_NOFILE), against what they need.
 */
#ifndef KELP_CLI_PREFLIGHT_OPEN_FILES_H
#define KELP_CLI_PREFLIGHT_OPEN_FILES_H

#include "common/base/status.h"
#include "common/job/job.h"

/*
 * Raises the soft limit, which children inherit, to what the largest process of the job needs on
 * one machine: its etcd, unless that is another's, else a daemon. Errors: KELP_ERR_INVALID (the
 * hard limit is below that; the text has both).
 */
kelp_status kelp_open_files_allow(const struct kelp_job *job, bool own_etcd,
                                  struct kelp_error *reterr) KELP_MUST_USE;

#endif

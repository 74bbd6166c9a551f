/*
 * Does etcd have a job of that name? One that it does not have is a typing mistake more often than
 * a job that is still to come, so verbs say so at once, with the names of those it has.
 */
#ifndef KELP_CLI_CLUSTER_JOB_FIND_H
#define KELP_CLI_CLUSTER_JOB_FIND_H

#include "cli/cluster/job_client.h"

/*
 * Errors: KELP_ERR_NOT_FOUND: it has no text of that job, which kelp submit and kelp train put
 * there; its text names etcd and some of the jobs that are there. Those of kelp_etcd_get(): its
 * text names the job.
 */
kelp_status kelp_job_find(struct kelp_job_client *client, uint64_t timeout_ms,
                          struct kelp_error *reterr) KELP_MUST_USE;

/* What that says of a job that is not there. Errors: KELP_ERR_NOT_FOUND, always. */
kelp_status kelp_job_missing(struct kelp_job_client *client,
                             struct kelp_error *reterr) KELP_MUST_USE;

#endif

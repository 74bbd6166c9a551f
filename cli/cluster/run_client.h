/*
 * A run by its folder: what cluster.json and job.yaml say, and a client of it.
 */
#ifndef KELP_CLI_CLUSTER_RUN_CLIENT_H
#define KELP_CLI_CLUSTER_RUN_CLIENT_H

#include <stdint.h>

#include "cli/cluster/job_client.h"
#include "cli/run/result.h"
#include "cli/run/run_dir.h"
#include "common/base/status.h"
#include "common/job/job.h"

#define KELP_RUN_RESULT_KEY "result" /* of a job that kelp node runs: the text of result.json */

struct kelp_run_cluster {
    char job[64];
    char etcd[1024];
    bool private_etcd; /* the run's own, in its folder: gone with the run */
    int64_t pid;       /* of the launcher */
    char sockets[128]; /* private folder of the run, for unix sockets and certificates */
    char certs[1024];  /* folder with its operator's certificate; "": it has none */
    char node[64];     /* host of a cluster that holds the folder; "": the run is on one machine */
};

/* Errors: KELP_ERR_NOT_FOUND (the run never got as far), KELP_ERR_FORMAT. */
kelp_status kelp_run_cluster_read(const char *run_path, struct kelp_run_cluster *ret_cluster,
                                  struct kelp_error *reterr) KELP_MUST_USE;

/* The run's job; owned (kelp_job_file_destroy()). Errors: those of reading job.yaml. */
kelp_status kelp_run_job_read(const char *run_path, struct kelp_job_file **ret_file,
                              struct kelp_error *reterr) KELP_MUST_USE;

/* kelp_job_begin_portable() for the run's job; one that cannot be read is told by what computes it.
 * Errors: those of kelp_portable_again(). */
kelp_status kelp_run_begin_portable(const char *run_path, struct kelp_error *reterr) KELP_MUST_USE;

/* Is it one of kelp predict or kelp evaluate, which nobody resumes? False also when its job cannot
 * be read. */
bool kelp_run_is_inference(const char *run_path);

/* Digest of the job's text, as it names the job on the wire. */
kelp_status kelp_run_spec_digest(const char *run_path, uint64_t *ret_digest,
                                 struct kelp_error *reterr) KELP_MUST_USE;

/* Errors: KELP_ERR_NOT_FOUND (no result yet), KELP_ERR_FORMAT. */
kelp_status kelp_run_result_read(const char *run_path, struct kelp_result *ret_result,
                                 struct kelp_error *reterr) KELP_MUST_USE;

/* The same as the host of a cluster put it into etcd. *ret_text, unless ret_text is NULL, is owned
 * (free()): as it stands there. Errors: KELP_ERR_NOT_FOUND, KELP_ERR_FORMAT, those of etcd. */
kelp_status kelp_run_result_get(struct kelp_job_client *client, uint32_t deadline_ms,
                                char **ret_text, struct kelp_result *ret_result,
                                struct kelp_error *reterr) KELP_MUST_USE;

/* A client of a run that goes on; owned (kelp_job_client_close()). */
kelp_status kelp_run_client_open(const char *run_path, struct kelp_job_client **ret_client,
                                 struct kelp_error *reterr) KELP_MUST_USE;

/* The state of a run that goes on, as its coordinator tells; NULL: nobody answers. Owned
 * (kelp_job_client_status_free()). *client is the caller's, NULL at first: where the coordinator is
 * may have changed, so after a failure it is opened again. */
Kelp__V1__StatusReply *kelp_run_client_ask(const char *run_path, struct kelp_job_client **client,
                                           uint32_t timeout_ms);

/*
 * The run that a command means: the folder that was typed, the one of that name in runs/, or the
 * one of runs/latest; the text says what to do when it is not there. Errors: KELP_ERR_NOT_FOUND,
 * KELP_ERR_LIMIT.
 */
kelp_status kelp_run_choose(const char *typed, char ret_path[KELP_RUN_PATH_MAX + 1],
                            struct kelp_error *reterr) KELP_MUST_USE;

/* A client of what a command means: the run as kelp_run_choose() has it, which must go on; or with
 * etcd, the job of the name that was typed. Errors: those of both, KELP_ERR_INVALID. */
kelp_status kelp_run_client_choose(const char *typed, const char *etcd, const char *certs,
                                   struct kelp_job_client **ret_client,
                                   struct kelp_error *reterr) KELP_MUST_USE;

#endif

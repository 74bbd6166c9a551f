/*
 * A running job as a client sees it: its coordinator, found through etcd, and what etcd keeps of
 * it.
 *
 * Threads: one at a time. Every call has a deadline.
 */
#ifndef KELP_CLI_CLUSTER_JOB_CLIENT_H
#define KELP_CLI_CLUSTER_JOB_CLIENT_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/etcd/etcd.h"
#include "common/rpc/rpc.h"
#include "proto/kelp.pb-c.h"

#define KELP_JOB_CLIENT_KEY_MAX     255       /* bytes of an etcd key of a job */
#define KELP_JOB_CLIENT_ANSWER_MAX  (4 << 20) /* bytes of a status: thousands of workers */
#define KELP_JOB_CLIENT_ADDRESS_MAX 255
#define KELP_JOB_CLIENT_REACH_MS    10000 /* an etcd that said nothing until then is not there */

struct kelp_job_client;

/* etcd_urls as kelp_etcd_open() takes them. certs: the folder of an operator's or reader's
 * certificate of the job, for mutual TLS at every port; NULL: none. Connects to nothing yet. */
kelp_status kelp_job_client_open(const char *etcd_urls, const char *job, const char *certs,
                                 struct kelp_job_client **ret_client,
                                 struct kelp_error *reterr) KELP_MUST_USE;
void kelp_job_client_close(struct kelp_job_client *client); /* NULL is fine */

/* Borrowed. */
struct kelp_etcd *kelp_job_client_etcd(struct kelp_job_client *client);
struct kelp_rpc_loop *kelp_job_client_loop(struct kelp_job_client *client);
const char *kelp_job_client_job(const struct kelp_job_client *client);
const char *kelp_job_client_urls(const struct kelp_job_client *client); /* of etcd */

/* "/kelp/<job>/<name>". */
void kelp_job_client_key(const struct kelp_job_client *client, const char *name,
                         char ret_key[KELP_JOB_CLIENT_KEY_MAX + 1]);

/*
 * The value of /kelp/<job>/<name>, NUL-terminated, owned (free()).
 * Errors: KELP_ERR_NOT_FOUND, and those of kelp_etcd_get().
 */
kelp_status kelp_job_client_get(struct kelp_job_client *client, const char *name,
                                uint32_t deadline_ms, char **ret_value,
                                struct kelp_error *reterr) KELP_MUST_USE;

/*
 * Does its etcd answer, within timeout_ms and KELP_JOB_CLIENT_REACH_MS? Who waits for a job asks
 * that first: what is lost later may come back, what was never there is a wrong address. Errors:
 * those of kelp_etcd_get(); the text names the job.
 */
kelp_status kelp_job_client_reach(struct kelp_job_client *client, uint64_t timeout_ms,
                                  struct kelp_error *reterr) KELP_MUST_USE;

/* Remove all keys that begin with /kelp/<job>/<name>. */
kelp_status kelp_job_client_forget(struct kelp_job_client *client, const char *name,
                                   uint32_t deadline_ms, struct kelp_error *reterr) KELP_MUST_USE;

/*
 * Ask the leading coordinator; owned (kelp_job_client_status_free()).
 * Errors: KELP_ERR_NOT_FOUND (no coordinator leads now), KELP_ERR_UNREACHABLE, KELP_ERR_TIMEOUT,
 * KELP_ERR_FORMAT, KELP_ERR_MISMATCH (it leads another job).
 */
kelp_status kelp_job_client_status(struct kelp_job_client *client, uint32_t deadline_ms,
                                   Kelp__V1__StatusReply **ret_reply,
                                   struct kelp_error *reterr) KELP_MUST_USE;
/*
 * Ask the leading coordinator for a checkpoint now; with pause set, the job's state becomes
 * "paused" once it is committed. *ret_serial (not 0) is the request's number in the status that
 * tells its end (cli/checkpoint/checkpoint_request.h). Errors: as kelp_job_client_status(), and
 * what the coordinator refuses it for.
 */
kelp_status kelp_job_client_checkpoint(struct kelp_job_client *client, bool pause,
                                       uint32_t deadline_ms, uint64_t *ret_serial,
                                       struct kelp_error *reterr) KELP_MUST_USE;
/*
 * Ask the leading coordinator for another size of the cluster; it counts once the status has it.
 * Errors: as kelp_job_client_status(), and KELP_ERR_INVALID: there is no such size.
 */
kelp_status kelp_job_client_scale(struct kelp_job_client *client, const Kelp__V1__Targets *targets,
                                  uint32_t deadline_ms, struct kelp_error *reterr) KELP_MUST_USE;
/* Ask for the end of a process; Status shows the rest. Errors: likewise; KELP_ERR_LIMIT. */
kelp_status kelp_job_client_drain(struct kelp_job_client *client, const char *id,
                                  uint32_t deadline_ms, struct kelp_error *reterr) KELP_MUST_USE;
void kelp_job_client_status_free(Kelp__V1__StatusReply *reply); /* NULL is fine */

#endif

/*
 * Follows a run's coordinator in a thread of its own (cli/launch/watch/watcher.h).
 */
#ifndef KELP_CLI_LAUNCH_WATCH_MONITOR_H
#define KELP_CLI_LAUNCH_WATCH_MONITOR_H

#include <stdint.h>

#include "cli/cluster/job_client.h"
#include "common/base/status.h"

#define KELP_MONITOR_PERIOD_MS 100
/* Of each question: the first one's, doubled after each that took as long and got no answer. Short
 * while answers come fast, so that another leader is found soon; long where etcd is far away. */
#define KELP_MONITOR_DEADLINE_MS      400
#define KELP_MONITOR_DEADLINE_MOST_MS 3200
#define KELP_MONITOR_REFUSED_MS       1000 /* until a checkpoint that failed is asked for again */

struct kelp_monitor;

kelp_status kelp_monitor_start(const char *etcd_urls, const char *job, const char *certs,
                               struct kelp_monitor **ret_monitor,
                               struct kelp_error *reterr) KELP_MUST_USE;
/* Ends the thread (within the deadline of its question) and frees. NULL is fine. */
void kelp_monitor_stop(struct kelp_monitor *monitor);

/* Readable when there is something to take; borrowed. */
int kelp_monitor_fd(const struct kelp_monitor *monitor);

/*
 * The newest answer since the last call, or NULL when there is none; *ret_asked_ms
 * (CLOCK_MONOTONIC) is when it was asked for. Owned by the caller (kelp_job_client_status_free()).
 */
Kelp__V1__StatusReply *kelp_monitor_read(struct kelp_monitor *monitor, uint64_t *ret_asked_ms);

/* From now on ask for a checkpoint that pauses the job, again and again until the job's state says
 * "paused": a request dies with the leader that took it, and a checkpoint may fail. */
void kelp_monitor_pause(struct kelp_monitor *monitor);

#endif

/*
 * Follows a run's coordinator in a thread of its own, so that a slow answer holds up nobody.
 */
#ifndef KELP_CLI_MONITOR_H
#define KELP_CLI_MONITOR_H

#include <stdint.h>

#include "cli/client.h"
#include "common/status.h"

#define KELP_MONITOR_PERIOD_MS   100
#define KELP_MONITOR_DEADLINE_MS 400 /* of each question */

struct kelp_monitor;

kelp_status kelp_monitor_start(const char *etcd_urls, const char *job,
                               struct kelp_monitor **ret_monitor,
                               struct kelp_error *reterr) KELP_MUST_USE;
/* Ends the thread (within the deadline of its question) and frees. NULL is fine. */
void kelp_monitor_stop(struct kelp_monitor *monitor);

/* Readable when there is something to take; borrowed. */
int kelp_monitor_fd(const struct kelp_monitor *monitor);

/*
 * The newest answer since the last call, or NULL when there is none; then *ret_silence (may be
 * NULL) is why the last question had none, valid when its status is not KELP_OK. Owned by the
 * caller (kelp_client_status_free()).
 */
Kelp__V1__StatusReply *kelp_monitor_take(struct kelp_monitor *monitor,
                                         struct kelp_error *ret_silence);

#endif

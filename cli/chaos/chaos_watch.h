/*
 * Follows the steps of a run as closely as `kelp chaos` needs it: partition 0's shard is asked some
 * fifty times a second in a thread of its own, which needs neither coordinator nor etcd.
 */
#ifndef KELP_CLI_CHAOS_CHAOS_WATCH_H
#define KELP_CLI_CHAOS_CHAOS_WATCH_H

#include <stdint.h>

#include "cli/chaos/report/chaos_report.h"
#include "common/base/status.h"
#include "proto/kelp.pb-c.h"

#define KELP_CHAOS_WATCH_PERIOD_MS   20
#define KELP_CHAOS_WATCH_DEADLINE_MS 200  /* of each question */
#define KELP_CHAOS_LOOKS_MAX         1024 /* kept until they are taken: the newest ones */

struct kelp_chaos_watch;

/* certs: folder of an operator's or reader's certificate of the job; NULL: none. */
kelp_status kelp_chaos_watch_start(const char *certs, struct kelp_chaos_watch **ret_watch,
                                   struct kelp_error *reterr) KELP_MUST_USE;
/* Ends the thread (within the deadline of its question) and frees. NULL is fine. */
void kelp_chaos_watch_stop(struct kelp_chaos_watch *watch);

/* Whom to ask from now on: the primary of partition 0 by the coordinator's map; one without a map
 * changes nothing. */
void kelp_chaos_watch_aim(struct kelp_chaos_watch *watch, const Kelp__V1__StatusReply *status);

/* Readable when there is something to take; borrowed. */
int kelp_chaos_watch_fd(const struct kelp_chaos_watch *watch);

/* The looks since the last call, oldest first; returns how many. */
uint32_t kelp_chaos_watch_read(struct kelp_chaos_watch *watch,
                               struct kelp_chaos_look ret_looks[KELP_CHAOS_LOOKS_MAX]);

#endif

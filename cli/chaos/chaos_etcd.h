/*
 * The etcd of a run under chaos: killed, ended gracefully, kept away and started again at the same
 * port, by a thread of its own, since a start takes as long as it takes to be healthy.
 *
 * Threads: one caller; etcd dies with the thread, which lives until the close.
 */
#ifndef KELP_CLI_CHAOS_CHAOS_ETCD_H
#define KELP_CLI_CHAOS_CHAOS_ETCD_H

#include <sys/types.h>

#include "common/program/etcd_server.h"

#define KELP_CHAOS_ETCD_GRACE_MS 2000 /* to end gracefully */

struct kelp_chaos_etcd;

/* Start it; options (whose texts are borrowed) choose the port if none is given there. Errors:
 * those of kelp_etcd_server_start(). */
kelp_status kelp_chaos_etcd_open(const struct kelp_etcd_server_options *options,
                                 struct kelp_chaos_etcd **ret_etcd,
                                 struct kelp_error *reterr) KELP_MUST_USE;
/* Kills it. NULL is fine. */
void kelp_chaos_etcd_close(struct kelp_chaos_etcd *etcd);

/* "http://127.0.0.1:41234"; borrowed. */
const char *kelp_chaos_etcd_url(const struct kelp_chaos_etcd *etcd);

/* Of the running process; 0: it is away, or about to go. Errors: why it could not be started
 * again. */
kelp_status kelp_chaos_etcd_pid(struct kelp_chaos_etcd *etcd, pid_t *ret_pid,
                                struct kelp_error *reterr) KELP_MUST_USE;

/* Kill it (or end it in order, by SIGTERM) and start it again away_ms later. Returns at once; only
 * while it has a pid. */
void kelp_chaos_etcd_take_away(struct kelp_chaos_etcd *etcd, bool in_order, uint32_t away_ms);

/* Kill it, and start it; each returns when that is done, whatever was in progress. */
void kelp_chaos_etcd_kill(struct kelp_chaos_etcd *etcd);
kelp_status kelp_chaos_etcd_start(struct kelp_chaos_etcd *etcd,
                                  struct kelp_error *reterr) KELP_MUST_USE;

#endif

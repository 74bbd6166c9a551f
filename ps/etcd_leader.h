/*
 * Who leads: the leader's key in etcd, /kelp/<job>/coordinator, is watched, and the digest in it is
 * handed on (common/tls/proof.h).
 *
 * Threads: known() runs in the loop.
 */
#ifndef KELP_PS_ETCD_LEADER_H
#define KELP_PS_ETCD_LEADER_H

#include "common/etcd/etcd.h"
#include "common/rpc/rpc.h"

struct kelp_leader_watch;

/* All borrowed. */
struct kelp_leader_watch_options {
    struct kelp_etcd *etcd;
    struct kelp_rpc_loop *loop;
    const char *job;
    void (*known)(const char *proof_digest, void *user);
    void *user;
};

kelp_status kelp_leader_watch_open(const struct kelp_leader_watch_options *options,
                                   struct kelp_leader_watch **ret_watch,
                                   struct kelp_error *reterr) KELP_MUST_USE;
/* A coordinator that is not the leader says that it is: look again. In the loop, before it closes.
 */
void kelp_leader_watch_doubt(struct kelp_leader_watch *watch);
/* Nothing is posted to the loop any more; what was posted may still run. NULL does nothing. */
void kelp_leader_watch_close(struct kelp_leader_watch *watch);
/* After the loop ran for the last time. NULL does nothing. */
void kelp_leader_watch_destroy(struct kelp_leader_watch *watch);

#endif

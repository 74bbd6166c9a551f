/*
 * A worker's place in the job: its stream to the leading coordinator, on a thread of its own, so
 * that heartbeats are answered while lanes are computed.
 *
 * The thread finds the leader in etcd, sends the hello with the plan, answers heartbeats, and keeps
 * the newest map and assignment for the trainer to take. When the leader goes away it looks for
 * the next one; the trainer goes on meanwhile with what it has: the coordinator only gives advice.
 */
#ifndef KELP_WORKER_COORDINATOR_LINK_H
#define KELP_WORKER_COORDINATOR_LINK_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/etcd/etcd.h"

#define KELP_WORKER_ADDRESS_MAX 255

struct kelp_worker_shard {
    char name[64];
    char address[KELP_WORKER_ADDRESS_MAX + 1];
    uint64_t incarnation;
};

/* The partition map as workers need it. Freed with kelp_worker_map_free(). */
struct kelp_worker_map {
    uint64_t generation;
    uint32_t shard_count;
    uint32_t partition_count;
    struct kelp_worker_shard *shards;
    uint32_t *primary;   /* of each partition: index into shards */
    uint64_t *map_epoch; /* of each partition */
};
void kelp_worker_map_free(struct kelp_worker_map *map);

struct kelp_membership_options {
    struct kelp_etcd *etcd; /* borrowed until close */
    const char *job;
    uint64_t spec_digest;
    const char *id;
    uint64_t incarnation;
    const char *plan; /* canonical text; borrowed until close */
    uint32_t connect_timeout_ms;
    void (*changed)(void *user); /* on the membership's thread: there is news to take */
    void *user;
};

struct kelp_membership;
kelp_status kelp_membership_open(const struct kelp_membership_options *options,
                                 struct kelp_membership **ret_membership,
                                 struct kelp_error *reterr) KELP_MUST_USE;
void kelp_membership_close(struct kelp_membership *membership);

struct kelp_membership_news {
    struct kelp_worker_map *map; /* newer than the one taken before, or NULL; owned by the taker */
    bool has_assignment;
    uint64_t assignment_epoch;
    uint32_t lane_first;
    uint32_t lane_count;
    bool leave;                /* the job is over */
    struct kelp_error refused; /* status other than KELP_OK: the coordinator will not have us */
};

/* Take what is new. Threads: the trainer's. */
void kelp_membership_take(struct kelp_membership *membership,
                          struct kelp_membership_news *ret_news);

/* What the next heartbeat answer tells. Threads: the trainer's. */
void kelp_membership_progress(struct kelp_membership *membership, uint64_t generation,
                              uint64_t version, uint64_t lanes_computed);

#endif

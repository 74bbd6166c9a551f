/*
 * Streams between shards: links from here to followers (links.c), from primaries to here
 * (follow.c), and the order of copies (copies.c).
 *
 * Locks: replicas->lock guards lists and counters and is taken inside partitions' locks and inside
 * control_lock; a link's or a following's own lock inside it or alone. Nothing that locks a
 * partition or control_lock is called under either.
 */
#ifndef KELP_PS_SERVICE_REPLICAS_REPLICAS_INTERNAL_H
#define KELP_PS_SERVICE_REPLICAS_REPLICAS_INTERNAL_H

#include "ps/service/map_internal.h"
#include "ps/service/replicas/peers.h"

struct kelp__service_link;      /* from here to a follower */
struct kelp__service_following; /* from a primary to here */

/* A copy that is wanted. */
struct service_wish {
    uint32_t partition;
    uint64_t process;
    size_t bytes;
};

/* How far the newest copy of a partition is. */
struct service_copying {
    atomic_size_t sent;
    atomic_size_t total; /* 0: none was wanted */
};

struct kelp__service_replicas {
    pthread_mutex_t lock;
    struct kelp__service_link *links;
    struct kelp__service_following *followings;
    struct kelp__service_peers *peers; /* how the other ends of both do */
    struct kelp_rpc_timer *timer;      /* while there is any of both, and then for good */
    bool closing;
    atomic_uint streams;                /* of links, until they have closed */
    atomic_uint_fast64_t stream_serial; /* the newest of streams of both kinds */

    /* Copies: one at a time begins, and one over each link. */
    struct service_wish *wishes;
    size_t wish_count;
    size_t wish_capacity;
    struct service_copying copying[KELP_PARTITIONS_MAX];
    uint64_t next_copy_us; /* not before */
    atomic_bool posted;    /* look() is on its way */

    pthread_mutex_t look_lock;        /* one look at a time; taken outside all others */
    struct kelp_shard_replica *fresh; /* look_lock: KELP_PARTITIONS_MAX */
    uint64_t looked_us;               /* look_lock */

    /* control_lock guards the rest: what reports say. */
    struct kelp_shard_replica *rows; /* KELP_PARTITIONS_MAX */
    size_t row_count;
};

/* authors.c: a worker by a primary's number and ours; KELP_PS_AUTHORS_MAX of them. */
struct service_author {
    uint32_t theirs; /* 0: nobody */
    uint32_t ours;
};
/* A name came; shard: from where. *authors is made when it is NULL; free(). */
kelp_status kelp__service_author_take(struct kelp_service *service, struct service_author **authors,
                                      const Kelp__V1__Author *author, const char *shard,
                                      struct kelp_error *reterr) KELP_MUST_USE;
/* Into the `index`-th place of the item, which has room. */
void kelp__service_claim_put(const struct kelp_node_claim *claim, size_t index,
                             Kelp__V1__Forward *item);
/* What comes with a root; authors may be NULL. item->n_claim_node of them. */
kelp_status kelp__service_claims_read(const struct service_author *authors,
                                      const Kelp__V1__Forward *item,
                                      struct kelp_node_claim claims[KELP_PS_EVIDENCE_TOLD_MAX],
                                      struct kelp_error *reterr) KELP_MUST_USE;

/* What comes with a copy; free(). */
kelp_status kelp__service_known_read(const struct service_author *authors,
                                     const Kelp__V1__CopyState *state,
                                     struct kelp_forward **ret_known,
                                     struct kelp_error *reterr) KELP_MUST_USE;

/* Look soon at links, and what is to be copied and reported. Any thread, inside any lock. */
void kelp__service_replicas_hurry(struct kelp_service *service);
/* The timer that does so every KELP_PS_REPLICA_TICK_MS runs from now on. */
void kelp__service_replicas_tick(struct kelp_service *service);
/* links.c: connect what is not, ask those that are whether they live, and give up those
 * that do not say so. passed_ms: since the last time, as far as we listened. */
void kelp__service_links_tick(struct kelp_service *service, uint64_t now_us, uint32_t passed_ms);
void kelp__service_links_stop(struct kelp_service *service);
/* Could a copy to this process leave now? */
bool kelp__service_links_idle(struct kelp_service *service, uint64_t process);
/* copies.c: the next copy, if its time has come. */
void kelp__service_copies_tick(struct kelp_service *service, uint64_t now_us);

#endif

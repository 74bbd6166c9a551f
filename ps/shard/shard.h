/*
 * The shell around the partitions of one shard: it holds tensor memory and locks, and carries out
 * the actions of the pure partitions. It compares no step, version, generation or map epoch itself.
 *
 * One generation's partitions, weights and gradients are one `struct kelp_hosting`
 * (ps/shard/hosting.h), prepared while the previous one is still served, and installed atomically.
 *
 * Threads: any. A partition is locked while it handles an event, and events of different partitions
 * run in parallel. The events below are called on the caller's thread, while the partition is
 * locked; they must not call back into the shard.
 */
#ifndef KELP_PS_SHARD_SHARD_H
#define KELP_PS_SHARD_SHARD_H

#include "common/job/job.h"
#include "common/log/trace.h"
#include "proto/wire.h"
#include "ps/core/partition/partition.h"
#include "ps/core/partition/standing.h"
#include "ps/shard/hosting.h"
#include "ps/shard/tensors/capture.h"
#include "ps/shard/tensors/extent.h"
#include "ps/shard/tensors/gradient.h"
#include "ps/shard/tensors/replica_copy.h"

struct kelp_shard;

/* The answer to one pull. */
struct kelp_shard_answer {
    uint32_t partition;
    uint64_t map_epoch;
    struct kelp_answer core; /* core.send: with weights */
    /* With weights: `bytes` of them. Lent: the receiver owns `loan`, kelp_extent_return(). Not
     * lent: borrowed until the event returns. */
    bool lent;
    struct kelp_extent_loan loan;
    const void *weights;
    size_t bytes;
};

/* A root for a follower. */
struct kelp_shard_root {
    uint32_t partition;
    uint64_t process;                   /* the follower */
    const struct kelp_forward *forward; /* its handle is lent: see loan */
    bool lent;                          /* with values; the receiver owns the loan */
    struct kelp_gradients_loan loan;
};

/* Asks a follower what it has. */
struct kelp_shard_question {
    uint32_t partition;
    uint64_t process; /* the follower */
    uint64_t generation;
    uint64_t map_epoch;
};

/* A push of a training step to partition 0, and its delay, for status and metrics. */
struct kelp_shard_work {
    uint32_t author;
    uint32_t lanes; /* that were accepted; 0: a duplicate */
    bool timed;     /* of the newest step: the following members are set */
    uint64_t version;
    uint64_t behind_us; /* after the first push of its step */
};

struct kelp_shard_events {
    void (*answer)(const struct kelp_shard_answer *answer, void *turn, void *user);
    void (*refused)(uint32_t partition, const struct kelp_refusal *refusal, void *turn, void *user);
    /* Partition 0 completed an entry. word: of the next entry; best: the best evaluation so far, or
     * NULL. */
    void (*record)(const struct kelp_record *record, const struct kelp_control_word *word,
                   const struct kelp_best *best, void *user);
    /* Ask a requester to compute lanes of a late entry. */
    void (*offer)(uint32_t partition, uint64_t map_epoch, const struct kelp_offer *offer,
                  void *turn, void *user);
    /* Partition 0 received lanes from an author. */
    void (*worked)(const struct kelp_shard_work *work, void *user);
    /* A training step is complete in a partition that is led here, and its weights can be pulled.
     * since_us: time of its first push, as now_us of a turn. */
    void (*stepped)(uint32_t partition, uint64_t since_us, void *user);
    /* Two workers differ where honest ones cannot. */
    void (*conflict)(uint32_t partition, const struct kelp_conflict *conflict, void *user);
    /* A partition captured its state for the snapshot of this ticket; return false if it is no
     * longer wanted. word: of the saved version, from partition 0; NULL from others. */
    bool (*snapshot_taken)(uint64_t ticket, uint32_t partition,
                           const struct kelp_control_word *word, void *user);
    /* Replication (ps/core/partition_events.h). process: the receiver. */
    void (*forward)(const struct kelp_shard_root *root, void *turn, void *user);
    void (*ask)(const struct kelp_shard_question *question, void *turn, void *user);
    void (*acknowledge)(uint32_t partition, uint64_t process,
                        const struct kelp_acknowledgement *said, void *turn, void *user);
    /* Call kelp_shard_copy() when it is this partition's turn. */
    void (*want_copy)(uint32_t partition, uint64_t process, size_t bytes, void *user);
    /* A follower's weights differ from this primary's, which cannot continue. */
    void (*differs)(uint32_t partition, const struct kelp_difference *difference, void *user);
    /* A copy is complete here; these records of its last piece precede records from now on. */
    void (*copied)(uint32_t partition, const void *records, void *user);
    /* The receiver owns the copy: kelp_replica_copy_unref(). */
    void (*copy)(struct kelp_replica_copy *copy, uint64_t process, void *user);
    /* The result of kelp_shard_replicas() has changed; the leader waits for it. */
    void (*in_sync)(uint32_t partition, void *user);
    void (*snapshot_past)(uint64_t ticket, uint64_t step, void *user);
    void (*snapshot_failed)(uint64_t ticket, kelp_status status, const char *text, void *user);
    /* A partition cannot continue: KELP_ERR_INVALID (its gradient was not finite, nothing was
     * applied) or KELP_ERR_NO_MEMORY. */
    void (*failed)(uint32_t partition, kelp_status status, const char *text, void *user);
};

/* Scratch memory for one thread at a time; zero-initialised, reused for any number of calls. */
struct kelp_shard_turn {
    struct kelp_actions actions;
    uint64_t now_us; /* when the turn began, CLOCK_MONOTONIC; 0: unknown */
    uint64_t step;   /* in progress, for a trace */
    void *user;      /* passed to the events as `turn` */
};
void kelp_shard_turn_fini(struct kelp_shard_turn *turn);

/* job and events are borrowed for the shard's life. *ret_shard is owned. */
kelp_status kelp_shard_create(const struct kelp_job *job, const struct kelp_shard_events *events,
                              void *user, struct kelp_shard **ret_shard,
                              struct kelp_error *reterr) KELP_MUST_USE;
/* No call may be in progress. NULL does nothing. */
void kelp_shard_destroy(struct kelp_shard *shard);

/* Trace what it does; borrowed for its life. Before anything is served. */
void kelp_shard_trace(struct kelp_shard *shard, struct kelp_trace *trace);

/* ---- generations ---- */

/* Serve this hosting (transferred); pulls that wait in the previous one are answered with
 * KELP_ERR_OLD_GENERATION. */
void kelp_shard_install(struct kelp_shard *shard, struct kelp_hosting *hosting,
                        struct kelp_shard_turn *turn);

/*
 * Apply a newer map of the generation that is served; any other is ignored. places: all partitions
 * in which this process has a role. New ones are added as joiners; those that are not named are
 * removed, and pulls that wait there are answered with KELP_ERR_NOT_PRIMARY. The memory of a
 * removed partition stays while messages and captures hold it. Unchanged partitions wait at most
 * for a pointer to be set.
 */
void kelp_shard_enter(struct kelp_shard *shard, uint64_t generation,
                      const struct kelp_hosting_place *places, uint32_t place_count,
                      struct kelp_shard_turn *turn);

/* ---- replication: ps/core/partition/replication.h ---- */

enum kelp_replica_link {
    KELP_REPLICA_LINK_FOLLOWER, /* from here to a follower */
    KELP_REPLICA_LINK_PRIMARY,  /* from a primary to here */
};
/* A stream to another process, or from it. */
struct kelp_shard_link {
    enum kelp_replica_link kind;
    uint64_t process;
    uint64_t serial; /* counts the streams of this process, from 1: a newer one replaces an older */
};
/* The link is up, or broken; the end of a replaced stream changes nothing. Valid across
 * generations.
 */
void kelp_shard_linked(struct kelp_shard *shard, const struct kelp_shard_link *link, bool is_up,
                       struct kelp_shard_turn *turn);

/* Primary: an acknowledgement of the follower said->process. */
void kelp_shard_acknowledged(struct kelp_shard *shard, uint32_t partition,
                             const struct kelp_acknowledgement *said, struct kelp_shard_turn *turn);
/* Primary: copy this partition now. */
void kelp_shard_copy(struct kelp_shard *shard, uint32_t partition, uint64_t process,
                     struct kelp_shard_turn *turn);

/* Follower: the primary asks what it has. */
void kelp_shard_asked(struct kelp_shard *shard, uint32_t partition, uint64_t generation,
                      uint64_t map_epoch, struct kelp_shard_turn *turn);

/* Follower: a received root; the shard sets forward.handle from the payload. */
struct kelp_shard_forwarded {
    uint32_t partition;
    uint64_t process; /* the sender; roots of others than the primary are not applied */
    struct kelp_forward forward;
    const struct kelp_wire_payload *payload; /* offset + length lie inside it */
    uint64_t offset;
    uint64_t length; /* bytes */
};
/* Errors: KELP_ERR_FORMAT (length is neither 0 nor the partition's), KELP_ERR_NO_MEMORY. */
kelp_status kelp_shard_forwarded(struct kelp_shard *shard,
                                 const struct kelp_shard_forwarded *forwarded,
                                 struct kelp_shard_turn *turn,
                                 struct kelp_error *reterr) KELP_MUST_USE;

/* Follower: a received piece of a copy. */
struct kelp_shard_piece {
    uint32_t partition;
    uint64_t process;
    struct kelp_copy_piece core; /* the shard sets is_first */
    uint32_t kind;               /* KELP_REPLICA_WEIGHTS, … */
    uint64_t position;
    const struct kelp_wire_payload *payload; /* offset + length lie inside it */
    uint64_t offset;
    uint64_t length;
    const struct kelp_replica_state *state; /* with the last piece; else NULL */
    const void *records;                    /* for the event `copied` */
};
/* Errors: KELP_ERR_FORMAT (not the next piece, or beyond the partition's memory),
 * KELP_ERR_NO_MEMORY. */
kelp_status kelp_shard_fill(struct kelp_shard *shard, const struct kelp_shard_piece *piece,
                            struct kelp_shard_turn *turn, struct kelp_error *reterr) KELP_MUST_USE;

/* A report to the leader about a partition that has followers. */
struct kelp_shard_replica {
    uint32_t partition;
    uint64_t map_epoch;
    uint64_t held; /* applied */
    struct kelp_replication_view view;
};
/* Reports on all partitions whose primary is here, at most max; returns how many. */
size_t kelp_shard_replicas(struct kelp_shard *shard, struct kelp_shard_replica *ret_replicas,
                           size_t max);

/* ---- the data path ---- */

/* A received node; the shard sets push.handle from the payload. */
struct kelp_shard_push {
    uint32_t partition;
    struct kelp_push push;
    const struct kelp_wire_payload *payload; /* offset + length lie inside it */
    uint64_t offset;
    uint64_t length; /* bytes */
};

/* Errors: KELP_ERR_INVALID (no such partition, or length is neither 0 nor the partition's: the peer
 * has another model), KELP_ERR_NO_MEMORY. Refusals are events. */
kelp_status kelp_shard_push(struct kelp_shard *shard, const struct kelp_shard_push *push,
                            struct kelp_shard_turn *turn, struct kelp_error *reterr) KELP_MUST_USE;
kelp_status kelp_shard_pull(struct kelp_shard *shard, uint32_t partition,
                            const struct kelp_pull *pull, struct kelp_shard_turn *turn,
                            struct kelp_error *reterr) KELP_MUST_USE;
/* Another partition's share of a decision, brought to partition 0. Refusals are events. */
kelp_status kelp_shard_share(struct kelp_shard *shard, const struct kelp_share_push *push,
                             struct kelp_shard_turn *turn, struct kelp_error *reterr) KELP_MUST_USE;
/* Remove the requester everywhere; afterwards no event names it. */
void kelp_shard_drop(struct kelp_shard *shard, uint64_t requester);

/*
 * The requester accepts offers although it waits for no weights, or no longer does. Valid across
 * generations. Errors: KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_shard_spare(struct kelp_shard *shard, const struct kelp_cover_candidate *spare,
                             bool helps) KELP_MUST_USE;
/* Offer missing lanes of late entries, at turn->now_us. *ret_next_us: when to call again;
 * UINT64_MAX: not before a message arrives. */
void kelp_shard_tick(struct kelp_shard *shard, struct kelp_shard_turn *turn, uint64_t *ret_next_us);

/* ---- snapshots ---- */

/* Pass the order (its serial is the ticket, ps/core/snapshot/snapshot.h) to these partitions. The
 * outcome is reported by events. */
void kelp_shard_snapshot(struct kelp_shard *shard, const struct kelp_snapshot_order *order,
                         const uint32_t *partitions, size_t count, struct kelp_shard_turn *turn);
/* Allocate the buffers that a snapshot will need, so that training need not. */
void kelp_shard_snapshot_prepare(struct kelp_shard *shard);
/*
 * Take the state that the partition captured for this ticket. *ret_capture is owned
 * (kelp_capture_release()), and does not change any more. The partition is locked at most for a
 * copy in memory. Errors: KELP_ERR_NOT_FOUND (discarded), KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_shard_snapshot_part(struct kelp_shard *shard, uint64_t ticket, uint32_t partition,
                                     struct kelp_capture *ret_capture,
                                     struct kelp_error *reterr) KELP_MUST_USE;
/* Release what was captured for this ticket and earlier ones. */
void kelp_shard_snapshot_discard(struct kelp_shard *shard, uint64_t ticket);

/* ---- status ---- */

/* Since the shard was created, including removed partitions. */
struct kelp_shard_counts {
    uint64_t pushes;
    uint64_t duplicates;
    uint64_t refusals;
    uint64_t offers; /* lanes offered */
};

struct kelp_shard_view {
    uint64_t generation;
    uint32_t partition_count;
    uint32_t partitions[KELP_PARTITIONS_MAX];
    uint32_t led_count; /* of those whose primary is here */
    uint32_t led[KELP_PARTITIONS_MAX];
    uint64_t step; /* the lowest of its partitions */
    bool has_word; /* it is the primary of partition 0 */
    struct kelp_control_word word;
    struct kelp_best best; /* partition 0: when known */
    uint64_t pushes;
    uint64_t duplicates;
    uint64_t refusals;
    uint64_t waiting;
    uint64_t offers; /* lanes offered, in this generation */
    struct kelp_shard_counts counts;
    uint64_t pending; /* nodes that wait for their siblings */
    uint64_t lag;     /* versions that the slowest backup of a partition led here is behind */
};
void kelp_shard_view(struct kelp_shard *shard, struct kelp_shard_view *ret_view);
/* The lowest and highest step of partitions whose primary is here. They are read one after the
 * other. */
void kelp_shard_standing(struct kelp_shard *shard, struct kelp_standing *ret_standing);

#endif

/*
 * The shell around the partitions of one shard: tensor memory, locks, and the carrying out of what
 * the pure partitions ask for. It compares no step, version, generation or map epoch itself.
 *
 * One generation's partitions, weights and gradients are one `struct kelp_hosting`
 * (ps/shard/hosting.h), prepared while the one before it is still served, and installed at once.
 *
 * Threads: any; a partition is locked while an event runs through it, and events of different
 * partitions run in parallel. What a call causes is reported through the events below, on the
 * caller's thread, while the partition is locked: they must not call back into the shard.
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
    struct kelp_answer core; /* core.send tells whether there are weights */
    /* With weights: `bytes` of them. Lent: `loan` is the receiver's, to be given back with
     * kelp_extent_return(). Not lent: valid until the event returns, to be copied. */
    bool lent;
    struct kelp_extent_loan loan;
    const void *weights;
    size_t bytes;
};

/* A root for a follower. */
struct kelp_shard_root {
    uint32_t partition;
    uint64_t process;                   /* to whom */
    const struct kelp_forward *forward; /* its handle has been lent: see loan */
    bool lent;                          /* there are values; the loan is the receiver's */
    struct kelp_gradients_loan loan;
};

/* A follower is asked what it has. */
struct kelp_shard_question {
    uint32_t partition;
    uint64_t process; /* to whom */
    uint64_t generation;
    uint64_t map_epoch;
};

/* A push to partition 0, of a training step: when it came matters to whoever watches. */
struct kelp_shard_work {
    uint32_t author;
    uint32_t lanes; /* that were taken; 0: it was a duplicate */
    bool timed;     /* of the newest step: what follows is known */
    uint64_t version;
    uint64_t behind_us; /* the first push of its step */
};

struct kelp_shard_events {
    void (*answer)(const struct kelp_shard_answer *answer, void *turn, void *user);
    void (*refused)(uint32_t partition, const struct kelp_refusal *refusal, void *turn, void *user);
    /* Partition 0 completed an entry; word is that of the next one, best (NULL: none) the best
     * evaluation up to here. */
    void (*record)(const struct kelp_record *record, const struct kelp_control_word *word,
                   const struct kelp_best *best, void *user);
    /* Ask a requester to compute lanes of a late entry. */
    void (*offer)(uint32_t partition, uint64_t map_epoch, const struct kelp_offer *offer,
                  void *turn, void *user);
    /* Partition 0 got lanes from an author. */
    void (*worked)(const struct kelp_shard_work *work, void *user);
    /* A training step is complete in a partition that is led here, and its weights can be pulled.
     * since_us: when the first push of it came, as now_us of a turn. */
    void (*stepped)(uint32_t partition, uint64_t since_us, void *user);
    /* Two workers said different things where honest ones cannot. */
    void (*conflict)(uint32_t partition, const struct kelp_conflict *conflict, void *user);
    /* A partition keeps its state for the snapshot of this ticket; false: nobody wants it any more.
     * word: of the version that is saved, from partition 0; NULL from others. */
    bool (*snapshot_taken)(uint64_t ticket, uint32_t partition,
                           const struct kelp_control_word *word, void *user);
    /* Of replication (ps/core/partition_events.h). process: to whom. */
    void (*forward)(const struct kelp_shard_root *root, void *turn, void *user);
    void (*ask)(const struct kelp_shard_question *question, void *turn, void *user);
    void (*acknowledge)(uint32_t partition, uint64_t process,
                        const struct kelp_acknowledgement *said, void *turn, void *user);
    /* kelp_shard_copy() when it is this partition's turn. */
    void (*want_copy)(uint32_t partition, uint64_t process, size_t bytes, void *user);
    /* A follower has other weights than this primary, which cannot go on. */
    void (*differs)(uint32_t partition, const struct kelp_difference *difference, void *user);
    /* A copy is complete here: these records of its piece come before what is recorded from now on.
     */
    void (*copied)(uint32_t partition, const void *records, void *user);
    /* The copy is the receiver's: kelp_replica_copy_unref(). */
    void (*copy)(struct kelp_replica_copy *copy, uint64_t process, void *user);
    /* What kelp_shard_replicas() tells has changed: the leader waits for it. */
    void (*in_sync)(uint32_t partition, void *user);
    void (*snapshot_past)(uint64_t ticket, uint64_t step, void *user);
    void (*snapshot_failed)(uint64_t ticket, kelp_status status, const char *text, void *user);
    /* A partition cannot go on: KELP_ERR_INVALID (its gradient was not finite: nothing was
     * applied) or KELP_ERR_NO_MEMORY. */
    void (*failed)(uint32_t partition, kelp_status status, const char *text, void *user);
};

/* Scratch memory of one thread at a time; zeroed at first, reused for any number of calls. */
struct kelp_shard_turn {
    struct kelp_actions actions;
    uint64_t now_us; /* when the turn began, CLOCK_MONOTONIC; 0: unknown */
    uint64_t step;   /* for a trace: of what is worked on */
    void *user;      /* handed to the events as `turn` */
};
void kelp_shard_turn_fini(struct kelp_shard_turn *turn);

/* job and events are borrowed for the shard's life. Owned. */
kelp_status kelp_shard_create(const struct kelp_job *job, const struct kelp_shard_events *events,
                              void *user, struct kelp_shard **ret_shard,
                              struct kelp_error *reterr) KELP_MUST_USE;
/* Nobody is inside a call. NULL does nothing. */
void kelp_shard_destroy(struct kelp_shard *shard);

/* Trace what it does; borrowed for its life. Before anything is served. */
void kelp_shard_trace(struct kelp_shard *shard, struct kelp_trace *trace);

/* ---- generations ---- */

/* Serve it (transferred); pulls that wait in the one before are answered
 * KELP_ERR_OLD_GENERATION. */
void kelp_shard_install(struct kelp_shard *shard, struct kelp_hosting *hosting,
                        struct kelp_shard_turn *turn);

/*
 * A newer map of the generation that is served; another one is ignored. places: all partitions that
 * this process has a part in. Those that it has not hosted come, as joiners; those that are not
 * named leave, and who waits there is answered KELP_ERR_NOT_PRIMARY. Memory of one that leaves
 * stays as long as messages and captures hold it. The data paths of partitions that stay as they
 * are wait for a pointer to be set at most.
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
/* That link is up, or broken: the end of a stream that was replaced changes nothing. Holds over
 * generations. */
void kelp_shard_linked(struct kelp_shard *shard, const struct kelp_shard_link *link, bool is_up,
                       struct kelp_shard_turn *turn);

/* Primary: what the follower said->process says. */
void kelp_shard_acknowledged(struct kelp_shard *shard, uint32_t partition,
                             const struct kelp_acknowledgement *said, struct kelp_shard_turn *turn);
/* Primary: the turn of this partition's copy has come. */
void kelp_shard_copy(struct kelp_shard *shard, uint32_t partition, uint64_t process,
                     struct kelp_shard_turn *turn);

/* Follower: it is asked. */
void kelp_shard_asked(struct kelp_shard *shard, uint32_t partition, uint64_t generation,
                      uint64_t map_epoch, struct kelp_shard_turn *turn);

/* Follower: a root as it came in; forward.handle is set here, from the payload. */
struct kelp_shard_forwarded {
    uint32_t partition;
    uint64_t process; /* from whom: what does not come from the primary is not applied */
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

/* Follower: a piece of a copy as it came in. */
struct kelp_shard_piece {
    uint32_t partition;
    uint64_t process;
    struct kelp_copy_piece core; /* is_first is set here */
    uint32_t kind;               /* KELP_REPLICA_WEIGHTS, … */
    uint64_t position;
    const struct kelp_wire_payload *payload; /* offset + length lie inside it */
    uint64_t offset;
    uint64_t length;
    const struct kelp_replica_state *state; /* with the last piece; else NULL */
    const void *records;                    /* for the event `copied` */
};
/* Errors: KELP_ERR_FORMAT (not the piece that follows the one before, or beyond the partition's
 * memory), KELP_ERR_NO_MEMORY. */
kelp_status kelp_shard_fill(struct kelp_shard *shard, const struct kelp_shard_piece *piece,
                            struct kelp_shard_turn *turn, struct kelp_error *reterr) KELP_MUST_USE;

/* What the leader is to know of a partition that has followers. */
struct kelp_shard_replica {
    uint32_t partition;
    uint64_t map_epoch;
    uint64_t held; /* what is applied */
    struct kelp_replication_view view;
};
/* Of all partitions whose primary is here; at most max. */
size_t kelp_shard_replicas(struct kelp_shard *shard, struct kelp_shard_replica *ret_replicas,
                           size_t max);

/* ---- the data path ---- */

/* A pushed node as it came in: push.handle is set here, from the payload. */
struct kelp_shard_push {
    uint32_t partition;
    struct kelp_push push;
    const struct kelp_wire_payload *payload; /* offset + length lie inside it */
    uint64_t offset;
    uint64_t length; /* bytes */
};

/* Errors: KELP_ERR_INVALID (no such partition, or length is neither 0 nor the partition's: the peer
 * means another model), KELP_ERR_NO_MEMORY. Refusals are events. */
kelp_status kelp_shard_push(struct kelp_shard *shard, const struct kelp_shard_push *push,
                            struct kelp_shard_turn *turn, struct kelp_error *reterr) KELP_MUST_USE;
kelp_status kelp_shard_pull(struct kelp_shard *shard, uint32_t partition,
                            const struct kelp_pull *pull, struct kelp_shard_turn *turn,
                            struct kelp_error *reterr) KELP_MUST_USE;
/* Another partition's share of a decision, brought to partition 0. Refusals are events. */
kelp_status kelp_shard_share(struct kelp_shard *shard, const struct kelp_share_push *push,
                             struct kelp_shard_turn *turn, struct kelp_error *reterr) KELP_MUST_USE;
/* Forget the requester everywhere; afterwards no event names it. */
void kelp_shard_drop(struct kelp_shard *shard, uint64_t requester);

/*
 * The requester takes offers although it waits for nothing, or does so no longer. Holds over
 * generations. Errors: KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_shard_spare(struct kelp_shard *shard, const struct kelp_cover_candidate *spare,
                             bool helps) KELP_MUST_USE;
/* Offer what is missing of late entries, at turn->now_us. *ret_next_us: when to do it again;
 * UINT64_MAX: not before somebody sent a message. */
void kelp_shard_tick(struct kelp_shard *shard, struct kelp_shard_turn *turn, uint64_t *ret_next_us);

/* ---- snapshots ---- */

/* Hand the order (its serial is the ticket, ps/core/snapshot/snapshot.h) to these partitions. What
 * comes of it are events. */
void kelp_shard_snapshot(struct kelp_shard *shard, const struct kelp_snapshot_order *order,
                         const uint32_t *partitions, size_t count, struct kelp_shard_turn *turn);
/* Buffers for what the partitions will have to copy, so that training finds them in place. */
void kelp_shard_snapshot_prepare(struct kelp_shard *shard);
/*
 * The state that the partition keeps for this ticket, from now on the caller's, to be given back
 * with kelp_capture_release(): nothing changes it any more. The partition is locked for a copy in
 * memory at most. Errors: KELP_ERR_NOT_FOUND (discarded), KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_shard_snapshot_part(struct kelp_shard *shard, uint64_t ticket, uint32_t partition,
                                     struct kelp_capture *ret_capture,
                                     struct kelp_error *reterr) KELP_MUST_USE;
/* Let go of what is kept for this ticket and those before it. */
void kelp_shard_snapshot_discard(struct kelp_shard *shard, uint64_t ticket);

/* ---- status ---- */

/* Since the shard was created, of partitions that have left too. */
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
    uint64_t lag;     /* versions that a backup of what is led here is behind, the most */
};
void kelp_shard_view(struct kelp_shard *shard, struct kelp_shard_view *ret_view);
/* How far apart the partitions are whose primary is here. They are looked at one after the other.
 */
void kelp_shard_standing(struct kelp_shard *shard, struct kelp_standing *ret_standing);

#endif

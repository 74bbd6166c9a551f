/*
 * Replication of one partition: the primary's knowledge of its followers, and the roots that both
 * sides keep. Pure; a part of ps/core/partition/partition.h, which has the events and phases.
 *
 * A map entry names a primary, perhaps a backup, and perhaps a joiner. Every change of it has a map
 * epoch of its own, and statements made in one epoch count only in that epoch.
 *
 *  1. The primary forwards the root of an entry before it applies it. It keeps the newest root
 *     until the next one, and so does a follower, so that whichever is promoted can bring the
 *     others up to date.
 *  2. A follower says in each epoch what it has, at once or when the apply in progress is done, and
 *     again after each root. It applies only the root of its own state, and refuses other epochs:
 *     the map of a newer one is on its way from the leader.
 *  3. A version is visible when every follower that counts has acknowledged it in the primary's own
 *     epoch. The backup always counts. The joiner counts once it has acknowledged, in this epoch,
 *     what the primary has *applied*; at that moment the primary reports it to the leader as in
 *     sync, for this epoch. A primary never drops a follower by itself.
 *  4. A joiner that is at most one root behind gets the kept root. Any other gets a copy, taken
 *     when applied equals visible, with both weight buffers, and all roots from then on. It keeps
 *     those that arrive before the copy is complete. At most KELP_PS_FORWARDS_QUEUED_MAX are in
 *     flight; then the next entry waits.
 *  5. A broken link has lost what was in flight. When it is up again the follower says what it has,
 *     and continues from there; a copy starts over.
 *
 * tests/model has these rules as a model, and shows what happens without each.
 */
#ifndef KELP_PS_CORE_PARTITION_REPLICATION_H
#define KELP_PS_CORE_PARTITION_REPLICATION_H

#include "ps/core/limits.h"
#include "ps/core/partition_events.h"

/* The kept root of an entry. */
struct kelp_root {
    bool there;
    uint64_t held; /* of the state that it belongs to: applied, it makes held + 1 */
    struct kelp_control_word word;
    uint64_t handle; /* owned */
    bool skipped;
    char digest[33];
    double *sums; /* owned; KELP_METRIC_SUM_COUNT of them, or NULL: none are kept */
    uint32_t decision_count;
    double *decision; /* owned; NULL: the job decides nothing */
};

/* A follower, as its primary knows it. */
struct kelp_follower {
    uint64_t process; /* 0: none */
    bool stated;      /* it said what it has, in this epoch and over this link */
    bool holds;       /* in this epoch it said that it has `held`, or more */
    uint64_t held;
    bool counts;  /* a version is not visible without it */
    bool in_sync; /* and this was reported to the leader */
    bool streams; /* it gets all roots from the state `stream_from` on */
    uint64_t stream_from;
    bool sent;                  /* the newest root */
    struct kelp_content digest; /* of the weights of `held`; zeros: unknown */
    bool wants_copy;            /* WANT_COPY was emitted */
    bool may_copy;              /* its turn has come; the copy waits for the right moment */
};

struct kelp_replication;

/* with_sums: roots of partition 0. decision_max: most values of a decision. Errors:
 * KELP_ERR_NO_MEMORY. */
kelp_status kelp_replication_create(bool with_sums, uint32_t decision_max,
                                    struct kelp_replication **ret_replication) KELP_MUST_USE;
/* Handles that are still kept are forgotten: kelp_replication_clear() first. NULL does nothing. */
void kelp_replication_destroy(struct kelp_replication *replication);
/* Nothing is kept, and nobody follows. */
void kelp_replication_clear(struct kelp_replication *replication, struct kelp_actions *actions);

/* ---- the primary ---- */

/* The followers of a new epoch, of which nothing is known yet. Roots stay. */
void kelp_replication_enter(struct kelp_replication *replication, uint64_t backup, uint64_t joiner);
bool kelp_replication_alone(const struct kelp_replication *replication);
/* The `which`-th follower, from 0; NULL: no more. */
const struct kelp_follower *kelp_replication_follower(const struct kelp_replication *replication,
                                                      uint32_t which);
/* The link to this process changed: what was in flight is lost. False: nobody of ours. */
bool kelp_replication_linked(struct kelp_replication *replication, uint64_t process);
/* A statement of this generation and epoch; `applied` is what the primary has. False: nobody of
 * ours. */
bool kelp_replication_stated(struct kelp_replication *replication,
                             const struct kelp_acknowledgement *said, uint64_t applied);
/* Is the state `held` at every follower that counts? */
bool kelp_replication_covers(const struct kelp_replication *replication, uint64_t held);
/* Is there room at the joiner for the root of the state `held`? Else its entry has to wait. */
bool kelp_replication_may_forward(const struct kelp_replication *replication, uint64_t held);
/* The next follower that lacks the newest root, which it gets now. NULL: none. */
const struct kelp_follower *kelp_replication_serve(struct kelp_replication *replication);
/* The next follower that has what is applied, and was not reported: it counts from now on. NULL:
 * none. */
const struct kelp_follower *kelp_replication_count_in(struct kelp_replication *replication,
                                                      uint64_t applied);
/* The joiner, when it has come to need a copy: said once. NULL: it does not. */
const struct kelp_follower *kelp_replication_want_copy(struct kelp_replication *replication);
/* Its turn has come, unless it needs none any more. */
void kelp_replication_permit_copy(struct kelp_replication *replication, uint64_t process);
/* The joiner whose turn it is: it gets a copy of the state `held` now, and the roots from then on.
 * NULL: none. */
const struct kelp_follower *kelp_replication_begin_copy(struct kelp_replication *replication,
                                                        uint64_t held);

/* ---- roots, on both sides ---- */

/* The newest root, which replaces the one before. Its handle is transferred. */
void kelp_replication_keep(struct kelp_replication *replication, uint64_t held,
                           const struct kelp_forward *root, struct kelp_actions *actions);
/* None is kept: there was an entry without followers. */
void kelp_replication_drop_kept(struct kelp_replication *replication, struct kelp_actions *actions);
/* NULL: none. */
const struct kelp_root *kelp_replication_kept(const struct kelp_replication *replication);

/* Follower: a root that cannot be applied yet; false: no room, or it is there. The handle is
 * transferred when true. */
bool kelp_replication_queue(struct kelp_replication *replication, uint64_t held,
                            const struct kelp_forward *root);
/* The queued root of this state is kept from now on; older ones are released. False: it is not
 * there. */
bool kelp_replication_unqueue(struct kelp_replication *replication, uint64_t held,
                              struct kelp_actions *actions);
void kelp_replication_forget_queue(struct kelp_replication *replication,
                                   struct kelp_actions *actions);

/* ---- for reports, status pages and tests ---- */

struct kelp_replication_view {
    bool has_backup;
    bool has_joiner;
    bool backup_in_sync;  /* in this map epoch */
    bool joiner_in_sync;  /* likewise */
    uint64_t backup_held; /* acknowledged; 0: nothing yet */
    uint64_t joiner_held;
};
void kelp_replication_view(const struct kelp_replication *replication,
                           struct kelp_replication_view *ret_view);

#endif

/*
 * One partition as a pure state machine: events in, actions out (ps/core/partition_events.h;
 * docs/ARCHITECTURE.md, "The life of a step").
 *
 * The partition knows lanes, labels and control words, never tensor bytes: gradients are handles,
 * weights are labels of two buffers that the shell (ps/shard/shard.h) owns. The shell carries out
 * MERGE and APPLY on any thread or device, and reports their completion as events.
 *
 *             load                    root complete, TRAIN
 *    ABSENT ----------> COLLECTING ---------------------------> APPLYING
 *       ^ ^ ^               ^  |  <----- applied, finite ----------|
 *       | | |               |  | root complete, other kinds        | applied, not finite
 *       | | |               ----  (partition 0 only)               v
 *       | | ---------------------- unload ------------------------ FAILED
 *
 * If the steps of a job need a decision over all partitions (kelp_control_decides()), there are two
 * more phases between the complete root and the apply. MEASURING lasts until the shell has computed
 * the partition's share. DECIDING lasts until partition 0 has all shares; other partitions learn
 * the decision with the word of the next version. A skipped step goes from DECIDING to COLLECTING.
 * With failure.on_nan: stop, a gradient that is not finite leads from MEASURING to FAILED. With
 * skip, partition 0 goes from COLLECTING to FAILED at the end of an epoch if
 * kelp_control_gives_up(). Workers carry shares and words between partitions, in messages that they
 * send anyway.
 *
 * With followers (ps/core/partition/replication.h), a primary that has applied a step is SYNCING
 * until they have it too; then the version becomes visible. A follower is FILLING until it has a
 * copy, and then FOLLOWING, or APPLYING a forwarded root. Changes of the map entry lead
 *
 *    FOLLOWING ---------> SYNCING ----------> COLLECTING      promoted; shown when its own
 * followers ^                                        |           have stated that they have it
 *        ------------------------------------------           demoted
 *
 * while an APPLYING partition first completes its apply. Only a primary answers workers; one that
 * is SYNCING answers once the requested version is visible.
 *
 * Threads: one caller per partition at a time. No I/O, no clock, never blocks.
 * Errors:  KELP_ERR_NO_MEMORY; the partition is then unchanged. A mistake of a peer is not an error
 *          of the call, but a REFUSE action or the status of an ANSWER.
 */
#ifndef KELP_PS_CORE_PARTITION_PARTITION_H
#define KELP_PS_CORE_PARTITION_PARTITION_H

#include "common/job/job.h"
#include "common/training/plan.h"
#include "ps/core/lanes/cover.h"
#include "ps/core/partition/replication.h"
#include "ps/core/partition_events.h"

enum kelp_partition_phase {
    KELP_PARTITION_ABSENT,     /* nothing loaded: everything is refused */
    KELP_PARTITION_COLLECTING, /* nodes of the current entry are arriving */
    KELP_PARTITION_MEASURING,  /* the root is complete, the shell computes the share */
    KELP_PARTITION_DECIDING,   /* the decision about the step is awaited */
    KELP_PARTITION_APPLYING,   /* the root is complete, the shell computes the next weights */
    KELP_PARTITION_SYNCING,    /* applied, but not visible until the followers have it */
    KELP_PARTITION_FILLING,    /* a joiner that waits for its copy */
    KELP_PARTITION_FOLLOWING,  /* a follower that waits for the next root */
    KELP_PARTITION_FAILED,     /* the gradient was not finite, or partition 0 gave up: stays at this
                                  step until unloaded */
    KELP_PARTITION_PHASE_COUNT
};

/* The status of a message of generation `theirs` if `ours` is loaded (0: none): KELP_OK,
 * KELP_ERR_OLD_GENERATION, or KELP_ERR_BUSY (the map has not arrived here yet). */
kelp_status kelp_fence_generation(uint64_t ours, uint64_t theirs);

/* The replies of a shard that serves generation `ours` (0: none) for a partition that it does not
 * host: to a push or a share of a decision about the entry `version`, and to a pull. */
struct kelp_refusal kelp_refusal_not_hosted(uint64_t ours, uint64_t theirs, uint64_t requester,
                                            uint64_t version);
struct kelp_answer kelp_answer_not_hosted(uint64_t ours, const struct kelp_pull *pull);

/* ---- the machine ---- */

struct kelp_partition;

struct kelp_partition_config {
    uint32_t index;  /* partition 0 holds the control state */
    bool replicated; /* loaded with followers, or as one; later map entries may name them anyway */
    bool hollow;     /* its slice is empty (the last ones of a small model): no gradients */
    const struct kelp_job *job;   /* borrowed for the partition's life */
    const struct kelp_plan *plan; /* borrowed for the partition's life */
};

/* *ret_partition is owned; phase ABSENT. */
kelp_status kelp_partition_create(const struct kelp_partition_config *config,
                                  struct kelp_partition **ret_partition,
                                  struct kelp_error *reterr) KELP_MUST_USE;
/* Unload first: pending handles are leaked. NULL does nothing. */
void kelp_partition_destroy(struct kelp_partition *partition);

/* Start a generation, or join one; the phase must be ABSENT. */
void kelp_partition_load(struct kelp_partition *partition,
                         const struct kelp_partition_start *start);
/* End a generation: waiting pulls are answered with `status`, pending gradients released. A MERGE
 * or APPLY in progress may still report its completion afterwards. */
kelp_status kelp_partition_unload(struct kelp_partition *partition, kelp_status status,
                                  struct kelp_actions *actions) KELP_MUST_USE;

/*
 * Handle one pushed node: drop it (already covered, or of a completed entry), refuse it, or keep it
 * and merge it with its sibling, always left + right, up to the root; a complete root is applied.
 *
 * Refused with KELP_ERR_OLD_GENERATION, KELP_ERR_OLD_MAP_EPOCH, KELP_ERR_BUSY (a newer generation
 * or map epoch: the map has not arrived here yet), KELP_ERR_CONTROL_WORD, KELP_ERR_INVALID (lanes,
 * a later entry than the partition's, an empty node where there are samples, …).
 */
kelp_status kelp_partition_push(struct kelp_partition *partition, const struct kelp_push *push,
                                struct kelp_actions *actions) KELP_MUST_USE;

/*
 * Answer a pull now or keep it until it can be answered. A later pull of the same requester and
 * mode replaces one that waits, which is never answered then. Answered at once with
 * KELP_ERR_NOT_FOUND: weights that are not readable any more (current_step says where to start
 * over); KELP_ERR_OLD_GENERATION, KELP_ERR_OLD_MAP_EPOCH, KELP_ERR_BUSY (newer ones, or too many
 * wait), KELP_ERR_CONTROL_WORD, KELP_ERR_INVALID.
 */
kelp_status kelp_partition_pull(struct kelp_partition *partition, const struct kelp_pull *pull,
                                struct kelp_actions *actions) KELP_MUST_USE;

/* The MERGE of `token` is done; its result is `handle`. */
kelp_status kelp_partition_merged(struct kelp_partition *partition, uint64_t token, uint64_t handle,
                                  struct kelp_actions *actions) KELP_MUST_USE;

/* The COMPARE of `token` is done; the digest is `content`. */
kelp_status kelp_partition_compared(struct kelp_partition *partition, uint64_t token,
                                    const struct kelp_content *content,
                                    struct kelp_actions *actions) KELP_MUST_USE;

/* The APPLY of `token` is done; `finite` false: the gradient was not finite, nothing was applied.
 */
kelp_status kelp_partition_applied(struct kelp_partition *partition, uint64_t token, bool finite,
                                   struct kelp_actions *actions) KELP_MUST_USE;
/* Before that, if the action requests it: the digest of the next weights, which replicas compare.
 */
void kelp_partition_digested(struct kelp_partition *partition, uint64_t token,
                             const struct kelp_content *content);

/*
 * Ask for a snapshot. The SNAPSHOT action comes when the partition has completed order->step steps;
 * if that is so now, it comes at once, even during evaluations and when the job is done. PAST comes
 * if the partition is further, or already applies the next step. A later order replaces one that
 * waits. An order of another generation (ps/core/snapshot/snapshot.h fences them) and any order
 * while the partition is ABSENT are ignored. Unloading drops an order without an action.
 */
kelp_status kelp_partition_snapshot(struct kelp_partition *partition,
                                    const struct kelp_snapshot_order *order,
                                    struct kelp_actions *actions) KELP_MUST_USE;

/* The MEASURE of `token` gave `share`. If the share says that the gradient is not finite, the
 * partition fails, unless the job skips such steps. */
kelp_status kelp_partition_measured(struct kelp_partition *partition, uint64_t token,
                                    const struct kelp_decision_share *share,
                                    struct kelp_actions *actions) KELP_MUST_USE;

/* Partition 0: take in another partition's share of the current step. It is refused with the errors
 * of a push, and with KELP_ERR_INVALID if it differs from the share that came before. */
kelp_status kelp_partition_share(struct kelp_partition *partition,
                                 const struct kelp_share_push *push,
                                 struct kelp_actions *actions) KELP_MUST_USE;

/* ---- replication: ps/core/partition/replication.h has the rules ---- */

/* The map has a new entry for this partition, of the same generation. An older entry, or the same
 * one again, is ignored. KELP_REPLICA_NOBODY unloads the partition: waiting pulls are answered with
 * KELP_ERR_NOT_PRIMARY. */
kelp_status kelp_partition_enter(struct kelp_partition *partition,
                                 const struct kelp_replica_entry *entry,
                                 struct kelp_actions *actions) KELP_MUST_USE;
/* The link to a follower came up or broke; a follower reports the link to its primary as process 0.
 * After a load, all links that are up must be reported. */
kelp_status kelp_partition_linked(struct kelp_partition *partition, uint64_t process, bool is_up,
                                  struct kelp_actions *actions) KELP_MUST_USE;
/* Primary: an acknowledgement came from a follower. */
kelp_status kelp_partition_acknowledged(struct kelp_partition *partition,
                                        const struct kelp_acknowledgement *acknowledgement,
                                        struct kelp_actions *actions) KELP_MUST_USE;
/* Follower: its primary asks what it has. */
kelp_status kelp_partition_asked(struct kelp_partition *partition, uint64_t generation,
                                 uint64_t map_epoch, struct kelp_actions *actions) KELP_MUST_USE;
/* Follower: a FORWARD came. The partition takes over the handle, as with a push. */
kelp_status kelp_partition_forwarded(struct kelp_partition *partition,
                                     const struct kelp_forward *forward,
                                     struct kelp_actions *actions) KELP_MUST_USE;
/* Primary: the claims about the nodes of the entry with this word; to be called when its FORWARD is
 * carried out. Returns their number, at most KELP_PS_EVIDENCE_TOLD_MAX. */
uint32_t kelp_partition_claims(const struct kelp_partition *partition,
                               const struct kelp_control_word *word,
                               struct kelp_node_claim *ret_claims);
/* Primary: the same for the complete entry that is `back` entries behind the newest, when a COPY is
 * carried out. Returns 0 if nothing is known about it. */
uint32_t kelp_partition_known(const struct kelp_partition *partition, uint32_t back,
                              struct kelp_control_word *ret_word,
                              struct kelp_node_claim *ret_claims);
/* Primary: this partition's turn has come after its WANT_COPY. COPY follows at once, or as soon as
 * the applied state is visible; nothing follows if the joiner needs no copy any more. */
kelp_status kelp_partition_copy(struct kelp_partition *partition, uint64_t process,
                                struct kelp_actions *actions) KELP_MUST_USE;
/* Follower: a piece of a copy came. KELP_OK: the shell must write it into the partition's memory;
 * the former contents are gone. KELP_ERR_INVALID: the partition already has this state, or a copy
 * has begun on another stream since. KELP_ERR_FORMAT: the copy's first piece has not come. Or the
 * status of a fence. */
kelp_status kelp_partition_fill(struct kelp_partition *partition,
                                const struct kelp_copy_piece *piece,
                                struct kelp_actions *actions) KELP_MUST_USE;
/* Follower: the last piece came, and fill() has been called for it; weights and slots are in place.
 * KELP_ERR_INVALID: the partition cannot have such a state. */
kelp_status kelp_partition_filled(struct kelp_partition *partition,
                                  const struct kelp_copy_piece *piece,
                                  const struct kelp_replica_state *state,
                                  struct kelp_actions *actions) KELP_MUST_USE;

/* The requester is gone: drop its waiting pulls, and offer the lanes it was offered to others. */
void kelp_partition_drop(struct kelp_partition *partition, uint64_t requester);

/* Set the time for the events that follow, from any monotonic clock. Only offers depend on it. */
void kelp_partition_clock(struct kelp_partition *partition, uint64_t now_us);

/*
 * If the current entry is late, offer its missing lanes (ps/core/lanes/cover.h) to requesters whose
 * pull waits for the next entry, and to the spares: workers that wait for nothing and have said
 * that they would compute. Entries other than training steps are offered by partition 0 only.
 *
 * *ret_next_us: when to ask again; UINT64_MAX: not before another event.
 */
kelp_status kelp_partition_tick(struct kelp_partition *partition,
                                const struct kelp_cover_candidate *spares, size_t spare_count,
                                struct kelp_actions *actions, uint64_t *ret_next_us) KELP_MUST_USE;

/* ---- for status pages and tests ---- */

struct kelp_partition_view {
    enum kelp_partition_phase phase;
    uint64_t generation;
    uint64_t map_epoch;
    uint64_t step;
    uint64_t version; /* partitions other than 0: the newest that they have heard of */
    bool has_older;   /* weights of step - 1 are readable */
    uint32_t pending; /* nodes held */
    uint32_t waiting; /* pulls held */
    uint64_t pushes;
    uint64_t duplicates;
    uint64_t refusals;
    uint64_t offers; /* lanes offered */
    bool has_word;   /* partition 0: its current word */
    struct kelp_control_word word;
    enum kelp_replica_place place;
    uint64_t held; /* what is applied: ps/core/partition_events.h */
    struct kelp_replication_view replication;
};
void kelp_partition_view(const struct kelp_partition *partition,
                         struct kelp_partition_view *ret_view);

/* Partition 0: the best evaluation so far, borrowed until the next event; NULL: none, or another
 * partition. */
const struct kelp_best *kelp_partition_best(const struct kelp_partition *partition);

#endif

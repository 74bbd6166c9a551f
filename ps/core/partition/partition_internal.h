/* Shared by the files of the partition; nothing else includes it. */
#ifndef KELP_PS_CORE_PARTITION_PARTITION_INTERNAL_H
#define KELP_PS_CORE_PARTITION_PARTITION_INTERNAL_H

#include "ps/core/evidence/evidence.h"
#include "ps/core/lanes/cover.h"
#include "ps/core/lanes/reduction.h"
#include "ps/core/partition/decision.h"
#include "ps/core/partition/partition.h"

struct waiting_pull {
    uint64_t requester;
    uint64_t target; /* step or version, by mode */
    uint64_t held_step;
    uint64_t rank;
    enum kelp_pull_mode mode;
    bool holds;
};

struct kelp_partition {
    uint32_t index;
    uint32_t lanes;
    bool hollow;
    const struct kelp_job *job;
    const struct kelp_plan *plan;

    enum kelp_partition_phase phase;
    uint64_t generation;
    uint64_t map_epoch;
    enum kelp_replica_place place;
    struct kelp_replication *replication; /* NULL: it neither had a follower nor was one */
    struct kelp_copy_piece filling; /* FILLING: the first piece of the copy; stream 0: none came */
    struct kelp_weights_digest digest_of; /* the newest digest that was computed */
    bool is_applied;  /* SYNCING: the current entry is applied, and visible once all have it */
    bool is_skipped;  /* with is_applied: the entry was skipped */
    uint64_t step;    /* label of the current weights */
    uint64_t version; /* partition 0: of its control state; others: the newest they heard of */
    bool has_older;   /* weights of step - 1 are readable */

    /* The word of the current entry. Partition 0 derives it from its control state and always has
     * one; the others learn it from requests, and have none at the start of a step. */
    bool has_word;
    struct kelp_control_word word;
    uint32_t word_author;                /* others: author of the push that brought the word */
    bool word_disputed;                  /* another word came for the entry, and was reported */
    struct kelp_control_word older_word; /* partition 0: the TRAIN word that consumed w_{step-1} */
    struct kelp_control_state control;   /* partition 0 */
    char digest[33];                     /* partition 0: of w_v, from the node with lane 0 */

    struct kelp_reduction *reduction;
    struct kelp_evidence *evidence; /* NULL: workers may differ (cluster.mixed) */
    uint64_t apply_serial; /* counts applies and measures; the token of the one in progress */

    struct kelp_decision *decision; /* partition 0, in jobs that need decisions */
    uint32_t *share_authors;        /* with decision: author of each partition's share */
    /* Owned: the decision about the previous training step, or about the one being applied. */
    double *decided;
    uint32_t decided_count;  /* 0: no values; the step may have been skipped */
    uint32_t decision_count; /* values of a decision in this job */
    struct kelp_control_word
        heard; /* others: the word that came with the decision; version 0: none */
    uint32_t heard_author;
    /* Others, while lanes are still missing: word and decision about their current step. */
    struct kelp_control_word early_word; /* version 0: none */
    uint32_t early_author;
    double *early; /* owned; NULL for partition 0 and in jobs without decisions */
    bool has_share;
    uint64_t share_step; /* the step of `share`: the current one or the previous one */
    struct kelp_decision_share share;

    struct kelp_snapshot_order snapshot; /* the order that waits for its step; serial 0: none */

    struct waiting_pull *waiting; /* in order of arrival */
    size_t waiting_count;
    size_t waiting_capacity;

    uint64_t now_us;
    struct kelp_cover *cover;
    struct kelp_cover_candidate *candidates; /* workspace */
    size_t candidate_capacity;

    bool has_conflict; /* a conflict other than those that the evidence found */
    uint64_t pushes;
    uint64_t duplicates;
    uint64_t refusals;
    uint64_t offers;
};

/* partition.c: reserve room for all actions that one event may append, so that no event fails
 * half-way. */
kelp_status kelp__partition_reserve(const struct kelp_partition *partition,
                                    struct kelp_actions *actions) KELP_MUST_USE;
/* Check the generation and map epoch of a message; if they are not the partition's, *ret_why is
 * set.
 */
kelp_status kelp__partition_check_fences(const struct kelp_partition *partition,
                                         uint64_t generation, uint64_t map_epoch,
                                         const char **ret_why) KELP_MUST_USE;
/* Check whether a word for the current step of a partition other than 0 can be right; if not,
 * KELP_ERR_CONTROL_WORD. */
kelp_status kelp__partition_judge_word(const struct kelp_partition *partition,
                                       const struct kelp_control_word *word) KELP_MUST_USE;
/* A partition other than 0 takes over the word of the first push of its step. */
void kelp__partition_learn_word(struct kelp_partition *partition, const struct kelp_push *push);
void kelp__partition_move(struct kelp_partition *partition, enum kelp_partition_phase phase);

/* partition_entry.c. Partition 0: derive the word from the control state. */
void kelp__partition_derive_word(struct kelp_partition *partition);
/* After a node or a sum was added: go on if the entry's root is complete. */
void kelp__partition_after_reduction(struct kelp_partition *partition,
                                     struct kelp_actions *actions);
/* Have the shell compute the next weights from the root. */
void kelp__partition_begin_apply(struct kelp_partition *partition, uint64_t root,
                                 struct kelp_actions *actions);
/* The primary has applied its current entry, or has skipped it: show the result at once, or when
 * all followers have it. */
void kelp__partition_finish(struct kelp_partition *partition, bool skipped,
                            struct kelp_actions *actions);
/* The two halves of finish: move the state on by the current entry; show the state to workers. */
void kelp__partition_advance(struct kelp_partition *partition, bool skipped,
                             struct kelp_actions *actions);
void kelp__partition_show(struct kelp_partition *partition, struct kelp_actions *actions);
/* Begin the current entry, of which nothing has come yet. */
void kelp__partition_begin_entry(struct kelp_partition *partition);
/* Partition 0: whether the job ends here without being done. If so, the next entry is not
 * announced, and no snapshot is taken, because nothing can follow this state. */
bool kelp__partition_has_given_up(const struct kelp_partition *partition);

/* partition_replica.c. Primary: take the current entry's root out of the tree and send it to the
 * followers, before it is applied here. Without followers it does nothing. */
void kelp__partition_forward(struct kelp_partition *partition, bool skipped,
                             struct kelp_actions *actions);
/* Primary: do what followers need, and what their progress allows. */
void kelp__partition_replicate(struct kelp_partition *partition, struct kelp_actions *actions);
/* Whether the replicas compare the next weights. */
bool kelp__partition_wants_digest(const struct kelp_partition *partition);
/* Allocate what a map entry with other replicas needs. */
kelp_status kelp__partition_prepare_replicas(struct kelp_partition *partition) KELP_MUST_USE;
/* Check the generation and epoch of another replica's message. KELP_ERR_BUSY: they are newer, and
 * the leader is about to send the map. */
kelp_status kelp__partition_check_replica(const struct kelp_partition *partition,
                                          uint64_t generation, uint64_t map_epoch) KELP_MUST_USE;
/* Follower: acknowledge the state that it has; if it applies a root, it acknowledges afterwards. */
void kelp__partition_state_held(const struct kelp_partition *partition,
                                struct kelp_actions *actions);

/* partition_follow.c: the follower has applied the entry whose root it kept. */
void kelp__partition_followed(struct kelp_partition *partition, bool skipped,
                              struct kelp_actions *actions);
/* The follower's state differs from the primary's: it fails. */
void kelp__partition_diverge(struct kelp_partition *partition, struct kelp_actions *actions);

/* partition_decision.c. Partition 0: decide if all shares are there. */
void kelp__partition_decide_if_known(struct kelp_partition *partition,
                                     struct kelp_actions *actions);
/* A partition other than 0 gets the word of a later version, and with it the decision. */
void kelp__partition_hear_decision(struct kelp_partition *partition, const struct kelp_pull *pull,
                                   struct kelp_actions *actions);

/* partition_evidence.c: records what workers said, and compares it. A push was accepted. */
void kelp__partition_push_taken(struct kelp_partition *partition, const struct kelp_push *push,
                                struct kelp_actions *actions);
/* Call it after a node was added and after a merge in the tree; the second one before a merge. */
void kelp__partition_nodes_formed(struct kelp_partition *partition);
void kelp__partition_node_merged(struct kelp_partition *partition, uint64_t token, uint64_t handle,
                                 struct kelp_actions *actions);
/* A push was dropped; its handle is given up. */
void kelp__partition_push_dropped(struct kelp_partition *partition, const struct kelp_push *push,
                                  struct kelp_actions *actions);
/* A push was refused because of its word. */
void kelp__partition_word_differs(struct kelp_partition *partition, const struct kelp_push *push,
                                  struct kelp_actions *actions);
void kelp__partition_share_differs(struct kelp_partition *partition,
                                   const struct kelp_share_push *push,
                                   struct kelp_actions *actions);
/* Compare the decision that a pull tells with the one that was heard before. */
void kelp__partition_compare_decision(struct kelp_partition *partition,
                                      const struct kelp_pull *pull, struct kelp_actions *actions);
/* Compare the decision about the current step that a pull tells with what was heard before. */
void kelp__partition_compare_early(struct kelp_partition *partition, const struct kelp_pull *pull,
                                   struct kelp_actions *actions);
void kelp__partition_complete_evidence(struct kelp_partition *partition,
                                       const struct kelp_control_word *word, bool skipped,
                                       struct kelp_actions *actions);
/* Follower: take in the claims about an entry whose root came. */
void kelp__partition_hear_claims(struct kelp_partition *partition,
                                 const struct kelp_forward *forward, struct kelp_actions *actions);
/* Follower: the same for the entries before a copy. */
void kelp__partition_hear_known(struct kelp_partition *partition,
                                const struct kelp_replica_state *state,
                                struct kelp_actions *actions);
/* Whether the partition must stop, because a conflict was found and failure.on_conflict is stop. */
bool kelp__partition_must_stop(const struct kelp_partition *partition);
/* Call it at the end of an event: if the partition must stop and waits for workers, it is FAILED.
 */
void kelp__partition_stop_if_needed(struct kelp_partition *partition, struct kelp_actions *actions);

/* partition_snapshot.c: carry out the waiting order if it is due, or report that it is too late.
 * Call it when an order comes, and after each training step before anything of the next step. */
void kelp__partition_settle_snapshot(struct kelp_partition *partition,
                                     struct kelp_actions *actions);

/* partition_pull.c: answer the pulls that can be answered now; or answer all with `status`. */
void kelp__partition_answer_waiting(struct kelp_partition *partition, struct kelp_actions *actions);
void kelp__partition_end_waiting(struct kelp_partition *partition, kelp_status status,
                                 struct kelp_actions *actions);

static inline bool kelp__partition_holds_control(const struct kelp_partition *partition)
{
    return partition->index == 0;
}

/* How many entries it has completed, in the count by which replicas name a state. */
static inline uint64_t kelp__partition_held(const struct kelp_partition *partition)
{
    return kelp__partition_holds_control(partition) ? partition->version : partition->step;
}

/* Whether a version must be acknowledged by followers before it becomes visible. */
static inline bool kelp__partition_is_followed(const struct kelp_partition *partition)
{
    return partition->replication && !kelp_replication_alone(partition->replication);
}

static inline bool kelp__partition_may_forward(const struct kelp_partition *partition)
{
    return !partition->replication ||
           kelp_replication_may_forward(partition->replication, kelp__partition_held(partition));
}

static inline const struct kelp_root *kelp__partition_kept(const struct kelp_partition *partition)
{
    return partition->replication ? kelp_replication_kept(partition->replication) : NULL;
}

#endif

/* What the files of the partition share; nobody else includes it. */
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
    struct kelp_replication *replication; /* NULL: it never had a follower, nor was one */
    struct kelp_copy_piece filling; /* FILLING: the first piece of the copy; stream 0: none came */
    struct kelp_weights_digest digest_of; /* the newest that was computed */
    bool is_applied;  /* SYNCING: the current entry, which becomes visible when it is everywhere */
    bool is_skipped;  /* with it: was left out */
    uint64_t step;    /* label of the current weights */
    uint64_t version; /* partition 0: of its control state; others: the newest they heard of */
    bool has_older;   /* weights of step - 1 are readable */

    /* The word it acts by. Partition 0 derives it from its control state and always has one;
     * the others learn it from requests, and have none at the start of a step. */
    bool has_word;
    struct kelp_control_word word;
    uint32_t word_author;                /* others: whose push brought it */
    bool word_disputed;                  /* another word came for the entry, and that was told */
    struct kelp_control_word older_word; /* partition 0: the TRAIN word that consumed w_{step-1} */
    struct kelp_control_state control;   /* partition 0 */
    char digest[33];                     /* partition 0: of w_v, from the node with lane 0 */

    struct kelp_reduction *reduction;
    struct kelp_evidence *evidence; /* NULL: workers may differ (cluster.mixed) */
    uint64_t apply_serial; /* counts applies and measures; the token of the one in progress */

    struct kelp_decision *decision; /* partition 0, of jobs that need decisions */
    uint32_t *share_authors;        /* with it: of each partition's share */
    /* About the training step before the current one, or that which is applied now; owned. */
    double *decided;
    uint32_t decided_count;  /* 0: nothing was decided besides leaving it out */
    uint32_t decision_count; /* values of each decision in this job */
    struct kelp_control_word
        heard; /* others: the word that told what was decided; version 0: none */
    uint32_t heard_author;
    /* Others, while lanes are still missing: the same about the step that they are at. */
    struct kelp_control_word early_word; /* version 0: none */
    uint32_t early_author;
    double *early; /* owned; partition 0 has none, nor have jobs that decide nothing */
    bool has_share;
    uint64_t share_step; /* that `share` is about: the current one, or the one before */
    struct kelp_decision_share share;

    struct kelp_snapshot_order snapshot; /* that waits for its step; serial 0: none */

    struct waiting_pull *waiting; /* in order of arrival */
    size_t waiting_count;
    size_t waiting_capacity;

    uint64_t now_us;
    struct kelp_cover *cover;
    struct kelp_cover_candidate *candidates; /* workspace */
    size_t candidate_capacity;

    bool has_conflict; /* besides those that the evidence found */
    uint64_t pushes;
    uint64_t duplicates;
    uint64_t refusals;
    uint64_t offers;
};

/* partition.c: room for whatever one event may append, so that no event fails half-way. */
kelp_status kelp__partition_reserve(const struct kelp_partition *partition,
                                    struct kelp_actions *actions) KELP_MUST_USE;
/* Is a message of this generation and map epoch ours? *ret_why is set when not. */
kelp_status kelp__partition_check_fences(const struct kelp_partition *partition,
                                         uint64_t generation, uint64_t map_epoch,
                                         const char **ret_why) KELP_MUST_USE;
/* Can a word of the step that a partition other than 0 is at be right? KELP_ERR_CONTROL_WORD. */
kelp_status kelp__partition_judge_word(const struct kelp_partition *partition,
                                       const struct kelp_control_word *word) KELP_MUST_USE;
/* A partition other than 0 takes the first push of its step: it acts by that word. */
void kelp__partition_learn_word(struct kelp_partition *partition, const struct kelp_push *push);
void kelp__partition_move(struct kelp_partition *partition, enum kelp_partition_phase phase);

/* partition_entry.c. Partition 0: the word follows from the state. */
void kelp__partition_derive_word(struct kelp_partition *partition);
/* A node or a sum came in: is the entry's root complete? */
void kelp__partition_after_reduction(struct kelp_partition *partition,
                                     struct kelp_actions *actions);
/* The shell computes the next weights from the root. */
void kelp__partition_begin_apply(struct kelp_partition *partition, uint64_t root,
                                 struct kelp_actions *actions);
/* The primary's current entry is applied, or nothing is: visible, now or when it is everywhere. */
void kelp__partition_finish(struct kelp_partition *partition, bool skipped,
                            struct kelp_actions *actions);
/* The two halves of that: the state moves on by the current entry; workers see what there is. */
void kelp__partition_advance(struct kelp_partition *partition, bool skipped,
                             struct kelp_actions *actions);
void kelp__partition_show(struct kelp_partition *partition, struct kelp_actions *actions);
/* Nothing of the entry that it is at has come. */
void kelp__partition_begin_entry(struct kelp_partition *partition);
/* Partition 0: the job ends here without being done. Then nobody hears of the next entry, and no
 * snapshot is taken of a state that leads nowhere. */
bool kelp__partition_has_given_up(const struct kelp_partition *partition);

/* partition_replica.c. Primary: the current entry's root leaves the tree and goes to the followers,
 * before it is applied; nothing happens without followers. */
void kelp__partition_forward(struct kelp_partition *partition, bool skipped,
                             struct kelp_actions *actions);
/* Primary: whatever followers need, or have made possible. */
void kelp__partition_replicate(struct kelp_partition *partition, struct kelp_actions *actions);
/* The next weights are compared with those of the other replicas. */
bool kelp__partition_wants_digest(const struct kelp_partition *partition);
/* The room that an entry with others in it needs. */
kelp_status kelp__partition_prepare_replicas(struct kelp_partition *partition) KELP_MUST_USE;
/* Is what a replica says of our generation and epoch? KELP_ERR_BUSY: of a newer one, whose map the
 * leader is about to send. */
kelp_status kelp__partition_check_replica(const struct kelp_partition *partition,
                                          uint64_t generation, uint64_t map_epoch) KELP_MUST_USE;
/* A follower says what it has. One that applies a root says it afterwards. */
void kelp__partition_state_held(const struct kelp_partition *partition,
                                struct kelp_actions *actions);

/* partition_follow.c: the entry whose root is kept is applied. */
void kelp__partition_followed(struct kelp_partition *partition, bool skipped,
                              struct kelp_actions *actions);
/* Its state is not that of the primary. It fails. */
void kelp__partition_diverge(struct kelp_partition *partition, struct kelp_actions *actions);

/* partition_decision.c. Partition 0: perhaps all shares of a decision are there. */
void kelp__partition_decide_if_known(struct kelp_partition *partition,
                                     struct kelp_actions *actions);
/* A partition other than 0 hears the word of a later version: the decision is part of it. */
void kelp__partition_hear_decision(struct kelp_partition *partition, const struct kelp_pull *pull,
                                   struct kelp_actions *actions);

/* partition_evidence.c: a push was taken, dropped (its handle is given up), or refused for its
 * word; an entry is complete; and what somebody says was decided. */
void kelp__partition_push_taken(struct kelp_partition *partition, const struct kelp_push *push,
                                struct kelp_actions *actions);
/* After an addition, and after a merge of the tree; before a merge. */
void kelp__partition_nodes_formed(struct kelp_partition *partition);
void kelp__partition_node_merged(struct kelp_partition *partition, uint64_t token, uint64_t handle,
                                 struct kelp_actions *actions);
void kelp__partition_push_dropped(struct kelp_partition *partition, const struct kelp_push *push,
                                  struct kelp_actions *actions);
void kelp__partition_word_differs(struct kelp_partition *partition, const struct kelp_push *push,
                                  struct kelp_actions *actions);
void kelp__partition_share_differs(struct kelp_partition *partition,
                                   const struct kelp_share_push *push,
                                   struct kelp_actions *actions);
void kelp__partition_compare_decision(struct kelp_partition *partition,
                                      const struct kelp_pull *pull, struct kelp_actions *actions);
/* What is said to be decided about the current step, against what was heard before. */
void kelp__partition_compare_early(struct kelp_partition *partition, const struct kelp_pull *pull,
                                   struct kelp_actions *actions);
void kelp__partition_complete_evidence(struct kelp_partition *partition,
                                       const struct kelp_control_word *word, bool skipped,
                                       struct kelp_actions *actions);
/* Follower: who pushed what of an entry whose root came. */
void kelp__partition_hear_claims(struct kelp_partition *partition,
                                 const struct kelp_forward *forward, struct kelp_actions *actions);
/* Likewise of the entries before a copy. */
void kelp__partition_hear_known(struct kelp_partition *partition,
                                const struct kelp_replica_state *state,
                                struct kelp_actions *actions);
/* With failure.on_conflict: stop, the partition stays where it is once a conflict was found. */
bool kelp__partition_must_stop(const struct kelp_partition *partition);
/* The event is over, and the partition must stop: FAILED, from where it waits for workers. */
void kelp__partition_stop_if_needed(struct kelp_partition *partition, struct kelp_actions *actions);

/* partition_snapshot.c: an order that waits may be due, or too late: after each training step,
 * before anything of the next one, and when the order comes. */
void kelp__partition_settle_snapshot(struct kelp_partition *partition,
                                     struct kelp_actions *actions);

/* partition_pull.c: answer those who wait for what is there now; or all of them, with a status. */
void kelp__partition_answer_waiting(struct kelp_partition *partition, struct kelp_actions *actions);
void kelp__partition_end_waiting(struct kelp_partition *partition, kelp_status status,
                                 struct kelp_actions *actions);

static inline bool kelp__partition_holds_control(const struct kelp_partition *partition)
{
    return partition->index == 0;
}

/* What it has of entries, completed: how replicas name a state. */
static inline uint64_t kelp__partition_held(const struct kelp_partition *partition)
{
    return kelp__partition_holds_control(partition) ? partition->version : partition->step;
}

/* Would a version have to be acknowledged by others? */
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

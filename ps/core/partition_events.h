/*
 * The events and actions of a partition (ps/core/partition/partition.h).
 */
#ifndef KELP_PS_CORE_PARTITION_EVENTS_H
#define KELP_PS_CORE_PARTITION_EVENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/training/control.h"
#include "common/training/decision_share.h"

#define KELP_HANDLE_NONE 0 /* the gradient of an empty node */

/* ---- events ---- */

/* Digest of a gradient's bytes; zeros: there are none. */
struct kelp_content {
    uint64_t low;
    uint64_t high;
};

/* One pushed node. */
struct kelp_push {
    uint64_t requester; /* the stream it came on; for the REFUSE action */
    uint32_t author;    /* permanent number of its worker; for the CONFLICT action */
    uint64_t generation;
    uint64_t map_epoch;
    const struct kelp_control_word *word; /* of the entry it belongs to */
    uint32_t lane_first;                  /* aligned: a multiple of lane_count */
    uint32_t lane_count;                  /* a power of two */
    uint64_t handle;             /* gradient, the partition's until a RELEASE or MERGE names it; or
                                    KELP_HANDLE_NONE: no samples, or not a training step */
    struct kelp_content content; /* of the handle */
    const double *sums;          /* partition 0 only, NULL elsewhere */
    uint32_t sum_count;          /* at most KELP_METRIC_SUM_COUNT; the sums from here on are zero */
    const char *digest;          /* of w_v, 32 hexadecimal digits; "" or NULL: none */
};

enum kelp_pull_mode {
    KELP_PULL_CURRENT = 0, /* the current state, at once */
    KELP_PULL_STEP = 1,    /* weights labelled `step`, now or when they are ready */
    KELP_PULL_VERSION = 2, /* partition 0: the word of `version`, now or when it is ready */
    KELP_PULL_SHARE = 3,   /* the partition's share in the decision about `step` */
};

struct kelp_pull {
    uint64_t requester;
    uint32_t author; /* as in kelp_push */
    uint64_t generation;
    uint64_t map_epoch;
    const struct kelp_control_word *word; /* that the requester has, or NULL */
    enum kelp_pull_mode mode;
    uint64_t step;
    uint64_t version;
    struct kelp_step_decision decision; /* that belongs to the word: about the step before it */
    bool holds;                         /* held_step is valid */
    uint64_t held_step;                 /* weights that need not be sent again */
    uint64_t rank; /* of the requester among candidates for offers: ps/core/lanes/cover.h */
};

/* The share of another partition, brought to partition 0. */
struct kelp_share_push {
    uint64_t requester;
    uint32_t author; /* as in kelp_push */
    uint64_t generation;
    uint64_t map_epoch;
    const struct kelp_control_word *word; /* of the step that it is about */
    uint32_t partition;                   /* whose share it is */
    struct kelp_decision_share share;
};

/* ---- events of replication (ps/core/partition/replication.h) ---- */

enum kelp_replica_place {
    KELP_REPLICA_PRIMARY, /* serves workers; forwards roots to its followers */
    KELP_REPLICA_BACKUP,  /* follows, and is in sync */
    KELP_REPLICA_JOINER,  /* follows, once it has the copy */
    KELP_REPLICA_NOBODY,  /* not in the entry */
};

/* A map entry, as this process sees it. Other processes have numbers larger than 0, one per
 * incarnation, which the shell chooses and keeps for the generation. */
struct kelp_replica_entry {
    uint64_t map_epoch;
    enum kelp_replica_place place; /* of this process */
    uint64_t backup;               /* only at a primary; 0: none */
    uint64_t joiner;
};

/*
 * `held` identifies a partition's state: completed entries at partition 0 (the version of its
 * control state), completed training steps at the others.
 */

/* A primary's claim about a node of an entry, for followers that may have to compare it. */
struct kelp_node_claim {
    uint32_t node;    /* heap order: 1 is that of all lanes */
    uint32_t author;  /* as in kelp_push */
    bool is_sum;      /* nobody pushed it; it is the sum of nodes that were pushed */
    bool is_taken;    /* pushed and accepted */
    uint32_t content; /* the low bits of its digest, enough to find a difference; 0: empty */
    uint64_t sums;    /* hash of its metric sums */
};

/* The reduced root of an entry and the decision about it, from the primary to followers. A follower
 * applies it if its state is the one that `word` belongs to. */
struct kelp_forward {
    uint64_t generation;
    uint64_t map_epoch;
    struct kelp_control_word word; /* of the entry that it completes */
    uint64_t handle;    /* the root's gradient; KELP_HANDLE_NONE: no elements, no training step, or
                           skipped */
    bool skipped;       /* the step is skipped: nothing is applied */
    const double *sums; /* partition 0 only, NULL elsewhere. Borrowed */
    uint32_t sum_count; /* at most KELP_METRIC_SUM_COUNT; the sums from here on are zero */
    const char *digest; /* of w_v, as in kelp_push; borrowed */
    struct kelp_step_decision decision; /* about this step; borrowed */
    /* Who pushed what of it; borrowed. The FORWARD action has none: kelp_partition_claims(). */
    const struct kelp_node_claim *claims;
    uint32_t claim_count; /* at most KELP_PS_EVIDENCE_TOLD_MAX */
};

/* A replica's weights after `held` completed entries. */
struct kelp_weights_digest {
    uint64_t held;               /* see above */
    uint64_t step;               /* completed training steps */
    struct kelp_content content; /* zeros: it was not computed */
};

/* What a follower has: sent at once with each new epoch, in answer to ASK, and after each root. */
struct kelp_acknowledgement {
    uint64_t process; /* the follower */
    uint64_t generation;
    uint64_t map_epoch;
    bool holds;                 /* false: nothing, it needs a copy */
    uint64_t held;              /* see above */
    struct kelp_content digest; /* of its weights; zeros: it was not computed */
};

/* Two replicas have different weights, though they got the same gradients. */
struct kelp_difference {
    uint64_t process; /* of the follower */
    struct kelp_weights_digest ours;
    struct kelp_content theirs;
};

/* Which copy a piece belongs to, and whether it begins it. */
struct kelp_copy_piece {
    uint64_t generation;
    uint64_t map_epoch;
    uint64_t held;   /* what is copied: see above */
    uint64_t stream; /* that it came on, larger than 0: a copy comes on one */
    bool is_first;
};

#define KELP_PACE_KINDS (KELP_STEP_KIND_MAX + 1)

/* How long the last entries of each kind took, their median; 0: none was seen. */
struct kelp_pace {
    uint64_t median_us[KELP_PACE_KINDS];
};

/* A state that is copied to a joiner, besides weights (both buffers) and slots. */
struct kelp_replica_state {
    uint64_t held;
    uint64_t step;
    uint64_t version;
    bool has_older; /* the weights of step - 1 belong to it */
    struct kelp_pace pace;
    /* Partition 0 only: */
    struct kelp_control_state control;
    struct kelp_control_word older_word; /* with has_older */
    struct kelp_step_decision decided;   /* about the training step before; borrowed */
    /* Who pushed what of complete entries: their words and claims alone; borrowed. The COPY action
     * has none: kelp_partition_known(). */
    const struct kelp_forward *known;
    uint32_t known_count; /* at most KELP_PS_EVIDENCE_ENTRIES */
};

/* Where a generation starts from, or a process that a later map names. */
struct kelp_partition_start {
    uint64_t generation; /* larger than 0 */
    uint64_t map_epoch;
    uint64_t step;
    uint64_t version;
    const struct kelp_control_state *control; /* partition 0 only: c_v; NULL: the initial state */
    /* As in kelp_replica_entry; all zero: a primary without followers. A JOINER begins with
     * nothing, whatever step and version say. */
    enum kelp_replica_place place;
    uint64_t backup;
    uint64_t joiner;
};

/* An order to take a snapshot of the state after exactly `step` training steps. */
struct kelp_snapshot_order {
    uint64_t serial; /* identifies the order in actions; 0: no order, a waiting one is given up */
    uint64_t generation;
    uint64_t step;
};

/* ---- actions ---- */

enum kelp_action_kind {
    KELP_ACTION_MERGE,   /* left + right, in this order; both handles are consumed; then merged() */
    KELP_ACTION_MEASURE, /* compute the partition's share from root; then measured() */
    KELP_ACTION_REPEAT,  /* the step is skipped: the current weights are also the older ones */
    KELP_ACTION_APPLY,   /* compute the next weights from root; then applied() */
    KELP_ACTION_ANSWER,  /* a pull */
    KELP_ACTION_REFUSE,  /* a push; its handle is released by an action of its own */
    KELP_ACTION_RELEASE, /* nobody needs the handle any more */
    KELP_ACTION_RECORD,  /* partition 0 completed an entry */
    KELP_ACTION_GIVE_UP, /* partition 0: more steps were skipped than applied; after their RECORD */
    KELP_ACTION_SNAPSHOT, /* keep the current state; nothing of the next step is applied yet */
    KELP_ACTION_PAST,     /* the step of a snapshot is behind it, or about to be */
    KELP_ACTION_OFFER,    /* ask a requester to compute lanes that are missing */
    KELP_ACTION_COMPARE,  /* compute the content of the handle; then compared() */
    KELP_ACTION_CONFLICT, /* two workers contradict each other, which correct workers never do */
    /* Actions of replication. If there is no link, the shell drops them: a link that comes up
     * begins with an ASK (kelp_partition_linked()). */
    KELP_ACTION_FORWARD,     /* primary: send the root to a follower; comes before its own APPLY */
    KELP_ACTION_ASK,         /* primary: ask a follower what it has, in this epoch */
    KELP_ACTION_ACKNOWLEDGE, /* follower: tell the primary of this epoch what it has */
    KELP_ACTION_WANT_COPY,   /* primary: its joiner needs a copy; copy() when its turn has come */
    KELP_ACTION_COPY,        /* primary: keep the current state and send it to the joiner */
    KELP_ACTION_IN_SYNC,     /* primary: tell the leader that a follower is in sync in this epoch */
    KELP_ACTION_DIVERGES,    /* follower: its state differs from the primary's, and it has failed */
    KELP_ACTION_DIFFERS,     /* primary: a follower's weights differ, and the primary has failed */
};

enum kelp_weights_label { KELP_WEIGHTS_NONE, KELP_WEIGHTS_CURRENT, KELP_WEIGHTS_OLDER };

struct kelp_answer {
    uint64_t requester;
    kelp_status status;
    enum kelp_weights_label send; /* which buffer's bytes to send; NONE: the requester holds them */
    uint64_t step;                /* label of the weights meant */
    uint64_t current_step;
    bool has_word; /* partition 0: `word` belongs to the weights of `step` */
    struct kelp_control_word word;
    bool is_share; /* the answer to KELP_PULL_SHARE: `values` is the share */
    /* With a word: the decision about the training step before it. Borrowed until the partition's
     * next event. */
    const double *values;
    uint32_t value_count;
};

struct kelp_refusal {
    uint64_t requester;
    kelp_status status;
    uint64_t map_epoch; /* the partition's */
    uint64_t version;   /* of the push */
    const char *why;    /* static text for the log */
};

struct kelp_offer {
    uint64_t requester;
    struct kelp_control_word word; /* of the late entry */
    uint32_t lane_first;           /* aligned */
    uint32_t lane_count;
};

enum kelp_conflict_kind {
    KELP_CONFLICT_GRADIENT,
    KELP_CONFLICT_SUMS,     /* metric sums */
    KELP_CONFLICT_DIGEST,   /* of the weights */
    KELP_CONFLICT_SHARE,    /* in a decision */
    KELP_CONFLICT_DECISION, /* what partition 0 is said to have decided */
    KELP_CONFLICT_WORD,     /* of an entry that is complete */
    KELP_CONFLICT_OPEN_WORD /* of the current entry: nothing of it has been applied, and nothing can
                               be before the partition is loaded again */
};

#define KELP_AUTHORS_MAX 4

/* The author of a node, or the authors of nodes that were added up. */
struct kelp_authors {
    uint32_t of[KELP_AUTHORS_MAX];
    uint32_t count;
    bool more; /* there are further authors */
};

/* What differs, and which workers said it. */
struct kelp_conflict {
    enum kelp_conflict_kind kind;
    uint64_t version;
    uint64_t step;
    uint32_t lane_first; /* of nodes */
    uint32_t lane_count;
    uint32_t share;             /* SHARE: the partition whose share it is */
    struct kelp_authors first;  /* authors of the version that counts */
    struct kelp_authors second; /* authors of the version that differs */
};

struct kelp_action {
    enum kelp_action_kind kind;
    union {
        struct {
            uint64_t left;
            uint64_t right;
            uint64_t token; /* for kelp_partition_merged() */
            bool is_root;   /* the sum of all lanes: it is read next, and nothing is added to it */
        } merge;
        struct {
            uint64_t root;  /* stays valid until its RELEASE */
            uint64_t token; /* for kelp_partition_applied() */
            struct kelp_control_word word;
            struct kelp_step_decision decision; /* borrowed until the partition's next event */
            bool wants_digest; /* of the next weights: digested() before applied() */
        } apply;               /* and MEASURE, with a token for kelp_partition_measured() */
        struct kelp_answer answer;
        struct kelp_refusal refuse;
        uint64_t release;
        struct kelp_record record;
        struct {
            uint64_t steps; /* of the run so far */
            uint64_t skipped;
        } give_up;
        struct {
            uint64_t serial;
            uint64_t step;
            uint64_t version; /* partitions other than 0: the newest that they have heard of */
            bool has_control; /* partition 0: control, and the word that follows from it */
            struct kelp_control_state control;
            struct kelp_control_word word;
        } snapshot;
        struct {
            uint64_t serial;
            uint64_t step; /* the partition's step, counting an apply in progress */
        } past;
        struct kelp_offer offer;
        struct {
            uint64_t handle; /* stays the partition's */
            uint64_t token;  /* for kelp_partition_compared() */
        } compare;
        struct kelp_conflict conflict;
        struct {
            uint64_t process; /* the receiver. The shell keeps the bytes until they are sent, even
                                 after the handle's RELEASE; the pointers are borrowed until the
                                 partition's next event */
            struct kelp_forward forward;
        } forward;
        struct {
            uint64_t process;
            uint64_t map_epoch;
        } ask;
        struct kelp_acknowledgement acknowledge; /* process is 0: ourselves */
        struct {
            uint64_t process;
            uint64_t map_epoch;
            struct kelp_replica_state state; /* WANT_COPY: has_older only */
        } copy;                              /* and WANT_COPY */
        struct {
            uint64_t process;
            uint64_t map_epoch;
        } in_sync;
        uint64_t diverges; /* what it held */
        struct kelp_difference differs;
    };
};

/* A list of actions. Events append to it; the caller owns it, empties it (count = 0) and reuses it.
 */
struct kelp_actions {
    struct kelp_action *items;
    size_t count;
    size_t capacity;
    uint32_t taken_lanes; /* lanes of the push if it was accepted; else 0 */
    bool made_step;       /* a training step was completed since the owner cleared this flag */
};
void kelp_actions_fini(struct kelp_actions *actions);

/* Reserve room for `more` actions. For files of the core only. */
kelp_status kelp__actions_reserve(struct kelp_actions *actions, size_t more) KELP_MUST_USE;
/* Append an action. Only its kind is set; the caller fills in the rest. Room must have been
 * reserved. */
struct kelp_action *kelp__actions_add(struct kelp_actions *actions, enum kelp_action_kind kind);
void kelp__actions_add_release(struct kelp_actions *actions, uint64_t handle);

#endif

/*
 * Carries out what the checkpointer (checkpoints.h) decides: orders, commits, folders that go, the
 * manifest of the one in progress. What concerns others comes out as requests to the term. A part
 * of a leader's term.
 */
#ifndef KELP_COORDINATOR_TERM_PARTS_CHECKPOINT_KEEPER_H
#define KELP_COORDINATOR_TERM_PARTS_CHECKPOINT_KEEPER_H

#include "coordinator/term/outside/term_effects.h"

struct kelp_keeper {
    struct kelp_checkpointer machine;
    uint64_t last_generation;     /* newest that made any of them */
    uint64_t order_ms;            /* when that order was placed */
    int64_t order_election;       /* by which the order in progress was placed */
    struct kelp_committed commit; /* of that order, once its manifest is made; owns its text */
    uint64_t commit_serial;       /* of the order that `commit` is of; 0: none */
    bool described;               /* job.yaml and plan.json lie beside the data */
};

/* What the keeper does not do itself: ORDER, RESTORE, FAIL, END and PAUSE, as they came up. */
struct kelp_keeper_requests {
    struct kelp_checkpointer_action items[4 * KELP_CHECKPOINTER_ACTION_COUNT];
    uint32_t count;
};

/* Handed to each call. */
struct kelp_keeper_call {
    const struct kelp_outside *outside;
    uint64_t now_ms;
    int64_t election; /* that we won last */
    bool settled;     /* kelp_reading_settled(): else nothing goes to etcd yet */
    bool changes;     /* kelp_placement_changes() */
    uint64_t filed;   /* version before which records are on file: no commit beyond it */
    struct kelp_keeper_requests *requests;
};

/* job NULL: no checkpoint is due by a schedule. Errors: KELP_ERR_NO_MEMORY. */
kelp_status kelp_keeper_init(struct kelp_keeper *keeper, const struct kelp_job *job,
                             int64_t election, struct kelp_error *reterr) KELP_MUST_USE;
void kelp_keeper_fini(struct kelp_keeper *keeper);

/* Hand in an event and do what follows. now_ms is filled in. */
void kelp_keeper_apply(struct kelp_keeper *keeper, const struct kelp_keeper_call *call,
                       struct kelp_checkpointer_event event);
/* What etcd holds; begin: at the beginning of the term, when folders that no manifest names go. */
void kelp_keeper_found(struct kelp_keeper *keeper, const struct kelp_keeper_call *call,
                       struct kelp_found *found, bool begin);
/* We opened a generation that restores this version: the data of what is above it goes. */
void kelp_keeper_opened(struct kelp_keeper *keeper, const struct kelp_keeper_call *call,
                        uint64_t restore_version);
/* The transaction that opens this map. */
void kelp_keeper_opening(const struct kelp_keeper *keeper, const struct kelp_map *next,
                         struct kelp_opening *ret_opening);
/* The placement cannot restore this version. */
void kelp_keeper_damaged(struct kelp_keeper *keeper, const struct kelp_keeper_call *call,
                         uint64_t version);
/* Answers. False: nothing that is in progress; it was ignored. */
void kelp_keeper_described(struct kelp_keeper *keeper, const struct kelp_keeper_call *call,
                           uint64_t serial, kelp_status status, const char *text);
bool kelp_keeper_committed(struct kelp_keeper *keeper, const struct kelp_keeper_call *call,
                           const struct kelp_commit_answer *answer);
void kelp_keeper_removed(struct kelp_keeper *keeper, const struct kelp_keeper_call *call,
                         enum kelp_checkpointer_result result, const char *text);

/* The manifest of what this map restores: text, borrowed; "": none. */
const char *kelp_keeper_manifest(const struct kelp_keeper *keeper, const struct kelp_map *map);

#endif

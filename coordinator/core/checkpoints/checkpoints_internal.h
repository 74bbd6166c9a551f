/*
 * What the files of the checkpoints machine share: checkpoints.c (events, time) calls
 * checkpoints_due.c (when and which step) and checkpoints_commit.c (reports, commits, removal), and
 * these and it checkpoints_order.c (the order in progress).
 */
#ifndef KELP_COORDINATOR_CORE_CHECKPOINTS_CHECKPOINTS_INTERNAL_H
#define KELP_COORDINATOR_CORE_CHECKPOINTS_CHECKPOINTS_INTERNAL_H

#include "coordinator/core/checkpoints/checkpoints.h"

struct kelp__checkpointer_due {
    uint64_t step;
    bool for_request;
    bool for_end;
};
/* Is a checkpoint due now, and at which step? */
bool kelp__checkpointer_due_now(const struct kelp_checkpointer *checkpoints, uint64_t now_ms,
                                struct kelp__checkpointer_due *ret_due);

/* No step was completed for a while. */
bool kelp__checkpointer_stands_still(const struct kelp_checkpointer *checkpoints, uint64_t now_ms);

/* The last training step that there will be, as far as it is known. */
uint64_t kelp__checkpointer_last_step(const struct kelp_checkpointer *checkpoints);

enum kelp__checkpointer_reason {
    KELP__LATE,        /* a partition was past it: at once again, further ahead */
    KELP__INTERRUPTED, /* the generation ended: again in the next one */
    KELP__FAILED       /* somebody could not: later again, and who asked is told */
};
void kelp__checkpointer_move(struct kelp_checkpointer *checkpoints,
                             enum kelp_checkpointer_state state);
void kelp__checkpointer_add(struct kelp_checkpointer_actions *actions,
                            struct kelp_checkpointer_action action);
void kelp__checkpointer_want(struct kelp_checkpointer_actions *actions,
                             enum kelp_checkpointer_action_kind kind);
void kelp__checkpointer_place_order(struct kelp_checkpointer *checkpoints,
                                    const struct kelp__checkpointer_due *due,
                                    struct kelp_checkpointer_actions *actions);
/* Give up the order in progress. Why is said by the caller, in trouble. */
void kelp__checkpointer_abandon(struct kelp_checkpointer *checkpoints,
                                enum kelp__checkpointer_reason reason, uint64_t now_ms,
                                struct kelp_checkpointer_actions *actions);
/* The order is over; nothing will ever be committed in its folder. */
void kelp__checkpointer_close_order(struct kelp_checkpointer *checkpoints,
                                    struct kelp_checkpointer_actions *actions);
void kelp__checkpointer_say_trouble(struct kelp_checkpointer *checkpoints,
                                    struct kelp_checkpointer_actions *actions, const char *format,
                                    ...) KELP_PRINTF(3, 4);
/* Requests up to serial have what they asked for: the checkpoint of this step. */
void kelp__checkpointer_answer(struct kelp_checkpointer *checkpoints, uint64_t serial,
                               uint64_t step, struct kelp_checkpointer_actions *actions);
/* There is a checkpoint of the final state, or there will be none. */
void kelp__checkpointer_end(struct kelp_checkpointer *checkpoints,
                            struct kelp_checkpointer_actions *actions);
/* Training has come to the order's step. */
void kelp__checkpointer_reach(struct kelp_checkpointer *checkpoints, uint64_t now_ms);

void kelp__checkpointer_on_report(struct kelp_checkpointer *checkpoints,
                                  const struct kelp_checkpointer_report *report, uint64_t now_ms,
                                  struct kelp_checkpointer_actions *actions);
/* Everything is durable: commit it, or find that it is committed. */
void kelp__checkpointer_conclude(struct kelp_checkpointer *checkpoints, uint64_t now_ms,
                                 struct kelp_checkpointer_actions *actions);
kelp_status kelp__checkpointer_on_committed(struct kelp_checkpointer *checkpoints,
                                            const struct kelp_checkpointer_event *event,
                                            struct kelp_checkpointer_actions *actions,
                                            struct kelp_error *reterr) KELP_MUST_USE;
kelp_status kelp__checkpointer_on_list(struct kelp_checkpointer *checkpoints,
                                       const struct kelp_checkpointer_event *event,
                                       struct kelp_checkpointer_actions *actions,
                                       struct kelp_error *reterr) KELP_MUST_USE;
void kelp__checkpointer_try_remove(struct kelp_checkpointer *checkpoints, uint64_t now_ms,
                                   struct kelp_checkpointer_actions *actions);
void kelp__checkpointer_on_removed(struct kelp_checkpointer *checkpoints,
                                   const struct kelp_checkpointer_event *event);

#endif

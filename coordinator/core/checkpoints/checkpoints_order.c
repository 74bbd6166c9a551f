/*
 * The order under way: how it is placed, answered and given up; and the actions of an event.
 */
#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/base/state_table.h"
#include "coordinator/core/actions.h"
#include "coordinator/core/checkpoints/checkpoints_internal.h"

static const struct kelp_state states[KELP_CHECKPOINTER_STATE_COUNT] = {
    [KELP_CHECKPOINTER_IDLE] = {"idle", KELP_STATE_BIT(KELP_CHECKPOINTER_ORDERED)},
    [KELP_CHECKPOINTER_ORDERED] = {"ordered", KELP_STATE_BIT(KELP_CHECKPOINTER_WRITING) |
                                                  KELP_STATE_BIT(KELP_CHECKPOINTER_IDLE)},
    [KELP_CHECKPOINTER_WRITING] = {"writing", KELP_STATE_BIT(KELP_CHECKPOINTER_IDLE)},
};
static const struct kelp_state_table table = KELP_STATE_TABLE(states);

void kelp__checkpointer_move(struct kelp_checkpointer *checkpoints,
                             enum kelp_checkpointer_state state)
{
    checkpoints->state = kelp_state_move(&table, checkpoints->state, state);
}

/* ---- actions ---- */

void kelp__checkpointer_add(struct kelp_checkpointer_actions *actions,
                            struct kelp_checkpointer_action action)
{
    kelp__actions_put(actions->items, &actions->count, &action, sizeof(action));
}

void kelp__checkpointer_want(struct kelp_checkpointer_actions *actions,
                             enum kelp_checkpointer_action_kind kind)
{
    kelp__checkpointer_add(actions, (struct kelp_checkpointer_action){.kind = kind});
}

void kelp__checkpointer_say_trouble(struct kelp_checkpointer *checkpoints,
                                    struct kelp_checkpointer_actions *actions, const char *format,
                                    ...)
{
    va_list args;
    va_start(args, format);
    /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): va_start is right above */
    (void)vsnprintf(checkpoints->trouble, sizeof(checkpoints->trouble), format, args);
    va_end(args);
    kelp__checkpointer_add(actions,
                           (struct kelp_checkpointer_action){.kind = KELP_CHECKPOINTER_DO_SAY,
                                                             .text = checkpoints->trouble});
}

/* ---- the order ---- */

void kelp__checkpointer_end(struct kelp_checkpointer *checkpoints,
                            struct kelp_checkpointer_actions *actions)
{
    checkpoints->ended = true;
    kelp__checkpointer_want(actions, KELP_CHECKPOINTER_DO_END);
}

void kelp__checkpointer_close_order(struct kelp_checkpointer *checkpoints,
                                    struct kelp_checkpointer_actions *actions)
{
    memcpy(checkpoints->discarded, checkpoints->order.folder, sizeof(checkpoints->discarded));
    kelp__checkpointer_add(actions,
                           (struct kelp_checkpointer_action){.kind = KELP_CHECKPOINTER_DO_DISCARD,
                                                             .folder = checkpoints->discarded});
    if (checkpoints->undecided) {
        kelp__checkpointer_want(actions, KELP_CHECKPOINTER_DO_RESTORE);
    }
    checkpoints->order = (struct kelp_checkpointer_order){.serial = 0};
    kelp__checkpointer_move(checkpoints, KELP_CHECKPOINTER_IDLE);
    checkpoints->undecided = false;
    checkpoints->committing = false;
}

void kelp__checkpointer_abandon(struct kelp_checkpointer *checkpoints,
                                enum kelp__checkpointer_reason reason, uint64_t now_ms,
                                struct kelp_checkpointer_actions *actions)
{
    assert(checkpoints->state != KELP_CHECKPOINTER_IDLE);
    checkpoints->given_up = checkpoints->order.serial;
    kelp__checkpointer_close_order(checkpoints, actions);
    kelp__checkpointer_want(actions, KELP_CHECKPOINTER_DO_ORDER);
    if (reason != KELP__LATE) {
        checkpoints->failed++;
    }
    if (reason != KELP__FAILED) {
        return;
    }
    uint64_t pause_ms =
        checkpoints->pause_ms == 0 ? KELP_COORDINATOR_PAUSE_MS : 2 * checkpoints->pause_ms;
    checkpoints->pause_ms =
        pause_ms < KELP_COORDINATOR_PAUSE_MAX_MS ? pause_ms : KELP_COORDINATOR_PAUSE_MAX_MS;
    checkpoints->not_before_ms = now_ms + checkpoints->pause_ms;
    if (checkpoints->for_request) {
        checkpoints->refused = checkpoints->for_serial;
        if (checkpoints->pause_serial <= checkpoints->refused) {
            checkpoints->pause_serial = 0;
        }
    }
    if (checkpoints->for_end && ++checkpoints->end_tries == KELP_COORDINATOR_END_TRIES) {
        kelp__checkpointer_end(checkpoints, actions);
    }
}

static void name_folder(struct kelp_checkpointer *checkpoints)
{
    struct kelp_checkpointer_order *order = &checkpoints->order;
    /* A new attempt at a step gets another folder, because the earlier one may be in removal. */
    bool first = checkpoints->names_free && order->step > checkpoints->last_step;
    int length = snprintf(order->folder, sizeof(order->folder), "step-%" PRIu64 ".g%" PRIu64,
                          order->step, order->generation);
    if (!first) {
        length += snprintf(order->folder + length, sizeof(order->folder) - (size_t)length,
                           "-%" PRIx64, order->serial);
    }
    assert((size_t)length < sizeof(order->folder));
}

void kelp__checkpointer_place_order(struct kelp_checkpointer *checkpoints,
                                    const struct kelp__checkpointer_due *due,
                                    struct kelp_checkpointer_actions *actions)
{
    checkpoints->order.serial = ++checkpoints->serial;
    checkpoints->order.generation = checkpoints->map.generation;
    checkpoints->order.step = due->step;
    name_folder(checkpoints);
    checkpoints->for_request = due->for_request;
    checkpoints->for_serial = checkpoints->requested;
    checkpoints->for_end = due->for_end;
    checkpoints->reached = false;
    checkpoints->evaluation_ms = 0;
    checkpoints->commit_ms = 0;
    checkpoints->unknown = false;
    checkpoints->again = false;
    if (due->step > checkpoints->last_step) {
        checkpoints->last_step = due->step;
    }
    memset(checkpoints->shards, 0, checkpoints->map.shard_count * sizeof(*checkpoints->shards));
    memset(checkpoints->parts, 0, checkpoints->map.partition_count * sizeof(*checkpoints->parts));
    kelp__checkpointer_move(checkpoints, KELP_CHECKPOINTER_ORDERED);
    kelp__checkpointer_want(actions, KELP_CHECKPOINTER_DO_ORDER);
}

void kelp__checkpointer_answer(struct kelp_checkpointer *checkpoints, uint64_t serial,
                               uint64_t step, struct kelp_checkpointer_actions *actions)
{
    checkpoints->answered = serial;
    if (checkpoints->pause_serial != 0 && checkpoints->pause_serial <= serial) {
        checkpoints->pause_serial = 0;
        checkpoints->paused = true;
        checkpoints->paused_step = step;
        kelp__checkpointer_add(actions, (struct kelp_checkpointer_action){
                                            .kind = KELP_CHECKPOINTER_DO_PAUSE, .step = step});
    }
}

void kelp__checkpointer_reach(struct kelp_checkpointer *checkpoints, uint64_t now_ms)
{
    if (!checkpoints->reached) {
        checkpoints->reached = true;
        checkpoints->reached_ms = now_ms;
    }
}

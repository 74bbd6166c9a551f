/*
 * The states of a placement, and the actions it emits.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/base/state_table.h"
#include "coordinator/core/actions.h"
#include "coordinator/core/placement/placement_internal.h"

static const struct kelp_state states[KELP_PLACEMENT_STATE_COUNT] = {
    [KELP_PLACEMENT_WAITING] = {"waiting", KELP_STATE_BIT(KELP_PLACEMENT_OPENING) |
                                               KELP_STATE_BIT(KELP_PLACEMENT_LOADING) |
                                               KELP_STATE_BIT(KELP_PLACEMENT_FAILED)},
    [KELP_PLACEMENT_OPENING] = {"opening", KELP_STATE_BIT(KELP_PLACEMENT_WAITING) |
                                               KELP_STATE_BIT(KELP_PLACEMENT_LOADING) |
                                               KELP_STATE_BIT(KELP_PLACEMENT_FAILED)},
    [KELP_PLACEMENT_LOADING] = {"loading", KELP_STATE_BIT(KELP_PLACEMENT_WAITING) |
                                               KELP_STATE_BIT(KELP_PLACEMENT_RUNNING) |
                                               KELP_STATE_BIT(KELP_PLACEMENT_FAILED)},
    [KELP_PLACEMENT_RUNNING] = {"running", KELP_STATE_BIT(KELP_PLACEMENT_WAITING) |
                                               KELP_STATE_BIT(KELP_PLACEMENT_DONE) |
                                               KELP_STATE_BIT(KELP_PLACEMENT_PAUSED) |
                                               KELP_STATE_BIT(KELP_PLACEMENT_FAILED)},
    [KELP_PLACEMENT_DONE] = {"done", KELP_STATE_BIT(KELP_PLACEMENT_WAITING)},
    [KELP_PLACEMENT_PAUSED] = {"paused", 0},
    [KELP_PLACEMENT_FAILED] = {"failed", 0},
};
static const struct kelp_state_table table = KELP_STATE_TABLE(states);

void kelp__placement_act(struct kelp_placement_actions *actions,
                         struct kelp_placement_action action)
{
    kelp__actions_put(actions->items, &actions->count, &action, sizeof(action));
}

void kelp__placement_want(struct kelp_placement_actions *actions,
                          enum kelp_placement_action_kind kind)
{
    kelp__placement_act(actions, (struct kelp_placement_action){.kind = kind});
}

void kelp__placement_want_loss(struct kelp_placement_actions *actions, const char *lost)
{
    kelp__placement_act(actions, (struct kelp_placement_action){
                                     .kind = KELP_PLACEMENT_DO_COUNT_LOSS, .lost = lost});
}

void kelp__placement_move(struct kelp_placement *placement, enum kelp_placement_state state,
                          struct kelp_placement_actions *actions)
{
    placement->state = kelp_state_move(&table, placement->state, state);
    kelp__placement_want(actions, KELP_PLACEMENT_DO_STATE);
}

void kelp__placement_say(struct kelp_placement *placement, struct kelp_placement_actions *actions,
                         const char *format, ...)
{
    char text[sizeof(placement->reason)];
    va_list args;
    va_start(args, format);
    /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): va_start is right above */
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (strcmp(text, placement->reason) != 0) {
        memcpy(placement->reason, text, sizeof(text));
        kelp__placement_want(actions, KELP_PLACEMENT_DO_STATE);
    }
}

/* The job fails; the hint says at which step it stood and how to resume it. */
void kelp__placement_fail(struct kelp_placement *placement,
                          const struct kelp_placement_event *event,
                          struct kelp_placement_actions *actions, const char *id, const char *text)
{
    kelp__placement_move(placement, KELP_PLACEMENT_FAILED, actions);
    kelp__placement_say(placement, actions, "%s%s%.250s%s%s", id, id[0] == '\0' ? "" : ": ", text,
                        event->hint ? "; " : "", event->hint ? event->hint : "");
}

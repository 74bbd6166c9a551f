#include "ps/core/partition_events.h"

#include <assert.h>
#include <stdlib.h>

void kelp_actions_fini(struct kelp_actions *actions)
{
    free(actions->items);
    *actions = (struct kelp_actions){0};
}

kelp_status kelp__actions_reserve(struct kelp_actions *actions, size_t more)
{
    size_t needed = actions->count + more;

    if (needed <= actions->capacity) {
        return KELP_OK;
    }
    size_t capacity = actions->capacity * 2 > needed ? actions->capacity * 2 : needed;
    struct kelp_action *items = realloc(actions->items, capacity * sizeof(*items));
    if (!items) {
        return KELP_ERR_NO_MEMORY;
    }
    actions->items = items;
    actions->capacity = capacity;
    return KELP_OK;
}

struct kelp_action *kelp__actions_add(struct kelp_actions *actions, enum kelp_action_kind kind)
{
    assert(actions->count < actions->capacity);
    struct kelp_action *action = &actions->items[actions->count++];
    action->kind = kind;
    return action;
}

void kelp__actions_add_release(struct kelp_actions *actions, uint64_t handle)
{
    if (handle != KELP_HANDLE_NONE) {
        kelp__actions_add(actions, KELP_ACTION_RELEASE)->release = handle;
    }
}

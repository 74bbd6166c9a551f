#include "common/base/state_table.h"

#include <assert.h>

static bool is_state(const struct kelp_state_table *table, uint32_t state)
{
    return state < table->count && table->states[state].name;
}

bool kelp_state_may_follow(const struct kelp_state_table *table, uint32_t from, uint32_t to)
{
    return is_state(table, from) && is_state(table, to) &&
           (table->states[from].next & KELP_STATE_BIT(to)) != 0;
}

uint32_t kelp_state_move(const struct kelp_state_table *table, uint32_t from, uint32_t to)
{
    assert(kelp_state_may_follow(table, from, to));
    return to;
}

const char *kelp_state_name(const struct kelp_state_table *table, uint32_t state)
{
    return is_state(table, state) ? table->states[state].name : "unknown";
}

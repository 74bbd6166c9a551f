/*
 * The states of a machine as a table: their names, and which state may follow which. A move that
 * the table does not allow ends the program in every build: it is a mistake in the machine, never
 * in its input. Draw the states as text above the table:
 *
 *     ATTACHING --synced--> BACKUP --promoted--> PRIMARY
 *         |                   |                    |
 *         ----------- DETACHED (from any state) ----
 *
 *     static const struct kelp_state replica_states[] = {
 *         [ATTACHING] = {"attaching", KELP_STATE_BIT(BACKUP) | KELP_STATE_BIT(DETACHED)},
 *         [BACKUP] = {"backup", KELP_STATE_BIT(PRIMARY) | KELP_STATE_BIT(DETACHED)},
 *         [PRIMARY] = {"primary", KELP_STATE_BIT(DETACHED)},
 *         [DETACHED] = {"detached", 0},
 *     };
 *     static const struct kelp_state_table replica_table = KELP_STATE_TABLE(replica_states);
 *     replica->state = kelp_state_move(&replica_table, replica->state, BACKUP);
 *
 * Pure. Threads: any; the table is constant.
 */
#ifndef KELP_COMMON_BASE_STATE_TABLE_H
#define KELP_COMMON_BASE_STATE_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

struct kelp_state {
    const char *name; /* lower case, as logs and reports print it */
    uint32_t next;    /* KELP_STATE_BIT of each state that may follow; 0: the last one */
};

struct kelp_state_table {
    const struct kelp_state *states; /* borrowed for the life of the table */
    uint32_t count;                  /* at most 32 */
};

#define KELP_STATE_BIT(state) (UINT32_C(1) << (state))
#define KELP_STATE_TABLE(states)                                                                   \
    {                                                                                              \
        (states), KELP_ARRAY_COUNT(states)                                                         \
    }

/* The state moved to. Asserts that `from` and `to` are states, and that `to` may follow `from`. */
uint32_t kelp_state_move(const struct kelp_state_table *table, uint32_t from, uint32_t to);
/* False also where one of them is no state of the table. */
bool kelp_state_may_follow(const struct kelp_state_table *table, uint32_t from, uint32_t to);
/* "unknown" for a number that is no state of the table. Never NULL. */
const char *kelp_state_name(const struct kelp_state_table *table, uint32_t state);

#endif

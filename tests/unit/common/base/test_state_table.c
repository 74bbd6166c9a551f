#include <signal.h>
#include <stdlib.h>

#include "common/base/state_table.h"
#include "tests/lib/suite.h"

enum { OPEN, SHUT, GONE, HOLE, LAST, STATE_COUNT };

/* HOLE has no entry: a number between states that is none. */
static const struct kelp_state states[STATE_COUNT] = {
    [OPEN] = {"open", KELP_STATE_BIT(SHUT) | KELP_STATE_BIT(GONE) | KELP_STATE_BIT(HOLE)},
    [SHUT] = {"shut", KELP_STATE_BIT(OPEN) | KELP_STATE_BIT(SHUT)},
    [GONE] = {"gone", 0},
    [LAST] = {"last", KELP_STATE_BIT(OPEN)},
};
static const struct kelp_state_table table = KELP_STATE_TABLE(states);

/* Exactly the moves of the table are allowed, also of a state to itself. */
KELP_TEST(test_moves)
{
    for (uint32_t from = 0; from < 40; from++) {
        for (uint32_t to = 0; to < 40; to++) {
            bool listed = (from == OPEN && (to == SHUT || to == GONE)) ||
                          (from == SHUT && (to == OPEN || to == SHUT)) ||
                          (from == LAST && to == OPEN);
            ck_assert_int_eq(kelp_state_may_follow(&table, from, to), listed);
            if (listed) {
                ck_assert_uint_eq(kelp_state_move(&table, from, to), to);
            }
        }
    }
}

KELP_TEST(test_names)
{
    ck_assert_str_eq(kelp_state_name(&table, OPEN), "open");
    ck_assert_str_eq(kelp_state_name(&table, LAST), "last");
    ck_assert_str_eq(kelp_state_name(&table, HOLE), "unknown");
    ck_assert_str_eq(kelp_state_name(&table, STATE_COUNT), "unknown");
    ck_assert_str_eq(kelp_state_name(&table, UINT32_MAX), "unknown");
}

/* A move that is not in the table ends the program. */
KELP_ABORT_TEST(test_wrong_move)
{
    (void)kelp_state_move(&table, GONE, OPEN);
}

KELP_ABORT_TEST(test_not_a_state)
{
    (void)kelp_state_move(&table, OPEN, HOLE);
}

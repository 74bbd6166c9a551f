#include <check.h>
#include <signal.h>
#include <stdlib.h>

#include "common/base/state_table.h"

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
START_TEST(test_moves)
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
END_TEST

START_TEST(test_names)
{
    ck_assert_str_eq(kelp_state_name(&table, OPEN), "open");
    ck_assert_str_eq(kelp_state_name(&table, LAST), "last");
    ck_assert_str_eq(kelp_state_name(&table, HOLE), "unknown");
    ck_assert_str_eq(kelp_state_name(&table, STATE_COUNT), "unknown");
    ck_assert_str_eq(kelp_state_name(&table, UINT32_MAX), "unknown");
}
END_TEST

/* A move that is not in the table ends the program. */
START_TEST(test_wrong_move)
{
    (void)kelp_state_move(&table, GONE, OPEN);
}
END_TEST

START_TEST(test_not_a_state)
{
    (void)kelp_state_move(&table, OPEN, HOLE);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("state_table");
    TCase *tests = tcase_create("state_table");
    SRunner *runner = srunner_create(suite);

    tcase_add_test(tests, test_moves);
    tcase_add_test(tests, test_names);
    if (srunner_fork_status(runner) == CK_FORK) {
        tcase_add_test_raise_signal(tests, test_wrong_move, SIGABRT);
        tcase_add_test_raise_signal(tests, test_not_a_state, SIGABRT);
    }
    suite_add_tcase(suite, tests);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

#include <check.h>

#include "ps/decision.h"

#define PARTITIONS 3

static struct kelp_decision *decision;
static const struct kelp_step_part good = {.count = 1, .values = {1}};
static const struct kelp_step_part bad = {.count = 1, .values = {0}};

static void setup(void)
{
    decision = kelp_decision_create(PARTITIONS);
    ck_assert_ptr_nonnull(decision);
}

static void teardown(void)
{
    kelp_decision_destroy(decision);
}

static bool add(uint32_t partition, const struct kelp_step_part *part)
{
    return kelp_decision_add(decision, partition, part) == KELP_OK;
}

START_TEST(made_when_all_parts_are_there)
{
    bool skip = true;

    ck_assert(add(2, &good));
    ck_assert(add(0, &good));
    ck_assert(!kelp_decision_made(decision, &skip));
    ck_assert(add(1, &good));
    ck_assert(kelp_decision_made(decision, &skip));
    ck_assert(!skip);
    kelp_decision_begin(decision);
    ck_assert(!kelp_decision_made(decision, &skip));
}
END_TEST

START_TEST(one_of_them_is_enough_to_skip)
{
    for (uint32_t p = 0; p < PARTITIONS; p++) {
        bool skip = false;
        kelp_decision_begin(decision);
        for (uint32_t i = 0; i < PARTITIONS; i++) {
            ck_assert(add(i, i == p ? &bad : &good));
        }
        ck_assert(kelp_decision_made(decision, &skip));
        ck_assert(skip);
    }
}
END_TEST

START_TEST(the_same_part_counts_once)
{
    bool skip;

    ck_assert(add(1, &bad));
    ck_assert(add(1, &bad));
    ck_assert(add(1, &bad));
    ck_assert(!kelp_decision_made(decision, &skip));
    ck_assert(!add(1, &good)); /* a gradient has no two */
    ck_assert(add(0, &good));
    ck_assert(add(2, &good));
    ck_assert(kelp_decision_made(decision, &skip));
    ck_assert(skip);
}
END_TEST

START_TEST(what_is_no_part)
{
    const struct kelp_step_part none = {.count = 0};
    const struct kelp_step_part two = {.count = 2, .values = {1, 1}};
    const struct kelp_step_part half = {.count = 1, .values = {0.5}};
    const struct kelp_step_part nan = {.count = 1, .values = {__builtin_nan("")}};

    ck_assert(!add(PARTITIONS, &good));
    ck_assert(!add(0, &none));
    ck_assert(!add(0, &two));
    ck_assert(!add(0, &half));
    ck_assert(!add(0, &nan));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("decision");
    TCase *tcase = tcase_create("parts");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, made_when_all_parts_are_there);
    tcase_add_test(tcase, one_of_them_is_enough_to_skip);
    tcase_add_test(tcase, the_same_part_counts_once);
    tcase_add_test(tcase, what_is_no_part);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}

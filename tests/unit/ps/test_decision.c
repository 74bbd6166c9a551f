
#include "ps/core/partition/decision.h"
#include "tests/lib/suite.h"

#define PARTITIONS 3

static struct kelp_decision *decision;
static const struct kelp_decision_share good = {.count = 1, .values = {1}};
static const struct kelp_decision_share bad = {.count = 1, .values = {0}};

static struct kelp_job job;
static const struct kelp_plan plan = {.partition_count = PARTITIONS, .flat_count = 112};
static double values[1];

static void open_decision(void)
{
    ck_assert_int_eq(kelp_decision_create(&job, &plan, &decision, NULL), KELP_OK);
}

static void setup(void)
{
    job = (struct kelp_job){.failure = {.on_nan = KELP_NAN_SKIP}};
    open_decision();
}

static void teardown(void)
{
    kelp_decision_destroy(decision);
}

static bool add(uint32_t partition, const struct kelp_decision_share *share)
{
    return kelp_decision_add(decision, partition, share) == KELP_OK;
}

KELP_CASE("shares", .setup = setup, .teardown = teardown)

KELP_TEST(made_when_all_parts_are_there)
{
    bool skip = true;

    ck_assert(add(2, &good));
    ck_assert(add(0, &good));
    ck_assert(!kelp_decision_made(decision, &skip, values));
    ck_assert(add(1, &good));
    ck_assert(kelp_decision_made(decision, &skip, values));
    ck_assert(!skip);
    kelp_decision_begin(decision);
    ck_assert(!kelp_decision_made(decision, &skip, values));
}

KELP_TEST(one_of_them_is_enough_to_skip)
{
    for (uint32_t p = 0; p < PARTITIONS; p++) {
        bool skip = false;
        kelp_decision_begin(decision);
        for (uint32_t i = 0; i < PARTITIONS; i++) {
            ck_assert(add(i, i == p ? &bad : &good));
        }
        ck_assert(kelp_decision_made(decision, &skip, values));
        ck_assert(skip);
    }
}

KELP_TEST(the_same_part_counts_once)
{
    bool skip;

    ck_assert(add(1, &bad));
    ck_assert(add(1, &bad));
    ck_assert(add(1, &bad));
    ck_assert(!kelp_decision_made(decision, &skip, values));
    ck_assert(!add(1, &good)); /* a gradient has no two */
    ck_assert(add(0, &good));
    ck_assert(add(2, &good));
    ck_assert(kelp_decision_made(decision, &skip, values));
    ck_assert(skip);
}

KELP_TEST(what_is_no_share)
{
    const struct kelp_decision_share none = {.count = 0};
    const struct kelp_decision_share two = {.count = 2, .values = {1, 1}};
    const struct kelp_decision_share half = {.count = 1, .values = {0.5}};
    const struct kelp_decision_share nan = {.count = 1, .values = {__builtin_nan("")}};

    ck_assert(!add(PARTITIONS, &good));
    ck_assert(!add(0, &none));
    ck_assert(!add(0, &two));
    ck_assert(!add(0, &half));
    ck_assert(!add(0, &nan));
}

/* With a norm to clip at, a share has a number for each node of its slice: of 3, 3 and 1 leaves. */
KELP_TEST(clips_by_the_sum_of_all)
{
    const struct kelp_decision_share shares[PARTITIONS] = {
        {.count = 3, .values = {1, 4.0, 5.0}}, /* leaves 0 and 1, leaf 2 */
        {.count = 3, .values = {1, 3.0, 2.0}}, /* leaf 3, leaves 4 and 5 */
        {.count = 2, .values = {1, 2.0}}};     /* leaf 6 */
    bool skip = true;

    kelp_decision_destroy(decision);
    job.train.clip_norm = 2.0;
    open_decision();
    ck_assert(!add(0, &good)); /* too short */
    for (uint32_t p = 0; p < PARTITIONS; p++) {
        ck_assert(!kelp_decision_made(decision, &skip, values));
        ck_assert(add(p, &shares[p]));
    }
    ck_assert(kelp_decision_made(decision, &skip, values));
    ck_assert(!skip);
    ck_assert_double_eq_tol(values[0], 2.0 / (4.0 + 1e-6), 1e-12);
}

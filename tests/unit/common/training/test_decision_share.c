/* Sums along the tree do not depend on how the leaves are cut; which numbers a partition tells;
 * what is decided from them. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/training/decision_share.h"
#include "tests/lib/suite.h"

#define LEAVES 300

static double leaves[LEAVES];

static void set_up(void)
{
    uint32_t state = 12345;

    for (int i = 0; i < LEAVES; i++) {
        state = state * 1664525u + 1013904223u;
        leaves[i] = ldexp((double)(state >> 8), (int)(state & 31) - 40); /* sizes far apart */
    }
}

/* The tree by plain recursion: 2^level leaves from `first` on, those beyond the end left out. */
static double node(uint64_t first, uint32_t level, uint64_t end)
{
    if (level == 0) {
        return leaves[first];
    }
    const uint64_t middle = first + (UINT64_C(1) << (level - 1));
    const double left = node(first, level - 1, end);
    return middle < end ? left + node(middle, level - 1, end) : left;
}

static void add_leaves(struct kelp_tree_sum *sum, uint64_t end)
{
    while (sum->next < end) {
        kelp_tree_sum_add(sum, 0, leaves[sum->next]);
    }
}

KELP_CASE("step part", .setup = set_up)

/* Leaf by leaf, or by the nodes of pieces of any length: the bits of the recursion. */
KELP_TEST(test_cuts_change_nothing)
{
    for (uint64_t count = 1; count <= LEAVES; count += count < 40 ? 1 : 13) {
        const double expected = node(0, 9, count);
        for (uint64_t size = 1; size <= count; size += size < 20 ? 1 : 17) {
            struct kelp_tree_sum whole;
            kelp_tree_sum_begin(&whole, 0);
            for (uint64_t first = 0; first < count; first += size) {
                const uint64_t end = first + size < count ? first + size : count;
                struct kelp_tree_sum piece;
                kelp_tree_sum_begin(&piece, first);
                add_leaves(&piece, end);
                for (uint32_t i = 0; i < piece.count; i++) {
                    ck_assert_uint_eq(kelp_tree_level(whole.next, end), piece.nodes[i].level);
                    kelp_tree_sum_add(&whole, piece.nodes[i].level, piece.nodes[i].value);
                }
                ck_assert_uint_eq(whole.next, end);
            }
            ck_assert_double_eq(kelp_tree_sum_total(&whole), expected);
        }
    }
}

static void lay_out(struct kelp_plan *plan, const uint64_t *counts, uint32_t count)
{
    *plan = (struct kelp_plan){.tensor_count = count};
    plan->tensors = calloc(count, sizeof(*plan->tensors));
    ck_assert_ptr_nonnull(plan->tensors);
    for (uint32_t i = 0; i < count; i++) {
        (void)snprintf(plan->tensors[i].name, sizeof(plan->tensors[i].name), "t%u", i);
        plan->tensors[i].rank = 1;
        plan->tensors[i].shape[0] = counts[i];
    }
    ck_assert_int_eq(kelp_plan_lay_out(plan, 4, NULL), KELP_OK);
}

/* Tensors that a border of partitions cuts are shared, statistics aside; the others are not. */
KELP_TEST(test_shared_tensors)
{
    /* 4096 elements, four partitions of 1024 */
    static const uint64_t counts[] = {1000, 32, 1008, 2040};
    const struct kelp_job lamb = {.train = {.optimizer = KELP_OPTIMIZER_LAMB}};
    struct kelp_plan plan;
    uint32_t part_counts[4];

    lay_out(&plan, counts, 4);
    ck_assert_uint_eq(plan.partition_count, 4);
    ck_assert(!kelp_tensor_shared(&plan, 0)); /* its padding ends at 1008 */
    ck_assert(kelp_tensor_shared(&plan, 1));
    ck_assert(!kelp_tensor_shared(&plan, 2)); /* 1040 to 2047 */
    ck_assert(kelp_tensor_shared(&plan, 3));
    ck_assert_uint_eq(kelp_step_decision_count(&lamb, &plan), 2);
    for (uint32_t p = 0; p < 4; p++) {
        ck_assert_int_eq(kelp_decision_share_count(&lamb, &plan, p, &part_counts[p], NULL),
                         KELP_OK);
    }
    ck_assert_uint_eq(part_counts[0], 1 + 2); /* one leaf of t1 */
    ck_assert_uint_eq(part_counts[1], 1 + 2); /* the other one; t2 is its own */
    ck_assert_uint_eq(part_counts[2], 1 + 2); /* 64 leaves of t3 */
    ck_assert_uint_eq(part_counts[3], 1 + 2);
    plan.tensors[1].statistic = true;
    ck_assert_uint_eq(kelp_step_decision_count(&lamb, &plan), 1);
    kelp_plan_fini(&plan);
}

/* Ratios of shared tensors follow from the nodes of all who have them. */
KELP_TEST(test_decides_ratios)
{
    static const uint64_t counts[] = {1000, 32, 1008, 2040};
    const struct kelp_job lamb = {.train = {.optimizer = KELP_OPTIMIZER_LAMB}};
    const struct kelp_decision_share parts[] = {{.count = 3, .values = {1, 4.0, 1.0}},
                                                {.count = 3, .values = {1, 5.0, 0.0}},
                                                {.count = 3, .values = {1, 0.0, 2.0}},
                                                {.count = 3, .values = {1, 0.0, 3.0}}};
    const struct kelp_decision_share *pointers[] = {&parts[0], &parts[1], &parts[2], &parts[3]};
    struct kelp_plan plan;
    double ratios[2];

    lay_out(&plan, counts, 4);
    ck_assert(!kelp_step_decide(&lamb, &plan, pointers, ratios));
    ck_assert_double_eq(ratios[0], 3.0);
    ck_assert_double_eq(ratios[1], 1.0); /* weights of length zero */
    kelp_plan_fini(&plan);
}

/* No part of a plan as large as plans may be is too long for its message. */
KELP_TEST(test_largest_parts_fit)
{
    const uint64_t odd = (UINT64_C(1) << 39) - 12345 * UINT64_C(16);
    const uint64_t counts[] = {odd, odd};
    const struct kelp_job jobs[] = {{.train = {.optimizer = KELP_OPTIMIZER_LAMB}},
                                    {.train = {.clip_norm = 1}}};
    struct kelp_plan plan;

    lay_out(&plan, counts, 2);
    ck_assert_uint_eq(plan.partition_count, KELP_PARTITIONS_MAX);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(jobs); i++) {
        for (uint32_t p = 0; p < plan.partition_count; p++) {
            uint32_t count;
            ck_assert_int_eq(kelp_decision_share_count(&jobs[i], &plan, p, &count, NULL), KELP_OK);
        }
    }
    kelp_plan_fini(&plan);
}

/* Which jobs decide, and about how many values. */
KELP_TEST(test_jobs)
{
    const struct kelp_plan plan = {.partition_count = 1, .flat_count = 16};
    struct kelp_job job = {.train = {.optimizer = KELP_OPTIMIZER_ADAM}};

    ck_assert(!kelp_control_decides(&job));
    job.failure.on_nan = KELP_NAN_SKIP;
    ck_assert(kelp_control_decides(&job));
    ck_assert_uint_eq(kelp_step_decision_count(&job, &plan), 0);
    job.train.clip_norm = 0.5;
    ck_assert_uint_eq(kelp_step_decision_count(&job, &plan), 1);
    job.failure.on_nan = KELP_NAN_STOP;
    ck_assert(kelp_control_decides(&job));
}

KELP_TEST(test_factors)
{
    ck_assert_double_eq(kelp_clip_factor(5.0, 4.0), 1.0);
    ck_assert_double_eq(kelp_clip_factor(5.0, 0.0), 1.0);
    ck_assert_double_eq_tol(kelp_clip_factor(0.5, 4.0), 0.25, 1e-6);
    ck_assert_double_eq(kelp_lamb_ratio(4.0, 16.0), 0.5);
    ck_assert_double_eq(kelp_lamb_ratio(0.0, 16.0), 1.0);
    ck_assert_double_eq(kelp_lamb_ratio(4.0, 0.0), 1.0);
}

/*
 * Retention over random lists: what must hold whatever was committed, evaluated, damaged and
 * restored, for every policy. A case is a function of its seed, which a failure names.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/core/checkpoints/committed_list.h"
#include "tests/lib/suite.h"

#define CASES 400 /* in one loop */
#define LOOPS 5
#define ADDED 30

static uint64_t state;

static uint32_t draw(uint32_t below)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(state >> 33) % below;
}

static void add(struct kelp_committed_list *list, uint64_t version)
{
    struct kelp_committed one = {.version = version,
                                 .step = version,
                                 .generation = 1,
                                 .damaged = draw(6) == 0,
                                 .restored = draw(4) == 0,
                                 .has_metric = draw(2) == 0};
    one.metric[list->policy.metric] = (double)draw(8);
    ck_assert_int_eq(kelp_committed_list_add(list, &one, NULL, NULL), KELP_OK);
}

static uint32_t good_newer(const struct kelp_committed_list *list, uint32_t index)
{
    uint32_t count = 0;
    for (uint32_t i = index + 1; i < list->count; i++) {
        count += list->entries[i].damaged ? 0 : 1;
    }
    return count;
}

/* Good evaluated ones that are strictly better. */
static uint32_t better(const struct kelp_committed_list *list, uint32_t index)
{
    uint32_t count = 0;
    double value = list->entries[index].metric[list->policy.metric];
    for (uint32_t i = 0; i < list->count; i++) {
        double other = list->entries[i].metric[list->policy.metric];
        bool ahead = list->policy.order == KELP_ORDER_MIN ? other < value : other > value;
        count += !list->entries[i].damaged && list->entries[i].has_metric && ahead ? 1 : 0;
    }
    return count;
}

/* Nothing that has to be kept is given up. */
static void check_surplus(const struct kelp_committed_list *list,
                          const struct kelp_committed *surplus)
{
    const struct kelp_committed *newest = kelp_committed_list_newest(list);
    uint32_t index = (uint32_t)(surplus - list->entries);
    ck_assert_ptr_nonnull(newest); /* the last good one is never given up */
    ck_assert_ptr_ne(surplus, newest);
    if (surplus->damaged) {
        return;
    }
    ck_assert_uint_ge(good_newer(list, index), list->policy.keep_last);
    if (!newest->restored) {
        ck_assert_uint_ge(good_newer(list, index), 2);
    }
    if (surplus->has_metric && list->policy.keep_best > 0) {
        uint32_t equal_or_better = 0;
        for (uint32_t i = 0; i < list->count; i++) {
            double other = list->entries[i].metric[list->policy.metric];
            double value = surplus->metric[list->policy.metric];
            bool counts = i != index && !list->entries[i].damaged && list->entries[i].has_metric;
            bool ahead = list->policy.order == KELP_ORDER_MIN ? other <= value : other >= value;
            equal_or_better += counts && ahead ? 1 : 0;
        }
        ck_assert_uint_ge(equal_or_better, list->policy.keep_best);
    }
}

/* When nothing is left to give up, no more is kept than was asked for. */
static void check_rest(const struct kelp_committed_list *list)
{
    const struct kelp_committed *newest = kelp_committed_list_newest(list);
    uint32_t keep = list->policy.keep_last < 2 ? 2 : list->policy.keep_last;
    for (uint32_t i = 0; i < list->count && newest != NULL; i++) {
        const struct kelp_committed *entry = &list->entries[i];
        ck_assert(!entry->damaged);
        bool last = good_newer(list, i) < keep;
        bool best = entry->has_metric && better(list, i) < list->policy.keep_best;
        ck_assert(last || best);
    }
}

static void run_case(void)
{
    struct kelp_retention policy = {.keep_last = 1 + draw(4),
                                    .keep_best = draw(4),
                                    .metric =
                                        (enum kelp_checkpoint_metric)draw(KELP_CHECKPOINT_METRICS),
                                    .order = draw(2) == 0 ? KELP_ORDER_MIN : KELP_ORDER_MAX};
    struct kelp_committed_list list;
    ck_assert_int_eq(kelp_committed_list_init(&list, &policy, NULL), KELP_OK);
    for (uint64_t version = 1; version <= ADDED; version++) {
        add(&list, version);
        const struct kelp_committed *surplus = NULL;
        for (uint32_t i = draw(3); i > 0 && (surplus = kelp_committed_list_surplus(&list)); i--) {
            check_surplus(&list, surplus);
            kelp_committed_list_remove(&list, surplus->version);
        }
    }
    const struct kelp_committed *surplus = NULL;
    while ((surplus = kelp_committed_list_surplus(&list)) != NULL) {
        check_surplus(&list, surplus);
        kelp_committed_list_remove(&list, surplus->version);
    }
    check_rest(&list);
    kelp_committed_list_fini(&list);
}

KELP_LOOP_TEST(keeps_what_it_must, 0, LOOPS)
{
    for (uint32_t i = 0; i < CASES; i++) {
        state = (uint64_t)_i * CASES + i + 1;
        run_case();
    }
}

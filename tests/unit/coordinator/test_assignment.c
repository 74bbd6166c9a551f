/* Lane assignment: every lane once, shares as equal as possible, few nodes, spares, determinism. */
#include <stdlib.h>

#include "coordinator/core/membership/assignment.h"
#include "tests/lib/suite.h"

static struct kelp_assignment assignment;

static void setup(uint32_t lanes)
{
    ck_assert_int_eq(kelp_assignment_init(&assignment, lanes, 2048, NULL), KELP_OK);
}

static void teardown(void)
{
    kelp_assignment_fini(&assignment);
}

/* Seats cover the lanes in order, without gap or overlap, sizes differing by at most one. */
static void check_cover(uint32_t members, uint32_t lanes)
{
    uint32_t lane = 0;
    uint32_t smallest = UINT32_MAX;
    uint32_t largest = 0;
    for (uint32_t i = 0; i < members; i++) {
        struct kelp_lane_range range = assignment.ranges[i];
        if (i >= lanes) {
            ck_assert_uint_eq(range.count, 0);
            continue;
        }
        ck_assert_uint_eq(range.first, lane);
        lane += range.count;
        smallest = range.count < smallest ? range.count : smallest;
        largest = range.count > largest ? range.count : largest;
    }
    ck_assert_uint_eq(lane, lanes);
    ck_assert_uint_ge(smallest, 1);
    ck_assert_uint_le(largest - smallest, 1);
}

KELP_CASE("split", .timeout_s = 60)

/* For every number of members, up to more than there are lanes. */
KELP_LOOP_TEST(covers_every_lane_once, 0, 9)
{
    uint32_t lanes = 1u << _i;
    setup(lanes);
    for (uint32_t n = 1; n <= lanes + 3; n++) {
        ck_assert_int_eq(kelp_assignment_add(&assignment, 1000 + n), KELP_OK);
        check_cover(n, lanes);
        ck_assert_uint_eq(assignment.epoch, n);
    }
    teardown();
}

KELP_TEST(counts_nodes)
{
    ck_assert_uint_eq(kelp_assignment_nodes(0, 0), 0);
    ck_assert_uint_eq(kelp_assignment_nodes(0, 8), 1);
    ck_assert_uint_eq(kelp_assignment_nodes(0, 3), 2);
    ck_assert_uint_eq(kelp_assignment_nodes(1, 3), 2);
    ck_assert_uint_eq(kelp_assignment_nodes(3, 2), 2);
    ck_assert_uint_eq(kelp_assignment_nodes(1, 6), 4);
}

static uint32_t total_nodes(uint32_t members)
{
    uint32_t nodes = 0;
    for (uint32_t i = 0; i < members; i++) {
        nodes += kelp_assignment_nodes(assignment.ranges[i].first, assignment.ranges[i].count);
    }
    return nodes;
}

/* The split is the cheapest of all ways to hand out the larger shares (tried one by one). */
KELP_TEST(splits_into_fewest_nodes)
{
    setup(16);
    for (uint32_t n = 1; n <= 16; n++) {
        ck_assert_int_eq(kelp_assignment_add(&assignment, n), KELP_OK);
        uint32_t best = UINT32_MAX;
        for (uint32_t larger = 0; larger < 1u << n; larger++) {
            if ((uint32_t)__builtin_popcount(larger) != 16 % n) {
                continue;
            }
            uint32_t lane = 0;
            uint32_t nodes = 0;
            for (uint32_t i = 0; i < n; i++) {
                uint32_t count = 16 / n + ((larger >> i) & 1);
                nodes += kelp_assignment_nodes(lane, count);
                lane += count;
            }
            best = nodes < best ? nodes : best;
        }
        ck_assert_uint_eq(total_nodes(n), best);
    }
    teardown();
}

/* A spare takes the seat of whoever leaves; nobody else's lanes move. */
KELP_TEST(spare_takes_the_free_seat)
{
    setup(4);
    for (uint64_t key = 1; key <= 6; key++) {
        ck_assert_int_eq(kelp_assignment_add(&assignment, key), KELP_OK);
    }
    ck_assert_uint_eq(kelp_assignment_of(&assignment, 5).count, 0);
    kelp_assignment_remove(&assignment, 2);
    ck_assert_uint_eq(kelp_assignment_of(&assignment, 5).first, 1);
    ck_assert_uint_eq(kelp_assignment_of(&assignment, 5).count, 1);
    ck_assert_uint_eq(kelp_assignment_of(&assignment, 1).first, 0);
    ck_assert_uint_eq(kelp_assignment_of(&assignment, 3).first, 2);
    ck_assert_uint_eq(kelp_assignment_of(&assignment, 6).count, 0);
    teardown();
}

KELP_TEST(refuses_what_is_wrong)
{
    struct kelp_assignment bad;
    ck_assert_int_eq(kelp_assignment_init(&bad, 0, 4, NULL), KELP_ERR_INVALID);
    ck_assert_int_eq(kelp_assignment_init(&bad, 6, 4, NULL), KELP_ERR_INVALID);
    ck_assert_int_eq(kelp_assignment_init(&bad, 2048, 4, NULL), KELP_ERR_INVALID);
    ck_assert_int_eq(kelp_assignment_init(&bad, 8, 2, NULL), KELP_OK);
    ck_assert_int_eq(kelp_assignment_add(&bad, 1), KELP_OK);
    ck_assert_int_eq(kelp_assignment_add(&bad, 1), KELP_ERR_EXISTS);
    ck_assert_int_eq(kelp_assignment_add(&bad, 2), KELP_OK);
    ck_assert_int_eq(kelp_assignment_add(&bad, 3), KELP_ERR_LIMIT);
    ck_assert_uint_eq(bad.epoch, 2);
    kelp_assignment_remove(&bad, 9);
    ck_assert_uint_eq(bad.epoch, 2);
    ck_assert_uint_eq(kelp_assignment_of(&bad, 9).count, 0);
    kelp_assignment_fini(&bad);
}

KELP_CASE("by speed", .timeout_s = 60)

/* The last one is done as early as with any way to hand out the lanes, tried one by one. */
KELP_LOOP_TEST(ends_as_early_as_can_be, 0, 64)
{
    const uint32_t lane_us[3] = {1 + (uint32_t)_i % 4, 1 + (uint32_t)_i / 4 % 4,
                                 1 + (uint32_t)_i / 16};
    uint64_t best = UINT64_MAX;
    uint64_t last = 0;
    for (uint32_t a = 1; a < 15; a++) {
        for (uint32_t b = 1; a + b < 16; b++) {
            uint64_t ends[3] = {(uint64_t)a * lane_us[0], (uint64_t)b * lane_us[1],
                                (uint64_t)(16 - a - b) * lane_us[2]};
            uint64_t end = ends[0] > ends[1] ? ends[0] : ends[1];
            end = end > ends[2] ? end : ends[2];
            best = end < best ? end : best;
        }
    }
    setup(16);
    for (uint32_t n = 1; n <= 3; n++) {
        ck_assert_int_eq(kelp_assignment_add(&assignment, n), KELP_OK);
    }
    kelp_assignment_weigh(&assignment, lane_us);
    uint32_t lane = 0;
    for (uint32_t i = 0; i < 3; i++) {
        ck_assert_uint_eq(assignment.ranges[i].first, lane);
        ck_assert_uint_ge(assignment.ranges[i].count, 1);
        lane += assignment.ranges[i].count;
        uint64_t end = (uint64_t)assignment.ranges[i].count * lane_us[i];
        last = end > last ? end : last;
    }
    ck_assert_uint_eq(lane, 16);
    ck_assert_uint_le(last * 10, best * 11); /* even shares may be a hair later */
    ck_assert(!kelp_assignment_is_uneven(&assignment, lane_us));
    teardown();
}

/* A quarter of the speed: one lane. Whoever joins counts as the others do, and who leaves takes the
 * slowness along. */
KELP_TEST(a_slow_one_has_few_lanes)
{
    const uint32_t lane_us[4] = {100, 400, 105, 98};
    setup(16);
    for (uint32_t n = 1; n <= 4; n++) {
        ck_assert_int_eq(kelp_assignment_add(&assignment, n), KELP_OK);
    }
    ck_assert(kelp_assignment_is_uneven(&assignment, lane_us));
    kelp_assignment_weigh(&assignment, lane_us);
    ck_assert_uint_eq(kelp_assignment_of(&assignment, 2).count, 1);
    ck_assert_uint_eq(kelp_assignment_of(&assignment, 1).count, 5);
    ck_assert_int_eq(kelp_assignment_add(&assignment, 5), KELP_OK);
    ck_assert_uint_eq(kelp_assignment_of(&assignment, 2).count, 1);
    ck_assert_uint_ge(kelp_assignment_of(&assignment, 5).count, 2);
    kelp_assignment_remove(&assignment, 5);
    kelp_assignment_remove(&assignment, 2);
    check_cover(3, 16);
    ck_assert(!assignment.weighed);
    teardown();
}

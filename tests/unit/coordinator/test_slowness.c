/* Who is slow, and in what: workers' windows are compared. */
#include <stdio.h>
#include <string.h>

#include "common/base/status.h"
#include "coordinator/core/membership/slowness.h"
#include "tests/lib/suite.h"

#define WORKERS 4
#define STEPS   50u
#define LANES   2u /* of each worker, in a step */

static struct kelp_worker_times times[WORKERS];
static struct kelp_slow_row rows[WORKERS];
static struct kelp_slow shard_slow;
static uint64_t scratch[WORKERS];

/* In a step of 20 ms a worker reads for 1 ms a lane, computes for 4, pushes for 1 and waits. */
static void setup(void)
{
    for (unsigned i = 0; i < WORKERS; i++) {
        times[i] = (struct kelp_worker_times){.serial = 1,
                                              .steps = STEPS,
                                              .lanes = STEPS * LANES,
                                              .length_us = UINT64_C(20000) * STEPS,
                                              .read_us = UINT64_C(1000) * STEPS * LANES,
                                              .compute_us = UINT64_C(4000) * STEPS * LANES,
                                              .push_us = UINT64_C(1000) * STEPS,
                                              .wait_us = UINT64_C(9000) * STEPS,
                                              .pushed_steps = STEPS,
                                              .behind_us = UINT64_C(300) * i * STEPS};
    }
}

static size_t judge(size_t count)
{
    for (size_t i = 0; i < count; i++) {
        ck_assert(kelp_worker_times_valid(&times[i]));
        rows[i].times = &times[i];
    }
    return kelp_slow_judge(rows, count, scratch, &shard_slow);
}

/* All but worker `slow`; it may be WORKERS. */
static void expect_others_well(size_t slow)
{
    for (size_t i = 0; i < WORKERS; i++) {
        ck_assert_msg(i == slow || rows[i].slow.part == KELP_SLOW_NOT, "worker %zu is slow in %s",
                      i, kelp_slow_part_name(rows[i].slow.part));
    }
}

KELP_CASE("slowness", .setup = setup)

/* Workers that are alike, and small differences between them. */
KELP_TEST(nobody)
{
    ck_assert_uint_eq(judge(WORKERS), WORKERS);
    expect_others_well(WORKERS);
    ck_assert_int_eq(shard_slow.part, KELP_SLOW_NOT);
    times[1].compute_us = times[1].compute_us * 13 / 10;
    times[2].push_us *= 2;
    times[3].behind_us += UINT64_C(1500) * STEPS;
    ck_assert_uint_eq(judge(WORKERS), WORKERS);
    expect_others_well(WORKERS);
}

KELP_TEST(computing)
{
    times[1].compute_us *= 3;
    ck_assert_uint_eq(judge(WORKERS), WORKERS);
    ck_assert_int_eq(rows[1].slow.part, KELP_SLOW_COMPUTING);
    ck_assert_uint_eq(rows[1].slow.us, 13000);
    ck_assert_uint_eq(rows[1].slow.usual_us, 5000);
    ck_assert_uint_eq(rows[1].slow.part_us, 12000);
    ck_assert_uint_eq(rows[1].slow.excess_us, 8000 * LANES);
    ck_assert_uint_eq(rows[1].slow.wait_us, 9000);
    ck_assert_uint_eq(rows[1].slow.step_us, 20000);
    expect_others_well(1);
}

KELP_TEST(reading)
{
    times[2].read_us *= 10;
    (void)judge(WORKERS);
    ck_assert_int_eq(rows[2].slow.part, KELP_SLOW_READING);
    ck_assert_uint_eq(rows[2].slow.us, 14000);
    ck_assert_uint_eq(rows[2].slow.part_us, 10000);
    expect_others_well(2);
}

/* Lanes are shared out by speed: a worker that is slow has fewer, and its step is as long as that
 * of the others. It is slow all the same. One that has more lanes is not. */
KELP_TEST(a_lane_counts_not_a_step)
{
    times[0].lanes = STEPS; /* half as many */
    times[0].read_us = UINT64_C(2000) * STEPS;
    times[0].compute_us = UINT64_C(8000) * STEPS;
    times[3].lanes = UINT64_C(3) * LANES * STEPS;
    times[3].read_us *= 3;
    times[3].compute_us *= 3;
    (void)judge(WORKERS);
    ck_assert_int_eq(rows[0].slow.part, KELP_SLOW_COMPUTING);
    ck_assert_uint_eq(rows[0].slow.us, 10000);
    ck_assert_uint_eq(rows[0].slow.usual_us, 5000);
    ck_assert_uint_eq(rows[0].slow.excess_us, 5000);
    expect_others_well(0);
}

KELP_TEST(pushing)
{
    times[1].push_us = UINT64_C(8000) * STEPS;
    (void)judge(WORKERS);
    ck_assert_int_eq(rows[1].slow.part, KELP_SLOW_PUSHING);
    ck_assert(!rows[1].slow.late);
    ck_assert_uint_eq(rows[1].slow.us, 8000);
    ck_assert_uint_eq(rows[1].slow.usual_us, 1000);
    expect_others_well(1);
}

/* Its lanes come late, and it works no longer than the others: the way to the shard is slow. Where
 * its work explains it, that is said. Of few pushes nothing is concluded. */
KELP_TEST(late_without_a_reason)
{
    times[1].behind_us = UINT64_C(12000) * STEPS;
    (void)judge(WORKERS);
    ck_assert_int_eq(rows[1].slow.part, KELP_SLOW_PUSHING);
    ck_assert(rows[1].slow.late);
    ck_assert_uint_eq(rows[1].slow.us, 12000);
    ck_assert_uint_eq(rows[1].slow.usual_us, 600);
    expect_others_well(1);
    times[1].compute_us += UINT64_C(12000) * STEPS;
    (void)judge(WORKERS);
    ck_assert_int_eq(rows[1].slow.part, KELP_SLOW_COMPUTING);
    setup();
    times[1].pushed_steps = STEPS / 3;
    times[1].behind_us = UINT64_C(12000) * times[1].pushed_steps;
    (void)judge(WORKERS);
    expect_others_well(WORKERS);
}

static void wait_for(size_t worker, const char *shard, uint64_t alone_us)
{
    (void)snprintf(times[worker].shard, sizeof(times[worker].shard), "%s", shard);
    times[worker].alone_us = alone_us * STEPS;
    times[worker].wait_us = times[worker].wait_us > times[worker].alone_us ? times[worker].wait_us
                                                                           : times[worker].alone_us;
}

/* One worker waits for a shard that others do not wait for: the way between the two is slow. */
KELP_TEST(a_shard_is_slow_to_one)
{
    wait_for(0, "shard-1", 100);
    wait_for(1, "shard-2", 9000);
    wait_for(2, "shard-2", 100);
    wait_for(3, "shard-0", 100);
    times[1].behind_us = UINT64_C(9000) * STEPS; /* since it begins later */
    ck_assert_uint_eq(judge(WORKERS), WORKERS);
    ck_assert_int_eq(rows[1].slow.part, KELP_SLOW_SHARD);
    ck_assert_uint_eq(rows[1].slow.us, 9000);
    expect_others_well(1);
    ck_assert_int_eq(shard_slow.part, KELP_SLOW_NOT);
}

/* All wait for one shard: that is slow, and none of them. */
KELP_TEST(a_shard_is_slow_to_all)
{
    wait_for(0, "shard-2", 8000);
    wait_for(1, "shard-2", 9000);
    wait_for(2, "shard-2", 7000);
    wait_for(3, "shard-0", 6000);
    times[2].behind_us = UINT64_C(12000) * STEPS;
    const size_t shard = judge(WORKERS);
    ck_assert_uint_lt(shard, WORKERS);
    ck_assert_str_eq(times[shard].shard, "shard-2");
    ck_assert_int_eq(shard_slow.part, KELP_SLOW_SHARD);
    ck_assert_uint_eq(shard_slow.us, 8000);
    ck_assert_uint_eq(shard_slow.step_us, 20000);
    ck_assert_int_eq(rows[3].slow.part, KELP_SLOW_SHARD); /* of its own */
    expect_others_well(3);
}

/* Half of the workers are no majority. */
KELP_TEST(two_of_four)
{
    wait_for(0, "shard-2", 8000);
    wait_for(1, "shard-2", 9000);
    ck_assert_uint_eq(judge(WORKERS), WORKERS);
    ck_assert_int_eq(rows[0].slow.part, KELP_SLOW_SHARD);
    ck_assert_int_eq(rows[1].slow.part, KELP_SLOW_SHARD);
}

/* A worker alone has nobody to be compared with, but waits for a shard; two are compared with each
 * other. */
KELP_TEST(few_workers)
{
    times[0].compute_us *= 10;
    ck_assert_uint_eq(judge(1), 1);
    ck_assert_int_eq(rows[0].slow.part, KELP_SLOW_NOT);
    wait_for(0, "shard-1", 9000);
    ck_assert_uint_eq(judge(1), 0);
    ck_assert_uint_eq(judge(0), 0);
    setup();
    times[1].compute_us *= 3;
    (void)judge(2);
    ck_assert_int_eq(rows[0].slow.part, KELP_SLOW_NOT);
    ck_assert_int_eq(rows[1].slow.part, KELP_SLOW_COMPUTING);
    ck_assert_uint_eq(rows[1].slow.usual_us, 5000);
}

/* Steps of a third of a millisecond: what processes on one host differ by is nothing. */
KELP_TEST(tiny_steps)
{
    for (unsigned i = 0; i < WORKERS; i++) {
        times[i].length_us = 330 * STEPS;
        times[i].read_us = 5 * STEPS;
        times[i].compute_us = 40 * STEPS;
        times[i].push_us = 60 * STEPS;
        times[i].wait_us = 200 * STEPS;
        times[i].behind_us = 20 * STEPS;
    }
    times[1].compute_us = 150 * STEPS;
    times[2].push_us = 200 * STEPS;
    times[3].behind_us = 900 * STEPS;
    wait_for(0, "shard-1", 180);
    ck_assert_uint_eq(judge(WORKERS), WORKERS);
    expect_others_well(WORKERS);
}

/* What nobody can have measured. */
KELP_TEST(impossible_times)
{
    const struct kelp_worker_times good = times[0];
    struct kelp_worker_times bad[11];

    for (size_t i = 0; i < KELP_ARRAY_COUNT(bad); i++) {
        bad[i] = good;
    }
    bad[0].serial = 0;
    bad[1].steps = 0;
    bad[2].steps = KELP_COORDINATOR_TIMES_STEPS_MAX + 1;
    bad[3].lanes = 0;
    bad[4].lanes = KELP_COORDINATOR_TIMES_LANES_MAX + 1;
    bad[5].length_us = 0;
    bad[6].length_us = UINT64_MAX;
    bad[7].compute_us = KELP_COORDINATOR_TIMES_US_MAX + 1;
    (void)snprintf(bad[8].shard, sizeof(bad[8].shard), "shard-1");
    bad[8].alone_us = bad[8].wait_us + 1;
    bad[9].alone_us = 1; /* for no shard */
    (void)snprintf(bad[10].shard, sizeof(bad[10].shard), "a shard\n");
    ck_assert(kelp_worker_times_valid(&good));
    for (size_t i = 0; i < KELP_ARRAY_COUNT(bad); i++) {
        ck_assert_msg(!kelp_worker_times_valid(&bad[i]), "times %zu are taken", i);
    }
}

/* The largest numbers that are taken. */
KELP_TEST(large_numbers)
{
    for (unsigned i = 0; i < WORKERS; i++) {
        times[i] =
            (struct kelp_worker_times){.serial = UINT64_MAX,
                                       .steps = i == 0 ? 1 : KELP_COORDINATOR_TIMES_STEPS_MAX,
                                       .lanes = i == 0 ? 1 : KELP_COORDINATOR_TIMES_LANES_MAX,
                                       .length_us = KELP_COORDINATOR_TIMES_US_MAX,
                                       .read_us = i == 0 ? KELP_COORDINATOR_TIMES_US_MAX : 0,
                                       .compute_us = KELP_COORDINATOR_TIMES_US_MAX};
    }
    (void)judge(WORKERS);
    ck_assert_int_ne(rows[0].slow.part, KELP_SLOW_NOT);
    ck_assert_uint_le(rows[0].slow.excess_us, 2 * KELP_COORDINATOR_TIMES_US_MAX);
}

/* Where a worker's time goes: windows of steps, and the shard that is waited for alone. */
#include <string.h>

#include "tests/lib/suite.h"
#include "worker/core/times.h"

#define STEP_US 100000u

static struct kelp_times times;
static struct kelp_times_window window;
static uint64_t now_us;

static void setup(void)
{
    memset(&times, 0, sizeof(times));
    memset(&window, 0, sizeof(window));
    now_us = 5000000;
}

/* Weights come over link 0 and link 1, so long after the wait began; then lanes are computed. */
static bool step(uint64_t first_us, uint64_t second_us)
{
    const uint64_t last_us = first_us > second_us ? first_us : second_us;
    const struct kelp_times_step took = {.train = true,
                                         .begins = true,
                                         .lanes = 2,
                                         .read_us = 1000,
                                         .compute_us = STEP_US - last_us - 3000,
                                         .push_us = 2000,
                                         .wait_us = last_us};

    kelp_times_waits(&times, now_us);
    kelp_times_answered(&times, first_us < second_us ? 0 : 1,
                        now_us + (first_us < second_us ? first_us : second_us));
    kelp_times_answered(&times, first_us < second_us ? 1 : 0, now_us + last_us);
    kelp_times_begins(&times);
    now_us += STEP_US;
    return kelp_times_add(&times, &took, now_us, &window);
}

KELP_CASE("times", .setup = setup)

/* A window is a second long, and has sums of all its steps; the next one has the next number. */
KELP_TEST(a_window_of_steps)
{
    for (unsigned i = 0; i < 9; i++) {
        ck_assert(!step(500, 600));
    }
    ck_assert(step(500, 600));
    ck_assert_uint_eq(window.serial, 1);
    ck_assert_uint_eq(window.steps, 10);
    ck_assert_uint_eq(window.lanes, 20);
    ck_assert_uint_eq(window.length_us, 10 * STEP_US);
    ck_assert_uint_eq(window.read_us, 10 * 1000);
    ck_assert_uint_eq(window.push_us, 10 * 2000);
    ck_assert_uint_eq(window.wait_us, 10 * 600);
    ck_assert_uint_eq(window.compute_us, 10 * (STEP_US - 3600));
    ck_assert_uint_eq(window.alone_us, 10 * 100);
    ck_assert_uint_eq(window.link, 1);
    for (unsigned i = 0; i < 9; i++) {
        ck_assert(!step(500, 600));
    }
    ck_assert(step(500, 600));
    ck_assert_uint_eq(window.serial, 2);
    ck_assert_uint_eq(window.steps, 10);
    ck_assert_uint_eq(window.length_us, 10 * STEP_US);
}

/* Long steps: a window has four. */
KELP_TEST(long_steps)
{
    const struct kelp_times_step took = {.train = true, .begins = true, .compute_us = 3000000};

    for (unsigned i = 0; i < 3; i++) {
        now_us += 3000000;
        ck_assert(!kelp_times_add(&times, &took, now_us, &window));
    }
    now_us += 3000000;
    ck_assert(kelp_times_add(&times, &took, now_us, &window));
    ck_assert_uint_eq(window.steps, 4);
    ck_assert_uint_eq(window.length_us, 12000000);
}

/* The shard that is waited for most is named, with what is its own alone. */
KELP_TEST(the_shard_that_comes_last)
{
    for (unsigned i = 0; i < 6; i++) {
        ck_assert(!step(30000, 1000));
    }
    for (unsigned i = 0; i < 3; i++) {
        ck_assert(!step(1000, 2000));
    }
    ck_assert(step(1000, 2000));
    ck_assert_uint_eq(window.link, 0);
    ck_assert_uint_eq(window.alone_us, 6 * 29000);
}

/* One shard alone cannot be told from the workers that it waits for. */
KELP_TEST(a_single_shard)
{
    const struct kelp_times_step took = {.train = true, .begins = true, .wait_us = 250000};
    bool whole = false;

    for (unsigned i = 0; i < 4; i++) {
        ck_assert(!whole);
        kelp_times_waits(&times, now_us);
        kelp_times_answered(&times, 0, now_us + 100000);
        kelp_times_answered(&times, 0, now_us + 250000);
        kelp_times_begins(&times);
        now_us += 250000;
        whole = kelp_times_add(&times, &took, now_us, &window);
    }
    ck_assert(whole);
    ck_assert_uint_eq(window.wait_us, 1000000);
    ck_assert_uint_eq(window.alone_us, 0);
}

/* What came before the worker waited is no wait: the shard was not late. */
KELP_TEST(weights_that_were_there)
{
    const struct kelp_times_step took = {.train = true, .begins = true, .compute_us = 250000};

    for (unsigned i = 0; i < 4; i++) {
        kelp_times_answered(&times, 0, now_us);
        kelp_times_answered(&times, 1, now_us + 200000);
        kelp_times_waits(&times, now_us + 240000);
        kelp_times_begins(&times);
        now_us += 250000;
        (void)kelp_times_add(&times, &took, now_us, &window);
    }
    ck_assert_uint_eq(window.serial, 1);
    ck_assert_uint_eq(window.alone_us, 0);
}

/* Evaluations are no steps: neither their work nor their time is in a window. Lanes that were
 * offered belong to the step under way. */
KELP_TEST(other_entries_are_left_out)
{
    const struct kelp_times_step evaluation = {
        .begins = true, .lanes = 2, .read_us = 7, .compute_us = 700000};
    const struct kelp_times_step offered = {.train = true, .lanes = 1, .compute_us = STEP_US};

    for (unsigned i = 0; i < 8; i++) {
        ck_assert(!step(500, 600));
    }
    now_us += 700007;
    ck_assert(!kelp_times_add(&times, &evaluation, now_us, &window));
    now_us += STEP_US;
    ck_assert(!kelp_times_add(&times, &offered, now_us, &window));
    ck_assert(step(500, 600));
    ck_assert_uint_eq(window.steps, 9);
    ck_assert_uint_eq(window.lanes, 2 * 9 + 1);
    ck_assert_uint_eq(window.length_us, 10 * STEP_US);
    ck_assert_uint_eq(window.read_us, 9 * 1000);
    ck_assert_uint_eq(window.compute_us, 9 * (STEP_US - 3600) + STEP_US);
}

/* More shards than are kept apart: the slow one stays, whenever it begins to be slow. */
KELP_TEST(many_shards)
{
    const struct kelp_times_step took = {.train = true, .begins = true, .compute_us = 10000};
    bool whole = false;

    for (unsigned i = 0; !whole; i++) {
        const bool slow = i > 50;
        kelp_times_waits(&times, now_us);
        kelp_times_answered(&times, i % 99, now_us + 10);
        kelp_times_answered(&times, slow ? 500 : 100 + i % 99, now_us + (slow ? 5000 : 11));
        kelp_times_begins(&times);
        now_us += 10000;
        whole = kelp_times_add(&times, &took, now_us, &window);
    }
    ck_assert_uint_eq(window.steps, 100);
    ck_assert_uint_eq(window.link, 500);
    ck_assert_uint_eq(window.alone_us, 49 * 4990);
}

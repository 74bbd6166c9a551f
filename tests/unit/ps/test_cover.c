#include <string.h>

#include "ps/core/lanes/cover.h"
#include "tests/lib/suite.h"

#define LANES 8
#define MS    1000u

static struct kelp_cover *cover;
static struct kelp_control_word word;
static uint8_t missing[LANES];
static struct kelp_cover_candidate candidates[8];
static size_t candidate_count;
static struct kelp_cover_offer offers[LANES];
static uint64_t next_us;

static void setup(void)
{
    cover = kelp_cover_create(LANES);
    ck_assert_ptr_nonnull(cover);
    word = (struct kelp_control_word){.version = 16, .kind = KELP_STEP_TRAIN};
    memset(missing, 1, sizeof(missing));
    candidate_count = 0;
}

static void teardown(void)
{
    kelp_cover_destroy(cover);
}

static void candidate(uint64_t requester, uint64_t rank)
{
    candidates[candidate_count++] =
        (struct kelp_cover_candidate){.requester = requester, .rank = rank};
}

/* What is offered at now_us; the candidates are given again each time. */
static uint32_t choose(uint64_t now_us)
{
    struct kelp_cover_need need = {.word = &word,
                                   .now_us = now_us,
                                   .missing = missing,
                                   .candidates = candidates,
                                   .count = candidate_count};
    return kelp_cover_choose(cover, &need, offers, &next_us);
}

/* `count` entries of this length, the first of them beginning at *now_us. */
static void entries(uint64_t *now_us, unsigned count, uint64_t length_us)
{
    kelp_cover_begin_late(cover, *now_us);
    kelp_cover_complete(cover, KELP_STEP_TRAIN, *now_us); /* the beginning is known from here on */
    for (unsigned i = 0; i < count; i++) {
        *now_us += length_us;
        kelp_cover_complete(cover, KELP_STEP_TRAIN, *now_us);
    }
}

static uint64_t late_after(uint64_t now_us)
{
    return kelp_cover_late_us(cover, KELP_STEP_TRAIN) - now_us;
}

KELP_CASE("late", .setup = setup, .teardown = teardown)

KELP_TEST(late_after_three_medians)
{
    uint64_t now_us = 5000;

    entries(&now_us, 9, 10 * MS);
    entries(&now_us, 2, 500 * MS); /* outliers do not count */
    ck_assert_uint_eq(late_after(now_us), 30 * MS);
}

KELP_TEST(never_late_below_the_floor)
{
    uint64_t now_us = 5000;

    entries(&now_us, 9, 1 * MS);
    ck_assert_uint_eq(late_after(now_us), KELP_COVER_FLOOR_US);
}

/* Validation passes take long; training steps of the same job do not become slow by it. */
KELP_TEST(kinds_are_apart)
{
    uint64_t now_us = 0;

    entries(&now_us, 9, 10 * MS);
    kelp_cover_complete(cover, KELP_STEP_EVALUATE_VAL, now_us + 900 * MS);
    now_us += 900 * MS;
    ck_assert_uint_eq(late_after(now_us), 30 * MS);
    ck_assert_uint_eq(kelp_cover_late_us(cover, KELP_STEP_EVALUATE_VAL) - now_us, 2700 * MS);
}

KELP_TEST(first_entry_goes_by_its_first_node)
{
    ck_assert_uint_eq(kelp_cover_late_us(cover, KELP_STEP_TRAIN), UINT64_MAX);
    kelp_cover_begin(cover, 100 * MS);
    kelp_cover_begin(cover, 200 * MS); /* somebody else: it has begun */
    ck_assert_uint_eq(late_after(100 * MS), KELP_COVER_SILENT_US);
    kelp_cover_pushed(cover, 1, 0, 2, 150 * MS);
    kelp_cover_pushed(cover, 1, 2, 2, 190 * MS);
    ck_assert_uint_eq(late_after(100 * MS), KELP_COVER_UNKNOWN_US + 150 * MS);
    /* Workers come one after another: how long it took says nothing of the next. */
    kelp_cover_complete(cover, KELP_STEP_TRAIN, 4000 * MS);
    ck_assert_uint_eq(late_after(4000 * MS), KELP_COVER_SILENT_US);
}

KELP_TEST(restart_forgets)
{
    uint64_t now_us = 0;

    entries(&now_us, 9, 1 * MS);
    kelp_cover_restart(cover);
    ck_assert_uint_eq(kelp_cover_late_us(cover, KELP_STEP_TRAIN), UINT64_MAX);
    kelp_cover_begin(cover, now_us);
    ck_assert_uint_eq(late_after(now_us), KELP_COVER_SILENT_US);
}

/* Else each covered entry would make the next one wait longer. */
/* What another process saw counts until something is seen here. */
KELP_TEST(heard_paces_are_a_measure)
{
    struct kelp_pace pace = {.median_us = {[KELP_STEP_TRAIN] = 40 * MS}};
    uint64_t now_us = 5000;

    kelp_cover_hear_pace(cover, &pace);
    kelp_cover_begin_late(cover, now_us);
    kelp_cover_pushed(cover, 1, 0, 4, now_us);
    ck_assert_uint_eq(late_after(now_us), 120 * MS);
    entries(&now_us, 9, 10 * MS);
    ck_assert_uint_eq(late_after(now_us), 30 * MS);
    kelp_cover_hear_pace(cover, &pace); /* too late: it is known */
    ck_assert_uint_eq(late_after(now_us), 30 * MS);
    kelp_cover_pace(cover, &pace);
    ck_assert_uint_eq(pace.median_us[KELP_STEP_TRAIN], 10 * MS);
    ck_assert_uint_eq(pace.median_us[KELP_STEP_EVALUATE_VAL], 0);
}

KELP_TEST(paces_beyond_belief_are_not_heard)
{
    const struct kelp_pace pace = {.median_us = {[KELP_STEP_TRAIN] = UINT64_MAX / 2}};

    kelp_cover_hear_pace(cover, &pace);
    kelp_cover_begin_late(cover, 0);
    ck_assert_uint_eq(late_after(0), KELP_COVER_SILENT_US);
}

KELP_TEST(covered_entries_are_no_measure)
{
    uint64_t now_us = 0;

    entries(&now_us, 9, 1 * MS);
    candidate(1, 1);
    for (unsigned i = 0; i < 40; i++) {
        now_us += 15 * MS;
        ck_assert_uint_eq(choose(now_us), 1);
        kelp_cover_pushed(cover, 1, 0, LANES, now_us);
        kelp_cover_complete(cover, KELP_STEP_TRAIN, now_us);
        ck_assert_uint_eq(late_after(now_us), KELP_COVER_FLOOR_US);
    }
    for (unsigned i = 0; i < 15; i++) { /* but if they come by themselves, entries are slow now */
        now_us += 15 * MS;
        ck_assert_uint_eq(choose(now_us), 1);
        kelp_cover_pushed(cover, 2, 0, LANES, now_us);
        kelp_cover_complete(cover, KELP_STEP_TRAIN, now_us);
    }
    ck_assert_uint_eq(late_after(now_us), 45 * MS);
}

KELP_CASE("offers", .setup = setup, .teardown = teardown)

KELP_TEST(maximal_nodes_that_are_missing)
{
    kelp_cover_begin(cover, 0);
    candidate(1, 1);
    missing[0] = missing[1] = missing[5] = 0;
    ck_assert_uint_eq(choose(MS), 3);
    ck_assert_uint_eq(offers[0].lane_first, 2);
    ck_assert_uint_eq(offers[0].lane_count, 2);
    ck_assert_uint_eq(offers[1].lane_first, 4);
    ck_assert_uint_eq(offers[1].lane_count, 1);
    ck_assert_uint_eq(offers[2].lane_first, 6);
    ck_assert_uint_eq(offers[2].lane_count, 2);
}

KELP_TEST(spread_over_candidates)
{
    unsigned asked[4] = {0};

    kelp_cover_begin(cover, 0);
    for (uint64_t i = 0; i < 4; i++) {
        candidate(i, i);
        candidate(i, i); /* it waits here twice */
    }
    ck_assert_uint_eq(choose(MS), 4);
    for (uint32_t i = 0; i < 4; i++) {
        ck_assert_uint_eq(offers[i].lane_count, 2);
        asked[offers[i].requester]++;
    }
    for (uint32_t i = 0; i < 4; i++) {
        ck_assert_uint_eq(asked[i], 1);
    }
}

/* Partitions list who waits in different orders, and know them by other names. */
KELP_TEST(same_choice_in_any_order)
{
    struct kelp_cover_offer before[LANES];

    kelp_cover_begin(cover, 0);
    candidate(1, 70);
    candidate(2, 50);
    candidate(3, 60);
    uint32_t count = choose(MS);
    memcpy(before, offers, sizeof(before));
    kelp_cover_restart(cover);
    candidate_count = 0;
    candidate(30, 60);
    candidate(10, 70);
    candidate(20, 50);
    ck_assert_uint_eq(choose(MS), count);
    for (uint32_t i = 0; i < count; i++) {
        ck_assert_uint_eq(offers[i].requester, 10 * before[i].requester);
        ck_assert_uint_eq(offers[i].lane_first, before[i].lane_first);
    }
}

/* One offer for a lane at a time; then another candidate, and more patience. */
KELP_TEST(expired_offers_go_to_another)
{
    uint64_t now_us = 0;

    entries(&now_us, 9, 1 * MS);
    candidate(1, 1);
    candidate(2, 2);
    memset(missing + 1, 0, LANES - 1);
    now_us += 20 * MS;
    ck_assert_uint_eq(choose(now_us), 1);
    uint64_t asked = offers[0].requester;
    for (uint64_t life_us = KELP_COVER_FLOOR_US; life_us < KELP_COVER_OFFER_US_MAX; life_us *= 2) {
        ck_assert_uint_eq(next_us, now_us + life_us);
        ck_assert_uint_eq(choose(next_us - 1), 0);
        now_us = next_us;
        ck_assert_uint_eq(choose(now_us), 1);
        ck_assert_uint_ne(offers[0].requester, asked);
        asked = offers[0].requester;
    }
    ck_assert_uint_eq(next_us, now_us + KELP_COVER_OFFER_US_MAX);
}

KELP_TEST(gone_spares_lose_their_offers)
{
    kelp_cover_begin(cover, 0);
    candidate(1, 1);
    ck_assert_uint_eq(choose(MS), 1);
    ck_assert_uint_eq(choose(MS), 0);
    kelp_cover_gone(cover, 2);
    ck_assert_uint_eq(choose(MS), 0);
    kelp_cover_gone(cover, 1);
    candidate_count = 0;
    candidate(2, 2);
    ck_assert_uint_eq(choose(MS), 1);
    ck_assert_uint_eq(offers[0].requester, 2);
}

KELP_TEST(nobody_to_ask)
{
    kelp_cover_begin(cover, 0);
    ck_assert_uint_eq(choose(MS), 0);
    ck_assert_uint_eq(next_us, UINT64_MAX);
}

KELP_TEST(next_entry_starts_afresh)
{
    kelp_cover_begin(cover, 0);
    candidate(1, 1);
    ck_assert_uint_eq(choose(MS), 1);
    kelp_cover_complete(cover, KELP_STEP_TRAIN, 2 * MS);
    ck_assert_uint_eq(choose(3 * MS), 1);
}

#include <string.h>

#include "tests/lib/suite.h"
#include "worker/core/offers.h"

static struct kelp_offers offers;
static uint8_t computed[KELP_JOB_LANES_MAX];
static uint32_t first;
static uint32_t count;

static void setup(void)
{
    memset(&offers, 0, sizeof(offers));
    memset(computed, 0, sizeof(computed));
}

static struct kelp_control_word word(uint64_t version)
{
    return (struct kelp_control_word){.version = version, .kind = KELP_STEP_TRAIN, .lr = 0.5};
}

static bool add(uint64_t version, uint32_t lane_first, uint32_t lane_count)
{
    struct kelp_control_word of = word(version);
    return kelp_offers_add(&offers, &of, lane_first, lane_count);
}

static bool find(uint64_t version)
{
    struct kelp_control_word of = word(version);
    return kelp_offers_find(&offers, &of, computed, &first, &count);
}

KELP_CASE("lanes", .setup = setup)

KELP_TEST(same_lanes_from_several_partitions)
{
    ck_assert(!find(7));
    ck_assert(add(7, 2, 2));
    ck_assert(add(7, 2, 2));
    ck_assert(add(7, 4, 1));
    ck_assert(find(7));
    ck_assert_uint_eq(first, 2);
    ck_assert_uint_eq(count, 3);
    memset(computed + 2, 1, 3);
    ck_assert(!find(7));
    ck_assert(add(7, 0, 8));
    ck_assert(find(7));
    ck_assert_uint_eq(first, 0);
    ck_assert_uint_eq(count, 2);
    memset(computed, 1, 2);
    ck_assert(find(7));
    ck_assert_uint_eq(first, 5);
    ck_assert_uint_eq(count, 3);
}

/* A partition that lags needs v, one that does not wants v + 1: the lower must not be lost. */
KELP_TEST(two_versions_are_kept)
{
    ck_assert(add(8, 0, 1));
    ck_assert(add(7, 4, 2));
    ck_assert(find(7));
    ck_assert_uint_eq(first, 4);
    ck_assert(find(8));
    ck_assert_uint_eq(first, 0);
    ck_assert(!add(6, 0, 1)); /* nothing of it is left to do */
    ck_assert(add(9, 3, 1));
    ck_assert(!find(7));
    ck_assert(find(8));
    ck_assert(find(9));
    ck_assert_uint_eq(first, 3);
    ck_assert_uint_eq(count, 1);
}

KELP_TEST(another_word_of_that_version)
{
    struct kelp_control_word other = word(7);

    other.lr = 0.25; /* of another generation, or of a shard that is wrong */
    ck_assert(add(7, 0, 4));
    ck_assert(!kelp_offers_find(&offers, &other, computed, &first, &count));
    ck_assert(kelp_offers_add(&offers, &other, 1, 1));
    ck_assert(!find(7));
    ck_assert(kelp_offers_find(&offers, &other, computed, &first, &count));
    ck_assert_uint_eq(count, 1);
}

static void fetched(uint64_t version, uint64_t step)
{
    struct kelp_control_word of = word(version);
    of.step = step;
    kelp_offers_fetched(&offers, &of);
}

static bool find_at(uint64_t version, uint64_t step)
{
    struct kelp_control_word of = word(version);
    of.step = step;
    return kelp_offers_find(&offers, &of, computed, &first, &count);
}

static void add_at(uint64_t version, uint64_t step, uint32_t lane)
{
    struct kelp_control_word of = word(version);
    of.step = step;
    ck_assert(kelp_offers_add(&offers, &of, lane, 1));
}

/* Whoever lags behind all offers needs a push to learn where it is. */
KELP_TEST(fetched_a_step_before)
{
    add_at(4, 3, 1); /* of long ago */
    add_at(8, 6, 2);
    fetched(7, 5);
    ck_assert(find_at(7, 5));
    ck_assert_uint_eq(first, 0);
    ck_assert_uint_eq(count, 1);
    ck_assert(find_at(8, 6));
    ck_assert_uint_eq(first, 2);
}

KELP_TEST(fetched_what_was_offered)
{
    add_at(7, 5, 3);
    add_at(8, 6, 2);
    fetched(7, 5); /* that partition knows the word */
    ck_assert(find_at(7, 5));
    ck_assert_uint_eq(first, 3);
    fetched(8, 6);
    ck_assert(find_at(8, 6));
    ck_assert_uint_eq(first, 2);
    fetched(9, 6); /* offers have become old meanwhile */
    ck_assert(!find_at(9, 6));
}

KELP_TEST(cleared)
{
    ck_assert(add(7, 0, KELP_JOB_LANES_MAX));
    ck_assert(find(7));
    ck_assert_uint_eq(count, KELP_JOB_LANES_MAX);
    kelp_offers_clear(&offers);
    ck_assert(!find(7));
    ck_assert(add(3, 0, 1)); /* a generation that starts over is as good */
    ck_assert(find(3));
}

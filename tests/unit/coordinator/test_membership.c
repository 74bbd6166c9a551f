/* Membership: joins, replacement, silence, stopped ticks. */
#include <stdio.h>
#include <string.h>

#include "coordinator/core/membership.h"
#include "tests/lib/suite.h"

static struct kelp_membership membership;

static void setup(void)
{
    ck_assert_int_eq(kelp_membership_init(&membership, 8, 1000, NULL), KELP_OK);
}

static void teardown(void)
{
    kelp_membership_fini(&membership);
}

static uint64_t join(enum kelp_member_kind kind, const char *id, uint64_t incarnation, uint64_t now,
                     uint64_t *ret_replaced)
{
    struct kelp_member_joined joined = {.kind = kind, .id = id, .incarnation = incarnation};
    uint64_t key = 0;
    ck_assert_int_eq(kelp_membership_join(&membership, &joined, now, &key, ret_replaced, NULL),
                     KELP_OK);
    return key;
}

KELP_CASE("members", .timeout_s = 60, .setup = setup, .teardown = teardown)

/* Workers get lanes, shards do not. */
KELP_TEST(joining_workers_get_lanes)
{
    uint64_t replaced = 0;
    uint64_t a = join(KELP_MEMBER_WORKER, "worker-0", 1, 10, &replaced);
    uint64_t s = join(KELP_MEMBER_SHARD, "worker-0", 2, 10, &replaced);
    ck_assert_uint_eq(replaced, 0);
    uint64_t b = join(KELP_MEMBER_WORKER, "worker-1", 3, 10, &replaced);
    ck_assert_uint_eq(kelp_assignment_of(&membership.assignment, a).count, 4);
    ck_assert_uint_eq(kelp_assignment_of(&membership.assignment, b).first, 4);
    ck_assert_uint_eq(kelp_assignment_of(&membership.assignment, s).count, 0);
    kelp_membership_remove(&membership, a, true);
    ck_assert_uint_eq(kelp_assignment_of(&membership.assignment, b).count, 8);
    ck_assert_uint_eq(membership.losses[KELP_MEMBER_WORKER], 1);
    ck_assert_uint_eq(membership.counts[KELP_MEMBER_SHARD], 1);
}

/* Who holds an id keeps it, whatever another process says that it is called. */
KELP_TEST(a_taken_id_is_kept)
{
    struct kelp_member_joined joined = {.id = "worker-0", .incarnation = 2};
    struct kelp_error error;
    uint64_t replaced = 0;
    uint64_t key = 77;
    uint64_t a = join(KELP_MEMBER_WORKER, "worker-0", 1, 10, &replaced);
    ck_assert_int_eq(kelp_membership_may_join(&membership, &joined, &error), KELP_ERR_EXISTS);
    ck_assert_str_eq(error.text, "another process has the id worker-0");
    ck_assert_int_eq(kelp_membership_join(&membership, &joined, 20, &key, &replaced, &error),
                     KELP_ERR_EXISTS);
    ck_assert_uint_eq(key, 77);
    ck_assert_uint_eq(kelp_membership_find(&membership, a)->incarnation, 1);
    ck_assert_uint_eq(kelp_assignment_of(&membership.assignment, a).count, 8);
    kelp_membership_remove(&membership, a, true);
    ck_assert_int_eq(kelp_membership_may_join(&membership, &joined, &error), KELP_OK);
}

/* The next stream of the same process takes its place, and is no loss. */
KELP_TEST(same_incarnation_replaces)
{
    uint64_t replaced = 0;
    uint64_t a = join(KELP_MEMBER_WORKER, "worker-0", 1, 10, &replaced);
    uint64_t b = join(KELP_MEMBER_WORKER, "worker-0", 1, 20, &replaced);
    ck_assert_uint_eq(replaced, a);
    ck_assert_ptr_null(kelp_membership_find(&membership, a));
    ck_assert_ptr_nonnull(kelp_membership_find(&membership, b));
    ck_assert_uint_eq(membership.losses[KELP_MEMBER_WORKER], 0);
    ck_assert_uint_eq(membership.counts[KELP_MEMBER_WORKER], 1);
}

/* A certificate for that very id goes before one for any; nobody copies an incarnation past it. */
KELP_TEST(a_certificate_for_the_id_goes_first)
{
    struct kelp_member_joined named = {.id = "worker-0", .incarnation = 2, .named = true};
    struct kelp_member_joined copied = {.id = "worker-0", .incarnation = 2};
    uint64_t replaced = 0;
    uint64_t key = 0;
    uint64_t a = join(KELP_MEMBER_WORKER, "worker-0", 1, 10, &replaced);
    ck_assert_int_eq(kelp_membership_join(&membership, &named, 20, &key, &replaced, NULL), KELP_OK);
    ck_assert_uint_eq(replaced, a);
    ck_assert_int_eq(kelp_membership_may_join(&membership, &copied, NULL), KELP_ERR_EXISTS);
    named.incarnation = 3;
    ck_assert_int_eq(kelp_membership_may_join(&membership, &named, NULL), KELP_ERR_EXISTS);
}

/* Silence over detect_ms, counted from the latest sign of life. */
KELP_TEST(silence_is_a_loss)
{
    uint64_t replaced = 0;
    uint64_t lost[4];
    uint64_t a = join(KELP_MEMBER_WORKER, "worker-0", 1, 100, &replaced);
    uint64_t b = join(KELP_MEMBER_WORKER, "worker-1", 2, 100, &replaced);
    struct kelp_member_heard heard = {.lanes_computed = 7, .trouble = "no data"};
    for (uint64_t now = 200; now <= 1100; now += 100) {
        kelp_membership_heard(&membership, b, &heard, now);
        ck_assert_uint_eq(kelp_membership_tick(&membership, now, lost, 4), 0);
    }
    ck_assert_uint_eq(kelp_membership_tick(&membership, 1200, lost, 4), 1);
    ck_assert_uint_eq(lost[0], a);
    ck_assert_uint_eq(kelp_membership_find(&membership, b)->lanes_computed, 7);
    ck_assert_str_eq(kelp_membership_find(&membership, b)->trouble, "no data");
    kelp_membership_heard(&membership, b, NULL, 1250);
    ck_assert_str_eq(kelp_membership_find(&membership, b)->trouble, "no data");
}

/* A coordinator that was stopped for ten seconds blames nobody for it. */
KELP_TEST(own_sleep_is_nobodys_silence)
{
    uint64_t replaced = 0;
    uint64_t lost[4];
    (void)join(KELP_MEMBER_WORKER, "worker-0", 1, 100, &replaced);
    ck_assert_uint_eq(kelp_membership_tick(&membership, 200, lost, 4), 0);
    ck_assert_uint_eq(kelp_membership_tick(&membership, 10200, lost, 4), 0);
    for (uint64_t now = 10300; now <= 11200; now += 100) {
        ck_assert_uint_eq(kelp_membership_tick(&membership, now, lost, 4), 0);
    }
    ck_assert_uint_eq(kelp_membership_tick(&membership, 11300, lost, 4), 1);
}

KELP_TEST(ids_are_checked)
{
    struct kelp_member_joined joined = {.kind = KELP_MEMBER_WORKER, .id = "a b"};
    struct kelp_error error;
    uint64_t key = 0;
    uint64_t replaced = 0;
    char longest[KELP_COORDINATOR_ID_MAX + 2];
    memset(longest, 'x', sizeof(longest));
    longest[KELP_COORDINATOR_ID_MAX + 1] = '\0';
    ck_assert(!kelp_member_id_valid(longest));
    longest[KELP_COORDINATOR_ID_MAX] = '\0';
    ck_assert(kelp_member_id_valid(longest));
    ck_assert(!kelp_member_id_valid(""));
    ck_assert_int_eq(kelp_membership_join(&membership, &joined, 0, &key, &replaced, &error),
                     KELP_ERR_INVALID);
    ck_assert_uint_eq(membership.count, 0);
}

/* One worker more than the table holds is refused with the number in the text. */
KELP_TEST(workers_are_bounded)
{
    uint64_t replaced = 0;
    char id[32];
    membership.assignment.epoch = 0;
    for (uint32_t i = 0; i < KELP_COORDINATOR_WORKERS_MAX; i++) {
        (void)snprintf(id, sizeof(id), "worker-%u", i);
        (void)join(KELP_MEMBER_WORKER, id, i, 0, &replaced);
    }
    struct kelp_member_joined joined = {.kind = KELP_MEMBER_WORKER, .id = "one-more"};
    struct kelp_error error;
    uint64_t key = 0;
    ck_assert_int_eq(kelp_membership_join(&membership, &joined, 0, &key, &replaced, &error),
                     KELP_ERR_LIMIT);
    ck_assert_ptr_nonnull(strstr(error.text, "4096"));
}

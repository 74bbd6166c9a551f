/* Membership: joins, replacement, silence, stopped ticks. */
#include <stdio.h>
#include <string.h>

#include "common/base/process_name.h"
#include "coordinator/core/membership/membership.h"
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

static void report_trouble(uint64_t key, const char *text)
{
    const struct kelp_member_heard heard = {.trouble = text};
    kelp_membership_heard(&membership, key, &heard, 20);
}

static uint32_t lanes_of(uint64_t key)
{
    return kelp_membership_lanes(&membership, key).count;
}

/* Lanes go to those who can work, and come back; when nobody can they stay. */
KELP_TEST(trouble_takes_the_lanes)
{
    uint64_t replaced = 0;
    uint64_t a = join(KELP_MEMBER_WORKER, "worker-0", 1, 10, &replaced);
    uint64_t b = join(KELP_MEMBER_WORKER, "worker-1", 2, 10, &replaced);
    uint64_t c = join(KELP_MEMBER_WORKER, "worker-2", 3, 10, &replaced);
    report_trouble(a, "cannot reach shard-1 at 127.0.0.1:9 for 3 s");
    ck_assert_uint_eq(lanes_of(a), 0);
    ck_assert_uint_eq(lanes_of(b), 4);
    uint64_t epoch = membership.assignment.epoch;
    report_trouble(a, "cannot reach shard-1 at 127.0.0.1:9 for 4 s");
    ck_assert_uint_eq(membership.assignment.epoch, epoch);
    report_trouble(b, "it was asked to end");
    ck_assert_uint_eq(lanes_of(c), 8);
    report_trouble(c, "cannot reach shard-1 at 127.0.0.1:9 for 3 s");
    ck_assert_uint_eq(lanes_of(c), 8);
    report_trouble(a, NULL);
    ck_assert_uint_eq(lanes_of(a) + lanes_of(c), 8);
    report_trouble(c, "cannot reach shard-1 at 127.0.0.1:9 for 4 s");
    ck_assert_uint_eq(lanes_of(a), 8);
    kelp_membership_remove(&membership, a, false);
    ck_assert_uint_eq(lanes_of(b) + lanes_of(c), 8);
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

/* ---- seats ---- */

static uint64_t training_stands; /* version */

static uint32_t lanes(uint64_t key)
{
    return kelp_membership_lanes(&membership, key).count;
}

/* A second goes by in which training makes `entries` entries and worker-0 to worker-(count - 1)
 * show work. The key of one that lost its seat. */
static uint64_t second(uint64_t *now, uint32_t entries, int count)
{
    char id[32];
    uint64_t lost = 0;
    for (int tenth = 0; tenth < 10; tenth++) {
        *now += 100;
        for (int i = 0; i < count; i++) {
            (void)snprintf(id, sizeof(id), "worker-%d", i);
            (void)kelp_membership_worked(&membership, id, *now);
        }
        training_stands += tenth == 9 ? entries : 0;
        uint64_t key = kelp_membership_judge(&membership, training_stands, *now);
        lost = key == 0 ? lost : key;
    }
    return lost;
}

/* Of two workers one only answers: it loses its lanes after some seconds, and is tried with one
 * that the other has too. Work earns them again; the next time more of it is wanted. */
KELP_TEST(who_computes_nothing_loses_its_lanes)
{
    uint64_t replaced = 0;
    uint64_t now = 1000;
    uint64_t a = join(KELP_MEMBER_WORKER, "worker-0", 1, now, &replaced);
    uint64_t b = join(KELP_MEMBER_WORKER, "worker-1", 2, now, &replaced);
    for (int i = 0; i < 3; i++) {
        ck_assert_uint_eq(second(&now, 100, 1), 0);
    }
    ck_assert_uint_eq(lanes(b), 4);
    ck_assert_uint_eq(second(&now, 100, 1), b);
    ck_assert_uint_eq(lanes(a), 8);
    ck_assert_uint_eq(lanes(b), 1);
    ck_assert_uint_eq(membership.counts[KELP_MEMBER_WORKER], 2);
    ck_assert(!kelp_membership_worked(&membership, "worker-1", now));
    ck_assert(kelp_membership_worked(&membership, "worker-1", now)); /* the second time */
    ck_assert_uint_eq(lanes(a), 4);
    for (int i = 0; i < 5; i++) {
        (void)second(&now, 100, 1);
    }
    for (int i = 0; i < 3; i++) {
        ck_assert(!kelp_membership_worked(&membership, "worker-1", now));
    }
    ck_assert(kelp_membership_worked(&membership, "worker-1", now));
}

/* Where training is slow or stands, where nobody works, or where both do, nobody loses a seat. */
KELP_TEST(patience_goes_by_entries)
{
    uint64_t replaced = 0;
    uint64_t now = 1000;
    (void)join(KELP_MEMBER_WORKER, "worker-0", 1, now, &replaced);
    uint64_t b = join(KELP_MEMBER_WORKER, "worker-1", 2, now, &replaced);
    for (int i = 0; i < 7; i++) {
        ck_assert_uint_eq(second(&now, 1, 1), 0);
    }
    ck_assert_uint_eq(second(&now, 1, 1), b); /* eight entries without it */
    (void)kelp_membership_worked(&membership, "worker-1", now);
    ck_assert(kelp_membership_worked(&membership, "worker-1", now));
    for (int i = 0; i < 15; i++) {
        ck_assert_uint_eq(second(&now, i == 7, 1), 0);
    }
    ck_assert_uint_eq(second(&now, 1, 1), b); /* two that took long */
    (void)kelp_membership_worked(&membership, "worker-1", now);
    (void)kelp_membership_worked(&membership, "worker-1", now);
    (void)kelp_membership_worked(&membership, "worker-1", now);
    ck_assert(kelp_membership_worked(&membership, "worker-1", now));
    for (int i = 0; i < 10; i++) {
        ck_assert_uint_eq(second(&now, 100, 2), 0);
        ck_assert_uint_eq(second(&now, 100, 0), 0);
    }
    training_stands = 0; /* a restore: what it did before does not count against it */
    (void)second(&now, 2, 1);
    (void)second(&now, 2, 1);
    (void)second(&now, 2, 1);
    ck_assert_uint_eq(second(&now, 1, 1), 0);
}

/* Thirty members that only answer: one at a time gets lanes, for a smaller and smaller part of the
 * time, however many they are; a newcomer that works has its seat at once. */
KELP_TEST(idlers_cost_less_and_less)
{
    uint64_t replaced = 0;
    uint64_t now = 1000;
    char id[32];
    uint64_t a = join(KELP_MEMBER_WORKER, "worker-0", 1, now, &replaced);
    (void)second(&now, 100, 1);
    for (uint64_t i = 0; i < 30; i++) {
        (void)snprintf(id, sizeof(id), "idler-%d", (int)i);
        (void)join(KELP_MEMBER_WORKER, id, 10 + i, now, &replaced);
    }
    ck_assert_uint_eq(lanes(a), 4);
    uint32_t shared = 0;
    for (int i = 0; i < 1000; i++) {
        (void)second(&now, 100, 1);
        shared += lanes(a) < 8;
    }
    ck_assert_uint_lt(shared, 40); /* of 1000 seconds */
    uint64_t b = join(KELP_MEMBER_WORKER, "worker-1", 2, now, &replaced);
    ck_assert_uint_eq(lanes(b), 1);
    ck_assert(kelp_membership_worked(&membership, "worker-1", now));
    ck_assert_uint_eq(lanes(b), 4);
}

/* The same of members that go before their seat is lost, and come again under other names. */
KELP_TEST(leaving_idlers_cost_less_and_less)
{
    uint64_t replaced = 0;
    uint64_t now = 1000;
    char id[32];
    uint64_t a = join(KELP_MEMBER_WORKER, "worker-0", 1, now, &replaced);
    uint32_t shared = 0;
    (void)second(&now, 100, 1);
    for (uint64_t i = 0; i < 1000; i++) {
        (void)snprintf(id, sizeof(id), "idler-%d", (int)i);
        uint64_t idler = join(KELP_MEMBER_WORKER, id, 10 + i, now, &replaced);
        (void)second(&now, 100, 1);
        shared += lanes(a) < 8;
        (void)kelp_membership_tick(&membership, now, NULL, 0);
        kelp_membership_remove(&membership, idler, true);
    }
    ck_assert_uint_lt(shared, 10); /* of 1000 seconds */
}

/* When nobody with a seat is left, those that were tried share the lanes. */
KELP_TEST(the_last_seat_is_filled)
{
    uint64_t replaced = 0;
    uint64_t now = 1000;
    uint64_t a = join(KELP_MEMBER_WORKER, "worker-0", 1, now, &replaced);
    uint64_t b = join(KELP_MEMBER_WORKER, "worker-1", 2, now, &replaced);
    for (int i = 0; i < 4; i++) {
        (void)second(&now, 100, 1);
    }
    ck_assert_uint_eq(lanes(b), 1);
    kelp_membership_remove(&membership, a, true);
    ck_assert_uint_eq(lanes(b), 8);
}

/* Who lost its seat gives its id to another process that asks for it. So does the one that holds up
 * the start for long; the next has twice as long. */
KELP_TEST(an_idler_gives_its_id_away)
{
    struct kelp_member_joined other = {.id = "worker-1", .incarnation = 3};
    uint64_t replaced = 0;
    uint64_t lost[4];
    uint64_t now = 1000;
    uint64_t key = 0;
    (void)join(KELP_MEMBER_WORKER, "worker-0", 1, now, &replaced);
    uint64_t b = join(KELP_MEMBER_WORKER, "worker-1", 2, now, &replaced);
    (void)second(&now, 100, 1);
    ck_assert_int_eq(kelp_membership_may_join(&membership, &other, NULL), KELP_ERR_EXISTS);
    for (int i = 0; i < 3; i++) {
        (void)second(&now, 100, 1);
    }
    ck_assert_int_eq(kelp_membership_join(&membership, &other, now, &key, &replaced, NULL),
                     KELP_OK);
    ck_assert_uint_eq(replaced, b);

    struct kelp_member_joined third = {.id = "only", .incarnation = 3};
    kelp_membership_fini(&membership);
    ck_assert_int_eq(kelp_membership_init(&membership, 8, 1000, NULL), KELP_OK);
    (void)join(KELP_MEMBER_WORKER, "only", 1, 1000, &replaced);
    (void)kelp_membership_tick(&membership, 1000 + KELP_COORDINATOR_PROBE_MS, lost, 4);
    ck_assert_int_eq(kelp_membership_may_join(&membership, &third, NULL), KELP_ERR_EXISTS);
    (void)kelp_membership_tick(&membership, 1001 + KELP_COORDINATOR_PROBE_MS, lost, 4);
    ck_assert_int_eq(kelp_membership_join(&membership, &third, 20000, &key, &replaced, NULL),
                     KELP_OK);
    third.incarnation = 4;
    (void)kelp_membership_tick(&membership, 20000 + 2 * KELP_COORDINATOR_PROBE_MS, lost, 4);
    ck_assert_int_eq(kelp_membership_may_join(&membership, &third, NULL), KELP_ERR_EXISTS);
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

/* What those had done who are gone is known for a while. */
KELP_TEST(remembers_those_who_left)
{
    uint64_t replaced = 0;
    for (uint64_t i = 1; i <= KELP_COORDINATOR_GONE_MAX + 1; i++) {
        uint64_t key = join(KELP_MEMBER_WORKER, "worker-0", i, 100, &replaced);
        kelp_membership_heard(&membership, key, &(struct kelp_member_heard){.lanes_computed = i},
                              100);
        kelp_membership_remove(&membership, key, false);
    }
    ck_assert_uint_eq(membership.gone_count, KELP_COORDINATOR_GONE_MAX + 1);
    ck_assert_uint_eq(membership.gone[0].incarnation, KELP_COORDINATOR_GONE_MAX + 1);
    ck_assert_uint_eq(membership.gone[0].lanes_computed, KELP_COORDINATOR_GONE_MAX + 1);
    ck_assert_str_eq(membership.gone[1].id, "worker-0");
    ck_assert_uint_eq(membership.gone[1].incarnation, 2);
}

static const struct {
    uint32_t detect_ms, workers, beat_ms;
} intervals[] = {
    {1000, 0, 100},     {1000, 250, 100},   {1000, 251, 200},    {1000, 500, 200},
    {1000, 501, 400},   {1000, 4096, 400},  {100, 1, 40},        {100, 4096, 40},
    {600000, 250, 100}, {600000, 501, 400}, {600000, 1000, 400}, {600000, 4096, 3200},
};

/* It follows failure.detect and the number of workers, so that they send 2500 reports a second. */
KELP_LOOP_TEST(workers_report_as_often_as_can_be_heard, 0, KELP_ARRAY_COUNT(intervals))
{
    membership.detect_ms = intervals[_i].detect_ms;
    membership.counts[KELP_MEMBER_WORKER] = intervals[_i].workers;
    membership.counts[KELP_MEMBER_SHARD] = KELP_COORDINATOR_SHARDS_MAX;
    ck_assert_uint_eq(kelp_membership_beat_ms(&membership), intervals[_i].beat_ms);
}

/* Milliseconds from the last of fifty reports until the worker is lost. */
static uint64_t lost_after(uint64_t key, uint32_t beat_ms, uint32_t phase_ms)
{
    uint64_t lost[4];
    uint64_t heard_ms = 0;
    uint64_t now = 1000 + phase_ms;

    for (uint32_t beats = 0; beats < 50; now += 1) {
        if ((now - phase_ms) % beat_ms == 0) {
            kelp_membership_heard(&membership, key, NULL, now);
            heard_ms = now;
            beats++;
        }
        if (now % KELP_COORDINATOR_TICK_MS == 0) {
            ck_assert_uint_eq(kelp_membership_tick(&membership, now, lost, 4), 0);
        }
    }
    while (now % KELP_COORDINATOR_TICK_MS != 0 ||
           kelp_membership_tick(&membership, now, lost, 4) == 0) {
        now++;
    }
    return now - heard_ms;
}

/* Whatever the interval and its phase: who reports is there, and who stops is lost once
 * failure.detect has passed since its last report, at the next tick. */
KELP_LOOP_TEST(silence_is_noticed_in_every_interval, 0, KELP_ARRAY_COUNT(intervals))
{
    uint64_t replaced = 0;
    const uint32_t detect_ms = intervals[_i].detect_ms;

    for (uint32_t phase_ms = 0; phase_ms < 100; phase_ms += 7) {
        kelp_membership_fini(&membership);
        ck_assert_int_eq(kelp_membership_init(&membership, 8, detect_ms, NULL), KELP_OK);
        uint64_t key = join(KELP_MEMBER_WORKER, "worker-0", 1, 1000, &replaced);
        uint64_t silent_ms = lost_after(key, intervals[_i].beat_ms, phase_ms);
        ck_assert_uint_gt(silent_ms, detect_ms);
        ck_assert_uint_le(silent_ms, detect_ms + KELP_COORDINATOR_TICK_MS);
    }
}

/* Who is found by key is that member, whoever has left meanwhile. */
KELP_TEST(members_are_found_by_key)
{
    uint64_t keys[100];
    uint64_t replaced = 0;
    char id[16];

    for (size_t i = 0; i < KELP_ARRAY_COUNT(keys); i++) {
        (void)snprintf(id, sizeof(id), "worker-%zu", i);
        keys[i] = join(KELP_MEMBER_WORKER, id, i + 1, 10, &replaced);
    }
    for (size_t i = 0; i < KELP_ARRAY_COUNT(keys); i += 3) {
        kelp_membership_remove(&membership, keys[i], false);
    }
    for (size_t i = 0; i < KELP_ARRAY_COUNT(keys); i++) {
        const struct kelp_member *member = kelp_membership_find(&membership, keys[i]);
        ck_assert_int_eq(member == NULL, i % 3 == 0);
        ck_assert(!member || member->incarnation == i + 1);
    }
    ck_assert_ptr_null(kelp_membership_find(&membership, 0));
    ck_assert_ptr_null(kelp_membership_find(&membership, UINT64_MAX));
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
    ck_assert(!kelp_process_name_valid(longest));
    longest[KELP_COORDINATOR_ID_MAX] = '\0';
    ck_assert(kelp_process_name_valid(longest));
    ck_assert(!kelp_process_name_valid(""));
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

KELP_CASE("rest", .timeout_s = 60, .setup = setup, .teardown = teardown)

/* Below the least number nobody has lanes. Who waited so long has missed nothing. */
KELP_TEST(too_few_workers_rest)
{
    uint64_t replaced = 0;
    kelp_membership_rest_below(&membership, 2, 10);
    uint64_t a = join(KELP_MEMBER_WORKER, "worker-0", 1, 10, &replaced);
    ck_assert(kelp_membership_rests(&membership));
    ck_assert_uint_eq(kelp_membership_lanes(&membership, a).count, 0);
    uint64_t b = join(KELP_MEMBER_WORKER, "worker-1", 2, 90000, &replaced);
    ck_assert(!kelp_membership_rests(&membership));
    ck_assert_uint_eq(kelp_membership_lanes(&membership, a).count, 4);
    ck_assert_uint_eq(kelp_membership_find(&membership, a)->since_ms, 90000);
    kelp_membership_remove(&membership, b, true);
    ck_assert_uint_eq(kelp_membership_lanes(&membership, a).count, 0);
    kelp_membership_rest_below(&membership, 1, 90010);
    ck_assert_uint_eq(kelp_membership_lanes(&membership, a).count, 8);
}

/* ---- speed ---- */

static uint64_t workers[4];
static uint64_t done[4][2]; /* lanes, and microseconds */

static void join_four(void)
{
    static const char *const ids[4] = {"worker-0", "worker-1", "worker-2", "worker-3"};
    uint64_t replaced = 0;
    for (uint32_t i = 0; i < 4; i++) {
        workers[i] = join(KELP_MEMBER_WORKER, ids[i], i + 1, 10, &replaced);
        done[i][0] = done[i][1] = 0;
    }
}

/* Each worker has computed its lanes some times since the report before. */
static void report_lanes(uint64_t now, const uint32_t lane_us[4])
{
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t lanes = 3 * kelp_membership_lanes(&membership, workers[i]).count;
        done[i][0] += lanes;
        done[i][1] += (uint64_t)lanes * lane_us[i];
        kelp_membership_heard(
            &membership, workers[i],
            &(struct kelp_member_heard){.lanes_computed = done[i][0], .busy_us = done[i][1]}, now);
        (void)kelp_membership_worked(&membership, kelp_membership_find(&membership, workers[i])->id,
                                     now);
    }
    (void)kelp_membership_judge(&membership, now / 10, now);
}

static void setup_speed(void)
{
    ck_assert_int_eq(kelp_membership_init(&membership, 16, 1000, NULL), KELP_OK);
    join_four();
}

KELP_CASE("speed", .timeout_s = 60, .setup = setup_speed, .teardown = teardown)

/* One becomes slow for good, and then as fast as the others again: two changes of the split. */
KELP_TEST(lanes_follow_the_speed)
{
    static const uint32_t alike[4] = {1000, 1000, 1000, 1000};
    static const uint32_t one_slow[4] = {1000, 1000, 4000, 1000};
    uint64_t now = 1000;
    for (; now < 3000; now += 100) {
        report_lanes(now, alike);
    }
    uint64_t epoch = membership.assignment.epoch;
    ck_assert_uint_eq(lanes_of(workers[2]), 4);
    for (; now < 8000; now += 100) {
        report_lanes(now, one_slow);
    }
    ck_assert_uint_eq(lanes_of(workers[2]), 1);
    ck_assert_uint_eq(lanes_of(workers[0]), 5);
    ck_assert_uint_le(membership.assignment.epoch, epoch + 2); /* while the average follows */
    epoch = membership.assignment.epoch;
    for (; now < 20000; now += 100) {
        report_lanes(now, alike);
    }
    ck_assert_uint_eq(lanes_of(workers[2]), 4);
    ck_assert_uint_le(membership.assignment.epoch, epoch + 2);
}

/* Times that vary by a half, and a stall of seconds now and then: nothing changes, for minutes. */
KELP_TEST(no_flapping)
{
    uint64_t random = 12345;
    uint64_t now = 1000;
    uint64_t epoch = membership.assignment.epoch;
    for (uint32_t round = 0; round < 3000; round++, now += 100) {
        uint32_t lane_us[4];
        for (uint32_t i = 0; i < 4; i++) {
            random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            lane_us[i] = 750 + (uint32_t)(random >> 33) % 500;
            if (round % 50 == 7 + i) {
                lane_us[i] = 2000000;
            }
        }
        report_lanes(now, lane_us);
    }
    ck_assert_uint_eq(membership.assignment.epoch, epoch);
}

/* Who says nothing of its times is no reason to change anything. */
KELP_TEST(unknown_speeds)
{
    uint64_t epoch = membership.assignment.epoch;
    for (uint64_t now = 1000; now < 5000; now += 100) {
        for (uint32_t i = 1; i < 4; i++) {
            kelp_membership_heard(
                &membership, workers[i],
                &(struct kelp_member_heard){.lanes_computed = now, .busy_us = now * 100 * i}, now);
        }
        (void)kelp_membership_judge(&membership, 1, now);
    }
    ck_assert_uint_eq(membership.assignment.epoch, epoch);
}

/* ---- who is slow ---- */

static uint64_t window_serial;

/* Each worker tells its newest window, of a second: 50 steps of 20 ms, in which a lane takes so
 * long. Repeated, as reports are; then they are compared. */
static void report_windows(uint64_t now, const uint32_t lane_us[4], const char *shard)
{
    window_serial++;
    for (uint32_t i = 0; i < 4; i++) {
        struct kelp_worker_times times = {.serial = window_serial,
                                          .steps = 50,
                                          .lanes = 200,
                                          .length_us = 1000000,
                                          .compute_us = (uint64_t)200 * lane_us[i],
                                          .wait_us = 500000};
        if (shard) {
            (void)snprintf(times.shard, sizeof(times.shard), "%s", shard);
            times.alone_us = 400000;
        }
        kelp_membership_pushed(&membership, kelp_membership_find(&membership, workers[i])->id, 50,
                               50 * 100);
        for (int repeat = 0; repeat < 3; repeat++) {
            kelp_membership_heard(&membership, workers[i],
                                  &(struct kelp_member_heard){.times = &times}, now);
        }
    }
    for (uint64_t tick = 0; tick < 1000; tick += 100) {
        (void)kelp_membership_judge(&membership, now / 10, now + tick);
        kelp_membership_compare(&membership, now + tick);
    }
}

static void setup_slow(void)
{
    setup_speed();
    window_serial = 0;
}

KELP_CASE("slow", .timeout_s = 60, .setup = setup_slow, .teardown = teardown)

static const uint32_t slow_alike[4] = {1000, 1000, 1000, 1000};
static const uint32_t third_slow[4] = {1000, 1000, 4000, 1000};

/* One is named after three windows in a row in which it was slow, and no more after one in which it
 * was not; not when nothing has been heard of it for long, and not when it has no lanes. */
KELP_TEST(a_slow_worker_is_named)
{
    struct kelp_membership_slow slow;
    uint64_t now = 1000;

    report_windows(now, slow_alike, NULL);
    ck_assert(!kelp_membership_slowest(&membership, now, &slow));
    for (int i = 0; i < 2; i++) {
        report_windows(now += 1000, third_slow, NULL);
        ck_assert(!kelp_membership_slowest(&membership, now, &slow));
    }
    report_windows(now += 1000, slow_alike, NULL);
    for (int i = 0; i < 3; i++) {
        ck_assert(!kelp_membership_slowest(&membership, now, &slow));
        report_windows(now += 1000, third_slow, NULL);
    }
    ck_assert(kelp_membership_slowest(&membership, now, &slow));
    ck_assert_ptr_eq(slow.worker, kelp_membership_find(&membership, workers[2]));
    ck_assert_ptr_null(slow.shard);
    ck_assert_int_eq(slow.slow.part, KELP_SLOW_COMPUTING);
    ck_assert_uint_eq(slow.slow.us, 4000);
    ck_assert_uint_eq(slow.slow.usual_us, 1000);
    ck_assert_uint_eq(slow.worker->times.pushed_steps, 50);
    ck_assert_uint_eq(slow.worker->times.behind_us, 50 * 100);
    ck_assert(kelp_membership_slowest(&membership, now + 9000, &slow));
    ck_assert(!kelp_membership_slowest(&membership, now + 11000, &slow));
    report_trouble(workers[2], "it was asked to end");
    ck_assert(!kelp_membership_slowest(&membership, now, &slow));
    report_trouble(workers[2], "");
    report_windows(now += 1000, slow_alike, NULL);
    ck_assert(!kelp_membership_slowest(&membership, now, &slow));
}

/* A shard for which most wait is named likewise, also one after another. */
KELP_TEST(a_slow_shard_is_named)
{
    struct kelp_membership_slow slow;
    uint64_t now = 1000;

    for (int i = 0; i < 3; i++) {
        ck_assert(!kelp_membership_slowest(&membership, now, &slow));
        report_windows(now += 1000, slow_alike, "shard-1");
    }
    ck_assert(kelp_membership_slowest(&membership, now, &slow));
    ck_assert_ptr_null(slow.worker);
    ck_assert_str_eq(slow.shard, "shard-1");
    ck_assert_int_eq(slow.slow.part, KELP_SLOW_SHARD);
    ck_assert_uint_eq(slow.slow.us, 8000);
    report_windows(now += 1000, slow_alike, "shard-0");
    ck_assert(!kelp_membership_slowest(&membership, now, &slow));
    report_windows(now += 1000, slow_alike, NULL);
    ck_assert(!kelp_membership_slowest(&membership, now, &slow));
}

/* The same window, told again and again, is one. */
KELP_TEST(a_window_counts_once)
{
    struct kelp_membership_slow slow;
    uint64_t now = 1000;

    report_windows(now, third_slow, "shard-1");
    for (; now < 9000; now += 100) {
        kelp_membership_compare(&membership, now);
    }
    ck_assert(!kelp_membership_slowest(&membership, now, &slow));
}

/* Whatever a shard says of pushes stays in range. */
KELP_TEST(pushes_are_bounded)
{
    kelp_membership_pushed(&membership, "worker-1", UINT64_MAX, UINT64_MAX);
    kelp_membership_pushed(&membership, "worker-1", UINT64_MAX, UINT64_MAX);
    kelp_membership_pushed(&membership, "nobody", 1, 1);
    report_windows(1000, slow_alike, NULL);
    const struct kelp_member *member = kelp_membership_find(&membership, workers[1]);
    ck_assert_uint_eq(member->times.pushed_steps, KELP_COORDINATOR_TIMES_STEPS_MAX);
    ck_assert_uint_eq(member->times.behind_us, KELP_COORDINATOR_TIMES_US_MAX);
}

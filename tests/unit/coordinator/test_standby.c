/* Who stands by: when the leader's key is to be deleted, and when not. */
#include "common/base/status.h"
#include "coordinator/term/standby.h"
#include "tests/lib/suite.h"

#define TICK_MS 100

static const struct kelp_holder holder = {.revision = 7, .incarnation = 8, .id = "coordinator-1"};
static struct kelp_standby standby;
static uint64_t now;

static void setup(void)
{
    standby = (struct kelp_standby){.state = KELP_STANDBY_IDLE};
    now = 1000000;
}

static enum kelp_standby_action tick(void)
{
    now += TICK_MS;
    return kelp_standby_tick(&standby, now);
}

static enum kelp_standby_action lose(bool alive)
{
    return kelp_standby_lost(&standby, alive, now);
}

static void begin_heard(void)
{
    ck_assert_int_eq(kelp_standby_begin(&standby, &holder, false), KELP_STANDBY_FOLLOW);
    (void)kelp_standby_heard(&standby);
}

/* Ticks without a word until somebody is to be deposed. */
static int ticks_to_deposing(void)
{
    int ticks = 1;
    while (tick() != KELP_STANDBY_DEPOSE) {
        ck_assert_int_lt(++ticks, 1000);
    }
    return ticks;
}

KELP_CASE("standby", .setup = setup)

/* A leader that is heard again and again is let alone; one that falls silent is accused, and again
 * while it holds its key, until it is heard. */
KELP_TEST(silence_is_death)
{
    begin_heard();
    for (int i = 0; i < 100; i++) {
        ck_assert_int_eq(tick(), KELP_STANDBY_NOTHING);
        (void)kelp_standby_heard(&standby);
    }
    ck_assert_int_eq(ticks_to_deposing(), KELP_COORDINATOR_SILENT_TICKS);
    ck_assert_int_eq(ticks_to_deposing(), KELP_COORDINATOR_RETRY_MS / TICK_MS);
    (void)kelp_standby_heard(&standby);
    ck_assert_int_eq(tick(), KELP_STANDBY_NOTHING);
}

/* Who was stopped itself has heard nothing, and may not conclude anything from that. */
KELP_TEST(own_sleep_is_no_silence)
{
    begin_heard();
    now += 60000;
    ck_assert_int_eq(tick(), KELP_STANDBY_NOTHING);
    (void)kelp_standby_heard(&standby);
    ck_assert_int_eq(tick(), KELP_STANDBY_NOTHING);
}

/* A stream that ends is opened again; when that finds nobody, the leader is gone. */
KELP_TEST(nobody_there_is_death)
{
    begin_heard();
    ck_assert_int_eq(lose(false), KELP_STANDBY_FOLLOW);
    ck_assert_int_eq(lose(false), KELP_STANDBY_DEPOSE);
    ck_assert_int_eq(standby.state, KELP_STANDBY_ACCUSING);
}

/* A broken stream alone is nothing. */
KELP_TEST(a_broken_stream_is_not)
{
    begin_heard();
    for (int i = 0; i < 10; i++) {
        ck_assert_int_eq(lose(false), KELP_STANDBY_FOLLOW);
        (void)kelp_standby_heard(&standby);
        ck_assert_int_eq(tick(), KELP_STANDBY_NOTHING);
    }
}

/* A refusal of its own is a sign of life: it is asked again. */
KELP_TEST(a_refusal_is_a_word)
{
    begin_heard();
    for (int i = 0; i < 50; i++) {
        ck_assert_int_eq(lose(true), KELP_STANDBY_NOTHING);
        ck_assert_int_eq(tick(), KELP_STANDBY_FOLLOW);
    }
}

/* Who never heard the leader waits for the lease, however long: else two that do not reach each
 * other would depose one another for ever. */
KELP_TEST(only_who_heard_it_accuses)
{
    ck_assert_int_eq(kelp_standby_begin(&standby, &holder, false), KELP_STANDBY_FOLLOW);
    for (int i = 0; i < 100; i++) {
        ck_assert_int_eq(lose(false), KELP_STANDBY_NOTHING);
        ck_assert_int_eq(tick(), KELP_STANDBY_FOLLOW);
    }
    begin_heard();
    ck_assert_int_eq(kelp_standby_begin(&standby, &holder, false), KELP_STANDBY_FOLLOW);
    ck_assert_int_eq(lose(false), KELP_STANDBY_NOTHING); /* heard in an earlier leadership */
}

/* A holder of our own name that is not there is the process before us. */
KELP_TEST(our_predecessor_is_gone)
{
    ck_assert_int_eq(kelp_standby_begin(&standby, &holder, true), KELP_STANDBY_FOLLOW);
    ck_assert_int_eq(lose(false), KELP_STANDBY_DEPOSE);
}

/* Nobody holds the key, or we do: there is nobody to accuse. */
KELP_TEST(idle)
{
    begin_heard();
    kelp_standby_end(&standby);
    (void)kelp_standby_heard(&standby); /* a late one */
    ck_assert_int_eq(lose(false), KELP_STANDBY_NOTHING);
    for (int i = 0; i < 100; i++) {
        ck_assert_int_eq(tick(), KELP_STANDBY_NOTHING);
    }
}

/* Accused of silence again and again: it is given longer each time, up to a bound, and no longer
 * once some time has passed. */
KELP_TEST(patience_grows)
{
    static const int expected[] = {5, 10, 20, 20};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(expected); i++) {
        begin_heard();
        ck_assert_int_eq(ticks_to_deposing(), expected[i]);
    }
    now += KELP_COORDINATOR_JUDGED_MS;
    begin_heard();
    ck_assert_int_eq(ticks_to_deposing(), KELP_COORDINATOR_SILENT_TICKS);
}

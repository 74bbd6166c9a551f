#include "ps/core/lanes/ticker.h"
#include "ps/core/limits.h"
#include "tests/lib/suite.h"

#define MS UINT64_C(1000)

/* The first message starts the timer; further ones leave it alone. */
KELP_TEST(a_message_brings_the_look_forward)
{
    struct kelp_ticker ticker = {0};

    ck_assert(kelp_ticker_heard(&ticker));
    ck_assert_uint_eq(ticker.period_ms, KELP_PS_TICK_MIN_MS);
    ck_assert(!kelp_ticker_heard(&ticker));
    kelp_ticker_look(&ticker);
    ck_assert(kelp_ticker_looked(&ticker, 50 * MS, 850 * MS));
    ck_assert_uint_eq(ticker.period_ms, 800);
    ck_assert(kelp_ticker_heard(&ticker)); /* 800 ms are too long to wait for it */
    ck_assert_uint_eq(ticker.period_ms, KELP_PS_TICK_MIN_MS);
}

KELP_TEST(the_next_look_is_when_something_may_be_late)
{
    struct kelp_ticker ticker = {0};
    const struct {
        uint64_t next_us;
        uint32_t period_ms;
    } cases[] = {{100 * MS + 1, KELP_PS_TICK_MIN_MS},
                 {20 * MS, KELP_PS_TICK_MIN_MS}, /* late already */
                 {107 * MS + 1, 8},
                 {100 * MS + 10 * KELP_PS_TICK_MAX_MS * MS, KELP_PS_TICK_MAX_MS},
                 {UINT64_MAX, 0}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        kelp_ticker_look(&ticker);
        (void)kelp_ticker_looked(&ticker, 100 * MS, cases[i].next_us);
        ck_assert_uint_eq(ticker.period_ms, cases[i].period_ms);
    }
    ck_assert(kelp_ticker_heard(&ticker));
}

/* A look may miss a message that comes while it goes on. */
KELP_TEST(a_message_during_a_look_makes_another_one_follow)
{
    struct kelp_ticker ticker = {0};

    ck_assert(kelp_ticker_heard(&ticker));
    kelp_ticker_look(&ticker);
    ck_assert(!kelp_ticker_heard(&ticker)); /* the timer runs as it should */
    ck_assert(!kelp_ticker_looked(&ticker, 100 * MS, UINT64_MAX));
    ck_assert_uint_eq(ticker.period_ms, KELP_PS_TICK_MIN_MS);
}

KELP_TEST(a_timer_that_could_not_be_set_is_set_with_the_next_message)
{
    struct kelp_ticker ticker = {0};

    ck_assert(kelp_ticker_heard(&ticker));
    kelp_ticker_stopped(&ticker);
    ck_assert(kelp_ticker_heard(&ticker));
}

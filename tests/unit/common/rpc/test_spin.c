/* How long somebody looks before he sleeps. */
#include "common/rpc/spin.h"
#include "tests/lib/suite.h"

KELP_CASE("spin")

/* Whoever is woken for nothing, as often as you like, looks for half a per cent of the time. */
KELP_LOOP_TEST(half_a_per_cent_for_nothing, 0, 5)
{
    static const uint64_t apart_us[] = {50, 100, 999, 5000, 100000};
    const uint64_t whole_us = 100000000;
    struct kelp_spin spin;
    uint64_t looked_us = 0, now_us = 1;

    kelp_spin_init(&spin, KELP_SPIN_US, now_us);
    while (now_us < whole_us) {
        const uint32_t look_us = kelp_spin_begin(&spin, now_us);
        if (look_us > 0) {
            kelp_spin_end(&spin, look_us, false);
        }
        looked_us += look_us;
        now_us += look_us + apart_us[_i];
    }
    ck_assert_uint_le(looked_us, whole_us / 200 + KELP_SPIN_SAVED_US);
    ck_assert_uint_gt(looked_us, 0);
}

/* Who is busy may always look, and may miss now and then: four finds pay for one miss. */
KELP_TEST(finds_pay_for_misses)
{
    struct kelp_spin spin;
    uint64_t now_us = 0;

    kelp_spin_init(&spin, KELP_SPIN_US, now_us);
    for (unsigned i = 0; i < 1000; i++) {
        const bool found = i % 5 != 0;
        ck_assert_uint_eq(kelp_spin_begin(&spin, now_us), KELP_SPIN_US);
        kelp_spin_end(&spin, found ? 30 : KELP_SPIN_US, found);
        now_us += found ? 30 : KELP_SPIN_US;
    }
}

/* Where others have the processor a look takes as long as they want: it is a debt, even where
 * something came meanwhile, and the next look is when half a per cent of the time has paid it. */
KELP_LOOP_TEST(busy_machine_sleeps_at_once, 0, 2)
{
    struct kelp_spin spin;
    uint64_t now_us = 0, lost_us = 0;
    const uint64_t slice_us = 4000, whole_us = 60000000;

    kelp_spin_init(&spin, KELP_SPIN_US, now_us);
    while (now_us < whole_us) {
        if (kelp_spin_begin(&spin, now_us) > 0) {
            kelp_spin_end(&spin, slice_us, _i == 1);
            now_us += slice_us;
            lost_us += slice_us;
        }
        now_us += 100;
    }
    ck_assert_uint_le(lost_us, whole_us / 200 + KELP_SPIN_SAVED_US + slice_us);
    ck_assert_uint_gt(lost_us, 0);
}

/* After silence there are twenty looks, however long it was, and then none until time has passed.
 */
KELP_TEST(savings_are_bounded)
{
    struct kelp_spin spin;
    const uint64_t now_us = UINT64_MAX / 2;
    unsigned looks = 0;

    kelp_spin_init(&spin, KELP_SPIN_US, 0);
    while (looks < 100 && kelp_spin_begin(&spin, now_us) > 0) {
        kelp_spin_end(&spin, KELP_SPIN_US, false);
        looks++;
    }
    ck_assert_uint_eq(looks, KELP_SPIN_SAVED_US / KELP_SPIN_US);
    const uint64_t later_us = now_us + KELP_SPIN_US * KELP_SPIN_PART;
    ck_assert_uint_eq(kelp_spin_begin(&spin, later_us - 1), 0);
    ck_assert_uint_eq(kelp_spin_begin(&spin, later_us + 1), KELP_SPIN_US);
}

/* However long a process was stopped in a look, an hour later it looks again. */
KELP_TEST(debts_are_bounded)
{
    struct kelp_spin spin;

    kelp_spin_init(&spin, KELP_SPIN_US, 0);
    ck_assert_uint_eq(kelp_spin_begin(&spin, 1), KELP_SPIN_US);
    kelp_spin_end(&spin, UINT64_MAX / 2, true);
    ck_assert_uint_eq(kelp_spin_begin(&spin, 100000000), 0);
    ck_assert_uint_eq(kelp_spin_begin(&spin, 3700000000), KELP_SPIN_US);
}

/* Who serves others looks for as short as he was told to; what that may cost is the same. */
KELP_TEST(short_looks)
{
    struct kelp_spin spin;

    kelp_spin_init(&spin, KELP_SPIN_ONCE_US, 0);
    ck_assert_uint_eq(kelp_spin_begin(&spin, 0), KELP_SPIN_ONCE_US);
    kelp_spin_end(&spin, KELP_SPIN_SAVED_US - KELP_SPIN_US, false); /* others had the processor */
    ck_assert_uint_eq(kelp_spin_begin(&spin, 0), KELP_SPIN_ONCE_US);
    kelp_spin_end(&spin, 1, false);
    ck_assert_uint_eq(kelp_spin_begin(&spin, 0), 0);
    kelp_spin_end(&spin, KELP_SPIN_US, true);
    ck_assert_uint_eq(kelp_spin_begin(&spin, 0), KELP_SPIN_ONCE_US);
}

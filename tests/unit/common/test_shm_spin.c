/* How long somebody looks before he sleeps. */
#include "common/shm/spin.h"
#include "tests/lib/suite.h"

KELP_CASE("shm_spin")

/* Whoever is woken for nothing, as often as you like, looks for half a per cent of the time. */
KELP_LOOP_TEST(half_a_per_cent_for_nothing, 0, 5)
{
    static const uint64_t apart_us[] = {50, 100, 999, 5000, 100000};
    const uint64_t whole_us = 100000000;
    struct kelp_shm_spin spin;
    uint64_t looked_us = 0, now_us = 1;

    kelp_shm_spin_init(&spin, now_us);
    while (now_us < whole_us) {
        const uint32_t look_us = kelp_shm_spin_begin(&spin, now_us);
        kelp_shm_spin_end(&spin, look_us, false);
        looked_us += look_us;
        now_us += look_us + apart_us[_i];
    }
    ck_assert_uint_le(looked_us, whole_us / 200 + KELP_SHM_SPIN_SAVED_US);
    ck_assert_uint_gt(looked_us, 0);
}

/* A look that finds something costs nothing: who is busy may always look. */
KELP_TEST(found_is_free)
{
    struct kelp_shm_spin spin;

    kelp_shm_spin_init(&spin, 0);
    for (uint64_t i = 0; i < 1000; i++) {
        ck_assert_uint_eq(kelp_shm_spin_begin(&spin, i * 30), KELP_SHM_SPIN_US);
        kelp_shm_spin_end(&spin, 30, true);
    }
}

/* After silence there are twenty looks, however long it was, and then none until time has passed.
 */
KELP_TEST(savings_are_bounded)
{
    struct kelp_shm_spin spin;
    const uint64_t now_us = UINT64_MAX / 2;
    unsigned looks = 0;

    kelp_shm_spin_init(&spin, 0);
    while (looks < 100 && kelp_shm_spin_begin(&spin, now_us) > 0) {
        kelp_shm_spin_end(&spin, KELP_SHM_SPIN_US, false);
        looks++;
    }
    ck_assert_uint_eq(looks, KELP_SHM_SPIN_SAVED_US / KELP_SHM_SPIN_US);
    const uint64_t later_us = now_us + KELP_SHM_SPIN_US * KELP_SHM_SPIN_PART;
    ck_assert_uint_eq(kelp_shm_spin_begin(&spin, later_us - 1), 0);
    ck_assert_uint_eq(kelp_shm_spin_begin(&spin, later_us + 1), KELP_SHM_SPIN_US);
}

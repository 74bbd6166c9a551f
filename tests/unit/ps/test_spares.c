#include "ps/core/lanes/spares.h"
#include "tests/lib/suite.h"

static void add(struct kelp_spares *spares, uint64_t requester, uint64_t rank)
{
    struct kelp_cover_candidate spare = {.requester = requester, .rank = rank};

    ck_assert_int_eq(kelp_spares_add(spares, &spare), KELP_OK);
}

KELP_TEST(each_spare_is_listed_once)
{
    struct kelp_spares spares = {0};

    for (uint64_t i = 1; i <= 20; i++) {
        add(&spares, i, 100 - i);
    }
    add(&spares, 7, 5);
    ck_assert_uint_eq(spares.count, 20);
    ck_assert_uint_eq(spares.items[19].requester, 7);
    ck_assert_uint_eq(spares.items[19].rank, 5);
    kelp_spares_remove(&spares, 1);
    kelp_spares_remove(&spares, 77);
    ck_assert_uint_eq(spares.count, 19);
    ck_assert_uint_eq(spares.items[0].requester, 2);
    kelp_spares_fini(&spares);
    ck_assert_uint_eq(spares.count, 0);
}

/* The names of workers that a shard remembers. */
#include <stdio.h>

#include "ps/core/evidence/roster.h"
#include "ps/core/limits.h"
#include "tests/lib/suite.h"

static struct kelp_roster *roster;

static void setup(void)
{
    roster = kelp_roster_create();
    ck_assert_ptr_nonnull(roster);
}

static void teardown(void)
{
    kelp_roster_destroy(roster);
}

static uint32_t enter(unsigned worker, unsigned host)
{
    char id[32], peer[64];

    (void)snprintf(id, sizeof(id), "worker-%u", worker);
    (void)snprintf(peer, sizeof(peer), "ipv4:10.0.0.%u:%u", host, 1000 + worker % 60000);
    return kelp_roster_enter(roster, id, peer);
}

KELP_CASE("roster", .setup = setup, .teardown = teardown)

/* One name, one author, however often it comes; what it did is told once. */
KELP_TEST(names_and_work)
{
    struct kelp_roster_work work[4];
    const uint32_t author = enter(1, 1), other = enter(2, 1);

    ck_assert_uint_ne(author, other);
    ck_assert_uint_eq(enter(1, 7), author);
    ck_assert_str_eq(kelp_roster_name(roster, author), "worker-1");
    ck_assert_ptr_null(kelp_roster_name(roster, 0));
    ck_assert_ptr_null(kelp_roster_name(roster, other + 1));
    kelp_roster_worked(roster, author, 3);
    kelp_roster_worked(roster, author, 4);
    kelp_roster_worked(roster, 0, 5);
    ck_assert_uint_eq(kelp_roster_take_work(roster, work, 4), 1);
    ck_assert_str_eq(work[0].id, "worker-1");
    ck_assert_uint_eq(work[0].lanes, 7);
    ck_assert_uint_eq(kelp_roster_take_work(roster, work, 4), 0);
}

/* How far a worker's first push of a step is behind is added up; its later ones of that step do not
 * count, nor those of somebody unknown. */
KELP_TEST(first_pushes_of_steps)
{
    struct kelp_roster_work work[4];
    const uint32_t author = enter(1, 1);

    kelp_roster_pushed(roster, author, 0, 30);
    kelp_roster_pushed(roster, author, 0, 500);
    kelp_roster_pushed(roster, author, 1, 12);
    kelp_roster_pushed(roster, author + 1, 1, 900);
    ck_assert_uint_eq(kelp_roster_take_work(roster, work, 4), 1);
    ck_assert_str_eq(work[0].id, "worker-1");
    ck_assert_uint_eq(work[0].lanes, 0);
    ck_assert_uint_eq(work[0].steps, 2);
    ck_assert_uint_eq(work[0].behind_us, 42);
    kelp_roster_pushed(roster, author, 1, 700);
    ck_assert_uint_eq(kelp_roster_take_work(roster, work, 4), 0);
}

/* Somebody who calls himself by ever new names keeps no other host from being known. */
KELP_TEST(one_host_has_its_part)
{
    const uint32_t honest = enter(1, 1);

    for (unsigned i = 0; i < 2 * KELP_PS_AUTHORS_MAX; i++) {
        const uint32_t author = enter(1000 + i, 2);
        ck_assert(i < KELP_PS_AUTHORS_OF_HOST ? author > 0 : author == 0);
    }
    ck_assert_uint_gt(enter(2, 1), 0);
    ck_assert_str_eq(kelp_roster_name(roster, honest), "worker-1");
}

/* Workers that come under new names for as long as the shard lives: each is known, who left first
 * is forgotten first, and no number means somebody else later. */
KELP_TEST(those_who_left_are_forgotten)
{
    const uint32_t first = enter(0, 1), stays = enter(1, 1);
    struct kelp_roster_work work[1];

    kelp_roster_leave(roster, first);
    kelp_roster_worked(roster, first, 9); /* nobody will ask for it */
    for (unsigned i = 2; i < 5 * KELP_PS_AUTHORS_MAX; i++) {
        const uint32_t author = enter(i, 1 + i % 9);
        ck_assert_uint_gt(author, 0);
        kelp_roster_leave(roster, author);
    }
    ck_assert_ptr_null(kelp_roster_name(roster, first));
    ck_assert_str_eq(kelp_roster_name(roster, stays), "worker-1");
    kelp_roster_worked(roster, first, 9);
    ck_assert_uint_eq(kelp_roster_take_work(roster, work, 1), 0);
    ck_assert_uint_ne(enter(0, 1), first);
}

/* How far apart the partitions are that a shard leads. */
#include "ps/core/partition/standing.h"
#include "tests/lib/suite.h"

static struct kelp_partition_view at(enum kelp_replica_place place, uint64_t step)
{
    return (struct kelp_partition_view){
        .phase = KELP_PARTITION_COLLECTING, .place = place, .map_epoch = 30 + step, .step = step};
}

KELP_CASE("standing")

/* One that is led is at both ends, with its epoch; what follows widens them. Of equals the first
 * one counts. */
KELP_TEST(widens)
{
    struct kelp_standing standing = {.generation = 2};
    static const uint64_t steps[] = {7, 6, 8, 6, 8};

    for (uint32_t i = 0; i < KELP_ARRAY_COUNT(steps); i++) {
        const struct kelp_partition_view view = at(KELP_REPLICA_PRIMARY, steps[i]);
        kelp_standing_add(&standing, 10 + i, &view);
        ck_assert(standing.known);
    }
    ck_assert_uint_eq(standing.generation, 2);
    ck_assert_uint_eq(standing.lowest.partition, 11);
    ck_assert_uint_eq(standing.lowest.step, 6);
    ck_assert_uint_eq(standing.lowest.map_epoch, 36);
    ck_assert_uint_eq(standing.highest.partition, 12);
    ck_assert_uint_eq(standing.highest.step, 8);
    ck_assert_uint_eq(standing.highest.map_epoch, 38);
}

/* Followers may be a step behind, or ahead, and joiners have nothing. */
KELP_TEST(others_lead)
{
    struct kelp_standing standing = {.known = false};
    const struct kelp_partition_view backup = at(KELP_REPLICA_BACKUP, 3);
    const struct kelp_partition_view joiner = at(KELP_REPLICA_JOINER, 0);
    struct kelp_partition_view absent = at(KELP_REPLICA_PRIMARY, 0);

    absent.phase = KELP_PARTITION_ABSENT;
    kelp_standing_add(&standing, 0, &backup);
    kelp_standing_add(&standing, 1, &joiner);
    kelp_standing_add(&standing, 2, &absent);
    ck_assert(!standing.known);
}

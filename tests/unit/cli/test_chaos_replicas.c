/* Which faults of shards leave a partition without a replica. */
#include "cli/chaos/report/chaos_replicas.h"
#include "tests/lib/suite.h"

static Kelp__V1__ShardPlace shards[3];
static Kelp__V1__ShardPlace *shard_list[3];
static Kelp__V1__PartitionPlace places[2];
static Kelp__V1__PartitionPlace *place_list[2];
static Kelp__V1__Map map;
static struct kelp_chaos_hits hits;

/* Partition 0 on a and b, partition 1 on b and c. */
static void setup(void)
{
    static char names[3][2] = {"a", "b", "c"};
    kelp__v1__map__init(&map);
    for (uint32_t i = 0; i < 3; i++) {
        kelp__v1__shard_place__init(&shards[i]);
        shards[i].shard = names[i];
        shards[i].incarnation = 10 + i;
        shard_list[i] = &shards[i];
    }
    for (uint32_t i = 0; i < 2; i++) {
        kelp__v1__partition_place__init(&places[i]);
        places[i].partition = i;
        places[i].primary = i;
        places[i].backup = i + 2;
        place_list[i] = &places[i];
    }
    map.n_shards = 3;
    map.shards = shard_list;
    map.n_partitions = 2;
    map.partitions = place_list;
    hits.count = 0;
}

KELP_CASE("replicas", .setup = setup)

/* One of two is not enough; the other one of the same partition is. */
KELP_TEST(two_of_a_partition)
{
    ck_assert_uint_eq(kelp_chaos_replicas_primary(&map), 0);
    ck_assert_uint_eq(kelp_chaos_replicas_backup(&map), 1);
    ck_assert(!kelp_chaos_replicas_hit(&hits, &map, "a", 0, UINT64_MAX));
    ck_assert(!kelp_chaos_replicas_hit(&hits, &map, "c", 1, UINT64_MAX));
    ck_assert(kelp_chaos_replicas_hit(&hits, &map, "b", 2, UINT64_MAX));
}

/* A partition without a backup has nothing to lose but its primary. */
KELP_TEST(no_backup)
{
    places[1].backup = 0;
    ck_assert(!kelp_chaos_replicas_hit(&hits, &map, "a", 0, UINT64_MAX));
    ck_assert(kelp_chaos_replicas_hit(&hits, &map, "b", 0, UINT64_MAX));
    places[0].backup = 0;
    ck_assert_uint_eq(kelp_chaos_replicas_backup(&map), UINT32_MAX);
}

/* The map has given the first one up, or it was only stopped for a while: it does not count. */
KELP_TEST(healed)
{
    ck_assert(!kelp_chaos_replicas_hit(&hits, &map, "a", 0, UINT64_MAX));
    shards[0].incarnation = 20; /* another process of that name */
    ck_assert(!kelp_chaos_replicas_hit(&hits, &map, "b", 5, 10));
    ck_assert(!kelp_chaos_replicas_hit(&hits, &map, "a", 11 + KELP_CHAOS_HIT_HEAL_MS, UINT64_MAX));
}

/* Nobody knows the map: a restore may be right. */
KELP_TEST(unknown)
{
    ck_assert(kelp_chaos_replicas_hit(&hits, NULL, "a", 0, UINT64_MAX));
    ck_assert_uint_eq(kelp_chaos_replicas_primary(NULL), UINT32_MAX);
}

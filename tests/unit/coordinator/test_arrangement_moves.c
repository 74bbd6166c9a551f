/* The next moves of small clusters, one by one: shapes, what waits for what, who is used. */
#include <stdio.h>
#include <string.h>

#include "coordinator/core/arrangement/arrangement.h"
#include "tests/lib/suite.h"

#define NOBODY      KELP_MAP_NOBODY
#define SHARDS      4
#define MANY        1024
#define MANY_SHARDS 64

static struct kelp_map map;
static struct kelp_arrangement_shard shards[SHARDS];
static struct kelp_arrangement_replica replicas[8];
static struct kelp_arrangement_input input;
static struct kelp_arrangement_move moves[8];
static uint32_t count;

static void setup(uint32_t partitions, uint32_t wanted)
{
    ck_assert_int_eq(kelp_map_init(&map, SHARDS, partitions, NULL), KELP_OK);
    map.generation = 1;
    for (uint32_t i = 0; i < SHARDS; i++) {
        (void)snprintf(map.shards[i].id, sizeof(map.shards[i].id), "shard-%u", i);
        map.shards[i].incarnation = 7 + i;
        shards[i] = (struct kelp_arrangement_shard){.at = &map.shards[i]};
    }
    memset(replicas, 0, sizeof(replicas));
    input = (struct kelp_arrangement_input){
        .map = &map,
        .shards = shards,
        .shard_count = SHARDS,
        .replicas = replicas,
        .shards_wanted = wanted,
        .replicas_wanted = 1,
        .joiners_max = 4,
        .joiners_each = 1,
        .leads_max = 4,
    };
}

static void entry(uint32_t partition, uint32_t primary, uint32_t backup, uint32_t joiner)
{
    map.partitions[partition] = (struct kelp_map_partition){
        .map_epoch = 1, .primary = primary, .backup = backup, .joiner = joiner};
}

static void next(void)
{
    ck_assert_int_eq(kelp_arrangement_next(&input, moves, &count), KELP_OK);
}

static void expect(uint32_t index, enum kelp_arrangement_kind kind, uint32_t partition,
                   uint32_t primary, uint32_t backup, uint32_t joiner)
{
    ck_assert_uint_lt(index, count);
    ck_assert_str_eq(kelp_arrangement_kind_text(moves[index].kind),
                     kelp_arrangement_kind_text(kind));
    ck_assert_uint_eq(moves[index].partition, partition);
    ck_assert_uint_eq(moves[index].entry.primary, primary);
    ck_assert_uint_eq(moves[index].entry.backup, backup);
    ck_assert_uint_eq(moves[index].entry.joiner, joiner);
}

static void teardown(void)
{
    kelp_map_fini(&map);
}

KELP_CASE("moves", .teardown = teardown)

/* Attach, wait, promote with the old primary as backup, detach it. */
KELP_TEST(a_second_shard_gets_its_half)
{
    setup(2, 2);
    entry(0, 0, NOBODY, NOBODY);
    entry(1, 0, NOBODY, NOBODY);
    next();
    ck_assert_uint_eq(count, 1);
    expect(0, KELP_ARRANGEMENT_ATTACH, 1, 0, NOBODY, 1);
    entry(1, 0, NOBODY, 1);
    next();
    ck_assert_uint_eq(count, 0);
    replicas[1].caught_up = true;
    next();
    expect(0, KELP_ARRANGEMENT_PROMOTE, 1, 1, 0, NOBODY);
    entry(1, 1, 0, NOBODY);
    next();
    expect(0, KELP_ARRANGEMENT_DETACH, 1, 1, NOBODY, NOBODY);
    entry(1, 1, NOBODY, NOBODY);
    next();
    ck_assert_uint_eq(count, 0);
}

/* A snapshot that is owed holds the promotion back, and not what leaves the primary alone. */
KELP_TEST(promotions_wait_for_captures)
{
    setup(1, 4);
    input.replicas_wanted = 2;
    shards[0].draining = true;
    entry(0, 0, 1, 2);
    replicas[0] = (struct kelp_arrangement_replica){.caught_up = true, .captured = true};
    next();
    ck_assert_uint_eq(count, 0);
    replicas[0].captured = false;
    next();
    ck_assert_uint_eq(count, 1);
    ck_assert_uint_eq(moves[0].entry.joiner, NOBODY);
    ck_assert_uint_ne(moves[0].entry.primary, 0);
    ck_assert_uint_ne(moves[0].entry.backup, 0);
    shards[0].draining = false;
    shards[1].draining = true;
    replicas[0].captured = true;
    next();
    expect(0, KELP_ARRANGEMENT_TAKE_OVER, 0, 0, 2, NOBODY);
}

/* While the job pauses nothing begins; what has begun goes on. */
KELP_TEST(still_means_no_new_joiner)
{
    setup(2, 2);
    entry(0, 0, NOBODY, NOBODY);
    entry(1, 0, NOBODY, NOBODY);
    input.still = true;
    next();
    ck_assert_uint_eq(count, 0);
    entry(1, 0, NOBODY, 1);
    replicas[1].caught_up = true;
    next();
    expect(0, KELP_ARRANGEMENT_PROMOTE, 1, 1, 0, NOBODY);
}

/* A partition without a backup comes first, and one joiner for each primary at a time. */
KELP_TEST(redundancy_comes_first)
{
    setup(4, 2);
    input.replicas_wanted = 2;
    input.joiners_max = 1;
    entry(0, 0, 2, NOBODY);
    entry(1, 1, 0, NOBODY);
    entry(2, 0, 1, NOBODY);
    entry(3, 1, NOBODY, NOBODY);
    next();
    ck_assert_uint_eq(count, 1);
    expect(0, KELP_ARRANGEMENT_ATTACH, 3, 1, NOBODY, moves[0].entry.joiner);
}

/* A shard that joins gets all that it is to have at once, in the bounds on joiners. */
KELP_TEST(several_join_at_once)
{
    setup(4, 4);
    for (uint32_t i = 0; i < 4; i++) {
        entry(i, 0, NOBODY, NOBODY);
    }
    next();
    ck_assert_uint_eq(count, 1);
    input.joiners_each = 8;
    next();
    ck_assert_uint_eq(count, 3);
    input.joiners_max = 2;
    next();
    ck_assert_uint_eq(count, 2);
}

/* However many have caught up, only so many partitions get another primary in one change. */
KELP_TEST(few_get_another_primary_at_once)
{
    setup(4, 4);
    input.leads_max = 2;
    entry(0, 0, NOBODY, NOBODY);
    for (uint32_t i = 1; i < 4; i++) {
        entry(i, 0, NOBODY, i);
        replicas[i].caught_up = true;
    }
    next();
    ck_assert_uint_eq(count, 2);
    expect(0, KELP_ARRANGEMENT_PROMOTE, 1, 1, 0, NOBODY);
    expect(1, KELP_ARRANGEMENT_PROMOTE, 2, 2, 0, NOBODY);
}

/* A joiner whose process is gone is dropped; a lost primary or backup is left to a failover. */
KELP_TEST(the_lost_are_dropped_or_left_alone)
{
    setup(3, 3);
    input.shard_count = 3; /* shard-3 is gone */
    entry(0, 0, NOBODY, 3);
    entry(1, 3, NOBODY, NOBODY);
    entry(2, 1, 3, NOBODY);
    input.still = true;
    next();
    ck_assert_uint_eq(count, 1);
    expect(0, KELP_ARRANGEMENT_DROP, 0, 0, NOBODY, NOBODY);
}

/* Another start of a shard is another shard. */
KELP_TEST(incarnations_tell_shards_apart)
{
    struct kelp_map_shard again;
    setup(1, 1);
    entry(0, 0, NOBODY, 1);
    again = map.shards[1];
    again.incarnation++;
    shards[1].at = &again;
    next();
    expect(0, KELP_ARRANGEMENT_DROP, 0, 0, NOBODY, NOBODY);
}

/* Roles are exchanged where that balances, without a copy. */
KELP_TEST(primaries_are_balanced_by_exchange)
{
    setup(2, 2);
    input.replicas_wanted = 2;
    entry(0, 0, 1, NOBODY);
    entry(1, 0, 1, NOBODY);
    next();
    ck_assert_uint_eq(count, 1);
    ck_assert_uint_eq(moves[0].kind, KELP_ARRANGEMENT_EXCHANGE);
    replicas[0].captured = true;
    next();
    ck_assert_uint_eq(count, 0);
}

/* Fewer than live: who hosts anything is kept, then the first names; another zone is kept too. */
KELP_TEST(fewer_are_used_than_live)
{
    struct kelp_arrangement_entry entries[4];
    setup(4, 2);
    ck_assert_int_eq(kelp_arrangement_open(&input, 4, entries), KELP_OK);
    for (uint32_t i = 0; i < 4; i++) {
        ck_assert_uint_eq(entries[i].primary, i / 2);
        ck_assert_uint_eq(entries[i].backup, NOBODY);
    }
    input.replicas_wanted = 2;
    (void)snprintf(map.shards[3].zone, sizeof(map.shards[3].zone), "west");
    ck_assert_int_eq(kelp_arrangement_open(&input, 4, entries), KELP_OK);
    for (uint32_t i = 0; i < 4; i++) {
        ck_assert_uint_eq(entries[i].primary + entries[i].backup, 3); /* shard-0 and shard-3 */
    }
    for (uint32_t i = 0; i < 4; i++) {
        entry(i, 2, NOBODY, NOBODY);
    }
    input.shards_wanted = 1;
    input.replicas_wanted = 1;
    next();
    ck_assert_uint_eq(count, 0); /* it stays on shard-2 */
    shards[2].draining = true;
    next();
    expect(0, KELP_ARRANGEMENT_ATTACH, 0, 2, NOBODY, 0);
}

/* Nobody is left to take anything: nothing moves. */
KELP_TEST(all_drain)
{
    setup(1, 1);
    entry(0, 0, NOBODY, NOBODY);
    for (uint32_t i = 0; i < SHARDS; i++) {
        shards[i].draining = true;
    }
    next();
    ck_assert_uint_eq(count, 0);
    ck_assert_int_eq(kelp_arrangement_open(&input, 1, &moves[0].entry), KELP_ERR_INVALID);
}

KELP_CASE("opening", .timeout_s = 60)

/* Of many partitions and shards: contiguous primaries, backups of one shard on many others. */
KELP_TEST(a_large_cluster_opens_balanced)
{
    static struct kelp_map_shard at[MANY_SHARDS];
    static struct kelp_arrangement_shard live[MANY_SHARDS];
    static struct kelp_arrangement_entry entries[MANY];
    bool of_first[MANY_SHARDS] = {false};
    uint32_t primaries[MANY_SHARDS] = {0};
    uint32_t backups[MANY_SHARDS] = {0};
    for (uint32_t i = 0; i < MANY_SHARDS; i++) {
        (void)snprintf(at[i].id, sizeof(at[i].id), "shard-%u", i);
        (void)snprintf(at[i].zone, sizeof(at[i].zone), "zone-%u", i % 4);
        live[i].at = &at[i];
    }
    const struct kelp_arrangement_input large = {.shards = live,
                                                 .shard_count = MANY_SHARDS,
                                                 .shards_wanted = MANY_SHARDS,
                                                 .replicas_wanted = 2};
    ck_assert_int_eq(kelp_arrangement_open(&large, MANY, entries), KELP_OK);
    uint32_t others = 0;
    for (uint32_t i = 0; i < MANY; i++) {
        ck_assert_uint_ne(entries[i].primary % 4, entries[i].backup % 4);
        primaries[entries[i].primary]++;
        backups[entries[i].backup]++;
        others += entries[i].primary == 0 && !of_first[entries[i].backup] ? 1 : 0;
        of_first[entries[i].backup] = of_first[entries[i].backup] || entries[i].primary == 0;
    }
    for (uint32_t i = 0; i < MANY_SHARDS; i++) {
        ck_assert_uint_eq(primaries[i], MANY / MANY_SHARDS);
        ck_assert_uint_eq(backups[i], MANY / MANY_SHARDS);
    }
    ck_assert_uint_ge(others, MANY / MANY_SHARDS / 2);
}

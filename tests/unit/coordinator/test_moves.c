/* Moves of partitions as changes of a placement's map: opening with backups, replacing a lost one,
 * and what holds moves up. */
#include <stdio.h>
#include <string.h>

#include "tests/lib/placement_bench.h"
#include "tests/lib/suite.h"

#define PARTITIONS 6
#define NOBODY     KELP_MAP_NOBODY

static void setup(void)
{
    const struct kelp_placement_options options = {.shards = 3,
                                                   .replicas = 2,
                                                   .moves = true,
                                                   .workers_min = 1,
                                                   .shard_wait_ms = 3000,
                                                   .writer = 77};
    placement_bench.now = 1000;
    placement_bench.owes = NULL;
    ck_assert_int_eq(kelp_placement_init(&placement_bench.machine, &options, NULL), KELP_OK);
}

static const char *const names[] = {"shard-0", "shard-1", "shard-2", "shard-3"};

static void register_in(uint32_t shard, uint64_t incarnation, const char *zone)
{
    struct kelp_map_shard at = {.incarnation = incarnation};
    (void)snprintf(at.id, sizeof(at.id), "%s", names[shard]);
    (void)snprintf(at.address, sizeof(at.address), "127.0.0.1:1");
    (void)snprintf(at.zone, sizeof(at.zone), "%s", zone);
    (void)placement_apply(
        (struct kelp_placement_event){.kind = KELP_PLACEMENT_REGISTERED, .registered = &at});
}

static uint32_t take(uint32_t shard, uint64_t incarnation)
{
    (void)placement_say(KELP_PLACEMENT_LOADED, names[shard], incarnation);
    return placement_apply((struct kelp_placement_event){
        .kind = KELP_PLACEMENT_TAKEN,
        .taken = {.id = names[shard],
                  .incarnation = incarnation,
                  .generation = placement_bench.machine.map.generation,
                  .serial = placement_bench.machine.map.serial}});
}

/* Three shards, in two zones, run a generation. */
static void run_three(void)
{
    (void)placement_none_read();
    (void)placement_plan(PARTITIONS);
    (void)placement_workers(1);
    for (uint32_t i = 0; i < 3; i++) {
        register_in(i, 10 + i, i == 0 ? "here" : "there");
        (void)placement_say(KELP_PLACEMENT_CONNECTED, names[i], 10 + i);
    }
    (void)placement_written(KELP_WRITTEN_OK);
    for (uint32_t i = 0; i < 3; i++) {
        (void)take(i, 10 + i);
    }
    ck_assert_int_eq(placement_bench.machine.state, KELP_PLACEMENT_RUNNING);
}

/* Whoever leads a partition with a joiner says that it has caught up. */
static uint32_t catch_up(void)
{
    const struct kelp_map *map = &placement_bench.machine.map;
    uint32_t actions = 0;
    for (uint32_t i = 0; i < map->partition_count; i++) {
        const struct kelp_map_shard *leads = &map->shards[map->partitions[i].primary];
        const struct kelp_replica_report report = {
            .partition = i, .map_epoch = map->partitions[i].map_epoch, .joiner_in_sync = true};
        if (map->partitions[i].joiner != NOBODY) {
            actions |= placement_apply(
                (struct kelp_placement_event){.kind = KELP_PLACEMENT_REPLICAS,
                                              .replicas = {.id = leads->id,
                                                           .incarnation = leads->incarnation,
                                                           .generation = map->generation,
                                                           .reports = &report,
                                                           .count = 1}});
        }
    }
    return actions;
}

static uint32_t count(const struct kelp_map *map, bool joiners)
{
    uint32_t number = 0;
    for (uint32_t i = 0; i < map->partition_count; i++) {
        number +=
            (joiners ? map->partitions[i].joiner : map->partitions[i].backup) != NOBODY ? 1 : 0;
    }
    return number;
}

KELP_CASE("moves", .setup = setup, .teardown = placement_teardown)

/* Each partition has a backup in the other zone, from the beginning. */
KELP_TEST(opens_with_backups)
{
    run_three();
    const struct kelp_map *map = kelp_placement_loaded_map(&placement_bench.machine);
    ck_assert_int_eq(kelp_map_check(map, NULL), KELP_OK);
    ck_assert_uint_eq(map->serial, 1);
    ck_assert_uint_eq(count(map, false), PARTITIONS);
    ck_assert_uint_eq(count(map, true), 0);
    for (uint32_t i = 0; i < PARTITIONS; i++) {
        const struct kelp_map_partition *entry = &map->partitions[i];
        ck_assert_str_ne(map->shards[entry->primary].zone, map->shards[entry->backup].zone);
        ck_assert_uint_eq(entry->map_epoch, 1);
    }
    ck_assert_uint_eq(placement_tick(100) & DID(WRITE_CHANGE), 0);
}

/* A shard is lost: its partitions fail over, then their backups are made again, each step a change
 * of its own, and nothing is moved without need. */
static uint32_t replace_lost(void)
{
    run_three();
    (void)placement_apply((struct kelp_placement_event){
        .kind = KELP_PLACEMENT_DISCONNECTED, .disconnected = {.id = "shard-2", .broken = true}});
    (void)placement_written(KELP_WRITTEN_OK);
    ck_assert_str_eq(placement_bench.machine.because, "shard-2 is lost");
    uint32_t lacking = PARTITIONS - count(&placement_bench.machine.map, false);
    ck_assert_uint_gt(lacking, 0);
    ck_assert_uint_eq(placement_tick(100) & DID(WRITE_CHANGE), 0); /* workers come first */
    (void)take(0, 10);
    ck_assert_uint_ne(take(1, 11) & DID(CHANGE_TO_WORKERS), 0);
    ck_assert_uint_ne(placement_tick(100) & DID(WRITE_CHANGE), 0); /* attach */
    ck_assert_uint_eq(placement_written(KELP_WRITTEN_OK) & DID(COUNT_LOSS), 0);
    return lacking;
}

KELP_TEST(replaces_a_lost_backup)
{
    uint32_t lacking = replace_lost();
    const struct kelp_map *map = &placement_bench.machine.map;
    uint32_t copies = 0;
    for (int round = 0; count(map, false) < PARTITIONS; round++) {
        ck_assert_int_lt(round, 20);
        copies += count(map, true);
        (void)catch_up();
        (void)take(0, 10);
        (void)take(1, 11);
        (void)placement_tick(100);
        if (placement_bench.machine.change == KELP_CHANGE_WRITING) {
            (void)placement_written(KELP_WRITTEN_OK);
        }
    }
    ck_assert_uint_eq(copies, lacking);
    ck_assert_int_eq(kelp_map_check(map, NULL), KELP_OK);
    ck_assert_int_eq(placement_bench.machine.state, KELP_PLACEMENT_RUNNING);
    ck_assert_uint_eq(map->generation, 1);
    ck_assert_uint_eq(placement_tick(100) & DID(WRITE_CHANGE), 0);
}

/* All moves that can be made, written and taken. */
static void settle(void)
{
    struct kelp_placement *machine = &placement_bench.machine;
    for (int round = 0; round < 40; round++) {
        (void)catch_up();
        (void)take(0, 10);
        (void)take(1, 11);
        (void)placement_tick(100);
        if (machine->change == KELP_CHANGE_WRITING) {
            (void)placement_written(KELP_WRITTEN_OK);
        }
    }
}

/* What a primary is still to save keeps it where it is, and nothing else is ordered meanwhile. */
KELP_TEST(a_snapshot_is_waited_for)
{
    bool owes[PARTITIONS];
    struct kelp_placement *machine = &placement_bench.machine;
    (void)replace_lost();
    (void)placement_written(KELP_WRITTEN_OK);
    memset(owes, 1, sizeof(owes));
    placement_bench.owes = owes;
    settle();
    ck_assert_uint_eq(count(&machine->map, false), PARTITIONS);
    ck_assert_int_eq(machine->change, KELP_CHANGE_NONE);
    ck_assert(kelp_placement_changes(machine)); /* another one is to lead some */
    placement_bench.owes = NULL;
    ck_assert_uint_ne(placement_tick(100) & DID(WRITE_CHANGE), 0);
    ck_assert_str_eq(machine->because, "exchange 1");
    (void)placement_written(KELP_WRITTEN_OK);
    settle();
    ck_assert(!kelp_placement_changes(machine));
}

/* A shard of the map that does not answer: who knows whether it is lost. */
KELP_TEST(nothing_moves_while_a_shard_is_away)
{
    run_three();
    (void)placement_say(KELP_PLACEMENT_DISCONNECTED, "shard-1", 11);
    register_in(3, 13, "here");
    ck_assert_uint_eq(placement_say(KELP_PLACEMENT_CONNECTED, "shard-3", 13) & DID(WRITE_CHANGE),
                      0);
}

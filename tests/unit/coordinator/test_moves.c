/* Moves of partitions as changes of a placement's map: opening with backups, replacing a lost one,
 * and what holds moves up. */
#include <stdio.h>
#include <string.h>

#include "tests/lib/cores/placement_bench.h"
#include "tests/lib/suite.h"

#define PARTITIONS 6
#define NOBODY     KELP_MAP_NOBODY

static void setup(void)
{
    const struct kelp_placement_options options = {.shards = 3,
                                                   .replicas = 2,
                                                   .workers_min = 1,
                                                   .shard_wait_ms = 3000,
                                                   .detect_ms = 1000,
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

/* Whoever leads the partition says that its joiner has caught up. */
static uint32_t catch_up_one(uint32_t partition)
{
    const struct kelp_map *map = &placement_bench.machine.map;
    const struct kelp_map_partition *entry = &map->partitions[partition];
    const struct kelp_map_shard *leads = &map->shards[entry->primary];
    const struct kelp_replica_report report = {
        .partition = partition, .map_epoch = entry->map_epoch, .joiner_in_sync = true};
    return placement_apply(
        (struct kelp_placement_event){.kind = KELP_PLACEMENT_REPLICAS,
                                      .replicas = {.id = leads->id,
                                                   .incarnation = leads->incarnation,
                                                   .generation = map->generation,
                                                   .reports = &report,
                                                   .count = 1}});
}

static uint32_t catch_up(void)
{
    const struct kelp_map *map = &placement_bench.machine.map;
    uint32_t actions = 0;
    for (uint32_t i = 0; i < map->partition_count; i++) {
        if (map->partitions[i].joiner != NOBODY) {
            actions |= catch_up_one(i);
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

/* The next moves, written and taken. */
static void settle_once(void)
{
    (void)catch_up();
    (void)take(0, 10);
    (void)take(1, 11);
    (void)placement_tick(100);
    if (placement_bench.machine.change == KELP_CHANGE_WRITING) {
        (void)placement_written(KELP_WRITTEN_OK);
    }
}

KELP_TEST(replaces_a_lost_backup)
{
    uint32_t lacking = replace_lost();
    const struct kelp_map *map = &placement_bench.machine.map;
    uint32_t copies = 0;
    for (int round = 0; count(map, false) < PARTITIONS; round++) {
        ck_assert_int_lt(round, 20);
        copies += count(map, true);
        settle_once();
    }
    ck_assert_uint_eq(copies, lacking);
    ck_assert_int_eq(kelp_map_check(map, NULL), KELP_OK);
    ck_assert_int_eq(placement_bench.machine.state, KELP_PLACEMENT_RUNNING);
    ck_assert_uint_eq(map->generation, 1);
    ck_assert_uint_eq(placement_tick(100) & DID(WRITE_CHANGE), 0);
}

/* All moves that can be made. */
static void settle(void)
{
    for (int round = 0; round < 40; round++) {
        settle_once();
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
    machine->move_at_ms = placement_bench.now + 50;
    ck_assert_uint_eq(placement_tick(10) & DID(WRITE_CHANGE), 0);
    ck_assert(kelp_placement_changes(machine)); /* and no order comes before it */
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

/* ---- followers that their primaries do not hear ---- */

static uint32_t doubt(uint64_t by, uint32_t shard)
{
    placement_bench.now += 100;
    return placement_apply((struct kelp_placement_event){
        .kind = KELP_PLACEMENT_DOUBTED,
        .doubted = {.id = names[shard], .incarnation = 10 + shard, .by = by, .silent = true}});
}

static uint32_t count_pair(uint32_t primary, uint32_t follower)
{
    const struct kelp_map *map = &placement_bench.machine.map;
    uint32_t number = 0;
    for (uint32_t i = 0; i < map->partition_count; i++) {
        const struct kelp_map_partition *entry = &map->partitions[i];
        bool backup =
            entry->backup != NOBODY && map->shards[entry->backup].incarnation == 10 + follower;
        bool joiner =
            entry->joiner != NOBODY && map->shards[entry->joiner].incarnation == 10 + follower;
        number += map->shards[entry->primary].incarnation == 10 + primary && (backup || joiner);
    }
    return number;
}

/* Every shard says so, for so long; true: followers leave their entries. */
static bool doubt_for(uint32_t primary, uint32_t follower, uint64_t ms)
{
    uint32_t actions = 0;
    for (uint64_t past = 0; past < ms && (actions & DID(WRITE_CHANGE)) == 0; past += 100) {
        actions |= doubt(10 + primary, follower);
    }
    return (actions & DID(WRITE_CHANGE)) != 0;
}

/* A backup that we hear, and its primary not: it leaves after a while, only those entries, without
 * a loss; training goes on. It is tried again later, as a joiner that leaves at once, and later
 * still. Nobody else's word counts. */
KELP_TEST(silent_followers_are_dropped)
{
    struct kelp_placement *machine = &placement_bench.machine;
    run_three();
    uint32_t pairs = count_pair(0, 1);
    uint32_t backups = count(&machine->map, false);
    ck_assert_uint_gt(pairs, 0);
    ck_assert(!doubt_for(2, 1, 5000)); /* it is not its follower */
    ck_assert(!doubt_for(0, 1, 500));
    placement_bench.now += KELP_COORDINATOR_DOUBT_MS;
    ck_assert(!doubt_for(0, 1, 500)); /* heard meanwhile */
    ck_assert(doubt_for(0, 1, 300));
    ck_assert_str_eq(machine->because, "shard-0 does not hear shard-1");
    uint32_t actions = placement_written(KELP_WRITTEN_OK);
    ck_assert_uint_ne(actions & DID(CHANGE_TO_SHARDS), 0);
    ck_assert_uint_eq(actions & DID(COUNT_LOSS), 0);
    ck_assert_uint_eq(count_pair(0, 1), 0);
    ck_assert_uint_eq(count(&machine->map, false), backups - pairs);
    ck_assert_int_eq(machine->state, KELP_PLACEMENT_RUNNING);
    uint64_t pause_ms = KELP_COORDINATOR_AVOID_MS;
    for (int round = 0; round < 3; round++) {
        uint64_t before = placement_bench.now;
        while (count_pair(0, 1) == 0) {
            ck_assert_uint_lt(placement_bench.now, before + 2 * pause_ms);
            settle_once();
        }
        ck_assert_uint_ge(placement_bench.now + 100, before + pause_ms);
        ck_assert(doubt_for(0, 1, 300));
        (void)placement_written(KELP_WRITTEN_OK);
        ck_assert_uint_eq(count_pair(0, 1), 0);
        pause_ms *= 2;
    }
}

/* A pair that fails leaves no partition without a backup where a third shard is there: that one
 * gets the copy at once, in the same zone if there is no other. It stays while the pair is left
 * alone. */
KELP_TEST(another_follower_is_taken)
{
    struct kelp_placement *machine = &placement_bench.machine;
    run_three();
    ck_assert(doubt_for(1, 0, 5000));
    (void)placement_written(KELP_WRITTEN_OK);
    const uint32_t backups = count(&machine->map, false);
    const uint64_t dropped_ms = placement_bench.now;
    ck_assert_uint_lt(backups, PARTITIONS);
    ck_assert_uint_eq(count_pair(1, 0), 0);
    while (count(&machine->map, false) < PARTITIONS) {
        ck_assert_uint_lt(placement_bench.now, dropped_ms + KELP_COORDINATOR_AVOID_MS);
        settle_once();
        (void)take(2, 12);
    }
    while (placement_bench.now + 300 < dropped_ms + KELP_COORDINATOR_AVOID_MS) {
        ck_assert_uint_eq(count_pair(1, 0), 0);
        ck_assert_uint_eq(count(&machine->map, false), PARTITIONS);
        settle_once();
    }
}

/* etcd did not take a move (0), or nobody knows (1): it is made again, though nothing new is said.
 */
KELP_LOOP_TEST(moves_that_were_not_written, 0, 2)
{
    struct kelp_map none = {.generation = 0};
    run_three();
    (void)placement_apply((struct kelp_placement_event){
        .kind = KELP_PLACEMENT_DISCONNECTED, .disconnected = {.id = "shard-2", .broken = true}});
    (void)placement_written(KELP_WRITTEN_OK);
    (void)take(0, 10);
    (void)take(1, 11);
    ck_assert_uint_ne(placement_tick(100) & DID(WRITE_CHANGE), 0);
    (void)placement_written(_i == 0 ? KELP_WRITTEN_NOT : KELP_WRITTEN_UNKNOWN);
    if (_i == 1) {
        (void)placement_map_read(&none);
    }
    ck_assert_uint_eq(placement_tick(KELP_COORDINATOR_RETRY_MS - 1) & DID(WRITE_CHANGE), 0);
    ck_assert_uint_ne(placement_tick(1) & DID(WRITE_CHANGE), 0);
}

/* Joiners that catch up one after the other get their places together, and the last at once. */
KELP_LOOP_TEST(places_are_given_together, 0, 2)
{
    struct kelp_placement *machine = &placement_bench.machine;
    uint32_t lacking = replace_lost();
    ck_assert_uint_eq(count(&machine->map, true), lacking); /* all of them at once */
    ck_assert_uint_gt(lacking, 1);
    (void)take(0, 10);
    (void)take(1, 11);
    placement_bench.now += KELP_COORDINATOR_MOVE_MS;
    for (uint32_t i = 0, caught_up = 0; i < PARTITIONS; i++) {
        if (machine->map.partitions[i].joiner == NOBODY) {
            continue;
        }
        uint32_t actions = catch_up_one(i);
        bool last = ++caught_up == lacking;
        ck_assert_int_eq((actions & DID(WRITE_CHANGE)) != 0, last);
        if (_i == 1) {
            ck_assert_uint_ne(placement_tick(KELP_COORDINATOR_GATHER_MS) & DID(WRITE_CHANGE), 0);
            break;
        }
    }
}

/* Whoever waits for a pair to be tried again keeps no snapshot from being ordered. */
KELP_TEST(silent_followers_hold_up_no_order)
{
    bool owes[PARTITIONS];
    run_three();
    ck_assert(doubt_for(0, 1, 5000));
    (void)placement_written(KELP_WRITTEN_OK);
    for (int round = 0; round < 10; round++) { /* what else there is to do */
        settle_once();
        (void)take(2, 12);
    }
    ck_assert_uint_eq(count_pair(0, 1), 0);
    memset(owes, 1, sizeof(owes));
    placement_bench.owes = owes;
    placement_bench.machine.unarranged = true;
    (void)placement_tick(100);
    ck_assert_int_eq(placement_bench.machine.change, KELP_CHANGE_NONE);
    ck_assert(!kelp_placement_changes(&placement_bench.machine));
}

/* What is known changes nothing, and nothing is looked for. */
KELP_TEST(reports_that_say_nothing_new)
{
    struct kelp_placement *machine = &placement_bench.machine;
    (void)replace_lost();
    ck_assert(!machine->unarranged || count(&machine->map, true) > 0);
    (void)take(0, 10);
    (void)take(1, 11);
    (void)placement_tick(KELP_COORDINATOR_GATHER_MS);
    ck_assert_int_eq(machine->change, KELP_CHANGE_NONE);
    ck_assert(!machine->unarranged);
    for (uint32_t i = 0; i < PARTITIONS; i++) {
        const struct kelp_map_partition *entry = &machine->map.partitions[i];
        const struct kelp_map_shard *leads = &machine->map.shards[entry->primary];
        struct kelp_replica_report report = {.partition = i, .map_epoch = entry->map_epoch};
        for (report.copied = 1; report.copied < 4; report.copied++) {
            machine->unarranged = false;
            placement_bench.machine.move_at_ms = UINT64_MAX; /* what is unarranged stays so */
            (void)placement_apply(
                (struct kelp_placement_event){.kind = KELP_PLACEMENT_REPLICAS,
                                              .replicas = {.id = leads->id,
                                                           .incarnation = leads->incarnation,
                                                           .generation = machine->map.generation,
                                                           .reports = &report,
                                                           .count = 1}});
            ck_assert_int_eq(machine->unarranged, report.copied == 1);
        }
    }
}

/* ---- draining ---- */

static enum kelp_placement_leave leave_of(uint32_t shard)
{
    return kelp_placement_leave(&placement_bench.machine,
                                kelp_placement_find(&placement_bench.machine, names[shard]));
}

static void tell_to_end(uint32_t shard)
{
    (void)placement_apply(
        (struct kelp_placement_event){.kind = KELP_PLACEMENT_LEAVING,
                                      .leaving = {.id = names[shard], .incarnation = 10 + shard}});
}

/* `kelp drain`, of one start of a shard. */
static void name_drained(uint32_t shard, uint64_t incarnation)
{
    struct kelp_drain drain = {.incarnation = incarnation};
    (void)snprintf(drain.id, sizeof(drain.id), "%s", names[shard]);
    (void)placement_apply((struct kelp_placement_event){
        .kind = KELP_PLACEMENT_SIZE,
        .size = {.workers_min = 1, .shards = 3, .drains = &drain, .drain_count = 1}});
}

/* Two moves of settle() at a time, until the shard may leave; it has nothing then, and not before.
 */
static void drain_out(uint32_t shard)
{
    struct kelp_placement *machine = &placement_bench.machine;
    for (int round = 0; leave_of(shard) == KELP_LEAVE_NOT; round++) {
        ck_assert_int_lt(round, 100);
        (void)catch_up();
        for (uint32_t i = 0; i < 3; i++) {
            (void)take(i, 10 + i);
        }
        (void)placement_tick(100);
        if (machine->change == KELP_CHANGE_WRITING) {
            (void)placement_written(KELP_WRITTEN_OK);
            ck_assert(kelp_map_find(&machine->map, names[shard]) >= 0 ||
                      leave_of(shard) == KELP_LEAVE_NOT); /* workers do not know it yet */
        }
    }
    ck_assert_int_eq(leave_of(shard), KELP_LEAVE_EMPTY);
    ck_assert_int_lt(kelp_map_find(&machine->map, names[shard]), 0);
    ck_assert_uint_eq(machine->map.generation, 1);
    ck_assert_uint_eq(count(&machine->map, false), machine->options.replicas > 1 ? PARTITIONS : 0);
    ck_assert_int_eq(machine->state, KELP_PLACEMENT_RUNNING);
}

/* A shard that goes is no loss, and nothing follows from its end. */
static void end_shard(uint32_t shard)
{
    uint32_t actions = placement_apply((struct kelp_placement_event){
        .kind = KELP_PLACEMENT_DISCONNECTED, .disconnected = {.id = names[shard], .broken = true}});
    actions |= placement_apply((struct kelp_placement_event){.kind = KELP_PLACEMENT_UNREGISTERED,
                                                             .unregistered = names[shard]});
    actions |= placement_tick(10000);
    ck_assert_uint_eq(actions & (DID(COUNT_LOSS) | DID(WRITE_MAP) | DID(WRITE_CHANGE)), 0);
    ck_assert_ptr_null(kelp_placement_find(&placement_bench.machine, names[shard]));
}

/* A shard that was told to end gives everything away first. */
KELP_TEST(a_shard_that_leaves_is_drained)
{
    run_three();
    tell_to_end(2);
    drain_out(2);
    end_shard(2);
}

/* So does one that is named; another start of it is not meant. */
KELP_TEST(a_named_shard_is_drained)
{
    run_three();
    name_drained(1, 10);
    ck_assert_uint_eq(placement_tick(100) & DID(WRITE_CHANGE), 0);
    ck_assert(!kelp_placement_find(&placement_bench.machine, "shard-1")->draining);
    name_drained(1, 11);
    drain_out(1);
    end_shard(1);
}

/* Without backups a joiner gets the copy, leads, and the shard is detached. */
KELP_TEST(drains_without_backups)
{
    placement_bench.machine.options.replicas = 1;
    run_three();
    tell_to_end(0);
    drain_out(0);
    end_shard(0);
}

/* With one other shard left each partition keeps one replica. */
KELP_TEST(drains_to_fewer_replicas)
{
    struct kelp_placement *machine = &placement_bench.machine;
    run_three();
    tell_to_end(2);
    drain_out(2);
    end_shard(2);
    tell_to_end(1);
    machine->options.replicas = 1; /* what drain_out() expects */
    drain_out(1);
    end_shard(1);
}

/* Nobody is left who could take over: names count for nothing, and one that was told to end goes as
 * it is. */
KELP_TEST(the_last_one_goes_as_it_is)
{
    run_three();
    tell_to_end(0);
    tell_to_end(1);
    ck_assert_int_eq(leave_of(0), KELP_LEAVE_NOT);
    name_drained(2, 12);
    ck_assert(!kelp_placement_find(&placement_bench.machine, "shard-2")->draining);
    ck_assert_int_eq(leave_of(2), KELP_LEAVE_NOT);
    ck_assert_int_eq(leave_of(1), KELP_LEAVE_NOT);
    tell_to_end(2);
    for (uint32_t i = 0; i < 3; i++) {
        ck_assert_int_eq(leave_of(i), KELP_LEAVE_LAST);
    }
}

/* Who is drained is not used by a generation that opens, and may go before it does. */
KELP_TEST(a_generation_opens_without_it)
{
    (void)placement_none_read();
    (void)placement_plan(PARTITIONS);
    for (uint32_t i = 0; i < 4; i++) {
        register_in(i, 10 + i, "here");
        (void)placement_say(KELP_PLACEMENT_CONNECTED, names[i], 10 + i);
    }
    tell_to_end(1);
    ck_assert_int_eq(leave_of(1), KELP_LEAVE_EMPTY);
    (void)placement_workers(1);
    ck_assert_int_eq(placement_bench.machine.state, KELP_PLACEMENT_OPENING);
    ck_assert_int_lt(kelp_map_find(&placement_bench.machine.next, "shard-1"), 0);
    ck_assert_int_ge(kelp_map_find(&placement_bench.machine.next, "shard-3"), 0);
}

/* It was told that it may leave, and does when that arrives, whatever has changed since. */
KELP_TEST(who_was_let_go_is_not_used_again)
{
    struct kelp_placement *machine = &placement_bench.machine;
    run_three();
    name_drained(1, 11);
    drain_out(1);
    kelp_placement_let_go(machine, "shard-1", 11);
    name_drained(2, 12); /* and shard-1 is named no more */
    ck_assert(!kelp_placement_find(machine, "shard-1")->draining);
    for (int round = 0; round < 20; round++) {
        (void)catch_up();
        (void)take(0, 10);
        (void)take(2, 12);
        (void)placement_tick(100);
        if (machine->change == KELP_CHANGE_WRITING) {
            (void)placement_written(KELP_WRITTEN_OK);
        }
        ck_assert_int_lt(kelp_map_find(&machine->map, "shard-1"), 0);
    }
    ck_assert_int_eq(leave_of(1), KELP_LEAVE_EMPTY);
}

/* Where nobody else answers, a generation opens on who is drained. */
KELP_TEST(a_generation_opens_on_who_is_there)
{
    struct kelp_placement *machine = &placement_bench.machine;
    run_three();
    name_drained(1, 11);
    for (uint32_t i = 0; i < 3; i += 2) {
        (void)placement_apply((struct kelp_placement_event){
            .kind = KELP_PLACEMENT_DISCONNECTED, .disconnected = {.id = names[i], .broken = true}});
    }
    ck_assert(kelp_placement_find(machine, "shard-1")->draining);
    for (int round = 0; machine->state != KELP_PLACEMENT_OPENING; round++) {
        ck_assert_int_lt(round, 10);
        if (machine->change == KELP_CHANGE_WRITING) {
            (void)placement_written(KELP_WRITTEN_OK);
        }
        (void)placement_tick(10000);
    }
    ck_assert_uint_eq(machine->next.shard_count, 1);
    ck_assert_int_ge(kelp_map_find(&machine->next, "shard-1"), 0);
}

/* When the job is over, nobody needs what it has. */
KELP_TEST(the_end_needs_no_draining)
{
    run_three();
    tell_to_end(0);
    ck_assert_int_eq(leave_of(0), KELP_LEAVE_NOT);
    (void)placement_apply(
        (struct kelp_placement_event){.kind = KELP_PLACEMENT_STOPPED, .stopped = "enough"});
    ck_assert_int_eq(leave_of(0), KELP_LEAVE_OVER);
    ck_assert_int_eq(leave_of(1), KELP_LEAVE_NOT);
}

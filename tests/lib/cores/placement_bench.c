#include "tests/lib/cores/placement_bench.h"

#include <stdio.h>
#include <string.h>

#include "tests/lib/suite.h"

struct placement_bench placement_bench;

void placement_setup(void)
{
    struct kelp_placement_options options = {
        .shards = 2, .replicas = 1, .workers_min = 2, .shard_wait_ms = 3000, .writer = 77};
    placement_bench.now = 1000;
    placement_bench.owes = NULL;
    ck_assert_int_eq(kelp_placement_init(&placement_bench.machine, &options, NULL), KELP_OK);
}

void placement_teardown(void)
{
    kelp_placement_fini(&placement_bench.machine);
}

uint32_t placement_apply(struct kelp_placement_event event)
{
    struct kelp_placement_actions actions;
    uint32_t done = 0;
    event.now_ms = placement_bench.now;
    event.owes = placement_bench.owes;
    ck_assert_int_eq(kelp_placement_apply(&placement_bench.machine, &event, &actions, NULL),
                     KELP_OK);
    for (uint32_t i = 0; i < actions.count; i++) {
        ck_assert_uint_lt(done, 1u << actions.items[i].kind);
        done |= 1u << actions.items[i].kind;
    }
    return done;
}

uint32_t placement_map_read(struct kelp_map *map)
{
    return placement_apply(
        (struct kelp_placement_event){.kind = KELP_PLACEMENT_MAP_READ, .map_read = map});
}

uint32_t placement_none_read(void)
{
    struct kelp_map none = {0};
    return placement_map_read(&none);
}

uint32_t placement_plan(uint32_t partitions)
{
    return placement_apply(
        (struct kelp_placement_event){.kind = KELP_PLACEMENT_PLAN, .partition_count = partitions});
}

uint32_t placement_workers(uint32_t count)
{
    return placement_apply(
        (struct kelp_placement_event){.kind = KELP_PLACEMENT_WORKERS, .worker_count = count});
}

uint32_t placement_registered(const char *id, uint64_t incarnation)
{
    struct kelp_map_shard shard = {.incarnation = incarnation};
    (void)snprintf(shard.id, sizeof(shard.id), "%s", id);
    (void)snprintf(shard.address, sizeof(shard.address), "127.0.0.1:1");
    return placement_apply(
        (struct kelp_placement_event){.kind = KELP_PLACEMENT_REGISTERED, .registered = &shard});
}

uint32_t placement_say(enum kelp_placement_event_kind kind, const char *id, uint64_t incarnation)
{
    uint64_t generation = placement_bench.machine.map.generation;
    struct kelp_placement_event event = {.kind = kind};
    if (kind == KELP_PLACEMENT_UNREGISTERED) {
        event.unregistered = id;
    } else if (kind == KELP_PLACEMENT_DISCONNECTED) {
        event.disconnected.id = id;
    } else if (kind == KELP_PLACEMENT_CONNECTED) {
        event.connected.id = id;
        event.connected.incarnation = incarnation;
        event.connected.generation = generation;
    } else {
        ck_assert_int_eq(kind, KELP_PLACEMENT_LOADED);
        event.loaded.id = id;
        event.loaded.incarnation = incarnation;
        event.loaded.generation = generation;
    }
    return placement_apply(event);
}

uint32_t placement_written(enum kelp_placement_written result)
{
    return placement_apply(
        (struct kelp_placement_event){.kind = KELP_PLACEMENT_WRITTEN, .written = result});
}

uint32_t placement_tick(uint64_t ms)
{
    placement_bench.now += ms;
    return placement_apply((struct kelp_placement_event){.kind = KELP_PLACEMENT_TICK});
}

uint32_t placement_appear(const char *id, uint64_t incarnation)
{
    uint32_t actions = placement_registered(id, incarnation);
    return actions | placement_say(KELP_PLACEMENT_CONNECTED, id, incarnation);
}

void placement_start(void)
{
    (void)placement_none_read();
    (void)placement_plan(5);
    (void)placement_appear("shard-0", 10);
    (void)placement_appear("shard-1", 11);
    ck_assert_uint_ne(placement_workers(2) & DID(WRITE_MAP), 0);
    ck_assert_uint_ne(placement_written(KELP_WRITTEN_OK) & DID(MAP_TO_SHARDS), 0);
    (void)placement_say(KELP_PLACEMENT_LOADED, "shard-0", 10);
    ck_assert_uint_ne(placement_say(KELP_PLACEMENT_LOADED, "shard-1", 11) & DID(MAP_TO_WORKERS), 0);
    ck_assert_int_eq(placement_bench.machine.state, KELP_PLACEMENT_RUNNING);
}

uint32_t placement_finished(uint64_t generation)
{
    return placement_apply(
        (struct kelp_placement_event){.kind = KELP_PLACEMENT_FINISHED, .finished = generation});
}

/* Placement: the way to RUNNING, what it waits for, losses, failed writes, taking over. */
#include <stdio.h>
#include <string.h>

#include "tests/lib/cores/placement_bench.h"
#include "tests/lib/suite.h"

KELP_CASE("machine", .setup = placement_setup, .teardown = placement_teardown)

/* Each thing that is missing is named, in the order in which it is needed. */
KELP_TEST(says_what_it_waits_for)
{
    ck_assert_str_eq(placement_bench.machine.reason, "reading the map from etcd");
    (void)placement_none_read();
    ck_assert_str_eq(placement_bench.machine.reason, "waiting for 2 of 2 workers");
    (void)placement_workers(1);
    ck_assert_str_eq(placement_bench.machine.reason, "waiting for 1 of 2 workers");
    (void)placement_workers(2);
    ck_assert_str_eq(placement_bench.machine.reason, "waiting for the plan to be in etcd");
    (void)placement_plan(5);
    ck_assert_str_eq(placement_bench.machine.reason, "waiting for 2 of 2 shards");
    (void)placement_appear("shard-1", 11);
    ck_assert_str_eq(placement_bench.machine.reason, "waiting for 1 of 2 shards");
    (void)placement_registered("shard-0", 10);
    ck_assert_str_eq(placement_bench.machine.reason, "waiting for 1 of 2 shards");
    (void)placement_say(KELP_PLACEMENT_CONNECTED, "shard-0", 10);
    ck_assert_str_eq(placement_bench.machine.reason, "opening generation 1");
    (void)placement_written(KELP_WRITTEN_OK);
    ck_assert_str_eq(placement_bench.machine.reason, "waiting for shard-0 to load generation 1");
    ck_assert_str_eq(kelp_placement_state_text(placement_bench.machine.state), "starting");
}

/* A program of the user's takes a while until it is a worker. */
KELP_TEST(says_which_program_starts)
{
    (void)snprintf(placement_bench.machine.options.program,
                   sizeof(placement_bench.machine.options.program), "train.py");
    (void)placement_none_read();
    ck_assert_str_eq(placement_bench.machine.reason,
                     "waiting for 2 of 2 workers: train.py starts (imports, data)");
}

/* etcd was emptied while a shard lived: it takes maps above the one that it has alone. */
KELP_TEST(opens_above_what_shards_have)
{
    (void)placement_none_read();
    (void)placement_plan(5);
    (void)placement_workers(2);
    (void)placement_appear("shard-0", 10);
    (void)placement_registered("shard-1", 11);
    (void)placement_apply((struct kelp_placement_event){
        .kind = KELP_PLACEMENT_CONNECTED,
        .connected = {.id = "shard-1", .incarnation = 11, .generation = 7}});
    ck_assert_int_eq(placement_bench.machine.state, KELP_PLACEMENT_OPENING);
    ck_assert_uint_eq(placement_bench.machine.next.generation, 8);
}

/* A shard that was stopped loses its lease, goes on, and is connected to before it has registered
 * again: then it is there. */
KELP_TEST(connected_before_registered)
{
    (void)placement_none_read();
    (void)placement_plan(5);
    (void)placement_workers(2);
    (void)placement_appear("shard-0", 10);
    (void)placement_appear("shard-1", 11);
    (void)placement_written(KELP_WRITTEN_NOT);
    (void)placement_say(KELP_PLACEMENT_DISCONNECTED, "shard-1", 0);
    (void)placement_say(KELP_PLACEMENT_UNREGISTERED, "shard-1", 0);
    (void)placement_say(KELP_PLACEMENT_CONNECTED, "shard-1", 11);
    (void)placement_registered("shard-1", 11);
    ck_assert_uint_ne(placement_tick(1000) & DID(WRITE_MAP), 0);
    ck_assert_str_eq(placement_bench.machine.reason, "opening generation 1");
}

KELP_TEST(spreads_contiguously)
{
    placement_start();
    const struct kelp_map *map = kelp_placement_loaded_map(&placement_bench.machine);
    ck_assert_uint_eq(map->generation, 1);
    ck_assert_uint_eq(map->restore_version, 0);
    ck_assert_str_eq(map->shards[0].id, "shard-0");
    uint32_t primaries[5] = {0, 0, 0, 1, 1};
    for (uint32_t i = 0; i < 5; i++) {
        ck_assert_uint_eq(map->partitions[i].primary, primaries[i]);
        ck_assert_uint_eq(map->partitions[i].map_epoch, 1);
    }
    ck_assert_int_eq(kelp_map_check(map, NULL), KELP_OK);
    ck_assert_str_eq(placement_bench.machine.reason, "");
}

/* A broken stream alone changes nothing for as long as the lease lives. */
KELP_TEST(broken_stream_is_no_loss)
{
    placement_start();
    (void)placement_say(KELP_PLACEMENT_DISCONNECTED, "shard-1", 11);
    ck_assert_str_eq(placement_bench.machine.reason, "shard-1 does not answer");
    (void)placement_tick(60000);
    ck_assert_int_eq(placement_bench.machine.state, KELP_PLACEMENT_RUNNING);
    (void)placement_say(KELP_PLACEMENT_CONNECTED, "shard-1", 11);
    ck_assert_str_eq(placement_bench.machine.reason, "");
    ck_assert_int_eq(placement_bench.machine.state, KELP_PLACEMENT_RUNNING);
}

/* Broken stream, gone lease, and the wait over: the partitions go to the other shard. */
KELP_TEST(lost_shard_is_replaced_after_the_wait)
{
    placement_start();
    (void)placement_say(KELP_PLACEMENT_DISCONNECTED, "shard-1", 11);
    (void)placement_say(KELP_PLACEMENT_UNREGISTERED, "shard-1", 0);
    ck_assert_uint_eq(placement_tick(2999) & DID(COUNT_LOSS), 0);
    uint32_t actions = placement_tick(1);
    ck_assert_uint_ne(actions & DID(COUNT_LOSS), 0);
    ck_assert_uint_ne(actions & DID(WRITE_MAP), 0);
    ck_assert_uint_eq(placement_bench.machine.next.generation, 2);
    ck_assert_uint_eq(placement_bench.machine.next.shard_count, 1);
    ck_assert_uint_eq(placement_bench.machine.next.partitions[0].map_epoch, 1);
    ck_assert_uint_eq(placement_bench.machine.next.partitions[4].map_epoch, 2);
    ck_assert_ptr_null(kelp_placement_loaded_map(&placement_bench.machine));
    (void)placement_written(KELP_WRITTEN_OK);
    (void)placement_say(KELP_PLACEMENT_LOADED, "shard-0", 10);
    ck_assert_int_eq(placement_bench.machine.state, KELP_PLACEMENT_RUNNING);
}

/* A restarted shard is a loss at once, and the new generation waits for its stream alone. */
KELP_TEST(new_incarnation_is_a_loss)
{
    placement_start();
    (void)placement_say(KELP_PLACEMENT_DISCONNECTED, "shard-1", 11);
    uint32_t actions = placement_registered("shard-1", 12);
    ck_assert_uint_ne(actions & DID(COUNT_LOSS), 0);
    ck_assert_str_eq(placement_bench.machine.reason, "waiting for 1 of 2 shards: shard-1");
    ck_assert_uint_ne(placement_say(KELP_PLACEMENT_CONNECTED, "shard-1", 12) & DID(WRITE_MAP), 0);
    ck_assert_uint_eq(placement_bench.machine.next.shards[1].incarnation, 12);
    ck_assert_uint_eq(placement_bench.machine.next.partitions[0].map_epoch, 1);
    ck_assert_uint_eq(placement_bench.machine.next.partitions[3].map_epoch, 2);
}

/* The job is to have more shards than it had: they are waited for as long as lost ones are (0), and
 * what comes later gets partitions while training goes on (1). */
KELP_LOOP_TEST(growth_is_waited_for, 0, 2)
{
    placement_start();
    (void)placement_apply((struct kelp_placement_event){.kind = KELP_PLACEMENT_SIZE,
                                                        .size = {.workers_min = 2, .shards = 4}});
    (void)placement_registered("shard-1", 12);
    ck_assert_str_eq(placement_bench.machine.reason, "waiting for 3 of 4 shards: shard-1");
    ck_assert_uint_eq(placement_say(KELP_PLACEMENT_CONNECTED, "shard-1", 12) & DID(WRITE_MAP), 0);
    ck_assert_str_eq(placement_bench.machine.reason,
                     "waiting for 2 of 4 shards, for 3 s at most: it had 2 before");
    ck_assert_uint_eq(placement_appear("shard-2", 13) & DID(WRITE_MAP), 0);
    if (_i == 0) {
        ck_assert_uint_ne(placement_appear("shard-3", 14) & DID(WRITE_MAP), 0);
        ck_assert_uint_eq(placement_bench.machine.next.shard_count, 4);
        ck_assert_str_eq(placement_bench.machine.reason, "opening generation 2");
        return;
    }
    ck_assert_uint_eq(placement_tick(2999) & DID(WRITE_MAP), 0);
    ck_assert_uint_ne(placement_tick(1) & DID(WRITE_MAP), 0);
    ck_assert_uint_eq(placement_bench.machine.next.shard_count, 3);
    ck_assert_str_eq(placement_bench.machine.reason,
                     "opening generation 2 on 3 of 4 shards, and more once they come");
    (void)placement_written(KELP_WRITTEN_OK);
    (void)placement_say(KELP_PLACEMENT_LOADED, "shard-0", 10);
    (void)placement_say(KELP_PLACEMENT_LOADED, "shard-1", 12);
    (void)placement_say(KELP_PLACEMENT_LOADED, "shard-2", 13);
    ck_assert_int_eq(placement_bench.machine.state, KELP_PLACEMENT_RUNNING);
    placement_bench.now += KELP_COORDINATOR_MOVE_MS;
    ck_assert_uint_ne(placement_appear("shard-3", 14) & DID(WRITE_CHANGE), 0);
    ck_assert_str_eq(placement_bench.machine.because, "attach 1");
}

/* A loss while the map is being written leads to one more generation, not to two at once. */
KELP_TEST(loss_while_opening)
{
    (void)placement_none_read();
    (void)placement_plan(4);
    (void)placement_workers(2);
    (void)placement_appear("shard-0", 10);
    (void)placement_appear("shard-1", 11);
    ck_assert_int_eq(placement_bench.machine.state, KELP_PLACEMENT_OPENING);
    ck_assert_uint_eq(placement_appear("shard-1", 12) & DID(WRITE_MAP), 0);
    ck_assert_uint_ne(placement_written(KELP_WRITTEN_OK) & DID(WRITE_MAP), 0);
    ck_assert_uint_eq(placement_bench.machine.map.generation, 1);
    ck_assert_uint_eq(placement_bench.machine.next.generation, 2);
    ck_assert_uint_eq(placement_bench.machine.next.shards[1].incarnation, 12);
}

/* etcd refuses or its answer is lost: tried again after a pause, the lost one after reading. */
KELP_TEST(failed_writes)
{
    (void)placement_none_read();
    (void)placement_plan(4);
    (void)placement_workers(2);
    (void)placement_appear("shard-0", 10);
    (void)placement_appear("shard-1", 11);
    char nonce[sizeof(placement_bench.machine.next.nonce)];
    memcpy(nonce, placement_bench.machine.next.nonce, sizeof(nonce));
    ck_assert_uint_eq(placement_written(KELP_WRITTEN_NOT) & DID(WRITE_MAP), 0);
    ck_assert_uint_eq(placement_tick(KELP_COORDINATOR_RETRY_MS - 1) & DID(WRITE_MAP), 0);
    ck_assert_uint_ne(placement_tick(1) & DID(WRITE_MAP), 0);
    ck_assert_str_ne(nonce, placement_bench.machine.next.nonce);
    ck_assert_uint_ne(placement_written(KELP_WRITTEN_UNKNOWN) & DID(READ_MAP), 0);
    ck_assert_uint_eq(placement_tick(60000) & DID(WRITE_MAP), 0);
    struct kelp_map found; /* it was applied after all */
    ck_assert_int_eq(kelp_map_copy(&placement_bench.machine.next, &found), KELP_OK);
    ck_assert_uint_ne(placement_map_read(&found) & DID(MAP_TO_SHARDS), 0);
    ck_assert_uint_eq(placement_bench.machine.map.generation, 1);
    ck_assert_int_eq(placement_bench.machine.state, KELP_PLACEMENT_LOADING);
}

/* A new leader keeps the map when its shards are alive, and restores when one is another. */
KELP_LOOP_TEST(takes_over, 0, 2)
{
    placement_start();
    struct kelp_map found;
    ck_assert_int_eq(kelp_map_copy(&placement_bench.machine.map, &found), KELP_OK);
    kelp_placement_fini(&placement_bench.machine);
    placement_setup();
    (void)placement_plan(5);
    ck_assert_uint_ne(placement_map_read(&found) & DID(MAP_TO_SHARDS), 0);
    (void)placement_appear("shard-0", 10);
    (void)placement_say(KELP_PLACEMENT_LOADED, "shard-0", 10);
    if (_i == 0) {
        (void)placement_appear("shard-1", 11);
        ck_assert_uint_ne(placement_say(KELP_PLACEMENT_LOADED, "shard-1", 11) & DID(MAP_TO_WORKERS),
                          0);
        ck_assert_uint_eq(placement_bench.machine.map.generation, 1);
        ck_assert_str_eq(placement_bench.machine.reason, "waiting for a worker");
    } else {
        ck_assert_uint_ne(placement_appear("shard-1", 12) & DID(WRITE_MAP), 0);
        ck_assert_uint_eq(placement_bench.machine.next.generation, 2);
    }
}

/* What is wrong with the job stays wrong; anything else is tried again after a pause. */
KELP_TEST(load_failures)
{
    (void)placement_none_read();
    (void)placement_plan(4);
    (void)placement_workers(2);
    (void)placement_appear("shard-0", 10);
    (void)placement_appear("shard-1", 11);
    (void)placement_written(KELP_WRITTEN_OK);
    struct kelp_placement_event event = {
        .kind = KELP_PLACEMENT_LOAD_FAILED,
        .load_failed = {
            .id = "shard-1", .incarnation = 11, .status = KELP_ERR_NO_MEMORY, .text = "no room"}};
    (void)placement_apply(event);
    ck_assert_int_eq(placement_bench.machine.state, KELP_PLACEMENT_WAITING);
    ck_assert_str_eq(placement_bench.machine.reason, "shard-1 could not load: no room");
    (void)placement_tick(KELP_COORDINATOR_LOAD_RETRY_MS);
    ck_assert_int_eq(placement_bench.machine.state, KELP_PLACEMENT_OPENING);
    (void)placement_written(KELP_WRITTEN_OK);
    event.load_failed.status = KELP_ERR_NOT_FOUND;
    event.load_failed.text = "no such file";
    ck_assert_uint_ne(placement_apply(event) & DID(STATE), 0);
    ck_assert_int_eq(placement_bench.machine.state, KELP_PLACEMENT_FAILED);
    ck_assert_str_eq(placement_bench.machine.reason, "shard-1: no such file");
    ck_assert_uint_eq(placement_tick(60000), 0);
}

/* The end is the end; the map stays readable. */
KELP_TEST(done_stays_done)
{
    placement_start();
    ck_assert_uint_ne(placement_finished(1) & DID(STATE), 0);
    ck_assert_str_eq(kelp_placement_state_text(placement_bench.machine.state), "done");
    ck_assert_ptr_nonnull(kelp_placement_loaded_map(&placement_bench.machine));
    (void)placement_appear("shard-1", 12);
    (void)placement_tick(60000);
    ck_assert_int_eq(placement_bench.machine.state, KELP_PLACEMENT_DONE);
}

/* A shard is lost while the finish is on its way: the job goes on to the finish of the model that
 * is computed again. The late finish comes while the restore waits, opens, loads, or runs. */
KELP_LOOP_TEST(late_finish_is_dropped, 0, 4)
{
    placement_start();
    (void)placement_say(KELP_PLACEMENT_DISCONNECTED, "shard-1", 11);
    (void)placement_registered("shard-1", 12);
    for (int moment = 0; moment < 4; moment++) {
        static const enum kelp_placement_state states[] = {
            KELP_PLACEMENT_WAITING, KELP_PLACEMENT_OPENING, KELP_PLACEMENT_LOADING,
            KELP_PLACEMENT_RUNNING};
        if (moment == 1) {
            (void)placement_say(KELP_PLACEMENT_CONNECTED, "shard-1", 12);
        } else if (moment == 2) {
            (void)placement_written(KELP_WRITTEN_OK);
        } else if (moment == 3) {
            (void)placement_say(KELP_PLACEMENT_LOADED, "shard-0", 10);
            (void)placement_say(KELP_PLACEMENT_LOADED, "shard-1", 12);
        }
        if (_i <= moment) { /* again and again, since it was first sent */
            (void)placement_finished(1);
        }
        (void)placement_tick(100);
        ck_assert_int_eq(placement_bench.machine.state, states[moment]);
    }
    ck_assert_uint_eq(placement_bench.machine.map.generation, 2);
    (void)placement_finished(2);
    ck_assert_int_eq(placement_bench.machine.state, KELP_PLACEMENT_DONE);
}

/* A new leader hears of the finish from shard-0, before it has read the map or while it loads: it
 * is done only when shard-1 turns out to hold its part, and not when that one is lost. */
KELP_LOOP_TEST(early_finish_waits, 0, 4)
{
    bool before_map = _i % 2 == 0;
    bool lost = _i >= 2;
    placement_start();
    struct kelp_map found;
    ck_assert_int_eq(kelp_map_copy(&placement_bench.machine.map, &found), KELP_OK);
    kelp_placement_fini(&placement_bench.machine);
    placement_setup();
    (void)placement_plan(5);
    if (before_map) {
        (void)placement_finished(1);
        ck_assert_int_eq(placement_bench.machine.state, KELP_PLACEMENT_WAITING);
    }
    (void)placement_map_read(&found);
    (void)placement_appear("shard-0", 10);
    (void)placement_say(KELP_PLACEMENT_LOADED, "shard-0", 10);
    if (!before_map) {
        (void)placement_finished(1);
    }
    (void)placement_tick(100);
    ck_assert_int_eq(placement_bench.machine.state, KELP_PLACEMENT_LOADING);
    if (lost) {
        ck_assert_uint_ne(placement_appear("shard-1", 12) & DID(WRITE_MAP), 0);
        (void)placement_written(KELP_WRITTEN_OK);
        (void)placement_say(KELP_PLACEMENT_LOADED, "shard-0", 10);
        (void)placement_say(KELP_PLACEMENT_LOADED, "shard-1", 12);
    } else {
        (void)placement_appear("shard-1", 11);
        (void)placement_say(KELP_PLACEMENT_LOADED, "shard-1", 11);
    }
    ck_assert_int_eq(placement_bench.machine.state, KELP_PLACEMENT_RUNNING);
    (void)placement_tick(100);
    ck_assert_int_eq(placement_bench.machine.state,
                     lost ? KELP_PLACEMENT_RUNNING : KELP_PLACEMENT_DONE);
}

KELP_TEST(orders_maps)
{
    struct kelp_map map = {.generation = 2, .serial = 3};
    ck_assert(!kelp_map_older(&map, &map));
    ck_assert(kelp_map_older(&map, &(struct kelp_map){.generation = 2, .serial = 4}));
    ck_assert(kelp_map_older(&map, &(struct kelp_map){.generation = 3, .serial = 1}));
    ck_assert(!kelp_map_older(&map, &(struct kelp_map){.generation = 1, .serial = 9}));
}

KELP_TEST(orders_names)
{
    ck_assert_int_lt(kelp_map_compare_ids("shard-2", "shard-10"), 0);
    ck_assert_int_gt(kelp_map_compare_ids("shard-2", "shard-1"), 0);
    ck_assert_int_eq(kelp_map_compare_ids("a", "a"), 0);
}

/* Every field that a damaged map could have wrong is refused. */
KELP_TEST(checks_maps)
{
    placement_start();
    struct kelp_map map;
    ck_assert_int_eq(kelp_map_copy(&placement_bench.machine.map, &map), KELP_OK);
    map.partitions[2].primary = 2;
    ck_assert_int_eq(kelp_map_check(&map, NULL), KELP_ERR_FORMAT);
    map.partitions[2].primary = 0;
    map.partitions[2].map_epoch = 0;
    ck_assert_int_eq(kelp_map_check(&map, NULL), KELP_ERR_FORMAT);
    map.partitions[2].map_epoch = 1;
    map.generation = 0;
    ck_assert_int_eq(kelp_map_check(&map, NULL), KELP_ERR_FORMAT);
    map.generation = 1;
    map.serial = 0;
    ck_assert_int_eq(kelp_map_check(&map, NULL), KELP_ERR_FORMAT);
    map.serial = 1;
    ck_assert_int_eq(kelp_map_check(&map, NULL), KELP_OK);
    map.partitions[2].backup = 0;
    ck_assert_int_eq(kelp_map_check(&map, NULL), KELP_ERR_FORMAT);
    map.partitions[2].backup = 2;
    ck_assert_int_eq(kelp_map_check(&map, NULL), KELP_ERR_FORMAT);
    map.partitions[2].backup = 1;
    ck_assert_int_eq(kelp_map_check(&map, NULL), KELP_OK);
    map.partitions[2].joiner = 1;
    ck_assert_int_eq(kelp_map_check(&map, NULL), KELP_ERR_FORMAT);
    map.partitions[2].joiner = KELP_MAP_NOBODY;
    (void)snprintf(map.shards[1].zone, sizeof(map.shards[1].zone), "a b");
    ck_assert_int_eq(kelp_map_check(&map, NULL), KELP_ERR_FORMAT);
    map.shards[1] = map.shards[0];
    ck_assert_int_eq(kelp_map_check(&map, NULL), KELP_ERR_FORMAT);
    kelp_map_fini(&map);
    ck_assert_int_eq(kelp_map_init(&map, 1, 5000, NULL), KELP_ERR_LIMIT);
}

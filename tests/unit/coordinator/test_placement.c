/* Placement: the way to RUNNING, what it waits for, losses, failed writes, taking over. */
#include <stdio.h>
#include <string.h>

#include "coordinator/core/placement.h"
#include "tests/lib/suite.h"

static struct kelp_placement placement;
static uint64_t now;

static void setup(void)
{
    struct kelp_placement_options options = {
        .shards = 2, .workers_min = 2, .shard_wait_ms = 3000, .writer = 77};
    now = 1000;
    ck_assert_int_eq(kelp_placement_init(&placement, &options, NULL), KELP_OK);
}

static void teardown(void)
{
    kelp_placement_fini(&placement);
}

/* The bit of an action's kind. */
#define DID(kind) (1u << KELP_PLACEMENT_DO_##kind)

/* Bits of what is to be done; the actions come in the order of their kinds. */
static uint32_t apply(struct kelp_placement_event event)
{
    struct kelp_placement_actions actions;
    uint32_t done = 0;
    event.now_ms = now;
    ck_assert_int_eq(kelp_placement_apply(&placement, &event, &actions, NULL), KELP_OK);
    for (uint32_t i = 0; i < actions.count; i++) {
        ck_assert_uint_lt(done, 1u << actions.items[i].kind);
        done |= 1u << actions.items[i].kind;
    }
    return done;
}

static uint32_t map_read(struct kelp_map *map)
{
    return apply((struct kelp_placement_event){.kind = KELP_PLACEMENT_MAP_READ, .map_read = map});
}

static uint32_t none_read(void)
{
    struct kelp_map none = {0};
    return map_read(&none);
}

static uint32_t plan(uint32_t partitions)
{
    return apply(
        (struct kelp_placement_event){.kind = KELP_PLACEMENT_PLAN, .partition_count = partitions});
}

static uint32_t workers(uint32_t count)
{
    return apply(
        (struct kelp_placement_event){.kind = KELP_PLACEMENT_WORKERS, .worker_count = count});
}

static uint32_t registered(const char *id, uint64_t incarnation)
{
    struct kelp_map_shard shard = {.incarnation = incarnation};
    (void)snprintf(shard.id, sizeof(shard.id), "%s", id);
    (void)snprintf(shard.address, sizeof(shard.address), "127.0.0.1:1");
    return apply(
        (struct kelp_placement_event){.kind = KELP_PLACEMENT_REGISTERED, .registered = &shard});
}

static uint32_t say(enum kelp_placement_event_kind kind, const char *id, uint64_t incarnation)
{
    uint64_t generation = placement.map.generation;
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
    return apply(event);
}

static uint32_t written(enum kelp_placement_written result)
{
    return apply((struct kelp_placement_event){.kind = KELP_PLACEMENT_WRITTEN, .written = result});
}

static uint32_t tick(uint64_t ms)
{
    now += ms;
    return apply((struct kelp_placement_event){.kind = KELP_PLACEMENT_TICK});
}

static uint32_t appear(const char *id, uint64_t incarnation)
{
    uint32_t actions = registered(id, incarnation);
    return actions | say(KELP_PLACEMENT_CONNECTED, id, incarnation);
}

/* shard-0 and shard-1 (incarnations 10 and 11) run generation 1. */
static void start(void)
{
    (void)none_read();
    (void)plan(5);
    (void)appear("shard-0", 10);
    (void)appear("shard-1", 11);
    ck_assert_uint_ne(workers(2) & DID(WRITE_MAP), 0);
    ck_assert_uint_ne(written(KELP_WRITTEN_OK) & DID(MAP_TO_SHARDS), 0);
    (void)say(KELP_PLACEMENT_LOADED, "shard-0", 10);
    ck_assert_uint_ne(say(KELP_PLACEMENT_LOADED, "shard-1", 11) & DID(MAP_TO_WORKERS), 0);
    ck_assert_int_eq(placement.state, KELP_PLACEMENT_RUNNING);
}

static uint32_t finished(uint64_t generation)
{
    return apply(
        (struct kelp_placement_event){.kind = KELP_PLACEMENT_FINISHED, .finished = generation});
}

KELP_CASE("machine", .setup = setup, .teardown = teardown)

/* Each thing that is missing is named, in the order in which it is needed. */
KELP_TEST(says_what_it_waits_for)
{
    ck_assert_str_eq(placement.reason, "reading the map from etcd");
    (void)none_read();
    ck_assert_str_eq(placement.reason, "waiting for 2 of 2 workers");
    (void)workers(1);
    ck_assert_str_eq(placement.reason, "waiting for 1 of 2 workers");
    (void)workers(2);
    ck_assert_str_eq(placement.reason, "waiting for the plan to be in etcd");
    (void)plan(5);
    ck_assert_str_eq(placement.reason, "waiting for 2 of 2 shards");
    (void)appear("shard-1", 11);
    ck_assert_str_eq(placement.reason, "waiting for 1 of 2 shards");
    (void)registered("shard-0", 10);
    ck_assert_str_eq(placement.reason, "waiting for 1 of 2 shards");
    (void)say(KELP_PLACEMENT_CONNECTED, "shard-0", 10);
    ck_assert_str_eq(placement.reason, "opening generation 1");
    (void)written(KELP_WRITTEN_OK);
    ck_assert_str_eq(placement.reason, "waiting for shard-0 to load generation 1");
    ck_assert_str_eq(kelp_placement_state_text(placement.state), "starting");
}

/* etcd was emptied while a shard lived: it takes maps above the one that it has alone. */
KELP_TEST(opens_above_what_shards_have)
{
    (void)none_read();
    (void)plan(5);
    (void)workers(2);
    (void)appear("shard-0", 10);
    (void)registered("shard-1", 11);
    (void)apply((struct kelp_placement_event){
        .kind = KELP_PLACEMENT_CONNECTED,
        .connected = {.id = "shard-1", .incarnation = 11, .generation = 7}});
    ck_assert_int_eq(placement.state, KELP_PLACEMENT_OPENING);
    ck_assert_uint_eq(placement.next.generation, 8);
}

/* A shard that was stopped loses its lease, goes on, and is connected to before it has registered
 * again: then it is there. */
KELP_TEST(connected_before_registered)
{
    (void)none_read();
    (void)plan(5);
    (void)workers(2);
    (void)appear("shard-0", 10);
    (void)appear("shard-1", 11);
    (void)written(KELP_WRITTEN_NOT);
    (void)say(KELP_PLACEMENT_DISCONNECTED, "shard-1", 0);
    (void)say(KELP_PLACEMENT_UNREGISTERED, "shard-1", 0);
    (void)say(KELP_PLACEMENT_CONNECTED, "shard-1", 11);
    (void)registered("shard-1", 11);
    ck_assert_uint_ne(tick(1000) & DID(WRITE_MAP), 0);
    ck_assert_str_eq(placement.reason, "opening generation 1");
}

KELP_TEST(spreads_contiguously)
{
    start();
    const struct kelp_map *map = kelp_placement_loaded_map(&placement);
    ck_assert_uint_eq(map->generation, 1);
    ck_assert_uint_eq(map->restore_version, 0);
    ck_assert_str_eq(map->shards[0].id, "shard-0");
    uint32_t primaries[5] = {0, 0, 0, 1, 1};
    for (uint32_t i = 0; i < 5; i++) {
        ck_assert_uint_eq(map->partitions[i].primary, primaries[i]);
        ck_assert_uint_eq(map->partitions[i].map_epoch, 1);
    }
    ck_assert_int_eq(kelp_map_check(map, NULL), KELP_OK);
    ck_assert_str_eq(placement.reason, "");
}

/* A broken stream alone changes nothing for as long as the lease lives. */
KELP_TEST(broken_stream_is_no_loss)
{
    start();
    (void)say(KELP_PLACEMENT_DISCONNECTED, "shard-1", 11);
    ck_assert_str_eq(placement.reason, "shard-1 does not answer");
    (void)tick(60000);
    ck_assert_int_eq(placement.state, KELP_PLACEMENT_RUNNING);
    (void)say(KELP_PLACEMENT_CONNECTED, "shard-1", 11);
    ck_assert_str_eq(placement.reason, "");
    ck_assert_int_eq(placement.state, KELP_PLACEMENT_RUNNING);
}

/* Broken stream, gone lease, and the wait over: the partitions go to the other shard. */
KELP_TEST(lost_shard_is_replaced_after_the_wait)
{
    start();
    (void)say(KELP_PLACEMENT_DISCONNECTED, "shard-1", 11);
    (void)say(KELP_PLACEMENT_UNREGISTERED, "shard-1", 0);
    ck_assert_uint_eq(tick(2999) & DID(COUNT_LOSS), 0);
    uint32_t actions = tick(1);
    ck_assert_uint_ne(actions & DID(COUNT_LOSS), 0);
    ck_assert_uint_ne(actions & DID(WRITE_MAP), 0);
    ck_assert_uint_eq(placement.next.generation, 2);
    ck_assert_uint_eq(placement.next.shard_count, 1);
    ck_assert_uint_eq(placement.next.partitions[0].map_epoch, 1);
    ck_assert_uint_eq(placement.next.partitions[4].map_epoch, 2);
    ck_assert_ptr_null(kelp_placement_loaded_map(&placement));
    (void)written(KELP_WRITTEN_OK);
    (void)say(KELP_PLACEMENT_LOADED, "shard-0", 10);
    ck_assert_int_eq(placement.state, KELP_PLACEMENT_RUNNING);
}

/* A restarted shard is a loss at once, and the new generation waits for its stream alone. */
KELP_TEST(new_incarnation_is_a_loss)
{
    start();
    (void)say(KELP_PLACEMENT_DISCONNECTED, "shard-1", 11);
    uint32_t actions = registered("shard-1", 12);
    ck_assert_uint_ne(actions & DID(COUNT_LOSS), 0);
    ck_assert_str_eq(placement.reason, "waiting for 1 of 2 shards: shard-1");
    ck_assert_uint_ne(say(KELP_PLACEMENT_CONNECTED, "shard-1", 12) & DID(WRITE_MAP), 0);
    ck_assert_uint_eq(placement.next.shards[1].incarnation, 12);
    ck_assert_uint_eq(placement.next.partitions[0].map_epoch, 1);
    ck_assert_uint_eq(placement.next.partitions[3].map_epoch, 2);
}

/* A loss while the map is being written leads to one more generation, not to two at once. */
KELP_TEST(loss_while_opening)
{
    (void)none_read();
    (void)plan(4);
    (void)workers(2);
    (void)appear("shard-0", 10);
    (void)appear("shard-1", 11);
    ck_assert_int_eq(placement.state, KELP_PLACEMENT_OPENING);
    ck_assert_uint_eq(appear("shard-1", 12) & DID(WRITE_MAP), 0);
    ck_assert_uint_ne(written(KELP_WRITTEN_OK) & DID(WRITE_MAP), 0);
    ck_assert_uint_eq(placement.map.generation, 1);
    ck_assert_uint_eq(placement.next.generation, 2);
    ck_assert_uint_eq(placement.next.shards[1].incarnation, 12);
}

/* etcd refuses or its answer is lost: tried again after a pause, the lost one after reading. */
KELP_TEST(failed_writes)
{
    (void)none_read();
    (void)plan(4);
    (void)workers(2);
    (void)appear("shard-0", 10);
    (void)appear("shard-1", 11);
    char nonce[sizeof(placement.next.nonce)];
    memcpy(nonce, placement.next.nonce, sizeof(nonce));
    ck_assert_uint_eq(written(KELP_WRITTEN_NOT) & DID(WRITE_MAP), 0);
    ck_assert_uint_eq(tick(KELP_COORDINATOR_RETRY_MS - 1) & DID(WRITE_MAP), 0);
    ck_assert_uint_ne(tick(1) & DID(WRITE_MAP), 0);
    ck_assert_str_ne(nonce, placement.next.nonce);
    ck_assert_uint_ne(written(KELP_WRITTEN_UNKNOWN) & DID(READ_MAP), 0);
    ck_assert_uint_eq(tick(60000) & DID(WRITE_MAP), 0);
    struct kelp_map found; /* it was applied after all */
    ck_assert_int_eq(kelp_map_copy(&placement.next, &found), KELP_OK);
    ck_assert_uint_ne(map_read(&found) & DID(MAP_TO_SHARDS), 0);
    ck_assert_uint_eq(placement.map.generation, 1);
    ck_assert_int_eq(placement.state, KELP_PLACEMENT_LOADING);
}

/* A new leader keeps the map when its shards are alive, and restores when one is another. */
KELP_LOOP_TEST(takes_over, 0, 2)
{
    start();
    struct kelp_map found;
    ck_assert_int_eq(kelp_map_copy(&placement.map, &found), KELP_OK);
    kelp_placement_fini(&placement);
    setup();
    (void)plan(5);
    ck_assert_uint_ne(map_read(&found) & DID(MAP_TO_SHARDS), 0);
    (void)appear("shard-0", 10);
    (void)say(KELP_PLACEMENT_LOADED, "shard-0", 10);
    if (_i == 0) {
        (void)appear("shard-1", 11);
        ck_assert_uint_ne(say(KELP_PLACEMENT_LOADED, "shard-1", 11) & DID(MAP_TO_WORKERS), 0);
        ck_assert_uint_eq(placement.map.generation, 1);
        ck_assert_str_eq(placement.reason, "waiting for a worker");
    } else {
        ck_assert_uint_ne(appear("shard-1", 12) & DID(WRITE_MAP), 0);
        ck_assert_uint_eq(placement.next.generation, 2);
    }
}

/* What is wrong with the job stays wrong; anything else is tried again after a pause. */
KELP_TEST(load_failures)
{
    (void)none_read();
    (void)plan(4);
    (void)workers(2);
    (void)appear("shard-0", 10);
    (void)appear("shard-1", 11);
    (void)written(KELP_WRITTEN_OK);
    struct kelp_placement_event event = {
        .kind = KELP_PLACEMENT_LOAD_FAILED,
        .load_failed = {
            .id = "shard-1", .incarnation = 11, .status = KELP_ERR_NO_MEMORY, .text = "no room"}};
    (void)apply(event);
    ck_assert_int_eq(placement.state, KELP_PLACEMENT_WAITING);
    ck_assert_str_eq(placement.reason, "shard-1 could not load: no room");
    (void)tick(KELP_COORDINATOR_LOAD_RETRY_MS);
    ck_assert_int_eq(placement.state, KELP_PLACEMENT_OPENING);
    (void)written(KELP_WRITTEN_OK);
    event.load_failed.status = KELP_ERR_NOT_FOUND;
    event.load_failed.text = "no such file";
    ck_assert_uint_ne(apply(event) & DID(STATE), 0);
    ck_assert_int_eq(placement.state, KELP_PLACEMENT_FAILED);
    ck_assert_str_eq(placement.reason, "shard-1: no such file");
    ck_assert_uint_eq(tick(60000), 0);
}

/* The end is the end; the map stays readable. */
KELP_TEST(done_stays_done)
{
    start();
    ck_assert_uint_ne(finished(1) & DID(STATE), 0);
    ck_assert_str_eq(kelp_placement_state_text(placement.state), "done");
    ck_assert_ptr_nonnull(kelp_placement_loaded_map(&placement));
    (void)appear("shard-1", 12);
    (void)tick(60000);
    ck_assert_int_eq(placement.state, KELP_PLACEMENT_DONE);
}

/* A shard is lost while the finish is on its way: the job goes on to the finish of the model that
 * is computed again. The late finish comes while the restore waits, opens, loads, or runs. */
KELP_LOOP_TEST(late_finish_is_dropped, 0, 4)
{
    start();
    (void)say(KELP_PLACEMENT_DISCONNECTED, "shard-1", 11);
    (void)registered("shard-1", 12);
    for (int moment = 0; moment < 4; moment++) {
        static const enum kelp_placement_state states[] = {
            KELP_PLACEMENT_WAITING, KELP_PLACEMENT_OPENING, KELP_PLACEMENT_LOADING,
            KELP_PLACEMENT_RUNNING};
        if (moment == 1) {
            (void)say(KELP_PLACEMENT_CONNECTED, "shard-1", 12);
        } else if (moment == 2) {
            (void)written(KELP_WRITTEN_OK);
        } else if (moment == 3) {
            (void)say(KELP_PLACEMENT_LOADED, "shard-0", 10);
            (void)say(KELP_PLACEMENT_LOADED, "shard-1", 12);
        }
        if (_i <= moment) { /* again and again, since it was first sent */
            (void)finished(1);
        }
        (void)tick(100);
        ck_assert_int_eq(placement.state, states[moment]);
    }
    ck_assert_uint_eq(placement.map.generation, 2);
    (void)finished(2);
    ck_assert_int_eq(placement.state, KELP_PLACEMENT_DONE);
}

/* A new leader hears of the finish from shard-0, before it has read the map or while it loads: it
 * is done only when shard-1 turns out to hold its part, and not when that one is lost. */
KELP_LOOP_TEST(early_finish_waits, 0, 4)
{
    bool before_map = _i % 2 == 0;
    bool lost = _i >= 2;
    start();
    struct kelp_map found;
    ck_assert_int_eq(kelp_map_copy(&placement.map, &found), KELP_OK);
    kelp_placement_fini(&placement);
    setup();
    (void)plan(5);
    if (before_map) {
        (void)finished(1);
        ck_assert_int_eq(placement.state, KELP_PLACEMENT_WAITING);
    }
    (void)map_read(&found);
    (void)appear("shard-0", 10);
    (void)say(KELP_PLACEMENT_LOADED, "shard-0", 10);
    if (!before_map) {
        (void)finished(1);
    }
    (void)tick(100);
    ck_assert_int_eq(placement.state, KELP_PLACEMENT_LOADING);
    if (lost) {
        ck_assert_uint_ne(appear("shard-1", 12) & DID(WRITE_MAP), 0);
        (void)written(KELP_WRITTEN_OK);
        (void)say(KELP_PLACEMENT_LOADED, "shard-0", 10);
        (void)say(KELP_PLACEMENT_LOADED, "shard-1", 12);
    } else {
        (void)appear("shard-1", 11);
        (void)say(KELP_PLACEMENT_LOADED, "shard-1", 11);
    }
    ck_assert_int_eq(placement.state, KELP_PLACEMENT_RUNNING);
    (void)tick(100);
    ck_assert_int_eq(placement.state, lost ? KELP_PLACEMENT_RUNNING : KELP_PLACEMENT_DONE);
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
    start();
    struct kelp_map map;
    ck_assert_int_eq(kelp_map_copy(&placement.map, &map), KELP_OK);
    map.partitions[2].primary = 2;
    ck_assert_int_eq(kelp_map_check(&map, NULL), KELP_ERR_FORMAT);
    map.partitions[2].primary = 0;
    map.partitions[2].map_epoch = 0;
    ck_assert_int_eq(kelp_map_check(&map, NULL), KELP_ERR_FORMAT);
    map.partitions[2].map_epoch = 1;
    map.generation = 0;
    ck_assert_int_eq(kelp_map_check(&map, NULL), KELP_ERR_FORMAT);
    map.generation = 1;
    map.shards[1] = map.shards[0];
    ck_assert_int_eq(kelp_map_check(&map, NULL), KELP_ERR_FORMAT);
    kelp_map_fini(&map);
    ck_assert_int_eq(kelp_map_init(&map, 1, 5000, NULL), KELP_ERR_LIMIT);
}

/* ---- checkpoints, storage, silence ------------------------------------------------------------
 */

static uint32_t restore_from(uint64_t version, uint64_t generation, bool final)
{
    return apply((struct kelp_placement_event){
        .kind = KELP_PLACEMENT_RESTORE,
        .restore = {.version = version, .generation = generation, .final = final}});
}

static uint32_t load_failed(const char *id, uint64_t incarnation, kelp_status status)
{
    return apply((struct kelp_placement_event){
        .kind = KELP_PLACEMENT_LOAD_FAILED,
        .load_failed = {.id = id, .incarnation = incarnation, .status = status, .text = "chunk 3"},
        .hint = "it was at step 7"});
}

static uint32_t disconnected(const char *id, bool broken)
{
    return apply((struct kelp_placement_event){.kind = KELP_PLACEMENT_DISCONNECTED,
                                               .disconnected = {.id = id, .broken = broken}});
}

/* shard-1 is another process now, and generation 2 is being loaded from that version. */
static void restore(uint64_t version)
{
    start();
    (void)restore_from(version, 1, false);
    uint32_t actions = appear("shard-1", 12);
    ck_assert_uint_ne(actions & DID(WRITE_MAP), 0);
    ck_assert_uint_ne(written(KELP_WRITTEN_OK) & DID(MAP_TO_SHARDS), 0);
    ck_assert_uint_eq(placement.map.restore_version, version);
    ck_assert_int_eq(placement.state, KELP_PLACEMENT_LOADING);
}

/* Damage is never taken for the end: the shell says which one is next; another shard's complaint
 * about the same checkpoint changes nothing. */
KELP_TEST(damaged_checkpoint)
{
    restore(20);
    uint32_t actions = load_failed("shard-1", 12, KELP_ERR_CORRUPT);
    ck_assert_uint_ne(actions & DID(DAMAGED), 0);
    ck_assert_uint_eq(actions & DID(WRITE_MAP), 0); /* not the same again */
    ck_assert_str_eq(placement.reason, "the checkpoint of version 20 is damaged: shard-1: chunk 3");
    ck_assert_uint_eq(load_failed("shard-0", 10, KELP_ERR_CORRUPT) & DID(DAMAGED), 0);
    ck_assert_uint_ne(restore_from(10, 1, false) & DID(WRITE_MAP), 0);
    ck_assert_uint_eq(placement.next.restore_version, 10);
    ck_assert_uint_eq(placement.next.generation, 3);
}

/* The file that tells of which job a checkpoint is may not be there yet either. */
KELP_LOOP_TEST(waits_for_a_job, 0, 2)
{
    struct kelp_placement_event event = {.kind = KELP_PLACEMENT_MISSING,
                                         .missing = "storage checkpoints/step-9.g1/job.yaml"};
    placement.options.storage_wait_ms = _i == 0 ? 0 : 5000;
    (void)apply(event);
    ck_assert_str_eq(placement.reason, "waiting for storage checkpoints/step-9.g1/job.yaml");
    (void)tick(4900);
    (void)apply(event);
    ck_assert_int_eq(placement.state, KELP_PLACEMENT_WAITING);
    (void)tick(_i == 0 ? 1000000 : 100);
    ck_assert_int_eq(placement.state, _i == 0 ? KELP_PLACEMENT_WAITING : KELP_PLACEMENT_FAILED);
    if (_i == 1) {
        ck_assert_ptr_nonnull(strstr(placement.reason, "waited 5 s for storage checkpoints/"));
        return;
    }
    (void)none_read();
    ck_assert_str_eq(placement.reason, "waiting for 2 of 2 workers");
}

/* A disk that cannot be read is tried again, later each time, and then its checkpoint is left; a
 * host without memory says nothing about the checkpoint. */
KELP_LOOP_TEST(unreadable_checkpoint, 0, 2)
{
    kelp_status status = _i == 0 ? KELP_ERR_IO : KELP_ERR_NO_MEMORY;
    restore(20);
    for (uint32_t i = 1; i < KELP_COORDINATOR_LOAD_TRIES; i++) {
        uint64_t pause_ms = (uint64_t)KELP_COORDINATOR_LOAD_RETRY_MS << (i - 1);
        ck_assert_uint_eq(load_failed("shard-1", 12, status) & DID(DAMAGED), 0);
        ck_assert_uint_eq(tick(pause_ms - 1) & DID(WRITE_MAP), 0);
        ck_assert_uint_ne(tick(1) & DID(WRITE_MAP), 0);
        ck_assert_uint_eq(placement.next.restore_version, 20);
        (void)written(KELP_WRITTEN_OK);
    }
    uint32_t actions = load_failed("shard-1", 12, status);
    if (_i == 1) {
        ck_assert_uint_eq(actions & DID(DAMAGED), 0);
        return;
    }
    ck_assert_uint_ne(actions & DID(DAMAGED), 0);
    ck_assert_str_eq(placement.reason,
                     "the checkpoint of version 20 cannot be read: shard-1: chunk 3");
    ck_assert_uint_ne(restore_from(10, 1, false) & DID(WRITE_MAP), 0);
    (void)written(KELP_WRITTEN_OK); /* the one before it has tries of its own */
    ck_assert_uint_eq(load_failed("shard-1", 12, status) & DID(DAMAGED), 0);
}

/* Without a checkpoint there is nothing before it: the job fails, and says where it stood. */
KELP_TEST(damage_without_checkpoint)
{
    restore(0);
    (void)load_failed("shard-1", 12, KELP_ERR_CORRUPT);
    ck_assert_int_eq(placement.state, KELP_PLACEMENT_FAILED);
    ck_assert_str_eq(placement.reason, "shard-1: chunk 3; it was at step 7");
}

/* Storage is waited for by name: for ever, or as long as the job says. */
KELP_LOOP_TEST(waits_for_storage, 0, 2)
{
    placement.options.storage_wait_ms = _i == 0 ? 0 : 5000;
    restore(20);
    (void)apply((struct kelp_placement_event){
        .kind = KELP_PLACEMENT_STORAGE,
        .storage = {.id = "shard-0", .incarnation = 10, .text = "storage step-9.g1/shard-1.b"}});
    ck_assert_str_eq(placement.reason, "waiting for storage step-9.g1/shard-1.b (shard-0)");
    (void)tick(4900);
    ck_assert_int_eq(placement.state, KELP_PLACEMENT_LOADING);
    (void)tick(1000000);
    ck_assert_int_eq(placement.state, _i == 0 ? KELP_PLACEMENT_LOADING : KELP_PLACEMENT_FAILED);
    if (_i == 1) {
        ck_assert_ptr_nonnull(strstr(placement.reason, "waited 5 s for storage step-9.g1"));
    }
}

/* While nobody knows whether a commit took effect, no generation is opened. */
KELP_TEST(undecided_commit)
{
    start();
    (void)apply((struct kelp_placement_event){.kind = KELP_PLACEMENT_RESTORE,
                                              .restore = {.undecided = true}});
    ck_assert_uint_eq(appear("shard-1", 12) & DID(WRITE_MAP), 0);
    ck_assert_uint_ne(restore_from(9, 1, false) & DID(WRITE_MAP), 0);
    ck_assert_uint_eq(placement.next.restore_version, 9);
}

/* Names of imported checkpoints hold generations: the next one is above all of them. */
KELP_TEST(generations_go_on)
{
    (void)none_read();
    (void)restore_from(9, 7, false);
    (void)plan(5);
    (void)workers(2);
    (void)appear("shard-0", 10);
    (void)appear("shard-1", 11);
    ck_assert_uint_eq(placement.next.generation, 8);
}

/* The shard's side ended the stream and it stays away: lost, though its lease lives; its process is
 * gone. Mere silence: not lost, but named, until somebody has started it again. */
KELP_LOOP_TEST(broken_or_silent, 0, 2)
{
    start();
    (void)disconnected("shard-1", _i == 0);
    const struct kelp_placement_shard *shard = kelp_placement_find(&placement, "shard-1");
    ck_assert(!kelp_placement_silent(&placement, shard, now));
    uint32_t actions = tick(3000);
    ck_assert((actions & DID(COUNT_LOSS)) == (_i == 0 ? DID(COUNT_LOSS) : 0));
    shard = kelp_placement_find(&placement, "shard-1");
    ck_assert(kelp_placement_silent(&placement, shard, now) == (_i == 1));
    if (_i == 1) {
        actions = say(KELP_PLACEMENT_UNREGISTERED, "shard-1", 11);
        ck_assert_uint_ne(actions & DID(COUNT_LOSS), 0);
        shard = kelp_placement_find(&placement, "shard-1");
        ck_assert(kelp_placement_silent(&placement, shard, now));
        (void)registered("shard-1", 12);
        shard = kelp_placement_find(&placement, "shard-1");
        ck_assert(!kelp_placement_silent(&placement, shard, now));
    }
}

/* No shard is heard, and all their leases live: it is us. One that was broken off, or whose lease
 * is gone, speaks against it. */
KELP_LOOP_TEST(cut_off, 0, 3)
{
    start();
    (void)disconnected("shard-0", false);
    (void)disconnected("shard-1", _i == 1);
    if (_i == 2) {
        (void)say(KELP_PLACEMENT_UNREGISTERED, "shard-1", 11);
    }
    uint32_t actions = tick(100);
    for (int i = 0; i < 100; i++) {
        actions |= tick(100);
    }
    ck_assert((actions & DID(RESIGN)) == (_i == 0 ? DID(RESIGN) : 0));
}

/* Who left for good, and is in no map, is forgotten. */
KELP_TEST(forgets_names)
{
    start();
    (void)appear("shard-7", 70);
    ck_assert_ptr_nonnull(kelp_placement_find(&placement, "shard-7"));
    (void)disconnected("shard-7", true);
    ck_assert_ptr_nonnull(kelp_placement_find(&placement, "shard-7"));
    (void)say(KELP_PLACEMENT_UNREGISTERED, "shard-7", 70);
    ck_assert_ptr_null(kelp_placement_find(&placement, "shard-7"));
    ck_assert_uint_eq(placement.shard_count, 2);
}

/* A finish does not count while a shard is not reached: it may be dead. */
KELP_TEST(finish_needs_all_shards)
{
    start();
    (void)disconnected("shard-1", true);
    (void)finished(1);
    ck_assert_int_eq(placement.state, KELP_PLACEMENT_RUNNING);
    (void)say(KELP_PLACEMENT_CONNECTED, "shard-1", 11);
    ck_assert_int_eq(placement.state, KELP_PLACEMENT_DONE);
}

/* After the end a shard is lost: with a checkpoint of the final state it is loaded once more. */
KELP_LOOP_TEST(lost_after_the_end, 0, 2)
{
    start();
    (void)finished(1);
    ck_assert_int_eq(placement.state, KELP_PLACEMENT_DONE);
    (void)restore_from(99, 1, _i == 1);
    uint32_t actions = appear("shard-1", 12);
    if (_i == 0) {
        ck_assert_int_eq(placement.state, KELP_PLACEMENT_DONE);
        return;
    }
    ck_assert_uint_ne(actions & DID(WRITE_MAP), 0);
    (void)written(KELP_WRITTEN_OK);
    (void)say(KELP_PLACEMENT_LOADED, "shard-0", 10);
    (void)say(KELP_PLACEMENT_LOADED, "shard-1", 12);
    ck_assert_int_eq(placement.state, KELP_PLACEMENT_RUNNING);
    (void)finished(2);
    ck_assert_int_eq(placement.state, KELP_PLACEMENT_DONE);
}

KELP_TEST(rests_when_paused)
{
    start();
    struct kelp_placement_event event = {.kind = KELP_PLACEMENT_PAUSE, .pause = "paused at step 9"};
    (void)apply(event);
    ck_assert_str_eq(kelp_placement_state_text(placement.state), "paused");
    ck_assert_str_eq(placement.reason, "paused at step 9");
    ck_assert_uint_eq(appear("shard-1", 12) & DID(WRITE_MAP), 0);
    ck_assert(kelp_placement_settled(&placement));
}

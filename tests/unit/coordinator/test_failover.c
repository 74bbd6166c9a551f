/* Failover: what becomes of each shape of an entry, and how a placement changes its map by it. */
#include <stdio.h>
#include <string.h>

#include "coordinator/core/placement/failover.h"
#include "tests/lib/cores/placement_bench.h"
#include "tests/lib/suite.h"

#define NOBODY KELP_MAP_NOBODY

/* ---- entries ---- */

enum { P, B, J, OTHER, SHARDS };

static const struct {
    const char *lost;   /* of "PBJ"; "b", "j": not heard by the primary */
    const char *ready;  /* likewise */
    const char *before; /* who there is */
    const char *after;  /* primary, backup, joiner; '-': nobody */
    bool in_sync;       /* the joiner, as the primary has said */
    enum kelp_failover_verdict verdict;
} cases[] = {
    {"", "PBJ", "PBJ", "PBJ", true, KELP_FAILOVER_NOTHING},
    {"P", "PBJ", "PBJ", "B-J", false, KELP_FAILOVER_CHANGE},
    {"P", "PBJ", "PBJ", "BJ-", true, KELP_FAILOVER_CHANGE},
    {"P", "PBJ", "PB-", "B--", false, KELP_FAILOVER_CHANGE},
    {"P", "PBJ", "P-J", "J--", true, KELP_FAILOVER_CHANGE},
    {"P", "PBJ", "P-J", NULL, false, KELP_FAILOVER_NOBODY},
    {"P", "PBJ", "P--", NULL, false, KELP_FAILOVER_NOBODY},
    {"B", "PBJ", "PBJ", "P-J", false, KELP_FAILOVER_CHANGE},
    {"B", "PBJ", "PBJ", "PJ-", true, KELP_FAILOVER_CHANGE},
    {"B", "PBJ", "PB-", "P--", false, KELP_FAILOVER_CHANGE},
    {"J", "PBJ", "PBJ", "PB-", true, KELP_FAILOVER_CHANGE},
    {"J", "PBJ", "P-J", "P--", false, KELP_FAILOVER_CHANGE},
    {"PB", "PBJ", "PBJ", "J--", true, KELP_FAILOVER_CHANGE},
    {"PB", "PBJ", "PBJ", NULL, false, KELP_FAILOVER_NOBODY},
    {"PJ", "PBJ", "PBJ", "B--", true, KELP_FAILOVER_CHANGE},
    {"BJ", "PBJ", "PBJ", "P--", true, KELP_FAILOVER_CHANGE},
    {"PBJ", "", "PBJ", NULL, true, KELP_FAILOVER_NOBODY},
    /* Not heard yet, or not loaded: it cannot lead now. */
    {"P", "PJ", "PBJ", "JB-", true, KELP_FAILOVER_CHANGE},
    {"P", "PJ", "PBJ", NULL, false, KELP_FAILOVER_WAITS},
    {"P", "", "PB-", NULL, false, KELP_FAILOVER_WAITS},
    {"P", "PB", "PBJ", "B-J", true, KELP_FAILOVER_CHANGE},
    /* Heard by us, but not by the primary; what one that is lost said counts no more. */
    {"b", "PBJ", "PB-", "P--", false, KELP_FAILOVER_CHANGE},
    {"b", "PBJ", "PBJ", "PJ-", true, KELP_FAILOVER_CHANGE},
    {"b", "PBJ", "PBJ", "P-J", false, KELP_FAILOVER_CHANGE},
    {"j", "PBJ", "PBJ", "PB-", true, KELP_FAILOVER_CHANGE},
    {"bj", "PBJ", "PBJ", "P--", true, KELP_FAILOVER_CHANGE},
    {"Pbj", "PBJ", "PBJ", "BJ-", true, KELP_FAILOVER_CHANGE},
};

static uint32_t role(const char *text, size_t at)
{
    const char *of = "PBJ";
    return text[at] == '-' ? NOBODY : (uint32_t)(strchr(of, text[at]) - of);
}

KELP_LOOP_TEST(entries, 0, KELP_ARRAY_COUNT(cases))
{
    struct kelp_map_shard at[SHARDS] = {{.id = "p"}, {.id = "b"}, {.id = "j"}, {.id = "o"}};
    struct kelp_map_partition entry = {.map_epoch = 4,
                                       .primary = role(cases[_i].before, 0),
                                       .backup = role(cases[_i].before, 1),
                                       .joiner = role(cases[_i].before, 2)};
    struct kelp_map_partition after;
    const struct kelp_map map = {
        .shard_count = SHARDS, .shards = at, .partition_count = 1, .partitions = &entry};
    struct kelp_failover_shard shards[SHARDS] = {{.lost = false}};
    struct kelp_replicas replicas = {.partition_count = 0};
    const struct kelp_replica_report report = {.map_epoch = 4, .joiner_in_sync = cases[_i].in_sync};
    const struct kelp_failover_silent silent = {.backup = strchr(cases[_i].lost, 'b') != NULL,
                                                .joiner = strchr(cases[_i].lost, 'j') != NULL};
    for (uint32_t i = 0; i < 3; i++) {
        shards[i].lost = strchr(cases[_i].lost, "PBJ"[i]) != NULL;
        shards[i].ready = strchr(cases[_i].ready, "PBJ"[i]) != NULL;
    }
    ck_assert_int_eq(kelp_replicas_reset(&replicas, 1, NULL), KELP_OK);
    ck_assert(kelp_replicas_take(&replicas, &map, P, &report));
    ck_assert_int_eq(kelp_failover_of(&map, shards, &silent, &replicas, &after), cases[_i].verdict);
    if (cases[_i].after) {
        ck_assert_uint_eq(after.primary, role(cases[_i].after, 0));
        ck_assert_uint_eq(after.backup, role(cases[_i].after, 1));
        ck_assert_uint_eq(after.joiner, role(cases[_i].after, 2));
        ck_assert_uint_eq(after.map_epoch, cases[_i].verdict == KELP_FAILOVER_NOTHING ? 4 : 5);
    }
    kelp_replicas_fini(&replicas);
}

/* What was said in another epoch, or by somebody else, counts for nothing. */
KELP_TEST(reports_are_bound)
{
    struct kelp_map_shard at[SHARDS] = {{.id = "p"}, {.id = "b"}, {.id = "j"}, {.id = "o"}};
    struct kelp_map_partition entry = {.map_epoch = 4, .primary = P, .backup = NOBODY, .joiner = J};
    const struct kelp_map map = {
        .shard_count = SHARDS, .shards = at, .partition_count = 1, .partitions = &entry};
    struct kelp_replicas replicas = {.partition_count = 0};
    struct kelp_replica_report report = {.map_epoch = 3, .joiner_in_sync = true};
    ck_assert_int_eq(kelp_replicas_reset(&replicas, 1, NULL), KELP_OK);
    ck_assert(!kelp_replicas_take(&replicas, &map, P, &report));
    report.map_epoch = 4;
    ck_assert(!kelp_replicas_take(&replicas, &map, J, &report));
    report.partition = 1;
    ck_assert(!kelp_replicas_take(&replicas, &map, P, &report));
    report.partition = 0;
    ck_assert_ptr_null(kelp_replicas_of(&replicas, &map, 0));
    ck_assert(kelp_replicas_take(&replicas, &map, P, &report));
    ck_assert_ptr_nonnull(kelp_replicas_of(&replicas, &map, 0));
    report.lag = 2;
    ck_assert(!kelp_replicas_take(&replicas, &map, P, &report)); /* nothing that moves may follow */
    ck_assert_uint_eq(kelp_replicas_of(&replicas, &map, 0)->lag, 2);
    report.joiner_in_sync = false;
    ck_assert(kelp_replicas_take(&replicas, &map, P, &report));
    entry.map_epoch = 5;
    ck_assert_ptr_null(kelp_replicas_of(&replicas, &map, 0));
    entry.map_epoch = 4;
    ck_assert_int_eq(kelp_replicas_reset(&replicas, 1, NULL), KELP_OK); /* another generation */
    ck_assert_ptr_null(kelp_replicas_of(&replicas, &map, 0));
    kelp_replicas_fini(&replicas);
}

/* ---- a placement ---- */

KELP_CASE("placement", .setup = placement_setup, .teardown = placement_teardown)

/* Two shards, each the backup of the other, lead by a leader that finds them. */
static void take_over(void)
{
    struct kelp_map map;
    placement_bench.machine.options.replicas = 2;
    ck_assert_int_eq(kelp_map_init(&map, 2, 4, NULL), KELP_OK);
    map.generation = 3;
    map.serial = 1;
    for (uint32_t i = 0; i < 2; i++) {
        (void)snprintf(map.shards[i].id, sizeof(map.shards[i].id), "shard-%u", i);
        (void)snprintf(map.shards[i].address, sizeof(map.shards[i].address), "127.0.0.1:1");
        map.shards[i].incarnation = 10 + i;
    }
    for (uint32_t i = 0; i < 4; i++) {
        map.partitions[i] = (struct kelp_map_partition){
            .map_epoch = 7, .primary = i / 2, .backup = 1 - i / 2, .joiner = NOBODY};
    }
    ck_assert_int_eq(kelp_map_check(&map, NULL), KELP_OK);
    ck_assert_uint_ne(placement_map_read(&map) & DID(MAP_TO_SHARDS), 0);
    (void)placement_plan(4);
    (void)placement_workers(2);
}

static void run_replicated(void)
{
    take_over();
    for (uint64_t i = 0; i < 2; i++) {
        const char *id = i == 0 ? "shard-0" : "shard-1";
        (void)placement_appear(id, 10 + i);
        (void)placement_say(KELP_PLACEMENT_LOADED, id, 10 + i);
    }
    ck_assert_int_eq(placement_bench.machine.state, KELP_PLACEMENT_RUNNING);
    ck_assert_ptr_nonnull(kelp_placement_loaded_map(&placement_bench.machine));
}

static uint32_t break_stream(const char *id)
{
    return placement_apply((struct kelp_placement_event){
        .kind = KELP_PLACEMENT_DISCONNECTED, .disconnected = {.id = id, .broken = true}});
}

static uint32_t taken(const char *id, uint64_t incarnation, uint64_t serial)
{
    return placement_apply((struct kelp_placement_event){
        .kind = KELP_PLACEMENT_TAKEN,
        .taken = {.id = id, .incarnation = incarnation, .generation = 3, .serial = serial}});
}

static void expect_alone(const struct kelp_map *map, const char *id)
{
    ck_assert_uint_eq(map->shard_count, 1);
    ck_assert_str_eq(map->shards[0].id, id);
    for (uint32_t i = 0; i < 4; i++) {
        ck_assert_uint_eq(map->partitions[i].primary, 0);
        ck_assert_uint_eq(map->partitions[i].backup, NOBODY);
        ck_assert_uint_eq(map->partitions[i].map_epoch, 8);
    }
    ck_assert_uint_eq(map->generation, 3);
    ck_assert_int_eq(kelp_map_check(map, NULL), KELP_OK);
}

/* A broken stream is enough, and no generation is opened. Workers hear of it when the new primary
 * has. */
KELP_TEST(broken_stream_fails_over)
{
    run_replicated();
    uint32_t actions = break_stream("shard-0");
    ck_assert_uint_eq(actions & DID(WRITE_MAP), 0);
    ck_assert_uint_ne(actions & DID(WRITE_CHANGE), 0);
    expect_alone(&placement_bench.machine.next, "shard-1");
    actions = placement_written(KELP_WRITTEN_OK);
    ck_assert_uint_ne(actions & DID(CHANGE_TO_SHARDS), 0);
    ck_assert_uint_ne(actions & DID(COUNT_LOSS), 0);
    ck_assert_uint_eq(actions & DID(CHANGE_TO_WORKERS), 0);
    ck_assert_ptr_null(kelp_placement_loaded_map(&placement_bench.machine));
    ck_assert_uint_eq(taken("shard-1", 11, 1) & DID(CHANGE_TO_WORKERS), 0);
    ck_assert_uint_ne(taken("shard-1", 11, 2) & DID(CHANGE_TO_WORKERS), 0);
    ck_assert_uint_eq(kelp_placement_loaded_map(&placement_bench.machine)->serial, 2);
    ck_assert_int_eq(placement_bench.machine.state, KELP_PLACEMENT_RUNNING);
    ck_assert_str_eq(placement_bench.machine.reason, "");
}

KELP_TEST(new_incarnation_fails_over)
{
    run_replicated();
    (void)placement_say(KELP_PLACEMENT_DISCONNECTED, "shard-1", 11);
    ck_assert_uint_ne(placement_registered("shard-1", 12) & DID(WRITE_CHANGE), 0);
    expect_alone(&placement_bench.machine.next, "shard-0");
}

/* Silence alone is none while training goes on, and with a peer's word or a standstill it is. */
KELP_LOOP_TEST(silence_fails_over, 0, 2)
{
    bool peer = _i == 1;
    run_replicated();
    kelp_placement_progressed(&placement_bench.machine, placement_bench.now);
    ck_assert_uint_eq(placement_say(KELP_PLACEMENT_DISCONNECTED, "shard-0", 10) & DID(WRITE_CHANGE),
                      0);
    ck_assert_uint_eq(placement_tick(100) & DID(WRITE_CHANGE), 0);
    if (peer) {
        uint32_t actions = placement_apply((struct kelp_placement_event){
            .kind = KELP_PLACEMENT_DOUBTED, .doubted = {"shard-0", 9}});
        ck_assert_uint_eq(actions & DID(WRITE_CHANGE), 0); /* the one before */
        actions = placement_apply((struct kelp_placement_event){.kind = KELP_PLACEMENT_DOUBTED,
                                                                .doubted = {"shard-0", 10}});
        ck_assert_uint_ne(actions & DID(WRITE_CHANGE), 0);
        return;
    }
    ck_assert_uint_eq(placement_tick(2800) & DID(WRITE_CHANGE), 0);
    ck_assert_uint_ne(placement_tick(101) & DID(WRITE_CHANGE), 0);
}

/* It was only a stream: a shard that is heard again before the change is written stays lost, one
 * that is heard before it is decided does not. */
KELP_TEST(heard_again_in_time)
{
    run_replicated();
    (void)placement_say(KELP_PLACEMENT_DISCONNECTED, "shard-0", 10);
    (void)placement_say(KELP_PLACEMENT_CONNECTED, "shard-0", 10);
    (void)placement_say(KELP_PLACEMENT_LOADED, "shard-0", 10);
    ck_assert_uint_eq(placement_tick(5000) & (DID(WRITE_CHANGE) | DID(WRITE_MAP)), 0);
    ck_assert_str_eq(placement_bench.machine.reason, "");
}

/* etcd did not take it: tried again. The answer was lost: what stands there counts. */
KELP_LOOP_TEST(writes_that_fail, 0, 3)
{
    struct kelp_map found;
    run_replicated();
    (void)break_stream("shard-0");
    if (_i == 0) {
        (void)placement_written(KELP_WRITTEN_NOT);
        ck_assert_uint_eq(placement_tick(499) & DID(WRITE_CHANGE), 0);
        ck_assert_uint_ne(placement_tick(1) & DID(WRITE_CHANGE), 0);
        ck_assert_uint_eq(placement_bench.machine.next.serial, 2);
        return;
    }
    ck_assert_uint_ne(placement_written(KELP_WRITTEN_UNKNOWN) & DID(READ_MAP), 0);
    ck_assert_uint_eq(placement_tick(5000) & (DID(WRITE_CHANGE) | DID(WRITE_MAP)), 0);
    const struct kelp_placement *machine = &placement_bench.machine;
    ck_assert_int_eq(kelp_map_copy(_i == 1 ? &machine->next : &machine->map, &found), KELP_OK);
    uint32_t actions = placement_map_read(&found);
    ck_assert_int_eq((actions & DID(CHANGE_TO_SHARDS)) != 0, _i == 1);
    ck_assert_uint_eq(machine->map.serial, _i == 1 ? 2 : 1);
    ck_assert_int_eq((placement_tick(1000) & DID(WRITE_CHANGE)) != 0, _i == 2);
}

/* Both replicas are gone: only then is a generation opened, and not while a change is on its way.
 */
KELP_TEST(both_lost)
{
    run_replicated();
    (void)break_stream("shard-0");
    (void)break_stream("shard-1");
    ck_assert_uint_eq(placement_tick(100) & DID(COUNT_LOSS), 0);
    (void)placement_registered("shard-0", 20);
    (void)placement_registered("shard-1", 21);
    ck_assert_uint_eq(placement_tick(1) & DID(WRITE_MAP), 0);
    (void)placement_written(KELP_WRITTEN_OK);
    ck_assert_int_eq(placement_bench.machine.state, KELP_PLACEMENT_WAITING);
    ck_assert_uint_eq(placement_bench.machine.map.serial, 2);
    (void)placement_say(KELP_PLACEMENT_CONNECTED, "shard-0", 20);
    ck_assert_uint_ne(placement_say(KELP_PLACEMENT_CONNECTED, "shard-1", 21) & DID(WRITE_MAP), 0);
    ck_assert_uint_eq(placement_bench.machine.next.generation, 4);
    ck_assert_uint_eq(placement_bench.machine.next.serial, 1);
}

/* A new leader finds one of the two dead: the other one leads as soon as it is heard. */
KELP_LOOP_TEST(found_dead, 0, 2)
{
    take_over();
    (void)placement_registered("shard-0", 10);
    (void)placement_appear("shard-1", 11);
    if (_i == 0) {
        (void)placement_apply((struct kelp_placement_event){.kind = KELP_PLACEMENT_DOUBTED,
                                                            .doubted = {"shard-0", 10}});
    } else {
        (void)placement_registered("shard-0", 20);
    }
    ck_assert_int_eq(placement_bench.machine.state, KELP_PLACEMENT_LOADING); /* it has a backup */
    uint32_t actions = placement_say(KELP_PLACEMENT_LOADED, "shard-1", 11);
    ck_assert_uint_ne(actions & DID(WRITE_CHANGE), 0);
    actions = placement_written(KELP_WRITTEN_OK);
    ck_assert_int_eq(placement_bench.machine.state, KELP_PLACEMENT_RUNNING);
    ck_assert_ptr_null(kelp_placement_loaded_map(&placement_bench.machine));
    ck_assert_uint_ne(taken("shard-1", 11, 2) & DID(CHANGE_TO_WORKERS), 0);
}

/* A primary that we hear and that does not take the map keeps nobody waiting for long. */
KELP_TEST(workers_are_told_in_any_case)
{
    run_replicated();
    (void)break_stream("shard-0");
    (void)placement_written(KELP_WRITTEN_OK);
    ck_assert_uint_eq(placement_tick(299) & DID(CHANGE_TO_WORKERS), 0);
    ck_assert_uint_ne(placement_tick(1) & DID(CHANGE_TO_WORKERS), 0);
    ck_assert_uint_eq(placement_tick(1) & DID(CHANGE_TO_WORKERS), 0);
}

/* A process that hangs is out of the map, and is still to be killed by whoever started it. */
KELP_TEST(dropped_and_silent)
{
    run_replicated();
    (void)placement_say(KELP_PLACEMENT_DISCONNECTED, "shard-0", 10);
    (void)placement_tick(3000);
    (void)placement_written(KELP_WRITTEN_OK);
    expect_alone(&placement_bench.machine.map, "shard-1");
    kelp_placement_progressed(&placement_bench.machine, placement_bench.now);
    const struct kelp_placement *machine = &placement_bench.machine;
    ck_assert(!kelp_placement_silent(machine, kelp_placement_find(machine, "shard-0"),
                                     placement_bench.now));
    (void)placement_say(KELP_PLACEMENT_UNREGISTERED, "shard-0", 0);
    const struct kelp_placement_shard *dropped = kelp_placement_find(machine, "shard-0");
    ck_assert_ptr_nonnull(dropped);
    ck_assert(kelp_placement_silent(machine, dropped, placement_bench.now));
}

/* After the end too: what is fetched then is the model as it was. */
KELP_TEST(fails_over_when_done)
{
    run_replicated();
    (void)placement_finished(3);
    (void)placement_tick(100);
    ck_assert_int_eq(placement_bench.machine.state, KELP_PLACEMENT_DONE);
    ck_assert_uint_ne(break_stream("shard-0") & DID(WRITE_CHANGE), 0);
    (void)placement_written(KELP_WRITTEN_OK);
    ck_assert_uint_ne(taken("shard-1", 11, 2) & DID(CHANGE_TO_WORKERS), 0);
    ck_assert_int_eq(placement_bench.machine.state, KELP_PLACEMENT_DONE);
    expect_alone(kelp_placement_loaded_map(&placement_bench.machine), "shard-1");
}

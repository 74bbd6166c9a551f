/*
 * The pure coordinator in a random world: shards and workers come, go and come back as others,
 * writes to etcd succeed, fail or lose their answer, leaders die. In every second world partitions
 * have backups: whoever is to lead one has all of it, and no generation is opened while each has a
 * replica that lives. A run is a function of its seed, which a failure prints.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/core/membership/membership.h"
#include "coordinator/core/placement/placement.h"
#include "tests/lib/suite.h"

#define SHARDS     4
#define WORKERS    11
#define LANES      8
#define PARTITIONS 13
#define EVENTS     600
#define SEEDS      20 /* in one process */
#define PROCESSES  15

struct process {
    char id[16];
    uint64_t incarnation;   /* 0: dead */
    uint64_t registered;    /* what etcd says; 0: nothing */
    uint64_t link;          /* incarnation that the leader talks to; 0: no stream */
    uint64_t loaded;        /* generation */
    bool holds[PARTITIONS]; /* everything of it that was ever shown */
};

struct world {
    uint64_t random;
    uint64_t now;
    uint64_t incarnations;
    bool replicated;
    struct kelp_map etcd; /* the map's key; generation 0: none */
    struct process shards[SHARDS];
    uint64_t workers[WORKERS]; /* keys; 0: not there */
    struct kelp_placement placement;
    struct kelp_membership membership;
    bool writing;  /* a write is under way */
    bool changing; /* within the generation */
    bool reading;
    uint64_t seen_generation; /* newest that this leader had */
    uint64_t seen_assignment;
};

static struct world world;
static uint64_t world_seed;
static bool world_failed; /* until all worlds of this process have ended well */

static uint64_t draw(uint64_t below)
{
    world.random += UINT64_C(0x9e3779b97f4a7c15); /* splitmix64 */
    uint64_t z = world.random;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (z ^ (z >> 31)) % below;
}

/* ---- what must hold after every event ---------------------------------------------------------
 */

static void check_lanes(void)
{
    const struct kelp_assignment *assignment = &world.membership.assignment;
    uint8_t owners[LANES] = {0};
    uint32_t members = 0;
    for (int i = 0; i < WORKERS; i++) {
        if (world.workers[i] == 0) {
            continue;
        }
        struct kelp_lane_range range = kelp_assignment_of(assignment, world.workers[i]);
        members++;
        for (uint32_t lane = range.first; lane < range.first + range.count; lane++) {
            owners[lane]++;
        }
    }
    ck_assert_uint_eq(assignment->count, members);
    for (int lane = 0; lane < LANES; lane++) {
        ck_assert_uint_eq(owners[lane], members > 0 ? 1 : 0);
    }
    ck_assert_uint_ge(assignment->epoch, world.seen_assignment);
    world.seen_assignment = assignment->epoch;
}

static void check_map(void)
{
    const struct kelp_map *map = &world.placement.map;
    ck_assert_uint_ge(map->generation, world.seen_generation);
    ck_assert_uint_le(map->generation, world.etcd.generation);
    world.seen_generation = map->generation;
    if (map->generation > 0) {
        ck_assert_int_eq(kelp_map_check(map, NULL), KELP_OK);
        ck_assert_uint_eq(map->partition_count, PARTITIONS);
    }
    if (kelp_placement_loaded_map(&world.placement) != NULL) {
        ck_assert_uint_gt(map->generation, 0);
    }
}

/* Workers may use a map only when every partition lies on the incarnation that the leader talks to,
 * loaded in this very generation. */
static void check_running(void)
{
    const struct kelp_map *map = &world.placement.map;
    for (uint32_t i = 0; i < map->partition_count; i++) {
        const struct kelp_map_shard *mapped = &map->shards[map->partitions[i].primary];
        const struct kelp_placement_shard *shard =
            kelp_placement_find(&world.placement, mapped->id);
        ck_assert_ptr_nonnull(shard);
        ck_assert(shard->connected);
        ck_assert_uint_eq(shard->connected_incarnation, mapped->incarnation);
        ck_assert_uint_eq(shard->loaded_generation, map->generation);
    }
}

/* ---- replicas ---------------------------------------------------------------------------------
 */

/* The process of a shard of the map, if that very one lives. */
static struct process *living(const struct kelp_map *map, uint32_t shard)
{
    for (int i = 0; shard != KELP_MAP_NOBODY && i < SHARDS; i++) {
        if (strcmp(world.shards[i].id, map->shards[shard].id) == 0 &&
            world.shards[i].incarnation == map->shards[shard].incarnation) {
            return &world.shards[i];
        }
    }
    return NULL;
}

static bool is_held(const struct kelp_map *map, uint32_t shard, uint32_t partition)
{
    const struct process *process = living(map, shard);
    return process && process->holds[partition];
}

/* A generation is opened when a partition has nobody left, and only then. */
static void check_opening(void)
{
    const struct kelp_map *map = &world.etcd;
    if (!world.replicated || map->generation == 0 ||
        strcmp(map->nonce, world.placement.map.nonce) != 0) {
        return;
    }
    for (uint32_t i = 0; i < map->partition_count; i++) {
        const struct kelp_map_partition *entry = &map->partitions[i];
        if (!is_held(map, entry->primary, i) && !is_held(map, entry->backup, i)) {
            return;
        }
    }
    ck_abort_msg("a generation is opened though all partitions live");
}

/* The map in etcd is another one now: who is in an entry no more drops the partition. */
static void settle_holders(const struct kelp_map *map, bool opened)
{
    for (uint32_t i = 0; i < map->partition_count; i++) {
        const struct kelp_map_partition *entry = &map->partitions[i];
        const struct process *joiner = living(map, entry->joiner);
        struct process *replicas[] = {living(map, entry->primary), living(map, entry->backup)};
        for (size_t k = 0; k < KELP_ARRAY_COUNT(replicas); k++) {
            if (replicas[k] && opened) {
                replicas[k]->holds[i] = true; /* once it has loaded */
            }
            ck_assert(!replicas[k] || replicas[k]->holds[i]);
        }
        for (int s = 0; s < SHARDS; s++) {
            struct process *process = &world.shards[s];
            if (process != replicas[0] && process != replicas[1] && process != joiner) {
                process->holds[i] = false;
            }
        }
    }
}

/* ---- events -----------------------------------------------------------------------------------
 */

static void apply(struct kelp_placement_event event)
{
    struct kelp_placement_actions actions;
    event.now_ms = world.now;
    ck_assert_int_eq(kelp_placement_apply(&world.placement, &event, &actions, NULL), KELP_OK);
    for (uint32_t i = 0; i < actions.count; i++) {
        enum kelp_placement_action_kind kind = actions.items[i].kind;
        if (kind == KELP_PLACEMENT_DO_WRITE_MAP || kind == KELP_PLACEMENT_DO_WRITE_CHANGE) {
            ck_assert(!world.writing);
            world.writing = true;
            world.changing = kind == KELP_PLACEMENT_DO_WRITE_CHANGE;
        }
        if (kind == KELP_PLACEMENT_DO_WRITE_MAP) {
            check_opening();
        }
        world.reading = world.reading || kind == KELP_PLACEMENT_DO_READ_MAP;
        if (kind == KELP_PLACEMENT_DO_MAP_TO_WORKERS) {
            check_running();
        }
    }
    check_map();
    check_lanes();
}

static void apply_shard(enum kelp_placement_event_kind kind, const struct process *shard)
{
    struct kelp_placement_event event = {.kind = kind};
    if (kind == KELP_PLACEMENT_UNREGISTERED) {
        event.unregistered = shard->id;
    } else if (kind == KELP_PLACEMENT_DISCONNECTED) {
        event.disconnected.id = shard->id;
        event.disconnected.broken = world.replicated && shard->link != shard->incarnation;
    } else if (kind == KELP_PLACEMENT_CONNECTED) {
        event.connected.id = shard->id;
        event.connected.incarnation = shard->link;
        event.connected.generation = shard->loaded;
    } else {
        event.loaded.id = shard->id;
        event.loaded.incarnation = shard->link;
        event.loaded.generation = shard->loaded;
    }
    apply(event);
}

/* etcd takes the write if nobody wrote since this leader read or wrote last. */
static bool etcd_takes(void)
{
    if (world.etcd.generation != world.placement.map.generation ||
        world.etcd.serial != world.placement.map.serial) {
        return false;
    }
    struct kelp_map copy;
    ck_assert_uint_eq(world.placement.next.generation,
                      world.etcd.generation + (world.changing ? 0 : 1));
    ck_assert_uint_eq(world.placement.next.serial, world.changing ? world.etcd.serial + 1 : 1);
    ck_assert_int_eq(kelp_map_check(&world.placement.next, NULL), KELP_OK);
    for (uint32_t i = 0; i < world.etcd.partition_count; i++) {
        ck_assert_uint_ge(world.placement.next.partitions[i].map_epoch,
                          world.etcd.partitions[i].map_epoch);
    }
    ck_assert_int_eq(kelp_map_copy(&world.placement.next, &copy), KELP_OK);
    kelp_map_fini(&world.etcd);
    world.etcd = copy;
    settle_holders(&world.etcd, !world.changing);
    return true;
}

static void finish_write(bool friendly)
{
    uint64_t dice = friendly ? 0 : draw(4);
    enum kelp_placement_written result = KELP_WRITTEN_NOT;
    if (!world.writing) {
        return;
    }
    world.writing = false;
    if (dice < 2) {
        result = etcd_takes() ? KELP_WRITTEN_OK : KELP_WRITTEN_UNKNOWN;
    } else if (dice == 2) {
        result = KELP_WRITTEN_UNKNOWN; /* the answer was lost: applied or not */
        if (draw(2) == 0) {
            (void)etcd_takes();
        }
    }
    apply((struct kelp_placement_event){.kind = KELP_PLACEMENT_WRITTEN, .written = result});
}

static void finish_read(void)
{
    struct kelp_map map;
    if (!world.reading) {
        return;
    }
    world.reading = false;
    ck_assert_int_eq(kelp_map_copy(&world.etcd, &map), KELP_OK);
    apply((struct kelp_placement_event){.kind = KELP_PLACEMENT_MAP_READ, .map_read = &map});
}

static void shard_dies(struct process *shard)
{
    shard->incarnation = 0;
    shard->loaded = 0;
    memset(shard->holds, 0, sizeof(shard->holds));
}

static void shard_starts(struct process *shard)
{
    shard_dies(shard);
    shard->incarnation = ++world.incarnations;
}

/* The leader hears from etcd what is registered now. */
static void shard_registers(struct process *shard)
{
    if (shard->incarnation == 0) {
        shard->registered = 0;
        apply_shard(KELP_PLACEMENT_UNREGISTERED, shard);
        return;
    }
    struct kelp_map_shard at = {.incarnation = shard->incarnation};
    (void)snprintf(at.id, sizeof(at.id), "%s", shard->id);
    (void)snprintf(at.address, sizeof(at.address), "127.0.0.1:1");
    shard->registered = shard->incarnation;
    apply((struct kelp_placement_event){.kind = KELP_PLACEMENT_REGISTERED, .registered = &at});
}

/* A stream is made, or breaks: at once when the process is gone, by chance when not. */
static void shard_link(struct process *shard)
{
    if (shard->link != 0) {
        apply_shard(KELP_PLACEMENT_DISCONNECTED, shard);
        shard->link = 0;
    } else if (shard->incarnation != 0 && shard->registered == shard->incarnation) {
        shard->link = shard->incarnation;
        apply_shard(KELP_PLACEMENT_CONNECTED, shard);
    }
}

static void shard_loads(struct process *shard)
{
    if (shard->link == 0 || shard->link != shard->incarnation) {
        return;
    }
    if (kelp_map_find(&world.placement.map, shard->id) >= 0) {
        shard->loaded = world.placement.map.generation;
    }
    apply_shard(KELP_PLACEMENT_LOADED, shard);
    apply((struct kelp_placement_event){.kind = KELP_PLACEMENT_TAKEN,
                                        .taken = {.id = shard->id,
                                                  .incarnation = shard->link,
                                                  .generation = world.placement.map.generation,
                                                  .serial = world.placement.map.serial}});
}

/* It says how its followers are; of one epoch before what is wrong, and must not count. */
static void shard_reports(struct process *shard)
{
    const struct kelp_map *map = &world.etcd;
    if (shard->link == 0 || shard->link != shard->incarnation) {
        return;
    }
    for (uint32_t i = 0; i < map->partition_count; i++) {
        const struct kelp_map_partition *entry = &map->partitions[i];
        struct process *joiner = living(map, entry->joiner);
        bool old = draw(4) == 0;
        if (living(map, entry->primary) != shard || !joiner) {
            continue;
        }
        joiner->holds[i] = joiner->holds[i] || !old;
        const struct kelp_replica_report report = {
            .partition = i, .map_epoch = entry->map_epoch - (old ? 1 : 0), .joiner_in_sync = true};
        apply((struct kelp_placement_event){.kind = KELP_PLACEMENT_REPLICAS,
                                            .replicas = {.id = shard->id,
                                                         .incarnation = shard->incarnation,
                                                         .generation = map->generation,
                                                         .reports = &report,
                                                         .count = 1}});
        map = &world.etcd;
    }
}

static void count_workers(void)
{
    apply(
        (struct kelp_placement_event){.kind = KELP_PLACEMENT_WORKERS,
                                      .worker_count = world.membership.counts[KELP_MEMBER_WORKER]});
}

static void worker_toggles(int index)
{
    char id[16];
    if (world.workers[index] != 0 && draw(2) == 0) {
        kelp_membership_remove(&world.membership, world.workers[index], true);
        world.workers[index] = 0;
    } else {
        struct kelp_member_joined joined = {.id = id, .incarnation = ++world.incarnations};
        uint64_t replaced = 0;
        (void)snprintf(id, sizeof(id), "worker-%d", index);
        uint64_t before = world.workers[index];
        joined.named = draw(4) == 0;
        const struct kelp_member *older = kelp_membership_find(&world.membership, before);
        bool idler = older && kelp__membership_is_idler(&world.membership, older);
        bool keeps =
            older && joined.named <= older->named && (joined.named < older->named || !idler);
        ck_assert_int_eq(kelp_membership_join(&world.membership, &joined, world.now,
                                              &world.workers[index], &replaced, NULL),
                         keeps ? KELP_ERR_EXISTS : KELP_OK);
        ck_assert_uint_eq(replaced, keeps ? 0 : before);
    }
    count_workers();
}

static void time_passes(uint64_t ms, bool workers_answer)
{
    uint64_t lost[WORKERS];
    world.now += ms;
    for (int i = 0; i < WORKERS; i++) {
        if (world.workers[i] != 0 && (workers_answer || draw(4) > 0)) {
            kelp_membership_heard(&world.membership, world.workers[i], NULL, world.now);
        }
    }
    uint32_t count = kelp_membership_tick(&world.membership, world.now, lost, WORKERS);
    for (uint32_t i = 0; i < count; i++) {
        kelp_membership_remove(&world.membership, lost[i], true);
        for (int w = 0; w < WORKERS; w++) {
            world.workers[w] = world.workers[w] == lost[i] ? 0 : world.workers[w];
        }
    }
    if (count > 0) {
        count_workers();
    }
    apply((struct kelp_placement_event){.kind = KELP_PLACEMENT_TICK});
}

/* ---- leaders ----------------------------------------------------------------------------------
 */

static void leader_starts(void)
{
    struct kelp_placement_options options = {.shards = 3,
                                             .replicas = world.replicated ? 2 : 1,
                                             .workers_min = 2,
                                             .shard_wait_ms = 2000,
                                             .writer = ++world.incarnations};
    ck_assert_int_eq(kelp_placement_init(&world.placement, &options, NULL), KELP_OK);
    ck_assert_int_eq(kelp_membership_init(&world.membership, LANES, 1000, NULL), KELP_OK);
    memset(world.workers, 0, sizeof(world.workers));
    world.seen_generation = 0;
    world.seen_assignment = 0;
    world.writing = false;
    world.reading = true;
    apply(
        (struct kelp_placement_event){.kind = KELP_PLACEMENT_PLAN, .partition_count = PARTITIONS});
    for (int i = 0; i < SHARDS; i++) {
        world.shards[i].link = 0;
        if (world.shards[i].registered != 0) {
            shard_registers(&world.shards[i]);
        }
    }
}

/* Its last write may reach etcd after its death. */
static void leader_dies(void)
{
    if (world.writing && draw(2) == 0) {
        (void)etcd_takes();
    }
    kelp_placement_fini(&world.placement);
    kelp_membership_fini(&world.membership);
}

static void random_event(void)
{
    struct process *shard = &world.shards[draw(SHARDS)];
    switch (draw(16)) {
    case 0:
        shard_dies(shard);
        break;
    case 1:
        shard_starts(shard);
        break;
    case 2:
    case 3:
        shard_registers(shard);
        break;
    case 4:
    case 5:
        shard_link(shard);
        break;
    case 6:
        shard_reports(shard);
        break;
    case 7:
        shard_loads(shard);
        break;
    case 8:
    case 9:
        finish_write(false);
        break;
    case 10:
        finish_read();
        break;
    case 11:
    case 12:
        worker_toggles((int)draw(WORKERS));
        break;
    case 13:
        if (draw(12) == 0) {
            leader_dies();
            leader_starts();
        }
        break;
    default:
        time_passes(draw(400), false);
        break;
    }
}

/* Once the world is kind, the job runs again, whatever happened before. */
static void check_recovery(void)
{
    for (int i = 0; i < SHARDS; i++) {
        struct process *shard = &world.shards[i];
        if (shard->incarnation == 0) {
            shard_starts(shard);
        }
        if (shard->link != 0) {
            shard_link(shard);
        }
        shard_registers(shard);
        shard_link(shard);
    }
    for (int i = 0; i < 3; i++) {
        if (world.workers[i] == 0) {
            worker_toggles(i);
        }
    }
    for (int round = 0; round < (world.replicated ? 200 : 60); round++) {
        time_passes(100, true);
        finish_write(true);
        finish_read();
        for (int i = 0; i < SHARDS; i++) {
            shard_loads(&world.shards[i]);
            shard_reports(&world.shards[i]);
        }
    }
    ck_assert_msg(world.placement.state == KELP_PLACEMENT_RUNNING, "stuck: %s",
                  world.placement.reason);
    for (uint32_t i = 0; world.replicated && i < PARTITIONS; i++) {
        ck_assert_uint_ne(world.placement.map.partitions[i].backup, KELP_MAP_NOBODY);
        ck_assert_uint_eq(world.placement.map.partitions[i].joiner, KELP_MAP_NOBODY);
    }
    for (uint32_t i = 0; i < world.placement.map.shard_count; i++) {
        const struct kelp_map_shard *mapped = &world.placement.map.shards[i];
        for (int k = 0; k < SHARDS; k++) {
            if (strcmp(mapped->id, world.shards[k].id) == 0) {
                ck_assert_uint_eq(mapped->incarnation, world.shards[k].incarnation);
                ck_assert_uint_eq(world.shards[k].loaded, world.placement.map.generation);
            }
        }
    }
}

static void run_world(uint64_t seed)
{
    memset(&world, 0, sizeof(world));
    world.random = seed;
    world.now = 1000;
    world.replicated = seed % 2 == 1;
    for (int i = 0; i < SHARDS; i++) {
        (void)snprintf(world.shards[i].id, sizeof(world.shards[i].id), "shard-%d", i);
    }
    leader_starts();
    for (int i = 0; i < EVENTS; i++) {
        random_event();
    }
    check_recovery();
    kelp_placement_fini(&world.placement);
    kelp_membership_fini(&world.membership);
    kelp_map_fini(&world.etcd);
}

static void print_seed(void)
{
    if (world_failed) {
        (void)fprintf(stderr, "failed with seed %llu\n", (unsigned long long)world_seed);
    }
}

KELP_CASE("worlds", .timeout_s = 60)

KELP_LOOP_TEST(random_worlds, 0, PROCESSES)
{
    ck_assert_int_eq(atexit(print_seed), 0);
    world_failed = true;
    for (int i = 0; i < SEEDS; i++) {
        world_seed = (uint64_t)_i * SEEDS + (uint64_t)i;
        run_world(world_seed);
    }
    world_failed = false;
}

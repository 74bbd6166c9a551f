/* A map as it comes to a worker: what is taken over, and what is refused. */
#include <string.h>

#include "tests/lib/suite.h"
#include "worker/links/wire_map.h"

/* One shard that leads the only partition. */
struct small {
    Kelp__V1__ShardPlace shard;
    Kelp__V1__ShardPlace *shards[1];
    Kelp__V1__PartitionPlace partition;
    Kelp__V1__PartitionPlace *partitions[1];
    Kelp__V1__Map map;
};

static void fill(struct small *small, const char *address)
{
    kelp__v1__map__init(&small->map);
    kelp__v1__shard_place__init(&small->shard);
    kelp__v1__partition_place__init(&small->partition);
    small->shard.shard = (char *)(uintptr_t) "shard-0"; /* only read, as the address */
    small->shard.address = (char *)(uintptr_t)address;
    small->shard.incarnation = 9;
    small->partition.map_epoch = 3;
    small->shards[0] = &small->shard;
    small->partitions[0] = &small->partition;
    small->map.generation = 7;
    small->map.n_shards = 1;
    small->map.shards = small->shards;
    small->map.n_partitions = 1;
    small->map.partitions = small->partitions;
}

KELP_TEST(taken)
{
    static const char *const addresses[] = {"10.0.0.6:7001", "[2001:db8::7]:1", "unix:/tmp/s"};

    for (size_t i = 0; i < KELP_ARRAY_COUNT(addresses); i++) {
        struct kelp_worker_map *map = NULL;
        struct small small;
        struct kelp_error error = {.text = ""};

        fill(&small, addresses[i]);
        ck_assert_msg(kelp_worker_map_decode(&small.map, &map, &error) == KELP_OK, "%s",
                      error.text);
        ck_assert_uint_eq(map->generation, 7);
        ck_assert_str_eq(map->shards[0].address, addresses[i]);
        ck_assert_uint_eq(map->map_epoch[0], 3);
        kelp_worker_map_free(map);
    }
}

/* Nobody waits for a resolver: neither a map nor an answer may lead to a name. */
KELP_TEST(names_are_refused)
{
    static const char *const addresses[] = {"ps.example.org:7001", "0.0.0.0:7001", "10.0.0.6",
                                            "dns:///10.0.0.6:7001", ""};

    for (size_t i = 0; i < KELP_ARRAY_COUNT(addresses); i++) {
        struct kelp_worker_map *map = NULL;
        struct kelp_place place;
        struct small small;
        struct kelp_error error = {.text = ""};

        fill(&small, addresses[i]);
        ck_assert_int_eq(kelp_worker_map_decode(&small.map, &map, &error), KELP_ERR_FORMAT);
        ck_assert_ptr_nonnull(strstr(error.text, "of shard-0 is not HOST:PORT in numbers"));
        ck_assert(!kelp_worker_place_decode(&small.shard, &place));
    }
}

/* A partition needs a shard that is there. */
KELP_TEST(no_such_primary)
{
    struct kelp_worker_map *map = NULL;
    struct small small;
    struct kelp_error error = {.text = ""};

    fill(&small, "10.0.0.6:7001");
    small.partition.primary = 1;
    ck_assert_int_eq(kelp_worker_map_decode(&small.map, &map, &error), KELP_ERR_FORMAT);
    ck_assert_ptr_nonnull(strstr(error.text, "partition 0 on shard 1 of 1"));
}

static kelp_status decode(const Kelp__V1__WorkerCommand *command, struct kelp_joining_event *event,
                          struct kelp_error *reterr)
{
    *event = (struct kelp_joining_event){.kind = KELP_JOINING_STOP};
    kelp_status status = kelp_worker_command_decode(command, event, reterr);
    ck_assert_int_eq(event->kind, KELP_JOINING_COMMAND);
    return status;
}

/* All that a command says comes through. */
KELP_TEST(commands_are_taken)
{
    Kelp__V1__WorkerCommand command = KELP__V1__WORKER_COMMAND__INIT;
    struct kelp_joining_event event;
    struct small small;

    fill(&small, "10.0.0.6:7001");
    small.map.serial = 4;
    command.map = &small.map;
    command.has_assignment = true;
    command.assignment_epoch = 5;
    command.lane_first = 6;
    command.lane_count = 2;
    command.rests = true;
    command.leave = true;
    command.drain = true;
    command.status = KELP_ERR_MISMATCH;
    command.error = (char *)(uintptr_t) "another job"; /* only read */
    command.beat_ms = 400;
    ck_assert_int_eq(decode(&command, &event, NULL), KELP_OK);
    ck_assert_uint_eq(event.command.map_generation, 7);
    ck_assert_uint_eq(event.command.map_serial, 4);
    ck_assert(event.command.has_assignment && event.command.rests);
    ck_assert_uint_eq(event.command.assignment_epoch, 5);
    ck_assert_uint_eq(event.command.lane_first, 6);
    ck_assert_uint_eq(event.command.lane_count, 2);
    ck_assert(event.command.leave && event.command.drain);
    ck_assert_int_eq(event.command.status, KELP_ERR_MISMATCH);
    ck_assert_str_eq(event.command.error, "another job");
    ck_assert_uint_eq(event.command.beat_ms, 400);
    kelp_worker_map_free(event.command.map);
}

/* A map or an interval that cannot be used is left out and told; the rest is taken. */
KELP_TEST(what_cannot_be_used_is_left_out)
{
    static const uint32_t bad[] = {1, KELP_JOINING_BEAT_MIN_MS - 1, KELP_JOINING_BEAT_MAX_MS + 1,
                                   UINT32_MAX};
    Kelp__V1__WorkerCommand command = KELP__V1__WORKER_COMMAND__INIT;
    struct kelp_joining_event event;
    struct kelp_error error;
    struct small small;

    command.drain = true;
    for (size_t i = 0; i < KELP_ARRAY_COUNT(bad); i++) {
        command.beat_ms = bad[i];
        ck_assert_int_eq(decode(&command, &event, &error), KELP_ERR_FORMAT);
        ck_assert_ptr_nonnull(strstr(error.text, "ms are asked for: it is 25 to 60000 ms"));
        ck_assert_uint_eq(event.command.beat_ms, 0);
        ck_assert(event.command.drain);
    }
    fill(&small, "ps.example.org:7001");
    command.map = &small.map;
    command.beat_ms = 100;
    ck_assert_int_eq(decode(&command, &event, &error), KELP_ERR_FORMAT);
    ck_assert_ptr_null(event.command.map);
    ck_assert_uint_eq(event.command.beat_ms, 100);
    ck_assert(event.command.drain);
}

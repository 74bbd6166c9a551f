#include "worker/links/wire_map.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/address.h"
#include "common/training/plan.h"

#define SHARDS_MAX 1024u

void kelp_worker_map_free(struct kelp_worker_map *map)
{
    if (map) {
        free(map->shards);
        free(map->primary);
        free(map->map_epoch);
        free(map);
    }
}

void kelp_worker_map_places(const struct kelp_worker_map *map, struct kelp_places *ret_places)
{
    *ret_places = (struct kelp_places){
        .generation = map->generation,
        .serial = map->serial,
        .shard_count = map->shard_count,
        .partition_count = map->partition_count,
        .shards = map->shards,
        .primary = map->primary,
        .map_epoch = map->map_epoch,
    };
}

/* False: too long. */
static bool fill_place(const Kelp__V1__ShardPlace *from, struct kelp_place *to)
{
    if (strlen(from->shard) >= sizeof(to->shard) || strlen(from->address) >= sizeof(to->address)) {
        return false;
    }
    memcpy(to->shard, from->shard, strlen(from->shard) + 1);
    memcpy(to->address, from->address, strlen(from->address) + 1);
    to->incarnation = from->incarnation;
    return true;
}

bool kelp_worker_place_decode(const Kelp__V1__ShardPlace *wire, struct kelp_place *ret_place)
{
    return wire && wire->shard[0] != '\0' && wire->incarnation != 0 &&
           fill_place(wire, ret_place) && kelp_address_is_target(wire->address);
}

static kelp_status fill_shards(struct kelp_worker_map *map, const Kelp__V1__Map *wire,
                               struct kelp_error *reterr)
{
    for (size_t i = 0; i < wire->n_shards; i++) {
        const Kelp__V1__ShardPlace *from = wire->shards[i];
        struct kelp_place *to = &map->shards[i];
        if (!fill_place(from, to)) {
            return kelp_fail(reterr, KELP_ERR_LIMIT,
                             "map: name or address of shard %zu is too long", i);
        }
        if (!kelp_address_is_target(from->address)) {
            return kelp_fail(reterr, KELP_ERR_FORMAT,
                             "map: address '%s' of %s is not HOST:PORT in numbers, or unix:/PATH",
                             from->address, from->shard);
        }
    }
    return KELP_OK;
}

static kelp_status fill_partitions(struct kelp_worker_map *map, const Kelp__V1__Map *wire,
                                   struct kelp_error *reterr)
{
    for (size_t i = 0; i < wire->n_partitions; i++) {
        const Kelp__V1__PartitionPlace *from = wire->partitions[i];
        if (from->partition != i || from->primary >= wire->n_shards) {
            return kelp_fail(reterr, KELP_ERR_FORMAT,
                             "map: entry %zu is partition %u on shard %u of %zu", i,
                             from->partition, from->primary, wire->n_shards);
        }
        map->primary[i] = from->primary;
        map->map_epoch[i] = from->map_epoch;
    }
    return KELP_OK;
}

kelp_status kelp_worker_map_decode(const Kelp__V1__Map *wire, struct kelp_worker_map **ret_map,
                                   struct kelp_error *reterr)
{
    if (wire->n_shards == 0 || wire->n_shards > SHARDS_MAX || wire->n_partitions == 0 ||
        wire->n_partitions > KELP_PARTITIONS_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT,
                         "map: %zu shards and %zu partitions are out of range", wire->n_shards,
                         wire->n_partitions);
    }
    struct kelp_worker_map *map = calloc(1, sizeof(*map));
    if (!map) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "map: out of memory");
    }
    map->generation = wire->generation;
    map->serial = wire->serial;
    map->shard_count = (uint32_t)wire->n_shards;
    map->partition_count = (uint32_t)wire->n_partitions;
    map->shards = calloc(wire->n_shards, sizeof(*map->shards));
    map->primary = calloc(wire->n_partitions, sizeof(*map->primary));
    map->map_epoch = calloc(wire->n_partitions, sizeof(*map->map_epoch));
    kelp_status status = KELP_OK;
    if (!map->shards || !map->primary || !map->map_epoch) {
        status = kelp_fail(reterr, KELP_ERR_NO_MEMORY, "map: out of memory");
    }
    if (status == KELP_OK) {
        status = fill_shards(map, wire, reterr);
    }
    if (status == KELP_OK) {
        status = fill_partitions(map, wire, reterr);
    }
    if (status != KELP_OK) {
        kelp_worker_map_free(map);
        return status;
    }
    *ret_map = map;
    return KELP_OK;
}

kelp_status kelp_worker_command_decode(const Kelp__V1__WorkerCommand *wire,
                                       struct kelp_joining_event *ret_event,
                                       struct kelp_error *reterr)
{
    struct kelp_worker_map *map = NULL;
    uint32_t beat_ms = wire->beat_ms;
    kelp_status status = wire->map ? kelp_worker_map_decode(wire->map, &map, reterr) : KELP_OK;

    if (beat_ms > 0 && (beat_ms < KELP_JOINING_BEAT_MIN_MS || beat_ms > KELP_JOINING_BEAT_MAX_MS)) {
        status = kelp_fail(reterr, KELP_ERR_FORMAT,
                           "reports every %" PRIu32 " ms are asked for: it is %d to %d ms", beat_ms,
                           KELP_JOINING_BEAT_MIN_MS, KELP_JOINING_BEAT_MAX_MS);
        beat_ms = 0;
    }
    *ret_event =
        (struct kelp_joining_event){.kind = KELP_JOINING_COMMAND,
                                    .command = {.map = map,
                                                .map_generation = map ? map->generation : 0,
                                                .map_serial = map ? map->serial : 0,
                                                .has_assignment = wire->has_assignment,
                                                .assignment_epoch = wire->assignment_epoch,
                                                .lane_first = wire->lane_first,
                                                .lane_count = wire->lane_count,
                                                .rests = wire->rests,
                                                .leave = wire->leave,
                                                .drain = wire->drain,
                                                .status = (kelp_status)wire->status,
                                                .error = wire->error,
                                                .beat_ms = beat_ms}};
    return status;
}

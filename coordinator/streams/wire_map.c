#include "coordinator/streams/wire_map.h"

#include <stdlib.h>

void kelp_wire_map_fini(struct kelp_wire_map *wire)
{
    free(wire->shards);
    free(wire->shard_pointers);
    free(wire->partitions);
    free(wire->partition_pointers);
    *wire = (struct kelp_wire_map){.shards = NULL};
}

static uint32_t follower(uint32_t index)
{
    return index == KELP_MAP_NOBODY ? 0 : index + 1;
}

kelp_status kelp_wire_map_init(struct kelp_wire_map *wire, const struct kelp_map *map)
{
    *wire = (struct kelp_wire_map){.shards = NULL};
    kelp__v1__map__init(&wire->message);
    wire->shards = calloc((size_t)map->shard_count + 1, sizeof(*wire->shards));
    wire->shard_pointers =
        calloc((size_t)map->shard_count + 1, sizeof(struct Kelp__V1__ShardPlace *));
    wire->partitions = calloc((size_t)map->partition_count + 1, sizeof(*wire->partitions));
    wire->partition_pointers =
        calloc((size_t)map->partition_count + 1, sizeof(struct Kelp__V1__PartitionPlace *));
    if (!wire->shards || !wire->shard_pointers || !wire->partitions || !wire->partition_pointers) {
        kelp_wire_map_fini(wire);
        return KELP_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < map->shard_count; i++) {
        kelp__v1__shard_place__init(&wire->shards[i]);
        wire->shards[i].shard = map->shards[i].id;
        wire->shards[i].address = map->shards[i].address;
        wire->shards[i].zone = map->shards[i].zone;
        wire->shards[i].incarnation = map->shards[i].incarnation;
        wire->shard_pointers[i] = &wire->shards[i];
    }
    for (uint32_t i = 0; i < map->partition_count; i++) {
        kelp__v1__partition_place__init(&wire->partitions[i]);
        wire->partitions[i].partition = i;
        wire->partitions[i].map_epoch = map->partitions[i].map_epoch;
        wire->partitions[i].primary = map->partitions[i].primary;
        wire->partitions[i].backup = follower(map->partitions[i].backup);
        wire->partitions[i].joiner = follower(map->partitions[i].joiner);
        wire->partition_pointers[i] = &wire->partitions[i];
    }
    wire->message.generation = map->generation;
    wire->message.serial = map->serial;
    wire->message.restore_version = map->restore_version;
    wire->message.n_shards = map->shard_count;
    wire->message.shards = wire->shard_pointers;
    wire->message.n_partitions = map->partition_count;
    wire->message.partitions = wire->partition_pointers;
    return KELP_OK;
}

/* A map as its message. */
#ifndef KELP_COORDINATOR_STREAMS_WIRE_MAP_H
#define KELP_COORDINATOR_STREAMS_WIRE_MAP_H

#include "coordinator/core/map.h"
#include "proto/kelp.pb-c.h"

/* A message with its arrays. Freed with kelp_wire_map_fini(); valid while the map is. */
struct kelp_wire_map {
    Kelp__V1__Map message;
    Kelp__V1__ShardPlace *shards;
    Kelp__V1__ShardPlace **shard_pointers;
    Kelp__V1__PartitionPlace *partitions;
    Kelp__V1__PartitionPlace **partition_pointers;
};
kelp_status kelp_wire_map_init(struct kelp_wire_map *wire,
                               const struct kelp_map *map) KELP_MUST_USE;
void kelp_wire_map_fini(struct kelp_wire_map *wire);

#endif

/* What the coordinator says, partition maps and their entries: as they come from outside, decoded
 * and checked. */
#ifndef KELP_WORKER_LINKS_WIRE_MAP_H
#define KELP_WORKER_LINKS_WIRE_MAP_H

#include "proto/kelp.pb-c.h"
#include "worker/core/joining.h"

/* The partition map as workers need it. Freed with kelp_worker_map_free(). */
struct kelp_worker_map {
    uint64_t generation;
    uint64_t serial;
    uint32_t shard_count;
    uint32_t partition_count;
    struct kelp_place *shards;
    uint32_t *primary;   /* of each partition: index into shards */
    uint64_t *map_epoch; /* of each partition */
};
void kelp_worker_map_free(struct kelp_worker_map *map);
/* Borrowed from the map. */
void kelp_worker_map_places(const struct kelp_worker_map *map, struct kelp_places *ret_places);
/* Errors: KELP_ERR_LIMIT, KELP_ERR_FORMAT, KELP_ERR_NO_MEMORY. */
kelp_status kelp_worker_map_decode(const Kelp__V1__Map *wire, struct kelp_worker_map **ret_map,
                                   struct kelp_error *reterr) KELP_MUST_USE;

/* What kelp_joining is to know of a command; its texts are borrowed from that. A map or an interval
 * that cannot be used is left out of the event, which is complete but for that. Errors: those of
 * kelp_worker_map_decode(). */
kelp_status kelp_worker_command_decode(const Kelp__V1__WorkerCommand *wire,
                                       struct kelp_joining_event *ret_event,
                                       struct kelp_error *reterr) KELP_MUST_USE;

/* What a shard told of a partition's primary; wire may be NULL. False: nothing that can be used. */
bool kelp_worker_place_decode(const Kelp__V1__ShardPlace *wire, struct kelp_place *ret_place);

#endif

/* A map as the service keeps it, and what it means for this process. */
#ifndef KELP_PS_SERVICE_MAP_INTERNAL_H
#define KELP_PS_SERVICE_MAP_INTERNAL_H

#include "ps/service/shard_service_internal.h"

#define SERVICE_NOBODY UINT32_MAX

struct service_map_shard {
    char *id;      /* owned */
    char *address; /* owned */
    uint64_t incarnation;
    uint64_t process;           /* its number; 0: this process */
    Kelp__V1__ShardPlace place; /* all of it, borrowed, for messages */
};

struct service_map_partition {
    uint64_t map_epoch;
    uint32_t primary; /* index into shards */
    uint32_t backup;  /* likewise, or SERVICE_NOBODY */
    uint32_t joiner;
};

/* Never changes; counted references. */
struct service_map {
    atomic_uint refs;
    uint64_t generation;
    uint64_t serial;
    uint64_t restore_version;
    uint32_t shard_count;
    struct service_map_shard *shards;
    uint32_t partition_count;
    struct service_map_partition *partitions;
};

void kelp__service_map_ref(struct service_map *map);
void kelp__service_map_unref(struct service_map *map);

/* What is told to a worker whose request came by an older map: the partition's epoch and primary,
 * if the map is of that generation; else NULL. Borrowed. */
const Kelp__V1__ShardPlace *kelp__service_map_tell(const struct service_map *map,
                                                   uint64_t generation, uint32_t partition,
                                                   uint64_t *ret_map_epoch);

/* The partitions that this process has a part in, ascending; room for all. Returns how many. */
uint32_t kelp__service_map_places(const struct service_map *map,
                                  struct kelp_hosting_place *ret_places);

/* Is this process primary or backup of a partition? Joiners get copies of what others have. */
bool kelp__service_map_reads(const struct service_map *map);

/* The number of a process: of this incarnation of that shard, the same in every map. */
uint64_t kelp__service_process(const char *id, uint64_t incarnation);

/* load.c: make service->wanted of the map. control_lock is held. manifest: of the
 * checkpoint that it restores, or "". */
kelp_status kelp__service_load_want(struct kelp_service *service, const struct service_map *map,
                                    const char *manifest, struct kelp_error *reterr) KELP_MUST_USE;

#endif

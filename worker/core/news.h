/*
 * What the coordinator told a worker and the worker's loop has not handled yet, and a partition map
 * as the cores need it.
 */
#ifndef KELP_WORKER_CORE_NEWS_H
#define KELP_WORKER_CORE_NEWS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

#define KELP_WORKER_ADDRESS_MAX 255
#define KELP_PLACE_SHARD_MAX    63

/* One start of one shard: a shard that was started again is another place. */
struct kelp_place {
    char shard[KELP_PLACE_SHARD_MAX + 1]; /* its name */
    char address[KELP_WORKER_ADDRESS_MAX + 1];
    uint64_t incarnation;
};

/* Where partitions are. */
struct kelp_places {
    uint64_t generation;
    uint64_t serial; /* of the map within its generation */
    uint32_t shard_count;
    uint32_t partition_count;
    const struct kelp_place *shards;
    const uint32_t *primary;   /* of each partition: which shard */
    const uint64_t *map_epoch; /* of each partition */
};

struct kelp_news {
    bool any;
    void *map; /* the newest, or NULL; the caller's type; taking the news takes it too */
    uint64_t map_generation;
    uint64_t map_serial;
    bool has_assignment;
    uint64_t assignment_epoch;
    uint32_t lane_first;
    uint32_t lane_count;
    bool rests;                /* with the assignment: nothing is computed, offered or not */
    bool leave;                /* the job is over */
    bool drain;                /* this worker is to end gracefully */
    struct kelp_error refused; /* status other than KELP_OK: the coordinator refuses this worker */
};

#endif

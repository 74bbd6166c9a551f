/*
 * What the coordinator told a worker and the worker's loop has not handled yet, and a partition map
 * as the cores need it.
 */
#ifndef KELP_WORKER_CORE_NEWS_H
#define KELP_WORKER_CORE_NEWS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

/* Where partitions are. A shard has one contiguous run of partitions. */
struct kelp_places {
    uint64_t generation;
    uint32_t shard_count;
    uint32_t partition_count;
    const uint32_t *primary;   /* of each partition: which shard */
    const uint64_t *map_epoch; /* of each partition */
};

struct kelp_news {
    bool any;
    void *map; /* the newest, or NULL; the caller's type; taking the news takes it too */
    bool has_assignment;
    uint64_t assignment_epoch;
    uint32_t lane_first;
    uint32_t lane_count;
    bool leave;                /* the job is over */
    struct kelp_error refused; /* status other than KELP_OK: the coordinator refuses this worker */
};

#endif

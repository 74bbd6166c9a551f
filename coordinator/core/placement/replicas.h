/*
 * What primaries have reported of their followers, for each partition. A report holds in the map
 * epoch in which it was made, and nowhere else. Pure.
 */
#ifndef KELP_COORDINATOR_CORE_PLACEMENT_REPLICAS_H
#define KELP_COORDINATOR_CORE_PLACEMENT_REPLICAS_H

#include "coordinator/core/map.h"

struct kelp_replica_report {
    uint32_t partition;
    uint64_t map_epoch; /* 0: nothing was reported */
    bool backup_in_sync;
    bool joiner_in_sync; /* it may lead: nothing becomes visible without it any more */
    uint64_t lag;        /* versions that the slowest follower is behind */
    uint64_t copied;     /* bytes of the joiner's copy that were sent */
    uint64_t to_copy;    /* of so many */
};

struct kelp_replicas {
    uint32_t partition_count;
    struct kelp_replica_report *newest; /* owned; of each partition */
};

/* Another generation: nothing is known. Errors: KELP_ERR_NO_MEMORY; then it is as it was. */
kelp_status kelp_replicas_reset(struct kelp_replicas *replicas, uint32_t partition_count,
                                struct kelp_error *reterr) KELP_MUST_USE;
void kelp_replicas_fini(struct kelp_replicas *replicas);

/* The shard of that index has reported this. Does it change what may be done with the followers?
 * No: it is known, or how far they lag; or it is out of date, or not for this shard to say. */
bool kelp_replicas_take(struct kelp_replicas *replicas, const struct kelp_map *map, uint32_t shard,
                        const struct kelp_replica_report *report);
/* What is known of the partition in its entry's epoch; NULL: nothing. */
const struct kelp_replica_report *kelp_replicas_of(const struct kelp_replicas *replicas,
                                                   const struct kelp_map *map, uint32_t partition);

#endif

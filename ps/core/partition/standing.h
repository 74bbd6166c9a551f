/*
 * How far apart the partitions are that a shard leads: the one at the lowest training step, and the
 * one at the highest. The leader compares these of all shards (coordinator/core/placement/apart.h).
 * Pure.
 */
#ifndef KELP_PS_CORE_PARTITION_STANDING_H
#define KELP_PS_CORE_PARTITION_STANDING_H

#include "ps/core/partition/partition.h"

struct kelp_standing_end {
    uint32_t partition;
    uint64_t map_epoch; /* in which it is led here */
    uint64_t step;      /* that workers see */
};

struct kelp_standing {
    uint64_t generation;
    bool known; /* false: nothing is led */
    struct kelp_standing_end lowest;
    struct kelp_standing_end highest;
};

/* The next partition, in ascending order, of that generation: one that follows another
 * primary, or has nothing loaded, changes nothing. Of equal steps the first one counts. */
void kelp_standing_add(struct kelp_standing *standing, uint32_t partition,
                       const struct kelp_partition_view *view);

#endif

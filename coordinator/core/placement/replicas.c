#include "coordinator/core/placement/replicas.h"

#include <stdlib.h>

kelp_status kelp_replicas_reset(struct kelp_replicas *replicas, uint32_t partition_count,
                                struct kelp_error *reterr)
{
    struct kelp_replica_report *newest = calloc((size_t)partition_count + 1, sizeof(*newest));
    if (!newest) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for the replicas of %u partitions",
                         partition_count);
    }
    free(replicas->newest);
    *replicas = (struct kelp_replicas){.partition_count = partition_count, .newest = newest};
    return KELP_OK;
}

void kelp_replicas_fini(struct kelp_replicas *replicas)
{
    free(replicas->newest);
    *replicas = (struct kelp_replicas){0};
}

bool kelp_replicas_take(struct kelp_replicas *replicas, const struct kelp_map *map, uint32_t shard,
                        const struct kelp_replica_report *report)
{
    if (report->partition >= map->partition_count ||
        report->partition >= replicas->partition_count) {
        return false;
    }
    const struct kelp_map_partition *entry = &map->partitions[report->partition];
    if (entry->primary != shard || entry->map_epoch != report->map_epoch) {
        return false;
    }
    struct kelp_replica_report *newest = &replicas->newest[report->partition];
    bool news = newest->map_epoch != report->map_epoch ||
                newest->backup_in_sync != report->backup_in_sync ||
                newest->joiner_in_sync != report->joiner_in_sync;
    *newest = *report;
    return news;
}

const struct kelp_replica_report *kelp_replicas_of(const struct kelp_replicas *replicas,
                                                   const struct kelp_map *map, uint32_t partition)
{
    if (partition >= replicas->partition_count || partition >= map->partition_count) {
        return NULL;
    }
    const struct kelp_replica_report *newest = &replicas->newest[partition];
    return newest->map_epoch == map->partitions[partition].map_epoch ? newest : NULL;
}

/*
 * How a shard leaves in order: it asks the leader to move its partitions away before it ends.
 */
#include <stdio.h>

#include "ps/service/map_internal.h"

bool kelp_service_leave(struct kelp_service *service)
{
    struct service_map *map = kelp__service_told(service);
    bool known = map != NULL;

    if (known) {
        atomic_store(&service->leaving, true); /* the next report says so */
    }
    kelp__service_map_unref(map);
    return known;
}

void kelp_service_describe(struct kelp_service *service, char *text, size_t text_bytes)
{
    struct service_map *map = kelp__service_told(service);
    unsigned leads = 0;
    unsigned follows = 0;

    for (uint32_t i = 0; map && i < map->partition_count; i++) {
        const struct service_map_partition *entry = &map->partitions[i];
        const uint32_t followers[] = {entry->backup, entry->joiner};
        leads += map->shards[entry->primary].process == 0 ? 1 : 0;
        for (size_t k = 0; k < KELP_ARRAY_COUNT(followers); k++) {
            follows += followers[k] != SERVICE_NOBODY && map->shards[followers[k]].process == 0;
        }
    }
    (void)snprintf(text, text_bytes, "it leads %u partitions and follows %u", leads, follows);
    kelp__service_map_unref(map);
}

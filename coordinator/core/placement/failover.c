#include "coordinator/core/placement/failover.h"

static bool lost(const struct kelp_failover_shard *shards, uint32_t shard)
{
    return shard != KELP_MAP_NOBODY && shards[shard].lost;
}

static bool leads(const struct kelp_failover_shard *shards, uint32_t shard)
{
    return shard != KELP_MAP_NOBODY && !shards[shard].lost && shards[shard].ready;
}

/* The entry without the lost shards; its primary is KELP_MAP_NOBODY if no shard may lead. */
static struct kelp_map_partition without_lost(const struct kelp_map_partition *before,
                                              const struct kelp_failover_shard *shards,
                                              const struct kelp_failover_silent *silent,
                                              bool in_sync)
{
    struct kelp_map_partition entry = *before;
    bool led = !lost(shards, before->primary);
    if (lost(shards, before->backup) || (silent->backup && led)) {
        entry.backup = KELP_MAP_NOBODY;
    }
    if (lost(shards, before->joiner) || (silent->joiner && led)) {
        entry.joiner = KELP_MAP_NOBODY;
    }
    bool joins = in_sync && leads(shards, entry.joiner);
    if (lost(shards, before->primary) && leads(shards, entry.backup)) {
        entry.primary = entry.backup;
        entry.backup = KELP_MAP_NOBODY;
    } else if (lost(shards, before->primary)) {
        entry.primary = joins ? entry.joiner : KELP_MAP_NOBODY;
        entry.joiner = KELP_MAP_NOBODY;
    }
    bool changed = entry.primary != before->primary || entry.backup != before->backup ||
                   entry.joiner != before->joiner;
    if (changed && joins && entry.joiner != KELP_MAP_NOBODY && entry.backup == KELP_MAP_NOBODY) {
        entry.backup = entry.joiner;
        entry.joiner = KELP_MAP_NOBODY;
    }
    entry.map_epoch += changed ? 1 : 0;
    return entry;
}

static enum kelp_failover_verdict judge(const struct kelp_map_partition *before,
                                        const struct kelp_map_partition *after,
                                        const struct kelp_failover_shard *shards)
{
    if (after->primary == KELP_MAP_NOBODY) {
        bool waits = before->backup != KELP_MAP_NOBODY && !lost(shards, before->backup);
        return waits ? KELP_FAILOVER_WAITS : KELP_FAILOVER_NOBODY;
    }
    return after->map_epoch == before->map_epoch ? KELP_FAILOVER_NOTHING : KELP_FAILOVER_CHANGE;
}

enum kelp_failover_verdict kelp_failover_of(const struct kelp_map *map,
                                            const struct kelp_failover_shard *shards,
                                            const struct kelp_failover_silent *silent,
                                            const struct kelp_replicas *replicas,
                                            struct kelp_map_partition *ret_entries)
{
    enum kelp_failover_verdict gravest = KELP_FAILOVER_NOTHING;
    for (uint32_t i = 0; i < map->partition_count; i++) {
        const struct kelp_replica_report *report = kelp_replicas_of(replicas, map, i);
        const struct kelp_map_partition entry =
            without_lost(&map->partitions[i], shards, &silent[i], report && report->joiner_in_sync);
        enum kelp_failover_verdict verdict = judge(&map->partitions[i], &entry, shards);
        gravest = verdict > gravest ? verdict : gravest;
        if (ret_entries) {
            ret_entries[i] = entry;
        }
    }
    return gravest;
}

#include "cli/chaos/report/chaos_replicas.h"

#include <string.h>

static const Kelp__V1__PartitionPlace *first_partition(const Kelp__V1__Map *map)
{
    for (size_t i = 0; map && i < map->n_partitions; i++) {
        if (map->partitions[i]->partition == 0) {
            return map->partitions[i];
        }
    }
    return NULL;
}

uint32_t kelp_chaos_replicas_primary(const Kelp__V1__Map *map)
{
    const Kelp__V1__PartitionPlace *place = first_partition(map);
    return place && place->primary < map->n_shards ? place->primary : UINT32_MAX;
}

uint32_t kelp_chaos_replicas_backup(const Kelp__V1__Map *map)
{
    const Kelp__V1__PartitionPlace *place = first_partition(map);
    bool there = place && place->backup > 0 && place->backup <= map->n_shards;
    return there ? place->backup - 1 : UINT32_MAX;
}

static bool in_map(const Kelp__V1__Map *map, uint64_t incarnation)
{
    for (size_t i = 0; i < map->n_shards; i++) {
        if (map->shards[i]->incarnation == incarnation) {
            return true;
        }
    }
    return false;
}

/* Those that the map has given up, or that are as before. */
static void forget(struct kelp_chaos_hits *hits, const Kelp__V1__Map *map, uint64_t now_ms)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < hits->count; i++) {
        if (hits->items[i].until_ms > now_ms && in_map(map, hits->items[i].incarnation)) {
            hits->items[kept++] = hits->items[i];
        }
    }
    hits->count = kept;
}

static bool is_hit(const struct kelp_chaos_hits *hits, const Kelp__V1__Map *map, uint32_t index)
{
    for (uint32_t i = 0; index < map->n_shards && i < hits->count; i++) {
        if (hits->items[i].incarnation == map->shards[index]->incarnation) {
            return true;
        }
    }
    return false;
}

bool kelp_chaos_replicas_hit(struct kelp_chaos_hits *hits, const Kelp__V1__Map *map,
                             const char *shard, uint64_t now_ms, uint64_t heal_ms)
{
    if (!map || map->n_shards == 0) {
        return true; /* not known */
    }
    forget(hits, map, now_ms);
    for (size_t i = 0; i < map->n_shards && hits->count < KELP_CHAOS_HITS_MAX; i++) {
        if (strcmp(map->shards[i]->shard, shard) == 0) {
            hits->items[hits->count].incarnation = map->shards[i]->incarnation;
            hits->items[hits->count++].until_ms =
                heal_ms == UINT64_MAX ? UINT64_MAX : heal_ms + KELP_CHAOS_HIT_HEAL_MS;
        }
    }
    for (size_t i = 0; i < map->n_partitions; i++) {
        const Kelp__V1__PartitionPlace *place = map->partitions[i];
        if (is_hit(hits, map, place->primary) &&
            (place->backup == 0 || is_hit(hits, map, place->backup - 1))) {
            return true;
        }
    }
    return false;
}

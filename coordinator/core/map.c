#include "coordinator/core/map.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/process_name.h"
#include "common/training/plan.h"

kelp_status kelp_map_init(struct kelp_map *map, uint32_t shard_count, uint32_t partition_count,
                          struct kelp_error *reterr)
{
    *map = (struct kelp_map){.shard_count = shard_count, .partition_count = partition_count};
    if (shard_count > KELP_COORDINATOR_SHARDS_MAX || partition_count > KELP_PARTITIONS_MAX) {
        *map = (struct kelp_map){0};
        return kelp_fail(reterr, KELP_ERR_LIMIT,
                         "a map of %u shards and %u partitions; at most %d and %d", shard_count,
                         partition_count, KELP_COORDINATOR_SHARDS_MAX, KELP_PARTITIONS_MAX);
    }
    map->shards = calloc((size_t)shard_count + 1, sizeof(*map->shards));
    map->partitions = calloc((size_t)partition_count + 1, sizeof(*map->partitions));
    if (!map->shards || !map->partitions) {
        kelp_map_fini(map);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a map of %u partitions",
                         partition_count);
    }
    for (uint32_t i = 0; i < partition_count; i++) {
        map->partitions[i].backup = KELP_MAP_NOBODY;
        map->partitions[i].joiner = KELP_MAP_NOBODY;
    }
    return KELP_OK;
}

void kelp_map_fini(struct kelp_map *map)
{
    free(map->shards);
    free(map->partitions);
    *map = (struct kelp_map){0};
}

kelp_status kelp_map_copy(const struct kelp_map *map, struct kelp_map *ret_copy)
{
    struct kelp_map copy;
    kelp_status status = kelp_map_init(&copy, map->shard_count, map->partition_count, NULL);
    if (status != KELP_OK) {
        return status;
    }
    assert(copy.shards && copy.partitions);
    copy.generation = map->generation;
    copy.serial = map->serial;
    copy.restore_version = map->restore_version;
    memcpy(copy.nonce, map->nonce, sizeof(copy.nonce));
    if (map->shard_count > 0) {
        memcpy(copy.shards, map->shards, map->shard_count * sizeof(*copy.shards));
    }
    if (map->partition_count > 0) {
        memcpy(copy.partitions, map->partitions, map->partition_count * sizeof(*copy.partitions));
    }
    *ret_copy = copy;
    return KELP_OK;
}

/* Was this shard, and no other, the partition's host before? */
static bool same_host(const struct kelp_map *before, uint32_t partition,
                      const struct kelp_map_shard *shard)
{
    if (partition >= before->partition_count) {
        return false;
    }
    const struct kelp_map_partition *entry = &before->partitions[partition];
    if (entry->backup != KELP_MAP_NOBODY || entry->joiner != KELP_MAP_NOBODY) {
        return false;
    }
    const struct kelp_map_shard *old = &before->shards[entry->primary];
    return old->incarnation == shard->incarnation && strcmp(old->id, shard->id) == 0;
}

uint64_t kelp_map_next_epoch(const struct kelp_map *before, uint32_t partition,
                             const struct kelp_map_shard *primary, uint32_t backup)
{
    uint64_t epoch =
        partition < before->partition_count ? before->partitions[partition].map_epoch : 0;
    bool same = backup == KELP_MAP_NOBODY && same_host(before, partition, primary);
    return same ? epoch : epoch + 1;
}

kelp_status kelp_map_add(struct kelp_map *map, const struct kelp_map_shard *shard,
                         uint32_t *ret_index, struct kelp_error *reterr)
{
    int32_t index = kelp_map_find(map, shard->id);
    if (index >= 0) {
        *ret_index = (uint32_t)index;
        return KELP_OK;
    }
    if (map->shard_count == KELP_COORDINATOR_SHARDS_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "a map has at most %d shards",
                         KELP_COORDINATOR_SHARDS_MAX);
    }
    struct kelp_map_shard *shards =
        realloc(map->shards, ((size_t)map->shard_count + 1) * sizeof(*shards));
    if (!shards) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a map");
    }
    map->shards = shards;
    map->shards[map->shard_count] = *shard;
    *ret_index = map->shard_count++;
    return KELP_OK;
}

kelp_status kelp_map_spread(const struct kelp_map *before, const struct kelp_map_shard *shards,
                            uint32_t shard_count, uint32_t partition_count,
                            struct kelp_map *ret_map, struct kelp_error *reterr)
{
    if (shard_count == 0 || partition_count == 0) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "no shard to place %u partitions on",
                         partition_count);
    }
    if (shard_count > partition_count) {
        shard_count = partition_count; /* shards without partitions are not in the map */
    }
    struct kelp_map map;
    kelp_status status = kelp_map_init(&map, shard_count, partition_count, reterr);
    if (status != KELP_OK) {
        return status;
    }
    assert(map.shards && map.partitions);
    map.generation = before->generation + 1;
    map.serial = 1;
    memcpy(map.shards, shards, shard_count * sizeof(*shards));
    for (uint32_t i = 0; i < partition_count; i++) {
        uint32_t primary = (uint32_t)((uint64_t)i * shard_count / partition_count);
        map.partitions[i].primary = primary;
        map.partitions[i].map_epoch =
            kelp_map_next_epoch(before, i, &shards[primary], KELP_MAP_NOBODY);
    }
    assert(map.partitions[partition_count - 1].primary == shard_count - 1);
    *ret_map = map;
    return KELP_OK;
}

static uint32_t moved(const uint32_t *places, uint32_t shard)
{
    return shard == KELP_MAP_NOBODY ? KELP_MAP_NOBODY : places[shard];
}

void kelp_map_drop_idle(struct kelp_map *map)
{
    uint32_t places[KELP_COORDINATOR_SHARDS_MAX];
    uint32_t kept = 0;
    for (uint32_t i = 0; i < map->shard_count; i++) {
        bool idle = true;
        for (uint32_t p = 0; p < map->partition_count && idle; p++) {
            const struct kelp_map_partition *entry = &map->partitions[p];
            idle = entry->primary != i && entry->backup != i && entry->joiner != i;
        }
        if (!idle && kept != i) {
            map->shards[kept] = map->shards[i];
        }
        places[i] = kept;
        kept += idle ? 0 : 1;
    }
    map->shard_count = kept;
    for (uint32_t p = 0; p < map->partition_count; p++) {
        struct kelp_map_partition *entry = &map->partitions[p];
        entry->primary = moved(places, entry->primary);
        entry->backup = moved(places, entry->backup);
        entry->joiner = moved(places, entry->joiner);
    }
}

static kelp_status check_shard(const struct kelp_map *map, uint32_t index,
                               struct kelp_error *reterr)
{
    const struct kelp_map_shard *shard = &map->shards[index];
    if (!kelp_process_name_valid(shard->id)) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "map: shard %u has no valid name", index);
    }
    if (shard->address[0] == '\0') {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "map: shard %s has no address", shard->id);
    }
    if (shard->zone[0] != '\0' && !kelp_process_name_valid(shard->zone)) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "map: shard %s has no valid zone", shard->id);
    }
    if (kelp_map_find(map, shard->id) != (int32_t)index) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "map: shard %s is listed twice", shard->id);
    }
    return KELP_OK;
}

static kelp_status check_entry(const struct kelp_map *map, uint32_t index,
                               struct kelp_error *reterr)
{
    const struct kelp_map_partition *entry = &map->partitions[index];
    if (entry->primary >= map->shard_count || entry->map_epoch == 0) {
        return kelp_fail(reterr, KELP_ERR_FORMAT,
                         "map: partition %u names shard %u of %u, map epoch %llu", index,
                         entry->primary, map->shard_count, (unsigned long long)entry->map_epoch);
    }
    const uint32_t followers[] = {entry->backup, entry->joiner};
    for (uint32_t i = 0; i < KELP_ARRAY_COUNT(followers); i++) {
        if (followers[i] != KELP_MAP_NOBODY &&
            (followers[i] >= map->shard_count || followers[i] == entry->primary)) {
            return kelp_fail(reterr, KELP_ERR_FORMAT,
                             "map: partition %u of shard %u names shard %u of %u as its follower",
                             index, entry->primary, followers[i], map->shard_count);
        }
    }
    if (entry->backup != KELP_MAP_NOBODY && entry->backup == entry->joiner) {
        return kelp_fail(reterr, KELP_ERR_FORMAT,
                         "map: partition %u has shard %u as backup and as joiner", index,
                         entry->backup);
    }
    return KELP_OK;
}

kelp_status kelp_map_check(const struct kelp_map *map, struct kelp_error *reterr)
{
    if (map->generation == 0 || map->serial == 0 || map->shard_count == 0 ||
        map->partition_count == 0) {
        return kelp_fail(reterr, KELP_ERR_FORMAT,
                         "map: generation, serial, shards and partitions are at least 1");
    }
    for (uint32_t i = 0; i < map->shard_count; i++) {
        kelp_status status = check_shard(map, i, reterr);
        if (status != KELP_OK) {
            return status;
        }
    }
    for (uint32_t i = 0; i < map->partition_count; i++) {
        kelp_status status = check_entry(map, i, reterr);
        if (status != KELP_OK) {
            return status;
        }
    }
    return KELP_OK;
}

bool kelp_map_older(const struct kelp_map *a, const struct kelp_map *b)
{
    return a->generation < b->generation ||
           (a->generation == b->generation && a->serial < b->serial);
}

int32_t kelp_map_find(const struct kelp_map *map, const char *id)
{
    for (uint32_t i = 0; i < map->shard_count; i++) {
        if (strcmp(map->shards[i].id, id) == 0) {
            return (int32_t)i;
        }
    }
    return -1;
}

uint32_t kelp_map_load(const struct kelp_map *map, uint32_t shard)
{
    uint32_t load = 0;
    for (uint32_t i = 0; i < map->partition_count; i++) {
        load += map->partitions[i].primary == shard ? 1 : 0;
    }
    return load;
}

int kelp_map_compare_ids(const char *a, const char *b)
{
    size_t a_length = strlen(a);
    size_t b_length = strlen(b);
    if (a_length != b_length) {
        return a_length < b_length ? -1 : 1;
    }
    return strcmp(a, b);
}

/*
 * Changes of the map within its generation, as by a failover: first they go to etcd, then to
 * shards, then to workers. The states are drawn in placement.h.
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "common/training/plan.h"
#include "coordinator/core/placement/placement_internal.h"

/* ---- maps ---- */

void kelp__placement_name_write(struct kelp_placement *placement, struct kelp_map *map)
{
    (void)snprintf(map->nonce, sizeof(map->nonce), "%016llx-%llu",
                   (unsigned long long)placement->options.writer,
                   (unsigned long long)++placement->writes);
}

/* Each shard of the map gets an entry, so that a shard that never appears is noticed, too. */
kelp_status kelp__placement_adopt(struct kelp_placement *placement, struct kelp_map *map,
                                  uint64_t now_ms, struct kelp_error *reterr)
{
    for (uint32_t i = 0; i < map->shard_count; i++) {
        if (!kelp__placement_shard_of(placement, map->shards[i].id, now_ms)) {
            return kelp_fail(reterr, KELP_ERR_LIMIT, "more than %d shards",
                             KELP_COORDINATOR_SHARDS_MAX);
        }
    }
    assert(kelp_map_older(&placement->map, map));
    if (map->generation != placement->map.generation) {
        kelp_status status =
            kelp_replicas_reset(&placement->replicas, map->partition_count, reterr);
        if (status != KELP_OK) {
            return status;
        }
    }
    kelp_map_fini(&placement->map);
    placement->map = *map;
    *map = (struct kelp_map){0};
    placement->unarranged = true;
    placement->told = false;
    placement->tell_ms = now_ms + KELP_COORDINATOR_TELL_MS;
    return KELP_OK;
}

/* ---- failover ---- */

typedef bool lost_by(const struct kelp_placement *placement, const struct kelp_map_shard *mapped,
                     uint64_t now_ms);

static uint64_t incarnation_of(const struct kelp_map *map, uint32_t shard)
{
    return map->shards[shard].incarnation;
}

/* Has the primary of the entry not heard the follower for this long? */
static bool is_silent(const struct kelp_placement *placement,
                      const struct kelp_map_partition *entry, uint32_t follower, uint64_t for_ms,
                      uint64_t now_ms)
{
    const struct kelp_map *map = &placement->map;
    return follower != KELP_MAP_NOBODY &&
           kelp_doubts_last(&placement->doubts, incarnation_of(map, entry->primary),
                            incarnation_of(map, follower), for_ms, now_ms);
}

static void find_silent(const struct kelp_placement *placement, uint64_t now_ms,
                        struct kelp_failover_silent *ret_silent)
{
    /* A follower is doubted after half of detect_ms. */
    uint64_t backup_ms = placement->options.detect_ms / 2 + KELP_COORDINATOR_DROP_MS;
    for (uint32_t i = 0; i < placement->map.partition_count; i++) {
        const struct kelp_map_partition *entry = &placement->map.partitions[i];
        ret_silent[i] = (struct kelp_failover_silent){
            .backup = is_silent(placement, entry, entry->backup, backup_ms, now_ms),
            .joiner = is_silent(placement, entry, entry->joiner, KELP_COORDINATOR_DROP_MS, now_ms)};
    }
}

/* What becomes of the entries when those shards are lost. */
static enum kelp_failover_verdict judge(const struct kelp_placement *placement, lost_by *is_lost,
                                        uint64_t now_ms, struct kelp_map_partition *ret_entries)
{
    struct kelp_failover_shard shards[KELP_COORDINATOR_SHARDS_MAX];
    struct kelp_failover_silent silent[KELP_PARTITIONS_MAX];
    const struct kelp_map *map = &placement->map;
    for (uint32_t i = 0; i < map->shard_count; i++) {
        const struct kelp_placement_shard *shard =
            kelp__placement_find(placement, map->shards[i].id);
        shards[i] = (struct kelp_failover_shard){
            .lost = is_lost(placement, &map->shards[i], now_ms),
            .ready = kelp__placement_hears(placement, &map->shards[i]) &&
                     shard->loaded_generation == map->generation};
    }
    find_silent(placement, now_ms, silent);
    return kelp_failover_of(map, shards, silent, &placement->replicas, ret_entries);
}

void kelp__placement_begin_change(struct kelp_placement *placement, struct kelp_map *next,
                                  struct kelp_placement_actions *actions)
{
    kelp_map_drop_idle(next);
    next->serial++;
    kelp__placement_name_write(placement, next);
    kelp_map_fini(&placement->next);
    placement->next = *next;
    *next = (struct kelp_map){0};
    placement->change = KELP_CHANGE_WRITING;
    kelp__placement_want(actions, KELP_PLACEMENT_DO_WRITE_CHANGE);
}

/* Say which shard is lost, the first of several, and what it was. */
static void say_why(struct kelp_placement *placement, const struct kelp_map *next, lost_by *is_lost,
                    uint64_t now_ms)
{
    placement->loses = false;
    placement->fails_over = false;
    for (uint32_t i = 0; i < next->partition_count; i++) {
        if (next->partitions[i].primary != placement->map.partitions[i].primary) {
            placement->fails_over = true;
        }
    }
    for (uint32_t i = 0; i < next->shard_count && !placement->loses; i++) {
        if (is_lost(placement, &next->shards[i], now_ms)) {
            placement->loses = true;
            (void)snprintf(placement->loss, sizeof(placement->loss), "%s", next->shards[i].id);
            (void)snprintf(placement->because, sizeof(placement->because), "%s is lost",
                           next->shards[i].id);
        }
    }
}

/* Drop a follower that its primary does not hear, although the leader does. */
static void drop_one(struct kelp_placement *placement, uint32_t primary, uint32_t follower,
                     uint64_t now_ms)
{
    const struct kelp_map *map = &placement->map;
    if (kelp_doubts_avoid(&placement->doubts, incarnation_of(map, primary),
                          incarnation_of(map, follower), now_ms)) {
        return; /* noted already, for another partition */
    }
    kelp_doubts_drop(&placement->doubts, incarnation_of(map, primary),
                     incarnation_of(map, follower), now_ms);
    if (!placement->loses) {
        (void)snprintf(placement->because, sizeof(placement->because), "%s does not hear %s",
                       map->shards[primary].id, map->shards[follower].id);
    }
}

static void drop_silent(struct kelp_placement *placement, const struct kelp_map *next,
                        uint64_t now_ms)
{
    struct kelp_failover_silent silent[KELP_PARTITIONS_MAX];
    find_silent(placement, now_ms, silent);
    for (uint32_t i = 0; i < next->partition_count; i++) {
        const struct kelp_map_partition *before = &placement->map.partitions[i];
        if (next->partitions[i].primary != before->primary) {
            continue;
        }
        if (silent[i].backup) {
            drop_one(placement, before->primary, before->backup, now_ms);
        }
        if (silent[i].joiner) {
            drop_one(placement, before->primary, before->joiner, now_ms);
        }
    }
}

/* Write a map with the entries that the failover gives. */
static kelp_status change(struct kelp_placement *placement, lost_by *is_lost, uint64_t now_ms,
                          struct kelp_placement_actions *actions, struct kelp_error *reterr)
{
    struct kelp_map next;
    if (kelp_map_copy(&placement->map, &next) != KELP_OK) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a map");
    }
    enum kelp_failover_verdict verdict = judge(placement, is_lost, now_ms, next.partitions);
    assert(verdict == KELP_FAILOVER_CHANGE);
    (void)verdict;
    say_why(placement, &next, is_lost, now_ms);
    drop_silent(placement, &next, now_ms);
    kelp__placement_begin_change(placement, &next, actions);
    return KELP_OK;
}

kelp_status kelp__placement_fail_over(struct kelp_placement *placement, uint64_t now_ms,
                                      struct kelp_placement_actions *actions,
                                      enum kelp_failover_verdict *ret_verdict,
                                      struct kelp_error *reterr)
{
    static lost_by *const witnesses[] = {kelp__placement_suspected, kelp__placement_lost};
    *ret_verdict = KELP_FAILOVER_NOTHING;
    for (size_t i = 0; i < KELP_ARRAY_COUNT(witnesses); i++) {
        enum kelp_failover_verdict verdict = judge(placement, witnesses[i], now_ms, NULL);
        *ret_verdict = verdict;
        if (verdict == KELP_FAILOVER_NOTHING) {
            return KELP_OK;
        }
        if (verdict == KELP_FAILOVER_CHANGE) {
            bool may = placement->change == KELP_CHANGE_NONE && now_ms >= placement->change_at_ms;
            return may ? change(placement, witnesses[i], now_ms, actions, reterr) : KELP_OK;
        }
    }
    return KELP_OK;
}

/* ---- answers of etcd ---- */

static kelp_status take_change(struct kelp_placement *placement, struct kelp_map *map,
                               uint64_t now_ms, struct kelp_placement_actions *actions,
                               struct kelp_error *reterr)
{
    for (uint32_t i = 0; i < placement->map.shard_count; i++) {
        const struct kelp_map_shard *mapped = &placement->map.shards[i];
        if (placement->loses && kelp_map_find(map, mapped->id) < 0) {
            kelp__placement_find(placement, mapped->id)->dropped = mapped->incarnation;
        }
    }
    kelp_status status = kelp__placement_adopt(placement, map, now_ms, reterr);
    if (status != KELP_OK) {
        return status;
    }
    placement->move_at_ms = now_ms + KELP_COORDINATOR_MOVE_MS;
    placement->gather_ms = now_ms + KELP_COORDINATOR_GATHER_MS;
    if (placement->loses) {
        kelp__placement_want_loss(actions, placement->loss);
    }
    kelp__placement_act(actions, (struct kelp_placement_action){
                                     .kind = KELP_PLACEMENT_DO_CHANGE_TO_SHARDS,
                                     .change = {placement->loses, placement->fails_over}});
    return KELP_OK;
}

/* The change was not written: arrange again later, when another change may be needed. */
static void try_again(struct kelp_placement *placement, uint64_t now_ms)
{
    placement->unarranged = true;
    placement->change_at_ms = now_ms + KELP_COORDINATOR_RETRY_MS;
}

kelp_status kelp__placement_change_written(struct kelp_placement *placement,
                                           enum kelp_placement_written written, uint64_t now_ms,
                                           struct kelp_placement_actions *actions,
                                           struct kelp_error *reterr)
{
    assert(placement->change == KELP_CHANGE_WRITING);
    placement->change = KELP_CHANGE_NONE;
    switch (written) {
    case KELP_WRITTEN_OK:
        return take_change(placement, &placement->next, now_ms, actions, reterr);
    case KELP_WRITTEN_NOT:
        try_again(placement, now_ms);
        break;
    case KELP_WRITTEN_UNKNOWN:
        placement->change = KELP_CHANGE_READING;
        kelp__placement_want(actions, KELP_PLACEMENT_DO_READ_MAP);
        break;
    }
    return KELP_OK;
}

kelp_status kelp__placement_change_read(struct kelp_placement *placement, struct kelp_map *found,
                                        uint64_t now_ms, struct kelp_placement_actions *actions,
                                        struct kelp_error *reterr)
{
    assert(placement->change == KELP_CHANGE_READING);
    placement->change = KELP_CHANGE_NONE;
    if (found->generation == placement->map.generation && kelp_map_older(&placement->map, found)) {
        return take_change(placement, found, now_ms, actions, reterr);
    }
    try_again(placement, now_ms);
    return KELP_OK;
}

/* ---- telling workers ---- */

/* Has every primary that we hear taken the current map? */
static bool primaries_took(const struct kelp_placement *placement)
{
    const struct kelp_map *map = &placement->map;
    for (uint32_t i = 0; i < map->shard_count; i++) {
        const struct kelp_placement_shard *shard =
            kelp__placement_find(placement, map->shards[i].id);
        bool took = shard->loaded_generation == map->generation &&
                    (map->serial == 1 || (shard->taken_generation == map->generation &&
                                          shard->taken_serial >= map->serial));
        if (!took && kelp__placement_hears(placement, &map->shards[i]) &&
            kelp_map_load(map, i) > 0) {
            return false;
        }
    }
    return true;
}

void kelp__placement_tell(struct kelp_placement *placement, uint64_t now_ms,
                          struct kelp_placement_actions *actions)
{
    if (!placement->told && (now_ms >= placement->tell_ms || primaries_took(placement))) {
        placement->told = true;
        kelp__placement_want(actions, KELP_PLACEMENT_DO_CHANGE_TO_WORKERS);
    }
}

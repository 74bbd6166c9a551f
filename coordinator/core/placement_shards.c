/*
 * What a placement knows of shards: the table, and what a shard of the map is doing.
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "coordinator/core/placement_internal.h"

/* ---- the table ---- */

struct kelp_placement_shard *kelp__placement_find(const struct kelp_placement *placement,
                                                  const char *id)
{
    for (uint32_t i = 0; i < placement->shard_count; i++) {
        if (strcmp(placement->shards[i].at.id, id) == 0) {
            return &placement->shards[i];
        }
    }
    return NULL;
}

const struct kelp_placement_shard *kelp_placement_find(const struct kelp_placement *placement,
                                                       const char *id)
{
    return kelp__placement_find(placement, id);
}

bool kelp__placement_ready(const struct kelp_placement_shard *shard)
{
    return shard->registered && shard->connected &&
           shard->connected_incarnation == shard->at.incarnation;
}

uint32_t kelp__placement_ready_count(const struct kelp_placement *placement)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < placement->shard_count; i++) {
        count += kelp__placement_ready(&placement->shards[i]) ? 1 : 0;
    }
    return count;
}

/* The entry of that id, a new one in the order of names if need be; NULL: the table is full. */
struct kelp_placement_shard *kelp__placement_shard_of(struct kelp_placement *placement,
                                                      const char *id, uint64_t now_ms)
{
    struct kelp_placement_shard *shard = kelp__placement_find(placement, id);
    if (shard || placement->shard_count == KELP_COORDINATOR_SHARDS_MAX) {
        return shard;
    }
    uint32_t at = 0;
    while (at < placement->shard_count &&
           kelp_map_compare_ids(placement->shards[at].at.id, id) < 0) {
        at++;
    }
    shard = &placement->shards[at];
    memmove(shard + 1, shard, (placement->shard_count - at) * sizeof(*shard));
    *shard = (struct kelp_placement_shard){.changed_ms = now_ms};
    (void)snprintf(shard->at.id, sizeof(shard->at.id), "%s", id);
    placement->shard_count++;
    return shard;
}

/* ---- what a shard of the map is doing ---- */

bool kelp__placement_overdue(const struct kelp_placement *placement,
                             const struct kelp_placement_shard *shard, uint64_t now_ms)
{
    return now_ms >= shard->changed_ms &&
           now_ms - shard->changed_ms >= placement->options.shard_wait_ms;
}

void kelp_placement_progressed(struct kelp_placement *placement, uint64_t now_ms)
{
    placement->progress_ms = now_ms;
}

static bool goes_on(const struct kelp_placement *placement, uint64_t now_ms)
{
    return placement->progress_ms != 0 &&
           now_ms < placement->progress_ms + placement->options.shard_wait_ms;
}

/* A process that is stopped loses its lease within this; one that lives and hangs does not. */
static bool hangs(const struct kelp_placement_shard *shard, uint64_t now_ms)
{
    return !shard->registered || now_ms >= shard->changed_ms + KELP_COORDINATOR_HANG_MS;
}

/* Does a peer say so, just now? */
static bool doubted(const struct kelp_placement_shard *shard, uint64_t incarnation, uint64_t now_ms)
{
    return shard->doubted_incarnation == incarnation &&
           now_ms < shard->doubted_ms + KELP_COORDINATOR_DOUBT_MS;
}

bool kelp__placement_suspected(const struct kelp_placement *placement,
                               const struct kelp_map_shard *mapped, uint64_t now_ms)
{
    const struct kelp_placement_shard *shard = kelp__placement_find(placement, mapped->id);
    assert(shard); /* taking a map makes an entry for each of its shards */
    if (shard->registered && shard->at.incarnation != mapped->incarnation) {
        return true;
    }
    if (shard->connected) {
        return false;
    }
    bool silent = kelp__placement_overdue(placement, shard, now_ms) && !goes_on(placement, now_ms);
    return shard->broken || silent || doubted(shard, mapped->incarnation, now_ms);
}

bool kelp__placement_lost(const struct kelp_placement *placement,
                          const struct kelp_map_shard *mapped, uint64_t now_ms)
{
    const struct kelp_placement_shard *shard = kelp__placement_find(placement, mapped->id);
    assert(shard); /* taking a map makes an entry for each of its shards */
    if (shard->registered && shard->at.incarnation != mapped->incarnation) {
        return true;
    }
    return (!shard->registered || shard->broken) && !shard->connected &&
           kelp__placement_overdue(placement, shard, now_ms) && !goes_on(placement, now_ms);
}

bool kelp_placement_silent(const struct kelp_placement *placement,
                           const struct kelp_placement_shard *shard, uint64_t now_ms)
{
    int32_t index = kelp_map_find(&placement->map, shard->at.id);
    bool ours = index >= 0 && shard->at.incarnation == placement->map.shards[index].incarnation;
    bool dropped = shard->dropped != 0 && shard->at.incarnation == shard->dropped;
    return shard->silent ||
           (((ours && !goes_on(placement, now_ms)) || dropped) && !shard->connected &&
            !shard->broken && kelp__placement_overdue(placement, shard, now_ms) &&
            hangs(shard, now_ms));
}

bool kelp__placement_hears(const struct kelp_placement *placement,
                           const struct kelp_map_shard *mapped)
{
    const struct kelp_placement_shard *shard = kelp__placement_find(placement, mapped->id);
    return shard && shard->connected && shard->connected_incarnation == mapped->incarnation;
}

const char *kelp__placement_first_lost(const struct kelp_placement *placement, uint64_t now_ms)
{
    for (uint32_t i = 0; i < placement->map.shard_count; i++) {
        if (kelp__placement_lost(placement, &placement->map.shards[i], now_ms)) {
            return placement->map.shards[i].id;
        }
    }
    return NULL;
}

const char *kelp__placement_first_unreached(const struct kelp_placement *placement)
{
    for (uint32_t i = 0; i < placement->map.shard_count; i++) {
        if (!kelp__placement_hears(placement, &placement->map.shards[i])) {
            return placement->map.shards[i].id;
        }
    }
    return NULL;
}

const char *kelp__placement_first_unloaded(const struct kelp_placement *placement)
{
    for (uint32_t i = 0; i < placement->map.shard_count; i++) {
        const struct kelp_placement_shard *shard =
            kelp__placement_find(placement, placement->map.shards[i].id);
        if (shard->loaded_generation != placement->map.generation) {
            return shard->at.id;
        }
    }
    return NULL;
}

/* Storage is waited for, by name, but perhaps not for ever. */
const char *kelp__placement_missing_storage(const struct kelp_placement *placement, uint64_t now_ms,
                                            const struct kelp_placement_shard **ret_shard)
{
    const struct kelp_placement_shard *waits = NULL;
    for (uint32_t i = 0; i < placement->map.shard_count; i++) {
        const struct kelp_placement_shard *shard =
            kelp__placement_find(placement, placement->map.shards[i].id);
        if (shard->waiting[0] == '\0' || shard->loaded_generation == placement->map.generation) {
            continue;
        }
        if (!waits) {
            waits = shard;
        }
        uint32_t limit_ms = placement->options.storage_wait_ms;
        if (limit_ms > 0 && now_ms >= shard->waiting_ms + limit_ms) {
            *ret_shard = shard;
            return shard->waiting;
        }
    }
    *ret_shard = waits;
    return NULL;
}

/* Shards that left for good need no entry: not registered, not connected, in no map. */
void kelp__placement_forget(struct kelp_placement *placement, uint64_t now_ms)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < placement->shard_count; i++) {
        struct kelp_placement_shard *shard = &placement->shards[i];
        shard->silent = shard->silent ||
                        (shard->dropped != 0 && kelp_placement_silent(placement, shard, now_ms));
        bool wanted = shard->registered || shard->connected || shard->silent ||
                      kelp_map_find(&placement->map, shard->at.id) >= 0 ||
                      ((placement->state == KELP_PLACEMENT_OPENING ||
                        placement->change != KELP_CHANGE_NONE) &&
                       kelp_map_find(&placement->next, shard->at.id) >= 0);
        if (wanted) {
            if (kept != i) {
                placement->shards[kept] = *shard;
            }
            kept++;
        }
    }
    placement->shard_count = kept;
}

/*
 * What a placement knows of shards: the table, and the state of each shard of the map.
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "coordinator/core/placement/placement_internal.h"

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
           shard->connected_incarnation == shard->at.incarnation &&
           shard->let_go != shard->at.incarnation;
}

static uint32_t count_ready(const struct kelp_placement *placement, bool draining)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < placement->shard_count; i++) {
        const struct kelp_placement_shard *shard = &placement->shards[i];
        count += kelp__placement_ready(shard) && shard->draining == draining ? 1 : 0;
    }
    return count;
}

bool kelp__placement_usable(const struct kelp_placement *placement,
                            const struct kelp_placement_shard *shard)
{
    return kelp__placement_ready(shard) && (!shard->draining || count_ready(placement, false) == 0);
}

uint32_t kelp__placement_usable_count(const struct kelp_placement *placement)
{
    uint32_t count = count_ready(placement, false);
    return count > 0 ? count : count_ready(placement, true);
}

/* The entry of that id, which is created in the order of names if need be; NULL: the table is
 * full. */
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

/* ---- shards that leave ---- */

static bool told_to_end(const struct kelp_placement_shard *shard)
{
    return shard->leaving != 0 && shard->leaving == shard->at.incarnation;
}

static bool named(const struct kelp_placement *placement, const struct kelp_placement_shard *shard)
{
    for (uint32_t i = 0; i < placement->drain_count; i++) {
        if (placement->drains[i].incarnation == shard->at.incarnation &&
            strcmp(placement->drains[i].id, shard->at.id) == 0) {
            return true;
        }
    }
    return false;
}

/* Is there a shard with a lease that stays? */
static bool somebody_stays(const struct kelp_placement *placement, bool names_count)
{
    for (uint32_t i = 0; i < placement->shard_count; i++) {
        const struct kelp_placement_shard *shard = &placement->shards[i];
        if (shard->registered && !told_to_end(shard) && !(names_count && named(placement, shard))) {
            return true;
        }
    }
    return false;
}

void kelp__placement_find_drained(struct kelp_placement *placement, uint64_t now_ms)
{
    bool names_count = somebody_stays(placement, true);
    for (uint32_t i = 0; i < placement->shard_count; i++) {
        struct kelp_placement_shard *shard = &placement->shards[i];
        bool draining = told_to_end(shard) || (names_count && named(placement, shard));
        shard->draining_ms = shard->draining ? shard->draining_ms : now_ms;
        placement->unarranged = placement->unarranged || draining != shard->draining;
        shard->draining = draining;
    }
}

static bool has_role(const struct kelp_placement *placement, const char *id)
{
    bool opens = placement->state == KELP_PLACEMENT_OPENING;
    return kelp_map_find(&placement->map, id) >= 0 ||
           ((opens || placement->change != KELP_CHANGE_NONE) &&
            kelp_map_find(&placement->next, id) >= 0);
}

void kelp_placement_let_go(struct kelp_placement *placement, const char *id, uint64_t incarnation)
{
    struct kelp_placement_shard *shard = kelp__placement_find(placement, id);
    if (shard && shard->at.incarnation == incarnation) {
        shard->let_go = incarnation;
    }
}

enum kelp_placement_leave kelp_placement_leave(const struct kelp_placement *placement,
                                               const struct kelp_placement_shard *shard)
{
    const bool let_go = shard->let_go != 0 && shard->let_go == shard->at.incarnation;
    if ((!shard->draining && !let_go) || !placement->map_read) {
        return KELP_LEAVE_NOT;
    }
    if (kelp_placement_settled(placement)) {
        return told_to_end(shard) ? KELP_LEAVE_OVER : KELP_LEAVE_NOT;
    }
    /* Workers that know the newest map send the shard no requests. */
    bool told = placement->told || placement->state != KELP_PLACEMENT_RUNNING;
    if (told && !has_role(placement, shard->at.id)) {
        return KELP_LEAVE_EMPTY;
    }
    return told_to_end(shard) && !somebody_stays(placement, false) ? KELP_LEAVE_LAST
                                                                   : KELP_LEAVE_NOT;
}

/* ---- the state of a shard of the map ---- */

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

/* A stopped process loses its lease within this time; a process that lives and hangs keeps it. */
static bool hangs(const struct kelp_placement_shard *shard, uint64_t now_ms)
{
    return !shard->registered || now_ms >= shard->changed_ms + KELP_COORDINATOR_HANG_MS;
}

/* Has a peer reported doubts recently? */
static bool doubted(const struct kelp_placement_shard *shard, uint64_t incarnation, uint64_t now_ms)
{
    return shard->doubted_incarnation == incarnation &&
           now_ms < shard->doubted_ms + KELP_COORDINATOR_DOUBT_MS;
}

bool kelp__placement_suspected(const struct kelp_placement *placement,
                               const struct kelp_map_shard *mapped, uint64_t now_ms)
{
    const struct kelp_placement_shard *shard = kelp__placement_find(placement, mapped->id);
    assert(shard); /* made when the map was taken */
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
    assert(shard); /* made when the map was taken */
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

/* The storage that shards wait for, perhaps for a limited time; NULL: none. */
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

/* Forget shards that left for good: not registered, not connected, in no map. */
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

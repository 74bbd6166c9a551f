/*
 * Moves of partitions: the next moves of the arrangement become changes of the map.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/core/arrangement/arrangement.h"
#include "coordinator/core/placement/placement_internal.h"

/* The input of the arrangement; owned. */
struct layout {
    struct kelp_arrangement_input input;
    struct kelp_arrangement_shard *shards;
    struct kelp_arrangement_replica *replicas;
    struct kelp_arrangement_move *moves;
    struct kelp_arrangement_pair avoided[KELP_COORDINATOR_DOUBTS_MAX];
};

static void layout_fini(struct layout *layout)
{
    free(layout->shards);
    free(layout->replicas);
    free(layout->moves);
    *layout = (struct layout){.shards = NULL};
}

static kelp_status layout_init(struct layout *layout, const struct kelp_placement *placement,
                               uint32_t partition_count, struct kelp_error *reterr)
{
    size_t partitions = (size_t)partition_count + 1;
    *layout = (struct layout){
        .shards = calloc((size_t)placement->shard_count + 1, sizeof(*layout->shards)),
        .replicas = calloc(partitions, sizeof(*layout->replicas)),
        .moves = calloc(partitions, sizeof(*layout->moves))};
    if (!layout->shards || !layout->replicas || !layout->moves) {
        layout_fini(layout);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory to arrange %u partitions",
                         partition_count);
    }
    uint32_t count = 0;
    for (uint32_t i = 0; i < placement->shard_count; i++) {
        const struct kelp_placement_shard *shard = &placement->shards[i];
        if (kelp__placement_ready(shard)) {
            layout->shards[count++] =
                (struct kelp_arrangement_shard){.at = &shard->at, .draining = shard->draining};
        }
    }
    layout->input = (struct kelp_arrangement_input){.shards = layout->shards,
                                                    .shard_count = count,
                                                    .replicas = layout->replicas,
                                                    .shards_wanted = placement->options.shards,
                                                    .replicas_wanted = placement->options.replicas,
                                                    .joiners_max = KELP_COORDINATOR_JOINERS_MAX,
                                                    .joiners_each = KELP_COORDINATOR_JOINERS_EACH,
                                                    .leads_max = KELP_COORDINATOR_LEADS_MAX};
    return KELP_OK;
}

/* ---- opening ---- */

/* If all shards are being drained, use them anyway. */
static void use_who_is_there(struct layout *layout)
{
    const uint32_t count = layout->input.shard_count;
    bool any_stays = false;
    for (uint32_t i = 0; i < count; i++) {
        any_stays = any_stays || !layout->shards[i].draining;
    }
    for (uint32_t i = 0; i < count && !any_stays; i++) {
        layout->shards[i].draining = false;
    }
}

kelp_status kelp__placement_lay_out(const struct kelp_placement *placement, struct kelp_map *map,
                                    struct kelp_error *reterr)
{
    struct layout layout;
    kelp_status status = layout_init(&layout, placement, map->partition_count, reterr);
    struct kelp_arrangement_entry *entries =
        calloc((size_t)map->partition_count + 1, sizeof(*entries));
    if (status != KELP_OK || !entries) {
        layout_fini(&layout);
        free(entries);
        return KELP_ERR_NO_MEMORY;
    }
    use_who_is_there(&layout);
    status = kelp_arrangement_open(&layout.input, map->partition_count, entries);
    for (uint32_t i = 0; status == KELP_OK && i < map->partition_count; i++) {
        struct kelp_map_partition entry = {.joiner = KELP_MAP_NOBODY, .backup = KELP_MAP_NOBODY};
        const struct kelp_map_shard *primary = layout.shards[entries[i].primary].at;
        status = kelp_map_add(map, primary, &entry.primary, reterr);
        if (status == KELP_OK && entries[i].backup != KELP_MAP_NOBODY) {
            status = kelp_map_add(map, layout.shards[entries[i].backup].at, &entry.backup, reterr);
        }
        entry.map_epoch = kelp_map_next_epoch(&placement->map, i, primary, entry.backup);
        map->partitions[i] = entry;
    }
    free(entries);
    layout_fini(&layout);
    if (status == KELP_OK) {
        kelp_map_drop_idle(map);
    }
    return status;
}

/* ---- moving ---- */

static void fill_replicas(const struct kelp_placement *placement, const bool *owes,
                          struct kelp_arrangement_replica *replicas)
{
    for (uint32_t i = 0; i < placement->map.partition_count; i++) {
        const struct kelp_replica_report *report =
            kelp_replicas_of(&placement->replicas, &placement->map, i);
        replicas[i] = (struct kelp_arrangement_replica){
            .caught_up = report && report->joiner_in_sync, .captured = owes && owes[i]};
    }
}

/* "attach 3, promote 1", for the log. */
static void say_moves(const struct layout *layout, uint32_t count,
                      char text[KELP_COORDINATOR_REASON_MAX + 1])
{
    size_t used = 0;
    text[0] = '\0';
    for (int kind = 0; kind < KELP_ARRANGEMENT_KIND_COUNT; kind++) {
        uint32_t number = 0;
        for (uint32_t i = 0; i < count; i++) {
            number += layout->moves[i].kind == (enum kelp_arrangement_kind)kind ? 1 : 0;
        }
        if (number > 0) {
            used += (size_t)snprintf(text + used, KELP_COORDINATOR_REASON_MAX + 1 - used, "%s%s %u",
                                     used > 0 ? ", " : "",
                                     kelp_arrangement_kind_text((enum kelp_arrangement_kind)kind),
                                     number);
        }
    }
}

static kelp_status seat(const struct layout *layout, uint32_t shard, struct kelp_map *map,
                        uint32_t *ret_index, struct kelp_error *reterr)
{
    *ret_index = KELP_MAP_NOBODY;
    return shard == KELP_MAP_NOBODY
               ? KELP_OK
               : kelp_map_add(map, layout->shards[shard].at, ret_index, reterr);
}

static kelp_status apply_moves(const struct layout *layout, uint32_t count, struct kelp_map *map,
                               struct kelp_error *reterr)
{
    for (uint32_t i = 0; i < count; i++) {
        const struct kelp_arrangement_move *move = &layout->moves[i];
        struct kelp_map_partition entry = map->partitions[move->partition];
        entry.map_epoch++;
        kelp_status status = seat(layout, move->entry.primary, map, &entry.primary, reterr);
        if (status == KELP_OK) {
            status = seat(layout, move->entry.backup, map, &entry.backup, reterr);
        }
        if (status == KELP_OK) {
            status = seat(layout, move->entry.joiner, map, &entry.joiner, reterr);
        }
        if (status != KELP_OK) {
            return status;
        }
        map->partitions[move->partition] = entry;
    }
    return KELP_OK;
}

/* The next moves, with captures that primaries still owe or as if they owed none. */
static kelp_status arrange(const struct kelp_placement *placement, const bool *owes,
                           struct layout *layout, uint32_t *ret_count)
{
    fill_replicas(placement, owes, layout->replicas);
    return kelp_arrangement_next(&layout->input, layout->moves, ret_count);
}

/* Joiners catch up one after the other. Those that have caught up get their places together:
 * their copies are safe already, and each change of the map costs a part of a step. */
static bool gathers(const struct kelp_placement *placement, uint64_t now_ms)
{
    if (now_ms >= placement->gather_ms) {
        return false;
    }
    for (uint32_t i = 0; i < placement->map.partition_count; i++) {
        const struct kelp_replica_report *report =
            kelp_replicas_of(&placement->replicas, &placement->map, i);
        if (placement->map.partitions[i].joiner != KELP_MAP_NOBODY &&
            !(report && report->joiner_in_sync)) {
            return true;
        }
    }
    return false;
}

/* Avoid pairs that did not hear each other, and try them again later. */
static void avoid_pairs(struct kelp_placement *placement, struct layout *layout, uint64_t now_ms)
{
    uint64_t until_ms;
    layout->input.avoided = layout->avoided;
    layout->input.avoided_count =
        kelp_doubts_avoided(&placement->doubts, now_ms, layout->avoided, &until_ms);
    if (until_ms != 0 && (placement->look_ms == 0 || until_ms < placement->look_ms)) {
        placement->look_ms = until_ms;
    }
}

static kelp_status write_moves(struct kelp_placement *placement, const struct layout *layout,
                               uint32_t count, struct kelp_placement_actions *actions,
                               struct kelp_error *reterr)
{
    struct kelp_map next;
    if (kelp_map_copy(&placement->map, &next) != KELP_OK) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a map");
    }
    kelp_status status = apply_moves(layout, count, &next, reterr);
    if (status != KELP_OK) {
        kelp_map_fini(&next);
        return status;
    }
    say_moves(layout, count, placement->because);
    placement->loses = false;
    placement->fails_over = false;
    kelp__placement_begin_change(placement, &next, actions);
    return KELP_OK;
}

kelp_status kelp__placement_move_partitions(struct kelp_placement *placement,
                                            const struct kelp_placement_event *event,
                                            struct kelp_placement_actions *actions,
                                            struct kelp_error *reterr)
{
    struct layout layout;
    uint32_t count = 0;
    const bool waits = placement->promotion_waits && event->owes;
    /* A capture that a promotion waited for is made or given up: promote before the next order. */
    placement->unarranged = placement->unarranged || placement->promotion_waits != waits;
    if (!placement->unarranged || !placement->told || gathers(placement, event->now_ms) ||
        placement->change != KELP_CHANGE_NONE || event->now_ms < placement->change_at_ms ||
        event->now_ms < placement->move_at_ms || kelp__placement_first_unreached(placement)) {
        return KELP_OK;
    }
    kelp_status status = layout_init(&layout, placement, placement->map.partition_count, reterr);
    if (status != KELP_OK) {
        return status;
    }
    layout.input.map = &placement->map;
    layout.input.still = event->still;
    placement->look_ms = event->still || event->owes ? event->now_ms : 0;
    avoid_pairs(placement, &layout, event->now_ms);
    status = arrange(placement, event->owes, &layout, &count);
    placement->promotion_waits = waits;
    if (status == KELP_OK && count > 0) {
        status = write_moves(placement, &layout, count, actions, reterr);
    } else if (status == KELP_OK && event->owes) {
        status = arrange(placement, NULL, &layout, &count);
        placement->promotion_waits = count > 0;
    }
    placement->unarranged = status != KELP_OK;
    layout_fini(&layout);
    return status;
}

/*
 * Which shards are used, and what lies on them now.
 *
 * Shards that live and do not drain are used. If there are more than wanted, shards that host
 * something are kept before empty ones, and then names decide, so that an operator who ends
 * processes can know which ones become empty. With two replicas, if all chosen shards are in one
 * zone, the last one is exchanged for a shard of another zone.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/core/arrangement/arrangement_internal.h"

#define NOBODY KELP_MAP_NOBODY

/* ---- the map's shards among those that live ---- */

static uint32_t find_live(const struct kelp_arrangement_input *input,
                          const struct kelp_map_shard *mapped)
{
    for (uint32_t i = 0; i < input->shard_count; i++) {
        const struct kelp_map_shard *at = input->shards[i].at;
        if (at->incarnation == mapped->incarnation && strcmp(at->id, mapped->id) == 0) {
            return i;
        }
    }
    return NOBODY;
}

static kelp_status translate_entries(struct kelp__goal *goal,
                                     const struct kelp_arrangement_input *input)
{
    const struct kelp_map *map = input->map;
    uint32_t *live = calloc((size_t)map->shard_count + 1, sizeof(*live));
    if (!live) {
        return KELP_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < map->shard_count; i++) {
        live[i] = find_live(input, &map->shards[i]);
    }
    for (uint32_t i = 0; i < goal->partition_count; i++) {
        const struct kelp_map_partition *entry = &map->partitions[i];
        goal->entries[i] = (struct kelp_arrangement_entry){
            .primary = live[entry->primary],
            .backup = entry->backup == NOBODY ? NOBODY : live[entry->backup],
            .joiner = entry->joiner == NOBODY ? NOBODY : live[entry->joiner],
        };
    }
    free(live);
    return KELP_OK;
}

/* ---- seats ---- */

static bool hosts(const struct kelp__goal *goal, uint32_t shard)
{
    for (uint32_t i = 0; i < goal->partition_count; i++) {
        const struct kelp_arrangement_entry *entry = &goal->entries[i];
        if (entry->primary == shard || entry->backup == shard || entry->joiner == shard) {
            return true;
        }
    }
    return false;
}

static bool same_zone(const struct kelp_arrangement_input *input, uint32_t a, uint32_t b)
{
    return strcmp(input->shards[a].at->zone, input->shards[b].at->zone) == 0;
}

/* If all chosen shards are in one zone, exchange the last for the first of another zone, if any. */
static void choose_zone(const struct kelp_arrangement_input *input, bool *used)
{
    uint32_t first = NOBODY;
    uint32_t last = NOBODY;
    uint32_t other = NOBODY;
    for (uint32_t i = 0; i < input->shard_count; i++) {
        if (used[i] && first == NOBODY) {
            first = i;
        }
        last = used[i] ? i : last;
    }
    for (uint32_t i = 0; first != NOBODY && i < input->shard_count; i++) {
        bool differs = !input->shards[i].draining && !same_zone(input, first, i);
        if (differs && used[i]) {
            return;
        }
        other = differs && other == NOBODY ? i : other;
    }
    if (other != NOBODY && last != first) {
        used[last] = false;
        used[other] = true;
    }
}

static void choose(const struct kelp__goal *goal, const struct kelp_arrangement_input *input,
                   bool *used)
{
    uint32_t count = 0;
    for (int hosting = 1; hosting >= 0; hosting--) {
        for (uint32_t i = 0; i < input->shard_count && count < input->shards_wanted; i++) {
            if (!input->shards[i].draining && !used[i] && hosts(goal, i) == (hosting == 1)) {
                used[i] = true;
                count++;
            }
        }
    }
    if (input->replicas_wanted > 1) {
        choose_zone(input, used);
    }
}

/* Number the zones: a seat's zone is the first seat of the same zone, or itself if zones do not
 * matter. */
static void number_zones(struct kelp__goal *goal, const struct kelp_arrangement_input *input)
{
    bool several = false;
    for (uint32_t seat = 1; seat < goal->seat_count; seat++) {
        several = several || !same_zone(input, goal->shard[0], goal->shard[seat]);
    }
    for (uint32_t seat = 0; seat < goal->seat_count; seat++) {
        uint32_t zone = 0;
        while (zone < seat && !same_zone(input, goal->shard[zone], goal->shard[seat])) {
            zone++;
        }
        goal->zone[seat] = several ? zone : seat;
    }
}

/* A zone with more than half of the seats has one replica of each partition, and no more. */
static void group_zones(struct kelp__goal *goal)
{
    goal->group_count = 1;
    for (uint32_t zone = 0; goal->replicas > 1 && zone < goal->seat_count; zone++) {
        uint32_t members = 0;
        for (uint32_t seat = 0; seat < goal->seat_count; seat++) {
            members += goal->zone[seat] == zone ? 1 : 0;
        }
        if (2 * members > goal->seat_count) {
            goal->group_count = 2;
            for (uint32_t seat = 0; seat < goal->seat_count; seat++) {
                goal->group[seat] = goal->zone[seat] == zone ? 0 : 1;
            }
        }
    }
}

static void take_seats(struct kelp__goal *goal, const struct kelp_arrangement_input *input,
                       const bool *used)
{
    for (uint32_t i = 0; i < input->shard_count; i++) {
        if (used[i]) {
            goal->shard[goal->seat_count++] = i;
        }
    }
    goal->replicas =
        input->replicas_wanted < goal->seat_count ? input->replicas_wanted : goal->seat_count;
    number_zones(goal, input);
    group_zones(goal);
}

/* ---- copies ---- */

static uint32_t seat_of(const struct kelp__goal *goal, uint32_t shard)
{
    for (uint32_t seat = 0; shard != NOBODY && seat < goal->seat_count; seat++) {
        if (goal->shard[seat] == shard) {
            return seat;
        }
    }
    return NOBODY;
}

static void find_copies(struct kelp__goal *goal)
{
    for (uint32_t i = 0; i < goal->partition_count; i++) {
        const struct kelp_arrangement_entry *entry = &goal->entries[i];
        goal->has[i][0] = seat_of(goal, entry->primary);
        goal->has[i][1] = seat_of(goal, entry->backup);
        goal->has[i][2] = seat_of(goal, entry->joiner);
        goal->at[i][0] = NOBODY;
        goal->at[i][1] = NOBODY;
    }
}

static kelp_status make_room(struct kelp__goal *goal, size_t shards, size_t partitions)
{
    goal->shard = calloc(shards + 1, sizeof(*goal->shard));
    goal->zone = calloc(shards + 1, sizeof(*goal->zone));
    goal->group = calloc(shards + 1, sizeof(*goal->group));
    goal->load = calloc(shards + 1, sizeof(*goal->load));
    goal->entries = calloc(partitions + 1, sizeof(*goal->entries));
    goal->has = calloc(partitions + 1, sizeof(*goal->has));
    goal->at = calloc(partitions + 1, sizeof(*goal->at));
    bool made = goal->shard && goal->zone && goal->group && goal->load && goal->entries &&
                goal->has && goal->at;
    return made ? KELP_OK : KELP_ERR_NO_MEMORY;
}

void kelp__goal_fini(struct kelp__goal *goal)
{
    free(goal->shard);
    free(goal->zone);
    free(goal->group);
    free(goal->load);
    free(goal->entries);
    free(goal->has);
    free(goal->at);
    *goal = (struct kelp__goal){0};
}

static kelp_status init(struct kelp__goal *goal, const struct kelp_arrangement_input *input,
                        bool *used)
{
    kelp_status status = make_room(goal, input->shard_count, goal->partition_count);
    if (status != KELP_OK) {
        return status;
    }
    for (uint32_t i = 0; i < goal->partition_count; i++) {
        goal->entries[i] = (struct kelp_arrangement_entry){NOBODY, NOBODY, NOBODY};
    }
    if (input->map) {
        status = translate_entries(goal, input);
    }
    if (status == KELP_OK) {
        choose(goal, input, used);
        take_seats(goal, input, used);
        find_copies(goal);
        status = goal->seat_count > 0 ? KELP_OK : KELP_ERR_INVALID;
    }
    return status;
}

kelp_status kelp__goal_init(struct kelp__goal *goal, const struct kelp_arrangement_input *input,
                            uint32_t partition_count)
{
    assert(!input->map || input->map->partition_count == partition_count);
    *goal = (struct kelp__goal){.partition_count = partition_count};
    bool *used = calloc((size_t)input->shard_count + 1, sizeof(*used));
    if (!used) {
        return KELP_ERR_NO_MEMORY;
    }
    kelp_status status = init(goal, input, used);
    free(used);
    if (status != KELP_OK) {
        kelp__goal_fini(goal);
    }
    return status;
}

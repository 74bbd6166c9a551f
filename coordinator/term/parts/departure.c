#include "coordinator/term/parts/departure.h"

#include <inttypes.h>
#include <stdio.h>

/* ---- all shards leave ---- */

/* Does any shard have to leave without another to take over? Then all of them leave. */
static bool all_go(const struct kelp_placement *placement)
{
    for (uint32_t i = 0; i < placement->shard_count; i++) {
        if (kelp_placement_leave(placement, &placement->shards[i]) == KELP_LEAVE_LAST) {
            return true;
        }
    }
    return false;
}

static bool is_answered(const struct kelp_departure *departure,
                        const struct kelp_checkpointer *checkpointer)
{
    return departure->serial != 0 && checkpointer->answered >= departure->serial;
}

static bool is_refused(const struct kelp_departure *departure,
                       const struct kelp_checkpointer *checkpointer)
{
    return departure->serial != 0 && checkpointer->refused >= departure->serial;
}

/* May a checkpoint save progress that no checkpoint holds yet? */
static bool may_save(const struct kelp_departure *departure, const struct kelp_placement *placement,
                     const struct kelp_checkpointer *checkpointer)
{
    bool begun = !checkpointer->word_known || checkpointer->word.version > 0;
    return departure->saves && begun && placement->state == KELP_PLACEMENT_RUNNING;
}

static void pass_verdict(struct kelp_departure *departure,
                         const struct kelp_checkpointer *checkpointer)
{
    static const char nobody[] = "no other shard is there to take over";
    const struct kelp_committed *newest = kelp_committed_list_newest(&checkpointer->list);
    char from[64] = "from the beginning";
    if (newest) {
        (void)snprintf(from, sizeof(from), "from step %" PRIu64, newest->step);
    }
    if (newest && is_answered(departure, checkpointer)) {
        (void)snprintf(departure->verdict, sizeof(departure->verdict),
                       "%s: saved at step %" PRIu64 ", from which the job goes on with new shards",
                       nobody, newest->step);
    } else if (is_refused(departure, checkpointer)) {
        (void)snprintf(departure->verdict, sizeof(departure->verdict),
                       "%s, and no checkpoint could be made: the job continues %s (%s)", nobody,
                       from, checkpointer->trouble);
    } else {
        (void)snprintf(departure->verdict, sizeof(departure->verdict), "%s: the job goes on %s",
                       nobody, from);
    }
}

bool kelp_departure_look(struct kelp_departure *departure, const struct kelp_placement *placement,
                         const struct kelp_checkpointer *checkpointer)
{
    departure->verdict[0] = '\0';
    if (!all_go(placement)) {
        departure->serial = 0;
        return false;
    }
    if (is_answered(departure, checkpointer) || is_refused(departure, checkpointer) ||
        !may_save(departure, placement, checkpointer)) {
        pass_verdict(departure, checkpointer);
        return false;
    }
    return departure->serial == 0;
}

bool kelp_departure_holds_leader(const struct kelp_placement *placement, uint64_t told_ms_ago)
{
    bool told = false;
    for (uint32_t i = 0; i < placement->shard_count; i++) {
        const struct kelp_placement_shard *shard = &placement->shards[i];
        told = told || (shard->leaving != 0 && shard->leaving == shard->at.incarnation &&
                        (shard->registered || shard->connected));
    }
    return placement->state == KELP_PLACEMENT_RUNNING &&
           (told || told_ms_ago < KELP_COORDINATOR_HEAR_MS);
}

/* ---- one shard leaves ---- */

struct load {
    uint32_t leads, follows;
    uint64_t copied, to_copy;
};

/* What still lies on the shard, and how far its copies elsewhere are. */
static struct load load_of(const struct kelp_placement *placement, const char *id)
{
    struct load load = {.leads = 0};
    const struct kelp_map *map = &placement->map;
    int32_t index = kelp_map_find(map, id);
    for (uint32_t i = 0; index >= 0 && i < map->partition_count; i++) {
        const struct kelp_map_partition *entry = &map->partitions[i];
        const struct kelp_replica_report *report = kelp_replicas_of(&placement->replicas, map, i);
        bool leads = entry->primary == (uint32_t)index;
        bool follows = entry->backup == (uint32_t)index || entry->joiner == (uint32_t)index;
        load.leads += leads ? 1 : 0;
        load.follows += follows ? 1 : 0;
        if ((leads || follows) && report && entry->joiner != KELP_MAP_NOBODY) {
            load.copied += report->copied;
            load.to_copy += report->to_copy;
        }
    }
    return load;
}

static bool stays(const struct kelp_placement_shard *shard)
{
    return shard->registered && !shard->draining;
}

/* A shard of the map that moves wait for because it is not heard; NULL: none. */
static const char *unheard(const struct kelp_placement *placement)
{
    for (uint32_t i = 0; i < placement->map.shard_count; i++) {
        const struct kelp_placement_shard *shard =
            kelp_placement_find(placement, placement->map.shards[i].id);
        if (shard && !shard->connected) {
            return shard->at.id;
        }
    }
    return NULL;
}

/* Append what holds the moves up. */
static void say_obstacle(const struct kelp_placement *placement,
                         const struct kelp_checkpointer *checkpointer, char *text, size_t bytes)
{
    const char *silent = unheard(placement);
    bool room = false;
    for (uint32_t i = 0; i < placement->shard_count; i++) {
        room = room || stays(&placement->shards[i]);
    }
    if (!room) {
        (void)snprintf(text, bytes, "; no shard stays that could take it: start another one");
    } else if (silent) {
        (void)snprintf(text, bytes, "; %s is not heard", silent);
    } else if (kelp_checkpointer_pauses(checkpointer)) {
        (void)snprintf(text, bytes, "; the job pauses, so nothing is copied");
    } else if (placement->promotion_waits) {
        (void)snprintf(text, bytes, "; the checkpoint of step %" PRIu64 " is captured first",
                       checkpointer->order.step);
    } else {
        text[0] = '\0';
    }
}

static int say_left(const struct load *load, char ret_text[KELP_DEPARTURE_TEXT_MAX])
{
    const double mib = 1024.0 * 1024.0;
    int used = 0;
    if (load->leads > 0) {
        used = snprintf(ret_text, KELP_DEPARTURE_TEXT_MAX, "%u partition%s%s", load->leads,
                        load->leads == 1 ? "" : "s", load->follows > 0 ? " and " : "");
    }
    if (load->follows > 0) {
        used += snprintf(ret_text + used, KELP_DEPARTURE_TEXT_MAX - (size_t)used, "%u backup%s",
                         load->follows, load->follows == 1 ? "" : "s");
    }
    used += snprintf(ret_text + used, KELP_DEPARTURE_TEXT_MAX - (size_t)used, " left");
    if (load->to_copy > 0) {
        used += snprintf(ret_text + used, KELP_DEPARTURE_TEXT_MAX - (size_t)used,
                         ", %.1f of %.1f MiB copied", (double)load->copied / mib,
                         (double)load->to_copy / mib);
    }
    return used;
}

void kelp_departure_waits(const struct kelp_placement *placement,
                          const struct kelp_checkpointer *checkpointer,
                          const struct kelp_placement_shard *shard,
                          char ret_text[KELP_DEPARTURE_TEXT_MAX])
{
    const struct load load = load_of(placement, shard->at.id);
    if (placement->state != KELP_PLACEMENT_RUNNING && !kelp_placement_settled(placement)) {
        (void)snprintf(ret_text, KELP_DEPARTURE_TEXT_MAX, "training does not run: %s",
                       placement->reason);
    } else if (load.leads > 0 || load.follows > 0) {
        int used = say_left(&load, ret_text);
        say_obstacle(placement, checkpointer, ret_text + used,
                     KELP_DEPARTURE_TEXT_MAX - (size_t)used);
    } else if (kelp_checkpointer_needs(checkpointer, shard->at.id, shard->at.incarnation)) {
        (void)snprintf(ret_text, KELP_DEPARTURE_TEXT_MAX,
                       "nothing left; it writes its part of the checkpoint of step %" PRIu64,
                       checkpointer->order.step);
    } else {
        (void)snprintf(ret_text, KELP_DEPARTURE_TEXT_MAX, "nothing left; it ends");
    }
}

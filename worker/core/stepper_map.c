/*
 * Where partitions are.
 *
 * A map of a new generation starts anew. Within a generation a map counts if its serial is larger
 * than the last one, and of its entries only those with a larger epoch than the partition's. So
 * late, repeated and partial maps lead to the same entries.
 *
 * Up to transport.streams links lead to a process and share its partitions evenly. They stay while
 * the process is primary of any partition. What was sent to a partition whose entry changed may be
 * lost, with its primary or by a refusal, so it is sent again.
 */
#include <assert.h>
#include <string.h>

#include "worker/core/stepper_internal.h"

#define NO_LINK UINT32_MAX

struct kelp_error *kelp__stepper_fail(struct kelp_stepper *stepper)
{
    return &kelp__stepper_emit(stepper, KELP_STEPPER_FAIL)->fail;
}

/* ---- entries --------------------------------------------------------------------------------- */

static void enter(struct kelp_stepper *stepper, const struct kelp_places *places,
                  uint32_t partition)
{
    stepper->routes[partition].map_epoch = places->map_epoch[partition];
    stepper->routes[partition].to = &places->shards[places->primary[partition]];
}

static enum kelp__stepper_map begin_generation(struct kelp_stepper *stepper,
                                               const struct kelp_places *places)
{
    for (uint32_t i = 0; i < stepper->link_count; i++) {
        if (stepper->links[i].used) {
            kelp__stepper_emit(stepper, KELP_STEPPER_CLOSE)->close = i;
            stepper->links[i].used = false;
        }
    }
    for (uint32_t p = 0; p < places->partition_count; p++) {
        stepper->routes[p] = (struct kelp__stepper_route){.link = NO_LINK};
        enter(stepper, places, p);
    }
    stepper->generation = places->generation;
    stepper->serial = places->serial;
    return KELP__MAP_BEGINS;
}

enum kelp__stepper_map kelp__stepper_hear_map(struct kelp_stepper *stepper,
                                              const struct kelp_places *places)
{
    bool changed = false;

    if (places->generation < stepper->generation ||
        (places->generation == stepper->generation && places->serial <= stepper->serial)) {
        return KELP__MAP_NOTHING; /* old, or a new leader repeats our map */
    }
    if (places->partition_count != stepper->plan->partition_count) {
        (void)kelp_fail(kelp__stepper_fail(stepper), KELP_ERR_FORMAT,
                        "map has %u partitions, the plan %u", places->partition_count,
                        stepper->plan->partition_count);
        return KELP__MAP_NOTHING;
    }
    if (places->generation > stepper->generation) {
        return begin_generation(stepper, places);
    }
    stepper->serial = places->serial;
    for (uint32_t p = 0; p < places->partition_count; p++) {
        if (places->map_epoch[p] > stepper->routes[p].map_epoch) {
            enter(stepper, places, p);
            changed = true;
        }
    }
    return changed ? KELP__MAP_CHANGES : KELP__MAP_NOTHING;
}

bool kelp__stepper_hear_entry(struct kelp_stepper *stepper, uint32_t partition, uint64_t map_epoch,
                              const struct kelp_place *primary)
{
    assert(partition < stepper->plan->partition_count);
    if (!primary || map_epoch <= stepper->routes[partition].map_epoch) {
        return false;
    }
    stepper->routes[partition].map_epoch = map_epoch;
    stepper->routes[partition].to = primary;
    return true;
}

/* ---- links ----------------------------------------------------------------------------------- */

bool kelp__stepper_same_place(const struct kelp_place *a, const struct kelp_place *b)
{
    return a->incarnation == b->incarnation && strcmp(a->shard, b->shard) == 0;
}

static bool is_needed(const struct kelp_stepper *stepper, uint32_t link)
{
    const struct kelp_place *place = &stepper->links[link].place;

    for (uint32_t p = 0; p < stepper->plan->partition_count; p++) {
        const struct kelp__stepper_route *route = &stepper->routes[p];
        if (route->to ? kelp__stepper_same_place(route->to, place) : route->link == link) {
            return true;
        }
    }
    return false;
}

static void close_needless(struct kelp_stepper *stepper)
{
    for (uint32_t i = 0; i < stepper->link_count; i++) {
        struct kelp__stepper_link *link = &stepper->links[i];
        link->fresh = false;
        link->changed = false;
        if (link->used && !is_needed(stepper, i)) {
            kelp__stepper_emit(stepper, KELP_STEPPER_CLOSE)->close = i;
            link->used = false;
        }
    }
}

/* NO_LINK: out of memory. */
static uint32_t add_link(struct kelp_stepper *stepper, const struct kelp_place *place,
                         uint32_t stream)
{
    uint32_t i = 0;

    while (i < stepper->link_count && stepper->links[i].used) {
        i++;
    }
    if (i == stepper->link_count) {
        void *room = kelp__stepper_reserve(stepper, stepper->links, i, &stepper->link_capacity,
                                           sizeof(*stepper->links));
        if (!room) {
            return NO_LINK;
        }
        stepper->links = room;
        stepper->link_count++;
    }
    stepper->links[i] =
        (struct kelp__stepper_link){.used = true, .fresh = true, .place = *place, .stream = stream};
    return i;
}

/* The process's link with the fewest partitions; a new link as long as each one would get its
 * second. */
static uint32_t link_to(struct kelp_stepper *stepper, const struct kelp_place *place)
{
    uint32_t best = NO_LINK, taken = 0, stream = 0;

    for (uint32_t i = 0; i < stepper->link_count; i++) {
        const struct kelp__stepper_link *link = &stepper->links[i];
        if (link->used && kelp__stepper_same_place(&link->place, place)) {
            taken |= 1u << link->stream;
            best = best == NO_LINK || link->load < stepper->links[best].load ? i : best;
        }
    }
    while (taken >> stream & 1) {
        stream++;
    }
    return best == NO_LINK ||
                   (stepper->links[best].load > 0 && stream < stepper->job->transport.streams)
               ? add_link(stepper, place, stream)
               : best;
}

/* Count the partitions of each link, without those that move. */
static void count_loads(struct kelp_stepper *stepper)
{
    for (uint32_t i = 0; i < stepper->link_count; i++) {
        stepper->links[i].load = 0;
    }
    for (uint32_t p = 0; p < stepper->plan->partition_count; p++) {
        const struct kelp__stepper_route *route = &stepper->routes[p];
        if (!route->to && route->link != NO_LINK) {
            stepper->links[route->link].load++;
        }
    }
}

/* Sort partitions by link, ascending within each. */
static void sort_partitions(struct kelp_stepper *stepper)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < stepper->link_count; i++) {
        struct kelp__stepper_link *link = &stepper->links[i];
        link->first = count;
        for (uint32_t p = 0; link->used && p < stepper->plan->partition_count; p++) {
            if (stepper->routes[p].link == i) {
                stepper->order[count++] = p;
            }
        }
        link->end = count;
    }
}

/* Assign partitions to links. Returns how many changed. */
static uint32_t lead_partitions(struct kelp_stepper *stepper)
{
    uint32_t changed = 0;

    count_loads(stepper);
    for (uint32_t p = 0; p < stepper->plan->partition_count; p++) {
        struct kelp__stepper_route *route = &stepper->routes[p];
        if (!route->to) {
            continue;
        }
        uint32_t link = link_to(stepper, route->to);
        if (link == NO_LINK) {
            return changed; /* out of memory: the worker ends */
        }
        route->link = link;
        route->to = NULL;
        stepper->links[link].changed = true;
        stepper->links[link].load++;
        kelp__stepper_repeat(stepper, p);
        changed++;
    }
    return changed;
}

/* Close links without partitions: one of several links to a process may have lost all of its
 * own. */
static void close_empty(struct kelp_stepper *stepper)
{
    for (uint32_t i = 0; i < stepper->link_count; i++) {
        if (stepper->links[i].used && stepper->links[i].load == 0) {
            kelp__stepper_emit(stepper, KELP_STEPPER_CLOSE)->close = i;
            stepper->links[i].used = false;
        }
    }
}

void kelp__stepper_moved(struct kelp_stepper *stepper)
{
    close_needless(stepper);
    uint32_t changed = lead_partitions(stepper);
    if (stepper->status != KELP_OK) {
        return;
    }
    close_empty(stepper);
    sort_partitions(stepper);
    struct kelp_stepper_action *action = kelp__stepper_emit(stepper, KELP_STEPPER_ADOPT);
    action->adopt.generation = stepper->generation;
    action->adopt.serial = stepper->serial;
    action->adopt.changed = changed;
    for (uint32_t i = 0; i < stepper->link_count; i++) {
        const struct kelp__stepper_link *link = &stepper->links[i];
        if (link->used && link->fresh) {
            kelp__stepper_connect(stepper, i);
        } else if (link->used && link->changed) {
            kelp__stepper_send(stepper, &(struct kelp__stepper_sending){.link = i, .pulls = true});
        }
    }
}

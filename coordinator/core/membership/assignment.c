/*
 * The split. With n seats and L lanes each seat gets q = L / n lanes or q + 1, and L mod n seats
 * get the larger share. The choice of these seats moves the borders of the ranges, and so changes
 * the number of tree nodes that the ranges consist of, which is the number of gradient slices to
 * send. Dynamic programming over (seat, larger shares left) finds the cheapest choice; in a tie the
 * larger share comes first, so that the result depends only on n and L.
 */
#include "coordinator/core/membership/assignment.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/job/job.h"

kelp_status kelp_assignment_init(struct kelp_assignment *assignment, uint32_t lanes,
                                 uint32_t capacity, struct kelp_error *reterr)
{
    *assignment = (struct kelp_assignment){.lanes = lanes, .capacity = capacity};
    if (lanes == 0 || lanes > KELP_JOB_LANES_MAX || (lanes & (lanes - 1)) != 0) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "lanes=%u is not a power of two up to %d", lanes,
                         KELP_JOB_LANES_MAX);
    }
    /* Entries are seats * (larger shares + 1). With seats <= L/2 there are fewer larger shares
     * than seats, with more seats there are L - seats larger shares; both products are below
     * this square. */
    size_t side = (size_t)lanes / 2 + 2;
    assignment->members = calloc(capacity, sizeof(*assignment->members));
    assignment->ranges = calloc(capacity, sizeof(*assignment->ranges));
    assignment->lane_us = calloc(capacity, sizeof(*assignment->lane_us));
    assignment->choices = calloc(side * side, sizeof(*assignment->choices));
    assignment->costs = calloc(2 * side, sizeof(*assignment->costs));
    if (!assignment->members || !assignment->ranges || !assignment->lane_us ||
        !assignment->choices || !assignment->costs) {
        kelp_assignment_fini(assignment);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for an assignment of %u lanes",
                         lanes);
    }
    return KELP_OK;
}

void kelp_assignment_fini(struct kelp_assignment *assignment)
{
    free(assignment->members);
    free(assignment->ranges);
    free(assignment->lane_us);
    free(assignment->choices);
    free(assignment->costs);
    *assignment = (struct kelp_assignment){0};
}

uint32_t kelp_assignment_nodes(uint32_t first, uint32_t count)
{
    uint32_t nodes = 0;
    uint32_t end = first + count;
    while (first < end) {
        uint32_t size = 1;
        while ((first & (2 * size - 1)) == 0 && first + 2 * size <= end) {
            size *= 2;
        }
        first += size;
        nodes++;
    }
    return nodes;
}

/* Fill choices[seat * (larger + 1) + given] with 1 where the seat takes a larger share. */
static void split_plan(struct kelp_assignment *assignment, uint32_t seats)
{
    uint32_t small = assignment->lanes / seats;
    uint32_t larger = assignment->lanes % seats;
    size_t width = (size_t)larger + 1;
    uint32_t *after = assignment->costs; /* cost of later seats, by larger shares given */
    uint32_t *here = assignment->costs + width;
    assert((size_t)seats * width <=
           ((size_t)assignment->lanes / 2 + 2) * ((size_t)assignment->lanes / 2 + 2));
    for (uint32_t given = 0; given <= larger; given++) {
        after[given] = given == larger ? 0 : UINT32_MAX / 2; /* at the end all must be given */
    }
    for (uint32_t seat = seats; seat-- > 0;) {
        for (uint32_t given = 0; given <= larger; given++) {
            uint32_t first = seat * small + given;
            uint32_t cost = kelp_assignment_nodes(first, small) + after[given];
            uint8_t choice = 0;
            if (given < larger) {
                uint32_t cost_large = kelp_assignment_nodes(first, small + 1) + after[given + 1];
                if (cost_large <= cost) {
                    cost = cost_large;
                    choice = 1;
                }
            }
            here[given] = cost;
            assignment->choices[(size_t)seat * width + given] = choice;
        }
        memcpy(after, here, width * sizeof(*here));
    }
}

uint32_t kelp_assignment_seats(const struct kelp_assignment *assignment)
{
    return assignment->count < assignment->lanes ? assignment->count : assignment->lanes;
}

static void split_evenly(struct kelp_assignment *assignment, uint32_t seats)
{
    split_plan(assignment, seats);
    uint32_t larger = assignment->lanes % seats;
    uint32_t given = 0;
    uint32_t lane = 0;
    for (uint32_t seat = 0; seat < seats; seat++) {
        uint32_t extra = assignment->choices[(size_t)seat * (larger + 1) + given];
        assignment->ranges[seat] =
            (struct kelp_lane_range){.first = lane, .count = assignment->lanes / seats + extra};
        lane += assignment->ranges[seat].count;
        given += extra;
    }
    assert(lane == assignment->lanes);
    assert(given == larger);
}

/* ---- shares by time per lane ---- */

/* Give each lane to the seat that would finish it first, ties to the first seat, so that the
 * last seat finishes as early as possible. counts has room for each seat. Returns when the last
 * one finishes. */
static uint64_t share_by_time(uint32_t lanes, uint32_t seats, const uint32_t *lane_us,
                              uint32_t *counts)
{
    uint64_t last = 0;
    for (uint32_t seat = 0; seat < seats; seat++) {
        counts[seat] = 1;
        last = lane_us[seat] > last ? lane_us[seat] : last;
    }
    for (uint32_t lane = seats; lane < lanes; lane++) {
        uint32_t best = 0;
        for (uint32_t seat = 1; seat < seats; seat++) {
            if ((uint64_t)(counts[seat] + 1) * lane_us[seat] <
                (uint64_t)(counts[best] + 1) * lane_us[best]) {
                best = seat;
            }
        }
        counts[best]++;
        uint64_t end = (uint64_t)counts[best] * lane_us[best];
        last = end > last ? end : last;
    }
    return last;
}

/* When the last seat finishes if shares differ by at most one, whichever seats have the larger
 * shares. */
static uint64_t even_time(uint32_t lanes, uint32_t seats, const uint32_t *lane_us)
{
    uint64_t last = 0;
    for (uint32_t seat = 0; seat < seats; seat++) {
        uint64_t end = (uint64_t)((lanes + seats - 1) / seats) * lane_us[seat];
        last = end > last ? end : last;
    }
    return last;
}

/* Unknown times become the average of the known ones. */
static void fill_times(struct kelp_assignment *assignment, uint32_t seats)
{
    uint64_t sum = 0;
    uint32_t known = 0;
    for (uint32_t seat = 0; seat < seats; seat++) {
        sum += assignment->lane_us[seat];
        known += assignment->lane_us[seat] > 0 ? 1 : 0;
    }
    for (uint32_t seat = 0; seat < seats; seat++) {
        if (assignment->lane_us[seat] == 0) {
            assignment->lane_us[seat] = known > 0 ? (uint32_t)(sum / known) : 1;
        }
    }
}

/* Unequal shares must gain a tenth, because even shares make the fewest nodes. */
static bool pays(struct kelp_assignment *assignment, uint32_t seats)
{
    fill_times(assignment, seats);
    return even_time(assignment->lanes, seats, assignment->lane_us) * 10 >
           share_by_time(assignment->lanes, seats, assignment->lane_us, assignment->costs) * 11;
}

static void split_by_time(struct kelp_assignment *assignment, uint32_t seats)
{
    uint32_t lane = 0;
    (void)share_by_time(assignment->lanes, seats, assignment->lane_us, assignment->costs);
    for (uint32_t seat = 0; seat < seats; seat++) {
        assignment->ranges[seat] =
            (struct kelp_lane_range){.first = lane, .count = assignment->costs[seat]};
        lane += assignment->costs[seat];
    }
    assert(lane == assignment->lanes);
}

static void split(struct kelp_assignment *assignment)
{
    uint32_t seats = kelp_assignment_seats(assignment);
    memset(assignment->ranges, 0, assignment->count * sizeof(*assignment->ranges));
    assignment->epoch++;
    assignment->weighed = assignment->weighed && pays(assignment, seats);
    if (seats > 0 && assignment->weighed) {
        split_by_time(assignment, seats);
    } else if (seats > 0) {
        split_evenly(assignment, seats);
    }
}

bool kelp_assignment_is_uneven(const struct kelp_assignment *assignment, const uint32_t *lane_us)
{
    uint32_t seats = kelp_assignment_seats(assignment);
    uint64_t now = 0;
    if (seats < 2) {
        return false;
    }
    for (uint32_t seat = 0; seat < seats; seat++) {
        uint64_t end = (uint64_t)assignment->ranges[seat].count * lane_us[seat];
        now = end > now ? end : now;
    }
    return now * 5 > share_by_time(assignment->lanes, seats, lane_us, assignment->costs) * 6;
}

void kelp_assignment_weigh(struct kelp_assignment *assignment, const uint32_t *lane_us)
{
    uint32_t seats = kelp_assignment_seats(assignment);
    memset(assignment->lane_us, 0, assignment->count * sizeof(*assignment->lane_us));
    memcpy(assignment->lane_us, lane_us, seats * sizeof(*lane_us));
    assignment->weighed = seats > 1;
    split(assignment);
}

static uint32_t seat_of(const struct kelp_assignment *assignment, uint64_t key)
{
    uint32_t seat = 0;
    while (seat < assignment->count && assignment->members[seat] != key) {
        seat++;
    }
    return seat;
}

kelp_status kelp_assignment_add(struct kelp_assignment *assignment, uint64_t key)
{
    if (seat_of(assignment, key) < assignment->count) {
        return KELP_ERR_EXISTS;
    }
    if (assignment->count == assignment->capacity) {
        return KELP_ERR_LIMIT;
    }
    assignment->lane_us[assignment->count] = 0;
    assignment->members[assignment->count++] = key;
    split(assignment);
    return KELP_OK;
}

void kelp_assignment_remove(struct kelp_assignment *assignment, uint64_t key)
{
    uint32_t seat = seat_of(assignment, key);
    if (seat == assignment->count) {
        return;
    }
    uint64_t *members = assignment->members;
    uint32_t *lane_us = assignment->lane_us;
    uint32_t gap = seat;
    if (seat < assignment->lanes && assignment->count > assignment->lanes) {
        members[seat] = members[assignment->lanes]; /* the first spare takes the seat */
        lane_us[seat] = 0;
        gap = assignment->lanes;
    }
    memmove(&members[gap], &members[gap + 1], (assignment->count - gap - 1) * sizeof(*members));
    memmove(&lane_us[gap], &lane_us[gap + 1], (assignment->count - gap - 1) * sizeof(*lane_us));
    assignment->count--;
    split(assignment);
}

struct kelp_lane_range kelp_assignment_of(const struct kelp_assignment *assignment, uint64_t key)
{
    uint32_t seat = seat_of(assignment, key);
    return seat < assignment->count ? assignment->ranges[seat] : (struct kelp_lane_range){0};
}

/*
 * The split. With n seats and L lanes each seat gets q = L / n lanes or q + 1, and L mod n of them
 * get the larger share. Which ones is free; each choice moves the borders, and with them the number
 * of tree nodes that the ranges break into, which is the number of gradient slices that travel.
 * A dynamic programme over (seat, larger shares still to give) finds the cheapest; ties go to the
 * larger share first, so that the result is a function of n and L alone.
 */
#include "coordinator/core/assignment.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/job/job.h"

kelp_status kelp_assignment_init(struct kelp_assignment *assignment, uint32_t lanes,
                                 uint32_t capacity, struct kelp_error *reterr)
{
    *assignment = (struct kelp_assignment){.lanes = lanes, .capacity = capacity};
    if (lanes == 0 || lanes > KELP_JOB_LANES_MAX || (lanes & (lanes - 1)) != 0) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "lanes=%u is no power of two up to %d", lanes,
                         KELP_JOB_LANES_MAX);
    }
    /* seats * (larger shares + 1): with seats <= L/2 there are fewer than L/2 larger shares, with
     * more seats there are L - seats of them; both stay below this square. */
    size_t side = (size_t)lanes / 2 + 2;
    assignment->members = calloc(capacity, sizeof(*assignment->members));
    assignment->ranges = calloc(capacity, sizeof(*assignment->ranges));
    assignment->choices = calloc(side * side, sizeof(*assignment->choices));
    assignment->costs = calloc(2 * side, sizeof(*assignment->costs));
    if (!assignment->members || !assignment->ranges || !assignment->choices || !assignment->costs) {
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
    uint32_t *after = assignment->costs; /* cost of the seats behind, by larger shares given */
    uint32_t *here = assignment->costs + width;
    assert((size_t)seats * width <=
           ((size_t)assignment->lanes / 2 + 2) * ((size_t)assignment->lanes / 2 + 2));
    for (uint32_t given = 0; given <= larger; given++) {
        after[given] = given == larger ? 0 : UINT32_MAX / 2; /* all must be given in the end */
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

static void split(struct kelp_assignment *assignment)
{
    uint32_t seats = assignment->count < assignment->lanes ? assignment->count : assignment->lanes;
    memset(assignment->ranges, 0, assignment->count * sizeof(*assignment->ranges));
    assignment->epoch++;
    if (seats == 0) {
        return;
    }
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
    uint32_t gap = seat;
    if (seat < assignment->lanes && assignment->count > assignment->lanes) {
        members[seat] = members[assignment->lanes]; /* the first spare takes the seat */
        gap = assignment->lanes;
    }
    memmove(&members[gap], &members[gap + 1], (assignment->count - gap - 1) * sizeof(*members));
    assignment->count--;
    split(assignment);
}

struct kelp_lane_range kelp_assignment_of(const struct kelp_assignment *assignment, uint64_t key)
{
    uint32_t seat = seat_of(assignment, key);
    return seat < assignment->count ? assignment->ranges[seat] : (struct kelp_lane_range){0};
}

/*
 * Who computes which lanes: advice, with its own epoch. Pure.
 *
 * Members sit in seats in the order in which they joined. The first min(members, lanes) seats share
 * the lanes in contiguous ranges whose sizes differ by at most one; whoever has no seat is a spare.
 * When a seated member leaves and there is a spare, the spare takes the seat, so that nobody else's
 * range moves.
 *
 * Where members are known to need different times for a lane, ranges are such that the last one is
 * done as early as can be, and each seat has one lane at least.
 */
#ifndef KELP_COORDINATOR_CORE_MEMBERSHIP_ASSIGNMENT_H
#define KELP_COORDINATOR_CORE_MEMBERSHIP_ASSIGNMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

struct kelp_lane_range {
    uint32_t first;
    uint32_t count; /* 0: a spare */
};

struct kelp_assignment {
    uint32_t lanes;
    uint32_t capacity;              /* members at most */
    uint32_t count;                 /* members */
    uint64_t epoch;                 /* changes so far */
    uint64_t *members;              /* keys, in seat order; spares behind the seated */
    struct kelp_lane_range *ranges; /* of each seat */
    uint32_t *lane_us;              /* of each member: what a lane takes it; 0: as the others */
    bool weighed;                   /* ranges go by that */
    uint8_t *choices;               /* workspace of the split */
    uint32_t *costs;                /* workspace of the split */
};

/* lanes is a power of two, at most KELP_JOB_LANES_MAX. Errors: KELP_ERR_INVALID,
 * KELP_ERR_NO_MEMORY. */
kelp_status kelp_assignment_init(struct kelp_assignment *assignment, uint32_t lanes,
                                 uint32_t capacity, struct kelp_error *reterr) KELP_MUST_USE;
void kelp_assignment_fini(struct kelp_assignment *assignment);

/* Errors: KELP_ERR_LIMIT (capacity), KELP_ERR_EXISTS. Unchanged on every error. */
kelp_status kelp_assignment_add(struct kelp_assignment *assignment, uint64_t key) KELP_MUST_USE;
/* A key that is not there is no error and no change. */
void kelp_assignment_remove(struct kelp_assignment *assignment, uint64_t key);

/* The lanes of a member; none for a spare or a stranger. */
struct kelp_lane_range kelp_assignment_of(const struct kelp_assignment *assignment, uint64_t key);

/* Seats with lanes. */
uint32_t kelp_assignment_seats(const struct kelp_assignment *assignment);
/* Is another split worth it, if lanes take the seats so long (lane_us[seat], above 0)? It is where
 * the last one would be done a fifth earlier. */
bool kelp_assignment_is_uneven(const struct kelp_assignment *assignment, const uint32_t *lane_us);
/* Split again by these times: evenly, where that is as good. */
void kelp_assignment_weigh(struct kelp_assignment *assignment, const uint32_t *lane_us);

/* Maximal aligned nodes that [first, first + count) splits into. */
uint32_t kelp_assignment_nodes(uint32_t first, uint32_t count);

#endif

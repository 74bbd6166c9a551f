/*
 * Who leads a partition with two replicas.
 *
 * Partitions are edges between two seats, directed from the leader. Reversing every edge of a path
 * from seat s to seat t takes one primary from s, gives one to t and changes no seat between. While
 * some path makes the sum of squares smaller, one is reversed; when none does, the sum is minimal
 * (it is convex).
 *
 * Squares of primaries weigh more than those of backups. So primaries are balanced first, and
 * backups as far as the replicas of each seat allow. Where the replicas are balanced, both end up
 * balanced: an Eulerian orientation, which halves each seat's edges, minimises both sums.
 */
#include <assert.h>
#include <stdlib.h>

#include "coordinator/core/arrangement/arrangement_internal.h"

#define NOBODY KELP_MAP_NOBODY

struct roles {
    struct kelp__goal *goal;
    uint32_t *primaries; /* of each seat */
    /* The search, over seats: */
    uint32_t *by;    /* partition by which it was reached; NOBODY: none */
    uint32_t *queue; /* in the order of reaching */
    uint32_t reached;
};

void kelp__goal_lead(struct kelp__goal *goal)
{
    for (uint32_t i = 0; i < goal->partition_count; i++) {
        uint32_t *at = goal->at[i];
        for (uint32_t k = 0; k < KELP__COPIES_MAX; k++) {
            uint32_t seat = goal->has[i][k];
            if (seat != NOBODY && at[0] == seat) {
                break;
            }
            if (seat != NOBODY && at[1] == seat) {
                at[1] = at[0];
                at[0] = seat;
                break;
            }
        }
    }
}

/* What a seat with this many primaries adds to the sum. */
static uint64_t weight(const struct roles *roles, uint32_t seat, uint32_t primaries)
{
    const struct kelp__goal *goal = roles->goal;
    uint64_t heavy = (uint64_t)4 * goal->partition_count * goal->partition_count;
    uint64_t backups = goal->load[seat] - primaries;
    return heavy * primaries * primaries + backups * backups;
}

/* Would moving a primary from `from` to `to` make the sum smaller? */
static bool better(const struct roles *roles, uint32_t from, uint32_t to)
{
    uint32_t a = roles->primaries[from];
    uint32_t b = roles->primaries[to];
    if (a == 0 || b == roles->goal->load[to]) {
        return false;
    }
    return weight(roles, from, a - 1) + weight(roles, to, b + 1) <
           weight(roles, from, a) + weight(roles, to, b);
}

static void reach_from(struct roles *roles, uint32_t seat)
{
    const struct kelp__goal *goal = roles->goal;
    for (uint32_t i = 0; i < goal->partition_count; i++) {
        uint32_t other = goal->at[i][1];
        if (goal->at[i][0] == seat && roles->by[other] == NOBODY && other != roles->queue[0]) {
            roles->by[other] = i;
            roles->queue[roles->reached++] = other;
        }
    }
}

/* The nearest seat that should take a primary of this one; NOBODY: there is none. */
static uint32_t find_way(struct roles *roles, uint32_t from)
{
    for (uint32_t seat = 0; seat < roles->goal->seat_count; seat++) {
        roles->by[seat] = NOBODY;
    }
    roles->queue[0] = from;
    roles->reached = 1;
    for (uint32_t next = 0; next < roles->reached; next++) {
        if (better(roles, from, roles->queue[next])) {
            return roles->queue[next];
        }
        reach_from(roles, roles->queue[next]);
    }
    return NOBODY;
}

static uint32_t turn(struct roles *roles, uint32_t from, uint32_t to)
{
    uint32_t turned = 0;
    roles->primaries[from]--;
    roles->primaries[to]++;
    while (to != from) {
        uint32_t *at = roles->goal->at[roles->by[to]];
        assert(at[1] == to);
        at[1] = at[0];
        at[0] = to;
        to = at[1];
        turned++;
    }
    return turned;
}

static void balance(struct roles *roles, uint32_t most)
{
    const struct kelp__goal *goal = roles->goal;
    uint32_t turned = 0;
    for (uint32_t i = 0; i < goal->partition_count; i++) {
        roles->primaries[goal->at[i][0]]++;
    }
    for (uint32_t seat = 0; seat < goal->seat_count; seat++) {
        uint32_t to;
        while (turned < most && (to = find_way(roles, seat)) != NOBODY) {
            turned += turn(roles, seat, to);
            seat = 0; /* earlier seats may improve again */
        }
    }
}

kelp_status kelp__goal_balance(struct kelp__goal *goal, uint32_t most)
{
    if (goal->replicas < 2) {
        return KELP_OK;
    }
    struct roles roles = {.goal = goal};
    kelp_status status = KELP_ERR_NO_MEMORY;
    roles.primaries = calloc(goal->seat_count, sizeof(*roles.primaries));
    roles.by = calloc(goal->seat_count, sizeof(*roles.by));
    roles.queue = calloc(goal->seat_count, sizeof(*roles.queue));
    if (roles.primaries && roles.by && roles.queue) {
        balance(&roles, most);
        status = KELP_OK;
    }
    free(roles.primaries);
    free(roles.by);
    free(roles.queue);
    return status;
}

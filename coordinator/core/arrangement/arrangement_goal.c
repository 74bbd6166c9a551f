/*
 * Where replicas should lie: a flow of minimum cost.
 *
 *     partition p --(replicas)--> p in zone z --> seat s --(floor)--> done
 *                    1 to each zone                `--(1)--> extras of its group --> done
 *
 * A unit from (p in z) to s costs 0 if p has a copy on s, and 1 otherwise. Units are added one at a
 * time, each along a cheapest path in the residual graph, so that the flow is always the cheapest
 * of its size ("successive shortest paths"). Most units need no full search. First, existing copies
 * are used directly. Then a search over existing copies only moves other replicas at no cost. Each
 * remaining unit costs at least 1, so any seat with room is a cheapest path. Only units that find
 * no such seat need the search over the whole graph.
 *
 * Each seat of a group gets the group's floor of replicas; the extras, which are left over, go to
 * seats of the group, at most one to each.
 */
#include <assert.h>
#include <stdlib.h>

#include "coordinator/core/arrangement/arrangement_internal.h"

#define NOBODY KELP_MAP_NOBODY

struct flow {
    struct kelp__goal *goal;
    uint32_t floor[2]; /* of each group */
    uint32_t extra[2]; /* seats of the group that may still get one more */
    /* The search. Nodes are partitions, partitions in zones, seats and groups, in this order. */
    uint32_t node_count;
    int32_t *cost;    /* of the cheapest path so far; UNSEEN */
    uint32_t *before; /* the node before on that path */
    uint32_t *queue;  /* a ring */
    bool *queued;
    uint32_t first, waiting; /* of the ring */
    bool free_only;          /* use existing copies only */
};

#define UNSEEN INT32_MAX

/* ---- placing ---- */

static bool has_copy(const struct kelp__goal *goal, uint32_t partition, uint32_t seat)
{
    const uint32_t *has = goal->has[partition];
    return has[0] == seat || has[1] == seat || has[2] == seat;
}

static bool lies_at(const struct kelp__goal *goal, uint32_t partition, uint32_t seat)
{
    return goal->at[partition][0] == seat || goal->at[partition][1] == seat;
}

static bool lies_in_zone(const struct kelp__goal *goal, uint32_t partition, uint32_t zone)
{
    for (uint32_t i = 0; i < KELP_ARRANGEMENT_REPLICAS_MAX; i++) {
        uint32_t seat = goal->at[partition][i];
        if (seat != NOBODY && goal->zone[seat] == zone) {
            return true;
        }
    }
    return false;
}

static bool has_room(const struct flow *flow, uint32_t seat)
{
    uint32_t group = flow->goal->group[seat];
    uint32_t floor = flow->floor[group];
    return flow->goal->load[seat] < floor ||
           (flow->goal->load[seat] == floor && flow->extra[group] > 0);
}

static void put(struct flow *flow, uint32_t partition, uint32_t seat)
{
    struct kelp__goal *goal = flow->goal;
    uint32_t slot = goal->at[partition][0] == NOBODY ? 0 : 1;
    assert(goal->at[partition][slot] == NOBODY);
    goal->at[partition][slot] = seat;
    goal->load[seat]++;
}

static void take(struct flow *flow, uint32_t partition, uint32_t seat)
{
    struct kelp__goal *goal = flow->goal;
    uint32_t slot = goal->at[partition][0] == seat ? 0 : 1;
    assert(goal->at[partition][slot] == seat);
    goal->at[partition][slot] = NOBODY;
    goal->load[seat]--;
}

/* A seat is full: note whether it has one of its group's extras. */
static void settle(struct flow *flow, uint32_t seat)
{
    uint32_t group = flow->goal->group[seat];
    if (flow->goal->load[seat] > flow->floor[group]) {
        assert(flow->extra[group] > 0);
        flow->extra[group]--;
    }
}

static uint32_t missing(const struct flow *flow, uint32_t partition)
{
    uint32_t placed = 0;
    for (uint32_t i = 0; i < KELP_ARRANGEMENT_REPLICAS_MAX; i++) {
        placed += flow->goal->at[partition][i] != NOBODY ? 1 : 0;
    }
    return flow->goal->replicas - placed;
}

static bool may_lie(const struct flow *flow, uint32_t partition, uint32_t seat)
{
    return missing(flow, partition) > 0 && has_room(flow, seat) &&
           !lies_in_zone(flow->goal, partition, flow->goal->zone[seat]);
}

/* ---- the search ---- */

static uint32_t zone_node(const struct flow *flow, uint32_t partition, uint32_t zone)
{
    return flow->goal->partition_count + partition * flow->goal->seat_count + zone;
}

static uint32_t seat_node(const struct flow *flow, uint32_t seat)
{
    return flow->goal->partition_count * (flow->goal->seat_count + 1) + seat;
}

static void reach(struct flow *flow, uint32_t from, uint32_t to, int32_t cost)
{
    int32_t total = flow->cost[from] + cost;
    if (total >= flow->cost[to]) {
        return;
    }
    flow->cost[to] = total;
    flow->before[to] = from;
    if (!flow->queued[to]) {
        flow->queue[(flow->first + flow->waiting++) % flow->node_count] = to;
        flow->queued[to] = true;
    }
}

static void leave_partition(struct flow *flow, uint32_t node)
{
    const struct kelp__goal *goal = flow->goal;
    if (flow->free_only) {
        for (uint32_t i = 0; i < KELP__COPIES_MAX; i++) {
            uint32_t seat = goal->has[node][i];
            if (seat != NOBODY && !lies_in_zone(goal, node, goal->zone[seat])) {
                reach(flow, node, zone_node(flow, node, goal->zone[seat]), 0);
            }
        }
        return;
    }
    for (uint32_t zone = 0; zone < goal->seat_count; zone++) {
        if (!lies_in_zone(goal, node, zone)) {
            reach(flow, node, zone_node(flow, node, zone), 0);
        }
    }
}

static void leave_zone(struct flow *flow, uint32_t node)
{
    const struct kelp__goal *goal = flow->goal;
    uint32_t partition = (node - goal->partition_count) / goal->seat_count;
    uint32_t zone = (node - goal->partition_count) % goal->seat_count;
    for (uint32_t seat = zone; seat < goal->seat_count; seat++) {
        bool there = has_copy(goal, partition, seat);
        if (goal->zone[seat] == zone && !lies_at(goal, partition, seat) &&
            (there || !flow->free_only)) {
            reach(flow, node, seat_node(flow, seat), there ? 0 : 1);
        }
    }
    if (lies_in_zone(goal, partition, zone)) {
        reach(flow, node, partition, 0);
    }
}

static void leave_seat(struct flow *flow, uint32_t node)
{
    const struct kelp__goal *goal = flow->goal;
    uint32_t seat = node - seat_node(flow, 0);
    for (uint32_t partition = 0; partition < goal->partition_count; partition++) {
        if (lies_at(goal, partition, seat)) {
            reach(flow, node, zone_node(flow, partition, goal->zone[seat]),
                  has_copy(goal, partition, seat) ? 0 : -1);
        }
    }
    if (goal->load[seat] == flow->floor[goal->group[seat]]) {
        reach(flow, node, seat_node(flow, goal->seat_count) + goal->group[seat], 0);
    }
}

/* From a group the path goes on to seats that can give up an extra. */
static void leave_group(struct flow *flow, uint32_t node)
{
    const struct kelp__goal *goal = flow->goal;
    uint32_t group = node - seat_node(flow, goal->seat_count);
    for (uint32_t seat = 0; seat < goal->seat_count; seat++) {
        if (goal->group[seat] == group && goal->load[seat] > flow->floor[group]) {
            reach(flow, node, seat_node(flow, seat), 0);
        }
    }
}

static void spread_out(struct flow *flow, uint32_t partition)
{
    for (uint32_t i = 0; i < flow->node_count; i++) {
        flow->cost[i] = UNSEEN;
    }
    flow->first = 0;
    flow->waiting = 1;
    flow->cost[partition] = 0;
    flow->before[partition] = NOBODY;
    flow->queue[0] = partition;
    flow->queued[partition] = true;
    while (flow->waiting > 0) {
        uint32_t node = flow->queue[flow->first];
        flow->first = (flow->first + 1) % flow->node_count;
        flow->waiting--;
        flow->queued[node] = false;
        if (node < flow->goal->partition_count) {
            leave_partition(flow, node);
        } else if (node < seat_node(flow, 0)) {
            leave_zone(flow, node);
        } else if (node < seat_node(flow, flow->goal->seat_count)) {
            leave_seat(flow, node);
        } else {
            leave_group(flow, node);
        }
    }
}

/* The cheapest seat with room that was reached; NOBODY: there is none. */
static uint32_t cheapest_end(const struct flow *flow)
{
    uint32_t best = NOBODY;
    for (uint32_t seat = 0; seat < flow->goal->seat_count; seat++) {
        int32_t cost = flow->cost[seat_node(flow, seat)];
        if (cost != UNSEEN && has_room(flow, seat) &&
            (best == NOBODY || cost < flow->cost[seat_node(flow, best)])) {
            best = seat;
        }
    }
    return best;
}

static bool is_zone_node(const struct flow *flow, uint32_t node)
{
    return node >= flow->goal->partition_count && node < seat_node(flow, 0);
}

/* Apply the path that ends at the node. Two replicas of a partition may change places along it,
 * so all are removed before any is added. */
static void follow(struct flow *flow, uint32_t end)
{
    const struct kelp__goal *goal = flow->goal;
    for (int coming = 0; coming < 2; coming++) {
        for (uint32_t node = end; flow->before[node] != NOBODY; node = flow->before[node]) {
            uint32_t before = flow->before[node];
            uint32_t zone = is_zone_node(flow, node) ? node : before;
            uint32_t seat = zone == node ? before : node;
            if (!is_zone_node(flow, zone) || seat < seat_node(flow, 0)) {
                continue; /* partition to zone or back, or an extra that moves */
            }
            uint32_t partition = (zone - goal->partition_count) / goal->seat_count;
            if (zone == node && !coming) {
                take(flow, partition, seat - seat_node(flow, 0));
            } else if (zone == before && coming) {
                put(flow, partition, seat - seat_node(flow, 0));
            }
        }
    }
}

/* Place one more replica of the partition. False: there is no path. */
static bool augment(struct flow *flow, uint32_t partition)
{
    spread_out(flow, partition);
    uint32_t seat = cheapest_end(flow);
    if (seat == NOBODY) {
        return false;
    }
    follow(flow, seat_node(flow, seat));
    settle(flow, seat); /* other loads are unchanged, except for an extra that moved */
    return true;
}

/* ---- the whole flow ---- */

/* Place replicas on existing copies where these fit. */
static void place_copies(struct flow *flow)
{
    struct kelp__goal *goal = flow->goal;
    for (uint32_t i = 0; i < KELP__COPIES_MAX; i++) {
        for (uint32_t partition = 0; partition < goal->partition_count; partition++) {
            uint32_t seat = goal->has[partition][i];
            if (seat != NOBODY && may_lie(flow, partition, seat)) {
                put(flow, partition, seat);
                settle(flow, seat);
            }
        }
    }
}

static bool has_more(const struct kelp__goal *goal, uint32_t partition)
{
    for (uint32_t i = 0; i < KELP__COPIES_MAX; i++) {
        uint32_t seat = goal->has[partition][i];
        if (seat != NOBODY && !lies_at(goal, partition, seat)) {
            return true;
        }
    }
    return false;
}

/* Place replicas on copies that fit once other partitions use another of their copies. */
static void shift_copies(struct flow *flow)
{
    flow->free_only = true;
    for (uint32_t i = 0; i < flow->goal->partition_count; i++) {
        while (missing(flow, i) > 0 && has_more(flow->goal, i) && augment(flow, i)) {
        }
    }
    flow->free_only = false;
}

/* The emptiest seat with room. The search starts at another seat for each partition, so that the
 * backups of one seat spread over many others. NOBODY: there is none. */
static uint32_t free_seat(const struct flow *flow, uint32_t partition)
{
    const struct kelp__goal *goal = flow->goal;
    uint32_t leader = goal->at[partition][0] == NOBODY ? 0 : goal->at[partition][0];
    uint32_t best = NOBODY;
    for (uint32_t i = 0; i < goal->seat_count; i++) {
        uint32_t seat = (leader + 1 + partition + i) % goal->seat_count;
        if (may_lie(flow, partition, seat) &&
            (best == NOBODY || goal->load[seat] < goal->load[best])) {
            best = seat;
        }
    }
    return best;
}

static void place_anew(struct flow *flow)
{
    for (uint32_t i = 0; i < flow->goal->partition_count; i++) {
        uint32_t seat;
        while ((seat = free_seat(flow, i)) != NOBODY) {
            put(flow, i, seat);
            settle(flow, seat);
        }
    }
    for (uint32_t i = 0; i < flow->goal->partition_count; i++) {
        while (missing(flow, i) > 0) {
            bool placed = augment(flow, i);
            assert(placed); /* floors and extras are chosen so that everything fits */
            (void)placed;
        }
    }
}

static void share_out(struct flow *flow)
{
    const struct kelp__goal *goal = flow->goal;
    uint32_t members[2] = {0, 0};
    for (uint32_t seat = 0; seat < goal->seat_count; seat++) {
        members[goal->group[seat]]++;
    }
    for (uint32_t group = 0; group < goal->group_count; group++) {
        uint32_t total = goal->replicas * goal->partition_count / goal->group_count;
        flow->floor[group] = total / members[group];
        flow->extra[group] = total % members[group];
    }
}

kelp_status kelp__goal_solve(struct kelp__goal *goal)
{
    struct flow flow = {.goal = goal,
                        .node_count =
                            goal->partition_count * (goal->seat_count + 1) + goal->seat_count + 2};
    kelp_status status = KELP_ERR_NO_MEMORY;
    flow.cost = calloc(flow.node_count, sizeof(*flow.cost));
    flow.before = calloc(flow.node_count, sizeof(*flow.before));
    flow.queue = calloc(flow.node_count, sizeof(*flow.queue));
    flow.queued = calloc(flow.node_count, sizeof(*flow.queued));
    if (flow.cost && flow.before && flow.queue && flow.queued) {
        share_out(&flow);
        place_copies(&flow);
        shift_copies(&flow);
        place_anew(&flow);
        status = KELP_OK;
    }
    free(flow.cost);
    free(flow.before);
    free(flow.queue);
    free(flow.queued);
    return status;
}

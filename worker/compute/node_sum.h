/*
 * The sum of a node's lanes in tree order, lane after lane: left siblings wait until their right
 * ones are there. Each lane is rounded where transport.precision says so.
 *
 *     lanes 0 1 2 3:   0   0+1   (0+1) 2   (0+1) + (2+3)
 *
 * Lanes whose values are apart (worker/compute/gradients.h) have been added up elsewhere, in the
 * same order, and come with the last lane of the node that has samples.
 *
 * Pure, but for the trace.
 */
#ifndef KELP_WORKER_COMPUTE_NODE_SUM_H
#define KELP_WORKER_COMPUTE_NODE_SUM_H

#include "common/log/trace.h"
#include "worker/compute/gradients.h"
#include "worker/core/schedule.h"

#define KELP_NODE_SUM_LEVELS (KELP_SCHEDULE_NODES_MAX / 2)

/* In the caller's memory. */
struct kelp_node_sum {
    struct kelp_gradient *waiting[KELP_NODE_SUM_LEVELS]; /* sums of 2^i lanes; NULL: none waits */
    uint32_t lane_first;
    uint32_t lane_count;
    uint32_t done;            /* lanes that were added */
    struct kelp_trace *trace; /* of additions, set by the caller after the beginning; NULL: none */
    uint64_t step;            /* for it */
};

/* An aligned node: lane_count is a power of two that divides lane_first. */
void kelp_node_sum_begin(struct kelp_node_sum *sum, uint32_t lane_first, uint32_t lane_count);

/* The next lane; transferred. Returns the whole node after its last lane, owned by the caller, and
 * before it NULL. */
struct kelp_gradient *kelp_node_sum_add(struct kelp_node_sum *sum, struct kelp_gradient *gradient);

/*
 * The last lane in pieces, from the last elements to the first: its values [first, first + count)
 * are there, and are added to what waits. Returns the buffer in which the node has these elements
 * now. Then kelp_node_sum_add_rest(), for the first `count` elements and the sums.
 */
struct kelp_gradient *kelp_node_sum_add_values(const struct kelp_node_sum *sum,
                                               struct kelp_gradient *gradient, uint64_t first,
                                               uint64_t count);
struct kelp_gradient *kelp_node_sum_add_rest(struct kelp_node_sum *sum,
                                             struct kelp_gradient *gradient, uint64_t count);

/* Give back what waits: the node is not wanted any more, or is whole. */
void kelp_node_sum_drop(struct kelp_node_sum *sum);

#endif

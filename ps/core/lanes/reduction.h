/*
 * The fixed binary reduction tree over the lanes of one entry: which nodes are there, which two are
 * to be added next. Association depends on position alone: a node's value is always
 * value(left child) + value(right child), whoever sent what in which order (docs/ARCHITECTURE.md,
 * "The life of a step").
 *
 * Pure: it belongs to ps/core/partition/partition.h. Nodes are handles. Sums of metrics, where they
 * are kept, are added here, in double, along the same tree.
 */
#ifndef KELP_PS_CORE_LANES_REDUCTION_H
#define KELP_PS_CORE_LANES_REDUCTION_H

#include "ps/core/partition_events.h"

struct kelp_reduction;

/* lanes is a power of two, at most KELP_JOB_LANES_MAX. NULL: out of memory. */
struct kelp_reduction *kelp_reduction_create(uint32_t lanes, bool with_sums);
void kelp_reduction_destroy(struct kelp_reduction *reduction);

/* True for [k * 2^h, (k + 1) * 2^h) inside the lanes. */
bool kelp_reduction_aligned(const struct kelp_reduction *reduction, uint32_t lane_first,
                            uint32_t lane_count);

/*
 * Add a node; false: its lanes are covered already, nothing changed and the handle is still the
 * caller's. Appends RELEASE for nodes that it replaces and at most one MERGE; the caller has
 * reserved room (kelp_reduction_actions_max). Sums that are not kept are ignored.
 */
bool kelp_reduction_add(struct kelp_reduction *reduction, const struct kelp_push *push,
                        struct kelp_actions *actions);

/* True when an addition of these lanes would change nothing. */
bool kelp_reduction_covered(const struct kelp_reduction *reduction, uint32_t lane_first,
                            uint32_t lane_count);

/* A node, as others see it. */
struct kelp_reduction_node {
    uint32_t lane_first;
    uint32_t lane_count;
    bool is_merging;
    uint64_t handle;
    const double *sums; /* borrowed until the next addition; NULL when none are kept */
    uint32_t sum_count;
};
/* Take out, with its handle, one node that an addition of these lanes would replace, if there is
 * one. Those that are being merged stay. */
bool kelp_reduction_pop(struct kelp_reduction *reduction, uint32_t lane_first, uint32_t lane_count,
                        struct kelp_reduction_node *ret_node);

/* The nodes that the last addition or merge has formed of smaller ones, from below. */
uint32_t kelp_reduction_formed_count(const struct kelp_reduction *reduction);
/* With a MERGE in progress, is_merging, and no handle; else the handle stays the tree's. */
void kelp_reduction_formed(const struct kelp_reduction *reduction, uint32_t which,
                           struct kelp_reduction_node *ret_node);
/* Does the tree wait for this MERGE? Then the node is the one that it gives. */
bool kelp_reduction_expects(const struct kelp_reduction *reduction, uint64_t token,
                            struct kelp_reduction_node *ret_node);

/* A MERGE came back. A result that nobody waits for any more is released. */
void kelp_reduction_merged(struct kelp_reduction *reduction, uint64_t token, uint64_t handle,
                           struct kelp_actions *actions);

/* True when all lanes are in one node; the handle stays the tree's until kelp_reduction_clear().
 * *ret_sums: KELP_METRIC_SUM_COUNT of them, borrowed until the next addition; NULL when none are
 * kept.
 */
bool kelp_reduction_root(const struct kelp_reduction *reduction, uint64_t *ret_handle,
                         const double **ret_sums);

/* Take the gradient of the complete root out; its sums stay until kelp_reduction_clear(). */
uint64_t kelp_reduction_take_root(struct kelp_reduction *reduction);

/* Forget all nodes and release their handles. */
void kelp_reduction_clear(struct kelp_reduction *reduction, struct kelp_actions *actions);

/* Which lanes nobody has sent: ret_missing[lanes] becomes 1 for them, 0 for the others. Returns how
 * many. */
uint32_t kelp_reduction_missing(const struct kelp_reduction *reduction, uint8_t *ret_missing);

/* Nodes held, merges in progress included. */
uint32_t kelp_reduction_pending(const struct kelp_reduction *reduction);
/* Most actions that one call appends. */
size_t kelp_reduction_actions_max(const struct kelp_reduction *reduction);

#endif

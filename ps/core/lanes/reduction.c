#include "ps/core/lanes/reduction.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/*
 * Nodes lie in heap order: 1 is the root, 2i and 2i + 1 are the children of i, and node lanes + k
 * is lane k. A present node has no present ancestor or descendant: an addition below a present node
 * is a duplicate, one above present nodes replaces them, and two siblings become their parent at
 * once. So at most `lanes` nodes are present at any time.
 */

#define LEVELS_MAX 16 /* more than the levels of KELP_JOB_LANES_MAX lanes */
_Static_assert(KELP_JOB_LANES_MAX < 1 << LEVELS_MAX, "a node for each level fits");

enum node_state {
    NODE_NONE,
    NODE_READY,  /* handle is valid */
    NODE_MERGING /* the shell adds its children, which are no longer present */
};

struct node {
    uint64_t handle;
    uint32_t serial; /* MERGING: serial of the merge that will fill the node */
    uint32_t state;  /* enum node_state */
};

/* Metric sums of a node. Values from `count` on are zero and not read: most entries have a few. */
struct sums {
    uint32_t count;
    double values[KELP_METRIC_SUM_COUNT];
};

struct kelp_reduction {
    uint32_t lanes;
    uint32_t pending;
    uint32_t serial; /* counts merges, so that a late result cannot fill another node */
    uint32_t formed_count;
    uint16_t formed[LEVELS_MAX]; /* nodes formed by the last event */
    struct node *nodes;          /* 2 * lanes */
    struct sums *sums;           /* 2 * lanes, or NULL */
};

static bool power_of_two(uint32_t value)
{
    return value != 0 && (value & (value - 1)) == 0;
}

struct kelp_reduction *kelp_reduction_create(uint32_t lanes, bool with_sums)
{
    struct kelp_reduction *reduction = calloc(1, sizeof(*reduction));

    assert(power_of_two(lanes));
    assert(lanes <= KELP_JOB_LANES_MAX);
    if (!reduction) {
        return NULL;
    }
    reduction->lanes = lanes;
    reduction->nodes = calloc(2 * (size_t)lanes, sizeof(*reduction->nodes));
    if (with_sums) {
        reduction->sums = calloc(2 * (size_t)lanes, sizeof(*reduction->sums));
    }
    if (!reduction->nodes || (with_sums && !reduction->sums)) {
        kelp_reduction_destroy(reduction);
        return NULL;
    }
    return reduction;
}

void kelp_reduction_destroy(struct kelp_reduction *reduction)
{
    if (reduction) {
        free(reduction->nodes);
        free(reduction->sums);
        free(reduction);
    }
}

bool kelp_reduction_aligned(const struct kelp_reduction *reduction, uint32_t lane_first,
                            uint32_t lane_count)
{
    return power_of_two(lane_count) && lane_count <= reduction->lanes &&
           lane_first < reduction->lanes && lane_first % lane_count == 0;
}

static bool covered(const struct kelp_reduction *reduction, uint32_t index)
{
    for (uint32_t i = index; i >= 1; i /= 2) {
        if (reduction->nodes[i].state != NODE_NONE) {
            return true;
        }
    }
    return false;
}

static uint32_t index_of(const struct kelp_reduction *reduction, uint32_t lane_first,
                         uint32_t lane_count)
{
    return reduction->lanes / lane_count + lane_first / lane_count;
}

bool kelp_reduction_covered(const struct kelp_reduction *reduction, uint32_t lane_first,
                            uint32_t lane_count)
{
    return covered(reduction, index_of(reduction, lane_first, lane_count));
}

/* A merge under way continues; its result finds no node and is released. */
static void remove_node(struct kelp_reduction *reduction, uint32_t index,
                        struct kelp_actions *actions)
{
    struct node *node = &reduction->nodes[index];

    if (node->state == NODE_NONE) {
        return;
    }
    if (node->state == NODE_READY) {
        kelp__actions_add_release(actions, node->handle);
    }
    node->state = NODE_NONE;
    node->handle = KELP_HANDLE_NONE;
    assert(reduction->pending > 0);
    reduction->pending--;
}

static void remove_descendants(struct kelp_reduction *reduction, uint32_t index,
                               struct kelp_actions *actions)
{
    uint32_t first = 2 * index;
    uint32_t count = 2;

    for (; first < 2 * reduction->lanes && reduction->pending > 0; first *= 2, count *= 2) {
        for (uint32_t i = 0; i < count; i++) {
            remove_node(reduction, first + i, actions);
        }
    }
}

static void describe(const struct kelp_reduction *reduction, uint32_t index,
                     struct kelp_reduction_node *ret_node)
{
    const struct node *node = &reduction->nodes[index];
    const struct sums *sums = reduction->sums ? &reduction->sums[index] : NULL;
    uint32_t level_first = 1;

    while (2 * level_first <= index) {
        level_first *= 2;
    }
    uint32_t count = reduction->lanes / level_first;
    *ret_node = (struct kelp_reduction_node){.lane_first = (index - level_first) * count,
                                             .lane_count = count,
                                             .is_merging = node->state == NODE_MERGING,
                                             .handle = node->handle,
                                             .sums = sums ? sums->values : NULL,
                                             .sum_count = sums ? sums->count : 0};
}

static void take_out(struct kelp_reduction *reduction, uint32_t index,
                     struct kelp_reduction_node *ret_node)
{
    describe(reduction, index, ret_node);
    reduction->nodes[index] = (struct node){.state = NODE_NONE};
    assert(reduction->pending > 0);
    reduction->pending--;
}

uint32_t kelp_reduction_formed_count(const struct kelp_reduction *reduction)
{
    return reduction->formed_count;
}

void kelp_reduction_formed(const struct kelp_reduction *reduction, uint32_t which,
                           struct kelp_reduction_node *ret_node)
{
    assert(which < reduction->formed_count);
    describe(reduction, reduction->formed[which], ret_node);
}

bool kelp_reduction_pop(struct kelp_reduction *reduction, uint32_t lane_first, uint32_t lane_count,
                        struct kelp_reduction_node *ret_node)
{
    uint32_t first = 2 * index_of(reduction, lane_first, lane_count);
    uint32_t count = 2;

    for (; first < 2 * reduction->lanes && reduction->pending > 0; first *= 2, count *= 2) {
        for (uint32_t i = first; i < first + count; i++) {
            if (reduction->nodes[i].state == NODE_READY) {
                take_out(reduction, i, ret_node);
                return true;
            }
        }
    }
    return false;
}

/* Set the count; values that it drops become zero. */
static void resize_sums(struct sums *sums, uint32_t count)
{
    if (sums->count > count) {
        memset(sums->values + count, 0, (sums->count - count) * sizeof(sums->values[0]));
    }
    sums->count = count;
}

static void add_sums(struct kelp_reduction *reduction, uint32_t parent)
{
    if (!reduction->sums) {
        return;
    }
    struct sums *sum = &reduction->sums[parent];
    const struct sums *left = &reduction->sums[2 * parent];
    const struct sums *right = &reduction->sums[2 * parent + 1];

    resize_sums(sum, left->count > right->count ? left->count : right->count);
    for (uint32_t i = 0; i < sum->count; i++) {
        sum->values[i] = left->values[i] + right->values[i];
    }
}

/* An empty node is the identity: the bits of its sibling move up unchanged, without an addition. */
static bool needs_merge(uint64_t left, uint64_t right)
{
    return left != KELP_HANDLE_NONE && right != KELP_HANDLE_NONE;
}

static void climb(struct kelp_reduction *reduction, uint32_t index, struct kelp_actions *actions)
{
    while (index > 1 && reduction->nodes[index ^ 1].state == NODE_READY) {
        uint32_t parent = index / 2;
        struct node *left = &reduction->nodes[2 * parent];
        struct node *right = &reduction->nodes[2 * parent + 1];
        struct node *node = &reduction->nodes[parent];
        assert(left->state == NODE_READY);
        assert(right->state == NODE_READY);
        assert(node->state == NODE_NONE);

        add_sums(reduction, parent);
        reduction->pending--; /* two nodes become one */
        reduction->formed[reduction->formed_count++] = (uint16_t)parent;
        if (needs_merge(left->handle, right->handle)) {
            node->state = NODE_MERGING;
            node->serial = ++reduction->serial;
            struct kelp_action *action = kelp__actions_add(actions, KELP_ACTION_MERGE);
            action->merge.left = left->handle;
            action->merge.right = right->handle;
            action->merge.token = (uint64_t)parent << 32 | node->serial;
            action->merge.is_root = parent == 1;
        } else {
            node->state = NODE_READY;
            node->handle = left->handle != KELP_HANDLE_NONE ? left->handle : right->handle;
        }
        *left = (struct node){.state = NODE_NONE};
        *right = (struct node){.state = NODE_NONE};
        if (node->state == NODE_MERGING) {
            return;
        }
        index = parent;
    }
}

bool kelp_reduction_add(struct kelp_reduction *reduction, const struct kelp_push *push,
                        struct kelp_actions *actions)
{
    assert(kelp_reduction_aligned(reduction, push->lane_first, push->lane_count));
    assert(push->sums || push->sum_count == 0);
    assert(push->sum_count <= KELP_METRIC_SUM_COUNT);
    uint32_t index = index_of(reduction, push->lane_first, push->lane_count);

    reduction->formed_count = 0;
    if (covered(reduction, index)) {
        return false;
    }
    remove_descendants(reduction, index, actions);
    reduction->nodes[index] = (struct node){.handle = push->handle, .state = NODE_READY};
    if (reduction->sums) {
        resize_sums(&reduction->sums[index], push->sum_count);
        for (uint32_t i = 0; i < push->sum_count; i++) {
            reduction->sums[index].values[i] = push->sums[i];
        }
    }
    reduction->pending++;
    assert(reduction->pending <= reduction->lanes);
    climb(reduction, index, actions);
    return true;
}

static bool waits_for(const struct kelp_reduction *reduction, uint64_t token)
{
    const struct node *node = &reduction->nodes[token >> 32];

    return node->state == NODE_MERGING && node->serial == (uint32_t)token;
}

bool kelp_reduction_expects(const struct kelp_reduction *reduction, uint64_t token,
                            struct kelp_reduction_node *ret_node)
{
    if (!waits_for(reduction, token)) {
        return false;
    }
    describe(reduction, (uint32_t)(token >> 32), ret_node);
    return true;
}

void kelp_reduction_merged(struct kelp_reduction *reduction, uint64_t token, uint64_t handle,
                           struct kelp_actions *actions)
{
    uint64_t index = token >> 32;
    assert(index >= 1 && index < reduction->lanes); /* only inner nodes are merged */
    assert(handle != KELP_HANDLE_NONE);
    struct node *node = &reduction->nodes[index];

    reduction->formed_count = 0;
    if (!waits_for(reduction, token)) {
        kelp__actions_add_release(actions, handle);
        return;
    }
    node->state = NODE_READY;
    node->handle = handle;
    climb(reduction, (uint32_t)index, actions);
}

bool kelp_reduction_root(const struct kelp_reduction *reduction, uint64_t *ret_handle,
                         const double **ret_sums)
{
    const struct node *root = &reduction->nodes[1];

    if (root->state != NODE_READY) {
        return false;
    }
    assert(reduction->pending == 1);
    *ret_handle = root->handle;
    *ret_sums = reduction->sums ? reduction->sums[1].values : NULL;
    return true;
}

uint64_t kelp_reduction_take_root(struct kelp_reduction *reduction)
{
    struct node *root = &reduction->nodes[1];
    const uint64_t handle = root->handle;

    assert(root->state == NODE_READY);
    root->handle = KELP_HANDLE_NONE;
    return handle;
}

void kelp_reduction_clear(struct kelp_reduction *reduction, struct kelp_actions *actions)
{
    for (uint32_t i = 1; i < 2 * reduction->lanes && reduction->pending > 0; i++) {
        remove_node(reduction, i, actions);
    }
    assert(reduction->pending == 0);
}

uint32_t kelp_reduction_missing(const struct kelp_reduction *reduction, uint8_t *ret_missing)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < reduction->lanes; i++) {
        ret_missing[i] = !covered(reduction, reduction->lanes + i);
        count += ret_missing[i];
    }
    return count;
}

uint32_t kelp_reduction_pending(const struct kelp_reduction *reduction)
{
    return reduction->pending;
}

size_t kelp_reduction_actions_max(const struct kelp_reduction *reduction)
{
    return (size_t)reduction->lanes + 1;
}

#include "common/training/decision_share.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>

/* ---- sums along the tree ---- */

void kelp_tree_sum_begin(struct kelp_tree_sum *sum, uint64_t first_leaf)
{
    sum->next = first_leaf;
    sum->count = 0;
}

/* The last two nodes are siblings: the left one has an even index. */
static bool siblings(const struct kelp_tree_sum *sum)
{
    if (sum->count < 2) {
        return false;
    }
    uint32_t level = sum->nodes[sum->count - 1].level;
    return sum->nodes[sum->count - 2].level == level && (sum->next >> level) % 2 == 0;
}

void kelp_tree_sum_add(struct kelp_tree_sum *sum, uint32_t level, double value)
{
    assert(level < 64);
    assert(sum->next % (UINT64_C(1) << level) == 0);
    assert(sum->count < KELP_TREE_NODES_MAX);

    sum->nodes[sum->count].level = level;
    sum->nodes[sum->count++].value = value;
    sum->next += UINT64_C(1) << level;
    while (siblings(sum)) {
        sum->count--;
        sum->nodes[sum->count - 1].level++;
        sum->nodes[sum->count - 1].value += sum->nodes[sum->count].value;
    }
}

double kelp_tree_sum_total(const struct kelp_tree_sum *sum)
{
    double total = 0.0;

    for (uint32_t i = sum->count; i-- > 0;) {
        total = i + 1 == sum->count ? sum->nodes[i].value : sum->nodes[i].value + total;
    }
    return total;
}

uint32_t kelp_tree_level(uint64_t first, uint64_t end)
{
    uint32_t level = 0;

    assert(first < end);
    while (level < 62 && first % (UINT64_C(2) << level) == 0 &&
           end - first >= UINT64_C(2) << level) {
        level++;
    }
    return level;
}

/* How many nodes cover leaves [first, end). */
static uint32_t count_nodes(uint64_t first, uint64_t end)
{
    uint32_t count = 0;

    for (; first < end; first += UINT64_C(1) << kelp_tree_level(first, end)) {
        count++;
    }
    return count;
}

/* Add the nodes of leaves [sum->next, end) from values. Returns how many. */
static uint32_t add_nodes(struct kelp_tree_sum *sum, uint64_t end, const double *values)
{
    uint32_t count = 0;

    while (sum->next < end) {
        kelp_tree_sum_add(sum, kelp_tree_level(sum->next, end), values[count++]);
    }
    return count;
}

/* ---- tensors ---- */

struct kelp_slice_range kelp_tensor_in(const struct kelp_plan *plan, uint32_t tensor,
                                       struct kelp_slice_range range)
{
    uint64_t begin = plan->tensors[tensor].offset;
    uint64_t end =
        tensor + 1 < plan->tensor_count ? plan->tensors[tensor + 1].offset : plan->flat_count;
    uint64_t first = begin > range.first ? begin : range.first;
    uint64_t last = end < range.first + range.count ? end : range.first + range.count;

    return (struct kelp_slice_range){.first = first, .count = last > first ? last - first : 0};
}

bool kelp_tensor_shared(const struct kelp_plan *plan, uint32_t tensor)
{
    struct kelp_slice_range all = {.count = plan->flat_count};
    struct kelp_slice_range whole = kelp_tensor_in(plan, tensor, all);
    uint64_t slice = kelp_plan_partition(plan, 0).count;

    return !plan->tensors[tensor].statistic &&
           whole.first / slice != (whole.first + whole.count - 1) / slice;
}

/* ---- shares ---- */

bool kelp_control_decides(const struct kelp_job *job)
{
    return job->failure.on_nan == KELP_NAN_SKIP || job->train.clip_norm > 0 ||
           job->train.optimizer == KELP_OPTIMIZER_LAMB;
}

uint32_t kelp_step_decision_count(const struct kelp_job *job, const struct kelp_plan *plan)
{
    uint32_t count = 0;

    if (job->train.optimizer != KELP_OPTIMIZER_LAMB) {
        return job->train.clip_norm > 0 ? 1 : 0;
    }
    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        count += kelp_tensor_shared(plan, i) ? 1 : 0;
    }
    assert(count <= KELP_STEP_DECISION_MAX);
    return count;
}

/* Leaves [first, first + count) of the tensor that lie in the range, counted from its beginning. */
static struct kelp_slice_range tensor_leaves(const struct kelp_plan *plan, uint32_t tensor,
                                             struct kelp_slice_range range)
{
    struct kelp_slice_range part = kelp_tensor_in(plan, tensor, range);

    return (struct kelp_slice_range){.first = (part.first - plan->tensors[tensor].offset) /
                                              KELP_LEAF_ELEMENTS,
                                     .count = part.count / KELP_LEAF_ELEMENTS};
}

static uint32_t count_lamb(const struct kelp_plan *plan, struct kelp_slice_range range)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        if (kelp_tensor_in(plan, i, range).count > 0 && kelp_tensor_shared(plan, i)) {
            struct kelp_slice_range leaves = tensor_leaves(plan, i, range);
            count += 2 * count_nodes(leaves.first, leaves.first + leaves.count);
        }
    }
    return count;
}

kelp_status kelp_decision_share_count(const struct kelp_job *job, const struct kelp_plan *plan,
                                      uint32_t partition, uint32_t *ret_count,
                                      struct kelp_error *reterr)
{
    struct kelp_slice_range range = kelp_plan_partition(plan, partition);
    uint32_t count = 1;

    if (job->train.optimizer == KELP_OPTIMIZER_LAMB) {
        count += count_lamb(plan, range);
    } else if (job->train.clip_norm > 0) {
        count += count_nodes(range.first / KELP_LEAF_ELEMENTS,
                             (range.first + range.count) / KELP_LEAF_ELEMENTS);
    }
    if (count > KELP_DECISION_SHARE_VALUES_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT,
                         "partition %" PRIu32 " of %" PRIu64 " elements has %" PRIu32
                         " values to tell of a step, over %d",
                         partition, range.count, count, KELP_DECISION_SHARE_VALUES_MAX);
    }
    *ret_count = count;
    return KELP_OK;
}

/* ---- decisions ---- */

double kelp_clip_factor(double max_norm, double sum_of_squares)
{
    double factor = max_norm / (sqrt(sum_of_squares) + 1e-6);

    return factor < 1.0 ? factor : 1.0;
}

double kelp_lamb_ratio(double weights, double update)
{
    return weights > 0.0 && update > 0.0 ? sqrt(weights) / sqrt(update) : 1.0;
}

static double decide_clip(const struct kelp_job *job, const struct kelp_plan *plan,
                          const struct kelp_decision_share *const *parts)
{
    struct kelp_tree_sum sum;

    kelp_tree_sum_begin(&sum, 0);
    for (uint32_t p = 0; p < plan->partition_count; p++) {
        struct kelp_slice_range range = kelp_plan_partition(plan, p);
        (void)add_nodes(&sum, (range.first + range.count) / KELP_LEAF_ELEMENTS,
                        &parts[p]->values[KELP_DECISION_SHARE_FINITE + 1]);
    }
    return kelp_clip_factor(job->train.clip_norm, kelp_tree_sum_total(&sum));
}

/* Index of a tensor's values in a partition's share: after those of shared tensors before it, of
 * which there is at most one. */
static uint32_t values_before(const struct kelp_plan *plan, struct kelp_slice_range range,
                              uint32_t tensor)
{
    uint32_t at = KELP_DECISION_SHARE_FINITE + 1;

    for (uint32_t i = tensor; i > 0; i--) {
        if (kelp_tensor_in(plan, i - 1, range).count == 0) {
            break;
        }
        if (kelp_tensor_shared(plan, i - 1)) {
            struct kelp_slice_range leaves = tensor_leaves(plan, i - 1, range);
            at += 2 * count_nodes(leaves.first, leaves.first + leaves.count);
        }
    }
    return at;
}

static double decide_tensor(const struct kelp_plan *plan, uint32_t tensor,
                            const struct kelp_decision_share *const *parts)
{
    uint64_t slice = kelp_plan_partition(plan, 0).count;
    uint32_t first = (uint32_t)(plan->tensors[tensor].offset / slice);
    struct kelp_tree_sum weights, update;

    kelp_tree_sum_begin(&weights, 0);
    kelp_tree_sum_begin(&update, 0);
    for (uint32_t p = first; p < plan->partition_count; p++) {
        struct kelp_slice_range range = kelp_plan_partition(plan, p);
        struct kelp_slice_range leaves = tensor_leaves(plan, tensor, range);
        if (leaves.count == 0) {
            break;
        }
        const double *values = &parts[p]->values[values_before(plan, range, tensor)];
        values += add_nodes(&weights, leaves.first + leaves.count, values);
        (void)add_nodes(&update, leaves.first + leaves.count, values);
    }
    return kelp_lamb_ratio(kelp_tree_sum_total(&weights), kelp_tree_sum_total(&update));
}

bool kelp_step_decide(const struct kelp_job *job, const struct kelp_plan *plan,
                      const struct kelp_decision_share *const *parts, double *ret_values)
{
    uint32_t count = 0;

    for (uint32_t p = 0; p < plan->partition_count; p++) {
        if (parts[p]->values[KELP_DECISION_SHARE_FINITE] == 0.0) {
            return true;
        }
    }
    if (job->train.optimizer == KELP_OPTIMIZER_LAMB) {
        for (uint32_t i = 0; i < plan->tensor_count; i++) {
            if (kelp_tensor_shared(plan, i)) {
                ret_values[count++] = decide_tensor(plan, i, parts);
            }
        }
    } else if (job->train.clip_norm > 0) {
        ret_values[0] = decide_clip(job, plan, parts);
    }
    return false;
}

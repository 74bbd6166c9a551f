#include "kernels/update.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/loops.h"

/* ---- segments ---- */

static enum kelp_update_kind kind_of(const struct kelp_job *job, const struct kelp_tensor *tensor)
{
    if (tensor->statistic) {
        return KELP_UPDATE_STATISTIC;
    }
    /* Without decay in the job all are of one kind, whatever their names. */
    return tensor->decays || job->train.weight_decay == 0.0 ? KELP_UPDATE_DECAYED
                                                            : KELP_UPDATE_PLAIN;
}

static bool same_kind(const struct kelp_update_segment *a, const struct kelp_update_segment *b)
{
    return a->kind == b->kind && memcmp(&a->momentum, &b->momentum, sizeof(a->momentum)) == 0;
}

/* Behind the last one, or joined to it. */
static void add_segment(struct kelp_update *update, const struct kelp_update_segment *segment)
{
    struct kelp_update_segment *last =
        update->count > 0 ? &update->segments[update->count - 1] : NULL;

    assert(segment->first == (last ? last->first + last->count : 0));
    if (last && same_kind(last, segment) && update->job->train.optimizer != KELP_OPTIMIZER_LAMB) {
        last->count += segment->count;
    } else {
        update->segments[update->count++] = *segment;
    }
}

static void add_tensor(struct kelp_update *update, const struct kelp_plan *plan, uint32_t i,
                       struct kelp_slice_range part, uint32_t shared)
{
    const struct kelp_tensor *tensor = &plan->tensors[i];

    add_segment(update, &(struct kelp_update_segment){.first = part.first - update->range.first,
                                                      .count = part.count,
                                                      .kind = kind_of(update->job, tensor),
                                                      .momentum = tensor->momentum,
                                                      .leaf_first = (part.first - tensor->offset) /
                                                                    KELP_LEAF_ELEMENTS,
                                                      .shared = shared});
}

kelp_status kelp_update_init(struct kelp_update *update, const struct kelp_job *job,
                             const struct kelp_plan *plan, struct kelp_slice_range range,
                             struct kelp_error *reterr)
{
    const bool all = range.count == plan->flat_count;
    const bool lamb = job->train.optimizer == KELP_OPTIMIZER_LAMB;
    size_t parts = 0;
    uint32_t shared = 0;

    assert(range.first + range.count <= plan->flat_count);
    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        parts += kelp_tensor_in(plan, i, range).count > 0 ? 1 : 0;
    }
    *update = (struct kelp_update){.job = job, .range = range};
    update->segments = calloc(parts + 1, sizeof(*update->segments));
    if (!update->segments) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for the update of %zu tensors",
                         parts);
    }
    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        const struct kelp_slice_range part = kelp_tensor_in(plan, i, range);
        const bool is_shared = lamb && !all && kelp_tensor_shared(plan, i);
        if (part.count > 0) {
            add_tensor(update, plan, i, part, is_shared ? shared : KELP_UPDATE_WHOLE);
        }
        shared += is_shared ? 1 : 0;
    }
    return KELP_OK;
}

void kelp_update_fini(struct kelp_update *update)
{
    free(update->segments);
    memset(update, 0, sizeof(*update));
}

/* The buffers from an element on. */
static struct kelp_optimizer_buffers buffers_at(const struct kelp_optimizer_buffers *buffers,
                                                uint64_t first)
{
    struct kelp_optimizer_buffers at = {.weights = buffers->weights + first,
                                        .gradient = buffers->gradient + first};

    at.weights_next = buffers->weights_next ? buffers->weights_next + first : NULL;
    for (uint32_t i = 0; i < KELP_OPTIMIZER_SLOTS_MAX; i++) {
        at.slots[i] = buffers->slots[i] ? buffers->slots[i] + first : NULL;
    }
    return at;
}

/* ---- sums ---- */

#define BLOCK_LEVEL    6 /* leaves that are added up at once: 4 KiB of floats */
#define BLOCK_LEAVES   (1u << BLOCK_LEVEL)
#define BLOCK_ELEMENTS (BLOCK_LEAVES * KELP_LEAF_ELEMENTS)

/* The next leaves: a whole block in one go, in the order of the tree. */
static void add_leaves(struct kelp_tree_sum *sum, double *leaves, uint64_t count)
{
    if (count < BLOCK_LEAVES || sum->next % BLOCK_LEAVES != 0) {
        for (uint64_t i = 0; i < count; i++) {
            kelp_tree_sum_add(sum, 0, leaves[i]);
        }
        return;
    }
    for (uint32_t width = BLOCK_LEAVES / 2; width > 0; width /= 2) {
        for (uint32_t i = 0; i < width; i++) {
            leaves[i] = leaves[2 * i] + leaves[2 * i + 1];
        }
    }
    kelp_tree_sum_add(sum, BLOCK_LEVEL, leaves[0]);
}

/* Elements from `at` to the next border of blocks, counted in leaves of the sum. */
static uint64_t to_border(const struct kelp_tree_sum *sum, uint64_t left)
{
    const uint64_t border = (BLOCK_LEAVES - sum->next % BLOCK_LEAVES) * KELP_LEAF_ELEMENTS;

    return left < border ? left : border;
}

static void add_squares(struct kelp_tree_sum *sum, const float *values, uint64_t count)
{
    const struct kelp_optimizer_loops *loops = kelp__loops()->optimizer;
    double leaves[BLOCK_LEAVES];

    assert(count % KELP_LEAF_ELEMENTS == 0);
    for (uint64_t first = 0, length; first < count; first += length) {
        length = to_border(sum, count - first);
        loops->leaf_squares(values + first, length / KELP_LEAF_ELEMENTS, leaves);
        add_leaves(sum, leaves, length / KELP_LEAF_ELEMENTS);
    }
}

/* Leaves of statistics, which no norm knows of: zero. */
static void add_zeros(struct kelp_tree_sum *sum, uint64_t leaves)
{
    const uint64_t end = sum->next + leaves;

    while (sum->next < end) {
        kelp_tree_sum_add(sum, kelp_tree_level(sum->next, end), 0.0);
    }
}

/* Squares of a segment's weights and of its update, from its first leaf in the tensor on. */
static void sum_lamb(const struct kelp_update_segment *segment,
                     const struct kelp_optimizer_step *step,
                     const struct kelp_optimizer_buffers *at, struct kelp_tree_sum *weights,
                     struct kelp_tree_sum *update)
{
    const struct kelp_optimizer_loops *loops = kelp__loops()->optimizer;
    float direction[BLOCK_ELEMENTS];

    kelp_tree_sum_begin(weights, segment->leaf_first);
    kelp_tree_sum_begin(update, segment->leaf_first);
    add_squares(weights, at->weights, segment->count);
    for (uint64_t first = 0, length; first < segment->count; first += length) {
        const struct kelp_optimizer_buffers block = buffers_at(at, first);
        length = to_border(update, segment->count - first);
        loops->lamb_direction(step, &block, length, direction);
        add_squares(update, direction, length);
    }
}

/* ---- parts ---- */

static void put_nodes(struct kelp_decision_share *part, const struct kelp_tree_sum *sum)
{
    for (uint32_t i = 0; i < sum->count; i++) {
        assert(part->count < KELP_DECISION_SHARE_VALUES_MAX); /* kelp_decision_share_count() */
        part->values[part->count++] = sum->nodes[i].value;
    }
}

static void measure_clip(const struct kelp_update *update, const float *gradient,
                         struct kelp_decision_share *part)
{
    struct kelp_tree_sum sum;

    kelp_tree_sum_begin(&sum, update->range.first / KELP_LEAF_ELEMENTS);
    for (uint32_t i = 0; i < update->count; i++) {
        const struct kelp_update_segment *segment = &update->segments[i];
        if (segment->kind == KELP_UPDATE_STATISTIC) {
            add_zeros(&sum, segment->count / KELP_LEAF_ELEMENTS);
        } else {
            add_squares(&sum, gradient + segment->first, segment->count);
        }
    }
    put_nodes(part, &sum);
}

static struct kelp_optimizer_step step_of(const struct kelp_update_segment *segment,
                                          const struct kelp_optimizer_step *step)
{
    struct kelp_optimizer_step own = *step;

    if (segment->kind == KELP_UPDATE_PLAIN) {
        kelp_optimizer_leave_decay(&own);
    }
    return own;
}

static void measure_lamb(const struct kelp_update *update, const struct kelp_optimizer_step *step,
                         const struct kelp_optimizer_buffers *buffers,
                         struct kelp_decision_share *part)
{
    struct kelp_tree_sum weights, direction;

    for (uint32_t i = 0; i < update->count; i++) {
        const struct kelp_update_segment *segment = &update->segments[i];
        if (segment->kind == KELP_UPDATE_STATISTIC || segment->shared == KELP_UPDATE_WHOLE) {
            continue;
        }
        const struct kelp_optimizer_buffers at = buffers_at(buffers, segment->first);
        const struct kelp_optimizer_step own = step_of(segment, step);
        sum_lamb(segment, &own, &at, &weights, &direction);
        put_nodes(part, &weights);
        put_nodes(part, &direction);
    }
}

void kelp_update_measure(const struct kelp_update *update, const struct kelp_optimizer_step *step,
                         const struct kelp_optimizer_buffers *buffers,
                         struct kelp_decision_share *ret_part)
{
    const bool finite = kelp_vector_finite(buffers->gradient, update->range.count);

    ret_part->count = 1;
    ret_part->values[KELP_DECISION_SHARE_FINITE] = finite ? 1.0 : 0.0;
    if (update->job->train.optimizer == KELP_OPTIMIZER_LAMB) {
        measure_lamb(update, step, buffers, ret_part);
    } else if (update->job->train.clip_norm > 0) {
        measure_clip(update, buffers->gradient, ret_part);
    }
}

/* ---- apply ---- */

static bool apply_lamb(const struct kelp_update_segment *segment,
                       const struct kelp_optimizer_step *step,
                       const struct kelp_step_decision *decision,
                       const struct kelp_optimizer_buffers *at)
{
    double ratio;

    if (segment->shared == KELP_UPDATE_WHOLE) {
        struct kelp_tree_sum weights, direction;
        sum_lamb(segment, step, at, &weights, &direction);
        ratio = kelp_lamb_ratio(kelp_tree_sum_total(&weights), kelp_tree_sum_total(&direction));
    } else {
        assert(segment->shared < decision->count);
        ratio = decision->values[segment->shared];
    }
    return kelp__loops()->optimizer->lamb(step, at, segment->count, ratio);
}

static bool apply_segment(const struct kelp_update *update,
                          const struct kelp_update_segment *segment,
                          const struct kelp_optimizer_step *step,
                          const struct kelp_step_decision *decision,
                          const struct kelp_optimizer_buffers *at)
{
    const struct kelp_optimizer_loops *loops = kelp__loops()->optimizer;
    const struct kelp_optimizer_step own = step_of(segment, step);

    if (segment->kind == KELP_UPDATE_STATISTIC) {
        return loops->statistic(segment->momentum, at, segment->count);
    }
    return update->job->train.optimizer == KELP_OPTIMIZER_LAMB
               ? apply_lamb(segment, &own, decision, at)
               : kelp__optimizer_update(loops, &own, at, segment->count);
}

bool kelp_update_apply(const struct kelp_update *update, const struct kelp_optimizer_step *step,
                       const struct kelp_step_decision *decision,
                       const struct kelp_optimizer_buffers *buffers)
{
    struct kelp_optimizer_step scaled = *step;
    bool finite = true;

    if (update->job->train.clip_norm > 0) {
        assert(decision->count == 1);
        scaled.scale = (float)decision->values[0];
    }
    for (uint32_t i = 0; i < update->count; i++) {
        const struct kelp_update_segment *segment = &update->segments[i];
        const struct kelp_optimizer_buffers at = buffers_at(buffers, segment->first);
        finite = apply_segment(update, segment, &scaled, decision, &at) && finite;
    }
    return finite;
}

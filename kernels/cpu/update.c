#include "kernels/update.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/loops/loops.h"

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

/* To `bytes` further on in a term. Beyond its last piece only when something is read there. */
static const void *skip(const void *at, struct kelp_gradient_rest *rest, size_t bytes)
{
    while (rest->next && bytes > rest->here) {
        bytes -= rest->here;
        at = rest->next->bytes;
        rest->here = rest->next->length;
        rest->next++;
    }
    rest->here -= rest->next ? bytes : 0;
    return (const char *)at + bytes;
}

/* The next `bytes` of a term in one piece: copied to `to` if they lie in several. */
static const void *collect(const void *at, struct kelp_gradient_rest rest, size_t bytes, void *to)
{
    size_t filled = 0;

    if (!rest.next || bytes <= rest.here) {
        return at;
    }
    for (;;) {
        const size_t part = rest.here < bytes - filled ? rest.here : bytes - filled;
        memcpy((char *)to + filled, at, part);
        filled += part;
        if (filled == bytes) {
            return to;
        }
        at = rest.next->bytes;
        rest.here = rest.next->length;
        rest.next++;
    }
}

/* To the buffers from an element on. In place: there is a block after the other. */
static void advance(struct kelp_optimizer_buffers *at, uint64_t count)
{
    struct kelp_gradient_terms *terms = &at->terms;
    const uint64_t bytes = count * sizeof(float);

    at->weights += count;
    at->gradient = at->gradient ? at->gradient + count : NULL;
    terms->left = terms->left ? skip(terms->left, &terms->left_rest, bytes) : NULL;
    terms->right = terms->right ? skip(terms->right, &terms->right_rest, bytes) : NULL;
    terms->sum = terms->sum ? terms->sum + count : NULL;
    at->weights_next = at->weights_next ? at->weights_next + count : NULL;
    for (uint32_t i = 0; i < KELP_OPTIMIZER_SLOTS_MAX; i++) {
        at->slots[i] = at->slots[i] ? at->slots[i] + count : NULL;
    }
}

static struct kelp_optimizer_buffers buffers_at(const struct kelp_optimizer_buffers *buffers,
                                                uint64_t first)
{
    struct kelp_optimizer_buffers at = *buffers;

    advance(&at, first);
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

/* A block of our own: no vector of it lies across two cache lines. */
struct block {
    float values[BLOCK_ELEMENTS] __attribute__((aligned(64)));
};

/* A pass over terms of a gradient. */
struct pass {
    const struct kelp_optimizer_loops *loops;
    struct kelp_vector_digest digest; /* where it is wanted */
};

static void begin_pass(struct pass *pass, const struct kelp_optimizer_buffers *buffers)
{
    pass->loops = kelp__loops()->optimizer;
    if (buffers->terms.digest) {
        kelp_vector_digest_begin(&pass->digest);
    }
}

static void end_pass(const struct pass *pass, const struct kelp_optimizer_buffers *buffers)
{
    if (buffers->terms.digest) {
        kelp_vector_digest_end(&pass->digest, buffers->terms.digest);
    }
}

static void add_terms(const struct pass *pass, const struct kelp_gradient_terms *terms,
                      uint64_t count, float *to)
{
    struct block whole[2]; /* of terms that lie in pieces */
    const size_t bytes = count * sizeof(float);
    const void *left = collect(terms->left, terms->left_rest, bytes, whole[0].values);
    const void *right = collect(terms->right, terms->right_rest, bytes, whole[1].values);

    if (left == to) {
        pass->loops->vector_add(to, right, count);
    } else {
        pass->loops->vector_sum(to, left, right, count);
    }
}

/* A term that is all of the gradient: read where it is, unless a copy is wanted or its bytes are
 * none that floats can be read from. */
static const float *only_term(const struct kelp_gradient_terms *terms, size_t bytes, float *to)
{
    const void *left = collect(terms->left, terms->left_rest, bytes, to);

    if (!terms->sum && (uintptr_t)left % _Alignof(float) == 0) {
        return left;
    }
    if (left != to) {
        memcpy(to, left, bytes);
    }
    return to;
}

/* The gradient of a block, added up if nobody has: where the sum is wanted, or in `scratch`, which
 * stays in the first cache. */
static const float *block_gradient(struct pass *pass, const struct kelp_optimizer_buffers *block,
                                   uint64_t count, float *scratch)
{
    const struct kelp_gradient_terms *terms = &block->terms;
    const size_t bytes = count * sizeof(float);
    float *to = terms->sum ? terms->sum : scratch;
    const float *gradient = to;

    assert(count <= BLOCK_ELEMENTS);
    if (block->gradient) {
        return block->gradient;
    }
    if (terms->right) {
        add_terms(pass, terms, count, to);
    } else {
        gradient = only_term(terms, bytes, to);
    }
    if (terms->digest) {
        kelp_vector_digest_add(&pass->digest, gradient, bytes);
    }
    return gradient;
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

/* Is a segment's gradient finite? Its squares go to the sum, unless that is NULL. */
static bool look_at(struct pass *pass, const struct kelp_optimizer_buffers *at, uint64_t count,
                    struct kelp_tree_sum *sum)
{
    struct kelp_optimizer_buffers block = *at;
    struct block scratch;
    bool finite = true;

    for (uint64_t left = count, length; left > 0; left -= length, advance(&block, length)) {
        length = sum ? to_border(sum, left) : left < BLOCK_ELEMENTS ? left : BLOCK_ELEMENTS;
        const float *gradient = block_gradient(pass, &block, length, scratch.values);
        finite = pass->loops->vector_finite(gradient, length) && finite;
        if (sum) {
            add_squares(sum, gradient, length);
        }
    }
    return finite;
}

/* One pass over the gradient, with the squares that clipping asks for. */
static bool measure_gradient(const struct kelp_update *update,
                             const struct kelp_optimizer_buffers *buffers, bool clips,
                             struct kelp_decision_share *part)
{
    struct kelp_tree_sum sum;
    struct pass pass;
    bool finite = true;

    begin_pass(&pass, buffers);
    kelp_tree_sum_begin(&sum, update->range.first / KELP_LEAF_ELEMENTS);
    for (uint32_t i = 0; i < update->count; i++) {
        const struct kelp_update_segment *segment = &update->segments[i];
        const struct kelp_optimizer_buffers at = buffers_at(buffers, segment->first);
        const bool counts = clips && segment->kind != KELP_UPDATE_STATISTIC;
        finite = look_at(&pass, &at, segment->count, counts ? &sum : NULL) && finite;
        if (clips && !counts) {
            add_zeros(&sum, segment->count / KELP_LEAF_ELEMENTS);
        }
    }
    end_pass(&pass, buffers);
    if (clips) {
        put_nodes(part, &sum);
    }
    return finite;
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
    const bool lamb = update->job->train.optimizer == KELP_OPTIMIZER_LAMB;
    const bool clips = !lamb && update->job->train.clip_norm > 0;

    ret_part->count = 1;
    const bool finite = measure_gradient(update, buffers, clips, ret_part);
    ret_part->values[KELP_DECISION_SHARE_FINITE] = finite ? 1.0 : 0.0;
    if (lamb) {
        struct kelp_optimizer_buffers added = *buffers;
        added.gradient = buffers->gradient ? buffers->gradient : buffers->terms.sum;
        assert(added.gradient);
        measure_lamb(update, step, &added, ret_part);
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

/* From this many elements on weights go past the caches: what is written here is read again after
 * all of it, when no cache would have it any more, and a cache reads each line before it is
 * written.
 */
#define STREAM_ELEMENTS (UINT64_C(1) << 22)

static bool streams(const struct kelp_update *update, const struct kelp_optimizer_buffers *buffers)
{
    return update->range.count >= STREAM_ELEMENTS && (uintptr_t)buffers->weights_next % 64 == 0;
}

/* All but lamb. */
static bool apply_elements(const struct kelp_optimizer_loops *loops,
                           const struct kelp_update_segment *segment,
                           const struct kelp_optimizer_step *step,
                           const struct kelp_optimizer_buffers *at, uint64_t count)
{
    return segment->kind == KELP_UPDATE_STATISTIC ? loops->statistic(segment->momentum, at, count)
                                                  : kelp__optimizer_update(loops, step, at, count);
}

/* The same with what does not lie in memory as it is needed: sums are made, and weights are
 * written, for one block at a time. */
static bool apply_blocks(struct pass *pass, const struct kelp_update_segment *segment,
                         const struct kelp_optimizer_step *step,
                         const struct kelp_optimizer_buffers *at, bool stream)
{
    struct kelp_optimizer_buffers block = *at;
    struct block scratch, next;
    bool finite = true;

    for (uint64_t left = segment->count, length; left > 0; left -= length) {
        const float *gradient = block.gradient;
        float *to = block.weights_next;
        length = left < BLOCK_ELEMENTS ? left : BLOCK_ELEMENTS;
        block.gradient = block_gradient(pass, &block, length, scratch.values);
        block.weights_next = stream ? next.values : to;
        finite = apply_elements(pass->loops, segment, step, &block, length) && finite;
        if (stream) {
            pass->loops->vector_stream(to, next.values, length);
        }
        block.gradient = gradient;
        block.weights_next = to;
        advance(&block, length);
    }
    return finite;
}

static bool apply_segment(struct pass *pass, const struct kelp_update *update,
                          const struct kelp_update_segment *segment,
                          const struct kelp_optimizer_step *step,
                          const struct kelp_step_decision *decision,
                          const struct kelp_optimizer_buffers *at, bool stream)
{
    const struct kelp_optimizer_step own = step_of(segment, step);

    if (update->job->train.optimizer == KELP_OPTIMIZER_LAMB &&
        segment->kind != KELP_UPDATE_STATISTIC) {
        assert(at->gradient);
        return apply_lamb(segment, &own, decision, at);
    }
    return stream || !at->gradient ? apply_blocks(pass, segment, &own, at, stream)
                                   : apply_elements(pass->loops, segment, &own, at, segment->count);
}

bool kelp_update_apply(const struct kelp_update *update, const struct kelp_optimizer_step *step,
                       const struct kelp_step_decision *decision,
                       const struct kelp_optimizer_buffers *buffers)
{
    struct kelp_optimizer_step scaled = *step;
    const bool stream = streams(update, buffers);
    struct pass pass;
    bool finite = true;

    if (update->job->train.clip_norm > 0) {
        assert(decision->count == 1);
        scaled.scale = (float)decision->values[0];
    }
    begin_pass(&pass, buffers);
    for (uint32_t i = 0; i < update->count; i++) {
        const struct kelp_update_segment *segment = &update->segments[i];
        const struct kelp_optimizer_buffers at = buffers_at(buffers, segment->first);
        finite = apply_segment(&pass, update, segment, &scaled, decision, &at, stream) && finite;
    }
    end_pass(&pass, buffers);
    if (stream) {
        pass.loops->vector_streamed();
    }
    return finite;
}

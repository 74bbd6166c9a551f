#include "tests/sim/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "worker/core/schedule.h"

void sim_node_unref(struct sim_node *node)
{
    if (node && --node->refs == 0) {
        free(node);
    }
}

struct kelp_slice_range sim_slice(const struct sim *sim, uint32_t partition)
{
    return kelp_plan_partition(&sim->plan, partition);
}

/* In (-1, 1), with 24 bits that matter, and of very different sizes. */
static float random_float(uint64_t key)
{
    uint64_t bits = sim_mix(key * UINT64_C(0x9e3779b97f4a7c15) + 1);
    float value = (float)((int64_t)(bits >> 40) - (1 << 23)) / (float)(1 << 23);
    return value / (float)(1u << (bits & 15));
}

void sim_model_initialise(const struct sim *sim, float flat[SIM_FLAT_MAX])
{
    memset(flat, 0, SIM_FLAT_MAX * sizeof(float));
    for (uint64_t i = 0; i < sim->plan.flat_count; i++) {
        flat[i] = random_float(sim->job.seed * 4096 + i);
    }
}

void sim_model_digest(const struct sim *sim, const float flat[SIM_FLAT_MAX], char ret_hex[33])
{
    uint64_t a = 1;
    uint64_t b = 2;
    for (uint64_t i = 0; i < sim->plan.flat_count; i++) {
        uint32_t bits;
        memcpy(&bits, &flat[i], sizeof(bits));
        a = sim_mix(a + bits + i);
        b = sim_mix((b ^ bits) * UINT64_C(0x9e3779b97f4a7c15) + i);
    }
    (void)snprintf(ret_hex, 33, "%016llx%016llx", (unsigned long long)a, (unsigned long long)b);
}

bool sim_model_is_bad(const struct sim *sim, uint64_t step)
{
    /* Never more than half of the steps, or the job would fail at an epoch's end. */
    return sim->job.failure.on_nan == KELP_NAN_SKIP && step % 2 == 1 &&
           sim_mix(sim->job.seed + step * 977) % 2 == 0;
}

bool sim_model_finite(const float *values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (!isfinite(values[i])) {
            return false;
        }
    }
    return true;
}

/* ---- a lane ------------------------------------------------------------------------------------
 */

static void add_sample(const struct sim *sim, const struct kelp_control_word *word,
                       const float *flat, uint64_t sample, struct sim_node *node)
{
    uint64_t count = sim->plan.flat_count;
    double loss = 0;
    for (uint64_t i = 0; i < count; i++) {
        float x = random_float(sample * 8192 + i * 7 + (uint64_t)word->kind);
        float error = x * flat[i] + 0.25F * flat[(i * 5 + 17) % count] - x;
        if (node->present) {
            node->values[i] += error * x / (float)word->sample_count;
        }
        loss += (double)error * (double)error;
    }
    if (node->present && sim_model_is_bad(sim, word->step)) {
        node->values[sim_mix(word->step) % count] = word->step % 2 == 0 ? NAN : INFINITY;
    }
    node->sums[KELP_METRIC_SUM_LOSS] += loss / (double)count;
    node->sums[KELP_METRIC_SUM_SAMPLES] += 1;
    node->sums[KELP_METRIC_SUM_SQUARED] += loss;
    node->sums[KELP_METRIC_SUM_ABSOLUTE] += loss / 2;
    node->sums[KELP_METRIC_SUM_ELEMENTS] += (double)count;
}

static void add_lane(const struct sim *sim, const struct kelp_control_word *word, const float *flat,
                     uint32_t lane, struct sim_node *node)
{
    struct kelp_schedule schedule;
    uint64_t indices[SIM_VERSIONS_MAX];
    if (kelp_schedule_init(&schedule, &sim->job, sim->plan.samples, word, NULL) != KELP_OK) {
        abort();
    }
    struct kelp_schedule_range range = kelp_schedule_lane(&schedule, lane);
    if (range.count == 0) {
        return;
    }
    if (range.count > KELP_ARRAY_COUNT(indices)) {
        abort(); /* the profile draws smaller batches */
    }
    node->present = word->kind == KELP_STEP_TRAIN;
    kelp_schedule_indices(&schedule, range, indices);
    for (uint64_t i = 0; i < range.count; i++) {
        add_sample(sim, word, flat, indices[i], node);
    }
}

static void add_node(struct sim_node *left, const struct sim_node *right, uint64_t count)
{
    if (right->present) {
        for (uint64_t i = 0; i < count; i++) {
            left->values[i] = left->present ? left->values[i] + right->values[i] : right->values[i];
        }
    }
    left->present = left->present || right->present;
    for (int i = 0; i < KELP_METRIC_SUM_SCALARS; i++) {
        left->sums[i] += right->sums[i];
    }
}

static void compute(const struct sim *sim, const struct kelp_control_word *word, const float *flat,
                    struct sim_node *node)
{
    if (node->lane_count == 1) {
        if (word->kind != KELP_STEP_FINISH) {
            add_lane(sim, word, flat, node->lane_first, node);
        }
        return;
    }
    uint32_t half = node->lane_count / 2;
    struct sim_node right = {.lane_first = node->lane_first + half, .lane_count = half};
    node->lane_count = half;
    compute(sim, word, flat, node);
    compute(sim, word, flat, &right);
    add_node(node, &right, sim->plan.flat_count);
    node->lane_count = 2 * half;
}

struct sim_node *sim_model_node(const struct sim *sim, const struct kelp_control_word *word,
                                const float flat[SIM_FLAT_MAX], uint32_t lane_first,
                                uint32_t lane_count)
{
    struct sim_node *node = sim_alloc(sizeof(*node));
    node->refs = 1;
    node->lane_first = lane_first;
    node->lane_count = lane_count;
    compute(sim, word, flat, node);
    if (word->digest_due && lane_first == 0) {
        sim_model_digest(sim, flat, node->digest);
    }
    return node;
}

/* The squares of leaves of the flat vector from range.first on, along the tree. */
static void sum_squares(struct kelp_slice_range range, const float *gradient,
                        struct kelp_tree_sum *sum)
{
    kelp_tree_sum_begin(sum, range.first / KELP_LEAF_ELEMENTS);
    for (uint64_t i = 0; i < range.count; i += KELP_LEAF_ELEMENTS) {
        double leaf = 0;
        for (uint64_t k = i; k < i + KELP_LEAF_ELEMENTS; k++) {
            leaf += (double)gradient[k] * (double)gradient[k];
        }
        kelp_tree_sum_add(sum, 0, leaf);
    }
}

void sim_model_measure(const struct sim *sim, struct kelp_slice_range range, const float *gradient,
                       struct kelp_decision_share *ret_part)
{
    struct kelp_tree_sum sum;
    bool finite = range.count == 0 || sim_model_finite(gradient, range.count);
    ret_part->count = 1;
    ret_part->values[KELP_DECISION_SHARE_FINITE] = finite ? 1 : 0;
    if (sim->job.train.clip_norm > 0) {
        sum_squares(range, gradient, &sum);
        for (uint32_t i = 0; i < sum.count; i++) {
            ret_part->values[ret_part->count++] = sum.nodes[i].value;
        }
    }
}

void sim_model_apply(const struct kelp_control_word *word, double scale, const float *gradient,
                     size_t count, const float *weights, float *weights_next, float *momentum)
{
    for (size_t i = 0; i < count; i++) {
        momentum[i] = 0.875F * momentum[i] + gradient[i] * (float)scale;
        weights_next[i] = weights[i] - (float)word->lr * momentum[i];
    }
}

/* ---- the quiet run -----------------------------------------------------------------------------
 */

/* Over all leaves at once: partitions must come to the same. */
static double clip_factor(const struct sim *sim, const float *gradient)
{
    struct kelp_tree_sum sum;
    if (sim->job.train.clip_norm == 0) {
        return 1;
    }
    sum_squares((struct kelp_slice_range){.count = sim->plan.flat_count}, gradient, &sum);
    return kelp_clip_factor(sim->job.train.clip_norm, kelp_tree_sum_total(&sum));
}

static void run_entry(const struct sim *sim, struct sim_reference *reference,
                      struct kelp_control_state *control)
{
    struct kelp_control_word word;
    kelp_control_word(control, &sim->job, &sim->plan, &word);
    struct sim_node *root =
        sim_model_node(sim, &word, reference->weights[word.step], 0, sim->job.cluster.lanes);
    bool skip = word.kind == KELP_STEP_TRAIN && !sim_model_finite(root->values, SIM_FLAT_MAX);
    if (skip) {
        memcpy(reference->weights[word.step + 1], reference->weights[word.step],
               sizeof(reference->weights[0]));
        memcpy(reference->momentum[word.step + 1], reference->momentum[word.step],
               sizeof(reference->momentum[0]));
    } else if (word.kind == KELP_STEP_TRAIN) {
        memcpy(reference->momentum[word.step + 1], reference->momentum[word.step],
               sizeof(reference->momentum[0]));
        sim_model_apply(&word, clip_factor(sim, root->values), root->values, sim->plan.flat_count,
                        reference->weights[word.step], reference->weights[word.step + 1],
                        reference->momentum[word.step + 1]);
    }
    double sums[KELP_METRIC_SUM_COUNT] = {0};
    memcpy(sums, root->sums, sizeof(root->sums));
    (skip ? kelp_control_skip : kelp_control_apply)(
        control, &sim->job, &sim->plan, sums, root->digest, &reference->records[word.version]);
    sim_node_unref(root);
}

struct sim_reference *sim_reference_create(const struct sim *sim)
{
    struct sim_reference *reference = sim_alloc(sizeof(*reference));
    struct kelp_control_state control;
    reference->steps = kelp_control_total_steps(&sim->job, &sim->plan);
    reference->weights = sim_alloc((reference->steps + 1) * sizeof(*reference->weights));
    reference->momentum = sim_alloc((reference->steps + 1) * sizeof(*reference->momentum));
    /* Each step and each epoch may be followed by two evaluations. */
    const uint64_t most = 3 * (reference->steps + sim->job.train.epochs) +
                          kelp_control_predict_blocks(&sim->job, &sim->plan) + 8;
    reference->controls = sim_alloc((most + 1) * sizeof(*reference->controls));
    reference->records = sim_alloc(most * sizeof(*reference->records));
    sim_model_initialise(sim, reference->weights[0]);
    kelp_control_init(&control, &sim->job, &sim->plan);
    while (control.kind != KELP_STEP_DONE) {
        if (control.version >= most || control.version >= SIM_VERSIONS_MAX) {
            abort(); /* the profile draws shorter jobs */
        }
        reference->controls[control.version] = control;
        run_entry(sim, reference, &control);
    }
    reference->controls[control.version] = control;
    reference->versions = control.version;
    reference->steps = control.step; /* it may have ended early */
    sim_model_digest(sim, reference->weights[reference->steps], reference->digest);
    return reference;
}

void sim_reference_destroy(struct sim_reference *reference)
{
    if (reference) {
        free(reference->weights);
        free(reference->momentum);
        free(reference->controls);
        free(reference->records);
        free(reference);
    }
}

/* Updates by segments: statistics, excluded parameters and all others, however the flat vector is
 * cut into slices. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/tensors/philox.h"
#include "kernels/update.h"
#include "tests/lib/suite.h"

#define ELEMENTS 160 /* of the plan below */

static struct kelp_plan plan;

/* Slots as long as the vector, so that wrong offsets show. */
struct vectors {
    float weights[ELEMENTS], gradient[ELEMENTS], next[ELEMENTS];
    float slots[KELP_OPTIMIZER_SLOTS_MAX][ELEMENTS];
};

static void set_up(void)
{
    static const struct {
        const char *name;
        uint64_t count;
        bool statistic, decays;
        float momentum;
    } tensors[] = {
        {"a.weight", 40, false, true, 0.0f}, {"a.bias", 5, false, false, 0.0f},
        {"n.mean", 5, true, false, 0.1f},    {"n.variance", 5, true, false, 0.1f},
        {"m.mean", 7, true, false, 0.25f},   {"b.weight", 17, false, true, 0.0f},
        {"c.weight", 16, false, true, 0.0f},
    };

    plan = (struct kelp_plan){.tensor_count = KELP_ARRAY_COUNT(tensors)};
    plan.tensors = calloc(plan.tensor_count, sizeof(*plan.tensors));
    ck_assert_ptr_nonnull(plan.tensors);
    for (uint32_t i = 0; i < plan.tensor_count; i++) {
        struct kelp_tensor *tensor = &plan.tensors[i];
        (void)snprintf(tensor->name, sizeof(tensor->name), "%s", tensors[i].name);
        tensor->rank = 1;
        tensor->shape[0] = tensors[i].count;
        tensor->statistic = tensors[i].statistic;
        tensor->decays = tensors[i].decays;
        tensor->momentum = tensors[i].momentum;
    }
    ck_assert_int_eq(kelp_plan_lay_out(&plan, 4, NULL), KELP_OK);
    ck_assert_uint_eq(plan.flat_count, ELEMENTS);
}

static void tear_down(void)
{
    kelp_plan_fini(&plan);
}

static struct kelp_job adamw(double weight_decay)
{
    return (struct kelp_job){.train = {.optimizer = KELP_OPTIMIZER_ADAMW,
                                       .lr = 0.1,
                                       .beta1 = 0.9,
                                       .beta2 = 0.999,
                                       .weight_decay = weight_decay}};
}

static void fill(struct vectors *v)
{
    memset(v, 0, sizeof(*v));
    for (uint32_t i = 0; i < plan.tensor_count; i++) {
        for (uint64_t e = 0; e < plan.tensors[i].elem_count; e++) {
            uint32_t words[4];
            kelp_philox(7, KELP_PHILOX_TEST, i, e, words);
            v->weights[plan.tensors[i].offset + e] = kelp_philox_float(words[0]) - 0.5f;
            v->gradient[plan.tensors[i].offset + e] = kelp_philox_float(words[1]) - 0.5f;
        }
    }
}

/* Apply the range; its vectors are those of v from range.first on. */
static bool apply(const struct kelp_job *job, struct vectors *v, uint64_t first, uint64_t count)
{
    struct kelp_update update;
    struct kelp_optimizer_step step;
    const struct kelp_optimizer_buffers buffers = {
        .weights = v->weights + first,
        .gradient = v->gradient + first,
        .weights_next = v->next + first,
        .slots = {v->slots[0] + first, v->slots[1] + first, v->slots[2] + first}};

    kelp_optimizer_prepare(&step, job, job->train.lr, 1);
    ck_assert_int_eq(kelp_update_init(&update, job, &plan,
                                      (struct kelp_slice_range){.first = first, .count = count},
                                      NULL),
                     KELP_OK);
    const bool finite =
        kelp_update_apply(&update, &step, &(struct kelp_step_decision){.count = 0}, &buffers);
    kelp_update_fini(&update);
    return finite;
}

KELP_CASE("update", .setup = set_up, .teardown = tear_down)

/* Tensors that are updated alike are one segment: the usual model has a single one. */
KELP_TEST(test_segments)
{
    const struct kelp_slice_range all = {.count = ELEMENTS};
    struct kelp_update update;
    struct kelp_job job = adamw(0.1);

    ck_assert_int_eq(kelp_update_init(&update, &job, &plan, all, NULL), KELP_OK);
    ck_assert_uint_eq(update.count, 5);
    ck_assert_uint_eq(update.segments[2].first, 64);
    ck_assert_uint_eq(update.segments[2].count, 32);
    ck_assert_int_eq(update.segments[2].kind, KELP_UPDATE_STATISTIC);
    kelp_update_fini(&update);
    job = adamw(0);
    ck_assert_int_eq(kelp_update_init(&update, &job, &plan, all, NULL), KELP_OK);
    ck_assert_uint_eq(update.count, 4);
    kelp_update_fini(&update);
    const struct kelp_slice_range last = {.first = 112, .count = 48};
    ck_assert_int_eq(kelp_update_init(&update, &job, &plan, last, NULL), KELP_OK);
    ck_assert_uint_eq(update.count, 1);
    kelp_update_fini(&update);
    const struct kelp_slice_range nothing = {.first = ELEMENTS, .count = 0};
    ck_assert_int_eq(kelp_update_init(&update, &job, &plan, nothing, NULL), KELP_OK);
    ck_assert_uint_eq(update.count, 0);
    kelp_update_fini(&update);
}

/* Each tensor gets its own rule: the optimizer with decay, without, or the average. */
KELP_TEST(test_each_by_its_rule)
{
    static struct vectors v, decayed, plain;
    struct kelp_job with = adamw(0.1), without = adamw(0);
    struct kelp_optimizer_step step;

    fill(&v);
    decayed = plain = v;
    kelp_optimizer_prepare(&step, &with, 0.1, 1);
    struct kelp_optimizer_buffers buffers = {.weights = decayed.weights,
                                             .gradient = decayed.gradient,
                                             .weights_next = decayed.next,
                                             .slots = {decayed.slots[0], decayed.slots[1]}};
    ck_assert(kelp_optimizer_apply(&step, &buffers, ELEMENTS));
    kelp_optimizer_prepare(&step, &without, 0.1, 1);
    buffers = (struct kelp_optimizer_buffers){.weights = plain.weights,
                                              .gradient = plain.gradient,
                                              .weights_next = plain.next,
                                              .slots = {plain.slots[0], plain.slots[1]}};
    ck_assert(kelp_optimizer_apply(&step, &buffers, ELEMENTS));
    ck_assert(apply(&with, &v, 0, ELEMENTS));
    for (uint32_t i = 0; i < plan.tensor_count; i++) {
        const struct kelp_tensor *tensor = &plan.tensors[i];
        for (uint64_t e = tensor->offset; e < tensor->offset + tensor->elem_count; e++) {
            if (tensor->statistic) {
                const double m = (double)tensor->momentum;
                ck_assert_double_eq_tol((double)v.next[e],
                                        (1 - m) * (double)v.weights[e] + m * (double)v.gradient[e],
                                        1e-7);
                ck_assert_float_eq(v.slots[0][e], 0.0f);
                ck_assert_float_eq(v.slots[1][e], 0.0f);
            } else {
                const struct vectors *expected = tensor->decays ? &decayed : &plain;
                ck_assert_float_eq(v.next[e], expected->next[e]);
                ck_assert_float_eq(v.slots[0][e], expected->slots[0][e]);
            }
        }
    }
    ck_assert_float_ne(decayed.next[0], plain.next[0]);
    ck_assert_float_eq(v.next[45], 0.0f); /* padding stays zero */
}

/* What is held (a momentum of 0) keeps its bits, the sign of a zero and a NaN too, whatever its
 * gradient is. */
KELP_TEST(test_held_keeps_its_bits)
{
    static struct vectors v;
    const struct kelp_job job = adamw(0.1);

    fill(&v);
    plan.tensors[2].momentum = 0;
    float *weights = v.weights + plan.tensors[2].offset;
    weights[0] = -0.0f;
    weights[1] = NAN;
    for (uint64_t e = 0; e < plan.tensors[2].elem_count; e++) {
        v.gradient[plan.tensors[2].offset + e] = e % 2 ? 1.0f : NAN;
    }
    ck_assert(apply(&job, &v, 0, ELEMENTS));
    ck_assert_mem_eq(v.next + plan.tensors[2].offset, weights,
                     plan.tensors[2].elem_count * sizeof(*weights));
}

/* Cuts at any multiple of 16 elements, through tensors too, change nothing. */
KELP_LOOP_TEST(test_cuts_change_nothing, 1, 12)
{
    static struct vectors whole, cut;
    const struct kelp_job job = adamw(0.1);

    fill(&whole);
    cut = whole;
    ck_assert(apply(&job, &whole, 0, ELEMENTS));
    const uint64_t size = 16 * (uint64_t)_i;
    for (uint64_t first = 0; first < ELEMENTS; first += size) {
        ck_assert(apply(&job, &cut, first, ELEMENTS - first < size ? ELEMENTS - first : size));
    }
    ck_assert_mem_eq(&whole, &cut, sizeof(whole));
}

/* What is not finite is noticed in every segment. */
KELP_TEST(test_not_finite_is_noticed)
{
    static struct vectors v;
    const struct kelp_job job = adamw(0.1);

    for (uint32_t i = 0; i < plan.tensor_count; i++) {
        fill(&v);
        v.gradient[plan.tensors[i].offset + plan.tensors[i].elem_count - 1] =
            i % 2 ? NAN : INFINITY;
        ck_assert_msg(!apply(&job, &v, 0, ELEMENTS), "%s", plan.tensors[i].name);
    }
    fill(&v);
    ck_assert(apply(&job, &v, 0, ELEMENTS));
}

/* ---- steps with decisions ----------------------------------------------------------------------
 */

/* Two steps of the whole vector in so many partitions, each of which measures and applies its own
 * slice; the last decision is in ret_decided. */
static void train(const struct kelp_job *job, struct vectors *v, uint32_t partitions,
                  double ret_decided[KELP_STEP_DECISION_MAX])
{
    struct kelp_update updates[10];
    struct kelp_decision_share parts[10];
    const struct kelp_decision_share *pointers[10];

    plan.partition_count = partitions;
    for (uint64_t k = 1; k <= 2; k++) {
        struct kelp_optimizer_step step;
        struct kelp_step_decision decision = {.count = kelp_step_decision_count(job, &plan),
                                              .values = ret_decided};
        kelp_optimizer_prepare(&step, job, job->train.lr, k);
        for (uint32_t p = 0; p < partitions; p++) {
            const struct kelp_slice_range range = kelp_plan_partition(&plan, p);
            const struct kelp_optimizer_buffers buffers = {
                .weights = v->weights + range.first,
                .gradient = v->gradient + range.first,
                .slots = {v->slots[0] + range.first, v->slots[1] + range.first}};
            uint32_t count;
            ck_assert_int_eq(kelp_update_init(&updates[p], job, &plan, range, NULL), KELP_OK);
            kelp_update_measure(&updates[p], &step, &buffers, &parts[p]);
            ck_assert_int_eq(kelp_decision_share_count(job, &plan, p, &count, NULL), KELP_OK);
            ck_assert_uint_eq(parts[p].count, count);
            pointers[p] = &parts[p];
        }
        ck_assert(!kelp_step_decide(job, &plan, pointers, ret_decided));
        for (uint32_t p = 0; p < partitions; p++) {
            const uint64_t first = kelp_plan_partition(&plan, p).first;
            const struct kelp_optimizer_buffers buffers = {
                .weights = v->weights + first,
                .gradient = v->gradient + first,
                .weights_next = v->next + first,
                .slots = {v->slots[0] + first, v->slots[1] + first}};
            ck_assert(kelp_update_apply(&updates[p], &step, &decision, &buffers));
            kelp_update_fini(&updates[p]);
        }
        memcpy(v->weights, v->next, sizeof(v->weights));
    }
}

/* The gradient as a whole is scaled by its norm over all parameters and no statistic, to the same
 * bits in any number of partitions. */
KELP_LOOP_TEST(test_clipping, 1, 11)
{
    static struct vectors whole, cut;
    static double decided[KELP_STEP_DECISION_MAX];
    struct kelp_job job = {
        .train = {.optimizer = KELP_OPTIMIZER_SGD, .lr = 0.5, .clip_norm = 0.25}};
    double squares = 0;

    fill(&whole);
    cut = whole;
    for (uint32_t i = 0; i < plan.tensor_count; i++) {
        for (uint64_t e = 0; e < plan.tensors[i].elem_count && !plan.tensors[i].statistic; e++) {
            const double g = (double)whole.gradient[plan.tensors[i].offset + e];
            squares += g * g;
        }
    }
    const float before = whole.weights[0];
    train(&job, &whole, 1, decided);
    ck_assert_double_eq_tol(decided[0], 0.25 / (sqrt(squares) + 1e-6), 1e-12);
    ck_assert_float_eq_tol(whole.next[0], before - 2 * 0.5f * (float)decided[0] * whole.gradient[0],
                           1e-6f);
    train(&job, &cut, (uint32_t)_i, decided);
    ck_assert_mem_eq(&whole, &cut, sizeof(whole));
    job.train.clip_norm = 1e6; /* longer than it is: nothing is scaled */
    train(&job, &cut, (uint32_t)_i, decided);
    ck_assert_double_eq(decided[0], 1.0);
}

/* One step of lamb from zero moments, in double. */
static void plain_lamb(const struct kelp_job *job, const struct kelp_tensor *tensor,
                       const struct vectors *v, double *next)
{
    double w2 = 0, u2 = 0, u[64];

    for (uint64_t e = 0; e < tensor->elem_count; e++) {
        const double w = (double)v->weights[tensor->offset + e];
        const double g = (double)v->gradient[tensor->offset + e];
        u[e] = g / (fabs(g) + 1e-6) + (tensor->decays ? job->train.weight_decay * w : 0);
        w2 += w * w;
        u2 += u[e] * u[e];
    }
    for (uint64_t e = 0; e < tensor->elem_count; e++) {
        next[e] = (double)v->weights[tensor->offset + e] - job->train.lr * sqrt(w2 / u2) * u[e];
    }
}

/* Lamb scales the update of each tensor to the length of its weights, whole or shared between
 * partitions, to the same bits. */
KELP_LOOP_TEST(test_lamb, 1, 11)
{
    static struct vectors whole, cut, first;
    static double decided[KELP_STEP_DECISION_MAX];
    const struct kelp_job job = {.train = {.optimizer = KELP_OPTIMIZER_LAMB,
                                           .lr = 0.01,
                                           .beta1 = 0.9,
                                           .beta2 = 0.999,
                                           .weight_decay = 0.1}};
    struct kelp_update update;
    struct kelp_optimizer_step step;

    fill(&whole);
    cut = first = whole;
    const struct kelp_slice_range all = {.count = ELEMENTS};
    const struct kelp_optimizer_buffers buffers = {.weights = first.weights,
                                                   .gradient = first.gradient,
                                                   .weights_next = first.next,
                                                   .slots = {first.slots[0], first.slots[1]}};
    kelp_optimizer_prepare(&step, &job, job.train.lr, 1);
    ck_assert_int_eq(kelp_update_init(&update, &job, &plan, all, NULL), KELP_OK);
    ck_assert(
        kelp_update_apply(&update, &step, &(struct kelp_step_decision){.count = 0}, &buffers));
    kelp_update_fini(&update);
    for (uint32_t i = 0; i < plan.tensor_count; i++) {
        double next[64];
        const struct kelp_tensor *tensor = &plan.tensors[i];
        plain_lamb(&job, tensor, &whole, next);
        for (uint64_t e = 0; e < tensor->elem_count && !tensor->statistic; e++) {
            ck_assert_double_eq_tol((double)first.next[tensor->offset + e], next[e], 1e-6);
        }
    }
    train(&job, &whole, 1, decided);
    ck_assert_uint_eq(kelp_step_decision_count(&job, &plan), 0);
    train(&job, &cut, (uint32_t)_i, decided);
    ck_assert(_i < 5 || kelp_step_decision_count(&job, &plan) > 0);
    ck_assert_mem_eq(&whole, &cut, sizeof(whole));
}

/* A slice with a gradient that is not finite says so, wherever it stands. */
KELP_TEST(test_parts_tell_what_is_not_finite)
{
    static struct vectors v;
    const struct kelp_job job = {.train = {.optimizer = KELP_OPTIMIZER_SGD, .clip_norm = 1}};
    const struct kelp_slice_range all = {.count = ELEMENTS};
    const struct kelp_optimizer_buffers buffers = {.weights = v.weights, .gradient = v.gradient};
    struct kelp_optimizer_step step;
    struct kelp_update update;

    kelp_optimizer_prepare(&step, &job, 0.1, 1);
    ck_assert_int_eq(kelp_update_init(&update, &job, &plan, all, NULL), KELP_OK);
    for (uint32_t i = 0; i <= plan.tensor_count; i++) {
        struct kelp_decision_share part;
        fill(&v);
        if (i < plan.tensor_count) {
            v.gradient[plan.tensors[i].offset] = NAN;
        }
        kelp_update_measure(&update, &step, &buffers, &part);
        ck_assert_double_eq(part.values[KELP_DECISION_SHARE_FINITE],
                            i < plan.tensor_count ? 0.0 : 1.0);
    }
    kelp_update_fini(&update);
}

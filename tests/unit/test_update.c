/* Updates by segments: statistics, excluded parameters and all others, however the flat vector is
 * cut into slices. */
#include <check.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/philox.h"
#include "kernels/update.h"

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
    const bool finite = kelp_update_apply(&update, &step, &buffers);
    kelp_update_fini(&update);
    return finite;
}

/* Tensors that are updated alike are one segment: the usual model has a single one. */
START_TEST(test_segments)
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
END_TEST

/* Each tensor gets its own rule: the optimizer with decay, without, or the average. */
START_TEST(test_each_by_its_rule)
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
END_TEST

/* Cuts at any multiple of 16 elements, through tensors too, change nothing. */
START_TEST(test_cuts_change_nothing)
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
END_TEST

/* What is not finite is noticed in every segment. */
START_TEST(test_not_finite_is_noticed)
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
END_TEST

int main(void)
{
    Suite *suite = suite_create("update");
    TCase *tests = tcase_create("update");
    SRunner *runner = srunner_create(suite);

    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_add_test(tests, test_segments);
    tcase_add_test(tests, test_each_by_its_rule);
    tcase_add_loop_test(tests, test_cuts_change_nothing, 1, 12);
    tcase_add_test(tests, test_not_finite_is_noticed);
    suite_add_tcase(suite, tests);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

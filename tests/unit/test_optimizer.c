/* Optimizer updates: every instruction set gives the bits of plain scalar arithmetic, whatever the
 * alignment and however the vector is cut; what is not finite is noticed. */
#include <check.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/philox.h"
#include "kernels/cpu/loops.h"
#include "kernels/optimizer.h"

#define COUNT 1027 /* no multiple of any vector width */
#define STEPS 3

struct vectors {
    float weights[COUNT + 16], gradient[COUNT + 16], next[COUNT + 16], slots[2][COUNT + 16];
};

static void fill_random(float *values, uint32_t count, uint32_t stream)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t words[4];
        kelp_philox(7, KELP_PHILOX_TEST, stream, i, words);
        values[i] = 2.0f * kelp_philox_float(words[0]) - 1.0f;
    }
}

/* All settings that take another way through the code. */
static const struct kelp_job jobs[] = {
    {.train = {.optimizer = KELP_OPTIMIZER_SGD}},
    {.train = {.optimizer = KELP_OPTIMIZER_SGD, .weight_decay = 0.01}},
    {.train = {.optimizer = KELP_OPTIMIZER_SGD, .momentum = 0.9}},
    {.train = {.optimizer = KELP_OPTIMIZER_SGD, .momentum = 0.9, .dampening = 0.5}},
    {.train = {.optimizer = KELP_OPTIMIZER_SGD, .momentum = 0.9, .nesterov = true}},
    {.train = {.optimizer = KELP_OPTIMIZER_SGD, .momentum = 0.9, .weight_decay = 0.01}},
    {.train = {.optimizer = KELP_OPTIMIZER_SGD,
               .momentum = 0.9,
               .nesterov = true,
               .weight_decay = 0.01}},
    {.train = {.optimizer = KELP_OPTIMIZER_ADAM}},
    {.train = {.optimizer = KELP_OPTIMIZER_ADAM, .weight_decay = 0.01}},
    {.train = {.optimizer = KELP_OPTIMIZER_ADAMW, .weight_decay = 0.01}},
    {.train = {.optimizer = KELP_OPTIMIZER_ADAMW}},
};

static struct kelp_job job_at(int index)
{
    struct kelp_job job = jobs[index];
    job.train.lr = 0.05;
    job.train.beta1 = 0.9;
    job.train.beta2 = 0.999;
    job.train.eps = 1e-8;
    return job;
}

/* torch.optim written down once more, one element at a time; volatile keeps the compiler from
 * vectorising or fusing any of it. */
static float scalar_sgd(const struct kelp_job *job, float w, volatile float g, float *slot,
                        uint32_t step_number)
{
    volatile float term;
    const float momentum = (float)job->train.momentum;
    if (job->train.weight_decay != 0.0) {
        term = (float)job->train.weight_decay * w;
        g = g + term;
    }
    if (job->train.momentum != 0.0) {
        volatile float m = g;
        if (step_number > 1) {
            volatile float old = *slot * momentum;
            term = (float)(1.0 - job->train.dampening) * g;
            m = old + term;
        }
        *slot = m;
        term = momentum * m;
        g = job->train.nesterov ? g + term : m;
    }
    term = (float)job->train.lr * g;
    return w - term;
}

static float scalar_adam(const struct kelp_job *job, volatile float w, volatile float g,
                         float *exp_avg, float *exp_avg_sq, uint32_t step_number)
{
    volatile float a, b;
    double beta1_power = 1.0, beta2_power = 1.0;
    for (uint32_t i = 0; i < step_number; i++) {
        beta1_power *= job->train.beta1;
        beta2_power *= job->train.beta2;
    }
    if (job->train.optimizer == KELP_OPTIMIZER_ADAMW) {
        w = w * (float)(1.0 - job->train.lr * job->train.weight_decay);
    } else if (job->train.weight_decay != 0.0) {
        a = (float)job->train.weight_decay * w;
        g = g + a;
    }
    a = *exp_avg * (float)job->train.beta1;
    b = (float)(1.0 - job->train.beta1) * g;
    *exp_avg = a + b;
    a = *exp_avg_sq * (float)job->train.beta2;
    b = (float)(1.0 - job->train.beta2) * g;
    b = b * g;
    *exp_avg_sq = a + b;
    a = sqrtf(*exp_avg_sq);
    a = a / (float)sqrt(1.0 - beta2_power);
    a = a + (float)job->train.eps;
    b = (float)(job->train.lr / (1.0 - beta1_power)) * *exp_avg;
    b = b / a;
    return w - b;
}

static bool apply(const struct kelp_optimizer_loops *loops, const struct kelp_optimizer_step *step,
                  const struct kelp_optimizer_buffers *buffers, uint64_t count)
{
    return step->kind == KELP_OPTIMIZER_SGD ? loops->sgd(step, buffers, count)
                                            : loops->adam(step, buffers, count);
}

/* STEPS steps with one variant, every array `shift` floats from its alignment. */
static void run(const struct kelp_optimizer_loops *loops, const struct kelp_job *job,
                struct vectors *v, uint32_t shift)
{
    fill_random(v->weights + shift, COUNT, 1);
    memset(v->slots, 0, sizeof(v->slots));
    float *weights = v->weights + shift, *next = v->next + shift;
    for (uint32_t k = 1; k <= STEPS; k++) {
        struct kelp_optimizer_step step;
        fill_random(v->gradient + shift, COUNT, 1 + k);
        kelp_optimizer_prepare(&step, job, job->train.lr, k);
        const struct kelp_optimizer_buffers buffers = {
            .weights = weights,
            .gradient = v->gradient + shift,
            .weights_next = next,
            .slots = {v->slots[0] + shift, v->slots[1] + shift}};
        ck_assert(apply(loops, &step, &buffers, COUNT));
        float *swap = weights;
        weights = next;
        next = swap;
    }
    if (weights != v->weights + shift) {
        memmove(v->weights + shift, weights, COUNT * sizeof(float));
    }
}

/* Each instruction set, aligned or not, gives the bits of the scalar formulas. */
START_TEST(test_variants_give_scalar_bits)
{
    const struct kelp_job job = job_at(_i);
    static struct vectors v;
    static float weights[COUNT], gradient[COUNT], slots[2][COUNT];
    memset(slots, 0, sizeof(slots));
    fill_random(weights, COUNT, 1);
    for (uint32_t k = 1; k <= STEPS; k++) {
        fill_random(gradient, COUNT, 1 + k);
        for (uint32_t i = 0; i < COUNT; i++) {
            weights[i] =
                job.train.optimizer == KELP_OPTIMIZER_SGD
                    ? scalar_sgd(&job, weights[i], gradient[i], &slots[0][i], k)
                    : scalar_adam(&job, weights[i], gradient[i], &slots[0][i], &slots[1][i], k);
        }
    }
    const struct kelp_loops *variant;
    for (uint32_t n = 0; (variant = kelp__loops_variant(n)) != NULL; n++) {
        for (uint32_t shift = 0; shift < 3; shift++) {
            run(variant->optimizer, &job, &v, shift);
            ck_assert_msg(memcmp(v.weights + shift, weights, sizeof(weights)) == 0,
                          "%s, shift %u: weights", variant->name, shift);
            for (uint32_t s = 0; s < kelp_optimizer_slot_count(&job); s++) {
                ck_assert_msg(memcmp(v.slots[s] + shift, slots[s], sizeof(slots[s])) == 0,
                              "%s, shift %u: slot %u", variant->name, shift, s);
            }
        }
    }
}
END_TEST

/* Cutting the vector anywhere changes nothing. */
START_TEST(test_cuts_change_nothing)
{
    const struct kelp_job job = job_at(_i);
    static struct vectors whole, cut;
    struct kelp_optimizer_step step;
    for (struct vectors *v = &whole;; v = &cut) {
        fill_random(v->weights, COUNT, 1);
        fill_random(v->gradient, COUNT, 2);
        fill_random(v->slots[0], COUNT, 3);
        memset(v->slots[1], 0, sizeof(v->slots[1]));
        if (v == &cut) {
            break;
        }
    }
    kelp_optimizer_prepare(&step, &job, job.train.lr, 2);
    const struct kelp_optimizer_buffers buffers = {.weights = whole.weights,
                                                   .gradient = whole.gradient,
                                                   .weights_next = whole.next,
                                                   .slots = {whole.slots[0], whole.slots[1]}};
    ck_assert(kelp_optimizer_apply(&step, &buffers, COUNT));
    for (uint32_t first = 0, size = 1; first < COUNT; first += size, size = size * 2 + 1) {
        const uint32_t count = COUNT - first < size ? COUNT - first : size;
        const struct kelp_optimizer_buffers part = {
            .weights = cut.weights + first,
            .gradient = cut.gradient + first,
            .weights_next = cut.next + first,
            .slots = {cut.slots[0] + first, cut.slots[1] + first}};
        ck_assert(kelp_optimizer_apply(&step, &part, count));
    }
    ck_assert_mem_eq(whole.next, cut.next, COUNT * sizeof(float));
    ck_assert_mem_eq(whole.slots, cut.slots, sizeof(whole.slots));
}
END_TEST

/* One element that is infinite or NaN is noticed wherever it stands; large and tiny ones are not.
 */
START_TEST(test_not_finite_is_noticed)
{
    const struct kelp_job job = job_at(_i);
    static struct vectors v;
    struct kelp_optimizer_step step;
    const float wrong[] = {INFINITY, -INFINITY, NAN, -NAN};
    kelp_optimizer_prepare(&step, &job, job.train.lr, 1);
    const struct kelp_optimizer_buffers buffers = {.weights = v.weights,
                                                   .gradient = v.gradient,
                                                   .weights_next = v.next,
                                                   .slots = {v.slots[0], v.slots[1]}};
    const struct kelp_loops *variant;
    for (uint32_t n = 0; (variant = kelp__loops_variant(n)) != NULL; n++) {
        fill_random(v.gradient, COUNT, 5);
        v.gradient[3] = 3.4e38f;
        v.gradient[4] = -1e-45f;
        ck_assert(apply(variant->optimizer, &step, &buffers, COUNT));
        for (uint32_t at = 0; at < COUNT; at += 13) {
            const float saved = v.gradient[at];
            v.gradient[at] = wrong[at % KELP_ARRAY_COUNT(wrong)];
            ck_assert_msg(!apply(variant->optimizer, &step, &buffers, COUNT), "%s at %u",
                          variant->name, at);
            v.gradient[at] = saved;
        }
    }
    ck_assert(kelp_optimizer_apply(&step, &buffers, 0));
}
END_TEST

/* The sum takes received bytes at any offset. */
START_TEST(test_vector_add_takes_any_alignment)
{
    static float sum[COUNT], other[COUNT], expected[COUNT];
    static char bytes[sizeof(other) + 8];
    fill_random(other, COUNT, 2);
    for (size_t offset = 0; offset < 5; offset++) {
        memcpy(bytes + offset, other, sizeof(other));
        fill_random(sum, COUNT, 1);
        for (uint32_t i = 0; i < COUNT; i++) {
            expected[i] = sum[i] + other[i];
        }
        kelp_vector_add(sum, bytes + offset, COUNT);
        ck_assert_mem_eq(sum, expected, sizeof(sum));
    }
    const struct kelp_loops *variant;
    for (uint32_t n = 0; (variant = kelp__loops_variant(n)) != NULL; n++) {
        fill_random(sum, COUNT, 1);
        variant->optimizer->vector_add(sum, bytes + 4, COUNT);
        ck_assert_mem_eq(sum, expected, sizeof(sum));
    }
}
END_TEST

/* Slots are those that PyTorch keeps. */
START_TEST(test_slots)
{
    struct kelp_job job = job_at(0);
    ck_assert_uint_eq(kelp_optimizer_slot_count(&job), 0);
    job.train.momentum = 0.9;
    ck_assert_uint_eq(kelp_optimizer_slot_count(&job), 1);
    ck_assert_str_eq(kelp_optimizer_slot_name(&job, 0), "momentum_buffer");
    job.train.optimizer = KELP_OPTIMIZER_ADAMW;
    ck_assert_uint_eq(kelp_optimizer_slot_count(&job), 2);
    ck_assert_str_eq(kelp_optimizer_slot_name(&job, 0), "exp_avg");
    ck_assert_str_eq(kelp_optimizer_slot_name(&job, 1), "exp_avg_sq");
}
END_TEST

/* Bias corrections stay right for late steps: by then they are 1. */
START_TEST(test_late_steps)
{
    struct kelp_job job = job_at(7);
    struct kelp_optimizer_step step;
    kelp_optimizer_prepare(&step, &job, 0.25, UINT64_C(1) << 40);
    ck_assert_float_eq(step.step_size, 0.25f);
    ck_assert_float_eq(step.bias2_sqrt, 1.0f);
    kelp_optimizer_prepare(&step, &job, 0.25, 10);
    ck_assert_double_eq_tol((double)step.step_size, 0.25 / (1.0 - pow(0.9, 10)), 1e-7);
    ck_assert_double_eq_tol((double)step.bias2_sqrt, sqrt(1.0 - pow(0.999, 10)), 1e-8);
}
END_TEST

int main(void)
{
    const int job_count = (int)KELP_ARRAY_COUNT(jobs);
    Suite *suite = suite_create("optimizer");
    TCase *tcase = tcase_create("optimizer");
    tcase_add_loop_test(tcase, test_variants_give_scalar_bits, 0, job_count);
    tcase_add_loop_test(tcase, test_cuts_change_nothing, 0, job_count);
    tcase_add_loop_test(tcase, test_not_finite_is_noticed, 0, job_count);
    tcase_add_test(tcase, test_vector_add_takes_any_alignment);
    tcase_add_test(tcase, test_slots);
    tcase_add_test(tcase, test_late_steps);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}

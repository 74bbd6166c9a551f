/* Optimizer updates: every instruction set gives the bits of plain scalar arithmetic, whatever the
 * alignment and however the vector is cut; what is not finite is noticed. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/tensors/digest.h"
#include "common/tensors/philox.h"
#include "kernels/cpu/loops/loops.h"
#include "kernels/optimizer.h"
#include "kernels/update_answer.h"
#include "tests/lib/suite.h"

#define COUNT 1027 /* no multiple of any vector width */
#define STEPS 3

struct vectors {
    float weights[COUNT + 16], gradient[COUNT + 16], next[COUNT + 16],
        slots[KELP_OPTIMIZER_SLOTS_MAX][COUNT + 16];
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
    {.train = {.optimizer = KELP_OPTIMIZER_ADAM, .amsgrad = true}},
    {.train = {.optimizer = KELP_OPTIMIZER_ADAM, .amsgrad = true, .weight_decay = 0.01}},
    {.train = {.optimizer = KELP_OPTIMIZER_ADAMW, .amsgrad = true, .weight_decay = 0.01}},
    {.train = {.optimizer = KELP_OPTIMIZER_ADAGRAD}},
    {.train = {.optimizer = KELP_OPTIMIZER_ADAGRAD,
               .lr_decay = 0.1,
               .initial_accumulator = 0.1,
               .weight_decay = 0.01}},
    {.train = {.optimizer = KELP_OPTIMIZER_RMSPROP}},
    {.train = {.optimizer = KELP_OPTIMIZER_RMSPROP, .momentum = 0.9}},
    {.train = {.optimizer = KELP_OPTIMIZER_RMSPROP, .centered = true}},
    {.train = {.optimizer = KELP_OPTIMIZER_RMSPROP, .centered = true, .momentum = 0.9}},
    {.train = {.optimizer = KELP_OPTIMIZER_RMSPROP, .weight_decay = 0.01}},
    {.train = {.optimizer = KELP_OPTIMIZER_RMSPROP, .weight_decay = 0.01, .momentum = 0.9}},
    {.train = {.optimizer = KELP_OPTIMIZER_RMSPROP, .weight_decay = 0.01, .centered = true}},
    {.train = {.optimizer = KELP_OPTIMIZER_RMSPROP,
               .weight_decay = 0.01,
               .centered = true,
               .momentum = 0.9}},
    {.train = {.optimizer = KELP_OPTIMIZER_ADADELTA}},
    {.train = {.optimizer = KELP_OPTIMIZER_ADADELTA, .weight_decay = 0.01}},
};

static struct kelp_job job_at(int index)
{
    struct kelp_job job = jobs[index];
    job.train.lr = 0.05;
    job.train.beta1 = 0.9;
    job.train.beta2 = 0.999;
    job.train.alpha = 0.99;
    job.train.rho = 0.9;
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

/* a + b, each product rounded by itself. */
static float scalar_sum(float a, float b)
{
    volatile float x = a, y = b;
    return x + y;
}

static float scalar_product(float a, float b)
{
    volatile float x = a, y = b;
    return x * y;
}

/* average * keep + (1 - keep) * a * b, from left to right; b 1: of a alone. */
static float scalar_average(float average, double keep, float a, float b)
{
    const float old = scalar_product(average, (float)keep);
    return scalar_sum(old, scalar_product(scalar_product((float)(1.0 - keep), a), b));
}

static float scalar_quotient(float a, float b)
{
    volatile float x = a, y = b;
    return x / y;
}

static double integer_power(double base, uint32_t exponent)
{
    double result = 1.0;
    for (uint32_t i = 0; i < exponent; i++) {
        result *= base;
    }
    return result;
}

static float scalar_adam(const struct kelp_job *job, float w, float g, float *const slots[],
                         uint32_t k)
{
    const double beta1 = job->train.beta1, beta2 = job->train.beta2;
    *slots[0] = scalar_average(*slots[0], beta1, g, 1.0f);
    *slots[1] = scalar_average(*slots[1], beta2, g, g);
    float v = *slots[1];
    if (job->train.amsgrad) {
        v = *slots[2] = fmaxf(*slots[2], v);
    }
    const float root = scalar_quotient(sqrtf(v), (float)sqrt(1.0 - integer_power(beta2, k)));
    const float change =
        scalar_product((float)(job->train.lr / (1.0 - integer_power(beta1, k))), *slots[0]);
    return w - scalar_quotient(change, scalar_sum(root, (float)job->train.eps));
}

static float scalar_adagrad(const struct kelp_job *job, float w, float g, float *const slots[],
                            uint32_t k)
{
    *slots[0] = scalar_sum(*slots[0], scalar_product(g, g));
    const double rate = job->train.lr / (1.0 + (k - 1) * job->train.lr_decay);
    return w - scalar_quotient(scalar_product((float)rate, g),
                               scalar_sum(sqrtf(*slots[0]), (float)job->train.eps));
}

static float scalar_rmsprop(const struct kelp_job *job, float w, float g, float *const slots[])
{
    const bool momentum = job->train.momentum != 0.0;
    float v = *slots[0] = scalar_average(*slots[0], job->train.alpha, g, g);
    if (job->train.centered) {
        float *mean = slots[momentum ? 2 : 1];
        *mean = scalar_average(*mean, job->train.alpha, g, 1.0f);
        v = fmaxf(0.0f, scalar_sum(v, -scalar_product(*mean, *mean)));
    }
    const float denominator = scalar_sum(sqrtf(v), (float)job->train.eps);
    if (!momentum) {
        return w - scalar_quotient(scalar_product((float)job->train.lr, g), denominator);
    }
    *slots[1] = scalar_sum(scalar_product(*slots[1], (float)job->train.momentum),
                           scalar_quotient(g, denominator));
    return w - scalar_product((float)job->train.lr, *slots[1]);
}

static float scalar_adadelta(const struct kelp_job *job, float w, float g, float *const slots[])
{
    const float eps = (float)job->train.eps;
    *slots[0] = scalar_average(*slots[0], job->train.rho, g, g);
    const float ratio =
        scalar_quotient(sqrtf(scalar_sum(*slots[1], eps)), sqrtf(scalar_sum(*slots[0], eps)));
    const float delta = scalar_product(ratio, g);
    *slots[1] = scalar_average(*slots[1], job->train.rho, delta, delta);
    return w - scalar_product((float)job->train.lr, delta);
}

/* One element's update number k. */
static float scalar_update(const struct kelp_job *job, float w, float g, float *const slots[],
                           uint32_t k)
{
    if (job->train.optimizer == KELP_OPTIMIZER_SGD) {
        return scalar_sgd(job, w, g, slots[0], k);
    }
    if (job->train.optimizer == KELP_OPTIMIZER_ADAMW) {
        w = scalar_product(w, (float)(1.0 - job->train.lr * job->train.weight_decay));
    } else if (job->train.weight_decay != 0.0) {
        g = scalar_sum(g, scalar_product((float)job->train.weight_decay, w));
    }
    switch (job->train.optimizer) {
    case KELP_OPTIMIZER_ADAGRAD:
        return scalar_adagrad(job, w, g, slots, k);
    case KELP_OPTIMIZER_RMSPROP:
        return scalar_rmsprop(job, w, g, slots);
    case KELP_OPTIMIZER_ADADELTA:
        return scalar_adadelta(job, w, g, slots);
    default:
        return scalar_adam(job, w, g, slots, k);
    }
}

/* What the slots start from, in the first COUNT + 16 elements of each. */
static void start_slots(const struct kelp_job *job, struct vectors *v)
{
    memset(v->slots, 0, sizeof(v->slots));
    for (uint32_t s = 0; s < kelp_optimizer_slot_count(job); s++) {
        for (uint32_t i = 0; i < COUNT + 16; i++) {
            v->slots[s][i] = kelp_optimizer_slot_start(job, s);
        }
    }
}

/* STEPS steps with one variant, every array `shift` floats from its alignment. */
static void run(const struct kelp_optimizer_loops *loops, const struct kelp_job *job,
                struct vectors *v, uint32_t shift)
{
    fill_random(v->weights + shift, COUNT, 1);
    start_slots(job, v);
    float *weights = v->weights + shift, *next = v->next + shift;
    for (uint32_t k = 1; k <= STEPS; k++) {
        struct kelp_optimizer_step step;
        fill_random(v->gradient + shift, COUNT, 1 + k);
        kelp_optimizer_prepare(&step, job, job->train.lr, k);
        const struct kelp_optimizer_buffers buffers = {
            .weights = weights,
            .gradient = v->gradient + shift,
            .weights_next = next,
            .slots = {v->slots[0] + shift, v->slots[1] + shift, v->slots[2] + shift}};
        ck_assert(kelp__optimizer_update(loops, &step, &buffers, COUNT));
        float *swap = weights;
        weights = next;
        next = swap;
    }
    if (weights != v->weights + shift) {
        memmove(v->weights + shift, weights, COUNT * sizeof(float));
    }
}

/* Each instruction set, aligned or not, gives the bits of the scalar formulas. */
KELP_LOOP_TEST(test_variants_give_scalar_bits, 0, KELP_ARRAY_COUNT(jobs))
{
    const struct kelp_job job = job_at(_i);
    static struct vectors v, plain;
    start_slots(&job, &plain);
    fill_random(plain.weights, COUNT, 1);
    for (uint32_t k = 1; k <= STEPS; k++) {
        fill_random(plain.gradient, COUNT, 1 + k);
        for (uint32_t i = 0; i < COUNT; i++) {
            float *const slots[] = {&plain.slots[0][i], &plain.slots[1][i], &plain.slots[2][i]};
            plain.weights[i] = scalar_update(&job, plain.weights[i], plain.gradient[i], slots, k);
        }
    }
    const struct kelp_loops *variant;
    for (uint32_t n = 0; (variant = kelp__loops_variant(n)) != NULL; n++) {
        for (uint32_t shift = 0; shift < 3; shift++) {
            run(variant->optimizer, &job, &v, shift);
            ck_assert_msg(memcmp(v.weights + shift, plain.weights, COUNT * sizeof(float)) == 0,
                          "%s, shift %u: weights", variant->name, shift);
            for (uint32_t s = 0; s < kelp_optimizer_slot_count(&job); s++) {
                ck_assert_msg(memcmp(v.slots[s] + shift, plain.slots[s], COUNT * sizeof(float)) ==
                                  0,
                              "%s, shift %u: slot %u", variant->name, shift, s);
            }
        }
    }
}

/* Cutting the vector anywhere changes nothing. */
KELP_LOOP_TEST(test_cuts_change_nothing, 0, KELP_ARRAY_COUNT(jobs))
{
    const struct kelp_job job = job_at(_i);
    static struct vectors whole, cut;
    struct kelp_optimizer_step step;
    for (struct vectors *v = &whole;; v = &cut) {
        fill_random(v->weights, COUNT, 1);
        fill_random(v->gradient, COUNT, 2);
        for (uint32_t s = 0; s < KELP_OPTIMIZER_SLOTS_MAX; s++) {
            for (uint32_t i = 0; i < COUNT; i++) {
                v->slots[s][i] = 0.5f; /* of any optimizer */
            }
        }
        if (v == &cut) {
            break;
        }
    }
    kelp_optimizer_prepare(&step, &job, job.train.lr, 2);
    const struct kelp_optimizer_buffers buffers = {
        .weights = whole.weights,
        .gradient = whole.gradient,
        .weights_next = whole.next,
        .slots = {whole.slots[0], whole.slots[1], whole.slots[2]}};
    ck_assert(kelp_optimizer_apply(&step, &buffers, COUNT));
    for (uint32_t first = 0, size = 1; first < COUNT; first += size, size = size * 2 + 1) {
        const uint32_t count = COUNT - first < size ? COUNT - first : size;
        const struct kelp_optimizer_buffers part = {
            .weights = cut.weights + first,
            .gradient = cut.gradient + first,
            .weights_next = cut.next + first,
            .slots = {cut.slots[0] + first, cut.slots[1] + first, cut.slots[2] + first}};
        ck_assert(kelp_optimizer_apply(&step, &part, count));
    }
    ck_assert_mem_eq(whole.next, cut.next, COUNT * sizeof(float));
    ck_assert_mem_eq(whole.slots, cut.slots, sizeof(whole.slots));
}

/* One element that is infinite or NaN is noticed wherever it stands; large and tiny ones are not.
 */
KELP_LOOP_TEST(test_not_finite_is_noticed, 0, KELP_ARRAY_COUNT(jobs))
{
    const struct kelp_job job = job_at(_i);
    static struct vectors v;
    struct kelp_optimizer_step step;
    const float wrong[] = {INFINITY, -INFINITY, NAN, -NAN};
    kelp_optimizer_prepare(&step, &job, job.train.lr, 1);
    const struct kelp_optimizer_buffers buffers = {.weights = v.weights,
                                                   .gradient = v.gradient,
                                                   .weights_next = v.next,
                                                   .slots = {v.slots[0], v.slots[1], v.slots[2]}};
    const struct kelp_loops *variant;
    for (uint32_t n = 0; (variant = kelp__loops_variant(n)) != NULL; n++) {
        fill_random(v.gradient, COUNT, 5);
        v.gradient[3] = 3.4e38f;
        v.gradient[4] = -1e-45f;
        ck_assert(kelp__optimizer_update(variant->optimizer, &step, &buffers, COUNT));
        for (uint32_t at = 0; at < COUNT; at += 13) {
            const float saved = v.gradient[at];
            v.gradient[at] = wrong[at % KELP_ARRAY_COUNT(wrong)];
            ck_assert(!variant->optimizer->vector_finite(v.gradient, COUNT));
            ck_assert(variant->optimizer->vector_finite(v.gradient, at));
            ck_assert_msg(!kelp__optimizer_update(variant->optimizer, &step, &buffers, COUNT),
                          "%s at %u", variant->name, at);
            v.gradient[at] = saved;
        }
    }
    ck_assert(kelp_optimizer_apply(&step, &buffers, 0));
}

/* The sum takes received bytes at any offset. */
KELP_TEST(test_vector_add_takes_any_alignment)
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

/* So does the sum of two, in every variant. */
KELP_TEST(test_vector_sum_takes_any_alignment)
{
    static float left[COUNT], right[COUNT], sum[COUNT], expected[COUNT];
    static char first[sizeof(left) + 8], second[sizeof(right) + 8];
    const struct kelp_loops *variant;

    fill_random(left, COUNT, 1);
    fill_random(right, COUNT, 2);
    for (uint32_t i = 0; i < COUNT; i++) {
        expected[i] = left[i] + right[i];
    }
    for (size_t offset = 0; offset < 5; offset++) {
        memcpy(first + offset, left, sizeof(left));
        memcpy(second + 3 * offset % 4, right, sizeof(right));
        for (uint32_t n = 0; (variant = kelp__loops_variant(n)) != NULL; n++) {
            memset(sum, 0, sizeof(sum));
            variant->optimizer->vector_sum(sum, first + offset, second + 3 * offset % 4, COUNT);
            ck_assert_mem_eq(sum, expected, sizeof(sum));
        }
    }
    kelp_vector_sum(sum, left, right, 1);
    ck_assert_float_eq(sum[0], expected[0]);
}

/* What is written past the caches is what was to be written, and nothing beside it. */
KELP_TEST(test_vector_stream)
{
    static float from[1024 + 1];
    static float to[1024 + 32] __attribute__((aligned(64)));
    const struct kelp_loops *variant;

    fill_random(from, KELP_ARRAY_COUNT(from), 1);
    for (uint32_t n = 0; (variant = kelp__loops_variant(n)) != NULL; n++) {
        for (uint32_t count = 0; count <= 1024; count += 16) {
            memset(to, 0, sizeof(to));
            variant->optimizer->vector_stream(to + 16, from + 1, count);
            variant->optimizer->vector_streamed();
            ck_assert_mem_eq(to + 16, from + 1, count * sizeof(float));
            ck_assert_float_eq(to[15], 0.0f);
            ck_assert_float_eq(to[16 + count], 0.0f);
        }
    }
}

/* Every variant gives the digest that files have. */
KELP_TEST(test_vector_digest)
{
    static char bytes[6000];
    const struct kelp_digest_loops *variant;

    for (size_t i = 0; i < sizeof(bytes); i++) {
        bytes[i] = (char)(i * 31 + i / 256);
    }
    for (uint64_t length = 0; length < sizeof(bytes) - 3; length += 1 + length / 8) {
        uint64_t expected[2], words[2];
        kelp_digest_bytes_words(bytes + 3, length, expected);
        kelp_vector_digest(bytes + 3, length, words);
        ck_assert_mem_eq(words, expected, sizeof(words));
        struct kelp_vector_digest pieces;
        kelp_vector_digest_begin(&pieces);
        for (uint64_t at = 0; at < length; at += 100) {
            kelp_vector_digest_add(&pieces, bytes + 3 + at, length - at < 100 ? length - at : 100);
        }
        kelp_vector_digest_end(&pieces, words);
        ck_assert_mem_eq(words, expected, sizeof(words));
        for (uint32_t n = 0; (variant = kelp__digest_variant(n)) != NULL; n++) {
            variant->whole(bytes + 3, length, words);
            ck_assert_mem_eq(words, expected, sizeof(words));
            struct kelp_vector_digest digest;
            const uint64_t half = length / 3;
            variant->begin(&digest);
            variant->add(&digest, bytes + 3, half);
            variant->add(&digest, bytes + 3 + half, length - half);
            variant->end(&digest, words);
            ck_assert_mem_eq(words, expected, sizeof(words));
        }
    }
}

/* Slots are those that PyTorch keeps, under its names. */
KELP_TEST(test_slots)
{
    static const struct {
        struct kelp_job job;
        const char *names[KELP_OPTIMIZER_SLOTS_MAX];
    } cases[] = {
        {{.train = {.optimizer = KELP_OPTIMIZER_SGD}}, {NULL}},
        {{.train = {.optimizer = KELP_OPTIMIZER_SGD, .momentum = 0.9}}, {"momentum_buffer"}},
        {{.train = {.optimizer = KELP_OPTIMIZER_ADAMW}}, {"exp_avg", "exp_avg_sq"}},
        {{.train = {.optimizer = KELP_OPTIMIZER_ADAM, .amsgrad = true}},
         {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}},
        {{.train = {.optimizer = KELP_OPTIMIZER_ADAGRAD}}, {"sum"}},
        {{.train = {.optimizer = KELP_OPTIMIZER_RMSPROP}}, {"square_avg"}},
        {{.train = {.optimizer = KELP_OPTIMIZER_RMSPROP, .centered = true}},
         {"square_avg", "grad_avg"}},
        {{.train = {.optimizer = KELP_OPTIMIZER_RMSPROP, .centered = true, .momentum = 0.9}},
         {"square_avg", "momentum_buffer", "grad_avg"}},
        {{.train = {.optimizer = KELP_OPTIMIZER_ADADELTA}}, {"square_avg", "acc_delta"}},
    };
    for (size_t i = 0; i < KELP_ARRAY_COUNT(cases); i++) {
        uint32_t count = 0;
        while (count < KELP_OPTIMIZER_SLOTS_MAX && cases[i].names[count] != NULL) {
            count++;
        }
        ck_assert_uint_eq(kelp_optimizer_slot_count(&cases[i].job), count);
        for (uint32_t s = 0; s < count; s++) {
            ck_assert_str_eq(kelp_optimizer_slot_name(&cases[i].job, s), cases[i].names[s]);
            ck_assert_float_eq(kelp_optimizer_slot_start(&cases[i].job, s), 0.0f);
        }
    }
    struct kelp_job job = cases[4].job;
    job.train.initial_accumulator = 0.25;
    ck_assert_float_eq(kelp_optimizer_slot_start(&job, 0), 0.25f);
}

/* A centered variance that rounding makes negative counts as zero: no root of it. */
KELP_TEST(test_centered_stays_finite)
{
    struct kelp_job job = {
        .train = {.optimizer = KELP_OPTIMIZER_RMSPROP, .centered = true, .alpha = 0.5, .lr = 1e-4}};
    float weight = 1.0f, next, square = 0.0f, mean = 0.0f;
    const float gradient = 0.3f;
    for (uint32_t k = 1; k <= 200; k++) {
        struct kelp_optimizer_step step;
        const struct kelp_optimizer_buffers buffers = {.weights = &weight,
                                                       .gradient = &gradient,
                                                       .weights_next = &next,
                                                       .slots = {&square, &mean}};
        kelp_optimizer_prepare(&step, &job, job.train.lr, k);
        ck_assert(kelp_optimizer_apply(&step, &buffers, 1));
        ck_assert_msg(isfinite(next), "step %u", k);
        weight = next;
    }
}

/* A step that leaves decay out is the step of a job without decay. */
KELP_LOOP_TEST(test_leave_decay, 0, KELP_ARRAY_COUNT(jobs))
{
    struct kelp_job job = job_at(_i);
    static struct vectors v;
    static float expected[COUNT];
    struct kelp_optimizer_step step;
    const struct kelp_optimizer_buffers buffers = {.weights = v.weights,
                                                   .gradient = v.gradient,
                                                   .weights_next = v.next,
                                                   .slots = {v.slots[0], v.slots[1], v.slots[2]}};
    fill_random(v.weights, COUNT, 1);
    fill_random(v.gradient, COUNT, 2);
    kelp_optimizer_prepare(&step, &job, job.train.lr, 1);
    kelp_optimizer_leave_decay(&step);
    start_slots(&job, &v);
    ck_assert(kelp_optimizer_apply(&step, &buffers, COUNT));
    memcpy(expected, v.next, sizeof(expected));
    job.train.weight_decay = 0.0;
    kelp_optimizer_prepare(&step, &job, job.train.lr, 1);
    start_slots(&job, &v);
    ck_assert(kelp_optimizer_apply(&step, &buffers, COUNT));
    ck_assert_mem_eq(v.next, expected, sizeof(expected));
}

/* A scale acts on the gradient before everything else. */
KELP_LOOP_TEST(test_scale, 0, KELP_ARRAY_COUNT(jobs))
{
    const struct kelp_job job = job_at(_i);
    static struct vectors v;
    static float expected[COUNT];
    struct kelp_optimizer_step step;
    const struct kelp_optimizer_buffers buffers = {.weights = v.weights,
                                                   .gradient = v.gradient,
                                                   .weights_next = v.next,
                                                   .slots = {v.slots[0], v.slots[1], v.slots[2]}};
    fill_random(v.weights, COUNT, 1);
    fill_random(v.gradient, COUNT, 2);
    kelp_optimizer_prepare(&step, &job, job.train.lr, 1);
    step.scale = 0.3f;
    start_slots(&job, &v);
    ck_assert(kelp_optimizer_apply(&step, &buffers, COUNT));
    memcpy(expected, v.next, sizeof(expected));
    for (uint32_t i = 0; i < COUNT; i++) {
        v.gradient[i] *= 0.3f;
    }
    step.scale = 1.0f;
    start_slots(&job, &v);
    ck_assert(kelp_optimizer_apply(&step, &buffers, COUNT));
    ck_assert_mem_eq(v.next, expected, sizeof(expected));
}

/* Bias corrections stay right for late steps: by then they are 1. */
KELP_TEST(test_late_steps)
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

/* Shards tell by this number whether they compute alike. It follows from IEEE 754 alone: another
 * number means that the optimizers' results have changed. */
KELP_TEST(answer_is_the_known_one)
{
    ck_assert_uint_eq(kelp_update_answer(), 12439948084614284776u);
}

/* Every loss against plain functions in double, over random shapes, in every instruction set: the
 * loss and its gradient, the sums for the metrics, and targets that are no class. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/models/operator_check.h"
#include "tests/lib/suite.h"

#define SEEDS 12

struct sizes {
    enum kelp_loss_kind kind;
    uint32_t samples;
    uint64_t elements, target_elements;
    double beta, smoothing;
    double quantiles[3];
    uint32_t quantile_count;
};

static bool is_class_loss(const struct sizes *s)
{
    return s->kind == KELP_LOSS_CROSS_ENTROPY || s->kind == KELP_LOSS_NLL;
}

static double plain_element(const struct sizes *s, double x, double t)
{
    const double d = x - t;
    switch (s->kind) {
    case KELP_LOSS_MSE:
        return d * d;
    case KELP_LOSS_MAE:
        return fabs(d);
    case KELP_LOSS_SMOOTH_L1:
        return fabs(d) < s->beta ? d * d / (2.0 * s->beta) : fabs(d) - s->beta / 2.0;
    case KELP_LOSS_HUBER:
        return fabs(d) <= s->beta ? d * d / 2.0 : s->beta * (fabs(d) - s->beta / 2.0);
    case KELP_LOSS_BCE:
        return -(t * log(x) + (1.0 - t) * log1p(-x));
    case KELP_LOSS_BCE_WITH_LOGITS:
        return log1p(exp(-fabs(x))) + fmax(x, 0.0) - x * t;
    default:
        return NAN;
    }
}

static double plain_class_loss(const struct sizes *s, const double *x, uint64_t class)
{
    double sum = 0.0, loss;
    if (s->kind == KELP_LOSS_NLL) {
        return -x[class];
    }
    for (uint64_t c = 0; c < s->elements; c++) {
        sum += exp(x[c]);
    }
    loss = (1.0 - s->smoothing) * (log(sum) - x[class]);
    for (uint64_t c = 0; c < s->elements; c++) {
        loss += s->smoothing / (double)s->elements * (log(sum) - x[c]);
    }
    return loss;
}

/* The output is each sample's mean loss. */
static void plain_loss(const void *sizes, const double *const *inputs, double *output)
{
    const struct sizes *s = sizes;
    for (uint64_t i = 0; i < s->samples; i++) {
        const double *x = inputs[0] + i * s->elements, *t = inputs[1] + i * s->target_elements;
        double sum = 0.0;
        if (is_class_loss(s)) {
            output[i] = plain_class_loss(s, x, (uint64_t)t[0]);
            continue;
        }
        for (uint64_t e = 0; e < s->elements; e++) {
            if (s->kind == KELP_LOSS_QUANTILE) {
                const double error = t[e / s->quantile_count] - x[e];
                const double q = s->quantiles[e % s->quantile_count];
                sum += fmax(q * error, (q - 1.0) * error);
            } else {
                sum += plain_element(s, x[e], t[e]);
            }
        }
        output[i] = sum / (double)s->elements;
    }
}

static struct kelp_criterion criterion_of(const struct sizes *s, const float *output,
                                          const float *target)
{
    return (struct kelp_criterion){.kind = s->kind,
                                   .output = output,
                                   .target = target,
                                   .samples = s->samples,
                                   .elements = s->elements,
                                   .target_elements = s->target_elements,
                                   .beta = s->beta,
                                   .label_smoothing = s->smoothing,
                                   .quantiles = s->quantiles,
                                   .quantile_count = s->quantile_count};
}

/* The operator has one scale for all samples: one sample after the other, so that dy is one; and no
 * way to accumulate: done here, so that the check's second run holds. */
static void run_loss(const struct kelp_loops *loops, const void *sizes, const float *const *inputs,
                     float *output, const float *dy, float *const *gradients, enum kelp_write write)
{
    const struct sizes *s = sizes;
    float *gradient = malloc(s->elements * sizeof(*gradient));
    float *workspace = malloc(s->elements * sizeof(*workspace));
    struct kelp__cpu_stream stream = {.fault = {.what = KELP_LOOP_FINE}};
    for (uint64_t i = 0; i < s->samples; i++) {
        double sums[KELP_LOSS_SUMS];
        struct kelp_criterion criterion =
            criterion_of(s, inputs[0] + i * s->elements, inputs[1] + i * s->target_elements);
        criterion.samples = 1;
        criterion.gradient_scale = &dy[i];
        criterion.gradient = gradient;
        criterion.sums = sums;
        criterion.workspace = is_class_loss(s) ? workspace : NULL;
        kelp__cpu_table(loops)->criterion(&stream.base, &criterion);
        output[i] = (float)sums[KELP_LOSS_SUM_LOSS];
        for (uint64_t e = 0; e < s->elements; e++) {
            float *to = &gradients[0][i * s->elements + e];
            *to = write == KELP_ACCUMULATE ? *to + gradient[e] : gradient[e];
        }
    }
    ck_assert_int_eq(stream.fault.what, KELP_LOOP_FINE);
    free(gradient);
    free(workspace);
}

static struct sizes random_sizes(int seed, enum kelp_loss_kind kind)
{
    struct sizes sizes = {.kind = kind,
                          .samples = kelp_operator_size(seed, 1, 0, 5),
                          .elements = kelp_operator_size(seed, 2, 1, 30),
                          .beta = 0.1 + 0.2 * seed,
                          .smoothing = seed % 2 == 0 ? 0.0 : 0.1};
    if (seed == SEEDS - 1) { /* more than one piece */
        sizes.elements = 600;
        sizes.samples = 2;
    }
    sizes.target_elements = is_class_loss(&sizes) ? 1 : sizes.elements;
    if (kind == KELP_LOSS_QUANTILE) {
        sizes.quantile_count = kelp_operator_size(seed, 3, 1, 3);
        for (uint32_t q = 0; q < sizes.quantile_count; q++) {
            sizes.quantiles[q] = 0.1 + 0.4 * q;
        }
        sizes.elements *= sizes.quantile_count;
    }
    return sizes;
}

KELP_LOOP_TEST(test_losses, 0, SEEDS)
{
    for (int kind = KELP_LOSS_MSE; kind <= (int)KELP_LOSS_QUANTILE; kind++) {
        const struct sizes sizes = random_sizes(_i, (enum kelp_loss_kind)kind);
        const uint64_t targets = sizes.samples * sizes.target_elements;
        const bool probability = kind == KELP_LOSS_BCE || kind == KELP_LOSS_BCE_WITH_LOGITS;
        float *target = kelp_operator_floats(_i, 4, targets, probability ? 0.0f : -2.0f,
                                             probability ? 1.0f : 2.0f);
        for (uint64_t i = 0; is_class_loss(&sizes) && i < targets; i++) {
            target[i] =
                (float)kelp_operator_size(_i, 50 + (uint32_t)i, 0, (uint32_t)sizes.elements - 1);
        }
        kelp_operator_check(
            &(struct kelp_operator_check){.what = "criterion",
                                          .seed = 100 * kind + _i,
                                          .sizes = &sizes,
                                          .plain = plain_loss,
                                          .run = run_loss,
                                          .input_count = 2,
                                          .counts = {sizes.samples * sizes.elements, targets},
                                          .constant = {false, true},
                                          .low = {kind == KELP_LOSS_BCE ? 0.05f : -2.0f},
                                          .high = {kind == KELP_LOSS_BCE ? 0.95f : 2.0f},
                                          .given = {NULL, target},
                                          .output_count = sizes.samples});
        free(target);
    }
}

/* What a sample adds to the metrics, in plain double. */
static void plain_sums(const struct sizes *s, const float *x, const float *target, double *ret)
{
    memset(ret, 0, KELP_LOSS_SUMS * sizeof(*ret));
    for (uint64_t e = 0; e < s->target_elements; e++) {
        double forecast = (double)x[e];
        if (s->kind == KELP_LOSS_QUANTILE) {
            forecast = (double)x[e * s->quantile_count + s->quantile_count / 2];
        } else if (s->kind == KELP_LOSS_BCE_WITH_LOGITS) {
            forecast = 1.0 / (1.0 + exp(-forecast));
        }
        const double t = (double)target[e], d = forecast - t;
        ret[KELP_LOSS_SUM_SQUARED] += d * d;
        ret[KELP_LOSS_SUM_ABSOLUTE] += fabs(d);
        ret[KELP_LOSS_SUM_RELATIVE] += fabs(d / t);
        ret[KELP_LOSS_SUM_RELATIVE_SQUARED] += d / t * (d / t);
        ret[KELP_LOSS_SUM_TARGET] += t;
        ret[KELP_LOSS_SUM_TARGET_SQUARED] += t * t;
        ret[KELP_LOSS_SUM_CORRECT] += (forecast >= 0.5) == (t >= 0.5) ? 1.0 : 0.0;
        ret[KELP_LOSS_SUM_SCORE] = e == 0 ? forecast : ret[KELP_LOSS_SUM_SCORE];
    }
}

KELP_LOOP_TEST(test_sums, 0, SEEDS)
{
    static const enum kelp_loss_kind kinds[] = {KELP_LOSS_MSE, KELP_LOSS_BCE_WITH_LOGITS,
                                                KELP_LOSS_QUANTILE};
    for (size_t k = 0; k < KELP_ARRAY_COUNT(kinds); k++) {
        const struct sizes s = random_sizes(_i, kinds[k]);
        float *x = kelp_operator_floats(_i, 1, s.samples * s.elements, -2.0f, 2.0f);
        float *target = kelp_operator_floats(_i, 2, s.samples * s.target_elements, 0.1f, 1.0f);
        const uint64_t count = (uint64_t)s.samples * KELP_LOSS_SUMS;
        double *first = malloc(count * sizeof(*first)), *sums = malloc(count * sizeof(*sums));
        struct kelp__cpu_stream stream = {.fault = {.what = KELP_LOOP_FINE}};
        for (uint32_t v = 0; kelp__loops_variant(v) != NULL; v++) {
            struct kelp_criterion criterion = criterion_of(&s, x, target);
            criterion.sums = v == 0 ? first : sums;
            kelp__cpu_table(kelp__loops_variant(v))->criterion(&stream.base, &criterion);
            ck_assert(v == 0 || count == 0 || memcmp(first, sums, count * sizeof(*sums)) == 0);
        }
        for (uint32_t i = 0; i < s.samples; i++) {
            double wanted[KELP_LOSS_SUMS];
            const double *got = first + (uint64_t)i * KELP_LOSS_SUMS;
            plain_sums(&s, x + i * s.elements, target + i * s.target_elements, wanted);
            for (uint32_t m = KELP_LOSS_SUM_SQUARED; m <= (uint32_t)KELP_LOSS_SUM_SCORE; m++) {
                ck_assert_msg(fabs(got[m] - wanted[m]) <= 1e-5 * (1.0 + fabs(wanted[m])),
                              "seed %d, loss %d: sum %u is %g, not %g", _i, (int)s.kind, m, got[m],
                              wanted[m]);
            }
        }
        free(x);
        free(target);
        free(first);
        free(sums);
    }
}

/* As training asks for it: the same loss, and nothing else. */
KELP_LOOP_TEST(test_loss_alone, 0, SEEDS)
{
    for (int kind = KELP_LOSS_MSE; kind <= (int)KELP_LOSS_QUANTILE; kind++) {
        struct sizes s = random_sizes(_i, (enum kelp_loss_kind)kind);
        if (_i % 2 == 0 && !is_class_loss(&s)) { /* one element for each sample */
            s.target_elements = 1;
            s.elements = s.quantile_count != 0 ? s.quantile_count : 1;
        }
        const uint64_t count = (uint64_t)s.samples * KELP_LOSS_SUMS;
        float *x = kelp_operator_floats(_i, 1, s.samples * s.elements, 0.1f, 0.9f);
        float *target = kelp_operator_floats(_i, 2, s.samples * s.target_elements, 0.0f, 1.0f);
        float *workspace = malloc((s.samples * s.elements + 1) * sizeof(*workspace));
        double *full = malloc((count + 1) * sizeof(*full)),
               *alone = malloc((count + 1) * sizeof(*alone));
        struct kelp__cpu_stream stream = {.fault = {.what = KELP_LOOP_FINE}};
        for (uint64_t i = 0; is_class_loss(&s) && i < s.samples; i++) {
            target[i] = 0.0f;
        }
        for (uint32_t v = 0; kelp__loops_variant(v) != NULL; v++) {
            struct kelp_criterion criterion = criterion_of(&s, x, target);
            criterion.workspace = workspace;
            criterion.sums = full;
            kelp__cpu_table(kelp__loops_variant(v))->criterion(&stream.base, &criterion);
            criterion.sums = alone;
            criterion.loss_alone = true;
            kelp__cpu_table(kelp__loops_variant(v))->criterion(&stream.base, &criterion);
            for (uint64_t i = 0; i < count; i++) {
                const bool loss = i % KELP_LOSS_SUMS == KELP_LOSS_SUM_LOSS;
                ck_assert_msg(alone[i] == (loss ? full[i] : 0.0), "loss %d, sum %d: %g", kind,
                              (int)(i % KELP_LOSS_SUMS), alone[i]);
            }
        }
        free(x);
        free(target);
        free(workspace);
        free(full);
        free(alone);
    }
}

/* A target of 0 makes the relative error infinite, and nothing else. */
KELP_TEST(test_zero_target)
{
    const float x[2] = {1.0f, 2.0f}, target[2] = {0.0f, 1.0f};
    double sums[KELP_LOSS_SUMS];
    struct kelp__cpu_stream stream = {.fault = {.what = KELP_LOOP_FINE}};
    const struct kelp_criterion criterion = {.kind = KELP_LOSS_MAE,
                                             .output = x,
                                             .target = target,
                                             .samples = 1,
                                             .elements = 2,
                                             .target_elements = 2,
                                             .sums = sums};
    kelp__cpu_table(kelp__loops())->criterion(&stream.base, &criterion);
    ck_assert_double_eq(sums[KELP_LOSS_SUM_LOSS], 1.0);
    ck_assert_double_eq(sums[KELP_LOSS_SUM_SQUARED], 2.0);
    ck_assert_double_eq(sums[KELP_LOSS_SUM_RELATIVE], INFINITY);
}

/* Hits by the largest output, the first of equal ones; the score of class 1 where there are two. */
KELP_TEST(test_class_sums)
{
    const float x[8] = {1, 3, 3, 0, 5, 4, 4, 5}, target[2] = {1, 3};
    const float two[4] = {0.0f, 1.0f, 2.0f, -1.0f}, log_two[2] = {-0.1f, -2.0f};
    double sums[2 * KELP_LOSS_SUMS];
    float workspace[8];
    struct kelp__cpu_stream stream = {.fault = {.what = KELP_LOOP_FINE}};
    struct kelp_criterion criterion = {.kind = KELP_LOSS_CROSS_ENTROPY,
                                       .output = x,
                                       .target = target,
                                       .samples = 2,
                                       .elements = 4,
                                       .target_elements = 1,
                                       .sums = sums,
                                       .workspace = workspace};
    kelp__cpu_table(kelp__loops())->criterion(&stream.base, &criterion);
    ck_assert_double_eq(sums[KELP_LOSS_SUM_CORRECT], 1.0);
    ck_assert_double_eq(sums[KELP_LOSS_SUMS + KELP_LOSS_SUM_CORRECT], 0.0);
    ck_assert_double_eq(sums[KELP_LOSS_SUM_SCORE], 0.0);
    ck_assert_double_eq(sums[KELP_LOSS_SUM_SQUARED], 0.0);
    criterion.output = two;
    criterion.target = (const float[]){0, 0};
    criterion.elements = 2;
    kelp__cpu_table(kelp__loops())->criterion(&stream.base, &criterion);
    ck_assert_double_eq_tol(sums[KELP_LOSS_SUM_SCORE], 1.0 / (1.0 + exp(-1.0)), 1e-6);
    ck_assert_double_eq_tol(sums[KELP_LOSS_SUMS + KELP_LOSS_SUM_SCORE], 1.0 / (1.0 + exp(3.0)),
                            1e-6);
    criterion.kind = KELP_LOSS_NLL;
    criterion.output = log_two;
    criterion.samples = 1;
    kelp__cpu_table(kelp__loops())->criterion(&stream.base, &criterion);
    ck_assert_double_eq_tol(sums[KELP_LOSS_SUM_SCORE], exp(-2.0), 1e-6);
    ck_assert_double_eq_tol(sums[KELP_LOSS_SUM_LOSS], 0.1, 1e-6);
}

/* A certain mistake costs 100 and no infinity; its gradient is finite. */
KELP_TEST(test_bce_at_its_ends)
{
    const float x[4] = {0.0f, 1.0f, 1.0f, 0.0f}, target[4] = {1.0f, 0.0f, 1.0f, 0.0f}, one = 1.0f;
    double sums[KELP_LOSS_SUMS];
    float gradient[4];
    struct kelp__cpu_stream stream = {.fault = {.what = KELP_LOOP_FINE}};
    const struct kelp_criterion criterion = {.kind = KELP_LOSS_BCE,
                                             .output = x,
                                             .target = target,
                                             .samples = 1,
                                             .elements = 4,
                                             .target_elements = 4,
                                             .gradient_scale = &one,
                                             .gradient = gradient,
                                             .sums = sums};
    kelp__cpu_table(kelp__loops())->criterion(&stream.base, &criterion);
    ck_assert_double_eq(sums[KELP_LOSS_SUM_LOSS], 50.0);
    for (int i = 0; i < 4; i++) {
        ck_assert(isfinite(gradient[i]));
    }
}

/* An error of the stream, once; the sample counts nothing and has no gradient. */
KELP_TEST(test_bad_class)
{
    static const float bad[] = {3.0f, -1.0f, 0.5f, NAN, INFINITY, 1e20f};
    struct kelp_error error = {KELP_OK, ""};
    struct kelp_device *device;
    struct kelp_stream *stream;
    ck_assert_int_eq(kelp_device_cpu_create(1, &device, &error), KELP_OK);
    ck_assert_int_eq(device->table->stream_create(device, &stream, &error), KELP_OK);
    for (size_t i = 0; i < 2 * KELP_ARRAY_COUNT(bad); i++) {
        const float x[6] = {1, 2, 3, 1, 2, 3}, target[2] = {bad[i / 2], 2.0f}, one = 1.0f;
        double sums[2 * KELP_LOSS_SUMS];
        float gradient[6] = {9, 9, 9, 9, 9, 9}, workspace[6];
        const struct kelp_criterion criterion = {.kind = i % 2 == 0 ? KELP_LOSS_CROSS_ENTROPY
                                                                    : KELP_LOSS_NLL,
                                                 .output = x,
                                                 .target = target,
                                                 .samples = 2,
                                                 .elements = 3,
                                                 .target_elements = 1,
                                                 .gradient_scale = &one,
                                                 .gradient = gradient,
                                                 .sums = sums,
                                                 .workspace = workspace};
        stream->table->criterion(stream, &criterion);
        ck_assert_int_eq(stream->table->wait(stream, &error), KELP_ERR_INVALID);
        ck_assert_ptr_nonnull(strstr(error.text, "classes 0 to 2"));
        ck_assert_int_eq(stream->table->wait(stream, &error), KELP_OK);
        ck_assert(gradient[0] == 0.0f && gradient[1] == 0.0f && gradient[2] == 0.0f);
        ck_assert(gradient[5] < 0.0f && sums[KELP_LOSS_SUM_LOSS] == 0.0);
    }
    stream->table->stream_destroy(stream);
    device->table->destroy(device);
}

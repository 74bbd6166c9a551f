/* Layer norm and batch norm against plain functions in double, over random shapes, in every
 * instruction set; running statistics and the form outside of training. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/models/operator_check.h"
#include "tests/lib/suite.h"

#define SEEDS 24
#define EPS   1e-3f

struct sizes {
    uint32_t samples, channels;
    uint64_t inner;
};

/* ---- layer norm: samples rows of channels values ---- */

static void plain_layer_norm(const void *sizes, const double *const *inputs, double *output)
{
    const struct sizes *s = sizes;
    for (uint64_t r = 0; r < s->samples; r++) {
        const double *x = inputs[0] + r * s->channels;
        double mean = 0.0, variance = 0.0;
        for (uint32_t c = 0; c < s->channels; c++) {
            mean += x[c] / s->channels;
        }
        for (uint32_t c = 0; c < s->channels; c++) {
            variance += (x[c] - mean) * (x[c] - mean) / s->channels;
        }
        for (uint32_t c = 0; c < s->channels; c++) {
            output[r * s->channels + c] =
                (x[c] - mean) / sqrt(variance + (double)EPS) * inputs[1][c] + inputs[2][c];
        }
    }
}

static void run_layer_norm(const struct kelp_loops *loops, const void *sizes,
                           const float *const *inputs, float *output, const float *dy,
                           float *const *gradients, enum kelp_write write)
{
    const struct sizes *s = sizes;
    float *statistics = malloc((2ull * s->samples + 1) * sizeof(*statistics));
    const struct kelp_layer_norm norm = {.x = inputs[0],
                                         .weight = inputs[1],
                                         .bias = inputs[2],
                                         .y = output,
                                         .mean = statistics,
                                         .rstd = statistics + s->samples,
                                         .rows = s->samples,
                                         .width = s->channels,
                                         .eps = EPS,
                                         .dy = dy,
                                         .dx = gradients[0],
                                         .dweight = gradients[1],
                                         .dbias = gradients[2],
                                         .write_x = write,
                                         .write_weight = write,
                                         .write_bias = write};
    kelp__cpu_table(loops)->layer_norm(NULL, &norm);
    kelp__cpu_table(loops)->layer_norm_gradient(NULL, &norm);
    free(statistics);
}

KELP_LOOP_TEST(test_layer_norm, 0, SEEDS)
{
    const struct sizes sizes = {.samples = kelp_operator_size(_i, 1, 0, 9),
                                .channels = kelp_operator_size(_i, 2, 2, 45)};
    const uint64_t count = (uint64_t)sizes.samples * sizes.channels;
    kelp_operator_check(
        &(struct kelp_operator_check){.what = "layer_norm",
                                      .seed = _i,
                                      .sizes = &sizes,
                                      .plain = plain_layer_norm,
                                      .run = run_layer_norm,
                                      .input_count = 3,
                                      .counts = {count, sizes.channels, sizes.channels},
                                      .low = {-1.0f, -1.0f, -1.0f},
                                      .high = {3.0f, 1.0f, 1.0f},
                                      .output_count = count});
}

/* ---- batch norm ---- */

static void plain_moments(const struct sizes *s, const double *x, uint32_t channel, double *mean,
                          double *variance)
{
    const double count = (double)s->samples * (double)s->inner;
    *mean = *variance = 0.0;
    for (int pass = 0; pass < 2; pass++) {
        for (uint64_t i = 0; i < s->samples * s->inner; i++) {
            const double value =
                x[(i / s->inner * s->channels + channel) * s->inner + i % s->inner];
            *mean += pass == 0 ? value / count : 0.0;
            *variance += pass == 1 ? (value - *mean) * (value - *mean) / count : 0.0;
        }
    }
}

static void plain_batch_norm(const void *sizes, const double *const *inputs, double *output)
{
    const struct sizes *s = sizes;
    for (uint32_t c = 0; c < s->channels; c++) {
        double mean, variance;
        plain_moments(s, inputs[0], c, &mean, &variance);
        for (uint64_t i = 0; i < s->samples * s->inner; i++) {
            const uint64_t at = (i / s->inner * s->channels + c) * s->inner + i % s->inner;
            output[at] =
                (inputs[0][at] - mean) / sqrt(variance + (double)EPS) * inputs[1][c] + inputs[2][c];
        }
    }
}

static void run_batch_norm(const struct kelp_loops *loops, const void *sizes,
                           const float *const *inputs, float *output, const float *dy,
                           float *const *gradients, enum kelp_write write)
{
    const struct sizes *s = sizes;
    float *statistics = malloc(2ull * s->channels * sizeof(*statistics));
    const struct kelp_batch_norm norm = {.x = inputs[0],
                                         .weight = inputs[1],
                                         .bias = inputs[2],
                                         .y = output,
                                         .samples = s->samples,
                                         .channels = s->channels,
                                         .inner = s->inner,
                                         .eps = EPS,
                                         .training = true,
                                         .mean = statistics,
                                         .rstd = statistics + s->channels,
                                         .dy = dy,
                                         .dx = gradients[0],
                                         .dweight = gradients[1],
                                         .dbias = gradients[2],
                                         .write_x = write,
                                         .write_weight = write,
                                         .write_bias = write};
    kelp__cpu_table(loops)->batch_norm(NULL, &norm);
    kelp__cpu_table(loops)->batch_norm_gradient(NULL, &norm);
    free(statistics);
}

KELP_LOOP_TEST(test_batch_norm, 0, SEEDS)
{
    struct sizes sizes = {.samples = kelp_operator_size(_i, 1, 3, 20),
                          .channels = kelp_operator_size(_i, 2, 1, 36),
                          .inner = 1};
    if (_i % 2 == 1) {
        sizes = (struct sizes){.samples = kelp_operator_size(_i, 1, 2, 3),
                               .channels = kelp_operator_size(_i, 2, 1, 5),
                               .inner = kelp_operator_size(_i, 3, 2, 40)};
    }
    const uint64_t count = sizes.samples * sizes.channels * sizes.inner;
    kelp_operator_check(
        &(struct kelp_operator_check){.what = "batch_norm",
                                      .seed = _i,
                                      .sizes = &sizes,
                                      .plain = plain_batch_norm,
                                      .run = run_batch_norm,
                                      .input_count = 3,
                                      .counts = {count, sizes.channels, sizes.channels},
                                      .low = {-1.0f, -1.0f, -1.0f},
                                      .high = {3.0f, 1.0f, 1.0f},
                                      .output_count = count});
}

/* Sums over more than one block, values far from zero: statistics as in double, scaled and added.
 */
KELP_LOOP_TEST(test_batch_statistics, 0, 2)
{
    const struct sizes shapes[] = {{700, 35, 1}, {3, 2, 5001}};
    const struct sizes *s = &shapes[_i];
    const uint64_t count = s->samples * s->channels * s->inner;
    const double total = (double)s->samples * (double)s->inner;
    const float scale = 0.25f;
    float *x = kelp_operator_floats(1, 1, count, 1000.0f, 1002.0f);
    double *plain = malloc(count * sizeof(*plain));
    float *y = malloc(count * sizeof(*y));
    float ones[35], zeros[35] = {0}, mean[35], rstd[35], first[35] = {0}, second[35] = {0};
    for (uint64_t i = 0; i < count; i++) {
        plain[i] = (double)x[i];
    }
    for (uint32_t c = 0; c < 35; c++) {
        ones[c] = 1.0f;
    }
    struct kelp_batch_norm norm = {.x = x,
                                   .weight = ones,
                                   .bias = zeros,
                                   .y = y,
                                   .samples = s->samples,
                                   .channels = s->channels,
                                   .inner = s->inner,
                                   .eps = EPS,
                                   .training = true,
                                   .mean = mean,
                                   .rstd = rstd,
                                   .statistic_scale = &scale,
                                   .statistic_mean = first,
                                   .statistic_variance = second};
    for (int round = 1; round <= 2; round++) {
        kelp__cpu_table(kelp__loops())->batch_norm(NULL, &norm);
        norm.write_statistic = KELP_ACCUMULATE;
        for (uint32_t c = 0; c < s->channels; c++) {
            double wanted_mean, variance;
            plain_moments(s, plain, c, &wanted_mean, &variance);
            ck_assert_double_eq_tol((double)mean[c], wanted_mean, 1e-3);
            ck_assert_double_eq_tol((double)rstd[c], 1.0 / sqrt(variance + (double)EPS), 1e-4);
            ck_assert_double_eq_tol((double)first[c], round * 0.25 * wanted_mean, 1e-3);
            ck_assert_double_eq_tol((double)second[c],
                                    round * 0.25 * variance * total / (total - 1.0), 1e-4);
        }
    }
    free(x);
    free(y);
    free(plain);
}

/* Outside of training the running statistics count, and nothing of the batch is looked at. */
KELP_TEST(test_batch_norm_evaluation)
{
    for (uint64_t inner = 1; inner <= 5; inner += 4) {
        const float x[2 * 3 * 5] = {1, 2, 3, 4, 5, 6, 7, 8, 9}, weight[3] = {1, 2, 3},
                              bias[3] = {0, 1, 2}, mean[3] = {1, 2, 3}, variance[3] = {1, 4, 9};
        float y[2 * 3 * 5];
        const struct kelp_batch_norm norm = {.x = x,
                                             .weight = weight,
                                             .bias = bias,
                                             .y = y,
                                             .samples = 2,
                                             .channels = 3,
                                             .inner = inner,
                                             .running_mean = mean,
                                             .running_variance = variance};
        kelp__cpu_table(kelp__loops())->batch_norm(NULL, &norm);
        for (uint64_t i = 0; i < 2 * 3 * inner; i++) {
            const uint64_t c = i / inner % 3;
            ck_assert_float_eq_tol(
                y[i], (x[i] - mean[c]) / sqrtf(variance[c]) * weight[c] + bias[c], 1e-5f);
        }
    }
}

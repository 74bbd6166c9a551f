/* The metrics from their sums: those of the DLinear article on a forecast, and classes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/tensors/philox.h"
#include "common/training/metrics.h"
#include "tests/lib/golden/golden.h"
#include "tests/lib/suite.h"

static double sums[KELP_METRIC_SUM_COUNT];
static struct kelp_metrics metrics;

static void setup(void)
{
    memset(sums, 0, sizeof(sums));
}

/* As the criterion adds one element. */
static void add_element(double forecast, double target)
{
    double error = forecast - target;

    sums[KELP_METRIC_SUM_SQUARED] += error * error;
    sums[KELP_METRIC_SUM_ABSOLUTE] += fabs(error);
    sums[KELP_METRIC_SUM_ELEMENTS] += 1;
    sums[KELP_METRIC_SUM_RELATIVE] += fabs(error / target);
    sums[KELP_METRIC_SUM_RELATIVE_SQUARED] += (error / target) * (error / target);
    sums[KELP_METRIC_SUM_TARGET] += target;
    sums[KELP_METRIC_SUM_TARGET_SQUARED] += target * target;
    sums[KELP_METRIC_SUM_CORRECT] += (forecast >= 0.5) == (target >= 0.5);
}

static double has(enum kelp_metric metric)
{
    ck_assert_msg(kelp_metrics_have(&metrics, metric), "%s", kelp_metric_name(metric));
    return metrics.of[metric];
}

static float *read_floats(const struct kelp_golden_file *file, const char *name,
                          uint64_t *ret_count)
{
    float *values = kelp_golden_floats(file, name, ret_count);
    ck_assert_msg(values != NULL, "%s: no %s", file->name, name);
    return values;
}

/* Sums over the forecast and "true" of the same prefix, with half a loss of one per sample. */
static void add_forecast(const struct kelp_golden_file *file, const char *name, int prefix_length)
{
    char target_name[KELP_GOLDEN_NAME_SIZE];
    uint64_t count = 0, target_count = 0;

    (void)snprintf(target_name, sizeof(target_name), "%.*strue", prefix_length, name);
    float *forecast = read_floats(file, name, &count);
    float *target = read_floats(file, target_name, &target_count);
    ck_assert_uint_eq(count, target_count);
    setup();
    for (uint64_t i = 0; i < count; i++) {
        add_element((double)forecast[i], (double)target[i]);
    }
    sums[KELP_METRIC_SUM_SAMPLES] = (double)kelp_safetensors_find(file->tensors, name)->shape[0];
    sums[KELP_METRIC_SUM_LOSS] = sums[KELP_METRIC_SUM_SAMPLES] / 2;
    kelp_metrics_of_sums(sums, KELP_LOSS_MSE, &metrics);
    free(forecast);
    free(target);
}

/* A tensor that has the value of the metric by that name. */
static void check_metric(const struct kelp_golden_file *file, const char *name, const char *word)
{
    uint64_t count = 0;
    enum kelp_metric i = 0;

    while (i < KELP_METRIC_COUNT && strcmp(kelp_metric_name(i), word) != 0) {
        i++;
    }
    ck_assert_msg(i < KELP_METRIC_COUNT, "%s: no metric is called %s", file->name, word);
    float *expected = read_floats(file, name, &count);
    ck_assert_msg(fabs(has(i) - (double)*expected) <= 1e-5 * fabs((double)*expected),
                  "%s: %s is %.9g, not %.9g", file->name, name, has(i), (double)*expected);
    free(expected);
}

/* "pred", or "<case>/pred": the other tensors of that prefix, but "true", are metrics. */
static unsigned check_forecast(const struct kelp_golden_file *file, const char *forecast)
{
    const size_t prefix_length = strlen(forecast) - strlen("pred");
    unsigned checked = 0;

    add_forecast(file, forecast, (int)prefix_length);
    ck_assert_double_eq(has(KELP_METRIC_LOSS), 0.5);
    ck_assert(!kelp_metrics_have(&metrics, KELP_METRIC_ACCURACY)); /* targets are no classes */
    for (size_t i = 0; i < kelp_safetensors_count(file->tensors); i++) {
        const char *name = kelp_safetensors_at(file->tensors, i)->name;
        const char *word = name + prefix_length;
        if (strncmp(name, forecast, prefix_length) == 0 && strchr(word, '/') == NULL &&
            strcmp(word, "pred") != 0 && strcmp(word, "true") != 0) {
            check_metric(file, name, word);
            checked++;
        }
    }
    ck_assert_msg(checked > 0, "%s: no metrics of %s", file->name, forecast);
    return checked;
}

KELP_CASE("metrics", .setup = setup)

/* Each forecast of each fixture. */
KELP_TEST(forecasts)
{
    struct kelp_golden_set set;
    struct kelp_golden_file file;
    unsigned count = 0, checked = 0;

    if (!kelp_golden_set_open(&set)) {
        printf("skipped: no fixtures in %s\n", set.folder);
        return;
    }
    for (uint32_t f = 0; f < set.count; f++) {
        ck_assert_int_eq(kelp_golden_file_open(&set, f, &file, NULL), KELP_OK);
        for (size_t i = 0; i < kelp_safetensors_count(file.tensors); i++) {
            const char *name = kelp_safetensors_at(file.tensors, i)->name;
            const char *slash = strrchr(name, '/');
            if (strcmp(slash != NULL ? slash + 1 : name, "pred") == 0) {
                checked += check_forecast(&file, name);
                count++;
            }
        }
        kelp_golden_file_close(&file);
    }
    kelp_golden_set_close(&set);
    printf("%u metrics of %u forecasts\n", checked, count);
    ck_assert_uint_gt(count, 0);
}

/* A target of zero leaves the relative metrics out; a NaN that came about is told. */
KELP_TEST(what_there_is)
{
    sums[KELP_METRIC_SUM_SAMPLES] = 2;
    add_element(1, 0);
    add_element(3, 4);
    kelp_metrics_of_sums(sums, KELP_LOSS_MAE, &metrics);
    ck_assert_double_eq(has(KELP_METRIC_MSE), 1);
    ck_assert_double_eq(has(KELP_METRIC_RSE), 0.5); /* sqrt(2 / 8) */
    ck_assert(!kelp_metrics_have(&metrics, KELP_METRIC_MAPE));
    add_element((double)NAN, 2);
    kelp_metrics_of_sums(sums, KELP_LOSS_MAE, &metrics);
    ck_assert(isnan(has(KELP_METRIC_MSE)));
    setup();
    sums[KELP_METRIC_SUM_SAMPLES] = 4;
    sums[KELP_METRIC_SUM_ELEMENTS] = 4;
    sums[KELP_METRIC_SUM_CORRECT] = 3;
    kelp_metrics_of_sums(sums, KELP_LOSS_CROSS_ENTROPY, &metrics);
    ck_assert_uint_eq(metrics.present, 1u << KELP_METRIC_LOSS | 1u << KELP_METRIC_ACCURACY);
    ck_assert_double_eq(has(KELP_METRIC_ACCURACY), 0.75);
    setup();
    kelp_metrics_of_sums(sums, KELP_LOSS_MSE, &metrics);
    ck_assert_uint_eq(metrics.present, 1u << KELP_METRIC_LOSS);
}

/* The share of ordered pairs, by definition, over bins; equal ones count half. */
KELP_TEST(auc)
{
    enum { COUNT = 300 };
    uint32_t bins[COUNT], words[4];
    bool positive[COUNT];
    double ordered = 0, pairs = 0;

    for (uint32_t i = 0; i < COUNT; i++) {
        kelp_philox(7, KELP_PHILOX_TEST, 1, i, words);
        double score = (double)words[0] / 4294967296.0;
        positive[i] = (double)words[1] / 4294967296.0 < score * score + 0.1;
        bins[i] = kelp_metric_sum_bin(score);
        sums[(positive[i] ? KELP_METRIC_SUM_POSITIVE : KELP_METRIC_SUM_NEGATIVE) + bins[i]] += 1;
        add_element(score, positive[i] ? 1 : 0);
    }
    for (int p = 0; p < COUNT; p++) {
        for (int n = 0; n < COUNT; n++) {
            if (positive[p] && !positive[n]) {
                pairs += 1;
                ordered += bins[p] > bins[n] ? 1 : bins[p] == bins[n] ? 0.5 : 0;
            }
        }
    }
    sums[KELP_METRIC_SUM_SAMPLES] = COUNT;
    kelp_metrics_of_sums(sums, KELP_LOSS_SMOOTH_L1, &metrics);
    ck_assert_double_eq_tol(has(KELP_METRIC_AUC), ordered / pairs, 1e-12);
    ck_assert_double_gt(metrics.of[KELP_METRIC_AUC], 0.6);
    ck_assert_double_eq(has(KELP_METRIC_ACCURACY), sums[KELP_METRIC_SUM_CORRECT] / COUNT);
    ck_assert(!kelp_metrics_have(&metrics, KELP_METRIC_MAPE));
    memset(&sums[KELP_METRIC_SUM_NEGATIVE], 0, KELP_METRIC_SUM_BINS * sizeof(sums[0]));
    kelp_metrics_of_sums(sums, KELP_LOSS_SMOOTH_L1, &metrics);
    ck_assert(!kelp_metrics_have(&metrics, KELP_METRIC_AUC)); /* one kind alone */
}

KELP_TEST(bins)
{
    ck_assert_uint_eq(kelp_metric_sum_bin(0), 0);
    ck_assert_uint_eq(kelp_metric_sum_bin(-1e300), 0);
    ck_assert_uint_eq(kelp_metric_sum_bin((double)NAN), 0);
    ck_assert_uint_eq(kelp_metric_sum_bin(1), KELP_METRIC_SUM_BINS - 1);
    ck_assert_uint_eq(kelp_metric_sum_bin(INFINITY), KELP_METRIC_SUM_BINS - 1);
    ck_assert_uint_eq(kelp_metric_sum_bin(0.5), KELP_METRIC_SUM_BINS / 2);
    const double zeros[] = {1, 0, -0.0, 0, 0};
    ck_assert_uint_eq(kelp_metric_sum_trim(zeros, 5), 3);
    ck_assert_uint_eq(kelp_metric_sum_trim(zeros, 2), 1);
    ck_assert_uint_eq(kelp_metric_sum_trim(zeros + 3, 2), 0);
}

/* The measures from their sums: those of the DLinear article on a forecast, and classes. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/metrics.h"
#include "common/philox.h"
#include "common/safetensors.h"
#include "tests/lib/shared_files.h"

static double sums[KELP_METRIC_COUNT];
static struct kelp_measures measures;

static void setup(void)
{
    memset(sums, 0, sizeof(sums));
}

/* As the criterion adds one element. */
static void add_element(double forecast, double target)
{
    double error = forecast - target;

    sums[KELP_METRIC_SQUARED] += error * error;
    sums[KELP_METRIC_ABSOLUTE] += fabs(error);
    sums[KELP_METRIC_ELEMENTS] += 1;
    sums[KELP_METRIC_RELATIVE] += fabs(error / target);
    sums[KELP_METRIC_RELATIVE_SQUARED] += (error / target) * (error / target);
    sums[KELP_METRIC_TARGET] += target;
    sums[KELP_METRIC_TARGET_SQUARED] += target * target;
    sums[KELP_METRIC_CORRECT] += (forecast >= 0.5) == (target >= 0.5);
}

static double has(enum kelp_measure measure)
{
    ck_assert_msg(kelp_measures_have(&measures, measure), "%s", kelp_measure_name(measure));
    return measures.of[measure];
}

START_TEST(forecast)
{
    char path[KELP_TEST_PATH_MAX];
    struct kelp_safetensors *file;
    float values[2][300];

    if (!kelp_test_reference_file("forecast_metrics.safetensors", path)) {
        return;
    }
    ck_assert_int_eq(kelp_safetensors_open(path, &file, NULL), KELP_OK);
    ck_assert_int_eq(
        kelp_safetensors_floats(kelp_safetensors_find(file, "pred"), 0, 300, values[0], NULL),
        KELP_OK);
    ck_assert_int_eq(
        kelp_safetensors_floats(kelp_safetensors_find(file, "true"), 0, 300, values[1], NULL),
        KELP_OK);
    for (int i = 0; i < 300; i++) {
        add_element((double)values[0][i], (double)values[1][i]);
    }
    sums[KELP_METRIC_SAMPLES] = 50;
    sums[KELP_METRIC_LOSS] = 25;
    kelp_measures_of(sums, KELP_LOSS_MSE, &measures);
    ck_assert_double_eq(has(KELP_MEASURE_LOSS), 0.5);
    for (enum kelp_measure i = KELP_MEASURE_MSE; i <= KELP_MEASURE_RSE; i++) {
        float expected;
        ck_assert_int_eq(kelp_safetensors_floats(kelp_safetensors_find(file, kelp_measure_name(i)),
                                                 0, 1, &expected, NULL),
                         KELP_OK);
        ck_assert_msg(fabs(has(i) - (double)expected) <= 1e-5 * fabs((double)expected),
                      "%s: %.9g, not %.9g", kelp_measure_name(i), measures.of[i], (double)expected);
    }
    ck_assert(!kelp_measures_have(&measures, KELP_MEASURE_ACCURACY)); /* targets are no classes */
    kelp_safetensors_close(file);
}
END_TEST

/* A target of zero leaves the relative measures out; a NaN that came about is told. */
START_TEST(what_there_is)
{
    sums[KELP_METRIC_SAMPLES] = 2;
    add_element(1, 0);
    add_element(3, 4);
    kelp_measures_of(sums, KELP_LOSS_MAE, &measures);
    ck_assert_double_eq(has(KELP_MEASURE_MSE), 1);
    ck_assert_double_eq(has(KELP_MEASURE_RSE), 0.5); /* sqrt(2 / 8) */
    ck_assert(!kelp_measures_have(&measures, KELP_MEASURE_MAPE));
    add_element((double)NAN, 2);
    kelp_measures_of(sums, KELP_LOSS_MAE, &measures);
    ck_assert(isnan(has(KELP_MEASURE_MSE)));
    setup();
    sums[KELP_METRIC_SAMPLES] = 4;
    sums[KELP_METRIC_ELEMENTS] = 4;
    sums[KELP_METRIC_CORRECT] = 3;
    kelp_measures_of(sums, KELP_LOSS_CROSS_ENTROPY, &measures);
    ck_assert_uint_eq(measures.present, 1u << KELP_MEASURE_LOSS | 1u << KELP_MEASURE_ACCURACY);
    ck_assert_double_eq(has(KELP_MEASURE_ACCURACY), 0.75);
    setup();
    kelp_measures_of(sums, KELP_LOSS_MSE, &measures);
    ck_assert_uint_eq(measures.present, 1u << KELP_MEASURE_LOSS);
}
END_TEST

/* The share of ordered pairs, by definition, over bins; equal ones count half. */
START_TEST(auc)
{
    enum { COUNT = 300 };
    uint32_t bins[COUNT], words[4];
    bool positive[COUNT];
    double ordered = 0, pairs = 0;

    for (uint32_t i = 0; i < COUNT; i++) {
        kelp_philox(7, KELP_PHILOX_TEST, 1, i, words);
        double score = (double)words[0] / 4294967296.0;
        positive[i] = (double)words[1] / 4294967296.0 < score * score + 0.1;
        bins[i] = kelp_metric_bin(score);
        sums[(positive[i] ? KELP_METRIC_POSITIVE : KELP_METRIC_NEGATIVE) + bins[i]] += 1;
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
    sums[KELP_METRIC_SAMPLES] = COUNT;
    kelp_measures_of(sums, KELP_LOSS_SMOOTH_L1, &measures);
    ck_assert_double_eq_tol(has(KELP_MEASURE_AUC), ordered / pairs, 1e-12);
    ck_assert_double_gt(measures.of[KELP_MEASURE_AUC], 0.6);
    ck_assert_double_eq(has(KELP_MEASURE_ACCURACY), sums[KELP_METRIC_CORRECT] / COUNT);
    ck_assert(!kelp_measures_have(&measures, KELP_MEASURE_MAPE));
    memset(&sums[KELP_METRIC_NEGATIVE], 0, KELP_METRIC_BINS * sizeof(sums[0]));
    kelp_measures_of(sums, KELP_LOSS_SMOOTH_L1, &measures);
    ck_assert(!kelp_measures_have(&measures, KELP_MEASURE_AUC)); /* one kind alone */
}
END_TEST

START_TEST(bins)
{
    ck_assert_uint_eq(kelp_metric_bin(0), 0);
    ck_assert_uint_eq(kelp_metric_bin(-1e300), 0);
    ck_assert_uint_eq(kelp_metric_bin((double)NAN), 0);
    ck_assert_uint_eq(kelp_metric_bin(1), KELP_METRIC_BINS - 1);
    ck_assert_uint_eq(kelp_metric_bin(INFINITY), KELP_METRIC_BINS - 1);
    ck_assert_uint_eq(kelp_metric_bin(0.5), KELP_METRIC_BINS / 2);
    const double zeros[] = {1, 0, -0.0, 0, 0};
    ck_assert_uint_eq(kelp_metric_trim(zeros, 5), 3);
    ck_assert_uint_eq(kelp_metric_trim(zeros, 2), 1);
    ck_assert_uint_eq(kelp_metric_trim(zeros + 3, 2), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("metrics");
    TCase *tests = tcase_create("metrics");
    SRunner *runner = srunner_create(suite);

    tcase_add_checked_fixture(tests, setup, NULL);
    tcase_add_test(tests, forecast);
    tcase_add_test(tests, what_there_is);
    tcase_add_test(tests, auc);
    tcase_add_test(tests, bins);
    suite_add_tcase(suite, tests);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/control.h"

static struct kelp_job job;
static struct kelp_plan plan;
static struct kelp_control_state state;

static void setup(void)
{
    memset(&job, 0, sizeof(job));
    memset(&plan, 0, sizeof(plan));
    job.train.epochs = 2;
    job.train.batch_size = 4;
    job.train.lr = 0.005;
    job.train.schedule = KELP_SCHEDULE_TYPE1;
    job.train.evaluate = true;
    plan.samples[KELP_PART_TRAIN] = 10;
    plan.samples[KELP_PART_VAL] = 5;
    plan.samples[KELP_PART_TEST] = 7;
}

/* Complete the current entry with sums of one loss unit a sample; returns its record. */
static struct kelp_record complete(double loss_sum, double squared)
{
    struct kelp_control_word word;
    struct kelp_record record;
    double sums[KELP_METRIC_COUNT] = {0};

    kelp_control_word(&state, &job, &plan, &word);
    sums[KELP_METRIC_LOSS] = loss_sum;
    sums[KELP_METRIC_SAMPLES] = (double)word.sample_count;
    sums[KELP_METRIC_SQUARED] = squared;
    sums[KELP_METRIC_ABSOLUTE] = 2 * squared;
    sums[KELP_METRIC_ELEMENTS] = 10;
    kelp_control_apply(&state, &job, &plan, sums, word.digest_due ? "abc" : "", &record);
    return record;
}

/* The entries of a whole job as text: kind, epoch, samples and '*' where a digest is due. */
static void trace(char *text, size_t text_bytes)
{
    static const char letters[] = "?TVSFD";
    struct kelp_control_word word;
    size_t used = 0;

    kelp_control_init(&state, &job, &plan);
    for (;;) {
        kelp_control_word(&state, &job, &plan, &word);
        used +=
            (size_t)snprintf(text + used, text_bytes - used, "%c%u:%u%s ", letters[word.kind],
                             word.epoch, (unsigned)word.sample_count, word.digest_due ? "*" : "");
        ck_assert_uint_lt(used, text_bytes);
        if (word.kind == KELP_STEP_DONE) {
            return;
        }
        (void)complete(1, 1);
    }
}

/* Steps of an epoch, its evaluations, the next epoch, FINISH, DONE; the last batch is short. */
START_TEST(test_sequence)
{
    char text[512];

    trace(text, sizeof(text));
    ck_assert_str_eq(text, "T0:4 T0:4 T0:2 V0:5* S0:7 T1:4 T1:4 T1:2 V1:5* S1:7 F1:0* D1:0 ");
    ck_assert_uint_eq(state.version, 11);
    ck_assert_uint_eq(state.step, 6);
    ck_assert_uint_eq(kelp_control_total_steps(&job, &plan), 6);
}
END_TEST

/* drop_last leaves the short batch out; digests come every so many steps too. */
START_TEST(test_drop_last_and_digest_steps)
{
    char text[512];

    job.train.drop_last = true;
    job.checkpoint.digest_steps = 1;
    trace(text, sizeof(text));
    ck_assert_str_eq(text, "T0:4 T0:4* V0:5* S0:7 T1:4 T1:4* V1:5* S1:7 F1:0* D1:0 ");
}
END_TEST

/* Without evaluation, or without samples to evaluate, the digest falls on the next entry. */
START_TEST(test_without_evaluation)
{
    char text[512];

    job.train.evaluate = false;
    trace(text, sizeof(text));
    ck_assert_str_eq(text, "T0:4 T0:4 T0:2 T1:4* T1:4 T1:2 F1:0* D1:0 ");
    job.train.evaluate = true;
    plan.samples[KELP_PART_VAL] = 0;
    trace(text, sizeof(text));
    ck_assert_str_eq(text, "T0:4 T0:4 T0:2 S0:7* T1:4 T1:4 T1:2 S1:7* F1:0* D1:0 ");
    plan.samples[KELP_PART_TEST] = 0;
    trace(text, sizeof(text));
    ck_assert_str_eq(text, "T0:4 T0:4 T0:2 T1:4* T1:4 T1:2 F1:0* D1:0 ");
}
END_TEST

/* No training steps at all still ends. */
START_TEST(test_without_steps)
{
    char text[512];

    job.train.drop_last = true;
    plan.samples[KELP_PART_TRAIN] = 3;
    trace(text, sizeof(text));
    ck_assert_str_eq(text, "V0:5* S0:7 V1:5* S1:7 F1:0* D1:0 ");
}
END_TEST

/* The learning rates of the article's code: lr, lr, lr/2, lr/4 … */
START_TEST(test_type1)
{
    static const double expected[10] = {0.005,       0.005,       0.0025,     0.00125,
                                        0.000625,    0.0003125,   0.00015625, 0.000078125,
                                        3.90625e-05, 1.953125e-05};

    for (uint32_t epoch = 0; epoch < 10; epoch++) {
        ck_assert_double_eq(kelp_control_lr(&job, epoch), expected[epoch]);
    }
    ck_assert_double_eq(kelp_control_lr(&job, UINT32_MAX), 0.0);
    job.train.schedule = KELP_SCHEDULE_CONSTANT;
    ck_assert_double_eq(kelp_control_lr(&job, 9), 0.005);
}
END_TEST

/* train/loss is the mean over the epoch's samples, not over its steps; sums start again. */
START_TEST(test_records)
{
    kelp_control_init(&state, &job, &plan);
    struct kelp_record record = complete(4, 0);
    ck_assert_double_eq(record.loss, 1);
    ck_assert(!record.epoch_end);
    ck_assert_str_eq(record.digest, "");
    (void)complete(4, 0);
    record = complete(12, 0);
    ck_assert(record.epoch_end);
    ck_assert_double_eq(record.loss, 6);
    ck_assert_double_eq(record.epoch_loss, 2);
    ck_assert_uint_eq(kelp_control_word_epochs(&record.word), 0);
    record = complete(5, 30);
    ck_assert_int_eq((int)record.word.kind, KELP_STEP_EVALUATE_VAL);
    ck_assert_uint_eq(kelp_control_word_epochs(&record.word), 1);
    ck_assert_double_eq(record.mse, 3);
    ck_assert_double_eq(record.mae, 6);
    ck_assert_str_eq(record.digest, "abc");
    ck_assert_double_eq(state.best_val_mse, 3);
    (void)complete(7, 1);
    ck_assert_double_eq(state.last[KELP_PART_TEST][1], 0.1);
    (void)complete(8, 0);
    (void)complete(8, 0);
    record = complete(4, 0);
    ck_assert_double_eq(record.epoch_loss, 2);
    (void)complete(5, 40);
    ck_assert_double_eq(state.best_val_mse, 3);
    ck_assert_uint_eq(state.best_epoch, 0);
    ck_assert_double_eq(state.last[KELP_PART_VAL][1], 4);
}
END_TEST

/* Positions of batches follow each other and cover the epoch. */
START_TEST(test_positions)
{
    struct kelp_control_word word, same;

    kelp_control_init(&state, &job, &plan);
    for (uint64_t step = 0; step < 3; step++) {
        kelp_control_word(&state, &job, &plan, &word);
        ck_assert_uint_eq(word.sample_first, step * 4);
        ck_assert_uint_eq(word.step_in_epoch, step);
        ck_assert_uint_eq(word.version, step);
        ck_assert_uint_eq(word.step, step);
        same = word;
        ck_assert(kelp_control_word_equal(&word, &same));
        same.lr = nextafter(same.lr, 1);
        ck_assert(!kelp_control_word_equal(&word, &same));
        (void)complete(1, 1);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("control");
    TCase *tests = tcase_create("control");
    SRunner *runner = srunner_create(suite);

    tcase_add_checked_fixture(tests, setup, NULL);
    tcase_add_test(tests, test_sequence);
    tcase_add_test(tests, test_drop_last_and_digest_steps);
    tcase_add_test(tests, test_without_evaluation);
    tcase_add_test(tests, test_without_steps);
    tcase_add_test(tests, test_type1);
    tcase_add_test(tests, test_records);
    tcase_add_test(tests, test_positions);
    suite_add_tcase(suite, tests);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

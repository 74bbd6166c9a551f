#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/training/control.h"
#include "tests/lib/suite.h"

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
    job.train.evaluate_epochs = 1;
    plan.samples[KELP_SPLIT_TRAIN] = 10;
    plan.samples[KELP_SPLIT_VAL] = 5;
    plan.samples[KELP_SPLIT_TEST] = 7;
}

/* Complete the current entry with sums of one loss unit a sample; returns its record. */
static struct kelp_record complete(double loss_sum, double squared)
{
    struct kelp_control_word word;
    struct kelp_record record;
    double sums[KELP_METRIC_SUM_COUNT] = {0};

    kelp_control_word(&state, &job, &plan, &word);
    sums[KELP_METRIC_SUM_LOSS] = loss_sum;
    sums[KELP_METRIC_SUM_SAMPLES] = (double)word.sample_count;
    sums[KELP_METRIC_SUM_SQUARED] = squared;
    sums[KELP_METRIC_SUM_ABSOLUTE] = 2 * squared;
    sums[KELP_METRIC_SUM_ELEMENTS] = 10;
    kelp_control_apply(&state, &job, &plan, sums, word.digest_due ? "abc" : "", &record);
    return record;
}

/* The entries of a whole job as text: kind, epoch, samples and '*' where a digest is due. */
static void trace(char *text, size_t text_bytes)
{
    static const char letters[] = "?TVSFDP";
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

KELP_CASE("control", .setup = setup)

/* Steps of an epoch, its evaluations, the next epoch, FINISH, DONE; the last batch is short. */
KELP_TEST(test_sequence)
{
    char text[512];

    trace(text, sizeof(text));
    ck_assert_str_eq(text, "T0:4 T0:4 T0:2 V0:5* S0:7 T1:4 T1:4 T1:2 V1:5* S1:7 F1:0* D1:0 ");
    ck_assert_uint_eq(state.version, 11);
    ck_assert_uint_eq(state.step, 6);
    ck_assert_uint_eq(kelp_control_total_steps(&job, &plan), 6);
}

/* drop_last leaves the short batch out; digests come every so many steps too. */
KELP_TEST(test_drop_last_and_digest_steps)
{
    char text[512];

    job.train.drop_last = true;
    job.checkpoint.digest_steps = 1;
    trace(text, sizeof(text));
    ck_assert_str_eq(text, "T0:4 T0:4* V0:5* S0:7 T1:4 T1:4* V1:5* S1:7 F1:0* D1:0 ");
}

/* Without evaluation, or without samples to evaluate, the digest falls on the next entry. */
KELP_TEST(test_without_evaluation)
{
    char text[512];

    job.train.evaluate = false;
    trace(text, sizeof(text));
    ck_assert_str_eq(text, "T0:4 T0:4 T0:2 T1:4* T1:4 T1:2 F1:0* D1:0 ");
    job.train.evaluate = true;
    plan.samples[KELP_SPLIT_VAL] = 0;
    trace(text, sizeof(text));
    ck_assert_str_eq(text, "T0:4 T0:4 T0:2 S0:7* T1:4 T1:4 T1:2 S1:7* F1:0* D1:0 ");
    plan.samples[KELP_SPLIT_TEST] = 0;
    trace(text, sizeof(text));
    ck_assert_str_eq(text, "T0:4 T0:4 T0:2 T1:4* T1:4 T1:2 F1:0* D1:0 ");
}

/* No training steps at all still ends. */
KELP_TEST(test_without_steps)
{
    char text[512];

    job.train.drop_last = true;
    plan.samples[KELP_SPLIT_TRAIN] = 3;
    trace(text, sizeof(text));
    ck_assert_str_eq(text, "V0:5* S0:7 F0:0* D0:0 ");
}

/* Evaluations by their turns, and once more at the end where it is not their turn. */
KELP_TEST(test_turns)
{
    char text[512];

    job.train.epochs = 3;
    job.train.evaluate_epochs = 2;
    trace(text, sizeof(text));
    ck_assert_str_eq(text, "T0:4 T0:4 T0:2 T1:4* T1:4 T1:2 V1:5* S1:7 "
                           "T2:4 T2:4 T2:2 V2:5* S2:7 F2:0* D2:0 ");
    job.train.epochs = 2;
    job.train.evaluate_epochs = 0;
    job.train.evaluate_steps = 2;
    job.checkpoint.digest_steps = 1;
    trace(text, sizeof(text));
    ck_assert_str_eq(text, "T0:4 T0:4* V0:5* S0:7 T0:2 T1:4* V1:5* S1:7 T1:4 T1:2* "
                           "V1:5* S1:7 F1:0* D1:0 ");
    job.train.evaluate_epochs = 1;
    job.train.evaluate_steps = 3; /* both at once count once */
    job.checkpoint.digest_steps = 0;
    trace(text, sizeof(text));
    ck_assert_str_eq(text, "T0:4 T0:4 T0:2 V0:5* S0:7 T1:4 T1:4 T1:2 V1:5* S1:7 F1:0* D1:0 ");
    job.train.evaluate_epochs = 0;
    job.train.evaluate_steps = 0;
    trace(text, sizeof(text));
    ck_assert_str_eq(text, "T0:4 T0:4 T0:2 T1:4* T1:4 T1:2 V1:5* S1:7 F1:0* D1:0 ");
}

/* train.max_steps ends training in the middle of an epoch; the loss of what there was of it is
 * told. */
KELP_TEST(test_max_steps)
{
    struct kelp_record record;
    char text[512];

    job.train.max_steps = 4;
    trace(text, sizeof(text));
    ck_assert_str_eq(text, "T0:4 T0:4 T0:2 V0:5* S0:7 T1:4 V1:5* S1:7 F1:0* D1:0 ");
    kelp_control_init(&state, &job, &plan);
    do {
        record = complete(8, 1);
    } while (record.word.kind != KELP_STEP_TRAIN || record.word.step < 3);
    ck_assert(record.epoch_end);
    ck_assert_double_eq(record.epoch_loss, 2);
    record = complete(5, 1);
    ck_assert_int_eq((int)record.word.kind, KELP_STEP_EVALUATE_VAL);
    ck_assert_uint_eq(kelp_control_word_epochs(&record.word), 1); /* the second is not complete */
    job.train.max_steps = 100;
    ck_assert_uint_eq(kelp_control_total_steps(&job, &plan), 6);
}

/* run.mode evaluate metrics once; predict goes through its part in blocks. */
KELP_TEST(test_modes)
{
    char text[512];

    job.run.mode = KELP_RUN_EVALUATE;
    job.train.evaluate = false;
    trace(text, sizeof(text));
    ck_assert_str_eq(text, "V0:5* S0:7 F0:0* D0:0 ");
    job.run.mode = KELP_RUN_PREDICT;
    job.run.part = KELP_RUN_PART_TRAIN;
    trace(text, sizeof(text));
    ck_assert_str_eq(text, "P0:4 P0:4 P0:2 F0:0* D0:0 ");
    kelp_control_init(&state, &job, &plan);
    (void)complete(0, 0);
    ck_assert_uint_eq(complete(0, 0).word.sample_first, 4);
    job.run.part = KELP_RUN_PART_VAL;
    trace(text, sizeof(text));
    ck_assert_str_eq(text, "P0:4 P0:1 F0:0* D0:0 ");
}

/* Go on to the next evaluation of the validation split and complete it with this squared error. */
static struct kelp_record evaluate(double squared)
{
    for (;;) {
        struct kelp_record record = complete(1, squared);
        if (record.word.kind == KELP_STEP_EVALUATE_VAL) {
            return record;
        }
    }
}

/* Training ends after so many evaluations in a row that are not better, by more than min_delta. */
KELP_TEST(test_patience)
{
    job.train.epochs = 100;
    job.train.monitor = KELP_MONITOR_MSE;
    job.train.patience = 2;
    job.train.min_delta = 0.1;
    kelp_control_init(&state, &job, &plan);
    /* 10 elements: 2, 1.5, 1.45 (not enough better), 1.3, 1.3, 1.25: the second one in a row */
    static const double squared[] = {20, 15, 14.5, 13, 13, 12.5};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(squared); i++) {
        ck_assert(!state.stopped);
        (void)evaluate(squared[i]);
    }
    ck_assert(state.stopped);
    ck_assert_int_eq((int)state.kind, KELP_STEP_EVALUATE_TEST); /* still measured */
    (void)complete(1, 1);
    ck_assert_int_eq((int)state.kind, KELP_STEP_FINISH);
    ck_assert_uint_eq(state.epoch, 5);
}

/* The best evaluation so far, with what the test split had; NaN is never the best. */
KELP_TEST(test_best)
{
    job.train.epochs = 100;
    job.train.monitor = KELP_MONITOR_MSE;
    kelp_control_init(&state, &job, &plan);
    ck_assert(!evaluate(NAN).best);
    ck_assert(!complete(1, 1).best);
    ck_assert(!state.best.known);
    ck_assert(evaluate(20).best);
    ck_assert_uint_eq(state.best.test.present, 0);
    ck_assert(complete(1, 5).best);
    ck_assert_double_eq(state.best.test.of[KELP_METRIC_MSE], 0.5);
    ck_assert(!evaluate(20).best);
    ck_assert(!complete(1, 1).best);
    ck_assert(!evaluate(NAN).best);
    ck_assert_uint_eq(state.best.epoch, 1);
    ck_assert_uint_eq(state.best.step, 6);
    ck_assert_double_eq(state.best.val.of[KELP_METRIC_MSE], 2);
    ck_assert(evaluate(19).best);
    ck_assert_uint_eq(state.best.epoch, 4);
}

/* train/loss is the mean over the epoch's samples, not over its steps; sums start again. */
KELP_TEST(test_records)
{
    kelp_control_init(&state, &job, &plan);
    struct kelp_record record = complete(4, 0);
    ck_assert_double_eq(record.metrics.of[KELP_METRIC_LOSS], 1);
    ck_assert_uint_eq(record.metrics.present, 1);
    ck_assert(!record.epoch_end);
    ck_assert_str_eq(record.digest, "");
    (void)complete(4, 0);
    record = complete(12, 0);
    ck_assert(record.epoch_end);
    ck_assert_double_eq(record.metrics.of[KELP_METRIC_LOSS], 6);
    ck_assert_double_eq(record.epoch_loss, 2);
    ck_assert_uint_eq(kelp_control_word_epochs(&record.word), 0);
    record = complete(5, 30);
    ck_assert_int_eq((int)record.word.kind, KELP_STEP_EVALUATE_VAL);
    ck_assert_uint_eq(kelp_control_word_epochs(&record.word), 1);
    ck_assert_double_eq(record.metrics.of[KELP_METRIC_LOSS], 1);
    ck_assert_double_eq(record.metrics.of[KELP_METRIC_MSE], 3);
    ck_assert_double_eq(record.metrics.of[KELP_METRIC_MAE], 6);
    ck_assert_str_eq(record.digest, "abc");
    (void)complete(7, 1);
    (void)complete(8, 0);
    (void)complete(8, 0);
    record = complete(4, 0);
    ck_assert_double_eq(record.epoch_loss, 2);
}

/* The current training step is skipped. */
static struct kelp_record skip(void)
{
    struct kelp_record record;
    double sums[KELP_METRIC_SUM_COUNT] = {
        [KELP_METRIC_SUM_LOSS] = NAN, [KELP_METRIC_SUM_SAMPLES] = 4};

    kelp_control_skip(&state, &job, &plan, sums, "", &record);
    return record;
}

/* What is not finite is never the best, for no metric, early stopping or checkpoint. */
KELP_TEST(test_not_finite_is_no_best)
{
    struct kelp_metrics metrics = {.present = 0};
    double values[KELP_CHECKPOINT_METRICS];

    job.train.epochs = 100;
    job.train.monitor = KELP_MONITOR_MSE;
    job.train.patience = 3;
    kelp_control_init(&state, &job, &plan);
    ck_assert(!evaluate(INFINITY).best);
    ck_assert(!evaluate(-INFINITY).best);
    ck_assert(!state.best.known);
    ck_assert_uint_eq(state.patience_count, 2);
    ck_assert(evaluate(20).best);
    ck_assert_uint_eq(state.patience_count, 0);
    ck_assert(!kelp_metric_better(true, INFINITY, 0.5, 0));
    kelp_metrics_set(&metrics, KELP_METRIC_MSE, INFINITY);
    kelp_metrics_set(&metrics, KELP_METRIC_MAE, 2);
    kelp_metrics_for_checkpoint(&job, &metrics, values);
    ck_assert(isnan(values[KELP_CHECKPOINT_VAL_MSE]));
    ck_assert_double_eq(values[KELP_CHECKPOINT_VAL_MAE], 2);
}

/* Of a program, metrics are those of the sums that its lanes added to; its own ones stand where it
 * has no other, and say themselves which is better. */
KELP_TEST(test_metrics_of_a_program)
{
    struct kelp_job own = {.model = {.kind = KELP_MODEL_PROGRAM, .sums = "top5\nfar=min\nnone"},
                           .train = {.monitor = KELP_MONITOR_SUM, .monitor_sum = "far"},
                           .checkpoint = {.metric = KELP_CHECKPOINT_VAL_SUM, .metric_sum = "top5"}};
    double sums[KELP_METRIC_SUM_COUNT] = {
        [KELP_METRIC_SUM_LOSS] = 8,         [KELP_METRIC_SUM_SAMPLES] = 4,
        [KELP_METRIC_SUM_ELEMENTS] = 4,     [KELP_METRIC_SUM_CORRECT] = 0,
        [KELP_METRIC_SUM_GAVE_CORRECT] = 2, [KELP_METRIC_SUM_ABSOLUTE] = 3,
        [KELP_METRIC_SUM_NAMED] = 3,        [KELP_METRIC_SUM_GAVE_NAMED] = 1,
        [KELP_METRIC_SUM_NAMED + 1] = 10,   [KELP_METRIC_SUM_GAVE_NAMED + 1] = 1};
    double kept[KELP_CHECKPOINT_METRICS];
    char name[KELP_JOB_SUM_NAME_MAX + 1];
    struct kelp_metrics metrics;

    kelp_metrics_of_given(&own, sums, &metrics);
    ck_assert_uint_eq(metrics.present, 1u << KELP_METRIC_LOSS | 1u << KELP_METRIC_ACCURACY |
                                           1u << kelp_metric_of_sum(0) |
                                           1u << kelp_metric_of_sum(1));
    ck_assert_double_eq(metrics.of[KELP_METRIC_ACCURACY], 0);
    ck_assert_double_eq(metrics.of[kelp_metric_of_sum(0)], 0.75);
    ck_assert_double_eq(metrics.of[kelp_metric_of_sum(1)], 2.5);
    kelp_metric_name_in(&own, kelp_metric_of_sum(1), name);
    ck_assert_str_eq(name, "far");
    kelp_metric_name_in(&own, KELP_METRIC_ACCURACY, name);
    ck_assert_str_eq(name, "accuracy");
    ck_assert(!kelp_metric_larger(&own, kelp_metric_monitored(&own)));
    ck_assert(kelp_metric_larger(&own, kelp_metric_of_keeping(&own)));
    kelp_metrics_for_checkpoint(&own, &metrics, kept);
    ck_assert_double_eq(kept[kelp_checkpoint_metric_index(&own)], 0.75);
    own.checkpoint.metric = KELP_CHECKPOINT_VAL_LOSS;
    kelp_metrics_for_checkpoint(&own, &metrics, kept);
    ck_assert_double_eq(kept[kelp_checkpoint_metric_index(&own)], 2);
    ck_assert(isnan(kept[KELP_CHECKPOINT_VAL_AUC])); /* it would be another sum */
}

/* Errors in the data's own unit are told when every sample has them. */
KELP_TEST(test_unscaled)
{
    struct kelp_metrics metrics;
    double sums[KELP_METRIC_SUM_COUNT] = {[KELP_METRIC_SUM_SAMPLES] = 2,
                                          [KELP_METRIC_SUM_ELEMENTS] = 8,
                                          [KELP_METRIC_SUM_ABSOLUTE] = 4,
                                          [KELP_METRIC_SUM_SQUARED] = 8,
                                          [KELP_METRIC_SUM_UNSCALED_ABSOLUTE] = 40,
                                          [KELP_METRIC_SUM_UNSCALED_SQUARED] = 200,
                                          [KELP_METRIC_SUM_UNSCALED_SAMPLES] = 2};

    kelp_metrics_of_sums(sums, KELP_LOSS_MSE, &metrics);
    ck_assert_double_eq(metrics.of[KELP_METRIC_MAE], 0.5);
    ck_assert_double_eq(metrics.of[KELP_METRIC_MAE_UNSCALED], 5);
    ck_assert_double_eq(metrics.of[KELP_METRIC_RMSE_UNSCALED], 5);
    sums[KELP_METRIC_SUM_UNSCALED_SAMPLES] = 1;
    kelp_metrics_of_sums(sums, KELP_LOSS_MSE, &metrics);
    ck_assert(!kelp_metrics_have(&metrics, KELP_METRIC_MAE_UNSCALED));
}

/* Steps that are skipped are counted; the epoch's loss is that of the others, none of none. */
KELP_TEST(test_skipped_steps)
{
    struct kelp_control_word word;

    job.failure.on_nan = KELP_NAN_SKIP;
    kelp_control_init(&state, &job, &plan);
    (void)complete(4, 0);
    ck_assert(!skip().epoch_end);
    kelp_control_word(&state, &job, &plan, &word);
    ck_assert(word.skipped);
    ck_assert_uint_eq(word.steps_skipped, 1);
    struct kelp_record record = complete(6, 0);
    ck_assert(record.epoch_end);
    ck_assert_double_eq(record.epoch_loss, 10.0 / 6);
    ck_assert(!kelp_control_gives_up(&state, &job, &plan));
    (void)complete(1, 1);
    (void)complete(1, 1);
    (void)skip();
    (void)skip();
    ck_assert(!kelp_control_gives_up(&state, &job, &plan)); /* 3 of 5, but within an epoch */
    record = skip();
    ck_assert(record.epoch_end);
    ck_assert(isnan(record.epoch_loss));
    ck_assert_uint_eq(state.steps_skipped, 4);
    ck_assert(kelp_control_gives_up(&state, &job, &plan));
    job.failure.on_nan = KELP_NAN_STOP;
    ck_assert(!kelp_control_gives_up(&state, &job, &plan));
}

/* As many as were made are not more; an evaluation within an epoch is no end of one. */
KELP_TEST(test_giving_up)
{
    job.failure.on_nan = KELP_NAN_SKIP;
    job.train.drop_last = true; /* two steps */
    kelp_control_init(&state, &job, &plan);
    (void)skip();
    (void)complete(1, 0);
    ck_assert(!kelp_control_gives_up(&state, &job, &plan));
    job.train.evaluate_steps = 1;
    kelp_control_init(&state, &job, &plan);
    (void)skip();
    ck_assert_int_eq((int)state.kind, KELP_STEP_EVALUATE_VAL);
    ck_assert(!kelp_control_gives_up(&state, &job, &plan));
    job.train.max_steps = 1;
    ck_assert(kelp_control_gives_up(&state, &job, &plan));
}

/* metrics.every: the mean since the line before, over epochs' ends; skipped ones are not in it. */
KELP_TEST(test_windows)
{
    job.train.evaluate = false;
    job.metrics.every = 2;
    kelp_control_init(&state, &job, &plan);
    ck_assert(!complete(4, 0).window_end);
    struct kelp_record record = complete(12, 0);
    ck_assert(record.window_end && !record.epoch_end);
    ck_assert_double_eq(record.window_loss, 2);
    record = complete(2, 0); /* two samples */
    ck_assert(!record.window_end && record.epoch_end);
    record = complete(10, 0);
    ck_assert(record.window_end);
    ck_assert_double_eq(record.window_loss, 2);
    (void)skip();
    record = complete(8, 0);
    ck_assert(record.window_end && record.epoch_end);
    ck_assert_double_eq(record.window_loss, 4);
    job.metrics.every = 1;
    kelp_control_init(&state, &job, &plan);
    ck_assert(isnan(skip().window_loss));
}

/* A run of many steps is not refused: its lines become rarer, each time by half. */
KELP_TEST(test_windows_of_a_long_run)
{
    uint64_t lines = 0;

    job.train.evaluate = false;
    job.metrics.every = 1;
    job.train.epochs = 300000; /* of three steps */
    ck_assert_int_eq(kelp_control_check(&job, &plan, NULL), KELP_OK);
    kelp_control_init(&state, &job, &plan);
    for (uint64_t step = 1; step <= 3 * KELP_METRICS_LINES_DENSE; step++) {
        bool ended = complete(4, 0).window_end;
        lines += ended;
        if (step <= KELP_METRICS_LINES_DENSE) {
            ck_assert(ended);
        }
    }
    /* every one, then every second up to twice as many steps, then every fourth */
    ck_assert_uint_eq(lines, KELP_METRICS_LINES_DENSE + KELP_METRICS_LINES_DENSE / 2 +
                                 KELP_METRICS_LINES_DENSE / 4);
}

/* An epoch of at most so many batches. */
KELP_TEST(test_batches_per_epoch)
{
    char text[512];

    job.train.batches_per_epoch = 2;
    trace(text, sizeof(text));
    ck_assert_str_eq(text, "T0:4 T0:4 V0:5* S0:7 T1:4 T1:4 V1:5* S1:7 F1:0* D1:0 ");
    job.train.batches_per_epoch = 9; /* there are three */
    ck_assert_uint_eq(kelp_control_steps_per_epoch(&job, &plan), 3);
}

/* Positions of batches follow each other and cover the epoch. */
KELP_TEST(test_positions)
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

/* Learning rates as PyTorch's schedulers give them, epoch by epoch. */
#include <check.h>
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/control.h"
#include "common/learning_rate.h"
#include "tests/lib/shared_files.h"

static cJSON *tables;
static struct kelp_job job;

static void setup(void)
{
    static char text[1 << 16];
    char path[KELP_TEST_PATH_MAX];

    memset(&job, 0, sizeof(job));
    job.train.lr = 0.1;
    job.train.epochs = 100;
    tables = NULL;
    if (!kelp_test_reference_file("lr_schedules.json", path)) {
        return;
    }
    FILE *in = fopen(path, "r");
    ck_assert_ptr_nonnull(in);
    size_t bytes = fread(text, 1, sizeof(text) - 1, in);
    text[bytes] = '\0';
    (void)fclose(in);
    tables = cJSON_Parse(text);
    ck_assert_ptr_nonnull(tables);
}

static void teardown(void)
{
    cJSON_Delete(tables);
}

static void check(double rate, double expected, const char *name, int at)
{
    ck_assert_msg(fabs(rate - expected) <= 1e-12 * fabs(expected), "%s[%d]: %.17g, not %.17g", name,
                  at, rate, expected);
}

/* The table by epochs, and by steps. */
static void compare(const char *name)
{
    const cJSON *rates = cJSON_GetObjectItemCaseSensitive(tables, name);
    const cJSON *rate;
    int at = 0;

    if (tables == NULL) {
        return;
    }
    ck_assert_msg(cJSON_GetArraySize(rates) > 0, "%s", name);
    cJSON_ArrayForEach(rate, rates)
    {
        struct kelp_run_place place = {
            .epoch = (uint64_t)at, .step = (uint64_t)at * 7, .epoch_total = 100, .step_total = 700};
        job.train.schedule_unit = KELP_SCHEDULE_EPOCH;
        check(kelp_learning_rate(&job, &place), rate->valuedouble, name, at);
        place.step = (uint64_t)at;
        job.train.schedule_unit = KELP_SCHEDULE_BY_STEP;
        check(kelp_learning_rate(&job, &place), rate->valuedouble, name, at);
        at++;
    }
}

START_TEST(step)
{
    job.train.schedule = KELP_SCHEDULE_STEP;
    job.train.lr = 1;
    job.train.schedule_step = 1;
    job.train.gamma = 0.7;
    compare("StepLR_step1_gamma0.7_lr1.0");
    job.train.lr = 0.1;
    job.train.schedule_step = 3;
    job.train.gamma = 0.1;
    compare("StepLR_step3_gamma0.1_lr0.1");
}
END_TEST

START_TEST(multistep)
{
    job.train.schedule = KELP_SCHEDULE_MULTISTEP;
    job.train.milestones[0] = 2;
    job.train.milestones[1] = 5;
    job.train.milestone_count = 2;
    job.train.gamma = 0.5;
    compare("MultiStepLR_2_5_gamma0.5_lr0.1");
}
END_TEST

START_TEST(exponential)
{
    job.train.schedule = KELP_SCHEDULE_EXPONENTIAL;
    job.train.gamma = 0.9;
    compare("ExponentialLR_gamma0.9_lr0.1");
}
END_TEST

START_TEST(cosine)
{
    job.train.schedule = KELP_SCHEDULE_COSINE;
    job.train.schedule_total = 10;
    compare("CosineAnnealingLR_T10_min0_lr0.1");
    job.train.lr_min = 0.001;
    compare("CosineAnnealingLR_T10_min0.001_lr0.1");
    job.train.lr_min = 0;
    job.train.schedule = KELP_SCHEDULE_COSINE_RESTARTS;
    job.train.schedule_total = 4;
    job.train.restart_factor = 2;
    compare("CosineAnnealingWarmRestarts_T4_mult2_lr0.1");
}
END_TEST

START_TEST(linear)
{
    job.train.schedule = KELP_SCHEDULE_LINEAR;
    job.train.schedule_total = 4;
    job.train.start_factor = 0.25;
    compare("LinearLR_start0.25_total4_lr0.1");
}
END_TEST

/* By epochs alone, exactly. */
START_TEST(type1)
{
    const cJSON *rate;
    uint64_t epoch = 0;

    job.train.schedule = KELP_SCHEDULE_TYPE1;
    job.train.lr = 0.005;
    cJSON_ArrayForEach(rate, cJSON_GetObjectItemCaseSensitive(tables, "type1_lr0.005"))
    {
        const struct kelp_run_place place = {.epoch = epoch++, .step = 1000};
        ck_assert_double_eq(kelp_learning_rate(&job, &place), rate->valuedouble);
    }
    ck_assert_uint_eq(epoch, tables ? 10 : 0);
    const struct kelp_run_place late = {.epoch = UINT32_MAX};
    ck_assert_double_eq(kelp_learning_rate(&job, &late), 0.0);
}
END_TEST

/* Through the control state: a validation loss after each epoch of one step. */
START_TEST(plateau)
{
    const char *name = "ReduceLROnPlateau_patience2_factor0.1_lr0.1";
    const cJSON *table = cJSON_GetObjectItemCaseSensitive(tables, name);
    const cJSON *rates = cJSON_GetObjectItemCaseSensitive(table, "lr");
    const cJSON *losses = cJSON_GetObjectItemCaseSensitive(table, "metric");
    struct kelp_plan plan = {.samples = {[KELP_PART_TRAIN] = 1, [KELP_PART_VAL] = 1}};
    struct kelp_control_state state;
    struct kelp_record record;

    job.train.schedule = KELP_SCHEDULE_PLATEAU;
    job.train.batch_size = 1;
    job.train.evaluate = true;
    job.train.evaluate_epochs = 1;
    job.train.plateau_patience = 2;
    job.train.plateau_factor = 0.1;
    job.train.plateau_threshold = 1e-4;
    kelp_control_init(&state, &job, &plan);
    for (int epoch = 0; epoch < cJSON_GetArraySize(rates); epoch++) {
        double sums[KELP_METRIC_COUNT] = {0.5, 1};
        kelp_control_apply(&state, &job, &plan, sums, "", &record);
        check(record.word.lr, cJSON_GetArrayItem(rates, epoch)->valuedouble, name, epoch);
        sums[KELP_METRIC_LOSS] = cJSON_GetArrayItem(losses, epoch)->valuedouble;
        kelp_control_apply(&state, &job, &plan, sums, "", &record);
    }
    ck_assert_uint_eq(state.epoch, tables ? 11 : 0);
}
END_TEST

/* Warm-up grows to the schedule's rate, which cosine begins behind it; without a total the whole
 * run counts, and at its end the rate stays where it is. */
START_TEST(warmup)
{
    struct kelp_run_place place = {.epoch_total = 13, .step_total = 1300};

    job.train.warmup = 3;
    job.train.schedule = KELP_SCHEDULE_CONSTANT;
    for (place.epoch = 0; place.epoch < 5; place.epoch++) {
        double share = place.epoch < 3 ? ((double)place.epoch + 1) / 4 : 1;
        check(kelp_learning_rate(&job, &place), 0.1 * share, "constant", (int)place.epoch);
    }
    job.train.schedule = KELP_SCHEDULE_COSINE;
    for (place.epoch = 0; place.epoch < 20; place.epoch++) {
        struct kelp_job plain = job;
        struct kelp_run_place behind = {.epoch = place.epoch - 3, .epoch_total = 10};
        plain.train.warmup = 0;
        double expected = place.epoch < 3 ? 0.1 * ((double)place.epoch + 1) / 4
                                          : kelp_learning_rate(&plain, &behind);
        check(kelp_learning_rate(&job, &place), expected, "cosine", (int)place.epoch);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("schedules");
    TCase *tests = tcase_create("schedules");
    SRunner *runner = srunner_create(suite);

    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, step);
    tcase_add_test(tests, multistep);
    tcase_add_test(tests, exponential);
    tcase_add_test(tests, cosine);
    tcase_add_test(tests, linear);
    tcase_add_test(tests, type1);
    tcase_add_test(tests, plateau);
    tcase_add_test(tests, warmup);
    suite_add_tcase(suite, tests);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* Learning rates as PyTorch's schedulers give them. Which ones, and their settings, is read from
 * the names of the tables in lr_schedules.json. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/training/control.h"
#include "common/training/learning_rate.h"
#include "tests/lib/golden/golden.h"
#include "tests/lib/suite.h"

static struct kelp_job job;

static void setup(void)
{
    memset(&job, 0, sizeof(job));
    job.train.lr = 0.1;
}

static void check(double rate, double expected, const char *name, int at)
{
    const double allowed = job.train.schedule == KELP_SCHEDULE_TYPE1 ? 0.0 : 1e-12 * fabs(expected);
    ck_assert_msg(fabs(rate - expected) <= allowed, "%s[%d]: %.17g, not %.17g", name, at, rate,
                  expected);
}

/* "StepLR_step3_gamma0.1_lr0.1" to the fields of the job, PyTorch's defaults where the name says
 * nothing. False for a schedule or a setting that Kelp does not have. */
static bool read_schedule(const char *name)
{
    static const struct {
        const char *word;
        enum kelp_schedule_kind kind;
    } kinds[] = {{"StepLR", KELP_SCHEDULE_STEP},
                 {"MultiStepLR", KELP_SCHEDULE_MULTISTEP},
                 {"ExponentialLR", KELP_SCHEDULE_EXPONENTIAL},
                 {"CosineAnnealingLR", KELP_SCHEDULE_COSINE},
                 {"CosineAnnealingWarmRestarts", KELP_SCHEDULE_COSINE_RESTARTS},
                 {"LinearLR", KELP_SCHEDULE_LINEAR},
                 {"type1", KELP_SCHEDULE_TYPE1},
                 {"ReduceLROnPlateau", KELP_SCHEDULE_PLATEAU}};
    const struct kelp_golden_setting settings[] = {
        {"lr", .number = &job.train.lr},
        {"step", .whole = &job.train.schedule_step},
        {"gamma", .number = &job.train.gamma},
        {"", .whole = job.train.milestones, .count = &job.train.milestone_count},
        {"T", .whole = &job.train.schedule_total},
        {"total", .whole = &job.train.schedule_total},
        {"min", .number = &job.train.lr_min},
        {"mult", .whole = &job.train.restart_factor},
        {"start", .number = &job.train.start_factor},
        {"patience", .whole = &job.train.plateau_patience},
        {"factor", .number = &job.train.plateau_factor},
        {"threshold", .number = &job.train.plateau_threshold},
    };
    const size_t length = strcspn(name, "_");
    memset(&job, 0, sizeof(job));
    job.train.gamma = job.train.plateau_factor = 0.1;
    job.train.restart_factor = 1;
    job.train.start_factor = 1.0 / 3;
    job.train.plateau_patience = 10;
    job.train.plateau_threshold = 1e-4;
    for (size_t i = 0; i < KELP_ARRAY_COUNT(kinds); i++) {
        if (strlen(kinds[i].word) == length && memcmp(name, kinds[i].word, length) == 0) {
            job.train.schedule = kinds[i].kind;
            return name[length] == '_' &&
                   kelp_golden_settings(name + length + 1, settings, KELP_ARRAY_COUNT(settings));
        }
    }
    return false;
}

/* A table of rates: by epochs, and, but for the article's schedule, by steps. */
static int check_rates(const cJSON *table)
{
    const uint64_t total = (uint64_t)cJSON_GetArraySize(table);
    const cJSON *rate;
    int at = 0;
    cJSON_ArrayForEach(rate, table)
    {
        struct kelp_run_place place = {.epoch = (uint64_t)at,
                                       .step = (uint64_t)at * 7,
                                       .epoch_total = total,
                                       .step_total = total * 7};
        job.train.schedule_unit = KELP_SCHEDULE_EPOCH;
        check(kelp_learning_rate(&job, &place), rate->valuedouble, table->string, at);
        if (job.train.schedule != KELP_SCHEDULE_TYPE1) {
            place.step = (uint64_t)at;
            job.train.schedule_unit = KELP_SCHEDULE_BY_STEP;
            check(kelp_learning_rate(&job, &place), rate->valuedouble, table->string, at);
        }
        at++;
    }
    return at;
}

/* Rates that follow a "metric", through the control state: a validation loss after each epoch of
 * one step. */
static int check_plateau(const cJSON *table)
{
    const cJSON *rates = cJSON_GetObjectItemCaseSensitive(table, "lr");
    const cJSON *losses = cJSON_GetObjectItemCaseSensitive(table, "metric");
    const int count = cJSON_GetArraySize(rates);
    struct kelp_plan plan = {.samples = {[KELP_SPLIT_TRAIN] = 1, [KELP_SPLIT_VAL] = 1}};
    struct kelp_control_state state;
    struct kelp_record record;

    ck_assert_int_eq(cJSON_GetArraySize(losses), count);
    job.train.epochs = (uint32_t)count + 1;
    job.train.batch_size = 1;
    job.train.evaluate = true;
    job.train.evaluate_epochs = 1;
    kelp_control_init(&state, &job, &plan);
    for (int epoch = 0; epoch < count; epoch++) {
        double sums[KELP_METRIC_SUM_COUNT] = {0.5, 1};
        kelp_control_apply(&state, &job, &plan, sums, "", &record);
        check(record.word.lr, cJSON_GetArrayItem(rates, epoch)->valuedouble, table->string, epoch);
        sums[KELP_METRIC_SUM_LOSS] = cJSON_GetArrayItem(losses, epoch)->valuedouble;
        kelp_control_apply(&state, &job, &plan, sums, "", &record);
    }
    ck_assert_uint_eq(state.epoch, (uint32_t)count);
    return count;
}

KELP_CASE("schedules", .setup = setup)

/* All tables of the file; texts are notes. */
KELP_TEST(reference)
{
    cJSON *tables = NULL;
    const cJSON *table;
    int table_count = 0;
    struct kelp_error error = {.text = ""};
    const kelp_status status = kelp_golden_json("lr_schedules.json", &tables, &error);

    if (status == KELP_ERR_NOT_FOUND) {
        printf("skipped: %s\n", error.text);
        return;
    }
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    cJSON_ArrayForEach(table, tables)
    {
        if (cJSON_IsString(table)) {
            continue;
        }
        ck_assert_msg(read_schedule(table->string), "%s: no such schedule", table->string);
        const bool plateau = job.train.schedule == KELP_SCHEDULE_PLATEAU;
        const int rate_count = plateau ? check_plateau(table) : check_rates(table);
        ck_assert_msg(rate_count > 0, "%s has no rates", table->string);
        printf("%-48s %d rates\n", table->string, rate_count);
        table_count++;
    }
    ck_assert_int_gt(table_count, 0);
    cJSON_Delete(tables);
}

/* Warm-up grows to the schedule's rate, which cosine begins behind it; without a total the whole
 * run counts, and at its end the rate stays where it is. */
KELP_TEST(warmup)
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

/* A rate that is halved for ever comes to zero. */
KELP_TEST(far_away)
{
    const struct kelp_run_place late = {.epoch = UINT32_MAX};
    job.train.schedule = KELP_SCHEDULE_TYPE1;
    ck_assert_double_eq(kelp_learning_rate(&job, &late), 0.0);
}

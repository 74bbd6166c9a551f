/*
 * Tables and panels on the real taxi files: rows, sums and first samples of the reference, and the
 * two simple forecasts whose errors RESULTS.md has, which only the right windows give.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/files.h"
#include "common/base/json.h"
#include "tests/lib/golden/golden.h"
#include "tests/lib/suite.h"
#include "worker/data/dataset.h"

static char trips_path[KELP_TEST_PATH_MAX];
static char hourly_path[KELP_TEST_PATH_MAX];
static char cache_folder[64];

static void make_cache(void)
{
    (void)snprintf(cache_folder, sizeof(cache_folder), "/tmp/kelp-taxi-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(cache_folder));
}

static void remove_cache(void)
{
    ck_assert_int_eq(kelp_files_remove(cache_folder, NULL), KELP_OK);
}

#define SET(field, text)                                                                           \
    ck_assert_int_lt(snprintf(field, sizeof(field), "%s", text), (int)sizeof(field))

#define FEATURES_MAX 16

/* The columns that "taxi_feature_order" names, without what it says of them in brackets. Returns
 * how many. */
static int set_columns(struct kelp_job *job, const cJSON *checks)
{
    const cJSON *name;
    size_t used = 0;
    int count = 0;
    cJSON_ArrayForEach(name, cJSON_GetObjectItemCaseSensitive(checks, "taxi_feature_order"))
    {
        ck_assert(cJSON_IsString(name));
        used += (size_t)snprintf(job->data.columns + used, sizeof(job->data.columns) - used,
                                 "%s%.*s", count > 0 ? "\n" : "",
                                 (int)strcspn(name->valuestring, "("), name->valuestring);
        ck_assert_uint_lt(used, sizeof(job->data.columns));
        count++;
    }
    ck_assert(count > 0 && count <= FEATURES_MAX);
    return count;
}

static void fare_job(struct kelp_job *job)
{
    memset(job, 0, sizeof(*job));
    job->data.kind = KELP_DATA_TABLE;
    SET(job->data.path, trips_path);
    SET(job->data.cache, cache_folder);
    SET(job->data.derive, "trip_duration = seconds(tpep_dropoff_datetime) - "
                          "seconds(tpep_pickup_datetime)\n"
                          "hour = hour(tpep_pickup_datetime)\n"
                          "day_of_week = weekday(tpep_pickup_datetime)\n"
                          "is_big_tip = tip_amount > 0.2 * fare_amount");
    SET(job->data.filter, "passenger_count < 5\n"
                          "trip_duration >= 0 and trip_duration <= 14400\n"
                          "trip_distance < 100\n"
                          "fare_amount < 1000");
    SET(job->data.targets, "is_big_tip");
    job->data.test_every = 10;
}

static struct kelp_dataset *open_or_fail(const struct kelp_job *job)
{
    struct kelp_error error = {0};
    struct kelp_dataset *dataset = NULL;
    kelp_status status = kelp_dataset_open(job, &dataset, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    return dataset;
}

static double check_value(const cJSON *checks, const char *name)
{
    double value = 0.0;
    ck_assert_int_eq(kelp_json_double(checks, name, &value, NULL), KELP_OK);
    return value;
}

/* The mean of the labels of a split, and the sum of each of its features. */
static double label_mean(const struct kelp_dataset *dataset, enum kelp_split split,
                         double sums[FEATURES_MAX], int features)
{
    uint64_t count = kelp_dataset_info(dataset)->samples[split];
    double labels = 0.0;
    memset(sums, 0, FEATURES_MAX * sizeof(*sums));
    for (uint64_t i = 0; i < count; i++) {
        float input[FEATURES_MAX], target = 0.0f;
        ck_assert_int_eq(kelp_dataset_read(dataset, split, &i, 1, input, &target), KELP_OK);
        for (int c = 0; c < features; c++) {
            sums[c] += (double)input[c];
        }
        labels += (double)target;
    }
    return labels / (double)count;
}

/* "taxi_first3": the first rows. */
static void check_first_rows(const struct kelp_dataset *dataset, const cJSON *rows, int features)
{
    const cJSON *row;
    uint64_t at = 0;
    ck_assert_int_gt(cJSON_GetArraySize(rows), 0);
    cJSON_ArrayForEach(row, rows)
    {
        float input[FEATURES_MAX], target = 0.0f;
        ck_assert_int_eq(cJSON_GetArraySize(row), features);
        ck_assert_int_eq(kelp_dataset_read(dataset, KELP_SPLIT_TRAIN, &at, 1, input, &target),
                         KELP_OK);
        for (int c = 0; c < features; c++) {
            ck_assert_double_eq((double)input[c], cJSON_GetArrayItem(row, c)->valuedouble);
        }
        at++;
    }
}

static void require_files(void)
{
    bool there = kelp_test_data_file("nyc-taxi/yellow_trips_train.csv.gz", trips_path);
    there = kelp_test_reference_file("data_checks.json", hourly_path) && there;
    there = kelp_test_data_file("nyc-taxi/hourly/2017-01_1H_zone.csv", hourly_path) && there;
    if (!there) {
        kelp_suite_skip("the taxi data or their checks are not there");
    }
    (void)kelp_test_data_file("nyc-taxi/hourly/2017-0?_1H_zone.csv", hourly_path);
}

KELP_SUITE(.before = require_files)
KELP_CASE("dataset_taxi", .timeout_s = 120, .setup = make_cache, .teardown = remove_cache)

/* The article's filters and features: all counts, sums, label means and the first rows. */
KELP_TEST(trips)
{
    struct kelp_job job;
    cJSON *checks = NULL;
    double sums[FEATURES_MAX];
    ck_assert_int_eq(kelp_golden_json("data_checks.json", &checks, NULL), KELP_OK);
    fare_job(&job);
    const int features = set_columns(&job, checks);
    struct kelp_dataset *dataset = open_or_fail(&job);
    const struct kelp_dataset_info *info = kelp_dataset_info(dataset);
    const double train = (double)info->samples[KELP_SPLIT_TRAIN];
    const double test = (double)info->samples[KELP_SPLIT_TEST];
    ck_assert_uint_eq(kelp_sample_input_count(&info->shape), (unsigned)features);
    ck_assert_double_eq(train, check_value(checks, "taxi_train_rows"));
    ck_assert_double_eq(test, check_value(checks, "taxi_test_rows_index_mod10_eq9"));
    ck_assert_double_eq(train + test, check_value(checks, "taxi_train_file_rows_after_filter"));
    ck_assert_double_eq_tol(label_mean(dataset, KELP_SPLIT_TEST, sums, features),
                            check_value(checks, "taxi_label_mean_test"), 1e-12);
    ck_assert_double_eq_tol(label_mean(dataset, KELP_SPLIT_TRAIN, sums, features),
                            check_value(checks, "taxi_label_mean_train"), 1e-12);
    const cJSON *expected = cJSON_GetObjectItemCaseSensitive(checks, "taxi_feature_sum_train");
    ck_assert_int_eq(cJSON_GetArraySize(expected), features);
    for (int c = 0; c < features; c++) {
        double sum = cJSON_GetArrayItem(expected, c)->valuedouble;
        ck_assert_msg(fabs(sums[c] - sum) <= 1e-7 * sum, "feature %d: %.9g, not %.9g", c, sums[c],
                      sum);
    }
    check_first_rows(dataset, cJSON_GetObjectItemCaseSensitive(checks, "taxi_first3"), features);
    cJSON_Delete(checks);
    kelp_dataset_close(dataset);
}

static void hourly_job(struct kelp_job *job)
{
    memset(job, 0, sizeof(*job));
    job->data.kind = KELP_DATA_PANEL;
    SET(job->data.path, hourly_path);
    SET(job->data.cache, cache_folder);
    SET(job->data.time, "PUTime");
    SET(job->data.group, "PUZone");
    SET(job->data.targets, "Count");
    SET(job->data.derive, "day = 2 * pi * hour(PUTime) / 24\n"
                          "week = 2 * pi * (weekday(PUTime) * 24 + hour(PUTime)) / 168\n"
                          "day_sin = sin(day)\nday_cos = cos(day)\n"
                          "week_sin = sin(week)\nweek_cos = cos(week)\n"
                          "weekend = weekday(PUTime) >= 5\n"
                          "elapsed = (seconds(PUTime) - 1483228800) / 604800");
    SET(job->data.known, "day_sin\nday_cos\nweek_sin\nweek_cos\nweekend\nelapsed");
    job->data.normalize_target = KELP_NORMALIZE_STANDARD;
    job->data.seq_len = 168;
    job->data.pred_len = 168;
    job->data.split[KELP_SPLIT_TRAIN] = 3456;
    job->data.split[KELP_SPLIT_VAL] = 168;
}

/* Mean absolute error in rides of a forecast that is the observed value `back` rows earlier, or the
 * last one before the forecast (back 0), over all windows of the validation split. */
static double simple_error(const struct kelp_dataset *dataset, const struct kelp_job *job,
                           uint32_t back)
{
    const struct kelp_dataset_info *info = kelp_dataset_info(dataset);
    uint64_t record = kelp_sample_input_count(&info->shape);
    float *input = calloc(record, sizeof(*input));
    float *target = calloc(job->data.pred_len, sizeof(*target));
    double sum = 0.0;
    for (uint64_t i = 0; i < info->samples[KELP_SPLIT_VAL]; i++) {
        struct kelp_target_scale scale;
        kelp_dataset_target_scales(dataset, KELP_SPLIT_VAL, i, &scale);
        ck_assert_int_eq(kelp_dataset_read(dataset, KELP_SPLIT_VAL, &i, 1, input, target), KELP_OK);
        const float *observed = input + 1 + job->data.seq_len * 6;
        for (uint32_t t = 0; t < job->data.pred_len; t++) {
            float forecast = observed[back > 0 ? t : job->data.seq_len - 1];
            sum += fabs((double)(target[t] - forecast)) * scale.factor;
        }
    }
    free(input);
    free(target);
    return sum / (double)(info->samples[KELP_SPLIT_VAL] * job->data.pred_len);
}

/* The last week of each of the 73 zones, one window each: same hour last week 38.8 rides, last
 * value 94.5. */
KELP_TEST(hourly_rides)
{
    struct kelp_job job;
    hourly_job(&job);
    struct kelp_dataset *dataset = open_or_fail(&job);
    const struct kelp_dataset_info *info = kelp_dataset_info(dataset);
    ck_assert_uint_eq(info->samples[KELP_SPLIT_VAL], 73);
    ck_assert_uint_eq(info->shape.inputs[0].vocab[0], 73);
    ck_assert_double_eq_tol(simple_error(dataset, &job, 168), 38.8, 0.05);
    ck_assert_double_eq_tol(simple_error(dataset, &job, 0), 94.5, 0.05);
    char text[KELP_DATASET_LABEL_BYTES];
    kelp_dataset_time(dataset, KELP_SPLIT_VAL, 72, 0, text);
    ck_assert_str_eq(text, "2017-05-25 00:00:00");
    kelp_dataset_time(dataset, KELP_SPLIT_VAL, 72, 167, text);
    ck_assert_str_eq(text, "2017-05-31 23:00:00");
    kelp_dataset_group(dataset, KELP_SPLIT_VAL, 72, text);
    ck_assert_str_eq(text, "72");
    kelp_dataset_close(dataset);

    /* As the reference was trained, 63 hours to 168: the training windows of it. */
    job.data.seq_len = 63;
    dataset = open_or_fail(&job);
    info = kelp_dataset_info(dataset);
    ck_assert_uint_eq(info->samples[KELP_SPLIT_TRAIN], 73 * (3456 - 63 - 168 + 1));
    ck_assert_uint_eq(info->samples[KELP_SPLIT_VAL], 73);
    ck_assert_uint_eq(info->shape.input_count, 4);
    ck_assert_uint_eq(info->shape.inputs[1].dims[1], 6);
    kelp_dataset_close(dataset);
}

/* The ETT protocol on the real ETTh1.csv: window counts and scaled values of the reference. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "tests/lib/golden/golden.h"
#include "tests/lib/suite.h"
#include "worker/data/dataset.h"

#define ROWS 17420u /* of ETTh1.csv */

static char data_path[KELP_TEST_PATH_MAX];
static void etth1_job(struct kelp_job *job)
{
    memset(job, 0, sizeof(*job));
    job->data.kind = KELP_DATA_CSV;
    (void)snprintf(job->data.path, sizeof(job->data.path), "%s", data_path);
    (void)snprintf(job->data.target, sizeof(job->data.target), "OT");
    job->data.features = KELP_FEATURES_S;
    job->data.split[KELP_SPLIT_TRAIN] = 8640;
    job->data.split[KELP_SPLIT_VAL] = 2880;
    job->data.split[KELP_SPLIT_TEST] = 2880;
}

static struct kelp_dataset *open_or_fail(const struct kelp_job *job)
{
    struct kelp_error error = {0};
    struct kelp_dataset *dataset = NULL;
    kelp_status status = kelp_dataset_open(job, &dataset, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    return dataset;
}

/* The windows of each split, one column or all of them. */
static void check_windows(const struct kelp_job *job, const cJSON *expected)
{
    static const char *const names[] = {"train", "val", "test"};
    struct kelp_dataset *dataset = open_or_fail(job);
    const struct kelp_dataset_info *info = kelp_dataset_info(dataset);
    for (int i = 0; i < 3; i++) {
        double count = -1.0;
        ck_assert_int_eq(kelp_json_double(expected, names[i], &count, NULL), KELP_OK);
        ck_assert_double_eq((double)info->samples[i], count);
    }
    ck_assert_uint_eq(info->shape.inputs[0].dims[1], job->data.features == KELP_FEATURES_S ? 1 : 7);
    kelp_dataset_close(dataset);
}

static void require_files(void)
{
    bool has_data = kelp_test_data_file("ett/ETTh1.csv", data_path);
    char reference[KELP_TEST_PATH_MAX];
    bool has_reference = kelp_test_reference_file("data_checks.json", reference);
    if (!has_data || !has_reference) {
        kelp_suite_skip("%s is not there (%s names another folder)",
                        has_data ? reference : data_path,
                        has_data ? "KELP_REFERENCE" : "KELP_DATA");
    }
}

KELP_SUITE(.before = require_files)
KELP_CASE("etth1", .timeout_s = 60)

/* "ett_windows_<seq_len>_<pred_len>" of data_checks.json: the published protocol. */
KELP_TEST(window_counts)
{
    cJSON *checks = NULL;
    const cJSON *expected;
    unsigned checked = 0;
    ck_assert_int_eq(kelp_golden_json("data_checks.json", &checks, NULL), KELP_OK);
    cJSON_ArrayForEach(expected, checks)
    {
        struct kelp_job job;
        etth1_job(&job);
        if (strncmp(expected->string, "ett_", strlen("ett_")) == 0) {
            ck_assert_int_eq(sscanf(expected->string, "ett_windows_%u_%u", &job.data.seq_len,
                                    &job.data.pred_len),
                             2);
            check_windows(&job, expected);
            job.data.features = KELP_FEATURES_M;
            check_windows(&job, expected);
            checked++;
        }
    }
    ck_assert_uint_gt(checked, 0);
    cJSON_Delete(checks);
}

/* The scaled value of one row, from windows of one row to the next: training covers the first
 * split, validation all later rows. */
static float value_at(const struct kelp_dataset *dataset, uint64_t train, uint64_t row)
{
    float input = 0.0f, target = 0.0f;
    enum kelp_split split = row < train ? KELP_SPLIT_TRAIN : KELP_SPLIT_VAL;
    const uint64_t index[] = {row == 0 ? 0 : row < train ? row - 1 : row - train};
    ck_assert_int_eq(kelp_dataset_read(dataset, split, index, 1, &input, &target), KELP_OK);
    return row == 0 ? input : target;
}

/* "first_rows", "last_rows" or "rows_<first>_<end>" of so many rows: where they begin. */
static bool find_rows(const char *name, uint64_t count, uint64_t row_count, uint64_t *ret_first)
{
    unsigned long long first = 0, end = 0;
    if (strcmp(name, "last_rows") == 0) {
        *ret_first = row_count - count;
        return true;
    }
    *ret_first = 0;
    if (strcmp(name, "first_rows") == 0) {
        return true;
    }
    const bool found = sscanf(name, "rows_%llu_%llu", &first, &end) == 2 && end - first == count;
    *ret_first = first;
    return found;
}

/* Rows that a tensor of the fixture has, scaled; "mean_f64" and "std_f64" shape them all. */
static unsigned check_rows(const struct kelp_golden_file *file, const struct kelp_dataset *dataset,
                           const struct kelp_job *job, const char *name)
{
    uint64_t count = 0, first;
    float *expected = kelp_golden_floats(file, name, &count);
    const uint64_t *split = job->data.split;
    ck_assert_ptr_nonnull(expected);
    ck_assert_msg(find_rows(name, count, split[KELP_SPLIT_TRAIN] + split[KELP_SPLIT_VAL], &first),
                  "%s: not rows that are known", name);
    for (uint64_t i = 0; i < count; i++) {
        const float value = value_at(dataset, split[KELP_SPLIT_TRAIN], first + i);
        ck_assert_msg(fabsf(value - expected[i]) <= 1e-6f * (1.0f + fabsf(expected[i])),
                      "%s[%u]: %.9g, expected %.9g", name, (unsigned)i, (double)value,
                      (double)expected[i]);
    }
    free(expected);
    return (unsigned)count;
}

/* All rows of a fixture that says which ones gave mean and deviation. */
static unsigned check_scaled(const struct kelp_golden_file *file)
{
    const char *rows = strstr(file->model, "rows 0..");
    uint32_t last = 0;
    unsigned checked = 0;
    struct kelp_job job;
    ck_assert_msg(rows != NULL && kelp_golden_number(rows, "rows 0..", &last), "%s", file->model);
    etth1_job(&job);
    job.data.seq_len = 1;
    job.data.pred_len = 1;
    job.data.split[KELP_SPLIT_TRAIN] = last + 1;
    job.data.split[KELP_SPLIT_VAL] = ROWS - (last + 1);
    job.data.split[KELP_SPLIT_TEST] = 0;
    struct kelp_dataset *dataset = open_or_fail(&job);
    for (size_t i = 0; i < kelp_safetensors_count(file->tensors); i++) {
        const char *name = kelp_safetensors_at(file->tensors, i)->name;
        if (strcmp(name, "mean_f64") != 0 && strcmp(name, "std_f64") != 0) {
            checked += check_rows(file, dataset, &job, name);
        }
    }
    kelp_dataset_close(dataset);
    return checked;
}

KELP_TEST(scaled_values)
{
    struct kelp_golden_set set;
    unsigned checked = 0;
    ck_assert(kelp_golden_set_open(&set));
    for (uint32_t i = 0; i < set.count; i++) {
        struct kelp_golden_file file;
        ck_assert_int_eq(kelp_golden_file_open(&set, i, &file, NULL), KELP_OK);
        if (strstr(file.model, "ETTh1 standardised") != NULL) {
            checked += check_scaled(&file);
        }
        kelp_golden_file_close(&file);
    }
    kelp_golden_set_close(&set);
    printf("%u scaled rows\n", checked);
    ck_assert_uint_gt(checked, 0);
}

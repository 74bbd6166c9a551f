/* The ETT protocol on the real ETTh1.csv: window counts and scaled values of the reference. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/tensors/safetensors.h"
#include "tests/lib/shared_files.h"
#include "worker/data/dataset.h"

#define EXIT_SKIPPED 77

static char data_path[KELP_TEST_PATH_MAX];
static char reference_path[KELP_TEST_PATH_MAX];

static void etth1_job(struct kelp_job *job)
{
    memset(job, 0, sizeof(*job));
    job->data.kind = KELP_DATA_CSV;
    (void)snprintf(job->data.path, sizeof(job->data.path), "%s", data_path);
    (void)snprintf(job->data.target, sizeof(job->data.target), "OT");
    job->data.features = KELP_FEATURES_S;
    job->data.seq_len = 96;
    job->data.pred_len = 96;
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

/* Windows of the published protocol, univariate 96 to 96 and multivariate 336 to 96. */
START_TEST(window_counts)
{
    struct kelp_job job;
    etth1_job(&job);
    struct kelp_dataset *dataset = open_or_fail(&job);
    const struct kelp_dataset_info *info = kelp_dataset_info(dataset);
    ck_assert_uint_eq(info->samples[KELP_SPLIT_TRAIN], 8449);
    ck_assert_uint_eq(info->samples[KELP_SPLIT_VAL], 2785);
    ck_assert_uint_eq(info->samples[KELP_SPLIT_TEST], 2785);
    ck_assert_uint_eq(info->shape.inputs[0].dims[1], 1);
    kelp_dataset_close(dataset);
    job.data.seq_len = 336;
    job.data.features = KELP_FEATURES_M;
    dataset = open_or_fail(&job);
    info = kelp_dataset_info(dataset);
    ck_assert_uint_eq(info->samples[KELP_SPLIT_TRAIN], 8209);
    ck_assert_uint_eq(info->samples[KELP_SPLIT_VAL], 2785);
    ck_assert_uint_eq(info->samples[KELP_SPLIT_TEST], 2785);
    ck_assert_uint_eq(info->shape.inputs[0].dims[1], 7);
    kelp_dataset_close(dataset);
}
END_TEST

/* The scaled value of one row, from windows of one row to the next: training covers rows 0 to 8639,
 * validation all later ones. */
static float value_at(const struct kelp_dataset *dataset, uint64_t row)
{
    float input = 0.0f;
    float target = 0.0f;
    enum kelp_split part = row < 8640 ? KELP_SPLIT_TRAIN : KELP_SPLIT_VAL;
    const uint64_t index[] = {row == 0 ? 0 : row < 8640 ? row - 1 : row - 8640};
    ck_assert_int_eq(kelp_dataset_read(dataset, part, index, 1, &input, &target), KELP_OK);
    return row == 0 ? input : target;
}

static void compare_rows(const struct kelp_dataset *dataset, uint64_t row,
                         const struct kelp_safetensors *reference, const char *name)
{
    const struct kelp_safetensors_tensor *tensor = kelp_safetensors_find(reference, name);
    ck_assert_ptr_nonnull(tensor);
    for (uint64_t i = 0; i < tensor->elem_count; i++) {
        float expected = 0.0f;
        ck_assert_int_eq(kelp_safetensors_floats(tensor, i, 1, &expected, NULL), KELP_OK);
        float value = value_at(dataset, row + i);
        ck_assert_msg(fabsf(value - expected) <= 1e-6f * (1.0f + fabsf(expected)),
                      "%s[%llu]: %.9g, expected %.9g", name, (unsigned long long)i, (double)value,
                      (double)expected);
    }
}

/* First, last, and the rows around the border of the training split. */
START_TEST(scaled_values)
{
    struct kelp_error error = {0};
    struct kelp_safetensors *reference = NULL;
    kelp_status status = kelp_safetensors_open(reference_path, &reference, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    struct kelp_job job;
    etth1_job(&job);
    job.data.seq_len = 1;
    job.data.pred_len = 1;
    job.data.split[KELP_SPLIT_VAL] = 17420 - 8640;
    job.data.split[KELP_SPLIT_TEST] = 0;
    struct kelp_dataset *dataset = open_or_fail(&job);
    compare_rows(dataset, 0, reference, "first_rows");
    compare_rows(dataset, 8630, reference, "rows_8630_8650");
    compare_rows(dataset, 17420 - 48, reference, "last_rows");
    kelp_dataset_close(dataset);
    kelp_safetensors_close(reference);
}
END_TEST

int main(void)
{
    bool has_data = kelp_test_data_file("ett/ETTh1.csv", data_path);
    bool has_reference = kelp_test_reference_file("etth1_scaled_S.safetensors", reference_path);
    if (!has_data || !has_reference) {
        printf("skipped: %s is not there (%s names another folder)\n",
               has_data ? reference_path : data_path, has_data ? "KELP_REFERENCE" : "KELP_DATA");
        return EXIT_SKIPPED;
    }
    Suite *suite = suite_create("dataset_etth1");
    TCase *tcase = tcase_create("etth1");
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, window_counts);
    tcase_add_test(tcase, scaled_values);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

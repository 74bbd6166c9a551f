/* MNIST and FashionMNIST as they are published, compressed: how many images, and their mean. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "tests/lib/golden/golden.h"
#include "tests/lib/suite.h"
#include "worker/data/dataset.h"

#define PIXELS 784u

struct image_set {
    const char *folder; /* beside the source tree */
    double mean, std;
    const char *normalized_mean; /* of the training images: its name in data_checks.json */
    float labels[5];             /* of the first training images */
};

static const struct image_set sets[] = {
    {"mnist", 0.1307, 0.3081, "mnist_train_mean_normalized", {5, 0, 4, 1, 9}},
    {"fashion-mnist", 0.5, 0.5, "fashion_train_mean_normalized", {9, 0, 0, 3, 0}},
};

static double mean_of(const struct kelp_dataset *dataset, uint64_t count)
{
    double sum = 0.0;
    for (uint64_t i = 0; i < count; i++) {
        float pixels[PIXELS], label;
        ck_assert_int_eq(kelp_dataset_read(dataset, KELP_SPLIT_TRAIN, &i, 1, pixels, &label),
                         KELP_OK);
        for (uint32_t p = 0; p < PIXELS; p++) {
            sum += (double)pixels[p];
        }
    }
    return sum / ((double)count * PIXELS);
}

static void require_files(void)
{
    char path[KELP_TEST_PATH_MAX];
    bool there = kelp_test_reference_file("data_checks.json", path);
    for (size_t i = 0; there && i < KELP_ARRAY_COUNT(sets); i++) {
        there = kelp_test_data_file(sets[i].folder, path);
    }
    if (!there) {
        kelp_suite_skip("%s is not there", path);
    }
}

KELP_SUITE(.before = require_files)

KELP_LOOP_TEST(published_images, 0, KELP_ARRAY_COUNT(sets))
{
    const struct image_set *set = &sets[_i];
    struct kelp_job job;
    struct kelp_dataset *dataset = NULL;
    struct kelp_error error = {0};
    cJSON *checks = NULL;
    const cJSON *check;
    size_t mean_count = 0;
    double mean = NAN;
    memset(&job, 0, sizeof(job));
    job.data.kind = KELP_DATA_IDX;
    job.data.mean = set->mean;
    job.data.std = set->std;
    job.model.kind = KELP_MODEL_CONVNET;
    job.model.classes = 10;
    ck_assert(kelp_test_data_file(set->folder, job.data.path));
    ck_assert_msg(kelp_dataset_open(&job, &dataset, &error) == KELP_OK, "%s", error.text);
    const struct kelp_dataset_info *info = kelp_dataset_info(dataset);
    ck_assert_uint_eq(info->samples[KELP_SPLIT_TRAIN], 60000);
    ck_assert_uint_eq(info->samples[KELP_SPLIT_TEST], 10000);
    ck_assert_uint_eq(kelp_sample_input_count(&info->shape), PIXELS);
    ck_assert_int_eq(kelp_golden_json("data_checks.json", &checks, NULL), KELP_OK);
    ck_assert_int_eq(kelp_json_double(checks, set->normalized_mean, &mean, NULL), KELP_OK);
    ck_assert_double_eq_tol(mean_of(dataset, 60000), mean, 1e-6);
    cJSON_ArrayForEach(check, checks)
    {
        mean_count += strstr(check->string, "_train_mean_normalized") != NULL;
    }
    ck_assert_uint_eq(mean_count, KELP_ARRAY_COUNT(sets));
    cJSON_Delete(checks);
    for (uint64_t i = 0; i < KELP_ARRAY_COUNT(set->labels); i++) {
        float pixels[PIXELS], label;
        ck_assert_int_eq(kelp_dataset_read(dataset, KELP_SPLIT_TRAIN, &i, 1, pixels, &label),
                         KELP_OK);
        ck_assert_float_eq(label, set->labels[i]);
    }
    kelp_dataset_close(dataset);
}

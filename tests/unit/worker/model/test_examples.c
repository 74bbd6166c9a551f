/* Each job in examples/ is one that the parser, the data sets and the models take. */
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/job/job.h"
#include "tests/lib/shared_files.h"
#include "tests/lib/suite.h"
#include "worker/data/dataset.h"
#include "worker/model/model.h"

/* Is the file, folder or pattern in the data folder? */
static bool has_data(const char *name, char path[KELP_TEST_PATH_MAX])
{
    glob_t found;
    (void)kelp_test_data_file(name, path);
    const bool any = glob(path, 0, NULL, &found) == 0;
    globfree(&found);
    return any;
}

/* What a job file in this folder says, from which the job has made a path in it. */
static const char *as_given(const char *data_path, const char *job_path)
{
    const size_t folder = (size_t)(strrchr(job_path, '/') + 1 - job_path);
    return strncmp(data_path, job_path, folder) == 0 ? data_path + folder : data_path;
}

/* The job, with its data.path taken as one of the data folder. */
static const struct kelp_job *read_job(struct kelp_job_file *file, const char *path,
                                       bool *ret_has_data)
{
    struct kelp_error error = {0};
    char data_path[KELP_TEST_PATH_MAX];
    kelp_status status = kelp_job_file_read(file, path, &error);
    *ret_has_data = true;
    if (status == KELP_OK && kelp_job_file_job(file)->data.path[0] != '\0') {
        *ret_has_data = has_data(as_given(kelp_job_file_job(file)->data.path, path), data_path);
        status = kelp_job_file_set(file, "data.path", data_path, KELP_ORIGIN_FLAG, &error);
    }
    if (status == KELP_OK) {
        status = kelp_job_file_finish(file, &error);
    }
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    return kelp_job_file_job(file);
}

/* There are samples to measure on, and the model takes them. */
static void check_data(const char *path, const struct kelp_job *job)
{
    struct kelp_error error = {0};
    struct kelp_dataset *dataset = NULL;
    struct kelp_model *model = NULL;
    kelp_status status = kelp_dataset_open(job, &dataset, &error);
    ck_assert_msg(status == KELP_OK, "%s: %s", path, error.text);
    const struct kelp_dataset_info *info = kelp_dataset_info(dataset);
    ck_assert_uint_gt(info->samples[KELP_SPLIT_VAL] + info->samples[KELP_SPLIT_TEST], 0);
    status = kelp_model_create(job, &info->shape, 1, &model, &error);
    ck_assert_msg(status == KELP_OK, "%s: %s", path, error.text);
    kelp_model_destroy(model);
    kelp_dataset_close(dataset);
}

static void check_example(const char *path)
{
    struct kelp_job_file *file = kelp_job_file_create();
    ck_assert_ptr_nonnull(file);
    bool has = false;
    const struct kelp_job *job = read_job(file, path, &has);
    /* The job's name is the file's, so that its runs are found by it. */
    const char *base = strrchr(path, '/') + 1;
    ck_assert_msg(strncmp(base, job->name, strlen(job->name)) == 0, "%s is named %s", path,
                  job->name);
    if (has) {
        check_data(path, job);
    } else {
        printf("%s: its data is not there\n", path);
    }
    kelp_job_file_destroy(file);
}

KELP_CASE("examples", .timeout_s = 60)

KELP_TEST(examples_are_jobs)
{
    const char *source = getenv("KELP_SOURCE");
    char pattern[1024];
    (void)snprintf(pattern, sizeof(pattern), "%s/examples/*.yaml", source != NULL ? source : ".");
    glob_t found;
    ck_assert_msg(glob(pattern, 0, NULL, &found) == 0, "no job in %s", pattern);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        check_example(found.gl_pathv[i]);
    }
    globfree(&found);
}

/* The first example runs on a CSV file by setting the two keys that its comment names. */
KELP_TEST(example_on_another_file)
{
    const char *source = getenv("KELP_SOURCE");
    char path[1024];
    (void)snprintf(path, sizeof(path), "%s/examples/etth1-dlinear.yaml",
                   source != NULL ? source : ".");
    struct kelp_error error = {0};
    struct kelp_job_file *file = kelp_job_file_create();
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(kelp_job_file_read(file, path, &error), KELP_OK);
    ck_assert_int_eq(kelp_job_file_set(file, "data.kind", "csv", KELP_ORIGIN_FLAG, &error),
                     KELP_OK);
    ck_assert_int_eq(kelp_job_file_set(file, "data.path", "ETTh1.csv", KELP_ORIGIN_FLAG, &error),
                     KELP_OK);
    kelp_status status = kelp_job_file_finish(file, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    ck_assert_int_eq(kelp_job_file_job(file)->data.kind, KELP_DATA_CSV);
    kelp_job_file_destroy(file);
}

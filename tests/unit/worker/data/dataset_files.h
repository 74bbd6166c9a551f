/*
 * Data sets of files in a folder that lives as long as a test: for the tests of arrays, images and
 * tensors.
 */
#ifndef KELP_TESTS_UNIT_WORKER_DATA_DATASET_FILES_H
#define KELP_TESTS_UNIT_WORKER_DATA_DATASET_FILES_H

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/commands/run_command.h"
#include "tests/lib/suite.h"
#include "worker/data/dataset.h"

static struct kelp_test_folder folder;
static struct kelp_job job;

static inline void setup(void)
{
    kelp_test_folder_init(&folder);
    memset(&job, 0, sizeof(job));
    job.data.std = 1.0;
    job.data.kind = KELP_DATA_IDX;
    job.model.kind = KELP_MODEL_MLP;
    (void)snprintf(job.data.cache, sizeof(job.data.cache), "%s/cache", folder.path);
    (void)snprintf(job.data.path, sizeof(job.data.path), "%s", folder.path);
}

static inline void teardown(void)
{
    kelp_test_folder_fini(&folder);
}

static inline void write_file(const char *name, const void *bytes, size_t count)
{
    char path[256];
    (void)snprintf(path, sizeof(path), "%s/%s", folder.path, name);
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, count, file), count);
    ck_assert_int_eq(fclose(file), 0);
}

static inline void remove_file(const char *name)
{
    char path[256];
    (void)snprintf(path, sizeof(path), "%s/%s", folder.path, name);
    ck_assert_int_eq(unlink(path), 0);
}

static inline struct kelp_dataset *open_or_fail(void)
{
    struct kelp_error error = {0};
    struct kelp_dataset *dataset = NULL;
    kelp_status status = kelp_dataset_open(&job, &dataset, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    return dataset;
}

/* The data set is refused in one line that holds each text (NULL ends them). */
static inline void expect_error(kelp_status expected, ...)
{
    struct kelp_error error = {0};
    struct kelp_dataset *dataset = NULL;
    kelp_status status = kelp_dataset_open(&job, &dataset, &error);
    ck_assert_msg(status == expected, "%s: %s", kelp_status_name(status), error.text);
    ck_assert_ptr_null(dataset);
    ck_assert_ptr_null(strchr(error.text, '\n'));
    va_list texts;
    va_start(texts, expected);
    for (const char *text; (text = va_arg(texts, const char *)) != NULL;) {
        ck_assert_msg(strstr(error.text, text) != NULL, "'%s' is not in: %s", text, error.text);
    }
    va_end(texts);
}

#endif

#include "tests/lib/models/table_bench.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/files.h"

struct table_bench table_bench;

void table_setup(void)
{
    (void)snprintf(table_bench.folder, sizeof(table_bench.folder), "/tmp/kelp-table-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(table_bench.folder));
    (void)snprintf(table_bench.data_path, sizeof(table_bench.data_path), "%s/data.csv",
                   table_bench.folder);
    memset(&table_bench.job, 0, sizeof(table_bench.job));
    table_bench.job.data.kind = KELP_DATA_TABLE;
    TABLE_SET(table_bench.job.data.path, table_bench.data_path);
    (void)snprintf(table_bench.job.data.cache, sizeof(table_bench.job.data.cache), "%s/cache",
                   table_bench.folder);
    TABLE_SET(table_bench.job.data.columns, "x");
    TABLE_SET(table_bench.job.data.targets, "y");
}

void table_teardown(void)
{
    ck_assert_int_eq(kelp_files_remove(table_bench.folder, NULL), KELP_OK);
}

void table_write(const char *name, const char *text)
{
    char path[128];
    (void)snprintf(path, sizeof(path), "%s/%s", table_bench.folder, name);
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(text, 1, strlen(text), file), strlen(text));
    ck_assert_int_eq(fclose(file), 0);
}

struct kelp_dataset *table_open(void)
{
    struct kelp_error error = {0};
    struct kelp_dataset *dataset = NULL;
    kelp_status status = kelp_dataset_open(&table_bench.job, &dataset, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    return dataset;
}

void table_refused(kelp_status expected_status, const char *expected)
{
    struct kelp_error error = {0};
    struct kelp_dataset *dataset = NULL;
    kelp_status status = kelp_dataset_open(&table_bench.job, &dataset, &error);
    ck_assert_msg(status == expected_status, "%s for %s: %s", kelp_status_name(status), expected,
                  error.text);
    ck_assert_ptr_null(dataset);
    ck_assert_ptr_null(strchr(error.text, '\n'));
    while (*expected != '\0') {
        char part[128] = "";
        size_t bytes = strcspn(expected, "|");
        memcpy(part, expected, bytes);
        ck_assert_msg(strstr(error.text, part) != NULL, "'%s' is not in: %s", part, error.text);
        expected += bytes + (expected[bytes] == '|' ? 1 : 0);
    }
}

uint64_t table_fingerprint(void)
{
    struct kelp_dataset *dataset = table_open();
    uint64_t value = kelp_dataset_info(dataset)->fingerprint;
    kelp_dataset_close(dataset);
    return value;
}

/* Check that sample `index` of a split has these numbers: inputs, then targets. */
void table_sample_is(const struct kelp_dataset *dataset, enum kelp_split part, uint64_t index,
                     const double *expected)
{
    const struct kelp_dataset_info *info = kelp_dataset_info(dataset);
    float input[64];
    float target[16];
    uint64_t inputs = kelp_sample_input_count(&info->shape);
    uint64_t targets = kelp_sample_target_count(&info->shape);
    ck_assert_uint_le(inputs, 64);
    ck_assert_uint_le(targets, 16);
    ck_assert_int_eq(kelp_dataset_read(dataset, part, &index, 1, input, target), KELP_OK);
    for (uint64_t i = 0; i < inputs + targets; i++) {
        float value = i < inputs ? input[i] : target[i - inputs];
        ck_assert_msg(value == (float)expected[i], "part %d sample %llu value %llu: %.9g, not %.9g",
                      (int)part, (unsigned long long)index, (unsigned long long)i, (double)value,
                      expected[i]);
    }
}

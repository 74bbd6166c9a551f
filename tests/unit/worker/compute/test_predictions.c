/* Files of predictions: whole or not there, the same whoever writes them, and checked when read. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/files.h"
#include "tests/lib/commands/run_command.h"
#include "tests/lib/suite.h"
#include "worker/compute/predictions.h"

static struct kelp_test_folder folder;
static char parts[160];
static const struct kelp_prediction_part part = {
    .version = 3, .lane = 5, .first = 1000, .count = 3, .values = 2};
static const float values[] = {1, 2, 3, 4, 5, 6};

static void setup(void)
{
    kelp_test_folder_init(&folder);
    (void)snprintf(parts, sizeof(parts), "%s/run/predict", folder.path);
}

static void teardown(void)
{
    kelp_test_folder_fini(&folder);
}

static struct kelp_prediction_writer *begin_or_fail(void)
{
    struct kelp_prediction_writer *writer = NULL;
    struct kelp_error error;
    ck_assert_msg(kelp_prediction_begin(parts, &part, &writer, &error) == KELP_OK, "%s",
                  error.text);
    return writer;
}

static void write_part(void)
{
    struct kelp_prediction_writer *writer = begin_or_fail();
    ck_assert_int_eq(kelp_prediction_add(writer, values, 1, NULL), KELP_OK);
    ck_assert_int_eq(kelp_prediction_add(writer, values + 2, 2, NULL), KELP_OK);
    ck_assert_int_eq(kelp_prediction_end(writer, NULL), KELP_OK);
}

static int count_files(void)
{
    int count = 0;
    DIR *open_folder = opendir(parts);
    ck_assert_ptr_nonnull(open_folder);
    for (struct dirent *entry; (entry = readdir(open_folder)) != NULL;) {
        count += entry->d_name[0] != '.';
    }
    ck_assert_int_eq(closedir(open_folder), 0);
    return count;
}

KELP_CASE("files", .setup = setup, .teardown = teardown)

/* What was written is read back, and is there once however often it was written. */
KELP_TEST(written_twice)
{
    struct kelp_prediction_part wanted = part;
    float *got = NULL;
    write_part();
    struct kelp_prediction_writer *slow = begin_or_fail();
    ck_assert_int_eq(kelp_prediction_add(slow, values, 3, NULL), KELP_OK);
    write_part();
    ck_assert_int_eq(count_files(), 2); /* the slow one has another name */
    ck_assert_int_eq(kelp_prediction_end(slow, NULL), KELP_OK);
    ck_assert_int_eq(count_files(), 1);
    wanted.values = 0;
    ck_assert_int_eq(kelp_prediction_read(parts, &wanted, &got, NULL), KELP_OK);
    ck_assert_uint_eq(wanted.values, 2);
    ck_assert_mem_eq(got, values, sizeof(values));
    free(got);
    ck_assert_int_eq(kelp_prediction_remove(parts, &part, NULL), KELP_OK);
    ck_assert_int_eq(count_files(), 0);
}

/* One that is given up leaves nothing. */
KELP_TEST(dropped)
{
    struct kelp_prediction_part wanted = part;
    struct kelp_error error;
    float *got = NULL;
    struct kelp_prediction_writer *writer = begin_or_fail();
    ck_assert_int_eq(kelp_prediction_add(writer, values, 2, NULL), KELP_OK);
    kelp_prediction_drop(writer);
    kelp_prediction_drop(NULL);
    ck_assert_int_eq(count_files(), 0);
    ck_assert_int_eq(kelp_prediction_read(parts, &wanted, &got, &error), KELP_ERR_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(error.text, "part-3-5"));
}

/* Another part under this name, and any change of a byte, is found. */
KELP_TEST(damaged)
{
    struct kelp_prediction_part others[4] = {part, part, part, part};
    char path[256], *bytes = NULL;
    size_t count = 0;
    float *got = NULL;
    write_part();
    others[0].first++;
    others[1].count++;
    others[2].values = 1;
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(kelp_prediction_read(parts, &others[i], &got, NULL), KELP_ERR_CORRUPT);
    }
    (void)snprintf(path, sizeof(path), "%s/part-3-5", parts);
    ck_assert_int_eq(kelp_files_read(path, 4096, &bytes, &count, NULL), KELP_OK);
    ck_assert_uint_eq(count, 56 + sizeof(values));
    for (size_t i = 0; i < count; i++) {
        struct kelp_prediction_part wanted = part;
        bytes[i] ^= 4;
        ck_assert_int_eq(kelp_files_write(path, bytes, count, NULL), KELP_OK);
        ck_assert_int_eq(kelp_prediction_read(parts, &wanted, &got, NULL), KELP_ERR_CORRUPT);
        bytes[i] ^= 4;
        ck_assert_int_eq(kelp_files_write(path, bytes, i, NULL), KELP_OK);
        ck_assert_int_eq(kelp_prediction_read(parts, &wanted, &got, NULL), KELP_ERR_CORRUPT);
    }
    ck_assert_ptr_null(got);
    free(bytes);
}

/* What stands in the way is said, with its path. */
KELP_TEST(no_folder)
{
    struct kelp_prediction_writer *writer = NULL;
    struct kelp_error error;
    char path[256];
    (void)snprintf(path, sizeof(path), "%s/run", folder.path);
    ck_assert_int_eq(kelp_files_write(path, "x", 1, NULL), KELP_OK);
    ck_assert_int_ne(kelp_prediction_begin(parts, &part, &writer, &error), KELP_OK);
    ck_assert_ptr_null(writer);
    ck_assert_ptr_nonnull(strstr(error.text, path));
}

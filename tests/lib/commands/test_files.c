#include "tests/lib/commands/test_files.h"

#include <check.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/files.h"
#include "tests/lib/commands/run_command.h"

void kelp_test_add(struct kelp_test_text *table, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int bytes =
        vsnprintf(table->text + table->used, KELP_TEST_TEXT_BYTES - table->used, format, args);
    va_end(args);
    ck_assert(bytes >= 0 && table->used + (size_t)bytes < KELP_TEST_TEXT_BYTES);
    table->used += (size_t)bytes;
}

/* ---- commands ------------------------------------------------------------------------------ */

void kelp_test_run_ok(const char *folder, const char *const *args)
{
    struct kelp_test_command command;
    kelp_test_command_run(&command, folder, args, KELP_TEST_HANG_MS);
    ck_assert_msg(command.exit_code == 0, "exit %d: %s", command.exit_code, command.err);
    kelp_test_command_fini(&command);
}

void kelp_test_expect_same(const char *folder, const char *name, const char *other)
{
    size_t count = 0, other_count = 0;
    char *bytes = kelp_test_read(folder, name, &count);
    char *other_bytes = kelp_test_read(folder, other, &other_count);
    ck_assert_uint_gt(count, 100);
    ck_assert_msg(count == other_count && memcmp(bytes, other_bytes, count) == 0,
                  "%s and %s differ:\n%.300s\n%.300s", name, other, bytes, other_bytes);
    free(bytes);
    free(other_bytes);
}

void kelp_test_move(const char *folder, const char *from, const char *to)
{
    char old[512], new[512];
    (void)snprintf(old, sizeof(old), "%s/%s", folder, from);
    (void)snprintf(new, sizeof(new), "%s/%s", folder, to);
    ck_assert_int_eq(rename(old, new), 0);
}

void kelp_test_copy(const char *folder, const char *from, const char *to)
{
    struct kelp_error error;
    char path[512];
    size_t count = 0;
    char *bytes = kelp_test_read(folder, from, &count);
    (void)snprintf(path, sizeof(path), "%s/%s", folder, to);
    ck_assert_msg(kelp_files_write(path, bytes, count, &error) == KELP_OK, "%s", error.text);
    free(bytes);
}

void kelp_test_make_folder(const char *folder, const char *name)
{
    char path[512];
    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    ck_assert_int_eq(kelp_files_make_folder(path, NULL), KELP_OK);
}

void kelp_test_remove(const char *folder, const char *name)
{
    char path[512];
    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    ck_assert_int_eq(kelp_files_remove(path, NULL), KELP_OK);
}

/* Durable files: made, replaced whole, synced, removed; what is not possible is said by its kind.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/files.h"
#include "tests/lib/suite.h"

static char folder[] = "/tmp/kelp-files-XXXXXX";

static void setup(void)
{
    (void)snprintf(folder, sizeof(folder), "/tmp/kelp-files-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(chdir(folder), 0);
}

static void teardown(void)
{
    ck_assert_int_eq(chdir("/"), 0);
    ck_assert_int_eq(kelp_files_remove(folder, NULL), KELP_OK);
    ck_assert_int_ne(access(folder, F_OK), 0);
}

KELP_CASE("files", .setup = setup, .teardown = teardown)

/* A file is replaced as a whole, and nothing of the attempt stays beside it. */
KELP_TEST(write_and_read)
{
    char *bytes = NULL;
    size_t count = 0;
    ck_assert_int_eq(kelp_files_write("a", "first", 5, NULL), KELP_OK);
    ck_assert_int_eq(kelp_files_write("a", "two", 3, NULL), KELP_OK);
    ck_assert_int_ne(access("a.new", F_OK), 0);
    ck_assert_int_eq(kelp_files_read("a", 3, &bytes, &count, NULL), KELP_OK);
    ck_assert_uint_eq(count, 3);
    ck_assert_str_eq(bytes, "two");
    free(bytes);
    ck_assert_int_eq(kelp_files_read("a", 2, &bytes, &count, NULL), KELP_ERR_LIMIT);
    ck_assert_int_eq(kelp_files_read("b", 2, &bytes, &count, NULL), KELP_ERR_NOT_FOUND);
    ck_assert_int_eq(kelp_files_write("none/a", "x", 1, NULL), KELP_ERR_NOT_FOUND);
}

KELP_TEST(folders)
{
    struct kelp_error error;
    char path[64];
    ck_assert_int_eq(kelp_files_make_folder("a/b//c/", NULL), KELP_OK);
    ck_assert_int_eq(kelp_files_make_folder("a/b/c", NULL), KELP_OK);
    (void)snprintf(path, sizeof(path), "%s/x/y", folder);
    ck_assert_int_eq(kelp_files_make_folder(path, NULL), KELP_OK);
    ck_assert_int_eq(access("x/y", F_OK), 0);
    ck_assert_int_eq(kelp_files_write("a/file", "x", 1, NULL), KELP_OK);
    ck_assert_int_ne(kelp_files_make_folder("a/file/b", &error), KELP_OK);
    ck_assert_ptr_nonnull(strstr(error.text, "a/file/b"));
    ck_assert_int_eq(kelp_files_sync("a/b", NULL), KELP_OK);
    ck_assert_int_eq(kelp_files_sync("a/file", NULL), KELP_OK);
    ck_assert_int_eq(kelp_files_sync("a/none", NULL), KELP_ERR_NOT_FOUND);
    ck_assert_int_eq(kelp_files_sync_tree("a", NULL), KELP_OK);
    ck_assert_int_eq(kelp_files_sync_tree("none", NULL), KELP_ERR_NOT_FOUND);
    for (unsigned levels = 0; levels < 6; levels++) {
        ck_assert_int_eq(kelp_files_sync_above("a/b/c/", levels, NULL), KELP_OK);
        ck_assert_int_eq(kelp_files_sync_above(path, levels, NULL), KELP_OK);
    }
    ck_assert_int_eq(kelp_files_sync_above("none/b", 1, NULL), KELP_ERR_NOT_FOUND);
}

/* A tree goes, what its links point to stays, and what is not there is no error. */
KELP_TEST(removal)
{
    ck_assert_int_eq(kelp_files_make_folder("keep", NULL), KELP_OK);
    ck_assert_int_eq(kelp_files_write("keep/file", "x", 1, NULL), KELP_OK);
    ck_assert_int_eq(kelp_files_make_folder("a/b", NULL), KELP_OK);
    ck_assert_int_eq(symlink("../keep", "a/link"), 0);
    ck_assert_int_eq(kelp_files_remove("a", NULL), KELP_OK);
    ck_assert_int_ne(access("a", F_OK), 0);
    ck_assert_int_eq(access("keep/file", F_OK), 0);
    ck_assert_int_eq(kelp_files_remove("a", NULL), KELP_OK);
    ck_assert_int_eq(kelp_files_remove("keep/file", NULL), KELP_OK);
}

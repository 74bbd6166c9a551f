/* Durable files: made, replaced whole, synced, removed; what is not possible is said by its kind.
 */
#include <fcntl.h>
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

/* What is no file is refused at once, also a fifo that nobody writes to; a link where none may be.
 */
KELP_TEST(no_file)
{
    struct kelp_error error;
    struct stat about;
    int fd = -1;

    ck_assert_int_eq(mkfifo("fifo", 0600), 0);
    ck_assert_int_eq(kelp_files_open("fifo", 0, &fd, NULL, &error), KELP_ERR_INVALID);
    ck_assert_str_eq(error.text, "fifo: is not a regular file; give a file");
    ck_assert_int_eq(kelp_files_open(".", 0, &fd, NULL, &error), KELP_ERR_INVALID);
    ck_assert_str_eq(error.text, ".: is a folder; give a file");
    ck_assert_int_eq(kelp_files_write("a", "abc", 3, NULL), KELP_OK);
    ck_assert_int_eq(symlink("a", "link"), 0);
    ck_assert_int_eq(kelp_files_open("link", O_NOFOLLOW, &fd, NULL, &error), KELP_ERR_IO);
    ck_assert_int_eq(kelp_files_open("link", 0, &fd, &about, &error), KELP_OK);
    ck_assert_int_eq(about.st_size, 3);
    ck_assert_int_eq(close(fd), 0);
}

static void print_letters(const void *count, FILE *out)
{
    for (int i = 0; i < *(const int *)count; i++) {
        (void)fputc('a' + i % 26, out);
    }
}

/* What is printed replaces the file as a whole; a copy has all bytes behind where it begins. */
KELP_TEST(print_and_pour)
{
    static const int counts[] = {3, 600000, 0};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(counts); i++) {
        char *bytes = NULL;
        size_t count = 0;
        ck_assert_int_eq(kelp_files_print("a", print_letters, &counts[i], NULL), KELP_OK);
        int from = open("a", O_RDONLY);
        int to = open("b", O_WRONLY | O_CREAT | O_TRUNC, 0666);
        ck_assert_int_eq(kelp_files_pour(from, "a", to, "b", NULL), KELP_OK);
        ck_assert_int_eq(kelp_files_pour(to, "b", to, "b", NULL), KELP_ERR_IO); /* for writing */
        ck_assert_int_eq(close(from) | close(to), 0);
        ck_assert_int_eq(kelp_files_read("b", 1 << 20, &bytes, &count, NULL), KELP_OK);
        ck_assert_uint_eq(count, (size_t)counts[i]);
        ck_assert(count == 0 || bytes[count - 1] == 'a' + (counts[i] - 1) % 26);
        free(bytes);
    }
    ck_assert_int_eq(kelp_files_print("none/a", print_letters, &counts[0], NULL),
                     KELP_ERR_NOT_FOUND);
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

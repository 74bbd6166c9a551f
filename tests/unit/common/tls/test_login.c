/* A process's name and password for etcd: what is drawn, and what is no such file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/files.h"
#include "common/tls/login.h"
#include "tests/lib/suite.h"

static char folder[] = "/tmp/kelp-test-login-XXXXXX";
static char path[64];
static struct kelp_error error;

static void setup(void)
{
    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(path, sizeof(path), "%s/" KELP_LOGIN_FILE, folder);
}

static void teardown(void)
{
    (void)kelp_files_remove(folder, NULL);
}

static void write_file(const char *text, mode_t mode)
{
    FILE *out = fopen(path, "we");

    ck_assert(out && fputs(text, out) >= 0 && fclose(out) == 0);
    ck_assert_int_eq(chmod(path, mode), 0);
}

KELP_SUITE(.fork_each = true)
KELP_CASE("login", .setup = setup, .teardown = teardown)

/* Two are never alike, and only their owner may read them. */
KELP_TEST(made_and_read)
{
    struct kelp_login first, second, read;
    struct stat info;

    ck_assert_int_eq(kelp_login_read(folder, &read, &error), KELP_ERR_NOT_FOUND);
    ck_assert_int_eq(kelp_login_make(folder, "kelp/a/shard/shard-0", &first, &error), KELP_OK);
    ck_assert_int_eq(kelp_login_make(folder, "kelp/a/shard/shard-0", &second, &error), KELP_OK);
    ck_assert_uint_eq(strlen(first.password), 64);
    ck_assert_str_ne(first.password, second.password);
    ck_assert_int_eq(kelp_login_read(folder, &read, &error), KELP_OK);
    ck_assert_str_eq(read.user, "kelp/a/shard/shard-0");
    ck_assert_str_eq(read.password, second.password);
    ck_assert(stat(path, &info) == 0 && (info.st_mode & 07777) == 0600);
    ck_assert_int_eq(kelp_login_make(folder, "a b", &first, &error), KELP_ERR_INVALID);
    kelp_login_wipe(&read);
    ck_assert_uint_eq(strlen(read.password), 0);
}

/* Nothing else goes into a request to etcd, nor is it read when others may read it too. */
KELP_TEST(bad_files)
{
    static const char *const bad[] = {
        "",           "root\n",          "root\n\n",      "a b\nsecret\n",
        "a\nse\"c\n", "a\nse\\c\n",      "a\nse cret\n",  "\nsecret\n",
        "a\"\nb\n",   "a\nsecret\nmore", "a\nse\tcret\n", "a\n\x01\n"};
    struct kelp_login login;

    for (size_t i = 0; i < KELP_ARRAY_COUNT(bad); i++) {
        write_file(bad[i], 0600);
        ck_assert_msg(kelp_login_read(folder, &login, &error) == KELP_ERR_FORMAT, "%zu", i);
    }
    write_file("root\nsecret\n", 0604);
    ck_assert_int_eq(kelp_login_read(folder, &login, &error), KELP_ERR_INVALID);
    ck_assert_ptr_null(strstr(error.text, "secret"));
    write_file("root\nsecret", 0600);
    ck_assert_int_eq(kelp_login_read(folder, &login, &error), KELP_OK);
}

/* The private folder of a run's sockets. */
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/program/socket_folder.h"
#include "tests/lib/commands/run_command.h"
#include "tests/lib/suite.h"

KELP_CASE("folder", .timeout_s = 10)

/* It is the user's alone, and there is one, whatever the umask takes away. */
KELP_TEST(umask_of_all)
{
    char path[KELP_SOCKET_FOLDER_MAX + 1];
    struct kelp_test_folder above;
    struct kelp_error error;
    struct stat about;
    int held = -1;

    kelp_test_folder_init(&above);
    ck_assert_int_eq(setenv("TMPDIR", above.path, 1), 0);
    const mode_t before = umask(0777);
    ck_assert_int_eq(kelp_socket_folder_make(path, &held, &error), KELP_OK);
    (void)umask(before);
    ck_assert_int_ge(held, 0);
    ck_assert_int_eq(stat(path, &about), 0);
    ck_assert_uint_eq(about.st_mode & 07777, 0700);
    ck_assert_int_eq(close(held), 0);
    kelp_socket_folder_remove(path);
    ck_assert_int_eq(access(path, F_OK), -1);
    kelp_test_folder_fini(&above);
}

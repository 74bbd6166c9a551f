/* The words for a process that the system may have killed because memory ran out. */
#include <signal.h>
#include <string.h>

#include "common/process/memory_kills.h"
#include "tests/lib/suite.h"

KELP_TEST(count)
{
    ck_assert_uint_eq(kelp_memory_kills_in("nr_free_pages 5\npgmigrate 1\noom_kill 26\nnuma 3\n"),
                      26);
    ck_assert_uint_eq(kelp_memory_kills_in("oom_kill 7\n"), 7);
    ck_assert_uint_eq(kelp_memory_kills_in("drop_oom_kill 7\nx 1\n"), 0);
    ck_assert_uint_eq(kelp_memory_kills_in(""), 0);
}

/* Only of SIGKILL, and only if there were some. */
KELP_TEST(described)
{
    char text[160];

    kelp_memory_kills_describe(SIGKILL, 0, text, sizeof(text));
    ck_assert_str_eq(text, "killed by signal 9 (Killed)");
    kelp_memory_kills_describe(SIGKILL, 1, text, sizeof(text));
    ck_assert_str_eq(text,
                     "killed by signal 9 (Killed), perhaps because memory ran out (the system "
                     "killed 1 process for that while it ran)");
    kelp_memory_kills_describe(SIGKILL, 3, text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, "killed 3 processes for that while it ran)"));
    kelp_memory_kills_describe(SIGSEGV, 3, text, sizeof(text));
    ck_assert_str_eq(text, "killed by signal 11 (Segmentation fault)");
    kelp_memory_kills_describe(1 << 8, 3, text, sizeof(text));
    ck_assert_str_eq(text, "exited with status 1");
}

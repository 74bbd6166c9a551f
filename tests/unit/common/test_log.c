#include <errno.h>
#include <regex.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/log.h"
#include "tests/lib/suite.h"

static int pipe_fds[2];
static char line[8192];

static void setup(void)
{
    ck_assert_int_eq(pipe(pipe_fds), 0);
    kelp_log_init("ps", "shard-0", KELP_LOG_INFO, pipe_fds[1]);
}

static void teardown(void)
{
    (void)close(pipe_fds[0]);
    (void)close(pipe_fds[1]);
}

static void read_line(void)
{
    ssize_t got = read(pipe_fds[0], line, sizeof(line) - 1);

    ck_assert_int_gt(got, 0);
    line[got] = '\0';
}

KELP_CASE("log", .setup = setup, .teardown = teardown)

/* A line is time, level, role/id and text, and is written with one write. */
KELP_TEST(test_format)
{
    regex_t pattern;

    ck_assert_int_eq(regcomp(&pattern,
                             "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{3}Z "
                             "info  ps/shard-0 map taken generation=2\n$",
                             REG_EXTENDED | REG_NOSUB),
                     0);
    kelp_log_info("map taken generation=%d", 2);
    read_line();
    ck_assert_msg(regexec(&pattern, line, 0, NULL, 0) == 0, "%s", line);
    regfree(&pattern);
}

/* What is below the level is not written; errno survives. */
KELP_TEST(test_levels)
{
    ck_assert(kelp_log_enabled(KELP_LOG_ERROR));
    ck_assert(!kelp_log_enabled(KELP_LOG_DEBUG));
    errno = ENOENT;
    kelp_log_debug("hidden");
    kelp_log_error("shown");
    ck_assert_int_eq(errno, ENOENT);
    read_line();
    ck_assert_ptr_null(strstr(line, "hidden"));
    ck_assert_ptr_nonnull(strstr(line, "error ps/shard-0 shown\n"));
}

/* One event is one line, whatever its text holds. */
KELP_TEST(test_control_characters)
{
    kelp_log_warn("a\nb\tc\x7f\x1b[0m");
    read_line();
    ck_assert_ptr_nonnull(strstr(line, " a b c  [0m\n"));
}

/* A line that is too long is cut and says so. */
KELP_TEST(test_long_line)
{
    static char text[6000];

    memset(text, 'x', sizeof(text) - 1);
    kelp_log_info("%s", text);
    read_line();
    ck_assert_uint_eq(strlen(line), 4096);
    ck_assert_str_eq(line + 4096 - strlen("x [cut]\n"), "x [cut]\n");
}

/* What a command says while it waits: lines in a file or a pipe, one line on a terminal. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/verb/display.h"
#include "tests/lib/suite.h"

static struct kelp_display display;

/* What comes out at the other end, which on a terminal may take several reads. */
static void expect(int fd, const char *text)
{
    char got[256];
    size_t length = 0;

    while (length < strlen(text)) {
        ssize_t count = read(fd, got + length, sizeof(got) - length);
        ck_assert_int_gt(count, 0);
        length += (size_t)count;
    }
    ck_assert_uint_eq(length, strlen(text));
    ck_assert_mem_eq(got, text, length);
}

KELP_CASE("display")

/* Only what is new, and no more than a line a second. */
KELP_TEST(waits_in_lines)
{
    int ends[2];
    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    kelp_display_init(&display, ends[1]);
    kelp_display_wait(&display, "", 1000);
    kelp_display_wait(&display, "one", 1000);
    kelp_display_wait(&display, "one", 5000);
    kelp_display_wait(&display, "two", 6000);
    kelp_display_wait(&display, "three", 6500);
    kelp_display_wait(&display, "four", 7000);
    kelp_display_clear(&display);
    expect(ends[0], "one\ntwo\nfour\n");
    (void)close(ends[0]);
    (void)close(ends[1]);
}

KELP_TEST(waits_on_a_terminal)
{
    int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    ck_assert_int_ge(master, 0);
    ck_assert_int_eq(grantpt(master) + unlockpt(master), 0);
    int terminal = open(ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC); /* NOLINT: one thread */
    ck_assert_int_ge(terminal, 0);
    kelp_display_init(&display, terminal);
    ck_assert(display.terminal);
    kelp_display_wait(&display, "one", 1000);
    kelp_display_wait(&display, "one", 1050);
    kelp_display_wait(&display, "two", 1100);
    expect(master, "\rone\033[K\rtwo\033[K");
    kelp_display_clear(&display);
    expect(master, "\r\033[K");
    (void)close(terminal);
    (void)close(master);
}

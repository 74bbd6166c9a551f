/*
 * Run the `kelp` command on a terminal, and see what a person would see there: lines that were
 * drawn over are gone.
 */
#ifndef KELP_TESTS_LIB_COMMANDS_RUN_TERMINAL_H
#define KELP_TESTS_LIB_COMMANDS_RUN_TERMINAL_H

#include "tests/lib/commands/run_command.h"

#define KELP_TEST_CTRL_C "\003"

struct kelp_test_terminal {
    struct kelp_test_command command; /* its mark alone: for kelp_test_command_processes() */
    unsigned lines, columns;
    pid_t pid;
    int fd;
    char *written; /* all that came, owned */
    size_t bytes;
};

struct kelp_test_terminal_options {
    unsigned lines, columns;
    bool nohup; /* SIGHUP is ignored */
};

/* Start `kelp ARGS` (NULL-terminated) in a folder. */
void kelp_test_terminal_start(struct kelp_test_terminal *terminal, const char *folder,
                              const char *const *args,
                              const struct kelp_test_terminal_options *options);
/* Wait until it has written the text so often; the test fails when it never does. */
void kelp_test_terminal_await(struct kelp_test_terminal *terminal, const char *text,
                              unsigned count);
void kelp_test_terminal_type(const struct kelp_test_terminal *terminal, const char *keys);
/* Wait for its end. Returns its exit status as a shell has it: of a signal, 128 and its number. */
int kelp_test_terminal_end(struct kelp_test_terminal *terminal);
/* The terminal closes. The command goes on, or ends because of that. */
void kelp_test_terminal_close(struct kelp_test_terminal *terminal);
void kelp_test_terminal_fini(struct kelp_test_terminal *terminal);

/* What one could read there after all that was written: lines that have scrolled away, and those on
 * the screen. Owned (free()). Fails the test when the output holds what no terminal here knows. */
char *kelp_test_terminal_seen(const struct kelp_test_terminal *terminal);

#endif

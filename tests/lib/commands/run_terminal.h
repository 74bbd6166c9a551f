/*
 * Runs the `kelp` command on a terminal, and shows what a user would see there, without overwritten
 * lines.
 */
#ifndef KELP_TESTS_LIB_COMMANDS_RUN_TERMINAL_H
#define KELP_TESTS_LIB_COMMANDS_RUN_TERMINAL_H

#include "tests/lib/commands/run_command.h"

#define KELP_TEST_CTRL_C "\003"

struct kelp_test_terminal {
    struct kelp_test_command command; /* only its mark, for kelp_test_command_processes() */
    unsigned lines, columns;
    pid_t pid;
    int fd;
    char *written; /* all output, owned */
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
/* Wait until it has written the text this often; the test fails if it never does. */
void kelp_test_terminal_await(struct kelp_test_terminal *terminal, const char *text,
                              unsigned count);
void kelp_test_terminal_type(const struct kelp_test_terminal *terminal, const char *keys);
/* Wait for its end. Returns its exit status as a shell reports it: for a signal, 128 plus its
 * number. */
int kelp_test_terminal_end(struct kelp_test_terminal *terminal);
/* Close the terminal. The command continues, or ends because of it. */
void kelp_test_terminal_close(struct kelp_test_terminal *terminal);
void kelp_test_terminal_fini(struct kelp_test_terminal *terminal);

/* What can be read after all output: lines that have scrolled out, and those on the screen.
 * Owned (free()). Fails the test for control sequences that this terminal does not know. */
char *kelp_test_terminal_seen(const struct kelp_test_terminal *terminal);

#endif

/*
 * Run the `kelp` command as a user would, with standard output and error apart, and look for
 * processes that it left behind.
 */
#ifndef KELP_TESTS_LIB_COMMANDS_RUN_COMMAND_H
#define KELP_TESTS_LIB_COMMANDS_RUN_COMMAND_H

#include <check.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/clock.h"
#include "common/process/process.h"

/* Nothing that a test waits for takes so long, on whatever machine: this ends tests that hang.
 * ThreadSanitizer makes a cluster ten times slower. */
#ifdef __SANITIZE_THREAD__
#define KELP_TEST_HANG_MS 720000
#else
#define KELP_TEST_HANG_MS 180000
#endif
#define KELP_TEST_HANG_S 240 /* for tcase_set_timeout(): what is waited for is said before */

/* Between two looks. */
void kelp_test_look_later(void);

/* Look until the condition holds; the test fails, with this message, when it never does. For what
 * wakes nobody up: files, /proc, what a process has printed. */
#define KELP_TEST_AWAIT(condition, ...) KELP_TEST_AWAIT_FROM(NULL, condition, __VA_ARGS__)

/* The same of what a command does: its end ends the wait. */
#define KELP_TEST_AWAIT_FROM(command, condition, ...)                                              \
    do {                                                                                           \
        uint64_t hang_ms = kelp_clock_ms() + KELP_TEST_HANG_MS;                                    \
        for (;;) {                                                                                 \
            bool over = kelp_test_command_ended(command) || kelp_clock_ms() >= hang_ms;            \
            if (condition) {                                                                       \
                break;                                                                             \
            }                                                                                      \
            ck_assert_msg(!over, __VA_ARGS__);                                                     \
            kelp_test_look_later();                                                                \
        }                                                                                          \
    } while (0)

/* ${KELP_BIN}/NAME into path. */
void kelp_test_program(const char *name, char *path, size_t path_bytes);

/* ---- files ------------------------------------------------------------------------------------
 */

struct kelp_test_folder {
    char path[128];
};

/* A new temporary folder, and its end with all that is in it. */
void kelp_test_folder_init(struct kelp_test_folder *folder);
void kelp_test_folder_fini(struct kelp_test_folder *folder);

/* Write text as FOLDER/name and return its path (static storage, until the next call). */
const char *kelp_test_write(const char *folder, const char *name, const char *text);
/* All of FOLDER/name, with a NUL behind it; owned by the caller (free()). Fails the test when it is
 * missing. ret_bytes: NULL is fine. */
char *kelp_test_read(const char *folder, const char *name, size_t *ret_bytes);

/* ---- commands ---------------------------------------------------------------------------------
 */

struct kelp_test_command {
    struct kelp_process *process;
    char mark[64];      /* "KELPTEST_MARK=..." in the environment of it and its children */
    char out_path[160]; /* in the folder it runs in */
    char err_path[160];
    int exit_code; /* -1: ended by a signal */
    char *out;     /* after it has ended */
    char *err;
};

/* Give it a mark of its own; kelp_test_command_start() does so. */
void kelp_test_command_mark(struct kelp_test_command *command);
/* Start `kelp ARGS` (NULL-terminated) in a folder. */
void kelp_test_command_start(struct kelp_test_command *command, const char *folder,
                             const char *const *args);
/* Wait for its end; fails the test after timeout_ms. Returns milliseconds waited. */
uint64_t kelp_test_command_wait(struct kelp_test_command *command, uint32_t timeout_ms);
/* Both. */
void kelp_test_command_run(struct kelp_test_command *command, const char *folder,
                           const char *const *args, uint32_t timeout_ms);
/* Both; fails the test unless it ends with exit_code and prints text somewhere. */
void kelp_test_command_says(const char *folder, const char *const *args, int exit_code,
                            const char *text);
/* What it has written to standard error so far; owned by the caller (free()). */
char *kelp_test_command_peek(const struct kelp_test_command *command);
/* Has it ended? NULL never does. */
bool kelp_test_command_ended(const struct kelp_test_command *command);
/* Wait until its standard error holds a text. */
void kelp_test_command_await(const struct kelp_test_command *command, const char *text);
void kelp_test_command_fini(struct kelp_test_command *command);

/* ---- processes --------------------------------------------------------------------------------
 */

/* Living processes (zombies left out) that it started, itself included; their pids into pids. */
size_t kelp_test_command_processes(const struct kelp_test_command *command, pid_t *pids,
                                   size_t room);
/* The pid of the one whose command line holds both texts; 0 when there is none. */
pid_t kelp_test_command_find(const struct kelp_test_command *command, const char *text,
                             const char *other);
/* Send a signal to that one; fails the test when there is none. Returns its pid. */
pid_t kelp_test_command_signal(const struct kelp_test_command *command, const char *text,
                               const char *other, int signal_number);
/* Kill all of them at once, and wait for their end. */
void kelp_test_command_kill_all(struct kelp_test_command *command);
/* Wait for the end of all of them: they were killed with their parent. Fails the test when one goes
 * on for as long as it takes for something else to end it. */
void kelp_test_command_gone(const struct kelp_test_command *command);

#endif

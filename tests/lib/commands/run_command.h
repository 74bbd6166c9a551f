/*
 * Runs the `kelp` command as a user would, with separate standard output and error, and looks for
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

/* Longer than anything a test waits for, on any machine: ends tests that hang. ThreadSanitizer
 * makes a cluster ten times slower. */
#ifdef __SANITIZE_THREAD__
#define KELP_TEST_HANG_MS 720000
#else
#define KELP_TEST_HANG_MS 180000
#endif
#define KELP_TEST_HANG_S 240 /* for tcase_set_timeout(): single waits fail earlier */

/* Pause between two checks. */
void kelp_test_look_later(void);

/* Check repeatedly until the condition holds; the test fails with this message if it never does.
 * For state without events: files, /proc, the output of a process. */
#define KELP_TEST_AWAIT(condition, ...) KELP_TEST_AWAIT_FROM(NULL, condition, __VA_ARGS__)

/* The same for an effect of a command: its end also ends the wait. */
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

/* Make a temporary folder, and remove it with its content. */
void kelp_test_folder_init(struct kelp_test_folder *folder);
void kelp_test_folder_fini(struct kelp_test_folder *folder);

/* Write text as FOLDER/name and return its path (static storage, until the next call). */
const char *kelp_test_write(const char *folder, const char *name, const char *text);
/* All of FOLDER/name, followed by a NUL; the caller owns it (free()). Fails the test if the file
 * is missing. ret_bytes may be NULL. */
char *kelp_test_read(const char *folder, const char *name, size_t *ret_bytes);

/* ---- commands ---------------------------------------------------------------------------------
 */

struct kelp_test_command {
    struct kelp_process *process;
    char mark[64];      /* "KELPTEST_MARK=..." in its environment and its children's */
    char out_path[160]; /* in the folder it runs in */
    char err_path[160];
    int exit_code; /* -1: ended by a signal */
    char *out;     /* after the end */
    char *err;
};

/* Give the command its own mark; kelp_test_command_start() does this. */
void kelp_test_command_mark(struct kelp_test_command *command);
/* Start `kelp ARGS` (NULL-terminated) in a folder. */
void kelp_test_command_start(struct kelp_test_command *command, const char *folder,
                             const char *const *args);
/* Wait for the command's end; fails the test after timeout_ms. Returns the milliseconds waited. */
uint64_t kelp_test_command_wait(struct kelp_test_command *command, uint32_t timeout_ms);
/* Start it and wait. */
void kelp_test_command_run(struct kelp_test_command *command, const char *folder,
                           const char *const *args, uint32_t timeout_ms);
/* The same; fails the test unless it ends with exit_code and its output contains the text. */
void kelp_test_command_says(const char *folder, const char *const *args, int exit_code,
                            const char *text);
/* Its standard error so far; the caller owns it (free()). */
char *kelp_test_command_peek(const struct kelp_test_command *command);
/* Has it ended? False for NULL. */
bool kelp_test_command_ended(const struct kelp_test_command *command);
/* Wait until its standard error contains the text. */
void kelp_test_command_await(const struct kelp_test_command *command, const char *text);
void kelp_test_command_fini(struct kelp_test_command *command);

/* ---- processes --------------------------------------------------------------------------------
 */

/* Living processes (without zombies) that it started, and itself. Writes their pids; returns how
 * many. */
size_t kelp_test_command_processes(const struct kelp_test_command *command, pid_t *pids,
                                   size_t room);
/* The pid of the process whose command line contains both texts; 0: there is none. */
pid_t kelp_test_command_find(const struct kelp_test_command *command, const char *text,
                             const char *other);
/* Send a signal to that process; fails the test if there is none. Returns its pid. */
pid_t kelp_test_command_signal(const struct kelp_test_command *command, const char *text,
                               const char *other, int signal_number);
/* Kill all processes at once, and wait for their end. */
void kelp_test_command_kill_all(struct kelp_test_command *command);
/* Wait until all processes have ended, killed with their parent. Fails the test if one lives so
 * long that something else may have ended it. */
void kelp_test_command_gone(const struct kelp_test_command *command);

#endif

/*
 * Run the `kelp` command as a user would, with standard output and error apart, and look for
 * processes that it left behind.
 */
#ifndef KELP_TESTS_LIB_RUN_COMMAND_H
#define KELP_TESTS_LIB_RUN_COMMAND_H

#include <stdint.h>

#include "common/base/process.h"

struct kelp_test_folder {
    char path[128];
};

/* A new temporary folder, and its end with all that is in it. */
void kelp_test_folder_init(struct kelp_test_folder *folder);
void kelp_test_folder_fini(struct kelp_test_folder *folder);

struct kelp_test_command {
    struct kelp_process *process;
    char mark[64];      /* "KELPTEST_MARK=..." in the environment of it and its children */
    char out_path[160]; /* in the folder it runs in */
    char err_path[160];
    int exit_code; /* -1: ended by a signal */
    char *out;     /* after it has ended */
    char *err;
};

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
/* Wait until its standard error holds a text; fails the test after timeout_ms. */
void kelp_test_command_await(const struct kelp_test_command *command, const char *text,
                             uint32_t timeout_ms);
void kelp_test_command_fini(struct kelp_test_command *command);

/* Living processes (zombies left out) that it started, itself included; their pids into pids. */
size_t kelp_test_command_processes(const struct kelp_test_command *command, pid_t *pids,
                                   size_t room);
/* The pid of the one whose command line holds both texts; 0 when there is none. */
pid_t kelp_test_command_find(const struct kelp_test_command *command, const char *text,
                             const char *other);
/* Fails the test when any of them still lives after wait_ms. */
void kelp_test_command_gone(const struct kelp_test_command *command, uint32_t wait_ms);

#endif

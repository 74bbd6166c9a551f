/*
 * Child processes: start one, wait for it, end it, and leave none behind.
 *
 * A child runs in a process group of its own (Ctrl-C reaches its parent alone), gets no descriptor
 * of ours but the three standard ones, starts with all signals unblocked and at their defaults, and
 * is killed by the kernel when its parent dies, however that happens.
 *
 * Threads: the kernel sends that last signal when the *thread* that started the child ends, not the
 * process: start children from a thread that lives as long as they may. One caller at a time per
 * child.
 */
#ifndef KELP_COMMON_PROCESS_PROCESS_H
#define KELP_COMMON_PROCESS_PROCESS_H

#include <stdint.h>
#include <sys/types.h>

#include "common/base/status.h"

#define KELP_PROCESS_PATH_MAX 4096 /* bytes of a program's path, with the final NUL */

/* Standard descriptors of a child, besides a descriptor of the caller's (0 and up, borrowed). */
enum {
    KELP_PROCESS_NULL = -1,    /* /dev/null */
    KELP_PROCESS_INHERIT = -2, /* the same as the parent's */
};

struct kelp_process_options {
    /* NULL-terminated; argv[0] names the program: searched on PATH when it holds no slash. */
    const char *const *argv;
    /* "NAME=value" entries over the parent's environment, NULL-terminated; may be NULL. */
    const char *const *set_environment;
    /* Names left out of the parent's environment, NULL-terminated; a '*' at the end matches the
     * rest ("ETCD_*"); may be NULL. */
    const char *const *unset_environment;
    const char *folder; /* working folder; NULL: the parent's */
    int stdout_fd;
    int stderr_fd;
};

struct kelp_process;

/*
 * Start a child; its standard input is /dev/null. On success the program runs: a program that
 * cannot be executed is an error here, not an exit status later.
 *
 * Errors: KELP_ERR_NOT_FOUND (no such program or folder), KELP_ERR_INVALID (not executable),
 *         KELP_ERR_IO, KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_process_start(const struct kelp_process_options *options,
                               struct kelp_process **ret_process,
                               struct kelp_error *reterr) KELP_MUST_USE;

/* Kills the process when it still runs, waits until it is gone, frees. NULL is fine. */
void kelp_process_destroy(struct kelp_process *process);

pid_t kelp_process_pid(const struct kelp_process *process);

/* Becomes readable (poll(2), POLLIN) when the process has ended; borrowed. */
int kelp_process_fd(const struct kelp_process *process);

/*
 * Wait until the process has ended, at most wait_ms (0: only look). *ret_wait_status is what
 * waitpid(2) gives, and the same again on later calls; may be NULL.
 * Errors: KELP_ERR_TIMEOUT (still running), KELP_ERR_IO.
 */
kelp_status kelp_process_wait(struct kelp_process *process, uint32_t wait_ms,
                              int *ret_wait_status) KELP_MUST_USE;

/* Send a signal to the process; does nothing when it has ended. */
void kelp_process_signal(struct kelp_process *process, int signal_number);

/*
 * SIGTERM, and SIGKILL to its whole group when it still runs after grace_ms; returns when it is
 * gone. To stop many, signal all first and then call this for each with what is left of the grace.
 */
void kelp_process_stop(struct kelp_process *process, uint32_t grace_ms);

/* "exited with status 2", "killed by signal 9 (Killed)" into text. */
void kelp_process_describe(int wait_status, char *text, size_t text_bytes);

/* The path of a program: name itself when it holds a slash, else the first executable one on PATH.
 * Errors: KELP_ERR_NOT_FOUND, KELP_ERR_LIMIT. */
kelp_status kelp_process_find(const char *name, char ret_path[KELP_PROCESS_PATH_MAX],
                              struct kelp_error *reterr) KELP_MUST_USE;

#endif

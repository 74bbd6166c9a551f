/*
 * One `kelp VERB` as a child process, its output in a file.
 */
#ifndef KELP_CLI_CHAOS_CHAOS_CHILD_H
#define KELP_CLI_CHAOS_CHAOS_CHILD_H

#include "cli/launch/guard.h"
#include "common/base/status.h"
#include "common/process/process.h"

#define KELP_CHAOS_CHILD_ARGS_MAX 24

struct kelp_chaos_child {
    struct kelp_process *process;   /* NULL: none */
    const char *verb;               /* "train"; static */
    const char *bin_folder;         /* borrowed */
    const char *log_path;           /* borrowed; appended to */
    long log_from;                  /* bytes of the log before this start */
    const char *const *environment; /* borrowed; "NAME=value", NULL-terminated; may be NULL */
    /* Called every look_ms while kelp_chaos_child_run() waits; NULL: never. */
    void (*look)(void *user);
    void *user; /* borrowed */
    int look_ms;
};

/* `<bin_folder>/kelp VERB ARGS` (NULL-terminated). Errors: those of kelp_process_start(),
 * KELP_ERR_IO. */
kelp_status kelp_chaos_child_start(struct kelp_chaos_child *child, const char *const *args,
                                   struct kelp_error *reterr) KELP_MUST_USE;

/*
 * Take in its end, which has come (kelp_process_wait()): KELP_OK for exit status 0, else an error
 * by the exit status whose text holds its last words.
 */
kelp_status kelp_chaos_child_end(struct kelp_chaos_child *child, int wait_status,
                                 struct kelp_error *reterr) KELP_MUST_USE;

/* Start it, wait for its end and take it in. Errors: as above, and KELP_ERR_CLOSED when a signal
 * asked for the end before; it is killed then. */
kelp_status kelp_chaos_child_run(struct kelp_chaos_child *child, const char *const *args,
                                 struct kelp_guard *guard, struct kelp_error *reterr) KELP_MUST_USE;

/* SIGKILL; the kernel kills its children with it. */
void kelp_chaos_child_kill(struct kelp_chaos_child *child);

#endif

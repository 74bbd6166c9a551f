/*
 * One `kelp train` as a child process, its output in a file.
 */
#ifndef KELP_CLI_CHAOS_CHAOS_TRAIN_H
#define KELP_CLI_CHAOS_CHAOS_TRAIN_H

#include "common/base/process.h"
#include "common/base/status.h"

#define KELP_CHAOS_TRAIN_ARGS_MAX 24

struct kelp_chaos_train {
    struct kelp_process *process;   /* NULL: none */
    const char *bin_folder;         /* borrowed */
    const char *log_path;           /* borrowed; appended to */
    long log_from;                  /* bytes of the log before this start */
    const char *const *environment; /* borrowed; "NAME=value", NULL-terminated; may be NULL */
};

/* `<bin_folder>/kelp train ARGS` (NULL-terminated). Errors: those of kelp_process_start(),
 * KELP_ERR_IO. */
kelp_status kelp_chaos_train_start(struct kelp_chaos_train *train, const char *const *args,
                                   struct kelp_error *reterr) KELP_MUST_USE;

/*
 * Take in its end, which has come (kelp_process_wait()): KELP_OK for exit status 0, else an error
 * by the exit status whose text holds its last words.
 */
kelp_status kelp_chaos_train_end(struct kelp_chaos_train *train, int wait_status,
                                 struct kelp_error *reterr) KELP_MUST_USE;

/* SIGKILL; the kernel kills its children with it. */
void kelp_chaos_train_kill(struct kelp_chaos_train *train);

#endif

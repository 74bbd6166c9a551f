/*
 * The process that runs a run: who holds the lock of its folder. Held by a descriptor of the
 * process, so that its number may not come to mean another one.
 */
#ifndef KELP_CLI_RUNS_RUN_HOLDER_H
#define KELP_CLI_RUNS_RUN_HOLDER_H

#include <stdint.h>
#include <sys/types.h>

#include "common/base/status.h"

struct kelp_run_holder {
    pid_t pid;
    int fd; /* readable (poll(2)) once the process has ended */
};

/*
 * Errors: KELP_ERR_NOT_FOUND (nobody runs it), KELP_ERR_UNREACHABLE (somebody does, who is not on
 * this machine or belongs to another user; the text says so).
 */
kelp_status kelp_run_holder_open(const char *run_path, struct kelp_run_holder *ret_holder,
                                 struct kelp_error *reterr) KELP_MUST_USE;
void kelp_run_holder_close(struct kelp_run_holder *holder);

/* Does nothing when the process has ended. Errors: KELP_ERR_UNREACHABLE (of another user). */
kelp_status kelp_run_holder_signal(const struct kelp_run_holder *holder, int signal_number,
                                   struct kelp_error *reterr) KELP_MUST_USE;
/* Wait until the process has ended. Errors: KELP_ERR_TIMEOUT. */
kelp_status kelp_run_holder_wait(const struct kelp_run_holder *holder, uint32_t timeout_ms,
                                 struct kelp_error *reterr) KELP_MUST_USE;

#endif

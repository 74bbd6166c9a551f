/*
 * The processes of a run that another command started, found in /proc by whose children they are
 * and by their --id, and held by pidfd: a number that is used again is never hit by mistake.
 */
#ifndef KELP_CLI_CHAOS_CHAOS_PROCESS_H
#define KELP_CLI_CHAOS_CHAOS_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/base/status.h"

#define KELP_CHAOS_CHILDREN_MAX 4200 /* of one run */
#define KELP_CHAOS_ID_MAX       255  /* bytes of --id that are compared */

struct kelp_chaos_process {
    pid_t pid;
    int pidfd;       /* owned; -1: none */
    uint64_t age_ms; /* when it was found */
};

/*
 * The living child of `parent` that was started with `--id ID`; any child when id is NULL.
 * Errors: KELP_ERR_NOT_FOUND; KELP_ERR_UNSUPPORTED when the kernel has no pidfd.
 */
kelp_status kelp_chaos_process_find(pid_t parent, const char *id,
                                    struct kelp_chaos_process *ret_process) KELP_MUST_USE;
/* The same of a child of our own, which has not been waited for. */
kelp_status kelp_chaos_process_hold(pid_t pid,
                                    struct kelp_chaos_process *ret_process) KELP_MUST_USE;
/* False when it has ended. */
bool kelp_chaos_process_signal(const struct kelp_chaos_process *process, int signal_number);
bool kelp_chaos_process_ended(const struct kelp_chaos_process *process);
void kelp_chaos_process_close(struct kelp_chaos_process *process);

/* Children of any of these parents whose --id is wanted. */
struct kelp_chaos_search {
    const pid_t *parents;
    uint32_t parent_count;
    bool (*wanted)(const char *id, const void *user);
    const void *user;
};

/* Does one of them, or a process that it has started, run at this moment, or wait for a processor
 * or a disk? Of each process the main thread is looked at. */
bool kelp_chaos_process_computes(const struct kelp_chaos_search *search);

/* SIGKILL to every child of `parent` and to itself, all at once, and wait until the children are
 * gone, at most wait_ms. Returns how many children it had; KELP_ERR_TIMEOUT when some stay. */
kelp_status kelp_chaos_kill_family(pid_t parent, uint32_t wait_ms, uint32_t *ret_count,
                                   struct kelp_error *reterr) KELP_MUST_USE;

#endif

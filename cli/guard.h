/*
 * Signals of a command that has children: the main thread does nothing but wait for them, while the
 * work runs in a thread of its own. So nothing that the work waits for (an etcd that does not come
 * up, a call with a deadline) can keep Ctrl-C from ending the command in time.
 *
 *     first SIGINT, SIGTERM or SIGHUP   the work is asked to stop (kelp_guard_stop_fd)
 *     1.8 s later, or a second one      the process ends at once; its children are killed by the
 *                                       kernel with it (common/process.h)
 */
#ifndef KELP_CLI_GUARD_H
#define KELP_CLI_GUARD_H

#include <stdbool.h>

#include "common/status.h"

#define KELP_GUARD_GRACE_MS 1800

struct kelp_guard;

/*
 * Run work(guard, user) and return its result as *ret_exit_status. Children may be started by the
 * work's thread, which lives until the process does. Call it before other threads exist: the
 * signals are blocked for all that come later.
 */
kelp_status kelp_guard_run(int (*work)(struct kelp_guard *guard, void *user), void *user,
                           int *ret_exit_status, struct kelp_error *reterr) KELP_MUST_USE;

/* Readable (poll(2)) from the first signal on; borrowed. */
int kelp_guard_stop_fd(const struct kelp_guard *guard);
/* The first signal's number, 0 as long as there was none. */
int kelp_guard_signal(const struct kelp_guard *guard);

#endif

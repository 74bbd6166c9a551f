/*
 * Signals of a command that has children: the main thread does nothing but wait for them, while the
 * work runs in a thread of its own. So nothing that the work waits for (an etcd that does not come
 * up, a call with a deadline) can keep Ctrl-C from ending the command in time.
 *
 *          SIGINT, SIGTERM, SIGHUP, if the work winds down      a second one, or it took too long
 *     RUN  -----------------------------------> WIND_DOWN ---------------------------> STOP
 *      |                                                                                ^
 *      +----------------- a signal when the work does not wind down --------------------+
 *
 * SIGQUIT goes to STOP from both. In STOP the work is to end; 1.8 s later, or at one more signal,
 * the process ends at once. Its children are killed by the kernel with it
 * (common/process/process.h).
 */
#ifndef KELP_CLI_LAUNCH_GUARD_H
#define KELP_CLI_LAUNCH_GUARD_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

#define KELP_GUARD_GRACE_MS 1800

enum kelp_guard_stage { KELP_GUARD_RUN, KELP_GUARD_WIND_DOWN, KELP_GUARD_STOP };

struct kelp_guard;

/*
 * Run work(guard, user) and return its result as *ret_exit_status. Children may be started by the
 * work's thread, which lives until the process does. Call it before other threads exist: the
 * signals are blocked for all that come later.
 */
kelp_status kelp_guard_run(int (*work)(struct kelp_guard *guard, void *user), void *user,
                           int *ret_exit_status, struct kelp_error *reterr) KELP_MUST_USE;

/* Is SIGHUP ignored, as under nohup? It stays so then. */
bool kelp_guard_survives_terminal(void);

/* From now on a signal asks the work to wind down for at most wind_down_ms, and then to stop. 0: it
 * stops it, as at the beginning. By the work's thread. */
void kelp_guard_winds_down(struct kelp_guard *guard, uint32_t wind_down_ms);

/* Readable (poll(2)) when the stage has changed since it was asked for; borrowed. */
int kelp_guard_fd(const struct kelp_guard *guard);
/* What is asked of the work now. By the work's thread. */
enum kelp_guard_stage kelp_guard_stage(struct kelp_guard *guard);
/* The newest signal's number, 0 as long as there was none. */
int kelp_guard_signal(const struct kelp_guard *guard);

#endif

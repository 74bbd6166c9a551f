/*
 * The limits that this process and its children have (setrlimit(2)), against what a run needs.
 * Those of the stack and of what every program needs: common/program/process_limits.c.
 */
#ifndef KELP_CLI_PREFLIGHT_LIMITS_H
#define KELP_CLI_PREFLIGHT_LIMITS_H

#include "cli/verb/display.h"
#include "common/base/status.h"
#include "common/job/job.h"

/*
 * Raises the soft limit on open files, which children inherit, to what the largest process of the
 * job needs on one machine: its etcd, unless that is another's, else a daemon. Errors:
 * KELP_ERR_INVALID: the hard limit is below that, or the limit on the size of a file, on address
 * space or on the user's processes is too low for the run; the text has both numbers.
 */
kelp_status kelp_limits_allow(const struct kelp_job *job, bool own_etcd,
                              struct kelp_error *reterr) KELP_MUST_USE;

/* Say what will end processes of the run sooner or later: a limit on processor time. */
void kelp_limits_say(struct kelp_display *display);

#endif

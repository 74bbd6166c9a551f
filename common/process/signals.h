/*
 * SIGTERM and SIGINT of a daemon as one callback on a thread of its own, where everything is
 * allowed that a signal handler must not do.
 */
#ifndef KELP_COMMON_PROCESS_SIGNALS_H
#define KELP_COMMON_PROCESS_SIGNALS_H

#include "common/base/status.h"

struct kelp_signals;

/*
 * Block both signals and wait for them on a new thread; stop(signal, user) runs there for each one
 * that arrives. Call it in main() before any other thread starts: threads inherit the mask.
 * Errors: KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_signals_start(void (*stop)(int signal_number, void *user), void *user,
                               struct kelp_signals **ret_signals,
                               struct kelp_error *reterr) KELP_MUST_USE;

/* No callback runs after it returned. The signals stay blocked: the program is about to end. NULL
 * does nothing. */
void kelp_signals_stop(struct kelp_signals *signals);

#endif

/*
 * Says in the log that a process's certificate ends soon: at its start, and then once a day until
 * another one is in its place. Nobody may connect for days, so that nothing else would look.
 *
 * Threads: one of its own, which takes no signals.
 */
#ifndef KELP_COMMON_PROGRAM_EXPIRY_WATCH_H
#define KELP_COMMON_PROGRAM_EXPIRY_WATCH_H

#include "common/base/status.h"
#include "common/tls/credentials.h"

struct kelp_expiry_watch;

/* credentials are borrowed until the stop; NULL: there is nothing to watch, and *ret_watch is NULL.
 * Errors: KELP_ERR_NO_MEMORY. */
kelp_status kelp_expiry_watch_start(struct kelp_credentials *credentials,
                                    struct kelp_expiry_watch **ret_watch,
                                    struct kelp_error *reterr) KELP_MUST_USE;
void kelp_expiry_watch_stop(struct kelp_expiry_watch *watch); /* NULL does nothing */

#endif

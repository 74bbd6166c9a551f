/*
 * A thread that looks at something again and again, so that a slow answer holds up nobody. What it
 * saw is handed over under the watcher's lock.
 */
#ifndef KELP_CLI_LAUNCH_WATCH_WATCHER_H
#define KELP_CLI_LAUNCH_WATCH_WATCHER_H

#include <stdint.h>

#include "common/base/status.h"

struct kelp_watcher;

struct kelp_watcher_options {
    void (*look)(void *user); /* by the thread, once a period */
    void *user;
    uint32_t period_ms; /* from the end of one look to the next */
};

/* The lock is there and nothing runs yet. Errors: KELP_ERR_NO_MEMORY, KELP_ERR_IO. */
kelp_status kelp_watcher_create(const struct kelp_watcher_options *options,
                                struct kelp_watcher **ret_watcher,
                                struct kelp_error *reterr) KELP_MUST_USE;
/* Start the thread. */
kelp_status kelp_watcher_start(struct kelp_watcher *watcher,
                               struct kelp_error *reterr) KELP_MUST_USE;
/* Ends the thread, if it runs, after the look in progress, and frees. NULL is fine. */
void kelp_watcher_stop(struct kelp_watcher *watcher);

void kelp_watcher_lock(struct kelp_watcher *watcher);
void kelp_watcher_unlock(struct kelp_watcher *watcher);

/* There is news: the descriptor becomes readable. By the thread. */
void kelp_watcher_raise(struct kelp_watcher *watcher);
/* Take the lock; what was raised is seen. */
void kelp_watcher_collect(struct kelp_watcher *watcher);
/* Readable when there is something to take; borrowed. */
int kelp_watcher_fd(const struct kelp_watcher *watcher);

#endif

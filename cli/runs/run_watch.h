/*
 * Waits until something happens to a run: a line in one of its logs, its end.
 */
#ifndef KELP_CLI_RUNS_RUN_WATCH_H
#define KELP_CLI_RUNS_RUN_WATCH_H

#include <stdbool.h>
#include <stdint.h>

#define KELP_RUN_WATCH_MS 1000 /* between looks where nobody tells (a network's file system) */

struct kelp_run_watch {
    int fd; /* inotify; -1: there is none, and it looks now and then */
};

/* With logs set, lines in the run's logs/ count too. Cannot fail. */
void kelp_run_watch_open(struct kelp_run_watch *watch, const char *run_path, bool logs);
void kelp_run_watch_close(struct kelp_run_watch *watch);

/* Returns when something has happened, or after wait_ms. Look at everything then. */
void kelp_run_watch_wait(struct kelp_run_watch *watch, uint32_t wait_ms);

#endif

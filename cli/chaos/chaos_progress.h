/*
 * What `kelp train` would show of a run, while its output goes to a file: the same bar on a
 * terminal, the same lines elsewhere. Its coordinator is asked; until that answers, the last line
 * of the file is shown.
 *
 * Threads: one.
 */
#ifndef KELP_CLI_CHAOS_CHAOS_PROGRESS_H
#define KELP_CLI_CHAOS_CHAOS_PROGRESS_H

#include "cli/cluster/job_client.h"
#include "cli/verb/display.h"

#define KELP_CHAOS_PROGRESS_MS 200 /* between two looks, and the most that one waits */

/* The last three are empty at first. */
struct kelp_chaos_progress {
    const char *run_path; /* borrowed, as are the next two */
    const char *log_path;
    struct kelp_display *display;
    uint32_t batch_size; /* the job's */
    bool answered;       /* by the coordinator, once */
    struct kelp_job_client *client;
    struct kelp_rate rate;
};

/* Look and show. progress is a struct kelp_chaos_progress. */
void kelp_chaos_progress_show(void *progress);

/* Takes the bar away. */
void kelp_chaos_progress_close(struct kelp_chaos_progress *progress);

#endif

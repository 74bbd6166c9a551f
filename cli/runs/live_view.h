/*
 * A run that goes on, shown again and again on standard output: its table with rate and time left,
 * drawn over on a terminal; the lines of kelp train on anything else; or a JSON object a line.
 */
#ifndef KELP_CLI_RUNS_LIVE_VIEW_H
#define KELP_CLI_RUNS_LIVE_VIEW_H

#include "cli/cluster/job_client.h"
#include "cli/verb/display.h"
#include "cli/verb/meter.h"
#include "common/base/status.h"

struct kelp_live_view {
    const char *run_path; /* borrowed */
    bool json;
    uint32_t batch_size;
    struct kelp_job_client *client; /* NULL: not reached yet */
    struct kelp_rate rate;
    struct kelp_display display;
    unsigned lines; /* of the table on the terminal */
};

/* Errors: those of reading job.yaml. */
kelp_status kelp_live_view_open(const char *run_path, bool json, struct kelp_live_view *ret_view,
                                struct kelp_error *reterr) KELP_MUST_USE;
void kelp_live_view_close(struct kelp_live_view *view);

/* Ask and show. False when standard output takes no more. */
bool kelp_live_view_show(struct kelp_live_view *view, uint32_t timeout_ms);

#endif

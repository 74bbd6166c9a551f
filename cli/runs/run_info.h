/*
 * What became of one run, whatever state its folder is in: files that are missing, cut off or
 * damaged make it "broken", never an error.
 *
 *     running    a process holds the run's lock
 *     done, failed, paused, stopped    as result.json says
 *     broken     neither: it was killed, or result.json cannot be read
 */
#ifndef KELP_CLI_RUNS_RUN_INFO_H
#define KELP_CLI_RUNS_RUN_INFO_H

#include <stdint.h>
#include <time.h>

#include "cli/run/result.h"
#include "cli/run/run_dir.h"

enum kelp_run_state {
    KELP_RUN_STATE_RUNNING,
    KELP_RUN_STATE_DONE,
    KELP_RUN_STATE_FAILED,
    KELP_RUN_STATE_PAUSED,
    KELP_RUN_STATE_STOPPED,
    KELP_RUN_STATE_BROKEN,
    KELP_RUN_STATE_COUNT
};

struct kelp_run_info {
    char path[KELP_RUN_PATH_MAX + 1];
    char job[64];     /* "" when job.yaml cannot be read */
    char monitor[32]; /* "val/loss": what decides which evaluation is the best; "" as above */
    uint32_t epochs;  /* of the whole job; 0: not known */
    bool inference;   /* of kelp predict or kelp evaluate: it has no steps, and is not resumed */
    enum kelp_run_state state;
    char reason[512]; /* why it failed or is broken, where it stopped; or "" */
    double age_s;     /* since it ended; of a running one, since it was started */
    uint64_t step;    /* completed training steps, as far as known */
    uint32_t epoch;   /* completed epochs */
    struct kelp_result_metric metrics[KELP_RESULT_METRICS_MAX]; /* the newest */
    uint32_t metric_count;
    bool best_known;
    uint64_t best_step;
    uint32_t best_epoch;
    struct kelp_result_metric best[KELP_RESULT_METRICS_MAX];
    uint32_t best_count;
};

/* "done". */
const char *kelp_run_state_name(enum kelp_run_state state);

/* Is there a run, or one that is being made? */
bool kelp_run_info_is_run(const char *path);

struct kelp_run_look {
    time_t now;
    uint32_t timeout_ms; /* for each run that goes on and is asked how far it is */
};

/* Look at the run: at its files, and what its coordinator says. */
void kelp_run_info_read(const char *path, const struct kelp_run_look *look,
                        struct kelp_run_info *ret_info);

/* The value of a metric: of the best evaluation, else the newest one. False: there is none. */
bool kelp_run_info_metric(const struct kelp_run_info *info, const char *name, double *ret_value);

#endif

/*
 * Trials: what `kelp train --fault` and `--at` ask for, to test that a run keeps its bits.
 *
 *     --fault worker-1:kill@step=120     passed on to the first start of that child as --fault
 *     --at step=100:add-worker           one more worker when that step is reached
 *     --at step=100:kill=shard-0         SIGKILL to that child when that step is reached
 *
 * Pure: text in, table out.
 */
#ifndef KELP_CLI_LAUNCH_CHILDREN_TRIAL_H
#define KELP_CLI_LAUNCH_CHILDREN_TRIAL_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/program/options/options.h"

#define KELP_TRIAL_ID_MAX   39 /* bytes of "worker-12", and of "rack4-host7.worker-12" */
#define KELP_TRIAL_SPEC_MAX 95 /* bytes of "kill@step=120" */
#define KELP_TRIALS_MAX     64 /* of each kind */

struct kelp_fault {
    char id[KELP_TRIAL_ID_MAX + 1];
    char spec[KELP_TRIAL_SPEC_MAX + 1];
};

enum kelp_timed_action { KELP_TIMED_ADD_WORKER, KELP_TIMED_KILL };

struct kelp_timed {
    uint64_t step;
    enum kelp_timed_action action;
    char id[KELP_TRIAL_ID_MAX + 1]; /* KILL only */
    bool done;
};

struct kelp_trials {
    struct kelp_fault faults[KELP_TRIALS_MAX];
    uint32_t fault_count;
    struct kelp_timed timed[KELP_TRIALS_MAX];
    uint32_t timed_count;
};

/* Errors: KELP_ERR_INVALID (the text shows the form), KELP_ERR_LIMIT. */
kelp_status kelp_trials_add_fault(struct kelp_trials *trials, const char *text,
                                  struct kelp_error *reterr) KELP_MUST_USE;
kelp_status kelp_trials_add_timed(struct kelp_trials *trials, const char *text,
                                  struct kelp_error *reterr) KELP_MUST_USE;

/* Whatever the option --fault gives. */
kelp_status kelp_trials_add_faults(struct kelp_trials *trials, const struct kelp_options *given,
                                   struct kelp_error *reterr) KELP_MUST_USE;

/* What the run will have, to check trials against. */
struct kelp_trials_run {
    uint32_t workers, shards, coordinators; /* with those that --at adds */
    uint64_t steps;                         /* of the whole job */
};

/* Each names a process and a step that the run has. Errors: KELP_ERR_INVALID. */
kelp_status kelp_trials_check(const struct kelp_trials *trials, const struct kelp_trials_run *run,
                              struct kelp_error *reterr) KELP_MUST_USE;

/* How many workers `--at` will add. */
uint32_t kelp_trials_added_workers(const struct kelp_trials *trials);

#endif

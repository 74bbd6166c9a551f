/*
 * The trainer: computes the lanes that the feed (worker/lane_feed.h) hands out, on the model and
 * the data set of the job. It holds nothing that outlives a step.
 */
#ifndef KELP_WORKER_TRAINER_H
#define KELP_WORKER_TRAINER_H

#include "worker/job_link.h"

/* What a test does to the worker at one training step, or at one entry of any kind. */
struct kelp_worker_fault {
    enum kelp_worker_fault_kind {
        KELP_FAULT_NONE,
        KELP_FAULT_KILL,         /* SIGKILL with the lanes computed, nothing pushed */
        KELP_FAULT_KILL_PUSHING, /* SIGKILL when pushed to the first shard, not to the others */
        KELP_FAULT_STALL,        /* three seconds without a push: a worker that is slow once */
        KELP_FAULT_HANG,         /* a lane that does not end */
    } kind;
    bool by_version; /* step is a version: completed entries, evaluations and such too */
    uint64_t step;
};

/* "kill@step=120", "kill-pushing@step=120", "stall@step=120", "hang@step=120", or "@version=3"
 * instead of a step.
 * Errors: KELP_ERR_INVALID naming what is allowed. */
kelp_status kelp_worker_fault_parse(const char *text, struct kelp_worker_fault *ret_fault,
                                    struct kelp_error *reterr) KELP_MUST_USE;

struct kelp_trainer;

/*
 * Open the job's data set, build its model, and derive the plan. worker is borrowed.
 * Errors: those of the data set, the model and the plan.
 */
kelp_status kelp_trainer_create(struct kelp_job_link *job_link, struct kelp_trainer **ret_trainer,
                                struct kelp_error *reterr) KELP_MUST_USE;

/*
 * Join and work until the job is over (KELP_OK), until stop is raised (KELP_OK), or until something
 * fails. Errors: those of kelp_job_link_next().
 */
kelp_status kelp_trainer_run(struct kelp_trainer *trainer, const struct kelp_worker_fault *fault,
                             struct kelp_stop *stop, struct kelp_error *reterr) KELP_MUST_USE;

/* The worker, which borrows the plan, must be closed. NULL does nothing. */
void kelp_trainer_destroy(struct kelp_trainer *trainer);

#endif

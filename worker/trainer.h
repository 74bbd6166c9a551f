/*
 * The trainer: computes the lanes that kelp_worker_next() hands out, on the model and the data set
 * of the job, and pushes them as nodes of the reduction tree. It holds nothing that outlives a
 * step.
 */
#ifndef KELP_WORKER_TRAINER_H
#define KELP_WORKER_TRAINER_H

#include "kelp/worker.h"

/* Where a test lets the worker die: kill -9 by its own hand, at one training step. */
struct kelp_worker_fault {
    enum {
        KELP_FAULT_NONE,
        KELP_FAULT_KILL,         /* lanes computed, nothing pushed */
        KELP_FAULT_KILL_PUSHING, /* pushed to the first shard, not to the others */
    } kind;
    uint64_t step;
};

/* "kill@step=120" or "kill-pushing@step=120". Errors: KELP_ERR_INVALID naming what is allowed. */
kelp_status kelp_worker_fault_parse(const char *text, struct kelp_worker_fault *ret_fault,
                                    struct kelp_error *reterr) KELP_MUST_USE;

/*
 * Join the job with the plan derived here and work until it is over (KELP_OK), until *stop
 * (KELP_OK), or until something fails. worker is transferred: it is closed on return.
 * Errors: those of the data set, the model and kelp_worker_next().
 */
kelp_status kelp_trainer_run(struct kelp_worker *worker, const struct kelp_worker_fault *fault,
                             const volatile bool *stop, struct kelp_error *reterr) KELP_MUST_USE;

#endif

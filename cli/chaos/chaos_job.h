/*
 * The job of `kelp chaos`: as for `kelp train`, and then made fit for a plan: long enough, with
 * checkpoints, with as many processes as the plan names.
 */
#ifndef KELP_CLI_CHAOS_CHAOS_JOB_H
#define KELP_CLI_CHAOS_CHAOS_JOB_H

#include "common/base/status.h"
#include "common/job/job.h"
#include "common/program/options/options.h"

#define KELP_CHAOS_CHECKPOINT_STEPS "100" /* where the job asks for none by steps */
/* A job under faults has LENGTH times the step of its plan's last fault, and SLACK more: the faster
 * the machine, the more steps go by while a fault waits for the one before it to pass. One on hosts
 * has that step, so many for each fault, which takes seconds, and SLACK more. */
#define KELP_CHAOS_LENGTH      10
#define KELP_CHAOS_SLACK_STEPS 500
#define KELP_CHAOS_HOST_STEPS  4000

/*
 * File, environment, --workers, --shards, --epochs and --set over one another. What a run under
 * chaos needs is set unless the options say otherwise: two shards and two workers at least, or one
 * of each for each of --hosts, as many workers at the start as there may be, checkpoints by steps,
 * restarts without end and without much of a pause. None of it changes the digest. *ret_file is
 * owned.
 */
kelp_status kelp_chaos_job_read(const struct kelp_options *given, struct kelp_job_file **ret_file,
                                struct kelp_error *reterr) KELP_MUST_USE;

/* Training steps of one epoch; reads the data. 0: a program has them (model.program), and says it
 * to the cluster alone. */
kelp_status kelp_chaos_job_epoch_steps(const struct kelp_job *job, uint64_t *ret_steps,
                                       struct kelp_error *reterr) KELP_MUST_USE;

/*
 * Give the job enough epochs for a plan whose last fault is at last_step, as above: faults that
 * find nothing to hit are tried again later. host_faults: so many, of hosts; 0: they are of
 * processes. `fixed`: the epochs may not be changed (--epochs, --digest, --quiet-run).
 * Errors: KELP_ERR_INVALID when they are fixed and the last fault is past the end, or when they are
 * not and epoch_steps is 0.
 */
kelp_status kelp_chaos_job_lengthen(struct kelp_job_file *file, uint64_t epoch_steps,
                                    uint32_t last_step, uint32_t host_faults, bool fixed,
                                    struct kelp_error *reterr) KELP_MUST_USE;

/* Is the run in run_path one of this job, as far as the result goes? Errors: KELP_ERR_MISMATCH. */
kelp_status kelp_chaos_job_same(const struct kelp_job_file *file, const char *run_path,
                                struct kelp_error *reterr) KELP_MUST_USE;

/* The epochs of the run in run_path. */
kelp_status kelp_chaos_job_epochs_of(const char *run_path, uint32_t *ret_epochs,
                                     struct kelp_error *reterr) KELP_MUST_USE;

#endif

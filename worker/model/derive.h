/*
 * The plan of a job, derived from its data set and model: what every worker must derive alike
 * (common/training/plan.h). The launcher derives it before it starts anything: so bad input is
 * found at once, and no worker says what the job is.
 */
#ifndef KELP_WORKER_MODEL_DERIVE_H
#define KELP_WORKER_MODEL_DERIVE_H

#include "common/job/job.h"
#include "common/training/plan.h"
#include "worker/data/dataset.h"
#include "worker/model/model.h"

/*
 * The job's model for samples of this shape, made for as many at once as a piece of a lane's share
 * has, or for a larger block of an evaluation where memory allows it: which, follows from the job
 * and the shape alone. *ret_model is owned (kelp_model_destroy()). Errors: those of
 * kelp_model_create().
 */
kelp_status kelp_derive_model(const struct kelp_job *job, const struct kelp_sample_shape *shape,
                              struct kelp_model **ret_model,
                              struct kelp_error *reterr) KELP_MUST_USE;

/* *ret_plan is owned (kelp_plan_fini()). Errors: those of kelp_plan_lay_out() and of the device;
 * KELP_ERR_INVALID when the data has too few samples for one step, or a lane would have to norm
 * a batch of one value. */
kelp_status kelp_derive_plan(const struct kelp_job *job, const struct kelp_dataset *dataset,
                             const struct kelp_model *model, struct kelp_plan *ret_plan,
                             struct kelp_error *reterr) KELP_MUST_USE;

#endif

/*
 * The plan of a job, derived from its data set and model: what the first worker proposes and every
 * other one must derive too (common/plan.h). The launcher calls it before it starts anything, so
 * that bad input is found at once.
 */
#ifndef KELP_WORKER_DERIVE_H
#define KELP_WORKER_DERIVE_H

#include "common/job.h"
#include "common/plan.h"
#include "worker/dataset.h"
#include "worker/model.h"

/* The largest number of samples that a model must take at once for this job: one lane's, or a
 * block of an evaluation. */
uint32_t kelp_batch_max(const struct kelp_job *job);

/* *ret_plan is owned (kelp_plan_fini()). Errors: those of kelp_plan_lay_out() and of the device;
 * KELP_ERR_INVALID when the data has too few samples for one step. */
kelp_status kelp_derive_plan(const struct kelp_job *job, const struct kelp_dataset *dataset,
                             const struct kelp_model *model, struct kelp_plan *ret_plan,
                             struct kelp_error *reterr) KELP_MUST_USE;

#endif

/*
 * The job's plan as the process keeps it for a term: its text, and what it says.
 */
#ifndef KELP_COORDINATOR_COMMON_JOB_PLAN_H
#define KELP_COORDINATOR_COMMON_JOB_PLAN_H

#include "common/job/job.h"
#include "common/training/plan.h"

struct kelp_job_plan {
    char *text; /* canonical; owned; NULL: none */
    struct kelp_plan plan;
};

/* It is this text from now on, which is copied. Errors: those of kelp_plan_parse(). */
kelp_status kelp_job_plan_keep(struct kelp_job_plan *kept, const char *text,
                               struct kelp_error *reterr) KELP_MUST_USE;
/* Is this the kept one, as far as the workers of the job must agree? Errors: those of
 * kelp_plan_parse(), KELP_ERR_MISMATCH. */
kelp_status kelp_job_plan_compare(const struct kelp_job_plan *kept, const struct kelp_job *job,
                                  const char *text, struct kelp_error *reterr) KELP_MUST_USE;
void kelp_job_plan_forget(struct kelp_job_plan *kept);

#endif

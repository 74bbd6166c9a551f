#include "worker/derive.h"

#include <stdlib.h>
#include <string.h>

#include "common/control.h"
#include "worker/schedule.h"

#define EVALUATE_BLOCK 256u /* samples of an evaluation that a model takes at once, at least */

uint32_t kelp_batch_max(const struct kelp_job *job)
{
    uint32_t lane = (uint32_t)kelp_schedule_lane_samples_max(job); /* at most train.batch_size */
    return lane > EVALUATE_BLOCK ? lane : EVALUATE_BLOCK;
}

kelp_status kelp_derive_plan(const struct kelp_job *job, const struct kelp_dataset *dataset,
                             const struct kelp_model *model, struct kelp_plan *ret_plan,
                             struct kelp_error *reterr)
{
    const struct kelp_dataset_info *info = kelp_dataset_info(dataset);
    struct kelp_plan plan = {.data_fingerprint = info->fingerprint};
    const struct kelp_tensor *tensors = kelp_model_tensors(model, &plan.tensor_count);

    memcpy(plan.samples, info->samples, sizeof(plan.samples));
    kelp_status status = kelp_control_check(job, &plan, reterr);
    if (status != KELP_OK) {
        return status;
    }
    plan.tensors = calloc(plan.tensor_count, sizeof(*plan.tensors));
    if (!plan.tensors) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "plan: no memory for %u tensors",
                         plan.tensor_count);
    }
    memcpy(plan.tensors, tensors, plan.tensor_count * sizeof(*plan.tensors));
    status = kelp_model_compute_kind(model, plan.compute_kind, sizeof(plan.compute_kind),
                                     &plan.compute_answer, reterr);
    if (status == KELP_OK) {
        status = kelp_plan_lay_out(&plan, job->cluster.max_shards, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_plan_mark_decays(&plan, job, reterr);
    }
    if (status != KELP_OK) {
        kelp_plan_fini(&plan);
        return status;
    }
    *ret_plan = plan;
    return KELP_OK;
}

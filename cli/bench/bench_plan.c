#include "cli/bench/bench_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLES (UINT64_C(1) << 30)

kelp_status kelp_bench_plan_make(uint64_t bytes, uint32_t max_shards, struct kelp_plan *ret_plan,
                                 struct kelp_error *reterr)
{
    memset(ret_plan, 0, sizeof(*ret_plan));
    ret_plan->samples[KELP_SPLIT_TRAIN] = SAMPLES;
    (void)snprintf(ret_plan->compute_kind, sizeof(ret_plan->compute_kind), "bench");
    ret_plan->tensors = calloc(1, sizeof(*ret_plan->tensors));
    if (!ret_plan->tensors) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    ret_plan->tensor_count = 1;
    struct kelp_tensor *tensor = &ret_plan->tensors[0];
    (void)snprintf(tensor->name, sizeof(tensor->name), "weight");
    tensor->rank = 1;
    tensor->shape[0] = bytes / sizeof(float);
    tensor->init = KELP_INIT_CONSTANT;
    tensor->init_a = 0.5f;
    return kelp_plan_lay_out(ret_plan, max_shards, reterr);
}

#include "coordinator/core/targets.h"

struct kelp_targets kelp_targets_of_job(const struct kelp_job *job)
{
    return (struct kelp_targets){.workers_min = job->cluster.workers.min,
                                 .workers_max = job->cluster.workers.max};
}

bool kelp_targets_equal(const struct kelp_targets *a, const struct kelp_targets *b)
{
    return a->workers_min == b->workers_min && a->workers_max == b->workers_max;
}

uint32_t kelp_targets_least_workers(const struct kelp_targets *targets)
{
    return targets->workers_min < targets->workers_max ? targets->workers_min : 1;
}

kelp_status kelp_targets_change(const struct kelp_targets *now, const struct kelp_targets *request,
                                const struct kelp_job *job, struct kelp_targets *ret_targets,
                                struct kelp_error *reterr)
{
    struct kelp_targets next = *now;
    if (request->workers_min == 0 && request->workers_max == 0) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "nothing to change was named");
    }
    next.workers_min = request->workers_min;
    next.workers_max = request->workers_max;
    if (next.workers_min == 0 || next.workers_min > next.workers_max) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "%u:%u workers: the first number is from 1 to the second",
                         next.workers_min, next.workers_max);
    }
    if (next.workers_max > job->cluster.lanes) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "%u workers: the job has %u lanes (cluster.lanes), and no more workers "
                         "than that can work at once",
                         next.workers_max, job->cluster.lanes);
    }
    *ret_targets = next;
    return KELP_OK;
}

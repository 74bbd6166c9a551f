/*
 * How large the cluster is to be: by the job at first, by `kelp scale` from then on. Pure.
 *
 * Training rests while fewer than workers_min workers are there. A job that names one number of
 * workers instead of a range has no such minimum: it begins with so many, and goes on with fewer.
 */
#ifndef KELP_COORDINATOR_CORE_TARGETS_H
#define KELP_COORDINATOR_CORE_TARGETS_H

#include "common/job/job.h"

/* Of each, 0 in a request means: as before. */
struct kelp_targets {
    uint32_t workers_min;
    uint32_t workers_max;
    uint32_t shards;
};

struct kelp_targets kelp_targets_of_job(const struct kelp_job *job);
bool kelp_targets_equal(const struct kelp_targets *a, const struct kelp_targets *b);
/* Fewer workers than this let training rest: 1 where the targets name no range. */
uint32_t kelp_targets_least_workers(const struct kelp_targets *targets);

/* What the request makes of the targets; *ret_targets is set on success only. Errors:
 * KELP_ERR_INVALID, with what would be right. */
kelp_status kelp_targets_change(const struct kelp_targets *now, const struct kelp_targets *request,
                                const struct kelp_job *job, struct kelp_targets *ret_targets,
                                struct kelp_error *reterr) KELP_MUST_USE;

#endif

/*
 * How large the cluster is to be: by the job at first, by `kelp scale` from then on. Pure.
 *
 * Training rests while fewer than workers_min workers are there. A job that names one number of
 * workers instead of a range has no such minimum: it begins with so many, and goes on with fewer.
 *
 * Which processes are to go, by `kelp drain`, stands beside the numbers. It means one start of a
 * process: another one of the same name stays.
 */
#ifndef KELP_COORDINATOR_CORE_TARGETS_H
#define KELP_COORDINATOR_CORE_TARGETS_H

#include "common/job/job.h"
#include "coordinator/core/limits.h"

/* A process that is to end gracefully. */
struct kelp_drain {
    char id[KELP_COORDINATOR_ID_MAX + 1];
    uint64_t incarnation;
    uint64_t seen_ms; /* when it was there last, as this leader knows; not kept */
};

/* Of each, 0 in a request means: as before. */
struct kelp_targets {
    uint32_t workers_min;
    uint32_t workers_max;
    uint32_t shards;
    struct kelp_drain drains[KELP_COORDINATOR_DRAINS_MAX];
    uint32_t drain_count;
};

struct kelp_targets kelp_targets_of_job(const struct kelp_job *job);
/* What they say; when processes were seen counts for nothing. */
bool kelp_targets_equal(const struct kelp_targets *a, const struct kelp_targets *b);
/* Fewer workers than this let training rest: 1 where the targets name no range. */
uint32_t kelp_targets_least_workers(const struct kelp_targets *targets);

/* What the request makes of the targets, whose drains stay; *ret_targets is set on success only.
 * Errors: KELP_ERR_INVALID, with what would be right. */
kelp_status kelp_targets_change(const struct kelp_targets *now, const struct kelp_targets *request,
                                const struct kelp_job *job, struct kelp_targets *ret_targets,
                                struct kelp_error *reterr) KELP_MUST_USE;

/* Is this start of that process to go? */
bool kelp_targets_drain(const struct kelp_targets *targets, const char *id, uint64_t incarnation);
/* It is from now on. Errors: KELP_ERR_LIMIT. */
kelp_status kelp_targets_add_drain(struct kelp_targets *targets, const char *id,
                                   uint64_t incarnation, struct kelp_error *reterr) KELP_MUST_USE;
/* It is not any more. */
void kelp_targets_remove_drain(struct kelp_targets *targets, const char *id, uint64_t incarnation);

#endif

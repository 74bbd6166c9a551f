#include "coordinator/core/targets.h"

#include <stdio.h>
#include <string.h>

struct kelp_targets kelp_targets_of_job(const struct kelp_job *job)
{
    return (struct kelp_targets){.workers_min = job->cluster.workers.min,
                                 .workers_max = job->cluster.workers.max,
                                 .shards = job->cluster.shards};
}

/* Index of the drain, or the number of drains. */
static uint32_t find_drain(const struct kelp_targets *targets, const char *id, uint64_t incarnation)
{
    uint32_t i = 0;
    while (i < targets->drain_count && (targets->drains[i].incarnation != incarnation ||
                                        strcmp(targets->drains[i].id, id) != 0)) {
        i++;
    }
    return i;
}

bool kelp_targets_drain(const struct kelp_targets *targets, const char *id, uint64_t incarnation)
{
    return find_drain(targets, id, incarnation) < targets->drain_count;
}

bool kelp_targets_equal(const struct kelp_targets *a, const struct kelp_targets *b)
{
    bool equal = a->workers_min == b->workers_min && a->workers_max == b->workers_max &&
                 a->shards == b->shards && a->drain_count == b->drain_count;
    for (uint32_t i = 0; equal && i < a->drain_count; i++) {
        equal = kelp_targets_drain(b, a->drains[i].id, a->drains[i].incarnation);
    }
    return equal;
}

uint32_t kelp_targets_least_workers(const struct kelp_targets *targets)
{
    return targets->workers_min < targets->workers_max ? targets->workers_min : 1;
}

static kelp_status check_workers(const struct kelp_targets *targets, const struct kelp_job *job,
                                 struct kelp_error *reterr)
{
    if (targets->workers_min == 0 || targets->workers_min > targets->workers_max) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "%u:%u workers: MIN must be from 1 to MAX",
                         targets->workers_min, targets->workers_max);
    }
    if (targets->workers_max > job->cluster.lanes) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "%u workers: the job has %u lanes (cluster.lanes), and no more workers "
                         "can work at once",
                         targets->workers_max, job->cluster.lanes);
    }
    return KELP_OK;
}

static kelp_status check_shards(const struct kelp_targets *targets, const struct kelp_job *job,
                                struct kelp_error *reterr)
{
    if (targets->shards > KELP_COORDINATOR_SHARDS_MAX) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "%u shards: at most %d", targets->shards,
                         KELP_COORDINATOR_SHARDS_MAX);
    }
    if (targets->shards < job->cluster.replicas) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "%u shard%s: each partition has %u replicas (cluster.replicas), each on a "
                         "shard of its own",
                         targets->shards, targets->shards == 1 ? "" : "s", job->cluster.replicas);
    }
    return KELP_OK;
}

kelp_status kelp_targets_change(const struct kelp_targets *now, const struct kelp_targets *request,
                                const struct kelp_job *job, struct kelp_targets *ret_targets,
                                struct kelp_error *reterr)
{
    struct kelp_targets next = *now;
    bool workers = request->workers_min > 0 || request->workers_max > 0;
    kelp_status status = KELP_OK;
    if (!workers && request->shards == 0) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "the request changes nothing");
    }
    if (workers) {
        next.workers_min = request->workers_min;
        next.workers_max = request->workers_max;
        status = check_workers(&next, job, reterr);
    }
    if (status == KELP_OK && request->shards > 0) {
        next.shards = request->shards;
        status = check_shards(&next, job, reterr);
    }
    if (status == KELP_OK) {
        *ret_targets = next;
    }
    return status;
}

kelp_status kelp_targets_add_drain(struct kelp_targets *targets, const char *id,
                                   uint64_t incarnation, struct kelp_error *reterr)
{
    if (kelp_targets_drain(targets, id, incarnation)) {
        return KELP_OK;
    }
    if (targets->drain_count == KELP_COORDINATOR_DRAINS_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "%d processes are being drained: wait for them",
                         KELP_COORDINATOR_DRAINS_MAX);
    }
    struct kelp_drain *drain = &targets->drains[targets->drain_count++];
    *drain = (struct kelp_drain){.incarnation = incarnation};
    (void)snprintf(drain->id, sizeof(drain->id), "%s", id);
    return KELP_OK;
}

void kelp_targets_remove_drain(struct kelp_targets *targets, const char *id, uint64_t incarnation)
{
    uint32_t at = find_drain(targets, id, incarnation);
    if (at < targets->drain_count) {
        targets->drains[at] = targets->drains[--targets->drain_count];
    }
}

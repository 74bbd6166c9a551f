#include "coordinator/term/parts/size.h"

#include <assert.h>
#include <string.h>

void kelp_size_init(struct kelp_size *size, const struct kelp_job *job)
{
    *size = (struct kelp_size){.job = job, .now = kelp_targets_of_job(job)};
    size->wanted = size->now;
}

static bool take(struct kelp_size *size, const struct kelp_targets *now)
{
    bool changed = !kelp_targets_equal(&size->now, now);
    size->now = *now;
    size->due = size->due && !kelp_targets_equal(&size->wanted, now);
    return changed;
}

bool kelp_size_read(struct kelp_size *size, const struct kelp_found *found)
{
    const struct kelp_targets of_job = kelp_targets_of_job(size->job);
    struct kelp_targets now = of_job;
    if (found->has_scale && kelp_targets_equal(&found->scale.of_job, &of_job)) {
        now = found->scale.targets;
    } else if (found->has_scale) {
        memcpy(now.drains, found->scale.targets.drains, sizeof(now.drains));
        now.drain_count = found->scale.targets.drain_count;
    }
    return take(size, &now);
}

/* The targets that etcd will hold once all requests are written. */
static const struct kelp_targets *newest(const struct kelp_size *size)
{
    return size->due ? &size->wanted : &size->now;
}

/* Have `wanted` written. */
static void want(struct kelp_size *size)
{
    size->due = !kelp_targets_equal(&size->wanted, &size->now) || size->under_way;
    size->at_ms = 0;
}

kelp_status kelp_size_ask(struct kelp_size *size, const struct kelp_targets *request,
                          struct kelp_error *reterr)
{
    kelp_status status =
        kelp_targets_change(newest(size), request, size->job, &size->wanted, reterr);
    if (status == KELP_OK) {
        want(size);
    }
    return status;
}

kelp_status kelp_size_drain(struct kelp_size *size, const char *id, uint64_t incarnation,
                            struct kelp_error *reterr)
{
    size->wanted = *newest(size);
    kelp_status status = kelp_targets_add_drain(&size->wanted, id, incarnation, reterr);
    want(size);
    return status;
}

void kelp_size_drained(struct kelp_size *size, const char *id, uint64_t incarnation)
{
    size->wanted = *newest(size);
    kelp_targets_remove_drain(&size->wanted, id, incarnation);
    want(size);
}

const struct kelp_targets *kelp_size_due(const struct kelp_size *size, uint64_t now_ms)
{
    return size->due && !size->under_way && now_ms >= size->at_ms ? &size->wanted : NULL;
}

void kelp_size_sent(struct kelp_size *size)
{
    assert(size->due);
    size->under_way = true;
}

bool kelp_size_written(struct kelp_size *size, const struct kelp_targets *written, uint64_t now_ms)
{
    size->under_way = false;
    if (!written) {
        size->at_ms = now_ms + KELP_COORDINATOR_RETRY_MS;
        return false;
    }
    return take(size, written);
}

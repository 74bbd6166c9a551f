/*
 * Keys of the job in etcd, and reading one.
 */
#include <inttypes.h>
#include <stdio.h>

#include "coordinator/etcd/leader_internal.h"

void kelp__manifest_key(const struct kelp_leader *leader, uint64_t version, char key[KELP__KEY_MAX])
{
    (void)snprintf(key, KELP__KEY_MAX, "/kelp/%.*s/checkpoint/%" PRIu64, KELP_JOB_NAME_MAX,
                   leader->options.job, version);
}

kelp_status kelp__leader_get(struct kelp__leader_task *task, const char *key,
                             struct kelp_etcd_range *range)
{
    kelp_status status =
        kelp_etcd_get(task->leader->etcd, key, KELP_COORDINATOR_ETCD_MS, range, &task->error);
    if (status != KELP_OK) {
        kelp_error_prefix(&task->error, "reading %s", key);
    }
    return status;
}

/*
 * What this machine has, as the system and its limits tell, against what a job takes here.
 */
#ifndef KELP_CLI_PREFLIGHT_MACHINE_H
#define KELP_CLI_PREFLIGHT_MACHINE_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/job/job.h"
#include "common/training/plan.h"
#include "worker/data/dataset.h"
#include "worker/model/model.h"

struct kelp_machine {
    uint64_t memory_bytes; /* memory and swap; UINT64_MAX: not known */
    bool limited;          /* by the control group, which has less than the machine */
};

/* Out of /proc/meminfo: MemTotal and SwapTotal; 0: they are not there. Pure. */
uint64_t kelp_machine_meminfo(const char *text);

/* The least limit on memory of the process's control group and of those above it, in bytes;
 * UINT64_MAX: there is none. Both versions are read, as one of them may count memory and the other
 * something else. root: /sys/fs/cgroup; text: /proc/self/cgroup. */
uint64_t kelp_machine_group_limit(const char *root, const char *text);

void kelp_machine_read(struct kelp_machine *ret_machine);

/*
 * Do the processes of a job fit: shards with weights and optimizer, and cluster.workers.max
 * workers? The text has both figures and what to change. Errors: KELP_ERR_LIMIT.
 */
kelp_status kelp_machine_check(const struct kelp_machine *machine, const struct kelp_job *job,
                               const struct kelp_plan *plan, const struct kelp_model *model,
                               const struct kelp_dataset *dataset,
                               struct kelp_error *reterr) KELP_MUST_USE;

#endif

/*
 * What a coordinator finds in etcd and in the run's folder.
 */
#ifndef KELP_COORDINATOR_TERM_OUTSIDE_FOUND_H
#define KELP_COORDINATOR_TERM_OUTSIDE_FOUND_H

#include "coordinator/core/checkpoints/committed_list.h"
#include "coordinator/core/map.h"
#include "coordinator/core/targets.h"

/* What stands under the job's state key. */
struct kelp_job_state {
    char state[16]; /* starting, running, paused, done, failed */
    char reason[KELP_COORDINATOR_REASON_MAX + 1];
    uint64_t version; /* as known when it was written */
    uint64_t step;
    uint64_t steps_recomputed; /* over the run */
};

/* What stands under the job's scale key: another size, and which one the job had then. */
struct kelp_scale {
    struct kelp_targets targets;
    struct kelp_targets of_job;
};

/* Names of folders; owned. */
struct kelp_checkpoint_names {
    char (*names)[KELP_FOLDER_NAME_MAX + 1]; /* sorted */
    size_t count;
};

/* What etcd holds; texts may be taken out of it. */
struct kelp_found {
    char *plan;          /* text, or NULL */
    struct kelp_map map; /* generation 0: none */
    bool has_state;
    struct kelp_job_state state;
    bool has_scale;
    struct kelp_scale scale;
    struct kelp_committed *checkpoints; /* ascending versions; unreadable ones are damaged */
    uint32_t checkpoint_count;
    struct kelp_checkpoint_names folders; /* of a whole read: to be removed */
    bool empty;                           /* no generation was ever opened in this etcd */
    uint32_t imported;        /* put into an empty etcd from the run's folder just now */
    uint64_t last_generation; /* newest that made any of them */
    /* Why the newest one is of another job than this, or "": then nothing is to be restored. */
    char foreign[KELP_COORDINATOR_REASON_MAX + 1];
    /* With KELP_ERR_NOT_FOUND: the file that has to be there before a checkpoint can be chosen. */
    char missing[KELP_COORDINATOR_WAITING_MAX + 1];
};

#endif

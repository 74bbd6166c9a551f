/*
 * Writes checkpoints of any state as shards and the coordinator do, without a cluster.
 */
#ifndef KELP_TESTS_LIB_CLUSTER_CHECKPOINT_MAKE_H
#define KELP_TESTS_LIB_CLUSTER_CHECKPOINT_MAKE_H

#include "cli/checkpoint/model_state.h"
#include "common/job/job.h"
#include "common/training/manifest.h"

struct kelp_test_checkpoint {
    const char *run_path;
    const struct kelp_job_file *file; /* the state's job */
    const struct kelp_model_state *state;
    uint64_t generation;
    uint32_t storages; /* number of storages; partitions are distributed over them in turn */
};

/* Write <run>/checkpoints/step-N.gG with storages shard-0.aaa…, shard-1.aaa…, job.yaml, plan.json
 * and manifest.json; its path into ret_path. Fails the test on an error. */
void kelp_test_checkpoint_make(const struct kelp_test_checkpoint *what, char *ret_path,
                               size_t path_bytes);

/*
 * Write a checkpoint of a run at a step, with two storages and generation 1, as a replay of the
 * run's job gives it. With `wrong`, one element of its third tensor is changed first.
 */
void kelp_test_checkpoint_at(const char *run_path, uint64_t step, bool wrong, char *ret_path,
                             size_t path_bytes);

#endif

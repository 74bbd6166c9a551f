/*
 * How a run in progress is distributed over its processes, as its leader reports.
 */
#ifndef KELP_TESTS_LIB_COMMANDS_RUN_SIZE_H
#define KELP_TESTS_LIB_COMMANDS_RUN_SIZE_H

#include "proto/kelp.pb-c.h"
#include "tests/lib/commands/run_train.h"

struct kelp_run_size {
    uint32_t shards;  /* with partitions */
    uint32_t workers; /* with lanes */
    uint32_t replicas;
};

/* NULL: there is no leader now. Owned (kelp_job_client_status_free()). */
Kelp__V1__StatusReply *kelp_run_ask(const char *run_folder);

/* Training continues, this many shards share the partitions evenly with this many replicas, no
 * copy is under way, and this many workers have lanes. */
bool kelp_run_has_size(const struct kelp_run *run, struct kelp_run_size size);
void kelp_run_await_size(const struct kelp_run *run, struct kelp_run_size size);

/* For the job in that folder: how many shards lead partitions, and how many partitions are being
 * copied to a shard. 0: there is no leader. */
uint32_t kelp_run_shards_used(const char *run_folder);
uint32_t kelp_run_joining(const char *run_folder);

#endif

/*
 * How a run that goes on is spread over its processes, by the word of its leader.
 */
#ifndef KELP_TESTS_LIB_COMMANDS_RUN_SIZE_H
#define KELP_TESTS_LIB_COMMANDS_RUN_SIZE_H

#include "proto/kelp.pb-c.h"
#include "tests/lib/commands/run_train.h"

struct kelp_run_size {
    uint32_t shards;  /* that have partitions */
    uint32_t workers; /* that have lanes */
    uint32_t replicas;
};

/* NULL: nobody leads now. Owned (kelp_job_client_status_free()). */
Kelp__V1__StatusReply *kelp_run_ask(const char *run_folder);

/* Training goes on, so many shards share the partitions evenly, with so many replicas, and no copy
 * is under way; and so many workers have lanes. */
bool kelp_run_has_size(const struct kelp_run *run, struct kelp_run_size size);
void kelp_run_await_size(const struct kelp_run *run, struct kelp_run_size size);

/* Of the job in that folder: shards that lead partitions, and partitions that a shard is still
 * getting a copy of. 0: nobody leads. */
uint32_t kelp_run_shards_used(const char *run_folder);
uint32_t kelp_run_joining(const char *run_folder);

#endif

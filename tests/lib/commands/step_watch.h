/*
 * How far a running job is, as seen at the shard that hosts partition 0: a thread asks it once a
 * millisecond, and finds it again through etcd when it has moved or started anew.
 */
#ifndef KELP_TESTS_LIB_COMMANDS_STEP_WATCH_H
#define KELP_TESTS_LIB_COMMANDS_STEP_WATCH_H

#include <stdint.h>

#include "tests/lib/commands/run_train.h"

struct kelp_step_watch;

/* Of a run that was started; waits until its launcher has written cluster.json. Call
 * kelp_rpc_global_init() and curl_global_init() first. Fails the test when the run ends before. */
struct kelp_step_watch *kelp_step_watch_open(const struct kelp_run *run);
void kelp_step_watch_close(struct kelp_step_watch *watch); /* NULL is fine */

/* Steps that were complete when it looked last. */
uint64_t kelp_step_watch_step(struct kelp_step_watch *watch);
/* Wait until so many are. */
void kelp_step_watch_await(struct kelp_step_watch *watch, uint64_t step);

/* Lanes that its shards have offered so far. */
uint64_t kelp_step_watch_offers(struct kelp_step_watch *watch);

#endif

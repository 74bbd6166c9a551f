/*
 * The progress of a running job, read from the shard that hosts partition 0: a thread asks it every
 * millisecond, and finds it through etcd after it has moved or restarted.
 */
#ifndef KELP_TESTS_LIB_COMMANDS_STEP_WATCH_H
#define KELP_TESTS_LIB_COMMANDS_STEP_WATCH_H

#include <stdint.h>

#include "tests/lib/commands/run_train.h"

struct kelp_step_watch;

/* Watch a run that was started; waits until its launcher has written cluster.json. Call
 * kelp_rpc_global_init() and curl_global_init() first. Fails the test if the run ends earlier. */
struct kelp_step_watch *kelp_step_watch_open(const struct kelp_run *run);
void kelp_step_watch_close(struct kelp_step_watch *watch); /* NULL does nothing */

/* Completed steps, as last seen. */
uint64_t kelp_step_watch_step(struct kelp_step_watch *watch);
/* Wait until so many steps are complete. */
void kelp_step_watch_await(struct kelp_step_watch *watch, uint64_t step);

/* Lanes that the job's shards have offered so far. */
uint64_t kelp_step_watch_offers(struct kelp_step_watch *watch);

#endif

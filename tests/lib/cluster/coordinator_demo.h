/*
 * The scripted cluster of job "demo" (tests/lib/cluster/coordinator_peers.h) with two shards and up
 * to three workers, and conditions that tests of real coordinators wait for.
 */
#ifndef KELP_TESTS_LIB_CLUSTER_COORDINATOR_DEMO_H
#define KELP_TESTS_LIB_CLUSTER_COORDINATOR_DEMO_H

#include "tests/lib/cluster/coordinator_peers.h"

extern struct demo {
    struct peers peers;
    struct peer_shard shards[2];
    struct peer_worker workers[3];
} demo;

/* detect: failure.detect. For KELP_CASE(): a value that even a slow machine does not exceed. */
void demo_set_up(const char *detect);
void demo_setup(void);
void demo_teardown(void);
/* Start a coordinator, both shards and two workers, and wait until they have map and lanes. */
void demo_start(void);

/* For peers_wait(); generation is a uint64_t: both workers have its map, and lanes. */
bool demo_both_run(void *generation);
/* For peers_wait(): the worker has all eight lanes; its stream was refused; it was told to
 * leave. */
bool demo_has_all_lanes(void *worker);
bool demo_was_refused(void *worker);
bool demo_leaves(void *worker);

/* Wait until wanted() accepts the leader's Status; owned
 * (kelp__v1__status_reply__free_unpacked()). */
Kelp__V1__StatusReply *demo_status_when(bool (*wanted)(const Kelp__V1__StatusReply *reply),
                                        const char *what);
Kelp__V1__StatusReply *demo_status(void);

/* Wait until the coordinator ends with this exit status. */
void demo_wait_for_end(uint32_t index, int expected);

#endif

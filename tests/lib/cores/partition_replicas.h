/*
 * What the other replicas of a partition's entry do to the bench's partition.
 */
#ifndef KELP_TESTS_LIB_CORES_PARTITION_REPLICAS_H
#define KELP_TESTS_LIB_CORES_PARTITION_REPLICAS_H

#include "tests/lib/cores/partition_bench.h"

#define BENCH_BACKUP 21
#define BENCH_JOINER 22

/* An acknowledgement of a follower. */
void bench_say(uint64_t process, uint64_t map_epoch, bool holds, uint64_t held);
/* The backup acknowledges that it is level. */
void bench_level(uint64_t held);
/* The partition's entry changes. */
void bench_enter(uint64_t map_epoch, enum kelp_replica_place place, uint64_t backup,
                 uint64_t joiner);
/* The primary forwards the root of a step. */
void bench_forward(uint64_t map_epoch, uint64_t step, const char *text);
/* Push all lanes of a step, as a worker that knows this epoch. */
void bench_push_at(uint64_t map_epoch, uint64_t step, const char *text);
/* Check the next acknowledgement. */
void bench_check_says(uint64_t map_epoch, bool holds, uint64_t held);

#endif

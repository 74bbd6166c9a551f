/*
 * A placement under test that wants two shards and has two workers. Calls return the kinds of the
 * emitted actions as bits (DID()).
 */
#ifndef KELP_TESTS_LIB_CORES_PLACEMENT_BENCH_H
#define KELP_TESTS_LIB_CORES_PLACEMENT_BENCH_H

#include "coordinator/core/placement/placement.h"

/* The bit of an action's kind. */
#define DID(kind) (1u << KELP_PLACEMENT_DO_##kind)

extern struct placement_bench {
    struct kelp_placement machine;
    uint64_t now;
    const bool *owes; /* what each event reports of owed snapshots; NULL: none */
} placement_bench;

void placement_setup(void);
void placement_teardown(void);
/* Returns the kinds of the emitted actions, which must be in the order of their kinds. */
uint32_t placement_apply(struct kelp_placement_event event);
uint32_t placement_map_read(struct kelp_map *map);
uint32_t placement_none_read(void);
uint32_t placement_plan(uint32_t partitions);
uint32_t placement_workers(uint32_t count);
uint32_t placement_registered(const char *id, uint64_t incarnation);
uint32_t placement_say(enum kelp_placement_event_kind kind, const char *id, uint64_t incarnation);
uint32_t placement_written(enum kelp_placement_written result);
uint32_t placement_tick(uint64_t ms);
uint32_t placement_appear(const char *id, uint64_t incarnation);
/* shard-0 and shard-1 (incarnations 10 and 11) run generation 1. */
void placement_start(void);
uint32_t placement_finished(uint64_t generation);

#endif

/*
 * Whether faults of shards leave each partition a replica, by the map of the newest status. Pure.
 */
#ifndef KELP_CLI_CHAOS_REPORT_CHAOS_REPLICAS_H
#define KELP_CLI_CHAOS_REPORT_CHAOS_REPLICAS_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/kelp.pb-c.h"

#define KELP_CHAOS_HITS_MAX 64
#define KELP_CHAOS_HIT_HEAL_MS                                                                     \
    2000 /* after its fault a shard that is still in the map is as before */

/* Shards that were hit, and that the map may still name though they are not there. */
struct kelp_chaos_hits {
    struct {
        uint64_t incarnation;
        uint64_t until_ms; /* it counts so long at most */
    } items[KELP_CHAOS_HITS_MAX];
    uint32_t count;
};

/* Index into map->shards of who leads partition 0, or of its backup; UINT32_MAX: nobody. */
uint32_t kelp_chaos_replicas_primary(const Kelp__V1__Map *map);
uint32_t kelp_chaos_replicas_backup(const Kelp__V1__Map *map);

/* The shard of that name is hit from now on until heal_ms; UINT64_MAX: it is killed. True: some
 * partition has no replica left by the map, so that going back to a checkpoint is right. */
bool kelp_chaos_replicas_hit(struct kelp_chaos_hits *hits, const Kelp__V1__Map *map,
                             const char *shard, uint64_t now_ms, uint64_t heal_ms);

#endif

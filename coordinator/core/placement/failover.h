/*
 * Which entries of a map change when shards of it are lost. Pure.
 *
 *     lost      {P,B,J}      {P,B,-}    {P,-,J}       (J in sync: its primary has said so, in this
 *     P         {B,-,J} 1    {B,-,-}    {J,-,-} 2      epoch of the entry)
 *     B         {P,-,J} 1    {P,-,-}
 *     J         {P,B,-}                 {P,-,-}
 *     P and B   {J,-,-} 2    nobody
 *     P and J   {B,-,-}                 nobody
 *
 * 1: a joiner in sync becomes the backup at once, {B,J,-} and {P,J,-}. 2: only if it is in sync,
 * else nobody is left. A backup is always in sync: no version was ever shown without it.
 */
#ifndef KELP_COORDINATOR_CORE_PLACEMENT_FAILOVER_H
#define KELP_COORDINATOR_CORE_PLACEMENT_FAILOVER_H

#include "coordinator/core/placement/replicas.h"

/* Of a shard of the map, by its index there. */
struct kelp_failover_shard {
    bool lost;
    bool ready; /* it is heard, and has what it is to have in this generation: it may lead */
};

enum kelp_failover_verdict {
    KELP_FAILOVER_NOTHING, /* no entry changes */
    KELP_FAILOVER_CHANGE,
    KELP_FAILOVER_WAITS,  /* a backup may lead once it is ready */
    KELP_FAILOVER_NOBODY, /* nobody is left who may lead some partition */
};

/* Of a partition: which follower its primary, which is there, does not hear. It is as good as
 * lost. */
struct kelp_failover_silent {
    bool backup;
    bool joiner;
};

/*
 * What becomes of the entries, and the gravest verdict on one of them.
 *
 * silent       of each partition.
 * ret_entries  room for partition_count of them, or NULL. They are meant with CHANGE: a map epoch
 *              counts up where an entry changes.
 */
enum kelp_failover_verdict kelp_failover_of(const struct kelp_map *map,
                                            const struct kelp_failover_shard *shards,
                                            const struct kelp_failover_silent *silent,
                                            const struct kelp_replicas *replicas,
                                            struct kelp_map_partition *ret_entries);

#endif

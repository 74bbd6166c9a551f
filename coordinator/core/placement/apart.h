/*
 * Partitions that no worker can bring together again.
 *
 * A worker pushes step v only with the weights w_v of all partitions. So at no moment do two
 * partitions stand more than one training step apart, and a partition keeps the weights of two
 * steps. A partition cannot check what a worker holds of others. One whose worker rushes it ahead
 * has no w_v any more while another one still waits for step v: whoever does not hold w_v yet never
 * gets it. Nobody has done anything that a shard could refuse, and training stands.
 *
 * Shards say where the partitions that they lead stand, and no worker can. Two of them are apart
 * for certain when one was heard at step v + 2 or later, and another one still says v in answer to
 * a heartbeat that was sent after that: steps only grow within a generation, so both held at one
 * moment. Reports of different age, moves, and shards that stand still prove nothing then. Whoever
 * holds w_v may still push it; so the other one has to stand at v over KELP_COORDINATOR_APART_BEATS
 * heartbeats before the partitions count as apart. Heartbeats are counted, and no clock is read.
 * Pure.
 */
#ifndef KELP_COORDINATOR_CORE_PLACEMENT_APART_H
#define KELP_COORDINATOR_CORE_PLACEMENT_APART_H

#include <stdbool.h>
#include <stdint.h>

#include "coordinator/core/limits.h"

struct kelp_apart_step {
    uint32_t partition;
    uint64_t map_epoch;
    uint64_t step;
};

/* What a shard says in answer to a heartbeat, of the generation that runs. */
struct kelp_apart_said {
    uint64_t generation;
    uint64_t heartbeat; /* that it answers */
    uint64_t next;      /* the one that is sent next */
    struct kelp_apart_step lowest;
    struct kelp_apart_step highest;
};

/* The furthest partition of a generation. */
struct kelp_apart {
    uint64_t generation; /* 0: nothing was heard */
    struct kelp_apart_step highest;
};

/* Of each shard: its partition that stays behind the furthest one. */
struct kelp_apart_behind {
    uint64_t generation; /* 0: none does */
    uint64_t since;      /* heartbeat */
    uint32_t partition;
    uint64_t step;
};

/* Take in what a shard says. True: its lowest partition is apart from apart->highest, for good. */
bool kelp_apart_hear(struct kelp_apart *apart, struct kelp_apart_behind *behind,
                     const struct kelp_apart_said *said);

#endif

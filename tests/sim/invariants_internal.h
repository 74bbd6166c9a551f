/* What the files of the invariants share. */
#ifndef KELP_TESTS_SIM_INVARIANTS_INTERNAL_H
#define KELP_TESTS_SIM_INVARIANTS_INTERNAL_H

#include "tests/sim/invariants.h"

/* One partition in one generation. */
struct line {
    bool there;          /* somebody has loaded it */
    uint64_t step;       /* that the furthest process has applied */
    uint64_t epoch;      /* the newest in which somebody has shown something */
    uint64_t shown;      /* what the furthest primary has shown, as replicas count */
    uint64_t shown_step; /* likewise, in training steps */
};

struct generation {
    struct line lines[SIM_PARTITIONS_MAX];
};

struct primary {
    uint32_t partition;
    uint64_t map_epoch;
    uint64_t incarnation;
};

struct order {
    struct kelp_snapshot_order of;
    char folder[SIM_NAME_MAX + 1];         /* as a shard heard it; "": none has */
    uint64_t captures[SIM_PARTITIONS_MAX]; /* process that is to capture it; 0: nobody is yet */
    bool captured[SIM_PARTITIONS_MAX];
};

/* Who joins a partition, as etcd has it. */
struct joiner {
    uint64_t process; /* 0: nobody */
    uint64_t since_us;
};

struct sim_invariants {
    struct generation *generations; /* [generation - 1] */
    size_t generation_count;
    size_t generation_capacity;
    struct primary *primaries;
    size_t primary_count;
    size_t primary_capacity;
    struct order *orders;
    size_t order_count;
    size_t order_capacity;
    uint64_t furthest_step; /* ever applied by partition 0 */
    uint64_t opened;        /* newest generation */
    bool finish_filed;
    struct sim_map *map; /* the newest in etcd, a reference */
    struct joiner joiners[SIM_PARTITIONS_MAX];
    uint64_t moves_us; /* when moves were looked at last */
};

/* Of that number, from 1; there are all up to it then. */
struct generation *sim__invariants_generation(struct sim *sim, uint64_t number);

#endif

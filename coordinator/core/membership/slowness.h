/*
 * Which worker the others wait for, and in what; or which shard all of them wait for. Pure: it
 * compares what workers and the shard of partition 0 have measured.
 *
 * A worker reports where its time went in windows of steps (worker/core/times.h). Slow is one that
 * differs clearly from the median of the others:
 *
 * - reading, computing: in the time for a lane, since who is slow has fewer lanes. It must also
 * cost a part of a step: what it takes above the median, for the lanes that it has.
 * - pushing: its encoding and sending take longer; or its lanes come late to partition 0 although
 *   its own work is as short as that of the others. That is the way to the shard, or a host that
 *   lets it wait for a processor.
 * - shard: it waits for the weights of one shard alone, while most others do not. Where most of
 *   them wait for one shard, that shard is slow, and no worker.
 *
 * What a worker says is advice for people. Nothing is decided by it.
 */
#ifndef KELP_COORDINATOR_CORE_MEMBERSHIP_SLOWNESS_H
#define KELP_COORDINATOR_CORE_MEMBERSHIP_SLOWNESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "coordinator/core/limits.h"

/* One window of a worker: sums. */
struct kelp_worker_times {
    uint64_t serial; /* of the window; 0: there is none */
    uint64_t steps;  /* training steps */
    uint64_t lanes;
    uint64_t length_us;
    uint64_t read_us;
    uint64_t compute_us;
    uint64_t push_us;
    uint64_t wait_us;
    uint64_t alone_us; /* of that: for one shard, when all others had answered */
    char shard[KELP_COORDINATOR_ID_MAX + 1]; /* that one; "": none */
    /* By partition 0, in about the same time: */
    uint64_t pushed_steps;
    uint64_t behind_us; /* its pushes were after the first one of their step */
};

/* Is it what a worker can have measured? Then sums and products of it are in range. */
bool kelp_worker_times_valid(const struct kelp_worker_times *times);

enum kelp_slow_part {
    KELP_SLOW_NOT,
    KELP_SLOW_READING,
    KELP_SLOW_COMPUTING,
    KELP_SLOW_PUSHING,
    KELP_SLOW_SHARD,
    KELP_SLOW_PART_COUNT
};
/* "reading" */
const char *kelp_slow_part_name(enum kelp_slow_part part);

/* Microseconds, means of the window. */
struct kelp_slow {
    enum kelp_slow_part part;
    bool late;          /* pushing: its lanes come late, which its work does not explain */
    uint64_t us;        /* reading, computing: of a lane, both together; else of a step */
    uint64_t usual_us;  /* the same, median of the others; 0 where they have no such thing */
    uint64_t part_us;   /* reading, computing: of `us` */
    uint64_t excess_us; /* in a step, above what is usual */
    uint64_t wait_us;   /* that the others wait in a step, median */
    uint64_t step_us;   /* a step takes */
};

#define KELP_SLOW_MEASURES 9

/* A worker with lanes among those that are compared. */
struct kelp_slow_row {
    const struct kelp_worker_times *times; /* valid */
    struct kelp_slow slow;                 /* what comes of it */
    uint64_t usual_us[KELP_SLOW_MEASURES]; /* internal */
};

/* Judges each. Returns the row that names the shard for which more than half of them wait, or count
 * when there is none; *ret_shard is what they wait for it (median). scratch: [count]. */
size_t kelp_slow_judge(struct kelp_slow_row *rows, size_t count, uint64_t *scratch,
                       struct kelp_slow *ret_shard);

#endif

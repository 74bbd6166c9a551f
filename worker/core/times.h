/*
 * Where a worker's time goes: sums over a window of training steps, for the leading coordinator
 * (coordinator/core/membership/slowness.h) and whoever watches.
 *
 * A step begins with waiting for its weights, which shards send. The shard whose weights come last
 * is waited for alone since those of the others are there: that part of the wait is its own, and
 * the rest is for other workers, or for all shards. A worker with a single shard cannot tell.
 *
 * Pure: times arrive as arguments, microseconds of any clock that does not go back. Threads: one
 * caller at a time.
 */
#ifndef KELP_WORKER_CORE_TIMES_H
#define KELP_WORKER_CORE_TIMES_H

#include <stdbool.h>
#include <stdint.h>

#define KELP_TIMES_WINDOW_US 1000000u /* a window is that long at least */
#define KELP_TIMES_STEPS     4u       /* ... and has so many steps */
#define KELP_TIMES_LINKS     16u      /* shards whose own parts are added up: those of most */

/* What came of one hand-out of lanes. */
struct kelp_times_step {
    bool train;  /* of a training step: others are not added up */
    bool begins; /* the first hand-out of its version */
    uint32_t lanes;
    uint64_t read_us;    /* reading samples */
    uint64_t compute_us; /* operators */
    uint64_t push_us;    /* encoding and sending */
    uint64_t wait_us;    /* for its weights */
};

struct kelp_times_window {
    uint64_t serial; /* of the window, from 1; 0: there is none yet */
    uint64_t steps;
    uint64_t lanes;
    uint64_t length_us; /* from its first step to its last */
    uint64_t read_us;
    uint64_t compute_us;
    uint64_t push_us;
    uint64_t wait_us;
    uint64_t alone_us; /* of that: for one shard alone, the one that was waited for most */
    uint32_t link;     /* with it: to that shard */
};

/* In the caller's memory; all zero at first. */
struct kelp_times {
    struct kelp_times_window window; /* in progress */
    uint64_t since_us;               /* it began; 0: nothing of it is there */
    uint64_t waiting_us;             /* waits since then; 0: does not wait */
    uint64_t last_us;                /* the newest weights; 0: none since the last version */
    uint64_t before_us;              /* the newest of any other link */
    uint32_t last_link;
    uint64_t alone_us; /* of the version that has begun: for alone_link */
    uint32_t alone_link;
    struct {
        uint32_t link;
        uint64_t us; /* 0: free */
    } links[KELP_TIMES_LINKS];
};

/* The worker waits for weights. */
void kelp_times_waits(struct kelp_times *times, uint64_t now_us);
/* Weights, or word that they stay, came over a link. */
void kelp_times_answered(struct kelp_times *times, uint32_t link, uint64_t now_us);
/* A version is whole. */
void kelp_times_begins(struct kelp_times *times);
/* Lanes are done. True: a window is complete, and *ret_window is what it came to. */
bool kelp_times_add(struct kelp_times *times, const struct kelp_times_step *step, uint64_t now_us,
                    struct kelp_times_window *ret_window);

#endif

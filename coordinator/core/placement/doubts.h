/*
 * Which followers their primaries do not hear, though we may hear both: pairs of processes, by
 * their incarnations. A follower that is not heard holds its partitions up, so it is dropped, on
 * this one witness: a joiner at once, a backup a little later. The pair is not tried again for a
 * while then, longer each time; partitions get another follower meanwhile. Pure.
 */
#ifndef KELP_COORDINATOR_CORE_PLACEMENT_DOUBTS_H
#define KELP_COORDINATOR_CORE_PLACEMENT_DOUBTS_H

#include <stdbool.h>
#include <stdint.h>

#include "coordinator/core/arrangement/arrangement.h"
#include "coordinator/core/limits.h"

struct kelp_doubt {
    uint64_t primary;
    uint64_t follower;
    uint64_t since_ms;
    uint64_t said_ms;  /* last */
    uint64_t pause_ms; /* after the newest drop; 0: there was none */
    uint64_t until_ms; /* it lasts until then */
};

struct kelp_doubts {
    uint32_t count;
    struct kelp_doubt items[KELP_COORDINATOR_DOUBTS_MAX];
};

/* The primary says that it does not hear the follower. */
void kelp_doubts_say(struct kelp_doubts *doubts, uint64_t primary, uint64_t follower,
                     uint64_t now_ms);
/* Does it say so now, and has for so long? */
bool kelp_doubts_last(const struct kelp_doubts *doubts, uint64_t primary, uint64_t follower,
                      uint64_t for_ms, uint64_t now_ms);
/* The follower is dropped for it. */
void kelp_doubts_drop(struct kelp_doubts *doubts, uint64_t primary, uint64_t follower,
                      uint64_t now_ms);
/* Is the pair left alone now? */
bool kelp_doubts_avoid(const struct kelp_doubts *doubts, uint64_t primary, uint64_t follower,
                       uint64_t now_ms);
/* All pairs that are left alone now; returns how many.
 *
 * ret_until_ms  when the first of them may be tried again; 0: there is none. */
uint32_t kelp_doubts_avoided(const struct kelp_doubts *doubts, uint64_t now_ms,
                             struct kelp_arrangement_pair ret_pairs[KELP_COORDINATOR_DOUBTS_MAX],
                             uint64_t *ret_until_ms);

#endif

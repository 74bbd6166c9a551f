/*
 * Shards that are to go: what keeps one, for people; and when all of them are told to end, so that
 * none is left to take over, the checkpoint that is made before they may. Pure; a part of a
 * leader's term.
 *
 *     all are to end       asked for          committed, or it cannot be made
 *     ---------------> ASK ---------> WAIT -----------------------------------> END
 */
#ifndef KELP_COORDINATOR_TERM_PARTS_DEPARTURE_H
#define KELP_COORDINATOR_TERM_PARTS_DEPARTURE_H

#include "coordinator/core/checkpoints/checkpoints.h"
#include "coordinator/core/placement/placement.h"

#define KELP_DEPARTURE_TEXT_MAX (KELP_COORDINATOR_REASON_MAX + 256)

struct kelp_departure {
    bool saves;                            /* the job's mode has a state to save */
    uint64_t serial;                       /* of the checkpoint that was asked for; 0: none */
    char verdict[KELP_DEPARTURE_TEXT_MAX]; /* what shards are told that nobody takes over from; "":
                                              they wait */
};

/* Look at all shards. True: a checkpoint is to be asked for, and serial to be set. */
bool kelp_departure_look(struct kelp_departure *departure, const struct kelp_placement *placement,
                         const struct kelp_checkpointer *checkpointer);
/* Is a leader that was told to end itself, so long ago, needed by shards that were told too? In the
 * beginning it may not have heard of them. */
bool kelp_departure_holds_leader(const struct kelp_placement *placement, uint64_t told_ms_ago);
/* What a shard that is to go waits for. */
void kelp_departure_waits(const struct kelp_placement *placement,
                          const struct kelp_checkpointer *checkpointer,
                          const struct kelp_placement_shard *shard,
                          char ret_text[KELP_DEPARTURE_TEXT_MAX]);

#endif

/*
 * One shard without rpc (ps/shard/shard.h). It is the primary of partition 0, which is all of a
 * small model with two lanes. A test pushes and pulls its steps.
 */
#ifndef KELP_TESTS_LIB_LONE_SHARD_H
#define KELP_TESTS_LIB_LONE_SHARD_H

#include "ps/shard/shard.h"

#define LONE_SHARD_ELEMENTS   976 /* elements of the only tensor, and of the partition */
#define LONE_SHARD_GENERATION 3

extern struct lone_shard {
    struct kelp_job job; /* may be changed before lone_shard_open() */
    struct kelp_plan plan;
    struct kelp_shard *shard;
    struct kelp_control_word word; /* of the current entry, as in the latest answer */
    /* Pushes and pulls only count failures (errors: of calls and answers). They make no assertions,
     * because Check allocates with each one and some tests watch memory. */
    uint32_t answers, errors, refusals, conflicts, failures;
    struct kelp_conflict conflict; /* the latest */
    /* Of the latest answer with weights. */
    uint64_t step;
    float weights[LONE_SHARD_ELEMENTS];
} lone_shard;

/* Defaults: adam, two lanes, steps of four samples. */
void lone_shard_init(void);
void lone_shard_open(void);
void lone_shard_close(void);

/* A message with the values as payload, in `pieces` segments. Owned. */
struct kelp_rpc_message *lone_shard_message(const float *values, uint32_t pieces);
/* Push one worker's lanes of the entry that `word` names, from such a message. */
void lone_shard_push(uint32_t author, const struct kelp_control_word *word, uint32_t lane_first,
                     uint32_t lane_count, struct kelp_rpc_message *message);
/* Pull the current weights and their word. */
void lone_shard_pull(void);

/* Some values, different for each `stream`. */
void lone_shard_values(uint32_t stream, float values[LONE_SHARD_ELEMENTS]);

#endif

/*
 * One shard without rpc (ps/shard/shard.h) that leads partition 0, which is all of a small model of
 * two lanes: its steps, pushed and pulled by a test.
 */
#ifndef KELP_TESTS_LIB_LONE_SHARD_H
#define KELP_TESTS_LIB_LONE_SHARD_H

#include "ps/shard/shard.h"

#define LONE_SHARD_ELEMENTS   976 /* of the one tensor, and of the partition */
#define LONE_SHARD_GENERATION 3

extern struct lone_shard {
    struct kelp_job job; /* to be changed before lone_shard_open() */
    struct kelp_plan plan;
    struct kelp_shard *shard;
    struct kelp_control_word word; /* of the entry under way, by the latest answer */
    /* Pushes and pulls only count what went wrong (errors: of calls and answers), for tests that
     * look at memory: Check allocates with each assertion. */
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

/* A message whose payload is the values, in `pieces` segments. Owned. */
struct kelp_rpc_message *lone_shard_message(const float *values, uint32_t pieces);
/* One worker's lanes of the entry that `word` names, from such a message. */
void lone_shard_push(uint32_t author, const struct kelp_control_word *word, uint32_t lane_first,
                     uint32_t lane_count, struct kelp_rpc_message *message);
/* The current weights and the word that goes with them. */
void lone_shard_pull(void);

/* Any values, others for each `stream`. */
void lone_shard_values(uint32_t stream, float values[LONE_SHARD_ELEMENTS]);

#endif

/*
 * A checkpointer under test, with two shards of two partitions each; the test makes steps, reports
 * and commits. Calls return the kinds of the emitted actions as bits (DID()).
 */
#ifndef KELP_TESTS_LIB_CORES_CHECKPOINT_BENCH_H
#define KELP_TESTS_LIB_CORES_CHECKPOINT_BENCH_H

#include "coordinator/core/checkpoints/checkpoints.h"

#define SERIAL 1000

/* The bit of an action's kind. */
#define DID(kind) (1u << KELP_CHECKPOINTER_DO_##kind)

extern struct checkpoint_bench {
    struct kelp_checkpointer machine;
    struct kelp_map map;
    struct kelp_control_word word;
    uint64_t now;
    char digest[KELP_DIGEST_HEX_BYTES];     /* of the state, as in a commit's answer */
    char digests[4][KELP_DIGEST_HEX_BYTES]; /* of the parts */
} checkpoint_bench;

/* Returns the kinds of the emitted actions, which must be in the order of their kinds. */
uint32_t checkpoint_apply(struct kelp_checkpointer_event event);
bool checkpoint_undecided(void);
uint32_t checkpoint_simple(enum kelp_checkpointer_event_kind kind);
uint32_t checkpoint_tick(uint64_t ms);
uint32_t checkpoint_open_generation(uint64_t generation, uint64_t restore_version);
void checkpoint_begin(struct kelp_checkpointer_options options);
void checkpoint_teardown(void);
uint32_t checkpoint_progress(uint64_t step);
/* Run the steps up to that one, taking step_ms each. Returns the actions of all. */
uint32_t checkpoint_run_to(uint64_t step, uint64_t step_ms);
uint32_t checkpoint_report(int shard, enum kelp_checkpointer_answer answer);
uint32_t checkpoint_all_durable(void);
/* Answer the commit of that order. */
uint32_t checkpoint_committed_order(uint64_t serial, enum kelp_checkpointer_result result);
uint32_t checkpoint_committed(enum kelp_checkpointer_result result);
/* Go from an order to the committed checkpoint. */
void checkpoint_make(void);
/* Train until a checkpoint is ordered. */
void checkpoint_make_due(void);
uint32_t checkpoint_request(bool pause);

#endif

/*
 * A checkpointer under test: two shards with two partitions each, steps, reports and commits as a
 * test asks for them. Calls return the bits of what is to be done (DID()).
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
    char digest[KELP_DIGEST_HEX_BYTES];     /* of the state, as a commit answers */
    char digests[4][KELP_DIGEST_HEX_BYTES]; /* of the parts */
} checkpoint_bench;

/* Bits of what is to be done; the actions come in the order of their kinds. */
uint32_t checkpoint_apply(struct kelp_checkpointer_event event);
bool checkpoint_undecided(void);
uint32_t checkpoint_simple(enum kelp_checkpointer_event_kind kind);
uint32_t checkpoint_tick(uint64_t ms);
uint32_t checkpoint_open_generation(uint64_t generation, uint64_t restore_version);
void checkpoint_begin(struct kelp_checkpointer_options options);
void checkpoint_teardown(void);
uint32_t checkpoint_progress(uint64_t step);
/* Steps up to that one, at so many milliseconds each; actions of all of them. */
uint32_t checkpoint_run_to(uint64_t step, uint64_t step_ms);
uint32_t checkpoint_report(int shard, enum kelp_checkpointer_answer answer);
uint32_t checkpoint_all_durable(void);
/* The answer to the commit of that order. */
uint32_t checkpoint_committed_order(uint64_t serial, enum kelp_checkpointer_result result);
uint32_t checkpoint_committed(enum kelp_checkpointer_result result);
/* From an order to the committed checkpoint. */
void checkpoint_make(void);
/* Training goes on until one is ordered. */
void checkpoint_make_due(void);
uint32_t checkpoint_request(bool pause);

#endif

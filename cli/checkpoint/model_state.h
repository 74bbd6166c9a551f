/*
 * The state S_v of a job in one piece: weights, optimizer slots, control state. What a checkpoint
 * holds in parts, and what a replay goes on from.
 */
#ifndef KELP_CLI_CHECKPOINT_MODEL_STATE_H
#define KELP_CLI_CHECKPOINT_MODEL_STATE_H

#include <stdint.h>

#include "common/tensors/digest.h"
#include "common/training/control.h"
#include "kernels/optimizer.h"

struct kelp_model_state {
    const struct kelp_job *job;   /* borrowed, as plan */
    const struct kelp_plan *plan; /* of the job */
    struct kelp_control_state control;
    float *weights; /* owned; plan->flat_count elements, as each slot */
    uint32_t slot_count;
    float *slots[KELP_OPTIMIZER_SLOTS_MAX]; /* owned */
};

/* Everything zero but the control state, which is c_0. Errors: KELP_ERR_NO_MEMORY. */
kelp_status kelp_model_state_init(struct kelp_model_state *state, const struct kelp_job *job,
                                  const struct kelp_plan *plan,
                                  struct kelp_error *reterr) KELP_MUST_USE;
/* All zero is fine too. */
void kelp_model_state_fini(struct kelp_model_state *state);

/* S_0. Errors: those of reading model.init. */
kelp_status kelp_model_state_begin(struct kelp_model_state *state,
                                   struct kelp_error *reterr) KELP_MUST_USE;

/* 64-byte aligned, zeroed, for free(). NULL: out of memory. */
float *kelp_model_state_vector(const struct kelp_plan *plan);

/* One tensor of the state: item 0 is its weights, item 1 + n its part of slot n. */
struct kelp_model_state_tensor {
    uint32_t tensor;
    uint32_t item;
};
/* Digest of name, shape and bytes, as in the model's. */
void kelp_model_state_tensor_digest(const struct kelp_model_state *state,
                                    const struct kelp_model_state_tensor *which,
                                    char ret_hex[KELP_DIGEST_HEX_BYTES]);
/* "linear.weight", "linear.weight (exp_avg)". */
void kelp_model_state_tensor_name(const struct kelp_model_state *state,
                                  const struct kelp_model_state_tensor *which, char *text,
                                  size_t text_bytes);

/* Digest and bytes of a partition, as a checkpoint has them (ps/storage/snapshot_store.h). */
void kelp_model_state_part_digest(const struct kelp_model_state *state, uint32_t partition,
                                  char ret_hex[KELP_DIGEST_HEX_BYTES], uint64_t *ret_bytes);
/* Digest of the whole state, as a manifest gives it. Errors: KELP_ERR_NO_MEMORY. */
kelp_status kelp_model_state_digest(const struct kelp_model_state *state,
                                    char ret_hex[KELP_DIGEST_HEX_BYTES],
                                    struct kelp_error *reterr) KELP_MUST_USE;

/*
 * The first tensor from *at on (weights of all tensors, then each slot) that differs in a bit
 * between two states of one layout: *at names it. Slots are compared when both have them under one
 * name. False when there is none left.
 */
bool kelp_model_state_difference(const struct kelp_model_state *a, const struct kelp_model_state *b,
                                 struct kelp_model_state_tensor *at);
/* Go to the one after it. */
void kelp_model_state_next(const struct kelp_model_state *state,
                           struct kelp_model_state_tensor *at);

#endif

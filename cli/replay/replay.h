/*
 * A job computed in one process without a network, by the code of workers and shards: the same
 * lanes (worker/compute/lanes.h), added in the same order, the same optimizer and control state.
 * What a run did can be computed again from any state of it, entry by entry, to the same bits.
 *
 * Threads: one at a time.
 */
#ifndef KELP_CLI_REPLAY_REPLAY_H
#define KELP_CLI_REPLAY_REPLAY_H

#include "cli/checkpoint/model_state.h"
#include "common/training/control.h"

struct kelp_replay;

/*
 * Read the job's data and stand at version 0. job is borrowed; its cluster.* but lanes and
 * max_shards make no difference.
 * Errors: those of data set, model and plan; those of reading model.init.
 */
kelp_status kelp_replay_create(const struct kelp_job *job, struct kelp_replay **ret_replay,
                               struct kelp_error *reterr) KELP_MUST_USE;
void kelp_replay_destroy(struct kelp_replay *replay); /* NULL does nothing */

/* The job's plan with the data and the compute kind of this machine. Borrowed. */
const struct kelp_plan *kelp_replay_plan(const struct kelp_replay *replay);

/* Where it stands. Borrowed; to begin elsewhere, fill it in: what follows is computed from it. */
struct kelp_model_state *kelp_replay_state(struct kelp_replay *replay);

/*
 * Compute one entry. ret_record is what a run has on record for it, with the digest of the weights
 * before it when that is due. Must not be called at the end (control.kind KELP_STEP_DONE).
 * Errors: KELP_ERR_INVALID (the gradient is not finite; the text names the first lane
 *         and tensor; nothing was applied), KELP_ERR_NO_MEMORY,
 *         KELP_ERR_DEVICE, those of reading samples.
 */
kelp_status kelp_replay_entry(struct kelp_replay *replay, struct kelp_record *ret_record,
                              struct kelp_error *reterr) KELP_MUST_USE;

/*
 * Compute entries up to the state in which so many training steps are complete and the next entry
 * is a training step or the end of the job is reached: evaluations behind the step are done.
 */
kelp_status kelp_replay_to_step(struct kelp_replay *replay, uint64_t step,
                                struct kelp_error *reterr) KELP_MUST_USE;

/* The digest of the model where it stands. */
void kelp_replay_digest(const struct kelp_replay *replay, char ret_hex[KELP_DIGEST_HEX_BYTES]);

#endif

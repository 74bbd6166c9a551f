/*
 * Which weights a worker holds, and which it requests next. Pure: answers in, pull requests out.
 *
 * A worker pushes version v only with w_v of every partition, in one generation. Two partitions may
 * be one training step apart, and a partition may lack lanes that only this worker can compute. So
 * a worker that starts (or lost track) asks every partition for its current step, takes the
 * *lowest* one, and asks the others for that step, which they still keep. Taking the highest could
 * hang forever. A worker that holds w_v requests the next step and waits.
 *
 *     SCANNING --all answered--> GATHERING --all of one step--> HOLDING --next()--> GATHERING ...
 *         ^------------------------- "no longer readable", restart ------------------|
 *
 * In a job whose steps need a decision over all partitions (kelp_sync_decide()), it also carries
 * their shares to partition 0, and the next word, which has the decision, to the others, by
 * repeating its pulls.
 *
 * Weights arrive in a separate buffer (the caller's "next" vector), so that w_v stays complete
 * until w_{v+1} is.
 */
#ifndef KELP_WORKER_CORE_SYNC_H
#define KELP_WORKER_CORE_SYNC_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/training/control.h"

enum kelp_sync_state {
    KELP_SYNC_SCANNING,  /* every partition was asked for its current step */
    KELP_SYNC_GATHERING, /* the step to hold is known, some of its weights are missing */
    KELP_SYNC_HOLDING,   /* word and weights are complete */
};

/* What to ask one partition for; the fields of PullItem in kelp.proto. */
struct kelp_sync_pull {
    uint32_t partition;
    enum {
        KELP_SYNC_PULL_CURRENT,
        KELP_SYNC_PULL_STEP,
        KELP_SYNC_PULL_VERSION,
        KELP_SYNC_PULL_SHARE
    } mode;
    uint64_t step;
    uint64_t version;
    bool holds;
    uint64_t held_step;
};

/* One partition's answer; word is NULL but for partition 0. */
struct kelp_sync_answer {
    uint32_t partition;
    kelp_status status;
    uint64_t step;         /* label of the weights */
    uint64_t current_step; /* newest that the partition has */
    bool has_weights;
    const struct kelp_control_word *word;
    bool is_share; /* to KELP_SYNC_PULL_SHARE: values are the share in the decision on `step` */
    /* With a word: what was decided about the training step before it. Borrowed. */
    const double *values;
    uint32_t value_count;
};

struct kelp_sync;

/* NULL: out of memory. The state is SCANNING, with pulls for every partition. */
struct kelp_sync *kelp_sync_create(uint32_t partition_count);
void kelp_sync_destroy(struct kelp_sync *sync);

/* The job's training steps need decisions, of so many values. Once, at the beginning. Errors:
 * KELP_ERR_NO_MEMORY. */
kelp_status kelp_sync_decide(struct kelp_sync *sync, uint32_t value_count) KELP_MUST_USE;
/* The word to send with pulls, when it is another one than that of the weights held, with the
 * decision that it came with; or NULL. Borrowed until the next answer. */
const struct kelp_control_word *kelp_sync_news(const struct kelp_sync *sync,
                                               struct kelp_step_decision *ret_decision);
/* True once, when the shares of all partitions but 0 are there (and after kelp_sync_reask() of 0):
 * to be sent to partition 0, with the word of the weights held. */
bool kelp_sync_shares_due(struct kelp_sync *sync);
const struct kelp_decision_share *kelp_sync_share(const struct kelp_sync *sync, uint32_t partition);

/* Forget everything, also what is held: a new generation, or lost track. */
void kelp_sync_restart(struct kelp_sync *sync);

/*
 * Take an answer. Returns true if the caller must keep the weights that came with it: copy them to
 * the "next" vector (or, for partition 0 when they are held already, nothing came and nothing is
 * kept). Answers that do not fit what is asked for are ignored.
 */
bool kelp_sync_take(struct kelp_sync *sync, const struct kelp_sync_answer *answer);

enum kelp_sync_state kelp_sync_state(const struct kelp_sync *sync);
const char *kelp_sync_state_name(enum kelp_sync_state state);

/*
 * True once, when GATHERING completed: the state is HOLDING and *ret_word is the word to work on.
 * *ret_swap says whether the "next" vector holds the weights now (false after an evaluation, which
 * leaves them as they are).
 */
bool kelp_sync_complete(struct kelp_sync *sync, struct kelp_control_word *ret_word, bool *ret_swap);

/*
 * GATHERING what follows a training step: its word and the weights of partition 0 are there, others
 * may be missing. For as long as this says so, with the same word, what is there stays as it is,
 * and what comes is of the same step.
 */
bool kelp_sync_begun(const struct kelp_sync *sync, struct kelp_control_word *ret_word);

/* HOLDING: ask for what follows the held word. The word stays valid for computing more lanes. */
void kelp_sync_next(struct kelp_sync *sync);

/*
 * A partition offers lanes of a step of which the weights are labelled `step`: so it is there
 * still. When something newer is being gathered, and no weights are held, ask all of them again
 * what they have, to go back to the lower one (nobody else may be able to compute them). Returns
 * whether it did.
 */
bool kelp_sync_offered(struct kelp_sync *sync, uint64_t step);

/* The stream to a partition's shard is new: ask again for what is still missing from it. */
void kelp_sync_reask(struct kelp_sync *sync, uint32_t partition);

/* Take the next pull that must be sent for this partition; false if there is no more: at most two.
 */
bool kelp_sync_pull(struct kelp_sync *sync, uint32_t partition, struct kelp_sync_pull *ret_pull);

#endif

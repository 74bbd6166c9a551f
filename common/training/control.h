/*
 * The control state c_v and the control word of a version, which define the entries of the
 * schedule. Pure: no clock, no I/O. Partition 0 holds the state; the word travels with weights,
 * pushes and pulls. Nothing else decides what a step is.
 *
 * run.mode train: the training steps of each epoch in order. After the steps for which
 * kelp_control_evaluates_after() is true, one evaluation of the validation split and one of the
 * test split follow, if these have samples. Training ends with the last epoch, at train.max_steps,
 * or after an evaluation when train.patience is exhausted. run.mode evaluate: one evaluation of
 * each split. run.mode predict: blocks of train.batch_size samples of run.part, in order. The last
 * entry is FINISH, which has only the digest of the final weights; after it the job is done.
 */
#ifndef KELP_COMMON_TRAINING_CONTROL_H
#define KELP_COMMON_TRAINING_CONTROL_H

#include <stdint.h>

#include "common/job/job.h"
#include "common/training/decision_share.h"
#include "common/training/metrics.h"
#include "common/training/plan.h"

/* After this many lines of metrics.every they become half as frequent, and so again after as many
 * further steps, so that the record of a long run stays readable. */
#define KELP_METRICS_LINES_DENSE (1u << 18)

enum kelp_step_kind {
    KELP_STEP_TRAIN = 1,
    KELP_STEP_EVALUATE_VAL = 2,
    KELP_STEP_EVALUATE_TEST = 3,
    KELP_STEP_FINISH = 4,
    KELP_STEP_DONE = 5,    /* nothing to compute: the state after the last entry */
    KELP_STEP_PREDICT = 6, /* the model's output for a block of samples; the sums count them */
};
#define KELP_STEP_KIND_MAX KELP_STEP_PREDICT

struct kelp_control_word {
    uint64_t version; /* completed entries before this one */
    uint64_t step;    /* completed training steps before this one: labels the weights */
    enum kelp_step_kind kind;
    uint32_t epoch;         /* 0-based; evaluations and FINISH belong to the epoch before them */
    uint64_t step_in_epoch; /* TRAIN: 0-based; others: steps of an epoch that is not complete */
    uint64_t sample_first;  /* TRAIN: position of the batch in the epoch's order; PREDICT: of the
                               block in the split; evaluation: 0 */
    uint64_t sample_count;  /* samples of this step over all lanes; 0 for FINISH and DONE */
    double lr;              /* TRAIN only */
    bool skipped;           /* the training step before this entry was skipped: its gradient was not
                               finite, and w_step is w_{step-1} (failure.on_nan: skip) */
    uint64_t steps_skipped; /* training steps skipped before this entry; for people only, does not
                               identify the entry */
    bool digest_due;        /* report the digest of w_v with the node that holds lane 0: at the
                               first entry after an epoch's last training step, with evaluations, at
                               training steps that are a multiple of checkpoint.digest_steps, and at
                               FINISH */
};

/* The evaluation with the best train.monitor of the validation split so far. */
struct kelp_best {
    bool known;
    uint64_t step;  /* completed training steps */
    uint32_t epoch; /* 0-based, as the evaluation's word has it */
    struct kelp_metrics val;
    struct kelp_metrics test; /* of the same weights; none present until measured */
};

struct kelp_control_state {
    uint64_t version;
    uint64_t step;
    uint32_t epoch;
    uint64_t step_in_epoch;   /* completed steps of this epoch */
    enum kelp_step_kind kind; /* of the entry `version` */
    double epoch_loss;        /* sums of KELP_METRIC_SUM_LOSS and _SAMPLES over the epoch so far */
    double epoch_samples;
    uint64_t steps_skipped; /* of the whole run, as far as its programs counted them */
    double window_loss;     /* as epoch_loss and epoch_samples, since the last line of */
    double window_samples;  /* metrics.every */
    bool skipped;           /* the newest training step was skipped */
    bool stopped;           /* train.patience is exhausted: training is over */
    struct kelp_best best;
    struct kelp_best best_before; /* without an evaluation that takes place only because training
                                     ends: a job with more epochs does not have it */
    double patience_best;         /* train.monitor, for train.patience */
    uint32_t patience_count;      /* evaluations since */
    double plateau_best;          /* the same for the plateau schedule */
    uint32_t plateau_count;
    double plateau_lr;
};

/* The record of a completed entry, for metrics.jsonl and digests.jsonl. */
struct kelp_record {
    struct kelp_control_word word; /* of the completed entry */
    struct kelp_metrics metrics;   /* TRAIN: the loss only, over this step's samples */
    bool best;                     /* VAL: the best so far; TEST: of the same weights as that one */
    bool skipped;                  /* TRAIN: skipped; its loss is not part of the epoch's */
    bool epoch_end;     /* the epoch's last training step, or the job's: epoch_loss is set */
    double epoch_loss;  /* mean over the samples of the epoch's steps that were not skipped; NaN:
                           there are none */
    bool window_end;    /* TRAIN: a multiple of metrics.every; window_loss is set */
    double window_loss; /* the same over the steps since the previous multiple */
    char digest[33];    /* of the weights *before* the entry (w_v), or "" when not due */
};

/* Set *state to c_0. Cannot fail: values out of range were refused with the job file. */
void kelp_control_init(struct kelp_control_state *state, const struct kelp_job *job,
                       const struct kelp_plan *plan);

/* Set *ret_word to the word of state->version. */
void kelp_control_word(const struct kelp_control_state *state, const struct kelp_job *job,
                       const struct kelp_plan *plan, struct kelp_control_word *ret_word);

/*
 * Complete the current entry with its reduced sums; digest was reported with lane 0 ("" if none).
 * state becomes c_{v+1}. Must not be called on DONE.
 */
void kelp_control_apply(struct kelp_control_state *state, const struct kelp_job *job,
                        const struct kelp_plan *plan, const double sums[KELP_METRIC_SUM_COUNT],
                        const char *digest, struct kelp_record *ret_record);

/* The same for a training step that is skipped: it counts as a step, and nothing else. Its sums
 * are for the record only, since they may not be finite. */
void kelp_control_skip(struct kelp_control_state *state, const struct kelp_job *job,
                       const struct kelp_plan *plan, const double sums[KELP_METRIC_SUM_COUNT],
                       const char *digest, struct kelp_record *ret_record);

/*
 * The state as bytes, for checkpoints: fixed width, little-endian, with a number for the layout.
 */
#define KELP_CONTROL_BYTES 512
void kelp_control_pack(const struct kelp_control_state *state, unsigned char *ret_bytes);
/*
 * Checked against the job: the kind is one that the counters allow, and versions and steps are
 * those that this job has there. A job with more epochs than the one that made the state goes on:
 * what stood at FINISH or DONE becomes the first entry of the next epoch, with the version that an
 * undisturbed run of the longer job gives it. Errors: KELP_ERR_CORRUPT (no state of any job),
 * KELP_ERR_MISMATCH (of a job with another schedule), KELP_ERR_UNSUPPORTED (another layout).
 */
kelp_status kelp_control_unpack(const unsigned char *bytes, const struct kelp_job *job,
                                const struct kelp_plan *plan, struct kelp_control_state *ret_state,
                                struct kelp_error *reterr) KELP_MUST_USE;

/* Do these bytes, which have been unpacked, hold the state of that version and step? As they were
 * written: a job with more epochs numbers the end of a shorter one otherwise. */
bool kelp_control_packed_at(const unsigned char *bytes, uint64_t version, uint64_t step);

/* The same entry: steps_skipped is not compared. */
bool kelp_control_word_equal(const struct kelp_control_word *a, const struct kelp_control_word *b);

/* Training must not go on (failure.on_nan: skip): an epoch, or training, is over, and of the run's
 * steps more were skipped than applied. */
bool kelp_control_gives_up(const struct kelp_control_state *state, const struct kelp_job *job,
                           const struct kelp_plan *plan);

/* Epochs that the weights w_v of this word have seen to the end: "epoch" of digests.jsonl. */
uint32_t kelp_control_word_epochs(const struct kelp_control_word *word);

/* ---- the entries of a job, in numbers (common/training/control_entries.c) * ---- */

/* Has this part samples, and are they measured? */
bool kelp_control_evaluates(const struct kelp_job *job, const struct kelp_plan *plan,
                            enum kelp_split part);

/* Training steps of one epoch (at most train.batches_per_epoch) and of the whole job, if nothing
 * stops it early. */
uint64_t kelp_control_steps_per_epoch(const struct kelp_job *job, const struct kelp_plan *plan);
uint64_t kelp_control_total_steps(const struct kelp_job *job, const struct kelp_plan *plan);

/* Is it the turn of the evaluations once `step` training steps are complete: by
 * train.evaluate_steps or train.evaluate_epochs, whether training ends there or not? */
bool kelp_control_evaluation_due(const struct kelp_job *job, const struct kelp_plan *plan,
                                 uint64_t step);
/* Do evaluations follow that step: because it is their turn, or training ends with it? */
bool kelp_control_evaluates_after(const struct kelp_job *job, const struct kelp_plan *plan,
                                  uint64_t step);

/* Entries before the one that follows step `step` (completed ones) and its evaluations, by their
 * turn alone: the version of the next training step. */
uint64_t kelp_control_version_after(const struct kelp_job *job, const struct kelp_plan *plan,
                                    uint64_t step);

/* run.mode predict: its blocks. */
uint64_t kelp_control_predict_blocks(const struct kelp_job *job, const struct kelp_plan *plan);

/*
 * Can this job do what it says with the data that there are? Errors: KELP_ERR_INVALID (the text
 * names the key).
 */
kelp_status kelp_control_check(const struct kelp_job *job, const struct kelp_plan *plan,
                               struct kelp_error *reterr) KELP_MUST_USE;

/* Internal: after the evaluations, or where there are none: on to the next step, or FINISH. */
void kelp__control_next_step(struct kelp_control_state *state, const struct kelp_job *job,
                             const struct kelp_plan *plan);

#endif

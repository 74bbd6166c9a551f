/*
 * The control state c_v and the control word of a version: what an entry of the schedule is.
 * Pure: no clock, no I/O. Partition 0 holds the state; the word travels with weights, pushes and
 * pulls; nobody else decides what a step is.
 *
 * Entries of one epoch, in order: its training steps, then (train.evaluate) one evaluation of the
 * validation part and one of the test part where these have samples. After the last epoch comes
 * one FINISH entry, whose only content is the digest of the final weights. After it the job is
 * done.
 */
#ifndef KELP_COMMON_CONTROL_H
#define KELP_COMMON_CONTROL_H

#include <stdint.h>

#include "common/job.h"
#include "common/plan.h"

enum kelp_step_kind {
    KELP_STEP_TRAIN = 1,
    KELP_STEP_EVALUATE_VAL = 2,
    KELP_STEP_EVALUATE_TEST = 3,
    KELP_STEP_FINISH = 4,
    KELP_STEP_DONE = 5, /* nothing to compute: the state after the last entry */
};

/*
 * Sums that travel with every node pushed to partition 0, added along the tree in double. A
 * forecast is what enum kelp_loss_sum (kernels/operators.h) compares with the target. On the wire
 * zeros at the end are left out, so that training steps, which have no histogram, carry a handful.
 */
#define KELP_METRIC_BINS 512
enum kelp_metric {
    KELP_METRIC_LOSS,             /* sum over samples of the sample's loss */
    KELP_METRIC_SAMPLES,          /* samples */
    KELP_METRIC_SQUARED,          /* sum over elements of the squared error */
    KELP_METRIC_ABSOLUTE,         /* of the absolute error */
    KELP_METRIC_ELEMENTS,         /* elements of the target; a class is one */
    KELP_METRIC_RELATIVE,         /* of |error / target| */
    KELP_METRIC_RELATIVE_SQUARED, /* of its square */
    KELP_METRIC_TARGET,           /* of the target */
    KELP_METRIC_TARGET_SQUARED,   /* of its square */
    KELP_METRIC_CORRECT,          /* elements whose class is right */
    KELP_METRIC_SCALARS = 16,     /* up to here it is zero */
    /* Evaluations of one score for each sample (one element, or two classes): samples by score, in
     * equal bins over [0, 1], of those whose target is below 0.5 (class 0) and of the others. */
    KELP_METRIC_NEGATIVE = KELP_METRIC_SCALARS,
    KELP_METRIC_POSITIVE = KELP_METRIC_NEGATIVE + KELP_METRIC_BINS,
    KELP_METRIC_COUNT = KELP_METRIC_POSITIVE + KELP_METRIC_BINS
};

/* The bin of a score: 0 also for what lies below (NaN too), the last one for what lies above. */
static inline uint32_t kelp_metric_bin(double score)
{
    double at = score * KELP_METRIC_BINS;
    return !(at > 0) ? 0 : at >= KELP_METRIC_BINS ? KELP_METRIC_BINS - 1 : (uint32_t)at;
}

/* How many of the first `count` sums are left without the zeros at the end (+0, not -0, so that
 * sums come to the same bits however they travelled). */
uint32_t kelp_metric_trim(const double *sums, uint32_t count);

struct kelp_control_word {
    uint64_t version; /* completed entries before this one */
    uint64_t step;    /* completed training steps before this one: labels the weights */
    enum kelp_step_kind kind;
    uint32_t epoch;         /* 0-based; evaluations and FINISH belong to the epoch before them */
    uint64_t step_in_epoch; /* 0-based, TRAIN alone */
    uint64_t sample_first;  /* TRAIN: position of the batch in the epoch's order; evaluation: 0 */
    uint64_t sample_count;  /* samples of this step over all lanes; 0 for FINISH and DONE */
    double lr;              /* TRAIN alone */
    bool skipped;    /* the training step before this entry was left out: its gradient was not
                        finite, and w_step is w_{step-1} (failure.on_nan: skip) */
    bool digest_due; /* the digest of w_v is to be reported with the node that holds lane 0: at the
                        first entry after an epoch's last training step, at training steps that are
                        a multiple of checkpoint.digest_steps, and at FINISH */
};

struct kelp_control_state {
    uint64_t version;
    uint64_t step;
    uint32_t epoch;
    uint64_t step_in_epoch;
    enum kelp_step_kind kind; /* of the entry `version` */
    double epoch_loss;        /* sums of KELP_METRIC_LOSS and _SAMPLES over the epoch so far */
    double epoch_samples;
    /* Per part: loss, mse, mae of the latest evaluation (train: loss over the latest epoch). */
    double last[KELP_PART_COUNT][3];
    bool last_set[KELP_PART_COUNT];
    bool skipped;        /* the newest training step was left out */
    double best_val_mse; /* infinity until the validation part was evaluated */
    uint32_t best_epoch; /* 0-based */
};

/* What completing an entry tells the outside, for metrics.jsonl and digests.jsonl. */
struct kelp_record {
    struct kelp_control_word word; /* of the completed entry */
    double loss; /* TRAIN: mean over this step's samples; evaluation: over the part */
    double mse;  /* evaluation, over all elements */
    double mae;
    bool skipped;      /* TRAIN: left out; its loss is not part of the epoch's */
    bool epoch_end;    /* the epoch's last training step: epoch_loss is set */
    double epoch_loss; /* mean over the epoch's samples */
    char digest[33];   /* of the weights *before* the entry (w_v), or "" when not due */
};

/* c_0. Errors do not exist: what is out of range was refused with the job file. */
void kelp_control_init(struct kelp_control_state *state, const struct kelp_job *job,
                       const struct kelp_plan *plan);

/* The word of state->version. */
void kelp_control_word(const struct kelp_control_state *state, const struct kelp_job *job,
                       const struct kelp_plan *plan, struct kelp_control_word *ret_word);

/*
 * Complete the current entry with its reduced sums; digest is what the pusher of lane 0 reported
 * ("" if none). state becomes c_{v+1}. Must not be called on DONE.
 */
void kelp_control_apply(struct kelp_control_state *state, const struct kelp_job *job,
                        const struct kelp_plan *plan, const double sums[KELP_METRIC_COUNT],
                        const char *digest, struct kelp_record *ret_record);

/* The same for a training step that is left out: it counts as a step, and nothing else. Its sums
 * are for the record alone, since they may not be finite. */
void kelp_control_skip(struct kelp_control_state *state, const struct kelp_job *job,
                       const struct kelp_plan *plan, const double sums[KELP_METRIC_COUNT],
                       const char *digest, struct kelp_record *ret_record);

/*
 * What one partition knows of a step that needs a decision over all partitions: numbers that follow
 * from its gradient alone.
 */
#define KELP_STEP_PART_VALUES_MAX 4
#define KELP_STEP_PART_FINITE     0 /* 1: its gradient is finite, 0: it is not */
struct kelp_step_part {
    uint32_t count;
    double values[KELP_STEP_PART_VALUES_MAX];
};
/* Does a training step of this job need one? */
bool kelp_control_decides(const struct kelp_job *job);

/*
 * The state as bytes, for checkpoints: fixed width, little-endian, with a number for the layout.
 */
#define KELP_CONTROL_BYTES 256
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

/* Internal: all entries of the epoch are behind it; on to the next epoch's first one, or FINISH. */
void kelp__control_end_epoch(struct kelp_control_state *state, const struct kelp_job *job,
                             const struct kelp_plan *plan);

bool kelp_control_word_equal(const struct kelp_control_word *a, const struct kelp_control_word *b);

/* The learning rate of an epoch (0-based) by the job's schedule. */
double kelp_control_lr(const struct kelp_job *job, uint32_t epoch);

/* Epochs that the weights w_v of this word have seen to the end: "epoch" of digests.jsonl. */
uint32_t kelp_control_word_epochs(const struct kelp_control_word *word);

/* Entries of one epoch: its training steps and evaluations. */
uint64_t kelp_control_entries_per_epoch(const struct kelp_job *job, const struct kelp_plan *plan);

/* Training steps of one epoch and of the whole job. */
uint64_t kelp_control_steps_per_epoch(const struct kelp_job *job, const struct kelp_plan *plan);
uint64_t kelp_control_total_steps(const struct kelp_job *job, const struct kelp_plan *plan);

#endif

#include "common/control.h"

#include <assert.h>
#include <math.h>
#include <string.h>

static bool evaluates(const struct kelp_job *job, const struct kelp_plan *plan, enum kelp_part part)
{
    return job->train.evaluate && plan->samples[part] > 0;
}

uint64_t kelp_control_steps_per_epoch(const struct kelp_job *job, const struct kelp_plan *plan)
{
    assert(job->train.batch_size > 0);
    uint64_t samples = plan->samples[KELP_PART_TRAIN];
    uint64_t steps = samples / job->train.batch_size;

    return steps + (!job->train.drop_last && samples % job->train.batch_size != 0 ? 1 : 0);
}

uint64_t kelp_control_entries_per_epoch(const struct kelp_job *job, const struct kelp_plan *plan)
{
    return kelp_control_steps_per_epoch(job, plan) + evaluates(job, plan, KELP_PART_VAL) +
           evaluates(job, plan, KELP_PART_TEST);
}

uint64_t kelp_control_total_steps(const struct kelp_job *job, const struct kelp_plan *plan)
{
    return job->train.epochs * kelp_control_steps_per_epoch(job, plan);
}

/* All entries of the epoch are behind us. */
static void end_epoch(struct kelp_control_state *state, const struct kelp_job *job)
{
    if (state->epoch + 1 >= job->train.epochs) {
        state->kind = KELP_STEP_FINISH;
        return;
    }
    state->epoch++;
    state->step_in_epoch = 0;
    state->epoch_loss = 0;
    state->epoch_samples = 0;
    state->kind = KELP_STEP_TRAIN;
}

/* From the entry that state->kind names, go on to the first one that has something to compute. */
static void settle(struct kelp_control_state *state, const struct kelp_job *job,
                   const struct kelp_plan *plan)
{
    uint64_t steps = kelp_control_steps_per_epoch(job, plan);

    for (;;) {
        switch (state->kind) {
        case KELP_STEP_TRAIN:
            if (state->step_in_epoch < steps) {
                return;
            }
            state->kind = KELP_STEP_EVALUATE_VAL;
            break;
        case KELP_STEP_EVALUATE_VAL:
            if (evaluates(job, plan, KELP_PART_VAL)) {
                return;
            }
            state->kind = KELP_STEP_EVALUATE_TEST;
            break;
        case KELP_STEP_EVALUATE_TEST:
            if (evaluates(job, plan, KELP_PART_TEST)) {
                return;
            }
            end_epoch(state, job);
            break;
        case KELP_STEP_FINISH:
        case KELP_STEP_DONE:
            return;
        }
    }
}

void kelp__control_end_epoch(struct kelp_control_state *state, const struct kelp_job *job,
                             const struct kelp_plan *plan)
{
    end_epoch(state, job);
    settle(state, job, plan);
}

void kelp_control_init(struct kelp_control_state *state, const struct kelp_job *job,
                       const struct kelp_plan *plan)
{
    assert(job->train.epochs > 0);

    memset(state, 0, sizeof(*state));
    state->kind = KELP_STEP_TRAIN;
    state->best_val_mse = INFINITY;
    settle(state, job, plan);
}

double kelp_control_lr(const struct kelp_job *job, uint32_t epoch)
{
    switch (job->train.schedule) {
    case KELP_SCHEDULE_CONSTANT:
        return job->train.lr;
    default: /* refused by kelp_job_file_finish() */
    case KELP_SCHEDULE_TYPE1:
        /* The article's code adjusts after epoch e (0-based) to lr / 2^e, so that the first two
         * epochs have the full rate. Powers of two are exact. */
        return epoch < 2 ? job->train.lr
                         : ldexp(job->train.lr, epoch < 4096 ? 1 - (int)epoch : -4096);
    }
    assert(false && "schedule kind");
    return job->train.lr;
}

static bool digest_due(const struct kelp_control_state *state, const struct kelp_job *job,
                       const struct kelp_plan *plan)
{
    bool val = evaluates(job, plan, KELP_PART_VAL);
    bool test = evaluates(job, plan, KELP_PART_TEST);

    switch (state->kind) {
    case KELP_STEP_TRAIN:
        if (state->step == 0) {
            return false;
        }
        if (state->step_in_epoch == 0) {
            return !val && !test; /* else the epoch's evaluation has reported these weights */
        }
        return job->checkpoint.digest_steps > 0 && state->step % job->checkpoint.digest_steps == 0;
    case KELP_STEP_EVALUATE_VAL:
        return true;
    case KELP_STEP_EVALUATE_TEST:
        return !val;
    case KELP_STEP_FINISH:
        return true;
    case KELP_STEP_DONE:
        return false;
    }
    assert(false && "step kind");
    return false;
}

void kelp_control_word(const struct kelp_control_state *state, const struct kelp_job *job,
                       const struct kelp_plan *plan, struct kelp_control_word *ret_word)
{
    struct kelp_control_word word;

    memset(&word, 0, sizeof(word));
    word.version = state->version;
    word.step = state->step;
    word.kind = state->kind;
    word.epoch = state->epoch;
    word.skipped = state->skipped;
    word.digest_due = digest_due(state, job, plan);
    switch (state->kind) {
    case KELP_STEP_TRAIN: {
        uint64_t first = state->step_in_epoch * job->train.batch_size;
        uint64_t left = plan->samples[KELP_PART_TRAIN] - first;
        assert(first < plan->samples[KELP_PART_TRAIN]);
        word.step_in_epoch = state->step_in_epoch;
        word.sample_first = first;
        word.sample_count = left < job->train.batch_size ? left : job->train.batch_size;
        word.lr = kelp_control_lr(job, state->epoch);
        break;
    }
    case KELP_STEP_EVALUATE_VAL:
        word.sample_count = plan->samples[KELP_PART_VAL];
        break;
    case KELP_STEP_EVALUATE_TEST:
        word.sample_count = plan->samples[KELP_PART_TEST];
        break;
    case KELP_STEP_FINISH:
    case KELP_STEP_DONE:
        break;
    }
    *ret_word = word;
}

uint32_t kelp_metric_trim(const double *sums, uint32_t count)
{
    while (count > 0 && sums[count - 1] == 0.0 && !signbit(sums[count - 1])) {
        count--;
    }
    return count;
}

static double mean(double sum, double count)
{
    return count > 0 ? sum / count : 0.0;
}

static void apply_train(struct kelp_control_state *state, const struct kelp_job *job,
                        const struct kelp_plan *plan, const double sums[KELP_METRIC_COUNT],
                        struct kelp_record *record)
{
    state->skipped = record->skipped;
    if (!record->skipped) {
        state->epoch_loss += sums[KELP_METRIC_LOSS];
        state->epoch_samples += sums[KELP_METRIC_SAMPLES];
    }
    state->step++;
    state->step_in_epoch++;
    if (state->step_in_epoch == kelp_control_steps_per_epoch(job, plan)) {
        record->epoch_end = true;
        record->epoch_loss = mean(state->epoch_loss, state->epoch_samples);
        state->last[KELP_PART_TRAIN][0] = record->epoch_loss;
        state->last_set[KELP_PART_TRAIN] = true;
    }
}

static void apply_evaluation(struct kelp_control_state *state, enum kelp_part part,
                             const double sums[KELP_METRIC_COUNT], struct kelp_record *record)
{
    record->mse = mean(sums[KELP_METRIC_SQUARED], sums[KELP_METRIC_ELEMENTS]);
    record->mae = mean(sums[KELP_METRIC_ABSOLUTE], sums[KELP_METRIC_ELEMENTS]);
    state->last[part][0] = record->loss;
    state->last[part][1] = record->mse;
    state->last[part][2] = record->mae;
    state->last_set[part] = true;
    if (part == KELP_PART_VAL && record->mse < state->best_val_mse) {
        state->best_val_mse = record->mse;
        state->best_epoch = state->epoch;
    }
}

static void complete(struct kelp_control_state *state, const struct kelp_job *job,
                     const struct kelp_plan *plan, const double sums[KELP_METRIC_COUNT],
                     const char *digest, bool skipped, struct kelp_record *ret_record)
{
    assert(state->kind != KELP_STEP_DONE);
    struct kelp_record record;

    memset(&record, 0, sizeof(record));
    record.skipped = skipped;
    kelp_control_word(state, job, plan, &record.word);
    record.loss = mean(sums[KELP_METRIC_LOSS], sums[KELP_METRIC_SAMPLES]);
    memcpy(record.digest, digest, strnlen(digest, sizeof(record.digest) - 1));
    state->version++;
    switch (state->kind) {
    case KELP_STEP_TRAIN:
        apply_train(state, job, plan, sums, &record);
        break;
    case KELP_STEP_EVALUATE_VAL:
        apply_evaluation(state, KELP_PART_VAL, sums, &record);
        state->kind = KELP_STEP_EVALUATE_TEST;
        break;
    case KELP_STEP_EVALUATE_TEST:
        apply_evaluation(state, KELP_PART_TEST, sums, &record);
        end_epoch(state, job);
        break;
    case KELP_STEP_FINISH:
        state->kind = KELP_STEP_DONE;
        break;
    case KELP_STEP_DONE:
        break;
    }
    settle(state, job, plan);
    *ret_record = record;
}

void kelp_control_apply(struct kelp_control_state *state, const struct kelp_job *job,
                        const struct kelp_plan *plan, const double sums[KELP_METRIC_COUNT],
                        const char *digest, struct kelp_record *ret_record)
{
    complete(state, job, plan, sums, digest, false, ret_record);
}

void kelp_control_skip(struct kelp_control_state *state, const struct kelp_job *job,
                       const struct kelp_plan *plan, const double sums[KELP_METRIC_COUNT],
                       const char *digest, struct kelp_record *ret_record)
{
    assert(state->kind == KELP_STEP_TRAIN);
    complete(state, job, plan, sums, digest, true, ret_record);
}

bool kelp_control_decides(const struct kelp_job *job)
{
    return job->failure.on_nan == KELP_NAN_SKIP;
}

/* Equal bits: a word that went over the wire must come back as the same double. */
static bool same_bits(double a, double b)
{
    uint64_t a_bits, b_bits;

    memcpy(&a_bits, &a, sizeof(a));
    memcpy(&b_bits, &b, sizeof(b));
    return a_bits == b_bits;
}

bool kelp_control_word_equal(const struct kelp_control_word *a, const struct kelp_control_word *b)
{
    return a->version == b->version && a->step == b->step && a->kind == b->kind &&
           a->epoch == b->epoch && a->step_in_epoch == b->step_in_epoch &&
           a->sample_first == b->sample_first && a->sample_count == b->sample_count &&
           same_bits(a->lr, b->lr) && a->skipped == b->skipped && a->digest_due == b->digest_due;
}

uint32_t kelp_control_word_epochs(const struct kelp_control_word *word)
{
    return word->kind == KELP_STEP_TRAIN ? word->epoch : word->epoch + 1;
}

#include "common/training/control.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "common/training/learning_rate.h"

/* As in PyTorch: smaller changes of the rate are not made. */
#define PLATEAU_EPS 1e-8

/* ---- from entry to entry ---- */

void kelp__control_next_step(struct kelp_control_state *state, const struct kelp_job *job,
                             const struct kelp_plan *plan)
{
    if (state->stopped || state->step >= kelp_control_total_steps(job, plan)) {
        state->kind = KELP_STEP_FINISH;
        return;
    }
    if (state->step_in_epoch == kelp_control_steps_per_epoch(job, plan)) {
        state->epoch++;
        state->step_in_epoch = 0;
        state->epoch_loss = 0;
        state->epoch_samples = 0;
    }
    state->kind = KELP_STEP_TRAIN;
}

/* From an evaluation, advance to the first one whose split has samples, or beyond them. */
static void settle_evaluation(struct kelp_control_state *state, const struct kelp_job *job,
                              const struct kelp_plan *plan)
{
    if (state->kind == KELP_STEP_EVALUATE_VAL &&
        !kelp_control_evaluates(job, plan, KELP_SPLIT_VAL)) {
        state->kind = KELP_STEP_EVALUATE_TEST;
    }
    if (state->kind == KELP_STEP_EVALUATE_TEST &&
        !kelp_control_evaluates(job, plan, KELP_SPLIT_TEST)) {
        kelp__control_next_step(state, job, plan);
    }
}

static void after_training(struct kelp_control_state *state, const struct kelp_job *job,
                           const struct kelp_plan *plan)
{
    if (!kelp_control_evaluates_after(job, plan, state->step)) {
        kelp__control_next_step(state, job, plan);
        return;
    }
    if (!kelp_control_evaluation_due(job, plan, state->step)) {
        state->best_before = state->best;
    }
    state->kind = KELP_STEP_EVALUATE_VAL;
    settle_evaluation(state, job, plan);
}

void kelp_control_init(struct kelp_control_state *state, const struct kelp_job *job,
                       const struct kelp_plan *plan)
{
    bool larger = kelp_metric_larger(job, kelp_metric_monitored(job));

    memset(state, 0, sizeof(*state));
    state->patience_best = kelp_metric_worst(larger);
    state->plateau_best = kelp_metric_worst(larger);
    state->plateau_lr = job->train.lr;
    if (job->run.mode == KELP_RUN_PREDICT) {
        state->kind =
            kelp_control_predict_blocks(job, plan) > 0 ? KELP_STEP_PREDICT : KELP_STEP_FINISH;
    } else if (kelp_control_total_steps(job, plan) > 0) {
        state->kind = KELP_STEP_TRAIN;
    } else {
        after_training(state, job, plan);
    }
}

/* ---- the word ---- */

static bool digest_due(const struct kelp_control_state *state, const struct kelp_job *job,
                       const struct kelp_plan *plan)
{
    switch (state->kind) {
    case KELP_STEP_TRAIN:
        if (state->step == 0 || kelp_control_evaluation_due(job, plan, state->step)) {
            return false; /* the evaluation has reported these weights */
        }
        return state->step_in_epoch == 0 || (job->checkpoint.digest_steps > 0 &&
                                             state->step % job->checkpoint.digest_steps == 0);
    case KELP_STEP_EVALUATE_VAL:
        return true;
    case KELP_STEP_EVALUATE_TEST:
        return !kelp_control_evaluates(job, plan, KELP_SPLIT_VAL);
    case KELP_STEP_FINISH:
        return true;
    case KELP_STEP_PREDICT:
    case KELP_STEP_DONE:
        return false;
    }
    assert(false && "step kind");
    return false;
}

/* The learning rate of the current step. */
static double current_lr(const struct kelp_control_state *state, const struct kelp_job *job,
                         const struct kelp_plan *plan)
{
    const struct kelp_run_place place = {.epoch = state->epoch,
                                         .step = state->step,
                                         .epoch_total = job->train.epochs,
                                         .step_total = kelp_control_total_steps(job, plan),
                                         .plateau_lr = state->plateau_lr};
    return kelp_learning_rate(job, &place);
}

/* Samples [first, first + one batch) of `samples`. */
static void set_block(struct kelp_control_word *word, uint64_t first, uint64_t samples,
                      const struct kelp_job *job)
{
    assert(first < samples);
    uint64_t left = samples - first;

    word->sample_first = first;
    word->sample_count = left < job->train.batch_size ? left : job->train.batch_size;
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
    word.steps_skipped = state->steps_skipped;
    word.digest_due = digest_due(state, job, plan);
    if (state->kind == KELP_STEP_TRAIN ||
        state->step_in_epoch < kelp_control_steps_per_epoch(job, plan)) {
        word.step_in_epoch = state->step_in_epoch;
    }
    switch (state->kind) {
    case KELP_STEP_TRAIN:
        set_block(&word, state->step_in_epoch * job->train.batch_size,
                  plan->samples[KELP_SPLIT_TRAIN], job);
        word.lr = current_lr(state, job, plan);
        break;
    case KELP_STEP_EVALUATE_VAL:
        word.sample_count = plan->samples[KELP_SPLIT_VAL];
        break;
    case KELP_STEP_EVALUATE_TEST:
        word.sample_count = plan->samples[KELP_SPLIT_TEST];
        break;
    case KELP_STEP_PREDICT:
        set_block(&word, state->version * job->train.batch_size, plan->samples[job->run.part], job);
        break;
    case KELP_STEP_FINISH:
    case KELP_STEP_DONE:
        break;
    }
    *ret_word = word;
}

/* ---- completing an entry ---- */

static double mean(double sum, double count)
{
    return count > 0 ? sum / count : (double)NAN;
}

static void add_to_sums(struct kelp_control_state *state, const double *sums)
{
    state->epoch_loss += sums[KELP_METRIC_SUM_LOSS];
    state->epoch_samples += sums[KELP_METRIC_SUM_SAMPLES];
    state->window_loss += sums[KELP_METRIC_SUM_LOSS];
    state->window_samples += sums[KELP_METRIC_SUM_SAMPLES];
}

/* Depends only on the step, so that a prolonged run has the same lines. */
static bool is_window_end(const struct kelp_job *job, uint64_t step)
{
    uint64_t every = job->metrics.every;

    if (every == 0) {
        return false;
    }
    while (step / every > KELP_METRICS_LINES_DENSE) {
        every *= 2;
    }
    return step % every == 0;
}

/* At the end of a window, record the mean loss of its steps for metrics.every. */
static void end_window(struct kelp_control_state *state, const struct kelp_job *job,
                       struct kelp_record *record)
{
    if (!is_window_end(job, state->step)) {
        return;
    }
    record->window_end = true;
    record->window_loss = mean(state->window_loss, state->window_samples);
    state->window_loss = 0;
    state->window_samples = 0;
}

static void apply_train(struct kelp_control_state *state, const struct kelp_job *job,
                        const struct kelp_plan *plan, const double *sums,
                        struct kelp_record *record)
{
    kelp_metrics_set(&record->metrics, KELP_METRIC_LOSS,
                     mean(sums[KELP_METRIC_SUM_LOSS], sums[KELP_METRIC_SUM_SAMPLES]));
    state->skipped = record->skipped;
    if (record->skipped) {
        state->steps_skipped++;
    } else {
        add_to_sums(state, sums);
    }
    state->step++;
    state->step_in_epoch++;
    end_window(state, job, record);
    if (state->step_in_epoch == kelp_control_steps_per_epoch(job, plan) ||
        state->step == kelp_control_total_steps(job, plan)) {
        record->epoch_end = true;
        record->epoch_loss = mean(state->epoch_loss, state->epoch_samples);
    }
    after_training(state, job, plan);
}

/* Early stopping. Only scheduled evaluations count: one that is made because training ends stops
 * nothing. */
static void wait_for_better(struct kelp_control_state *state, const struct kelp_job *job,
                            bool larger, double value)
{
    if (job->train.patience == 0) {
        return;
    }
    if (kelp_metric_better(larger, value, state->patience_best, job->train.min_delta)) {
        state->patience_best = value;
        state->patience_count = 0;
        return;
    }
    state->patience_count++;
    state->stopped = state->patience_count >= job->train.patience;
}

/* PyTorch's ReduceLROnPlateau with a relative threshold. */
static void follow_plateau(struct kelp_control_state *state, const struct kelp_job *job,
                           bool larger, double value)
{
    if (job->train.schedule != KELP_SCHEDULE_PLATEAU) {
        return;
    }
    double delta =
        isinf(state->plateau_best) ? 0 : job->train.plateau_threshold * fabs(state->plateau_best);
    if (kelp_metric_better(larger, value, state->plateau_best, delta)) {
        state->plateau_best = value;
        state->plateau_count = 0;
        return;
    }
    if (++state->plateau_count <= job->train.plateau_patience) {
        return;
    }
    double lr = state->plateau_lr * job->train.plateau_factor;
    lr = lr > job->train.lr_min ? lr : job->train.lr_min;
    if (state->plateau_lr - lr > PLATEAU_EPS) {
        state->plateau_lr = lr;
    }
    state->plateau_count = 0;
}

static void apply_validation(struct kelp_control_state *state, const struct kelp_job *job,
                             const struct kelp_plan *plan, struct kelp_record *record)
{
    enum kelp_metric metric = kelp_metric_monitored(job);
    bool larger = kelp_metric_larger(job, metric);
    double value =
        kelp_metrics_have(&record->metrics, metric) ? record->metrics.of[metric] : (double)NAN;

    if (kelp_control_evaluation_due(job, plan, state->step)) {
        wait_for_better(state, job, larger, value);
        follow_plateau(state, job, larger, value);
    }
    record->best = state->best.known
                       ? kelp_metric_better(larger, value, state->best.val.of[metric], 0)
                       : isfinite(value);
    if (record->best) {
        state->best = (struct kelp_best){
            .known = true, .step = state->step, .epoch = state->epoch, .val = record->metrics};
    }
}

/* Begin the record of the current entry. */
static void begin_record(const struct kelp_control_state *state, const struct kelp_job *job,
                         const struct kelp_plan *plan, const char *digest,
                         struct kelp_record *ret_record)
{
    memset(ret_record, 0, sizeof(*ret_record));
    kelp_control_word(state, job, plan, &ret_record->word);
    memcpy(ret_record->digest, digest, strnlen(digest, sizeof(ret_record->digest) - 1));
}

static void measure(const struct kelp_job *job, const double *sums,
                    struct kelp_metrics *ret_metrics)
{
    if (job->model.kind == KELP_MODEL_PROGRAM) {
        kelp_metrics_of_given(job, sums, ret_metrics);
    } else {
        kelp_metrics_of_sums(sums, job->train.loss, ret_metrics);
    }
}

static void complete(struct kelp_control_state *state, const struct kelp_job *job,
                     const struct kelp_plan *plan, const double *sums, struct kelp_record *record)
{
    assert(state->kind != KELP_STEP_DONE);
    state->version++;
    switch (state->kind) {
    case KELP_STEP_TRAIN:
        apply_train(state, job, plan, sums, record);
        break;
    case KELP_STEP_EVALUATE_VAL:
        measure(job, sums, &record->metrics);
        apply_validation(state, job, plan, record);
        state->kind = KELP_STEP_EVALUATE_TEST;
        settle_evaluation(state, job, plan);
        break;
    case KELP_STEP_EVALUATE_TEST:
        measure(job, sums, &record->metrics);
        record->best = state->best.known && state->best.step == state->step;
        if (record->best) {
            state->best.test = record->metrics;
        }
        kelp__control_next_step(state, job, plan);
        break;
    case KELP_STEP_PREDICT:
        if (state->version == kelp_control_predict_blocks(job, plan)) {
            state->kind = KELP_STEP_FINISH;
        }
        break;
    case KELP_STEP_FINISH:
        state->kind = KELP_STEP_DONE;
        break;
    case KELP_STEP_DONE:
        break;
    }
}

void kelp_control_apply(struct kelp_control_state *state, const struct kelp_job *job,
                        const struct kelp_plan *plan, const double sums[KELP_METRIC_SUM_COUNT],
                        const char *digest, struct kelp_record *ret_record)
{
    begin_record(state, job, plan, digest, ret_record);
    complete(state, job, plan, sums, ret_record);
}

void kelp_control_skip(struct kelp_control_state *state, const struct kelp_job *job,
                       const struct kelp_plan *plan, const double sums[KELP_METRIC_SUM_COUNT],
                       const char *digest, struct kelp_record *ret_record)
{
    assert(state->kind == KELP_STEP_TRAIN);
    begin_record(state, job, plan, digest, ret_record);
    ret_record->skipped = true;
    complete(state, job, plan, sums, ret_record);
}

/* Compare bits: a word sent over the wire must come back as the same double. */
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

bool kelp_control_gives_up(const struct kelp_control_state *state, const struct kelp_job *job,
                           const struct kelp_plan *plan)
{
    bool over = state->kind == KELP_STEP_FINISH || state->step_in_epoch == 0 ||
                state->step_in_epoch == kelp_control_steps_per_epoch(job, plan) ||
                state->step == kelp_control_total_steps(job, plan);

    return job->failure.on_nan == KELP_NAN_SKIP && over &&
           state->steps_skipped > state->step - state->steps_skipped;
}

uint32_t kelp_control_word_epochs(const struct kelp_control_word *word)
{
    bool complete = word->kind != KELP_STEP_TRAIN && word->step_in_epoch == 0 && word->step > 0;
    return word->epoch + (complete ? 1 : 0);
}

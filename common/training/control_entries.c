/* Counts the entries of a job: where evaluations come between training steps. */
#include <assert.h>
#include <inttypes.h>

#include "common/training/control.h"

bool kelp_control_evaluates(const struct kelp_job *job, const struct kelp_plan *plan,
                            enum kelp_split part)
{
    bool metrics = job->train.evaluate || job->run.mode == KELP_RUN_EVALUATE;
    return metrics && plan->samples[part] > 0;
}

static uint64_t parts_evaluated(const struct kelp_job *job, const struct kelp_plan *plan)
{
    return (uint64_t)kelp_control_evaluates(job, plan, KELP_SPLIT_VAL) +
           kelp_control_evaluates(job, plan, KELP_SPLIT_TEST);
}

uint64_t kelp_control_steps_per_epoch(const struct kelp_job *job, const struct kelp_plan *plan)
{
    assert(job->train.batch_size > 0);
    uint64_t samples = plan->samples[KELP_SPLIT_TRAIN];
    uint64_t steps = samples / job->train.batch_size;

    steps += !job->train.drop_last && samples % job->train.batch_size != 0 ? 1 : 0;
    return job->train.batches_per_epoch > 0 && job->train.batches_per_epoch < steps
               ? job->train.batches_per_epoch
               : steps;
}

uint64_t kelp_control_total_steps(const struct kelp_job *job, const struct kelp_plan *plan)
{
    uint64_t steps = job->train.epochs * kelp_control_steps_per_epoch(job, plan);

    if (job->run.mode != KELP_RUN_TRAIN) {
        return 0;
    }
    return job->train.max_steps > 0 && job->train.max_steps < steps ? job->train.max_steps : steps;
}

uint64_t kelp_control_predict_blocks(const struct kelp_job *job, const struct kelp_plan *plan)
{
    uint64_t samples = plan->samples[job->run.part];
    return samples / job->train.batch_size + (samples % job->train.batch_size != 0 ? 1 : 0);
}

/* ---- periods of evaluations ---- */

/* Two periods in training steps; 0: none. */
struct turns {
    uint64_t steps, epochs;
};

static struct turns turns_of(const struct kelp_job *job, const struct kelp_plan *plan)
{
    return (struct turns){.steps = job->train.evaluate_steps,
                          .epochs =
                              job->train.evaluate_epochs * kelp_control_steps_per_epoch(job, plan)};
}

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
    while (b != 0) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static uint64_t count_of(uint64_t period, uint64_t step)
{
    return period > 0 ? step / period : 0;
}

/* How many of the steps 1 to `step` end one of the two periods. */
static uint64_t turns_until(const struct turns *turns, uint64_t step)
{
    uint64_t count = count_of(turns->steps, step) + count_of(turns->epochs, step);

    if (turns->steps == 0 || turns->epochs == 0) {
        return count;
    }
    /* Steps at which both end: step / lcm, without the product, which may overflow. */
    uint64_t factor = turns->epochs / common_divisor(turns->steps, turns->epochs);
    return count - step / turns->steps / factor;
}

bool kelp_control_evaluation_due(const struct kelp_job *job, const struct kelp_plan *plan,
                                 uint64_t step)
{
    struct turns turns = turns_of(job, plan);

    return step > 0 && job->run.mode == KELP_RUN_TRAIN && parts_evaluated(job, plan) > 0 &&
           turns_until(&turns, step) != turns_until(&turns, step - 1);
}

bool kelp_control_evaluates_after(const struct kelp_job *job, const struct kelp_plan *plan,
                                  uint64_t step)
{
    return kelp_control_evaluation_due(job, plan, step) ||
           (step == kelp_control_total_steps(job, plan) && parts_evaluated(job, plan) > 0 &&
            job->run.mode != KELP_RUN_PREDICT);
}

uint64_t kelp_control_version_after(const struct kelp_job *job, const struct kelp_plan *plan,
                                    uint64_t step)
{
    struct turns turns = turns_of(job, plan);
    return step + turns_until(&turns, step) * parts_evaluated(job, plan);
}

/* ---- checks ---- */

kelp_status kelp_control_check(const struct kelp_job *job, const struct kelp_plan *plan,
                               struct kelp_error *reterr)
{
    static const char *const parts[] = {"training", "validation", "test"};
    bool monitors = job->train.patience > 0 || job->train.schedule == KELP_SCHEDULE_PLATEAU ||
                    job->checkpoint.keep_best > 0;

    switch (job->run.mode) {
    case KELP_RUN_TRAIN:
        break;
    case KELP_RUN_EVALUATE:
        return parts_evaluated(job, plan) > 0
                   ? KELP_OK
                   : kelp_fail(reterr, KELP_ERR_INVALID,
                               "run.mode: evaluate needs samples, but the validation and the test "
                               "split have none");
    case KELP_RUN_PREDICT:
        return plan->samples[job->run.part] > 0
                   ? KELP_OK
                   : kelp_fail(reterr, KELP_ERR_INVALID,
                               "run.part: predict needs samples, but the %s split has none",
                               parts[job->run.part]);
    }
    if (plan->samples[KELP_SPLIT_TRAIN] == 0 || kelp_control_steps_per_epoch(job, plan) == 0) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "train.batch_size: %" PRIu32
                         " samples in a step, but the training split has %" PRIu64,
                         job->train.batch_size, plan->samples[KELP_SPLIT_TRAIN]);
    }
    if (monitors && plan->samples[KELP_SPLIT_VAL] == 0) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "%s: goes by the validation split, which has no samples",
                         job->train.patience > 0                        ? "train.patience"
                         : job->train.schedule == KELP_SCHEDULE_PLATEAU ? "train.schedule plateau"
                                                                        : "checkpoint.keep_best");
    }
    return KELP_OK;
}

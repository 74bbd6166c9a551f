/*
 * When a checkpoint is due, and at which step.
 *
 * An order must reach every shard before its partitions pass the step, so it names a step that lies
 * a margin ahead: as many steps as the measured rate covers in KELP_COORDINATOR_LEAD_MS, times a
 * factor that grows when that was too few. A scheduled step is ordered while it is between one and
 * KELP_COORDINATOR_WINDOW margins away: not earlier, so that a distant order does not stand in the
 * way of a request; the window is wide enough that no progress report jumps over it.
 */
#include "coordinator/core/checkpoints/checkpoints_internal.h"

#include <math.h>

struct kelp_checkpointer_options kelp_checkpointer_options_of(const struct kelp_job *job,
                                                              uint64_t first_serial)
{
    bool train = job->run.mode == KELP_RUN_TRAIN;
    return (struct kelp_checkpointer_options){
        .steps = train ? job->checkpoint.steps : 0,
        .interval_ms = train ? job->checkpoint.interval_ms : 0,
        .epochs = train ? job->checkpoint.epochs : 0,
        .at_end = train && job->checkpoint.at_end,
        .policy = {.keep_last = job->checkpoint.keep_last,
                   .keep_best = job->checkpoint.keep_best,
                   .metric = kelp_checkpoint_metric_index(job),
                   .order = job->checkpoint.order},
        .first_serial = first_serial,
    };
}

struct kelp_checkpointer_schedule kelp_checkpointer_schedule_of(const struct kelp_job *job,
                                                                const struct kelp_plan *plan)
{
    uint64_t steps_per_epoch = kelp_control_steps_per_epoch(job, plan);
    struct kelp_checkpointer_schedule schedule = {
        .steps_per_epoch = steps_per_epoch,
        .total_steps = kelp_control_total_steps(job, plan),
    };
    if (kelp_control_evaluates(job, plan, KELP_SPLIT_VAL)) {
        schedule.evaluate_steps[0] = job->train.evaluate_steps;
        schedule.evaluate_steps[1] = job->train.evaluate_epochs * steps_per_epoch;
    }
    return schedule;
}

bool kelp__checkpointer_stands_still(const struct kelp_checkpointer *checkpoints, uint64_t now_ms)
{
    return now_ms > checkpoints->step_ms + KELP_COORDINATOR_STILL_MS;
}

uint64_t kelp__checkpointer_last_step(const struct kelp_checkpointer *checkpoints)
{
    bool over = checkpoints->word_known && (checkpoints->word.kind == KELP_STEP_FINISH ||
                                            checkpoints->word.kind == KELP_STEP_DONE);
    return over ? checkpoints->word.step : checkpoints->schedule.total_steps;
}

/* The step of the furthest partition, as far as is known. */
static uint64_t here(const struct kelp_checkpointer *checkpoints)
{
    uint64_t step = checkpoints->word.step;
    return step > checkpoints->past_step ? step : checkpoints->past_step;
}

static uint64_t margin(const struct kelp_checkpointer *checkpoints)
{
    double steps = floor(checkpoints->rate * KELP_COORDINATOR_LEAD_MS);
    uint64_t whole = steps < 1e9 ? (uint64_t)steps : 1000000000;
    return (whole + 1) * checkpoints->margin;
}

/* The first step that is a margin away; the current step at a standstill. */
static uint64_t soonest(const struct kelp_checkpointer *checkpoints, uint64_t now_ms)
{
    uint64_t step = here(checkpoints);
    if (!kelp__checkpointer_stands_still(checkpoints, now_ms)) {
        step += margin(checkpoints);
    }
    if (step == 0) {
        step = 1; /* version 0 follows from the job alone */
    }
    uint64_t last = kelp__checkpointer_last_step(checkpoints);
    return step < last ? step : last;
}

/* The first multiple of `every` that is later than anything ordered and still a margin away;
 * UINT64_MAX: none. */
static uint64_t multiple(const struct kelp_checkpointer *checkpoints, uint64_t every)
{
    uint64_t least = here(checkpoints) + margin(checkpoints);
    uint64_t total = kelp__checkpointer_last_step(checkpoints);
    if (every == 0) {
        return UINT64_MAX;
    }
    if (least <= checkpoints->last_step) {
        least = checkpoints->last_step + 1;
    }
    uint64_t step = (least + every - 1) / every * every;
    /* With at_end, the checkpoint of the last step is the final one. */
    bool there = step < total || (step == total && !checkpoints->options.at_end);
    return there ? step : UINT64_MAX;
}

static uint64_t scheduled(const struct kelp_checkpointer *checkpoints)
{
    uint64_t steps = multiple(checkpoints, checkpoints->options.steps);
    uint64_t epochs =
        multiple(checkpoints, checkpoints->options.epochs * checkpoints->schedule.steps_per_epoch);
    return steps < epochs ? steps : epochs;
}

static bool near(const struct kelp_checkpointer *checkpoints, uint64_t step)
{
    return step != UINT64_MAX &&
           step - here(checkpoints) <= KELP_COORDINATOR_WINDOW * margin(checkpoints);
}

/* Is a checkpoint due by time? The first one comes early: without it, the loss of a shard costs
 * all progress. */
static bool timed_now(const struct kelp_checkpointer *checkpoints, uint64_t now_ms)
{
    uint32_t interval_ms = checkpoints->options.interval_ms;
    if (!kelp_committed_list_newest(&checkpoints->list) &&
        interval_ms > KELP_COORDINATOR_EARLY_MS) {
        interval_ms = KELP_COORDINATOR_EARLY_MS;
    }
    return interval_ms > 0 && now_ms >= checkpoints->last_ms + interval_ms;
}

bool kelp__checkpointer_due_now(const struct kelp_checkpointer *checkpoints, uint64_t now_ms,
                                struct kelp__checkpointer_due *ret_due)
{
    const struct kelp_checkpointer_options *options = &checkpoints->options;
    bool done = checkpoints->word.kind == KELP_STEP_DONE;
    bool asked = checkpoints->requested > options->first_serial &&
                 checkpoints->requested > checkpoints->answered &&
                 checkpoints->requested > checkpoints->refused;
    bool timed = !done && (checkpoints->again || timed_now(checkpoints, now_ms));
    if (done && !checkpoints->finished) {
        return false; /* not on record yet; the final one answers all */
    }
    if (done && options->at_end && !checkpoints->ended) {
        *ret_due = (struct kelp__checkpointer_due){
            .step = checkpoints->word.step, .for_request = asked, .for_end = true};
        return true;
    }
    uint64_t step = scheduled(checkpoints);
    bool planned = !done && near(checkpoints, step);
    if (asked || timed) {
        step = planned ? step : soonest(checkpoints, now_ms);
    }
    *ret_due = (struct kelp__checkpointer_due){.step = step, .for_request = asked};
    if (step == 0 && checkpoints->word.version == 0) {
        return false; /* no training steps, and version 0 would mean that nothing is restored */
    }
    return asked || timed || planned;
}

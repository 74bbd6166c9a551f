#include "worker/core/ahead.h"

/* How many entries in a row may have no samples for any of the worker's lanes. The longest such
 * row is an epoch's short batch, followed by evaluations of splits with few samples. */
#define EMPTY_ENTRIES_MAX 8

static bool has_lanes(enum kelp_step_kind kind)
{
    return kind == KELP_STEP_TRAIN || kind == KELP_STEP_EVALUATE_VAL ||
           kind == KELP_STEP_EVALUATE_TEST;
}

bool kelp_ahead_begin(struct kelp_ahead *ahead, const struct kelp_job *job,
                      const struct kelp_plan *plan, const struct kelp_control_word *word,
                      uint32_t lane_first, uint32_t lane_count, uint32_t lane)
{
    if (!has_lanes(word->kind) || job->run.mode != KELP_RUN_TRAIN) {
        return false;
    }
    ahead->job = job;
    ahead->plan = plan;
    ahead->lane_first = lane_first;
    ahead->lane_count = lane_count;
    ahead->lane = lane;
    ahead->word = *word;
    kelp_control_init(&ahead->state, job, plan);
    ahead->state.kind = word->kind;
    ahead->state.version = word->version;
    ahead->state.step = word->step;
    ahead->state.epoch = word->epoch;
    ahead->state.step_in_epoch = word->step_in_epoch;
    if (word->kind != KELP_STEP_TRAIN && word->step_in_epoch == 0) { /* the epoch has ended */
        ahead->state.step_in_epoch = kelp_control_steps_per_epoch(job, plan);
    }
    return kelp_schedule_init(&ahead->schedule, job, plan->samples, word, NULL) == KELP_OK;
}

/* Go to the first of the worker's lanes in the next entry; false: it has none. The result of an
 * evaluation does not affect which samples come next. */
static bool enter_next(struct kelp_ahead *ahead)
{
    static const double sums[KELP_METRIC_SUM_COUNT] = {[KELP_METRIC_SUM_SAMPLES] = 1};
    struct kelp_record record;

    kelp_control_apply(&ahead->state, ahead->job, ahead->plan, sums, "", &record);
    kelp_control_word(&ahead->state, ahead->job, ahead->plan, &ahead->word);
    ahead->lane = ahead->lane_first;
    return has_lanes(ahead->word.kind) &&
           kelp_schedule_init(&ahead->schedule, ahead->job, ahead->plan->samples, &ahead->word,
                              NULL) == KELP_OK;
}

bool kelp_ahead_next(struct kelp_ahead *ahead)
{
    struct kelp_ahead next = *ahead;
    uint32_t entries = 0;

    next.lane++;
    for (;;) {
        for (; next.lane < next.lane_first + next.lane_count; next.lane++) {
            if (kelp_schedule_lane(&next.schedule, next.lane).count > 0) {
                *ahead = next;
                return true;
            }
        }
        if (++entries > EMPTY_ENTRIES_MAX || !enter_next(&next)) {
            return false;
        }
    }
}

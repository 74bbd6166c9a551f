/*
 * The lanes that a worker will probably compute next, for those who read samples ahead of time: the
 * rest of its work, then the same lanes of the entries that follow. Pure. A guess: lanes move from
 * one worker to another, and train.patience may end training sooner.
 */
#ifndef KELP_WORKER_CORE_AHEAD_H
#define KELP_WORKER_CORE_AHEAD_H

#include "worker/core/schedule.h"

/* In the caller's memory, nothing to free. */
struct kelp_ahead {
    const struct kelp_job *job; /* borrowed, as plan is */
    const struct kelp_plan *plan;
    uint32_t lane_first, lane_count; /* of the worker */
    struct kelp_control_state state; /* at the entry of word */
    struct kelp_control_word word;
    struct kelp_schedule schedule; /* of word */
    uint32_t lane;                 /* where it stands, of word */
};

/* Stand at a lane of a training step or an evaluation; lanes [lane_first, +lane_count) are the
 * worker's. False: the word is none of this job's, or of another kind. */
bool kelp_ahead_begin(struct kelp_ahead *ahead, const struct kelp_job *job,
                      const struct kelp_plan *plan, const struct kelp_control_word *word,
                      uint32_t lane_first, uint32_t lane_count, uint32_t lane);

/* On to the next lane with samples. False: there is none, and it stands where it stood. */
bool kelp_ahead_next(struct kelp_ahead *ahead);

#endif

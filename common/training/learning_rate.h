/*
 * The learning rate over time: PyTorch's schedulers in closed form, computed with + - * / alone, so
 * that every machine gets the same bits. Pure.
 */
#ifndef KELP_COMMON_TRAINING_LEARNING_RATE_H
#define KELP_COMMON_TRAINING_LEARNING_RATE_H

#include <stdint.h>

#include "common/job/job.h"

struct kelp_run_place {
    uint64_t epoch;       /* 0-based */
    uint64_t step;        /* 0-based */
    uint64_t epoch_total; /* of the whole run */
    uint64_t step_total;
    double plateau_lr; /* what the plateau schedule has come to */
};

/*
 * The rate of a training step by the job's schedule and warm-up. Units are epochs or steps
 * (train.schedule_unit). In warm-up unit k of n the rate is (k + 1) / (n + 1) of what the schedule
 * says; the cosine schedules begin after it.
 */
double kelp_learning_rate(const struct kelp_job *job, const struct kelp_run_place *place);

#endif

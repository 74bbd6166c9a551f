/*
 * A lane of a worker on a GPU, without shards and optimizer.
 */
#ifndef KELP_BENCH_MODELS_LANE_H
#define KELP_BENCH_MODELS_LANE_H

#include "bench/models/models.h"
#include "common/training/plan.h"
#include "worker/model/model.h"

/* Of a measurement, or LANE_STEPS where they take longer. */
#define LANE_SECONDS 0.2
#define LANE_STEPS   3

#define NODE_LANES 8u /* as many as a job has unless it says so */

/* What a worker has of a job of one lane. */
struct lane {
    struct kelp_job_file *file;
    struct kelp_model *model;
    struct kelp_plan plan;
    float *input, *target; /* all samples */
    float *weights, *gradient;
    struct kelp_sample_shape shape;
    uint64_t samples, input_count, target_count;
    uint32_t batch;
    uint64_t step;
};

void lane_init(struct lane *lane, const struct bench_model *model, uint32_t batch);
void lane_fini(struct lane *lane);

/* Samples go to the GPU, the gradient to the host. */
void lane_step(struct lane *lane);
/* The weights are copied to the GPU, too, as the first lane of a worker's step does; the others
 * find them there. */
void lane_step_anew(struct lane *lane);
/* The lanes of a node, and all that comes of them. */
void lane_node(struct lane *lane);

/* Calls a second. */
double lane_rate(struct lane *lane, void (*call)(struct lane *lane));
/* Lanes a second, as a worker computes them, once they are recorded: the better of two
 * measurements, which are short where lanes take long. */
double lane_rate_ahead(struct lane *lane);
/* The same on two streams, which the lane has from then on. */
double lane_rate_beside(struct lane *lane);

#endif

/*
 * The shape of one sample: what a data set hands out and a model takes in. The batch dimension is
 * not part of it; a batch of n samples is n of them end to end, row-major.
 */
#ifndef KELP_WORKER_SAMPLE_H
#define KELP_WORKER_SAMPLE_H

#include <stdint.h>

/* Dimensions of one sample, the batch left out. */
#define KELP_SAMPLE_RANK_MAX 7

struct kelp_sample_shape {
    uint32_t input_rank; /* csv, synthetic: 2, [seq_len, channels] */
    uint64_t input_dims[KELP_SAMPLE_RANK_MAX];
    uint32_t target_rank; /* csv, synthetic: 2, [pred_len, channels]; 0 is a scalar */
    uint64_t target_dims[KELP_SAMPLE_RANK_MAX];
};

/* Elements of one sample's input and target: the product of the dimensions, 1 for rank 0. Shapes
 * that a data set handed out do not overflow. */
static inline uint64_t kelp_sample_input_count(const struct kelp_sample_shape *shape)
{
    uint64_t count = 1;
    for (uint32_t i = 0; i < shape->input_rank; i++) {
        count *= shape->input_dims[i];
    }
    return count;
}

static inline uint64_t kelp_sample_target_count(const struct kelp_sample_shape *shape)
{
    uint64_t count = 1;
    for (uint32_t i = 0; i < shape->target_rank; i++) {
        count *= shape->target_dims[i];
    }
    return count;
}

#endif

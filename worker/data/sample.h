/*
 * The shape of one sample: what a data set hands out and a model takes in. The batch dimension is
 * not part of it; a batch of n samples is n of them end to end, row-major.
 *
 * A sample has one or more inputs, which stand end to end in its record: float32[input_count of all
 * inputs together], then those of the next sample. Categories are whole numbers below
 * `categories`, written as float32, which is exact below 2^24.
 */
#ifndef KELP_WORKER_DATA_SAMPLE_H
#define KELP_WORKER_DATA_SAMPLE_H

#include <stdint.h>

/* Dimensions of one sample, the batch left out. */
#define KELP_SAMPLE_RANK_MAX       7
#define KELP_SAMPLE_INPUTS_MAX     8
#define KELP_SAMPLE_CATEGORIES_MAX (1u << 24)

#define KELP_SAMPLE_VOCAB_MAX 64

/* One input or the target. Rank 0 is a single number. */
struct kelp_sample_tensor {
    uint32_t rank;
    uint64_t dims[KELP_SAMPLE_RANK_MAX];
    /* 0: any numbers. Else categories: the values at index i of the last dimension (of the whole
     * tensor for rank 0) are below vocab[i]. A target of classes has one entry, their number. */
    uint32_t vocab_count;
    uint32_t vocab[KELP_SAMPLE_VOCAB_MAX];
};

/*
 * What the kinds of data sets hand out:
 *   csv, synthetic  [seq_len, channels]; target [pred_len, channels], or with data.features MS
 *                   [pred_len, 1]: the last one
 *   table           categories [m] where there are any, then numbers [n] where there are any;
 *                   target [targets], rank 0 for one
 *   panel           category of the series [] (vocab 1 for a single one), known [seq_len, k],
 *                   observed [seq_len, t + c] (rank 1 where that is 1), known ahead [pred_len, k];
 *                   target [pred_len, t], rank 1 for one: t targets, c columns, k known
 *   idx             [1, height, width]; target [] of classes
 *   tensors, npy, binary  as in the files
 */
struct kelp_sample_shape {
    uint32_t input_count; /* at least 1 */
    struct kelp_sample_tensor inputs[KELP_SAMPLE_INPUTS_MAX];
    struct kelp_sample_tensor target;
};

/* Elements of one tensor of a sample: the product of the dimensions, 1 for rank 0. Shapes that a
 * data set handed out do not overflow, all inputs together neither. */
static inline uint64_t kelp_sample_tensor_count(const struct kelp_sample_tensor *tensor)
{
    uint64_t count = 1;
    for (uint32_t i = 0; i < tensor->rank; i++) {
        count *= tensor->dims[i];
    }
    return count;
}

/* Elements of a sample's record: all inputs. */
static inline uint64_t kelp_sample_input_count(const struct kelp_sample_shape *shape)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < shape->input_count; i++) {
        count += kelp_sample_tensor_count(&shape->inputs[i]);
    }
    return count;
}

static inline uint64_t kelp_sample_target_count(const struct kelp_sample_shape *shape)
{
    return kelp_sample_tensor_count(&shape->target);
}

#endif

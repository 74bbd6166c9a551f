/*
 * DLinear (Zeng et al., "Are Transformers Effective for Time Series Forecasting?", 2022): a moving
 * average splits each channel of the input into trend and remainder, and one linear map over time
 * for each of the two makes the forecast. The maps are shared by all channels, or with
 * model.individual each channel has its own.
 *
 * Time is the last dimension inside, so that a shared map is one matrix product over all samples
 * and channels; with a single channel nothing has to be moved for that.
 */
#include <stdio.h>
#include <stdlib.h>

#include "worker/model_private.h"

struct lengths {
    uint64_t sequence;
    uint64_t prediction;
    uint64_t channels;
};

/* "<name>" over [channels, sequence], shared or with parameters "<name>.<channel>". */
static uint32_t linear(struct kelp_graph *graph, const struct kelp_job *job, const char *name,
                       uint32_t x, const struct lengths *lengths)
{
    if (!job->model.individual) {
        const struct kelp__linear shared =
            kelp__linear_parameters(graph, name, lengths->sequence, lengths->prediction);
        return kelp_graph_linear(graph, name, x, shared.weight, shared.bias);
    }
    const uint32_t channels = (uint32_t)lengths->channels;
    uint32_t *weights = calloc(2 * (size_t)channels, sizeof(*weights));
    if (weights == NULL) {
        return kelp_graph_fail(graph, KELP_ERR_NO_MEMORY, "layer %s: out of memory", name);
    }
    uint32_t *biases = weights + channels;
    for (uint32_t c = 0; c < channels; c++) {
        char channel_name[64];
        (void)snprintf(channel_name, sizeof(channel_name), "%s.%u", name, c);
        const struct kelp__linear own =
            kelp__linear_parameters(graph, channel_name, lengths->sequence, lengths->prediction);
        weights[c] = own.weight;
        biases[c] = own.bias;
    }
    const uint32_t y = kelp_graph_linear_grouped(graph, name, x, weights, biases, channels);
    free(weights);
    return y;
}

static bool read_lengths(struct kelp_graph *graph, const struct kelp_sample_shape *shape,
                         struct lengths *ret_lengths, struct kelp_shape *ret_input,
                         struct kelp_shape *ret_target)
{
    ret_input->rank = shape->inputs[0].rank;
    ret_target->rank = shape->target.rank;
    for (uint32_t i = 0; i < KELP_SAMPLE_RANK_MAX; i++) {
        ret_input->dims[i] = i < shape->inputs[0].rank ? shape->inputs[0].dims[i] : 0;
        ret_target->dims[i] = i < shape->target.rank ? shape->target.dims[i] : 0;
    }
    *ret_lengths = (struct lengths){.sequence = ret_input->dims[0],
                                    .prediction = ret_target->dims[0],
                                    .channels = ret_input->dims[1]};
    if (ret_input->rank == 2 && ret_target->rank == 2 &&
        ret_input->dims[1] == ret_target->dims[1] &&
        ret_lengths->channels <= KELP_PLAN_TENSORS_MAX) {
        return true;
    }
    char input_text[160], target_text[160];
    kelp_shape_print(ret_input, input_text, sizeof(input_text));
    kelp_shape_print(ret_target, target_text, sizeof(target_text));
    (void)kelp_graph_fail(graph, KELP_ERR_INVALID,
                          "dlinear takes [seq_len, channels] to [pred_len, channels] with at most "
                          "%d channels, but the data has %s to %s",
                          KELP_PLAN_TENSORS_MAX, input_text, target_text);
    return false;
}

uint32_t kelp__dlinear_build(struct kelp_graph *graph, const struct kelp_job *job,
                             const struct kelp_sample_shape *shape, struct kelp_shape *ret_target)
{
    struct lengths lengths;
    struct kelp_shape input_shape = {0};
    *ret_target = (struct kelp_shape){0};
    if (!read_lengths(graph, shape, &lengths, &input_shape, ret_target)) {
        return KELP_GRAPH_NONE;
    }
    if (lengths.channels == 1) { /* [seq, 1] and [1, seq] are the same bytes */
        input_shape = (struct kelp_shape){.rank = 2, .dims = {1, lengths.sequence}};
        *ret_target = (struct kelp_shape){.rank = 2, .dims = {1, lengths.prediction}};
    }
    uint32_t x = kelp_graph_input(graph, "input", &input_shape);
    if (lengths.channels != 1) {
        x = kelp_graph_transpose(graph, "input_by_channel", x);
    }
    const uint32_t trend =
        kelp_graph_moving_average(graph, "decomposition", x, job->model.kernel_size);
    const uint32_t seasonal = kelp_graph_subtract(graph, "seasonal", x, trend);
    const uint32_t seasonal_output = linear(graph, job, "linear_seasonal", seasonal, &lengths);
    const uint32_t trend_output = linear(graph, job, "linear_trend", trend, &lengths);
    const uint32_t sum = kelp_graph_add(graph, "output", seasonal_output, trend_output);
    return lengths.channels == 1 ? sum : kelp_graph_transpose(graph, "output_by_time", sum);
}

/* What models over windows of a time series share. */
#include <stdio.h>
#include <stdlib.h>

#include "worker/model/models/shapes.h"

static bool read_windows(const struct kelp_sample_shape *shape,
                         struct kelp__model_windows *ret_windows)
{
    const struct kelp_sample_tensor *input = &shape->inputs[0], *target = &shape->target;
    *ret_windows =
        (struct kelp__model_windows){.sequence = input->dims[0],
                                     .prediction = target->dims[0],
                                     .channels = input->dims[1],
                                     .last_alone = target->dims[1] == 1 && input->dims[1] > 1};
    return shape->input_count == 1 && input->rank == 2 && target->rank == 2 &&
           input->vocab_count == 0 && target->vocab_count == 0 &&
           (input->dims[1] == target->dims[1] || ret_windows->last_alone) &&
           input->dims[1] <= KELP_PLAN_TENSORS_MAX;
}

uint32_t kelp__model_windows_input(struct kelp_graph *graph, const char *model,
                                   const struct kelp_sample_shape *shape,
                                   struct kelp__model_windows *ret_windows,
                                   struct kelp_shape *ret_target)
{
    if (!read_windows(shape, ret_windows)) {
        char takes[128];
        (void)snprintf(takes, sizeof(takes),
                       "%s takes [seq_len, channels] to [pred_len, channels] or [pred_len, 1] "
                       "with at most %d channels",
                       model, KELP_PLAN_TENSORS_MAX);
        return kelp__model_refuse_sample(graph, shape, takes);
    }
    if (ret_windows->channels == 1) { /* [seq, 1] and [1, seq] are the same bytes */
        const struct kelp_shape input_shape = kelp__model_shape2(1, ret_windows->sequence);
        *ret_target = kelp__model_shape2(1, ret_windows->prediction);
        return kelp_graph_input(graph, "input", &input_shape);
    }
    const struct kelp_shape input_shape = kelp__model_shape_of(&shape->inputs[0]);
    *ret_target = ret_windows->last_alone ? kelp__model_shape2(1, ret_windows->prediction)
                                          : kelp__model_shape_of(&shape->target);
    const uint32_t input = kelp_graph_input(graph, "input", &input_shape);
    return kelp_graph_transpose(graph, "input_by_channel", input);
}

uint32_t kelp__model_windows_linear(struct kelp_graph *graph, const struct kelp_job *job,
                                    const char *name, uint32_t x,
                                    const struct kelp__model_windows *windows)
{
    if (!job->model.individual) {
        return kelp_layer_linear(graph, name, x, windows->prediction, true);
    }
    const uint32_t channels = (uint32_t)windows->channels;
    uint32_t *weights = calloc(2 * (size_t)channels, sizeof(*weights));
    if (!weights) {
        return kelp_graph_fail(graph, KELP_ERR_NO_MEMORY, "layer %s: out of memory", name);
    }
    uint32_t *biases = weights + channels;
    for (uint32_t c = 0; c < channels; c++) {
        const struct kelp__layers_linear own = kelp__layers_linear_parameters(
            graph, kelp__model_name_index(name, c).text, windows->sequence, windows->prediction);
        weights[c] = own.weight;
        biases[c] = own.bias;
    }
    const uint32_t y = kelp_graph_linear_grouped(graph, name, x, weights, biases, channels);
    free(weights);
    return y;
}

uint32_t kelp__model_windows_output(struct kelp_graph *graph, uint32_t y,
                                    const struct kelp__model_windows *windows)
{
    if (windows->last_alone) {
        return kelp_graph_slice(graph, "output_of_target", y, 0, windows->channels - 1, 1);
    }
    return windows->channels == 1 ? y : kelp_graph_transpose(graph, "output_by_time", y);
}

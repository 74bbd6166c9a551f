/*
 * NLinear (Zeng et al., "Are Transformers Effective for Time Series Forecasting?", 2022): the last
 * value of each channel is subtracted, one linear map over time makes the forecast, and the value
 * is added back, so that a shift of level between training and test does no harm. All channels
 * share the map; with model.individual each channel has its own.
 */
#include "worker/model/models/shapes.h"

uint32_t kelp__nlinear_build(struct kelp_graph *graph, const struct kelp_job *job,
                             const struct kelp_sample_shape *shape, struct kelp_shape *ret_target)
{
    struct kelp__model_windows windows;
    const uint32_t x = kelp__model_windows_input(graph, "nlinear", shape, &windows, ret_target);

    const uint32_t last = kelp__model_flatten(
        graph, "last", kelp_graph_slice(graph, "last", x, 1, windows.sequence - 1, 1));
    const uint32_t level = kelp_graph_repeat(graph, "level", last, 1, windows.sequence);
    const uint32_t centred = kelp_graph_subtract(graph, "centred", x, level);
    const uint32_t forecast = kelp__model_windows_linear(graph, job, "linear", centred, &windows);
    const uint32_t ahead = kelp_graph_repeat(graph, "level_ahead", last, 1, windows.prediction);
    const uint32_t y = kelp_graph_add(graph, "output", forecast, ahead);
    return kelp__model_windows_output(graph, y, &windows);
}

/*
 * DLinear (Zeng et al., "Are Transformers Effective for Time Series Forecasting?", 2022): a moving
 * average splits each channel of the input into trend and remainder, and a linear map over time for
 * each of the two makes the forecast. All channels share the maps; with model.individual each
 * channel has its own.
 */
#include "worker/model/models/shapes.h"

uint32_t kelp__dlinear_build(struct kelp_graph *graph, const struct kelp_job *job,
                             const struct kelp_sample_shape *shape, struct kelp_shape *ret_target)
{
    struct kelp__model_windows windows;
    const uint32_t x = kelp__model_windows_input(graph, "dlinear", shape, &windows, ret_target);

    const uint32_t trend =
        kelp_graph_moving_average(graph, "decomposition", x, job->model.kernel_size);
    const uint32_t seasonal = kelp_graph_subtract(graph, "seasonal", x, trend);
    const uint32_t seasonal_output =
        kelp__model_windows_linear(graph, job, "linear_seasonal", seasonal, &windows);
    const uint32_t trend_output =
        kelp__model_windows_linear(graph, job, "linear_trend", trend, &windows);
    const uint32_t y = kelp_graph_add(graph, "output", seasonal_output, trend_output);
    return kelp__model_windows_output(graph, y, &windows);
}

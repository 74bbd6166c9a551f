/* Windows [time, channels] to [prediction, channels] by one hidden layer over time, with dropout.
 */
#include <kelp/model.h>

static uint32_t build(const struct kelp_model_api *api, struct kelp_model_builder *b)
{
    const struct kelp_model_tensor *in = api->sample_input(b, 0);
    const struct kelp_model_tensor *target = api->sample_target(b);
    if (in->rank != 2 || target->rank != 2) {
        return api->fail(b, "windows takes [time, channels] to [time, channels]");
    }
    uint32_t x = api->input(b, "window", in->rank, in->dims);
    x = api->transpose(b, "by channel", x);
    x = api->layer_linear(b, "fc1", x, api->param_integer(b, "hidden", 8, 1, 100), 1);
    x = api->tanh(b, "tanh", x);
    x = api->dropout(b, "dropout", x, api->param_number(b, "dropout", 0.2, 0.0, 0.9));
    x = api->layer_linear(b, "fc2", x, target->dims[0], 1);
    return api->transpose(b, "by time", x);
}

KELP_MODEL("windows", build)

/* A model with mistakes, one for each value of its param `mistake`. */
#include <kelp/model.h>
#include <stddef.h>

/* What follows a failure must not add to it, nor crash. */
static uint32_t carry_on(const struct kelp_model_api *api, struct kelp_model_builder *b, uint32_t x)
{
    x = api->relu(b, NULL, x);
    x = api->layer_linear(b, "after", x, api->dim(b, x, 0), 1);
    return api->reshape(b, "end", x, api->rank(b, x), NULL);
}

static uint32_t build(const struct kelp_model_api *api, struct kelp_model_builder *b)
{
    const struct kelp_model_tensor *in = api->sample_input(b, 0);
    const uint64_t mistake = api->param_integer(b, "mistake", 0, 0, 20);
    const struct kelp_model_window window = {.size = 0};
    const uint64_t dims[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    uint32_t x = api->input(b, "input", in->rank, in->dims);
    switch (mistake) {
    case 0:
        return KELP_MODEL_NONE;
    case 1:
        return carry_on(api, b, api->layer_conv2d(b, "conv", x, 3, &window, 1));
    case 2:
        return carry_on(api, b, api->parameter(b, "p", 9, dims, KELP_MODEL_INIT_UNIFORM, 1.0));
    case 3:
        return carry_on(api, b, api->parameter(b, "p", 1, NULL, KELP_MODEL_INIT_UNIFORM, 1.0));
    case 4:
        return carry_on(api, b, api->parameter(b, "p", 1, dims, (enum kelp_model_init)7, 1.0));
    case 5:
        return carry_on(api, b, api->add(b, "sum", x, 999));
    case 6:
        return carry_on(api, b, api->concat(b, "parts", NULL, 2, 0));
    case 7:
        return carry_on(api, b, api->dropout(b, "dropout", x, 1.5));
    case 8:
        return carry_on(api, b, api->batch_norm(b, "norm", x, NULL, 1e-5));
    case 9:
        return carry_on(api, b, api->fail(b, "no such luck"));
    case 10:
        (void)api->sample_input(b, 99);
        return x;
    case 11:
        return carry_on(api, b, api->permute(b, "turn", x, NULL));
    case 12:
        return carry_on(api, b, api->conv2d(b, "conv", x, 0, 0, NULL));
    case 13:
        return carry_on(api, b, api->linear_grouped(b, "groups", x, NULL, NULL, 2));
    case 14:
        return carry_on(api, b, api->statistic(b, "mean", 1, dims, 0.0, 2.0));
    default:
        return api->layer_linear(b, "fc", x, 1, 1);
    }
}

KELP_MODEL("unfinished", build)

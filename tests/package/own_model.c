/* A model of one's own, as docs/MODELS.md has it: one linear layer. */
#include <kelp/model.h>

static uint32_t build(const struct kelp_model_api *api, struct kelp_model_builder *b)
{
    const struct kelp_model_tensor *in = api->sample_input(b, 0);
    uint32_t x = api->input(b, "input", in->rank, in->dims);

    return api->layer_linear(b, "fc", x, 1, 1);
}

KELP_MODEL("own", build)

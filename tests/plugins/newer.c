/* A model that may call functions behind the end of the table. */
#include <kelp/model.h>

static uint32_t build(const struct kelp_model_api *api, struct kelp_model_builder *b)
{
    return api->fail(b, "was called");
}

const struct kelp_model_plugin kelp_model_plugin = {
    .abi = KELP_MODEL_ABI,
    .size = sizeof(struct kelp_model_plugin),
    .api_size = sizeof(struct kelp_model_api) + sizeof(void *),
    .name = "newer",
    .build = build,
};

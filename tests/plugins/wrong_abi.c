/* A model of an ABI that there is not yet. */
#include <kelp/model.h>

const struct kelp_model_plugin kelp_model_plugin = {
    .abi = KELP_MODEL_ABI + 1,
    .size = sizeof(struct kelp_model_plugin),
    .api_size = sizeof(struct kelp_model_api),
    .name = "wrong_abi",
};

/*
 * A model of one's own: a small convolutional network for images of one channel.
 *
 *     conv1 1 -> 4, 3x3   ReLU
 *     conv2 4 -> 6, 3x3   batch norm   ReLU   max pool 2x2
 *     fc1 -> hidden       ReLU
 *     fc2 -> classes      log softmax                          (train.loss: nll)
 *
 * params: `hidden=16`, the width of fc1.
 */
#include <kelp/model.h>

/* All dimensions as one. */
static uint32_t flatten(const struct kelp_model_api *api, struct kelp_model_builder *b, uint32_t x)
{
    uint64_t count = 1;
    for (uint32_t axis = 0; axis < api->rank(b, x); axis++) {
        count *= api->dim(b, x, axis);
    }
    return api->reshape(b, "flatten", x, 1, &count);
}

static uint32_t build(const struct kelp_model_api *api, struct kelp_model_builder *b)
{
    const struct kelp_model_tensor *image = api->sample_input(b, 0);
    const struct kelp_model_tensor *target = api->sample_target(b);
    const struct kelp_model_window conv = {
        .size = sizeof(conv), .kernel = {3, 3}, .stride = {1, 1}};
    const struct kelp_model_window pool = {
        .size = sizeof(pool), .kernel = {2, 2}, .stride = {2, 2}};
    const uint64_t hidden = api->param_integer(b, "hidden", 16, 1, 4096);

    if (image->rank != 3 || target->rank != 0 || target->vocab_count != 1) {
        return api->fail(b, "conv_small takes an image [channels, height, width] to one class");
    }
    uint32_t x = api->input(b, "image", image->rank, image->dims);
    x = api->layer_conv2d(b, "conv1", x, 4, &conv, 1);
    x = api->relu(b, "relu1", x);
    x = api->layer_conv2d(b, "conv2", x, 6, &conv, 0);
    x = api->layer_batch_norm(b, "bn", x);
    x = api->relu(b, "relu2", x);
    x = api->max_pool(b, "pool", x, &pool);
    x = flatten(api, b, x);
    x = api->layer_linear(b, "fc1", x, hidden, 1);
    x = api->relu(b, "relu3", x);
    x = api->layer_linear(b, "fc2", x, target->vocab[0], 1);
    return api->log_softmax(b, "output", x);
}

KELP_MODEL("conv_small", build)

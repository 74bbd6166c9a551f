/*
 * ResNet18 (He et al., "Deep Residual Learning for Image Recognition", 2015), as in torchvision: a
 * 7x7 convolution and max pooling, four layers of two basic blocks, average pooling, and one linear
 * layer with logits (train.loss cross_entropy). The first convolution takes the channels of the
 * images.
 */
#include "worker/model/models/resnet18.h"

#include <math.h>

#include "worker/model/models/shapes.h"

/* Without bias; weights normal as in torchvision: kaiming_normal_(mode="fan_out"). */
static uint32_t conv(struct kelp_graph *graph, const char *name, uint32_t x, uint64_t out,
                     uint32_t kernel, uint32_t stride)
{
    const struct kelp_shape *x_shape = kelp_graph_shape(graph, x);
    if (!x_shape) {
        return KELP_GRAPH_NONE;
    }
    const uint32_t padding = kernel / 2;
    const struct kelp_graph_window window = {.kernel = {kernel, kernel},
                                             .stride = {stride, stride},
                                             .padding = {padding, padding},
                                             .groups = 1};
    const struct kelp_shape shape = {.rank = 4, .dims = {out, x_shape->dims[0], kernel, kernel}};
    const double fan_out = (double)(out * kernel * kernel);
    const struct kelp_graph_init init = {KELP_INIT_NORMAL, (float)sqrt(2.0 / fan_out)};
    const uint32_t weight =
        kelp_graph_parameter(graph, kelp__model_name(name, "weight").text, &shape, init);
    return kelp_graph_conv2d(graph, name, x, weight, KELP_GRAPH_NO_BIAS, &window);
}

/* conv3x3, bn, ReLU, conv3x3, bn, plus the input, ReLU. If the sizes change, the input goes
 * through a 1x1 convolution and bn. */
static uint32_t basic_block(struct kelp_graph *graph, const char *name, uint32_t x, uint64_t out,
                            uint32_t stride)
{
    const struct kelp_shape *shape = kelp_graph_shape(graph, x);
    const bool downsample = stride != 1 || (shape && shape->dims[0] != out);

    uint32_t y = conv(graph, kelp__model_name(name, "conv1").text, x, out, 3, stride);
    y = kelp_layer_batch_norm(graph, kelp__model_name(name, "bn1").text, y);
    y = kelp_graph_relu(graph, kelp__model_name(name, "relu1").text, y);
    y = conv(graph, kelp__model_name(name, "conv2").text, y, out, 3, 1);
    y = kelp_layer_batch_norm(graph, kelp__model_name(name, "bn2").text, y);
    if (downsample) {
        x = conv(graph, kelp__model_name(name, "downsample.0").text, x, out, 1, stride);
        x = kelp_layer_batch_norm(graph, kelp__model_name(name, "downsample.1").text, x);
    }
    y = kelp_graph_add(graph, kelp__model_name(name, "add").text, y, x);
    return kelp_graph_relu(graph, kelp__model_name(name, "relu2").text, y);
}

static uint32_t layer(struct kelp_graph *graph, uint32_t number, uint32_t x)
{
    const uint64_t out = UINT64_C(32) << number; /* 64, 128, 256, 512 */
    const char *const names[] = {"layer1", "layer2", "layer3", "layer4"};
    const char *name = names[number - 1];
    x = basic_block(graph, kelp__model_name(name, "0").text, x, out, number == 1 ? 1 : 2);
    return basic_block(graph, kelp__model_name(name, "1").text, x, out, 1);
}

static uint32_t max_pool(struct kelp_graph *graph, uint32_t x)
{
    static const struct kelp_graph_window window = {
        .kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}, .groups = 1};
    return kelp_graph_max_pool(graph, "maxpool", x, &window);
}

/* The mean of each channel. */
static uint32_t average_pool(struct kelp_graph *graph, uint32_t x)
{
    const struct kelp_shape *shape = kelp_graph_shape(graph, x);
    if (!shape) {
        return KELP_GRAPH_NONE;
    }
    const struct kelp_graph_window window = {
        .kernel = {(uint32_t)shape->dims[1], (uint32_t)shape->dims[2]},
        .stride = {1, 1},
        .padding = {0, 0},
        .groups = 1};
    return kelp_graph_average_pool(graph, "avgpool", x, &window);
}

static uint32_t stage(struct kelp_graph *graph, enum kelp__resnet18_stage number, uint32_t x)
{
    switch (number) {
    case KELP__RESNET18_CONV1:
        return conv(graph, "conv1", x, 64, 7, 2);
    case KELP__RESNET18_BN1:
        return kelp_layer_batch_norm(graph, "bn1", x);
    case KELP__RESNET18_RELU:
        return kelp_graph_relu(graph, "relu", x);
    case KELP__RESNET18_MAXPOOL:
        return max_pool(graph, x);
    case KELP__RESNET18_LAYER1:
    case KELP__RESNET18_LAYER2:
    case KELP__RESNET18_LAYER3:
    case KELP__RESNET18_LAYER4:
        return layer(graph, (uint32_t)(number - KELP__RESNET18_LAYER1) + 1, x);
    case KELP__RESNET18_AVGPOOL:
        return average_pool(graph, x);
    }
    return KELP_GRAPH_NONE;
}

uint32_t kelp__resnet18_features(struct kelp_graph *graph, uint32_t x,
                                 enum kelp__resnet18_stage last)
{
    for (int i = 0; i <= (int)last; i++) {
        x = stage(graph, (enum kelp__resnet18_stage)i, x);
    }
    return x;
}

uint32_t kelp__resnet18_build(struct kelp_graph *graph, const struct kelp_job *job,
                              const struct kelp_sample_shape *shape, struct kelp_shape *ret_target)
{
    if (shape->input_count != 1 || shape->inputs[0].rank != 3 ||
        shape->inputs[0].vocab_count != 0 ||
        !kelp__model_is_class(&shape->target, job->model.classes)) {
        return kelp__model_refuse_sample(
            graph, shape,
            "resnet18 takes an image [channels, height, width] to one of "
            "model.classes classes");
    }
    const struct kelp_shape input = kelp__model_shape_of(&shape->inputs[0]);
    *ret_target = (struct kelp_shape){.rank = 0};

    uint32_t x = kelp_graph_input(graph, "input", &input);
    x = kelp__resnet18_features(graph, x, KELP__RESNET18_AVGPOOL);
    x = kelp__model_flatten(graph, "flatten", x);
    return kelp_layer_linear(graph, "fc", x, job->model.classes, true);
}

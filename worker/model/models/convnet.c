/*
 * The small convolutional network of PyTorch's MNIST example: two 3x3 convolutions, max pooling,
 * two linear layers, and log probabilities of the classes (train.loss nll). Its two dropout layers
 * zero 0.25 and 0.5 of their elements, or model.dropout.
 */
#include "worker/model/models/shapes.h"

uint32_t kelp__convnet_build(struct kelp_graph *graph, const struct kelp_job *job,
                             const struct kelp_sample_shape *shape, struct kelp_shape *ret_target)
{
    static const struct kelp_graph_window conv = {
        .kernel = {3, 3}, .stride = {1, 1}, .padding = {0, 0}, .groups = 1};
    static const struct kelp_graph_window pool = {
        .kernel = {2, 2}, .stride = {2, 2}, .padding = {0, 0}, .groups = 1};
    const bool own_dropout = job->model.dropout_count == 2;
    const float dropout1 = own_dropout ? (float)job->model.dropout[0] : 0.25f;
    const float dropout2 = own_dropout ? (float)job->model.dropout[1] : 0.5f;

    if (shape->input_count != 1 || shape->inputs[0].rank != 3 ||
        shape->inputs[0].vocab_count != 0 ||
        !kelp__model_is_class(&shape->target, job->model.classes)) {
        return kelp__model_refuse_sample(
            graph, shape,
            "convnet takes an image [channels, height, width] to one of "
            "model.classes classes");
    }
    const struct kelp_shape input = kelp__model_shape_of(&shape->inputs[0]);
    *ret_target = (struct kelp_shape){.rank = 0};

    uint32_t x = kelp_graph_input(graph, "input", &input);
    x = kelp_layer_conv2d(graph, "conv1", x, 32, &conv, true);
    x = kelp_graph_relu(graph, "relu1", x);
    x = kelp_layer_conv2d(graph, "conv2", x, 64, &conv, true);
    x = kelp_graph_relu(graph, "relu2", x);
    x = kelp_graph_max_pool(graph, "pool", x, &pool);
    x = kelp_graph_dropout(graph, "dropout1", x, dropout1);
    x = kelp__model_flatten(graph, "flatten", x);
    x = kelp_layer_linear(graph, "fc1", x, 128, true);
    x = kelp_graph_relu(graph, "relu3", x);
    x = kelp_graph_dropout(graph, "dropout2", x, dropout2);
    x = kelp_layer_linear(graph, "fc2", x, job->model.classes, true);
    return kelp_graph_log_softmax(graph, "output", x);
}

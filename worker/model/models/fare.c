/*
 * FarePredictor: a small perceptron for taxi fares, 6-256-16-1, in PyTorch's order: Linear, ReLU,
 * BatchNorm1d, twice, then Linear and a sigmoid. The number of features may differ.
 */
#include "worker/model/models/shapes.h"

uint32_t kelp__fare_build(struct kelp_graph *graph, const struct kelp_job *job,
                          const struct kelp_sample_shape *shape, struct kelp_shape *ret_target)
{
    (void)job;
    if (shape->input_count != 1 || shape->inputs[0].vocab_count != 0 ||
        shape->target.vocab_count != 0 || kelp_sample_target_count(shape) != 1) {
        return kelp__model_refuse_sample(graph, shape, "fare takes numbers [n] to one number");
    }
    const struct kelp_shape input = kelp__model_shape1(kelp_sample_input_count(shape));
    *ret_target = kelp__model_shape1(1);

    uint32_t x = kelp_graph_input(graph, "input", &input);
    x = kelp_layer_linear(graph, "fc1", x, 256, true);
    x = kelp_graph_relu(graph, "relu1", x);
    x = kelp_layer_batch_norm(graph, "bn1", x);
    x = kelp_layer_linear(graph, "fc2", x, 16, true);
    x = kelp_graph_relu(graph, "relu2", x);
    x = kelp_layer_batch_norm(graph, "bn2", x);
    x = kelp_layer_linear(graph, "fc3", x, 1, true);
    return kelp_graph_sigmoid(graph, "output", x);
}

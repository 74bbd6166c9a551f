/*
 * A multi-layer perceptron: fc1, ReLU, fc2, ReLU, ..., fcN over the flattened sample. The widths in
 * between are model.hidden; the first and last are the elements of input and target.
 */
#include <stdio.h>

#include "worker/model_private.h"

uint32_t kelp__mlp_build(struct kelp_graph *graph, const struct kelp_job *job,
                         const struct kelp_sample_shape *shape, struct kelp_shape *ret_target)
{
    const struct kelp_shape input = {.rank = 1, .dims = {kelp_sample_input_count(shape)}};
    *ret_target = (struct kelp_shape){.rank = 1, .dims = {kelp_sample_target_count(shape)}};

    uint32_t x = kelp_graph_input(graph, "input", &input);
    uint64_t in = input.dims[0];
    for (uint32_t i = 0; i <= job->model.hidden_count; i++) {
        const bool last = i == job->model.hidden_count;
        const uint64_t out = last ? ret_target->dims[0] : job->model.hidden[i];
        char name[16];
        (void)snprintf(name, sizeof(name), "fc%u", i + 1);
        const struct kelp__linear fc = kelp__linear_parameters(graph, name, in, out);
        x = kelp_graph_linear(graph, name, x, fc.weight, fc.bias);
        if (!last) {
            (void)snprintf(name, sizeof(name), "relu%u", i + 1);
            x = kelp_graph_relu(graph, name, x);
        }
        in = out;
    }
    return x;
}

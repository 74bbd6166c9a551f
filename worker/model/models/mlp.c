/*
 * A multi-layer perceptron: fc1, ReLU, fc2, ReLU, ..., fcN over the flattened sample. model.hidden
 * gives the widths in between. The first width is the number of input elements, the last that of
 * target elements: for classes their number (logits, train.loss cross_entropy), for quantiles each
 * times their number.
 */
#include <stdio.h>

#include "worker/model/models/shapes.h"

/* The output's shape, and the target's. */
static bool read_target(const struct kelp_job *job, const struct kelp_sample_shape *shape,
                        struct kelp_shape *ret_output, struct kelp_shape *ret_target)
{
    const uint64_t count = kelp_sample_target_count(shape);
    switch (job->train.loss) {
    case KELP_LOSS_CROSS_ENTROPY:
    case KELP_LOSS_NLL:
        *ret_target = (struct kelp_shape){.rank = 0};
        *ret_output = kelp__model_shape1(shape->target.vocab[0]);
        return count == 1 && shape->target.vocab_count == 1;
    case KELP_LOSS_QUANTILE:
        *ret_target = kelp__model_shape1(count);
        *ret_output = kelp__model_shape2(count, job->train.quantile_count);
        return shape->target.vocab_count == 0;
    case KELP_LOSS_MSE:
    case KELP_LOSS_MAE:
    case KELP_LOSS_SMOOTH_L1:
    case KELP_LOSS_HUBER:
    case KELP_LOSS_BCE:
    case KELP_LOSS_BCE_WITH_LOGITS:
        break;
    }
    *ret_target = *ret_output = kelp__model_shape1(count);
    return true;
}

uint32_t kelp__mlp_build(struct kelp_graph *graph, const struct kelp_job *job,
                         const struct kelp_sample_shape *shape, struct kelp_shape *ret_target)
{
    const struct kelp_shape input = kelp__model_shape1(kelp_sample_input_count(shape));
    struct kelp_shape output;
    if (!read_target(job, shape, &output, ret_target)) {
        return kelp__model_refuse_sample(
            graph, shape,
            "mlp takes numbers to numbers, or with a loss of classes to a "
            "class of a known number of them");
    }
    const uint64_t out = output.dims[0] * (output.rank == 2 ? output.dims[1] : 1);

    uint32_t x = kelp_graph_input(graph, "input", &input);
    for (uint32_t i = 0; i < job->model.hidden_count; i++) {
        char name[16];
        (void)snprintf(name, sizeof(name), "fc%u", i + 1);
        x = kelp_layer_linear(graph, name, x, job->model.hidden[i], true);
        (void)snprintf(name, sizeof(name), "relu%u", i + 1);
        x = kelp_graph_relu(graph, name, x);
    }
    char name[16];
    (void)snprintf(name, sizeof(name), "fc%u", job->model.hidden_count + 1);
    x = kelp_layer_linear(graph, name, x, out, true);
    return output.rank == 2 ? kelp_graph_reshape(graph, "output", x, &output) : x;
}

/* Running: forward in the order of declaration, backward in the opposite one. */
#include <assert.h>

#include "worker/graph.h"
#include "worker/graph_private.h"

static uint32_t last_dim(const struct graph_node *node)
{
    return (uint32_t)node->shape.dims[node->shape.rank - 1];
}

/* Rows of the last dimension over `count` samples. */
static uint32_t rows_of(const struct graph_node *node, uint32_t count)
{
    return (uint32_t)(node->elem_count / last_dim(node) * count);
}

/*
 * One product x W^T + b: rows of `in` values, x_ld apart, to rows of `out` values, y_ld apart. A
 * grouped layer is one of these per group, the groups interleaved row by row.
 */
struct product {
    const struct graph_node *x, *weight, *bias;
    const struct graph_edge *x_edge, *weight_edge, *bias_edge;
    uint32_t rows, in, out;
    uint64_t x_first, x_ld; /* of the group's first row, in elements */
    uint64_t y_first, y_ld;
};

static struct product product_of(const struct kelp_graph *graph, const struct graph_node *node,
                                 uint32_t count, uint32_t group)
{
    const struct graph_node *x = graph_operand(graph, node, 0);
    const uint64_t groups = node->op == GRAPH_LINEAR ? 1 : node->shape.dims[0];
    const uint32_t in = last_dim(x), out = last_dim(node);
    return (struct product){
        .x = x,
        .weight = graph_operand(graph, node, 1 + 2 * group),
        .bias = graph_operand(graph, node, 2 + 2 * group),
        .x_edge = graph_edge(graph, node, 0),
        .weight_edge = graph_edge(graph, node, 1 + 2 * group),
        .bias_edge = graph_edge(graph, node, 2 + 2 * group),
        .rows = node->op == GRAPH_LINEAR ? rows_of(node, count) : count,
        .in = in,
        .out = out,
        .x_first = (uint64_t)group * in,
        .x_ld = groups * in,
        .y_first = (uint64_t)group * out,
        .y_ld = groups * out,
    };
}

static uint32_t group_count(const struct graph_node *node)
{
    return (node->edge_count - 1) / 2;
}

static void forward_linear(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    struct kelp_stream *stream = graph->stream;
    for (uint32_t g = 0; g < group_count(node); g++) {
        const struct product p = product_of(graph, node, count, g);
        const struct kelp_matmul matmul = {.transpose_b = true,
                                           .m = p.rows,
                                           .n = p.out,
                                           .k = p.in,
                                           .a = p.x->value + p.x_first,
                                           .lda = p.x_ld,
                                           .b = p.weight->value,
                                           .ldb = p.in,
                                           .c = node->buffer + p.y_first,
                                           .ldc = p.y_ld};
        const struct kelp_bias bias = {.matrix = node->buffer + p.y_first,
                                       .ld = p.y_ld,
                                       .rows = p.rows,
                                       .columns = p.out,
                                       .bias = p.bias->value};
        stream->table->matmul(stream, &matmul);
        stream->table->bias_add(stream, &bias);
    }
}

static void backward_linear(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    struct kelp_stream *stream = graph->stream;
    for (uint32_t g = 0; g < group_count(node); g++) {
        const struct product p = product_of(graph, node, count, g);
        const float *dy = node->gradient + p.y_first;
        const struct kelp_matmul weight_gradient = {.transpose_a = true,
                                                    .m = p.out,
                                                    .n = p.in,
                                                    .k = p.rows,
                                                    .a = dy,
                                                    .lda = p.y_ld,
                                                    .b = p.x->value + p.x_first,
                                                    .ldb = p.x_ld,
                                                    .c = p.weight->gradient,
                                                    .ldc = p.in,
                                                    .write = p.weight_edge->write};
        const struct kelp_bias_gradient bias_gradient = {.matrix = dy,
                                                         .ld = p.y_ld,
                                                         .rows = p.rows,
                                                         .columns = p.out,
                                                         .bias = p.bias->gradient,
                                                         .write = p.bias_edge->write};
        stream->table->matmul(stream, &weight_gradient);
        stream->table->bias_gradient(stream, &bias_gradient);
        if (p.x_edge->wanted) {
            const struct kelp_matmul x_gradient = {.m = p.rows,
                                                   .n = p.in,
                                                   .k = p.out,
                                                   .a = dy,
                                                   .lda = p.y_ld,
                                                   .b = p.weight->value,
                                                   .ldb = p.in,
                                                   .c = p.x->gradient + p.x_first,
                                                   .ldc = p.x_ld,
                                                   .write = p.x_edge->write};
            stream->table->matmul(stream, &x_gradient);
        }
    }
}

static struct kelp_moving_average average_of(const struct graph_node *node, uint32_t count)
{
    return (struct kelp_moving_average){.rows = rows_of(node, count),
                                        .length = last_dim(node),
                                        .kernel_size = node->kernel_size,
                                        .workspace = node->workspace};
}

/* From x to y. */
static struct kelp_transpose transpose_of(const struct graph_node *from, uint32_t count)
{
    const uint32_t columns = last_dim(from);
    const uint32_t rows = (uint32_t)from->shape.dims[from->shape.rank - 2];
    return (struct kelp_transpose){
        .batch = rows_of(from, count) / rows, .rows = rows, .columns = columns};
}

static void forward_node(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    struct kelp_stream *stream = graph->stream;
    const uint64_t elements = node->elem_count * count;
    const float *x = node->edge_count > 0 ? graph_operand(graph, node, 0)->value : NULL;
    switch (node->op) {
    case GRAPH_INPUT:
    case GRAPH_PARAMETER:
        break;
    case GRAPH_LINEAR:
    case GRAPH_LINEAR_GROUPED:
        forward_linear(graph, node, count);
        break;
    case GRAPH_RELU:
        stream->table->relu(stream, node->buffer, x, elements);
        break;
    case GRAPH_MOVING_AVERAGE: {
        struct kelp_moving_average average = average_of(node, count);
        average.x = x;
        average.y = node->buffer;
        stream->table->moving_average(stream, &average);
        break;
    }
    case GRAPH_ADD:
        stream->table->add(stream, node->buffer, x, graph_operand(graph, node, 1)->value, elements);
        break;
    case GRAPH_SUBTRACT:
        stream->table->subtract(stream, node->buffer, x, graph_operand(graph, node, 1)->value,
                                elements);
        break;
    case GRAPH_TRANSPOSE: {
        struct kelp_transpose transpose = transpose_of(graph_operand(graph, node, 0), count);
        transpose.x = x;
        transpose.y = node->buffer;
        stream->table->transpose(stream, &transpose);
        break;
    }
    }
}

/* Operand gradient = or += factor * the node's gradient, for sums and differences. */
static void backward_term(struct kelp_graph *graph, const struct graph_node *node, uint32_t edge,
                          float factor, uint32_t count)
{
    struct kelp_stream *stream = graph->stream;
    const struct graph_edge *term = graph_edge(graph, node, edge);
    float *gradient = graph_operand(graph, node, edge)->gradient;
    const uint64_t elements = node->elem_count * count;
    if (!term->wanted || term->shared) {
        return;
    }
    if (term->write == KELP_OVERWRITE) {
        stream->table->fill(stream, gradient, 0.0f, elements);
    }
    stream->table->axpy(stream, gradient, factor, node->gradient, elements);
}

static void backward_node(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    struct kelp_stream *stream = graph->stream;
    switch (node->op) {
    case GRAPH_INPUT:
    case GRAPH_PARAMETER:
        break;
    case GRAPH_LINEAR:
    case GRAPH_LINEAR_GROUPED:
        backward_linear(graph, node, count);
        break;
    case GRAPH_RELU:
        stream->table->relu_gradient(stream, graph_operand(graph, node, 0)->gradient, node->value,
                                     node->gradient, node->elem_count * count,
                                     graph_edge(graph, node, 0)->write);
        break;
    case GRAPH_MOVING_AVERAGE: {
        struct kelp_moving_average average = average_of(node, count);
        average.x = node->gradient;
        average.y = graph_operand(graph, node, 0)->gradient;
        average.write = graph_edge(graph, node, 0)->write;
        stream->table->moving_average_gradient(stream, &average);
        break;
    }
    case GRAPH_ADD:
        backward_term(graph, node, 0, 1.0f, count);
        backward_term(graph, node, 1, 1.0f, count);
        break;
    case GRAPH_SUBTRACT:
        backward_term(graph, node, 0, 1.0f, count);
        backward_term(graph, node, 1, -1.0f, count);
        break;
    case GRAPH_TRANSPOSE: {
        struct kelp_transpose transpose = transpose_of(node, count);
        transpose.x = node->gradient;
        transpose.y = graph_operand(graph, node, 0)->gradient;
        transpose.write = graph_edge(graph, node, 0)->write;
        stream->table->transpose(stream, &transpose);
        break;
    }
    }
}

/* What each difference is multiplied with: the loss is a mean over a sample's elements and over
 * batch_total samples. */
static float gradient_scale(const struct kelp_graph *graph, double batch_total)
{
    const double elements = (double)graph->nodes[graph->output].elem_count;
    return (float)((graph->loss == KELP_LOSS_MSE ? 2.0 : 1.0) / (elements * batch_total));
}

static void run_loss(struct kelp_graph *graph, const struct kelp_graph_run *run,
                     const float *target)
{
    struct kelp_stream *stream = graph->stream;
    struct graph_node *output = &graph->nodes[graph->output];
    const struct kelp_loss loss = {
        .output = output->value,
        .target = target,
        .samples = run->count,
        .elements = output->elem_count,
        .absolute = graph->loss == KELP_LOSS_MAE,
        .gradient_scale = graph->gradient_scale,
        .gradient = run->mode == KELP_GRAPH_TRAIN ? output->gradient : NULL,
        .sums = graph->sample_sums,
    };
    stream->table->loss(stream, &loss);
    stream->table->copy_out(stream, graph->host_sums, graph->sample_sums,
                            2 * sizeof(double) * run->count);
}

/* Sample by sample, so that the sums do not depend on how the device cut its work. */
static void add_up(const struct kelp_graph *graph, const struct kelp_graph_run *run)
{
    const double elements = (double)graph->nodes[graph->output].elem_count;
    double squared = 0.0, absolute = 0.0, loss = 0.0;
    for (uint32_t s = 0; s < run->count; s++) {
        const double *sums = graph->host_sums + 2 * (size_t)s;
        squared += sums[0];
        absolute += sums[1];
        loss += (graph->loss == KELP_LOSS_MSE ? sums[0] : sums[1]) / elements;
    }
    const uint32_t sum_count =
        run->mode == KELP_GRAPH_TRAIN ? KELP_METRIC_SCALARS : KELP_METRIC_COUNT;
    for (uint32_t i = 0; i < sum_count; i++) {
        run->sums[i] = 0.0;
    }
    run->sums[KELP_METRIC_LOSS] = loss;
    run->sums[KELP_METRIC_SAMPLES] = run->count;
    run->sums[KELP_METRIC_SQUARED] = squared;
    run->sums[KELP_METRIC_ABSOLUTE] = absolute;
    run->sums[KELP_METRIC_ELEMENTS] = elements * run->count;
}

/* Where the operators find host values: in place, or in a copy on the device. */
static const float *to_device(struct kelp_graph *graph, float *buffer, const float *host,
                              uint64_t count)
{
    if (graph->stream->table->host_memory) {
        return host;
    }
    graph->stream->table->copy_in(graph->stream, buffer, host, count * sizeof(*host));
    return buffer;
}

kelp_status kelp_graph_run(struct kelp_graph *graph, const struct kelp_graph_run *run,
                           struct kelp_error *reterr)
{
    assert(graph->memory != NULL);
    struct kelp_stream *stream = graph->stream;
    const uint32_t count = run->count;
    if (count > graph->batch_max) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "%u samples at once: the model was made for %u",
                         count, graph->batch_max);
    }
    struct graph_node *input = &graph->nodes[graph->input];
    const struct graph_node *output = &graph->nodes[graph->output];
    input->value = to_device(graph, graph->input_buffer, run->input, input->elem_count * count);
    for (uint32_t i = 0; i < graph->node_count; i++) {
        if (graph->nodes[i].reached) {
            forward_node(graph, &graph->nodes[i], count);
        }
    }
    if (run->output != NULL) {
        stream->table->copy_out(stream, run->output, output->value,
                                output->elem_count * count * sizeof(float));
    }
    const float scale = gradient_scale(graph, run->batch_total);
    if (run->mode != KELP_GRAPH_FORWARD) {
        if (run->mode == KELP_GRAPH_TRAIN) {
            stream->table->copy_in(stream, graph->gradient_scale, &scale, sizeof(scale));
        }
        run_loss(graph, run,
                 to_device(graph, graph->target_buffer, run->target, output->elem_count * count));
    }
    for (uint32_t i = graph->node_count; run->mode == KELP_GRAPH_TRAIN && i-- > 0;) {
        struct graph_node *node = &graph->nodes[i];
        if (node->reached && node->needs_gradient) {
            backward_node(graph, node, count);
        }
    }
    const kelp_status status = stream->table->wait(stream, reterr);
    if (status == KELP_OK && run->mode != KELP_GRAPH_FORWARD) {
        add_up(graph, run);
    }
    return status;
}

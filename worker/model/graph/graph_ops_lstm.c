/* One LSTM layer: arguments of the operator, and shapes. */
#include "worker/model/graph/graph_internal.h"

enum lstm_operand { LSTM_X, LSTM_H, LSTM_C, WEIGHT_IH, WEIGHT_HH, BIAS_IH, BIAS_HH, OPERANDS };

/* All arguments except the gradients. */
static struct kelp_lstm lstm_of(const struct kelp_graph *graph, const struct graph_node *node,
                                uint32_t count)
{
    return (struct kelp_lstm){
        .batch = count,
        .time = (uint32_t)node->shape.dims[0],
        .in = graph_last_dim(graph_operand(graph, node, LSTM_X)),
        .hidden = (uint32_t)node->shape.dims[1] / 2,
        .x = graph_operand(graph, node, LSTM_X)->value,
        .h_first = graph_operand(graph, node, LSTM_H)->value,
        .c_first = graph_operand(graph, node, LSTM_C)->value,
        .weight_ih = graph_operand(graph, node, WEIGHT_IH)->value,
        .weight_hh = graph_operand(graph, node, WEIGHT_HH)->value,
        .bias_ih = graph_operand(graph, node, BIAS_IH)->value,
        .bias_hh = graph_operand(graph, node, BIAS_HH)->value,
        .y = node->buffer,
        .kept = node->kept,
    };
}

static void lstm_forward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    const struct kelp_lstm lstm = lstm_of(graph, node, count);
    graph->stream->table->lstm(graph->stream, &lstm);
}

static void lstm_backward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    struct kelp_lstm lstm = lstm_of(graph, node, count);
    lstm.dy = node->gradient;
    lstm.workspace = node->workspace[1];
    lstm.dx = graph_gradient(graph, node, LSTM_X);
    lstm.dh_first = graph_gradient(graph, node, LSTM_H);
    lstm.dc_first = graph_gradient(graph, node, LSTM_C);
    lstm.dweight_ih = graph_gradient(graph, node, WEIGHT_IH);
    lstm.dweight_hh = graph_gradient(graph, node, WEIGHT_HH);
    lstm.dbias_ih = graph_gradient(graph, node, BIAS_IH);
    lstm.dbias_hh = graph_gradient(graph, node, BIAS_HH);
    lstm.write_x = graph_write(graph, node, LSTM_X);
    lstm.write_h = graph_write(graph, node, LSTM_H);
    lstm.write_c = graph_write(graph, node, LSTM_C);
    lstm.write_weight_ih = graph_write(graph, node, WEIGHT_IH);
    lstm.write_weight_hh = graph_write(graph, node, WEIGHT_HH);
    lstm.write_bias_ih = graph_write(graph, node, BIAS_IH);
    lstm.write_bias_hh = graph_write(graph, node, BIAS_HH);
    graph->stream->table->lstm_gradient(graph->stream, &lstm);
}

static bool lstm_available(const struct kelp_device_table *table)
{
    return table->lstm && table->lstm_gradient;
}

static const struct graph_operator lstm_operator = {.name = "lstm",
                                                    .available = lstm_available,
                                                    .forward = lstm_forward,
                                                    .backward = lstm_backward,
                                                    .backward_reads_output = true,
                                                    .backward_reads =
                                                        1u << LSTM_X | 1u << LSTM_H | 1u << LSTM_C};

static bool check_lstm(struct kelp_graph *graph, const char *name, const uint32_t *operands,
                       uint64_t in, uint64_t hidden)
{
    const struct kelp_shape state = {.rank = 1, .dims = {hidden}};
    const struct kelp_shape weight_ih = {.rank = 2, .dims = {4 * hidden, in}};
    const struct kelp_shape weight_hh = {.rank = 2, .dims = {4 * hidden, hidden}};
    const struct kelp_shape bias = {.rank = 1, .dims = {4 * hidden}};
    if (!kelp_shape_equal(&graph->nodes[operands[LSTM_C]].shape, &state)) {
        (void)kelp__graph_fail_shape(graph, name, "the cell state", &state,
                                     &graph->nodes[operands[LSTM_C]].shape);
        return false;
    }
    return kelp__graph_check_parameter(graph, name, "weight_ih", operands[WEIGHT_IH], &weight_ih) &&
           kelp__graph_check_parameter(graph, name, "weight_hh", operands[WEIGHT_HH], &weight_hh) &&
           kelp__graph_check_parameter(graph, name, "bias_ih", operands[BIAS_IH], &bias) &&
           kelp__graph_check_parameter(graph, name, "bias_hh", operands[BIAS_HH], &bias);
}

/* Set what a node of this size keeps and uses as scratch, for batch_max samples. */
static void set_memory(const struct kelp_graph *graph, struct graph_node *node)
{
    const uint64_t hidden = node->shape.dims[1] / 2;
    const uint64_t step = kelp__graph_product(hidden, graph->batch_max);
    node->kept_count = kelp__graph_product(step, kelp_lstm_kept(node->shape.dims[0]));
    node->workspace_count[1] = kelp__graph_product(step, kelp_lstm_workspace(node->shape.dims[0]));
}

uint32_t kelp_graph_lstm(struct kelp_graph *graph, const char *name, uint32_t x, uint32_t h,
                         uint32_t c, const struct kelp_graph_lstm *lstm)
{
    if (!kelp__graph_operand(graph, name, x) || !kelp__graph_operand(graph, name, h) ||
        !kelp__graph_operand(graph, name, c)) {
        return KELP_GRAPH_NONE;
    }
    const struct kelp_shape input = graph->nodes[x].shape, state = graph->nodes[h].shape;
    const uint32_t operands[OPERANDS] = {
        x, h, c, lstm->weight_ih, lstm->weight_hh, lstm->bias_ih, lstm->bias_hh};
    if (input.rank != 2) {
        return kelp__graph_fail_form(graph, name, "the input", "[time, in]", &input);
    }
    if (state.rank != 1 || state.dims[0] > INT32_MAX / 4) {
        return kelp__graph_fail_form(graph, name, "the state", "[hidden]", &state);
    }
    if (!check_lstm(graph, name, operands, input.dims[1], state.dims[0])) {
        return KELP_GRAPH_NONE;
    }
    if (input.dims[0] > INT32_MAX / 5) {
        return kelp_graph_fail(graph, KELP_ERR_LIMIT, "layer %s: too many time steps", name);
    }
    const struct kelp_shape shape = {.rank = 2, .dims = {input.dims[0], 2 * state.dims[0]}};
    const uint32_t id = kelp__graph_add(graph, &lstm_operator, name, &shape,
                                        (struct graph_operands){operands, OPERANDS});
    if (id != KELP_GRAPH_NONE) {
        set_memory(graph, &graph->nodes[id]);
    }
    return id;
}

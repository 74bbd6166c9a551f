/*
 * One LSTM layer, composed of matrix products and the cell. Inside, time comes first, so that each
 * step's gates and cell states are dense: gates [time][count][4 hidden], c [time][count][hidden].
 *
 * Kept for the backward pass: the activated gates and the cell states. Its workspace: the gradients
 * of the gates' sums, and one step's of h and c.
 */
#include "worker/model/graph/graph_internal.h"

enum lstm_operand { LSTM_X, LSTM_H, LSTM_C, WEIGHT_IH, WEIGHT_HH, BIAS_IH, BIAS_HH, OPERANDS };

struct lstm {
    const struct graph_node *operands[OPERANDS];
    uint32_t count, time, in, hidden;
    uint64_t gates_step, cell_step; /* elements of one step */
    float *gates, *cells;           /* kept */
};

static struct lstm lstm_of(const struct kelp_graph *graph, const struct graph_node *node,
                           uint32_t count)
{
    struct lstm lstm = {.count = count};
    for (uint32_t i = 0; i < OPERANDS; i++) {
        lstm.operands[i] = graph_operand(graph, node, i);
    }
    lstm.time = (uint32_t)node->shape.dims[0];
    lstm.hidden = (uint32_t)node->shape.dims[1] / 2;
    lstm.in = graph_last_dim(lstm.operands[LSTM_X]);
    lstm.cell_step = (uint64_t)count * lstm.hidden;
    lstm.gates_step = 4 * lstm.cell_step;
    lstm.gates = node->kept;
    lstm.cells = node->kept + (uint64_t)lstm.time * lstm.gates_step;
    return lstm;
}

/* h before step t, and the distance of its rows. */
static const float *hidden_before(const struct lstm *lstm, const struct graph_node *node,
                                  uint32_t t, uint64_t *ret_ld)
{
    *ret_ld = t == 0 ? lstm->hidden : (uint64_t)lstm->time * 2 * lstm->hidden;
    return t == 0 ? lstm->operands[LSTM_H]->value
                  : node->value + (uint64_t)(t - 1) * 2 * lstm->hidden;
}

static const float *cell_before(const struct lstm *lstm, uint32_t t)
{
    return t == 0 ? lstm->operands[LSTM_C]->value : lstm->cells + (t - 1) * lstm->cell_step;
}

/* NOLINTBEGIN(readability-non-const-parameter): written through the operator's arguments */

static uint32_t width_of(const struct lstm *lstm, enum lstm_operand weight)
{
    return weight == WEIGHT_IH ? lstm->in : lstm->hidden;
}

/* gates = (of the input) or += (of the state) rows W^T, for one step. */
static void gate_sums(struct kelp_graph *graph, const struct lstm *lstm, float *gates,
                      const float *rows, uint64_t ld, enum lstm_operand weight)
{
    const uint32_t width = width_of(lstm, weight);
    const struct kelp_matmul matmul = {.transpose_b = true,
                                       .m = lstm->count,
                                       .n = 4 * lstm->hidden,
                                       .k = width,
                                       .a = rows,
                                       .lda = ld,
                                       .b = lstm->operands[weight]->value,
                                       .ldb = width,
                                       .c = gates,
                                       .ldc = 4 * (uint64_t)lstm->hidden,
                                       .write =
                                           weight == WEIGHT_IH ? KELP_OVERWRITE : KELP_ACCUMULATE};
    graph->stream->table->matmul(graph->stream, &matmul);
}

static void add_biases(struct kelp_graph *graph, const struct lstm *lstm)
{
    for (uint32_t i = BIAS_IH; i <= BIAS_HH; i++) {
        const struct kelp_bias bias = {.matrix = lstm->gates,
                                       .ld = 4 * (uint64_t)lstm->hidden,
                                       .rows = lstm->time * lstm->count,
                                       .columns = 4 * lstm->hidden,
                                       .bias = lstm->operands[i]->value};
        graph->stream->table->bias_add(graph->stream, &bias);
    }
}

/* y[:, :, hidden + j] = the cell states, in the order of the samples. */
static void copy_cells(struct kelp_graph *graph, const struct lstm *lstm, float *y)
{
    const struct kelp_copy copy = {
        .rank = 3,
        .dims = {lstm->count, lstm->time, lstm->hidden},
        .x = lstm->cells,
        .x_strides = {lstm->hidden, lstm->cell_step, 1},
        .y = y + lstm->hidden,
        .y_strides = {(uint64_t)lstm->time * 2 * lstm->hidden, 2 * (uint64_t)lstm->hidden, 1},
        .scale = 1.0f};
    graph->stream->table->copy(graph->stream, &copy);
}

static void lstm_forward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    const struct lstm lstm = lstm_of(graph, node, count);
    const uint64_t x_ld = (uint64_t)lstm.time * lstm.in;
    for (uint32_t t = 0; t < lstm.time; t++) {
        gate_sums(graph, &lstm, lstm.gates + t * lstm.gates_step,
                  lstm.operands[LSTM_X]->value + (uint64_t)t * lstm.in, x_ld, WEIGHT_IH);
    }
    add_biases(graph, &lstm);
    for (uint32_t t = 0; t < lstm.time; t++) {
        uint64_t h_ld;
        const float *h = hidden_before(&lstm, node, t, &h_ld);
        float *gates = lstm.gates + t * lstm.gates_step;
        gate_sums(graph, &lstm, gates, h, h_ld, WEIGHT_HH);
        const struct kelp_lstm_cell cell = {.batch = count,
                                            .hidden = lstm.hidden,
                                            .gates = gates,
                                            .c_before = cell_before(&lstm, t),
                                            .c = lstm.cells + t * lstm.cell_step,
                                            .h = node->buffer + (uint64_t)t * 2 * lstm.hidden,
                                            .h_ld = (uint64_t)lstm.time * 2 * lstm.hidden};
        graph->stream->table->lstm_cell(graph->stream, &cell);
    }
    copy_cells(graph, &lstm, node->buffer);
}

/* to [count, hidden] = or += the half of dy[:, t] that begins at `first`. */
static void copy_gradient(struct kelp_graph *graph, const struct lstm *lstm, float *to,
                          const float *dy, uint64_t first, enum kelp_write write)
{
    const struct kelp_copy copy = {.rank = 2,
                                   .dims = {lstm->count, lstm->hidden},
                                   .x = dy + first,
                                   .x_strides = {(uint64_t)lstm->time * 2 * lstm->hidden, 1},
                                   .y = to,
                                   .y_strides = {lstm->hidden, 1},
                                   .scale = 1.0f,
                                   .write = write};
    graph->stream->table->copy(graph->stream, &copy);
}

/* rows = or += dgates W, for one step. */
static void step_gradient(struct kelp_graph *graph, const struct lstm *lstm, const float *dgates,
                          float *rows, enum lstm_operand weight, enum kelp_write write)
{
    const uint32_t width = width_of(lstm, weight);
    const struct kelp_matmul matmul = {.m = lstm->count,
                                       .n = width,
                                       .k = 4 * lstm->hidden,
                                       .a = dgates,
                                       .lda = 4 * (uint64_t)lstm->hidden,
                                       .b = lstm->operands[weight]->value,
                                       .ldb = width,
                                       .c = rows,
                                       .ldc = weight == WEIGHT_IH ? (uint64_t)lstm->time * lstm->in
                                                                  : lstm->hidden,
                                       .write = write};
    graph->stream->table->matmul(graph->stream, &matmul);
}

/* NOLINTEND(readability-non-const-parameter) */

/* The steps from the last to the first: dgates of all of them, and dh, dc before the first. */
static void cells_backward(struct kelp_graph *graph, const struct graph_node *node,
                           const struct lstm *lstm, float *dgates, float *dh, float *dc)
{
    for (uint32_t t = lstm->time; t-- > 0;) {
        const enum kelp_write write = t + 1 == lstm->time ? KELP_OVERWRITE : KELP_ACCUMULATE;
        const float *dy = node->gradient + (uint64_t)t * 2 * lstm->hidden;
        copy_gradient(graph, lstm, dh, dy, 0, write);
        copy_gradient(graph, lstm, dc, dy, lstm->hidden, write);
        const struct kelp_lstm_cell cell = {.batch = lstm->count,
                                            .hidden = lstm->hidden,
                                            .gates = lstm->gates + t * lstm->gates_step,
                                            .c_before = cell_before(lstm, t),
                                            .c = lstm->cells + t * lstm->cell_step,
                                            .dh = dh,
                                            .dh_ld = lstm->hidden,
                                            .dc = dc,
                                            .dgates = dgates + t * lstm->gates_step};
        graph->stream->table->lstm_cell_gradient(graph->stream, &cell);
        step_gradient(graph, lstm, dgates + t * lstm->gates_step, dh, WEIGHT_HH, KELP_OVERWRITE);
    }
}

/* dweight = or += the sum over the steps, from the first, of dgates^T rows. */
static void weight_gradient(struct kelp_graph *graph, const struct graph_node *node,
                            const struct lstm *lstm, const float *dgates, uint32_t operand)
{
    const bool of_x = operand == WEIGHT_IH;
    const uint32_t width = of_x ? lstm->in : lstm->hidden;
    for (uint32_t t = 0; t < lstm->time; t++) {
        uint64_t ld = (uint64_t)lstm->time * lstm->in;
        const float *rows = of_x ? lstm->operands[LSTM_X]->value + (uint64_t)t * lstm->in
                                 : hidden_before(lstm, node, t, &ld);
        const struct kelp_matmul matmul = {.transpose_a = true,
                                           .m = 4 * lstm->hidden,
                                           .n = width,
                                           .k = lstm->count,
                                           .a = dgates + t * lstm->gates_step,
                                           .lda = 4 * (uint64_t)lstm->hidden,
                                           .b = rows,
                                           .ldb = ld,
                                           .c = lstm->operands[operand]->gradient,
                                           .ldc = width,
                                           .write = t == 0 ? graph_write(graph, node, operand)
                                                           : KELP_ACCUMULATE};
        graph->stream->table->matmul(graph->stream, &matmul);
    }
}

static void parameters_backward(struct kelp_graph *graph, const struct graph_node *node,
                                const struct lstm *lstm, const float *dgates)
{
    weight_gradient(graph, node, lstm, dgates, WEIGHT_IH);
    weight_gradient(graph, node, lstm, dgates, WEIGHT_HH);
    for (uint32_t i = BIAS_IH; i <= BIAS_HH; i++) {
        const struct kelp_bias_gradient bias = {.matrix = dgates,
                                                .ld = 4 * (uint64_t)lstm->hidden,
                                                .rows = lstm->time * lstm->count,
                                                .columns = 4 * lstm->hidden,
                                                .bias = lstm->operands[i]->gradient,
                                                .write = graph_write(graph, node, i)};
        graph->stream->table->bias_gradient(graph->stream, &bias);
    }
}

static void add_state_gradient(struct kelp_graph *graph, const struct graph_node *node,
                               const struct lstm *lstm, uint32_t operand, const float *gradient)
{
    const struct kelp_copy copy = {.rank = 1,
                                   .dims = {lstm->cell_step},
                                   .x = gradient,
                                   .x_strides = {1},
                                   .y = graph_gradient(graph, node, operand),
                                   .y_strides = {1},
                                   .scale = 1.0f,
                                   .write = graph_write(graph, node, operand)};
    if (copy.y) {
        graph->stream->table->copy(graph->stream, &copy);
    }
}

static void lstm_backward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    const struct lstm lstm = lstm_of(graph, node, count);
    float *dgates = node->workspace[1];
    float *dh = dgates + (uint64_t)lstm.time * lstm.gates_step, *dc = dh + lstm.cell_step;
    float *dx = graph_gradient(graph, node, LSTM_X);
    cells_backward(graph, node, &lstm, dgates, dh, dc);
    parameters_backward(graph, node, &lstm, dgates);
    add_state_gradient(graph, node, &lstm, LSTM_H, dh);
    add_state_gradient(graph, node, &lstm, LSTM_C, dc);
    for (uint32_t t = 0; dx && t < lstm.time; t++) {
        step_gradient(graph, &lstm, dgates + t * lstm.gates_step, dx + (uint64_t)t * lstm.in,
                      WEIGHT_IH, graph_write(graph, node, LSTM_X));
    }
}

static bool lstm_available(const struct kelp_device_table *table)
{
    return table->lstm_cell && table->lstm_cell_gradient && table->copy;
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

/* What a node of this size keeps and works with, for batch_max samples. */
static void set_memory(const struct kelp_graph *graph, struct graph_node *node)
{
    const uint64_t hidden = node->shape.dims[1] / 2;
    const uint64_t step = kelp__graph_product(hidden, graph->batch_max);
    node->kept_count = kelp__graph_product(step, 5 * node->shape.dims[0]);
    node->workspace_count[1] = kelp__graph_product(step, 4 * node->shape.dims[0] + 2);
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
        return kelp_graph_fail(graph, KELP_ERR_LIMIT, "layer %s: too many steps of time", name);
    }
    const struct kelp_shape shape = {.rank = 2, .dims = {input.dims[0], 2 * state.dims[0]}};
    const uint32_t id = kelp__graph_add(graph, &lstm_operator, name, &shape,
                                        (struct graph_operands){operands, OPERANDS});
    if (id != KELP_GRAPH_NONE) {
        set_memory(graph, &graph->nodes[id]);
    }
    return id;
}

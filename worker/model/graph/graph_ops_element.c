/* Operators that go element by element, and those over the last dimension that need nothing but
 * their own row. */
#include "worker/model/graph/graph_internal.h"

/* ---- functions of one element ---------------------------------------------------------------- */

static bool unary_available(const struct kelp_device_table *table)
{
    return table->unary && table->unary_gradient;
}

static void unary_forward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    const struct kelp_unary unary = {.kind = node->u.unary,
                                     .x = graph_operand(graph, node, 0)->value,
                                     .y = node->buffer,
                                     .count = node->elem_count * count};
    graph->stream->table->unary(graph->stream, &unary);
}

/* Reads x for gelu, y for the others: what is not kept for it is not read. */
static void unary_backward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    const bool reads_x = node->u.unary == KELP_UNARY_GELU;
    const struct kelp_unary_gradient gradient = {.kind = node->u.unary,
                                                 .x = reads_x ? graph_operand(graph, node, 0)->value
                                                              : NULL,
                                                 .y = reads_x ? NULL : node->value,
                                                 .dy = node->gradient,
                                                 .dx = graph_operand(graph, node, 0)->gradient,
                                                 .count = node->elem_count * count,
                                                 .write = graph_write(graph, node, 0)};
    graph->stream->table->unary_gradient(graph->stream, &gradient);
}

/* From y: x need not be kept. */
#define UNARY_OF_OUTPUT(operator_name)                                                             \
    {                                                                                              \
        .name = (operator_name), .available = unary_available, .forward = unary_forward,           \
        .backward = unary_backward, .backward_reads_output = true, .in_place = true,               \
        .gradient_in_place = true, .function = true, .images = GRAPH_IMAGES_AS_IS                  \
    }
static const struct graph_operator relu_operator = UNARY_OF_OUTPUT("relu");
static const struct graph_operator elu_operator = UNARY_OF_OUTPUT("elu");
static const struct graph_operator sigmoid_operator = UNARY_OF_OUTPUT("sigmoid");
static const struct graph_operator tanh_operator = UNARY_OF_OUTPUT("tanh");
static const struct graph_operator gelu_operator = {.name = "gelu",
                                                    .available = unary_available,
                                                    .forward = unary_forward,
                                                    .backward = unary_backward,
                                                    .backward_reads = 1,
                                                    .gradient_in_place = true,
                                                    .function = true,
                                                    .images = GRAPH_IMAGES_AS_IS};

static uint32_t add_unary(struct kelp_graph *graph, const struct graph_operator *op,
                          const char *name, uint32_t x, enum kelp_unary_kind kind)
{
    const uint32_t id = kelp__graph_add_like(graph, op, name, x);
    if (id != KELP_GRAPH_NONE) {
        graph->nodes[id].u.unary = kind;
    }
    return id;
}

uint32_t kelp_graph_relu(struct kelp_graph *graph, const char *name, uint32_t x)
{
    return add_unary(graph, &relu_operator, name, x, KELP_UNARY_RELU);
}

uint32_t kelp_graph_gelu(struct kelp_graph *graph, const char *name, uint32_t x)
{
    return add_unary(graph, &gelu_operator, name, x, KELP_UNARY_GELU);
}

uint32_t kelp_graph_elu(struct kelp_graph *graph, const char *name, uint32_t x)
{
    return add_unary(graph, &elu_operator, name, x, KELP_UNARY_ELU);
}

uint32_t kelp_graph_sigmoid(struct kelp_graph *graph, const char *name, uint32_t x)
{
    return add_unary(graph, &sigmoid_operator, name, x, KELP_UNARY_SIGMOID);
}

uint32_t kelp_graph_tanh(struct kelp_graph *graph, const char *name, uint32_t x)
{
    return add_unary(graph, &tanh_operator, name, x, KELP_UNARY_TANH);
}

/* ---- scale ----------------------------------------------------------------------------------- */

static bool copy_available(const struct kelp_device_table *table)
{
    return table->copy;
}

/* NOLINTBEGIN(readability-non-const-parameter): written through the operator's arguments */
static void copy_scaled(struct kelp_graph *graph, float *y, const float *x, uint64_t count,
                        float scale, enum kelp_write write)
{
    const struct kelp_copy copy = {.rank = 1,
                                   .dims = {count},
                                   .x = x,
                                   .x_strides = {1},
                                   .y = y,
                                   .y_strides = {1},
                                   .scale = scale,
                                   .write = write};
    graph->stream->table->copy(graph->stream, &copy);
}

static void scale_forward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    copy_scaled(graph, node->buffer, graph_operand(graph, node, 0)->value, node->elem_count * count,
                node->u.factor, KELP_OVERWRITE);
}

static void scale_backward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    copy_scaled(graph, graph_operand(graph, node, 0)->gradient, node->gradient,
                node->elem_count * count, node->u.factor, graph_write(graph, node, 0));
}

static const struct graph_operator scale_operator = {.name = "scale",
                                                     .available = copy_available,
                                                     .forward = scale_forward,
                                                     .backward = scale_backward,
                                                     .images = GRAPH_IMAGES_AS_IS};

uint32_t kelp_graph_scale(struct kelp_graph *graph, const char *name, uint32_t x, float factor)
{
    const uint32_t id = kelp__graph_add_like(graph, &scale_operator, name, x);
    if (id != KELP_GRAPH_NONE) {
        graph->nodes[id].u.factor = factor;
    }
    return id;
}

/* ---- dropout --------------------------------------------------------------------------------- */

static bool dropout_available(const struct kelp_device_table *table)
{
    return table->dropout && table->copy;
}

static void run_dropout(struct kelp_graph *graph, const struct graph_node *node, uint32_t count,
                        const float *x, float *y, enum kelp_write write)
{
    const struct kelp_dropout dropout = {.x = x,
                                         .y = y,
                                         .samples = count,
                                         .elements = node->elem_count,
                                         .p = node->u.dropout.p,
                                         .use = node->u.dropout.use,
                                         .seed_step = graph->seed_step,
                                         .positions = graph->positions,
                                         .write = write};
    graph->stream->table->dropout(graph->stream, &dropout);
}

/* NOLINTEND(readability-non-const-parameter) */

static void dropout_forward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    const float *x = graph_operand(graph, node, 0)->value;
    if (graph->training) {
        run_dropout(graph, node, count, x, node->buffer, KELP_OVERWRITE);
    } else if (x != node->buffer) {
        copy_scaled(graph, node->buffer, x, node->elem_count * count, 1.0f, KELP_OVERWRITE);
    }
}

static void dropout_backward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    run_dropout(graph, node, count, node->gradient, graph_operand(graph, node, 0)->gradient,
                graph_write(graph, node, 0));
}

static const struct graph_operator dropout_operator = {.name = "dropout",
                                                       .available = dropout_available,
                                                       .forward = dropout_forward,
                                                       .backward = dropout_backward,
                                                       .in_place = true,
                                                       .gradient_in_place = true};

uint32_t kelp_graph_dropout(struct kelp_graph *graph, const char *name, uint32_t x, float p)
{
    if (!(p >= 0.0f && p < 1.0f)) {
        return kelp_graph_fail(graph, KELP_ERR_INVALID,
                               "layer %s: dropout of %g: must be at least 0 and below 1", name,
                               (double)p);
    }
    const uint32_t use = graph->dropout_count++; /* counted even where nothing is dropped */
    if (p == 0.0f) {
        return !kelp__graph_operand(graph, name, x) ? KELP_GRAPH_NONE : x;
    }
    const uint32_t id = kelp__graph_add_like(graph, &dropout_operator, name, x);
    if (id != KELP_GRAPH_NONE) {
        graph->nodes[id].u.dropout.p = p;
        graph->nodes[id].u.dropout.use = use;
    }
    return id;
}

/* ---- softmax --------------------------------------------------------------------------------- */

static bool softmax_available(const struct kelp_device_table *table)
{
    return table->softmax && table->softmax_gradient;
}

static struct kelp_softmax softmax_of(const struct graph_node *node, uint32_t count)
{
    const bool causal = node->u.softmax.causal;
    return (struct kelp_softmax){.y = node->buffer,
                                 .rows = graph_rows(node, count),
                                 .columns = graph_last_dim(node),
                                 .logarithm = node->u.softmax.logarithm,
                                 .causal = causal,
                                 .queries =
                                     causal ? (uint32_t)node->shape.dims[node->shape.rank - 2] : 0,
                                 .offset = node->u.softmax.offset};
}

static void softmax_forward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    struct kelp_softmax softmax = softmax_of(node, count);
    softmax.x = graph_operand(graph, node, 0)->value;
    graph->stream->table->softmax(graph->stream, &softmax);
}

static void softmax_backward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    struct kelp_softmax softmax = softmax_of(node, count);
    softmax.dy = node->gradient;
    softmax.dx = graph_operand(graph, node, 0)->gradient;
    softmax.write = graph_write(graph, node, 0);
    graph->stream->table->softmax_gradient(graph->stream, &softmax);
}

static const struct graph_operator softmax_operator = {.name = "softmax",
                                                       .available = softmax_available,
                                                       .forward = softmax_forward,
                                                       .backward = softmax_backward,
                                                       .backward_reads_output = true,
                                                       .in_place = true,
                                                       .gradient_in_place = true};

static uint32_t add_softmax(struct kelp_graph *graph, const char *name, uint32_t x, bool logarithm)
{
    const struct graph_node *operand = kelp__graph_operand(graph, name, x);
    if (operand && operand->shape.rank == 0) {
        return kelp__graph_fail_form(graph, name, "the input", "[..., columns]", &operand->shape);
    }
    const uint32_t id = kelp__graph_add_like(graph, &softmax_operator, name, x);
    if (id != KELP_GRAPH_NONE) {
        graph->nodes[id].u.softmax.logarithm = logarithm;
    }
    return id;
}

uint32_t kelp_graph_softmax(struct kelp_graph *graph, const char *name, uint32_t x)
{
    return add_softmax(graph, name, x, false);
}

uint32_t kelp_graph_log_softmax(struct kelp_graph *graph, const char *name, uint32_t x)
{
    return add_softmax(graph, name, x, true);
}

uint32_t kelp_graph_causal_softmax(struct kelp_graph *graph, const char *name, uint32_t x,
                                   uint32_t offset)
{
    const struct graph_node *operand = kelp__graph_operand(graph, name, x);
    if (operand && operand->shape.rank < 2) {
        return kelp__graph_fail_form(graph, name, "the input", "[..., queries, keys]",
                                     &operand->shape);
    }
    const uint32_t id = kelp__graph_add_like(graph, &softmax_operator, name, x);
    if (id != KELP_GRAPH_NONE) {
        graph->nodes[id].u.softmax.causal = true;
        graph->nodes[id].u.softmax.offset = offset;
    }
    return id;
}

/* ---- gated linear unit ----------------------------------------------------------------------- */

static bool glu_available(const struct kelp_device_table *table)
{
    return table->glu && table->glu_gradient;
}

static void glu_forward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    const struct kelp_glu glu = {.x = graph_operand(graph, node, 0)->value,
                                 .y = node->buffer,
                                 .rows = graph_rows(node, count),
                                 .width = graph_last_dim(node)};
    graph->stream->table->glu(graph->stream, &glu);
}

static void glu_backward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    const struct kelp_glu glu = {.x = graph_operand(graph, node, 0)->value,
                                 .rows = graph_rows(node, count),
                                 .width = graph_last_dim(node),
                                 .dy = node->gradient,
                                 .dx = graph_operand(graph, node, 0)->gradient,
                                 .write = graph_write(graph, node, 0)};
    graph->stream->table->glu_gradient(graph->stream, &glu);
}

static const struct graph_operator glu_operator = {.name = "glu",
                                                   .available = glu_available,
                                                   .forward = glu_forward,
                                                   .backward = glu_backward,
                                                   .backward_reads = 1};

uint32_t kelp_graph_glu(struct kelp_graph *graph, const char *name, uint32_t x)
{
    const struct graph_node *operand = kelp__graph_operand(graph, name, x);
    if (!operand) {
        return KELP_GRAPH_NONE;
    }
    struct kelp_shape shape = operand->shape;
    if (shape.rank == 0 || shape.dims[shape.rank - 1] % 2 != 0) {
        return kelp__graph_fail_form(graph, name, "the input", "[..., 2 width]", &shape);
    }
    shape.dims[shape.rank - 1] /= 2;
    return kelp__graph_add(graph, &glu_operator, name, &shape, (struct graph_operands){&x, 1});
}

/* ---- two operands of one shape --------------------------------------------------------------- */

void kelp__graph_add_gradient(struct kelp_graph *graph, const struct graph_node *node,
                              uint32_t operand, float factor, uint32_t count)
{
    struct kelp_stream *stream = graph->stream;
    const struct graph_edge *edge = graph_edge(graph, node, operand);
    float *gradient = graph_operand(graph, node, operand)->gradient;
    const uint64_t elements = node->elem_count * count;
    if (!edge->wanted || edge->shared) {
        return;
    }
    if (edge->write == KELP_OVERWRITE) {
        stream->table->fill(stream, gradient, 0.0f, elements);
    }
    stream->table->axpy(stream, gradient, factor, node->gradient, elements);
}

static void add_forward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    graph->stream->table->add(graph->stream, node->buffer, graph_operand(graph, node, 0)->value,
                              graph_operand(graph, node, 1)->value, node->elem_count * count);
}

static void add_backward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    kelp__graph_add_gradient(graph, node, 0, 1.0f, count);
    kelp__graph_add_gradient(graph, node, 1, 1.0f, count);
}

static void subtract_forward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    graph->stream->table->subtract(graph->stream, node->buffer,
                                   graph_operand(graph, node, 0)->value,
                                   graph_operand(graph, node, 1)->value, node->elem_count * count);
}

static void subtract_backward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    kelp__graph_add_gradient(graph, node, 0, 1.0f, count);
    kelp__graph_add_gradient(graph, node, 1, -1.0f, count);
}

static bool multiply_available(const struct kelp_device_table *table)
{
    return table->multiply;
}

static void multiply_forward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    const struct kelp_multiply multiply = {.a = graph_operand(graph, node, 0)->value,
                                           .b = graph_operand(graph, node, 1)->value,
                                           .y = node->buffer,
                                           .count = node->elem_count * count};
    graph->stream->table->multiply(graph->stream, &multiply);
}

static void multiply_backward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    for (uint32_t i = 0; i < 2; i++) {
        const struct kelp_multiply multiply = {.a = node->gradient,
                                               .b = graph_operand(graph, node, 1 - i)->value,
                                               .y = graph_gradient(graph, node, i),
                                               .count = node->elem_count * count,
                                               .write = graph_write(graph, node, i)};
        if (multiply.y) {
            graph->stream->table->multiply(graph->stream, &multiply);
        }
    }
}

static const struct graph_operator add_operator = {.name = "add",
                                                   .forward = add_forward,
                                                   .backward = add_backward,
                                                   .in_place = true,
                                                   .gradient_same = 3,
                                                   .images = GRAPH_IMAGES_AS_IS};
static const struct graph_operator subtract_operator = {.name = "subtract",
                                                        .forward = subtract_forward,
                                                        .backward = subtract_backward,
                                                        .in_place = true,
                                                        .gradient_same = 1,
                                                        .images = GRAPH_IMAGES_AS_IS};
static const struct graph_operator multiply_operator = {.name = "multiply",
                                                        .available = multiply_available,
                                                        .forward = multiply_forward,
                                                        .backward = multiply_backward,
                                                        .backward_reads = 3,
                                                        .images = GRAPH_IMAGES_AS_IS};

static uint32_t add_binary(struct kelp_graph *graph, const struct graph_operator *op,
                           const char *name, uint32_t a, uint32_t b)
{
    const struct graph_node *first = kelp__graph_operand(graph, name, a);
    const struct graph_node *second = !first ? NULL : kelp__graph_operand(graph, name, b);
    if (!second) {
        return KELP_GRAPH_NONE;
    }
    if (!kelp_shape_equal(&first->shape, &second->shape)) {
        return kelp__graph_fail_shape(graph, name, "the second operand", &first->shape,
                                      &second->shape);
    }
    const struct kelp_shape shape = first->shape;
    const uint32_t operands[] = {a, b};
    return kelp__graph_add(graph, op, name, &shape, (struct graph_operands){operands, 2});
}

uint32_t kelp_graph_add(struct kelp_graph *graph, const char *name, uint32_t a, uint32_t b)
{
    return add_binary(graph, &add_operator, name, a, b);
}

uint32_t kelp_graph_subtract(struct kelp_graph *graph, const char *name, uint32_t a, uint32_t b)
{
    return add_binary(graph, &subtract_operator, name, a, b);
}

uint32_t kelp_graph_multiply(struct kelp_graph *graph, const char *name, uint32_t a, uint32_t b)
{
    return add_binary(graph, &multiply_operator, name, a, b);
}

/* Building: nodes, edges, and the checks that all layers share. */
#include "worker/model/graph/graph.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/model/graph/graph_internal.h"

struct kelp_graph *kelp_graph_create(struct kelp_stream *stream, uint32_t batch_max)
{
    struct kelp_graph *graph = calloc(1, sizeof(*graph));
    if (!graph) {
        return NULL;
    }
    graph->stream = stream;
    graph->batch_max = batch_max;
    graph->output = KELP_GRAPH_NONE;
    return graph;
}

void kelp_graph_destroy(struct kelp_graph *graph)
{
    if (!graph) {
        return;
    }
    for (uint32_t i = 0; i < graph->node_count; i++) {
        if (graph->nodes[i].op == &kelp__graph_conv2d && graph->nodes[i].u.window.conv) {
            graph->stream->table->conv2d_destroy(graph->nodes[i].u.window.conv);
        }
    }
    kelp__graph_forget_staged(graph);
    kelp__graph_steps_fini(graph);
    graph->stream->table->free(graph->stream->device, graph->memory);
    for (uint32_t i = 0; i < KELP_GRAPH_PENDING_MAX; i++) {
        graph->stream->table->host_free(graph->stream->device, graph->pending[i].numbers);
        graph->stream->table->host_free(graph->stream->device, graph->pending[i].positions);
        graph->stream->table->host_free(graph->stream->device, graph->pending[i].sums);
        free(graph->pending[i].labels);
        free(graph->pending[i].factors);
    }
    free(graph->steps);
    free(graph->parameters);
    free(graph->edges);
    free(graph->nodes);
    free(graph);
}

void kelp_shape_print(const struct kelp_shape *shape, char *text, size_t text_bytes)
{
    size_t used = (size_t)snprintf(text, text_bytes, "[");
    for (uint32_t i = 0; i < shape->rank && used < text_bytes; i++) {
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%" PRIu64, i == 0 ? "" : ", ",
                                 shape->dims[i]);
    }
    if (used < text_bytes) {
        (void)snprintf(text + used, text_bytes - used, "]");
    }
}

bool kelp_shape_equal(const struct kelp_shape *a, const struct kelp_shape *b)
{
    return a->rank == b->rank && memcmp(a->dims, b->dims, a->rank * sizeof(a->dims[0])) == 0;
}

const struct kelp_shape *kelp_graph_shape(const struct kelp_graph *graph, uint32_t node)
{
    return node == KELP_GRAPH_NONE ? NULL : &graph->nodes[node].shape;
}

uint32_t kelp_graph_fail(struct kelp_graph *graph, kelp_status status, const char *format, ...)
{
    if (graph->status != KELP_OK) {
        return KELP_GRAPH_NONE;
    }
    va_list args;
    va_start(args, format);
    /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): started on the line above */
    (void)vsnprintf(graph->error.text, sizeof(graph->error.text), format, args);
    va_end(args);
    graph->error.status = status;
    graph->status = status;
    return KELP_GRAPH_NONE;
}

uint32_t kelp__graph_fail_form(struct kelp_graph *graph, const char *name, const char *what,
                               const char *wanted, const struct kelp_shape *found)
{
    char found_text[GRAPH_SHAPE_TEXT_SIZE];
    kelp_shape_print(found, found_text, sizeof(found_text));
    return kelp_graph_fail(graph, KELP_ERR_INVALID, "layer %s: %s must be %s, but is %s", name,
                           what, wanted, found_text);
}

uint32_t kelp__graph_fail_shape(struct kelp_graph *graph, const char *name, const char *what,
                                const struct kelp_shape *wanted, const struct kelp_shape *found)
{
    char wanted_text[GRAPH_SHAPE_TEXT_SIZE];
    kelp_shape_print(wanted, wanted_text, sizeof(wanted_text));
    return kelp__graph_fail_form(graph, name, what, wanted_text, found);
}

/* The array with room for count elements; NULL when there is no memory, the array then being as it
 * was. */
static void *reserve(void *array, uint32_t *capacity, uint64_t count, size_t elem_bytes)
{
    if (count <= *capacity) {
        return array;
    }
    const uint64_t grown = count < 16 ? 16 : count * 2;
    void *memory = grown > UINT32_MAX ? NULL : realloc(array, (size_t)grown * elem_bytes);
    if (memory) {
        *capacity = (uint32_t)grown;
    }
    return memory;
}

/* Room for one more node with so many operands. */
static bool reserve_node(struct kelp_graph *graph, uint32_t operand_count)
{
    struct graph_node *nodes =
        reserve(graph->nodes, &graph->node_capacity, graph->node_count + 1ull, sizeof(*nodes));
    if (!nodes) {
        return false;
    }
    graph->nodes = nodes;
    /* One more than needed, so that an empty array is no failure. */
    struct graph_edge *edges = reserve(graph->edges, &graph->edge_capacity,
                                       graph->edge_count + 1ull + operand_count, sizeof(*edges));
    if (!edges) {
        return false;
    }
    graph->edges = edges;
    return true;
}

/* Elements of a shape; false when they overflow or there are none. */
static bool shape_count(const struct kelp_shape *shape, uint64_t *ret_count)
{
    uint64_t count = 1;
    for (uint32_t i = 0; i < shape->rank; i++) {
        if (shape->dims[i] == 0 || __builtin_mul_overflow(count, shape->dims[i], &count)) {
            return false;
        }
    }
    *ret_count = count;
    return count <= UINT64_MAX / sizeof(double);
}

uint64_t kelp__graph_product(uint64_t a, uint64_t b)
{
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

static bool is_parameter(const struct graph_node *node)
{
    return node->op == &kelp__graph_parameter || node->op == &kelp__graph_rows;
}

uint32_t kelp__graph_add(struct kelp_graph *graph, const struct graph_operator *op,
                         const char *name, const struct kelp_shape *shape,
                         struct graph_operands operands)
{
    if (graph->status != KELP_OK) {
        return KELP_GRAPH_NONE;
    }
    const enum kelp_layout layout = kelp__graph_layout_of(graph, op, operands);
    for (uint32_t i = 0; i < operands.count; i++) {
        if (kelp__graph_turn(graph, operands.nodes[i], layout) == KELP_GRAPH_NONE) {
            return KELP_GRAPH_NONE;
        }
    }
    return kelp__graph_add_node(graph, op, name, shape, operands, layout, layout);
}

uint32_t kelp__graph_add_node(struct kelp_graph *graph, const struct graph_operator *op,
                              const char *name, const struct kelp_shape *shape,
                              struct graph_operands operands, enum kelp_layout from,
                              enum kelp_layout layout)
{
    uint64_t elem_count;
    if (shape->rank > KELP_TENSOR_RANK_MAX || !shape_count(shape, &elem_count)) {
        char text[GRAPH_SHAPE_TEXT_SIZE];
        kelp_shape_print(shape, text, sizeof(text));
        return kelp_graph_fail(graph, KELP_ERR_INVALID, "layer %s: no tensor can have the shape %s",
                               name, text);
    }
    if (graph->node_count >= KELP_GRAPH_NODES_MAX) {
        return kelp_graph_fail(graph, KELP_ERR_LIMIT, "layer %s: more than %u nodes", name,
                               KELP_GRAPH_NODES_MAX);
    }
    if (!reserve_node(graph, operands.count)) {
        return kelp_graph_fail(graph, KELP_ERR_NO_MEMORY, "layer %s: out of memory", name);
    }
    struct graph_node *node = &graph->nodes[graph->node_count];
    *node =
        (struct graph_node){.op = op,
                            .shape = *shape,
                            .elem_count = elem_count,
                            .per_sample = op != &kelp__graph_parameter && op != &kelp__graph_rows,
                            .needs_gradient = op == &kelp__graph_parameter,
                            .layout = kelp__graph_is_flat(shape) ? KELP_CHANNELS_FIRST : layout,
                            .turned = KELP_GRAPH_NONE,
                            .edge_first = graph->edge_count,
                            .edge_count = operands.count,
                            .complete_from = KELP_GRAPH_NONE};
    (void)snprintf(node->name, sizeof(node->name), "%s", name);
    for (uint32_t i = 0; i < operands.count; i++) {
        const uint32_t id = kelp__graph_turned(graph, operands.nodes[i], from);
        struct graph_node *operand = &graph->nodes[id];
        node->needs_gradient = node->needs_gradient || operand->needs_gradient;
        operand->consumer_count++;
        graph->edges[graph->edge_count++] = (struct graph_edge){.node = id};
    }
    return graph->node_count++;
}

uint32_t kelp__graph_add_like(struct kelp_graph *graph, const struct graph_operator *op,
                              const char *name, uint32_t x)
{
    const struct graph_node *operand = kelp__graph_operand(graph, name, x);
    if (!operand) {
        return KELP_GRAPH_NONE;
    }
    const struct kelp_shape shape = operand->shape;
    return kelp__graph_add(graph, op, name, &shape, (struct graph_operands){&x, 1});
}

const struct graph_node *kelp__graph_operand(struct kelp_graph *graph, const char *name, uint32_t x)
{
    if (graph->status != KELP_OK) {
        return NULL;
    }
    if (x >= graph->node_count) {
        (void)kelp_graph_fail(graph, KELP_ERR_INVALID, "layer %s: operand does not exist", name);
        return NULL;
    }
    if (!graph->nodes[x].per_sample) {
        (void)kelp_graph_fail(graph, KELP_ERR_INVALID,
                              "layer %s: takes values of samples, but %s is a parameter", name,
                              graph->nodes[x].name);
        return NULL;
    }
    return &graph->nodes[x];
}

bool kelp__graph_check_parameter(struct kelp_graph *graph, const char *name, const char *what,
                                 uint32_t parameter, const struct kelp_shape *wanted)
{
    if (graph->status != KELP_OK) {
        return false;
    }
    if (parameter >= graph->node_count || !is_parameter(&graph->nodes[parameter])) {
        (void)kelp_graph_fail(graph, KELP_ERR_INVALID, "layer %s: %s must be a parameter", name,
                              what);
        return false;
    }
    if (!kelp_shape_equal(&graph->nodes[parameter].shape, wanted)) {
        (void)kelp__graph_fail_shape(graph, name, what, wanted, &graph->nodes[parameter].shape);
        return false;
    }
    return true;
}

/* ---- inputs and parameters ------------------------------------------------------------------- */

/* The single input is the record itself; of several, each is gathered from the records. */
static bool input_available(const struct kelp_device_table *table)
{
    (void)table;
    return true;
}

static void input_forward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    if (graph->input_count == 1) {
        node->value = graph->input;
        return;
    }
    const struct kelp_copy copy = {.rank = 2,
                                   .dims = {count, node->elem_count},
                                   .x = graph->input + node->u.input_first,
                                   .x_strides = {graph->record_count, 1},
                                   .y = node->buffer,
                                   .y_strides = {node->elem_count, 1},
                                   .scale = 1.0f};
    graph->stream->table->copy(graph->stream, &copy);
}

const struct graph_operator kelp__graph_input = {
    .name = "input", .available = input_available, .forward = input_forward};
const struct graph_operator kelp__graph_parameter = {.name = "parameter"};
const struct graph_operator kelp__graph_rows = {.name = "rows"};

uint32_t kelp_graph_input(struct kelp_graph *graph, const char *name,
                          const struct kelp_shape *shape)
{
    const uint32_t id =
        kelp__graph_add(graph, &kelp__graph_input, name, shape, (struct graph_operands){NULL, 0});
    if (id == KELP_GRAPH_NONE) {
        return id;
    }
    graph->nodes[id].u.input_first = graph->record_count;
    if (__builtin_add_overflow(graph->record_count, graph->nodes[id].elem_count,
                               &graph->record_count)) {
        return kelp_graph_fail(graph, KELP_ERR_LIMIT, "layer %s: the inputs are too large", name);
    }
    graph->input_count++;
    return id;
}

/* A parameter's name stands in checkpoints, in files and on people's screens. */
static bool is_printable(const char *name)
{
    for (const char *c = name; *c != '\0'; c++) {
        if (*c <= ' ' || *c > '~') {
            return false;
        }
    }
    return name[0] != '\0';
}

uint32_t kelp_graph_parameter(struct kelp_graph *graph, const char *name,
                              const struct kelp_shape *shape, struct kelp_graph_init init)
{
    if (strlen(name) > KELP_TENSOR_NAME_MAX) {
        return kelp_graph_fail(graph, KELP_ERR_LIMIT, "parameter %.32s...: name over %d bytes",
                               name, KELP_TENSOR_NAME_MAX);
    }
    if (!is_printable(name)) {
        return kelp_graph_fail(graph, KELP_ERR_INVALID,
                               "parameter '%s': a name must be printable ASCII without blanks",
                               name);
    }
    const uint32_t id = kelp__graph_add(graph, &kelp__graph_parameter, name, shape,
                                        (struct graph_operands){NULL, 0});
    if (id != KELP_GRAPH_NONE) {
        graph->nodes[id].u.parameter.init = init;
        graph->nodes[id].u.parameter.index = graph->parameter_count++;
    }
    return id;
}

uint32_t kelp_graph_statistic(struct kelp_graph *graph, const char *name,
                              const struct kelp_shape *shape, float initial, float momentum)
{
    const uint32_t id = kelp_graph_parameter(
        graph, name, shape, (struct kelp_graph_init){.kind = KELP_INIT_CONSTANT, .a = initial});
    if (id != KELP_GRAPH_NONE) {
        graph->nodes[id].statistic = true;
        graph->nodes[id].needs_gradient = false;
        graph->nodes[id].u.parameter.momentum = momentum;
    }
    return id;
}

uint32_t kelp_graph_rows(struct kelp_graph *graph, const char *name, uint32_t parameter,
                         uint64_t first, uint64_t count)
{
    if (graph->status != KELP_OK) {
        return KELP_GRAPH_NONE;
    }
    if (parameter >= graph->node_count || graph->nodes[parameter].op != &kelp__graph_parameter ||
        graph->nodes[parameter].statistic || graph->nodes[parameter].shape.rank == 0) {
        return kelp_graph_fail(graph, KELP_ERR_INVALID, "layer %s: rows are taken of a parameter",
                               name);
    }
    struct graph_node *whole = &graph->nodes[parameter];
    struct kelp_shape shape = whole->shape;
    if (first > shape.dims[0] || count > shape.dims[0] - first) {
        return kelp_graph_fail(graph, KELP_ERR_INVALID,
                               "layer %s: rows [%" PRIu64 ", +%" PRIu64
                               ") of %s, which has %" PRIu64,
                               name, first, count, whole->name, shape.dims[0]);
    }
    const uint64_t row = whole->elem_count / shape.dims[0];
    whole->u.parameter.viewed = true;
    shape.dims[0] = count;
    const uint32_t id = kelp__graph_add(graph, &kelp__graph_rows, name, &shape,
                                        (struct graph_operands){&parameter, 1});
    if (id != KELP_GRAPH_NONE) {
        graph->nodes[id].u.rows_first = first * row;
    }
    return id;
}

/* ---- what a finished graph tells ------------------------------------------------------------- */

uint32_t kelp_graph_parameter_count(const struct kelp_graph *graph)
{
    return graph->parameter_count;
}

void kelp_graph_parameter_tensor(const struct kelp_graph *graph, uint32_t index,
                                 struct kelp_tensor *ret_tensor)
{
    assert(index < graph->parameter_count);
    const struct graph_node *node = &graph->nodes[graph->parameters[index]];
    *ret_tensor = (struct kelp_tensor){.rank = node->shape.rank,
                                       .elem_count = node->elem_count,
                                       .init = node->u.parameter.init.kind,
                                       .init_a = node->u.parameter.init.a,
                                       .statistic = node->statistic,
                                       .momentum = node->u.parameter.momentum,
                                       .decays = !node->statistic};
    memcpy(ret_tensor->name, node->name, sizeof(ret_tensor->name));
    memcpy(ret_tensor->shape, node->shape.dims, node->shape.rank * sizeof(ret_tensor->shape[0]));
}

/* What was taken of a parameter moves with it. */
static void bind_rows(struct kelp_graph *graph, uint32_t parameter)
{
    const struct graph_node *whole = &graph->nodes[parameter];
    for (uint32_t i = parameter + 1; i < graph->node_count; i++) {
        struct graph_node *node = &graph->nodes[i];
        if (node->op == &kelp__graph_rows && graph_edge(graph, node, 0)->node == parameter) {
            node->value = whole->value + node->u.rows_first;
            node->gradient = !whole->gradient ? NULL : whole->gradient + node->u.rows_first;
        }
    }
}

void kelp_graph_bind(struct kelp_graph *graph, uint32_t index, const float *value, float *gradient)
{
    assert(index < graph->parameter_count);
    struct graph_node *node = &graph->nodes[graph->parameters[index]];
    node->value = value;
    node->gradient = gradient;
    if (node->u.parameter.viewed) {
        bind_rows(graph, graph->parameters[index]);
    }
}

uint64_t kelp_graph_record_count(const struct kelp_graph *graph)
{
    return graph->record_count;
}

void kelp_graph_memory(const struct kelp_graph *graph, struct kelp_graph_memory *ret_memory)
{
    *ret_memory = graph->bytes;
}

uint32_t kelp_graph_layer_count(const struct kelp_graph *graph)
{
    return graph->node_count;
}

void kelp_graph_layer(const struct kelp_graph *graph, uint32_t index,
                      struct kelp_graph_layer *ret_layer)
{
    assert(index < graph->node_count);
    const struct graph_node *node = &graph->nodes[index];
    *ret_layer =
        (struct kelp_graph_layer){.name = node->name,
                                  .operator_name = node->statistic ? "statistic" : node->op->name,
                                  .shape = node->shape};
    for (uint32_t e = 0; e < node->edge_count; e++) {
        const struct graph_node *operand = graph_operand(graph, node, e);
        if (is_parameter(operand) && !operand->statistic) {
            ret_layer->parameters += operand->elem_count;
        }
    }
}

uint64_t kelp_graph_batch_norm_values(const struct kelp_graph *graph, const char **ret_name)
{
    uint64_t values = 0;
    *ret_name = NULL;
    for (uint32_t i = 0; i < graph->node_count; i++) {
        const struct graph_node *node = &graph->nodes[i];
        if (node->op != &kelp__graph_batch_norm) {
            continue;
        }
        const uint64_t inner = node->elem_count / node->shape.dims[0];
        if (!*ret_name || inner < values) {
            values = inner;
            *ret_name = node->name;
        }
    }
    return values;
}

/* Building: nodes, edges and the checks of their shapes. */
#include "worker/graph.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/graph_private.h"

#define SHAPE_TEXT_SIZE 192

struct kelp_graph *kelp_graph_create(struct kelp_stream *stream, uint32_t batch_max)
{
    struct kelp_graph *graph = calloc(1, sizeof(*graph));
    if (graph == NULL) {
        return NULL;
    }
    graph->stream = stream;
    graph->batch_max = batch_max;
    graph->input = KELP_GRAPH_NONE;
    graph->output = KELP_GRAPH_NONE;
    return graph;
}

void kelp_graph_destroy(struct kelp_graph *graph)
{
    if (graph == NULL) {
        return;
    }
    graph->stream->table->free(graph->stream->device, graph->memory);
    free(graph->host_sums);
    free(graph->parameters);
    free(graph->edges);
    free(graph->nodes);
    free(graph);
}

void kelp_shape_print(const struct kelp_shape *shape, char *text, size_t text_bytes)
{
    size_t used = (size_t)snprintf(text, text_bytes, "[");
    for (uint32_t i = 0; i < shape->rank && used < text_bytes; i++) {
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%llu", i == 0 ? "" : ", ",
                                 (unsigned long long)shape->dims[i]);
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

/* "fc1: takes [..., 15], not [10]": the one form of all shape errors. */
static uint32_t fail_shape(struct kelp_graph *graph, const char *name, const char *what,
                           const struct kelp_shape *wanted, const struct kelp_shape *found)
{
    char wanted_text[SHAPE_TEXT_SIZE], found_text[SHAPE_TEXT_SIZE];
    kelp_shape_print(wanted, wanted_text, sizeof(wanted_text));
    kelp_shape_print(found, found_text, sizeof(found_text));
    return kelp_graph_fail(graph, KELP_ERR_INVALID, "layer %s: %s must be %s, but is %s", name,
                           what, wanted_text, found_text);
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
    if (memory != NULL) {
        *capacity = (uint32_t)grown;
    }
    return memory;
}

/* Room for one more node with so many operands. */
static bool reserve_node(struct kelp_graph *graph, uint32_t operand_count)
{
    struct graph_node *nodes =
        reserve(graph->nodes, &graph->node_capacity, graph->node_count + 1ull, sizeof(*nodes));
    if (nodes == NULL) {
        return false;
    }
    graph->nodes = nodes;
    /* One more than needed, so that an empty array is no failure. */
    struct graph_edge *edges = reserve(graph->edges, &graph->edge_capacity,
                                       graph->edge_count + 1ull + operand_count, sizeof(*edges));
    if (edges == NULL) {
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

/* The operands of a node to be. */
struct operands {
    const uint32_t *nodes;
    uint32_t count;
};

static uint32_t add_node(struct kelp_graph *graph, enum graph_op op, const char *name,
                         const struct kelp_shape *shape, struct operands operands)
{
    uint64_t elem_count;
    if (graph->status != KELP_OK) {
        return KELP_GRAPH_NONE;
    }
    if (shape->rank > KELP_TENSOR_RANK_MAX || !shape_count(shape, &elem_count)) {
        char text[SHAPE_TEXT_SIZE];
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
    *node = (struct graph_node){.op = op,
                                .shape = *shape,
                                .elem_count = elem_count,
                                .per_sample = op != GRAPH_PARAMETER,
                                .needs_gradient = op == GRAPH_PARAMETER,
                                .edge_first = graph->edge_count,
                                .edge_count = operands.count};
    (void)snprintf(node->name, sizeof(node->name), "%s", name);
    for (uint32_t i = 0; i < operands.count; i++) {
        struct graph_node *operand = &graph->nodes[operands.nodes[i]];
        node->needs_gradient = node->needs_gradient || operand->needs_gradient;
        operand->consumer_count++;
        graph->edges[graph->edge_count++] = (struct graph_edge){.node = operands.nodes[i]};
    }
    return graph->node_count++;
}

uint32_t kelp_graph_input(struct kelp_graph *graph, const char *name,
                          const struct kelp_shape *shape)
{
    if (graph->input != KELP_GRAPH_NONE) {
        return kelp_graph_fail(graph, KELP_ERR_INVALID, "layer %s: there is an input already",
                               name);
    }
    graph->input = add_node(graph, GRAPH_INPUT, name, shape, (struct operands){NULL, 0});
    return graph->input;
}

uint32_t kelp_graph_parameter(struct kelp_graph *graph, const char *name,
                              const struct kelp_shape *shape, float bound)
{
    if (strlen(name) > KELP_TENSOR_NAME_MAX) {
        return kelp_graph_fail(graph, KELP_ERR_LIMIT, "parameter %.32s...: name over %d bytes",
                               name, KELP_TENSOR_NAME_MAX);
    }
    const uint32_t id = add_node(graph, GRAPH_PARAMETER, name, shape, (struct operands){NULL, 0});
    if (id != KELP_GRAPH_NONE) {
        graph->nodes[id].bound = bound;
        graph->parameter_count++;
    }
    return id;
}

/* A layer's operand x: there, and not a parameter. */
static const struct graph_node *operand_of(struct kelp_graph *graph, const char *name, uint32_t x)
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

/* weight must be [out, in] and bias [out] for this `in`; ret_out is set on success. */
static bool check_linear(struct kelp_graph *graph, const char *name, uint64_t in, uint32_t weight,
                         uint32_t bias, uint64_t *ret_out)
{
    if (weight >= graph->node_count || bias >= graph->node_count ||
        graph->nodes[weight].op != GRAPH_PARAMETER || graph->nodes[bias].op != GRAPH_PARAMETER) {
        (void)kelp_graph_fail(graph, KELP_ERR_INVALID,
                              "layer %s: weight and bias must be parameters", name);
        return false;
    }
    const struct kelp_shape *weight_shape = &graph->nodes[weight].shape;
    const uint64_t out = weight_shape->rank > 0 ? weight_shape->dims[0] : 0;
    const struct kelp_shape weight_wanted = {.rank = 2, .dims = {out, in}};
    if (!kelp_shape_equal(weight_shape, &weight_wanted)) {
        (void)fail_shape(graph, name, "the weight", &weight_wanted, weight_shape);
        return false;
    }
    const struct kelp_shape bias_wanted = {.rank = 1, .dims = {out}};
    if (!kelp_shape_equal(&graph->nodes[bias].shape, &bias_wanted)) {
        (void)fail_shape(graph, name, "the bias", &bias_wanted, &graph->nodes[bias].shape);
        return false;
    }
    *ret_out = out;
    return true;
}

uint32_t kelp_graph_linear(struct kelp_graph *graph, const char *name, uint32_t x, uint32_t weight,
                           uint32_t bias)
{
    const struct graph_node *operand = operand_of(graph, name, x);
    if (operand == NULL) {
        return KELP_GRAPH_NONE;
    }
    struct kelp_shape shape = operand->shape;
    if (shape.rank == 0) {
        return kelp_graph_fail(graph, KELP_ERR_INVALID,
                               "layer %s: the input must be [..., in], but is []", name);
    }
    uint64_t *last = &shape.dims[shape.rank - 1];
    if (!check_linear(graph, name, *last, weight, bias, last)) {
        return KELP_GRAPH_NONE;
    }
    const uint32_t operands[] = {x, weight, bias};
    return add_node(graph, GRAPH_LINEAR, name, &shape, (struct operands){operands, 3});
}

uint32_t kelp_graph_linear_grouped(struct kelp_graph *graph, const char *name, uint32_t x,
                                   const uint32_t *weights, const uint32_t *biases,
                                   uint32_t group_count)
{
    const struct graph_node *operand = operand_of(graph, name, x);
    if (operand == NULL) {
        return KELP_GRAPH_NONE;
    }
    const struct kelp_shape found = operand->shape;
    const struct kelp_shape wanted = {.rank = 2,
                                      .dims = {group_count, found.rank == 2 ? found.dims[1] : 0}};
    if (group_count == 0 || !kelp_shape_equal(&found, &wanted)) {
        return fail_shape(graph, name, "the input", &wanted, &found);
    }
    uint64_t out = 0;
    for (uint32_t g = 0; g < group_count; g++) {
        uint64_t group_out;
        if (!check_linear(graph, name, found.dims[1], weights[g], biases[g], &group_out)) {
            return KELP_GRAPH_NONE;
        }
        if (g > 0 && group_out != out) {
            const struct kelp_shape like_first = {.rank = 2, .dims = {out, found.dims[1]}};
            return fail_shape(graph, name, "each weight", &like_first,
                              &graph->nodes[weights[g]].shape);
        }
        out = group_out;
    }
    uint32_t *operands = calloc(1 + 2 * (size_t)group_count, sizeof(*operands));
    if (operands == NULL) {
        return kelp_graph_fail(graph, KELP_ERR_NO_MEMORY, "layer %s: out of memory", name);
    }
    operands[0] = x;
    for (uint32_t g = 0; g < group_count; g++) {
        operands[1 + 2 * (size_t)g] = weights[g];
        operands[2 + 2 * (size_t)g] = biases[g];
    }
    const struct kelp_shape shape = {.rank = 2, .dims = {group_count, out}};
    const uint32_t id = add_node(graph, GRAPH_LINEAR_GROUPED, name, &shape,
                                 (struct operands){operands, 1 + 2 * group_count});
    free(operands);
    return id;
}

/* A layer that keeps the shape of its operand. */
static uint32_t add_elementwise(struct kelp_graph *graph, enum graph_op op, const char *name,
                                uint32_t x)
{
    const struct graph_node *operand = operand_of(graph, name, x);
    if (operand == NULL) {
        return KELP_GRAPH_NONE;
    }
    const struct kelp_shape shape = operand->shape;
    return add_node(graph, op, name, &shape, (struct operands){&x, 1});
}

uint32_t kelp_graph_relu(struct kelp_graph *graph, const char *name, uint32_t x)
{
    return add_elementwise(graph, GRAPH_RELU, name, x);
}

uint32_t kelp_graph_moving_average(struct kelp_graph *graph, const char *name, uint32_t x,
                                   uint32_t kernel_size)
{
    const struct graph_node *operand = operand_of(graph, name, x);
    if (operand == NULL) {
        return KELP_GRAPH_NONE;
    }
    if (operand->shape.rank == 0 || operand->shape.dims[operand->shape.rank - 1] > UINT32_MAX) {
        return kelp_graph_fail(graph, KELP_ERR_INVALID,
                               "layer %s: the input must be [..., length], length below 2^32",
                               name);
    }
    if (kernel_size % 2 == 0 || kernel_size > (1u << 24)) {
        return kelp_graph_fail(graph, KELP_ERR_INVALID,
                               "layer %s: kernel size %u: must be odd and at most 2^24", name,
                               kernel_size);
    }
    const uint32_t id = add_elementwise(graph, GRAPH_MOVING_AVERAGE, name, x);
    if (id != KELP_GRAPH_NONE) {
        struct graph_node *node = &graph->nodes[id];
        const uint32_t length = (uint32_t)node->shape.dims[node->shape.rank - 1];
        node->kernel_size = kernel_size;
        node->workspace_count = kelp_moving_average_workspace(length, kernel_size);
    }
    return id;
}

static uint32_t add_binary(struct kelp_graph *graph, enum graph_op op, const char *name, uint32_t a,
                           uint32_t b)
{
    const struct graph_node *first = operand_of(graph, name, a);
    const struct graph_node *second = first == NULL ? NULL : operand_of(graph, name, b);
    if (second == NULL) {
        return KELP_GRAPH_NONE;
    }
    if (!kelp_shape_equal(&first->shape, &second->shape)) {
        return fail_shape(graph, name, "the second operand", &first->shape, &second->shape);
    }
    const struct kelp_shape shape = first->shape;
    const uint32_t operands[] = {a, b};
    return add_node(graph, op, name, &shape, (struct operands){operands, 2});
}

uint32_t kelp_graph_add(struct kelp_graph *graph, const char *name, uint32_t a, uint32_t b)
{
    return add_binary(graph, GRAPH_ADD, name, a, b);
}

uint32_t kelp_graph_subtract(struct kelp_graph *graph, const char *name, uint32_t a, uint32_t b)
{
    return add_binary(graph, GRAPH_SUBTRACT, name, a, b);
}

uint32_t kelp_graph_transpose(struct kelp_graph *graph, const char *name, uint32_t x)
{
    const struct graph_node *operand = operand_of(graph, name, x);
    if (operand == NULL) {
        return KELP_GRAPH_NONE;
    }
    struct kelp_shape shape = operand->shape;
    if (shape.rank < 2) {
        char text[SHAPE_TEXT_SIZE];
        kelp_shape_print(&shape, text, sizeof(text));
        return kelp_graph_fail(graph, KELP_ERR_INVALID,
                               "layer %s: the input must be [..., rows, columns], but is %s", name,
                               text);
    }
    const uint64_t columns = shape.dims[shape.rank - 1];
    shape.dims[shape.rank - 1] = shape.dims[shape.rank - 2];
    shape.dims[shape.rank - 2] = columns;
    return add_node(graph, GRAPH_TRANSPOSE, name, &shape, (struct operands){&x, 1});
}

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
                                       .init = KELP_INIT_UNIFORM,
                                       .init_a = node->bound};
    memcpy(ret_tensor->name, node->name, sizeof(ret_tensor->name));
    memcpy(ret_tensor->shape, node->shape.dims, node->shape.rank * sizeof(ret_tensor->shape[0]));
}

void kelp_graph_bind(struct kelp_graph *graph, uint32_t index, const float *value, float *gradient)
{
    assert(index < graph->parameter_count);
    struct graph_node *node = &graph->nodes[graph->parameters[index]];
    node->value = value;
    node->gradient = gradient;
}

size_t kelp_graph_memory(const struct kelp_graph *graph)
{
    return graph->memory_bytes;
}

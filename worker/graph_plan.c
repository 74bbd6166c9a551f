/*
 * Finishing a graph: which gradients are computed and who writes them first, then one block of
 * device memory for all values.
 *
 * Every value that the backward pass may read keeps its own place. Two savings are taken: ReLU
 * works in place where nothing else reads its operand, forward and backward, and the gradient of a
 * sum is the gradient of each operand, so operands without other consumers use the same buffer.
 */
#include <assert.h>
#include <limits.h>
#include <stdlib.h>

#include "worker/graph.h"
#include "worker/graph_private.h"

/* Between buffers, so that those that one loop walks together do not start at the same offset in a
 * page: equal alignment costs a factor of two to three. */
#define STAGGER_BYTES 320

/* Mark what the output depends on, and how each gradient is written, in the order of the backward
 * pass: from the last node to the first, each node's operands in order. */
static void plan_backward(struct kelp_graph *graph)
{
    graph->nodes[graph->output].reached = true;
    for (uint32_t i = graph->node_count; i-- > 0;) {
        const struct graph_node *node = &graph->nodes[i];
        for (uint32_t e = 0; node->reached && e < node->edge_count; e++) {
            struct graph_edge *edge = &graph->edges[node->edge_first + e];
            struct graph_node *operand = &graph->nodes[edge->node];
            edge->wanted = operand->needs_gradient;
            edge->write = operand->reached ? KELP_ACCUMULATE : KELP_OVERWRITE;
            operand->reached = true;
        }
    }
}

/* True when this edge's operand can have the node's gradient buffer for its own. */
static bool can_share_gradient(const struct graph_node *node, uint32_t edge)
{
    switch (node->op) {
    case GRAPH_ADD:
        return true;
    case GRAPH_SUBTRACT:
        return edge == 0;
    case GRAPH_RELU:
        /* In place, so nobody else may look at the buffer. */
        return !node->gradient_shared;
    case GRAPH_INPUT:
    case GRAPH_PARAMETER:
    case GRAPH_LINEAR:
    case GRAPH_LINEAR_GROUPED:
    case GRAPH_MOVING_AVERAGE:
    case GRAPH_TRANSPOSE:
        return false;
    }
    return false;
}

static void plan_sharing(struct kelp_graph *graph)
{
    for (uint32_t i = graph->node_count; i-- > 0;) {
        struct graph_node *node = &graph->nodes[i];
        for (uint32_t e = 0; node->reached && e < node->edge_count; e++) {
            struct graph_edge *edge = &graph->edges[node->edge_first + e];
            struct graph_node *operand = &graph->nodes[edge->node];
            edge->shared = edge->wanted && operand->per_sample && operand->consumer_count == 1 &&
                           can_share_gradient(node, e);
            operand->gradient_shared = operand->gradient_shared || edge->shared;
        }
        if (node->op == GRAPH_RELU) {
            const struct graph_node *operand = graph_operand(graph, node, 0);
            /* The backward pass of these two reads their value; the input's is the caller's. */
            node->value_shared = operand->consumer_count == 1 && operand->op != GRAPH_INPUT &&
                                 operand->op != GRAPH_RELU;
        }
    }
}

/* Hands out places in the block; with base NULL it only counts. */
struct layout {
    char *base;
    uint64_t used;
    bool overflow;
};

static void *place(struct layout *layout, uint64_t count, uint64_t batch, size_t elem_bytes)
{
    uint64_t bytes;
    void *memory = layout->base == NULL ? NULL : layout->base + layout->used;
    if (__builtin_mul_overflow(count, batch, &bytes) ||
        __builtin_mul_overflow(bytes, elem_bytes, &bytes) || bytes > (uint64_t)1 << 46 ||
        __builtin_add_overflow(layout->used, bytes + STAGGER_BYTES + KELP_DEVICE_ALIGN,
                               &layout->used)) {
        layout->overflow = true;
        return NULL;
    }
    layout->used -= layout->used % KELP_DEVICE_ALIGN;
    return memory;
}

static void lay_out(struct kelp_graph *graph, struct layout *layout)
{
    const uint64_t batch = graph->batch_max;
    for (uint32_t i = 0; i < graph->node_count; i++) {
        struct graph_node *node = &graph->nodes[i];
        if (node->op == GRAPH_INPUT || node->op == GRAPH_PARAMETER) {
            continue;
        }
        node->buffer = node->value_shared ? graph_operand(graph, node, 0)->buffer
                                          : place(layout, node->elem_count, batch, sizeof(float));
        node->value = node->buffer;
        if (node->workspace_count != 0) {
            node->workspace = place(layout, node->workspace_count, 1, sizeof(float));
        }
    }
    for (uint32_t i = graph->node_count; i-- > 0;) {
        struct graph_node *node = &graph->nodes[i];
        if (!node->reached || !node->needs_gradient || !node->per_sample) {
            continue;
        }
        if (!node->gradient_shared) {
            node->gradient = place(layout, node->elem_count, batch, sizeof(float));
        }
        for (uint32_t e = 0; e < node->edge_count; e++) {
            if (graph_edge(graph, node, e)->shared) {
                graph_operand(graph, node, e)->gradient = node->gradient;
            }
        }
    }
    if (!graph->stream->table->host_memory) {
        graph->input_buffer =
            place(layout, graph->nodes[graph->input].elem_count, batch, sizeof(float));
        graph->target_buffer =
            place(layout, graph->nodes[graph->output].elem_count, batch, sizeof(float));
    }
    graph->gradient_scale = place(layout, 1, 1, sizeof(float));
    graph->sample_sums = place(layout, 2, batch, sizeof(double));
}

/* Rows and columns are 32-bit numbers in the operators. */
static kelp_status check_sizes(struct kelp_graph *graph, struct kelp_error *reterr)
{
    for (uint32_t i = 0; i < graph->node_count; i++) {
        const struct graph_node *node = &graph->nodes[i];
        const uint64_t last = node->shape.rank == 0 ? 1 : node->shape.dims[node->shape.rank - 1];
        const uint64_t batch = node->per_sample ? graph->batch_max : 1;
        uint64_t rows;
        if (last > INT_MAX || __builtin_mul_overflow(node->elem_count / last, batch, &rows) ||
            rows > INT_MAX) {
            return kelp_fail(reterr, KELP_ERR_LIMIT,
                             "layer %s: with %u samples at once it has more than 2^31 rows or "
                             "columns",
                             node->name, graph->batch_max);
        }
    }
    return KELP_OK;
}

static kelp_status list_parameters(struct kelp_graph *graph, struct kelp_error *reterr)
{
    graph->parameters = calloc(graph->parameter_count + 1u, sizeof(*graph->parameters));
    if (graph->parameters == NULL) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    uint32_t count = 0;
    for (uint32_t i = 0; i < graph->node_count; i++) {
        if (graph->nodes[i].op != GRAPH_PARAMETER) {
            continue;
        }
        if (!graph->nodes[i].reached) {
            return kelp_fail(reterr, KELP_ERR_INVALID,
                             "parameter %s takes no part in the model's output",
                             graph->nodes[i].name);
        }
        graph->parameters[count++] = i;
    }
    assert(count == graph->parameter_count);
    return KELP_OK;
}

static kelp_status allocate(struct kelp_graph *graph, struct kelp_error *reterr)
{
    struct layout layout = {.base = NULL};
    lay_out(graph, &layout);
    if (layout.overflow || layout.used > SIZE_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "the model is too large for %u samples at once",
                         graph->batch_max);
    }
    graph->host_sums = calloc(2 * (size_t)graph->batch_max, sizeof(*graph->host_sums));
    if (graph->host_sums == NULL) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    void *memory = NULL;
    const kelp_status status =
        graph->stream->table->alloc(graph->stream->device, (size_t)layout.used, &memory, reterr);
    if (status != KELP_OK) {
        return status;
    }
    graph->memory = memory;
    graph->memory_bytes = (size_t)layout.used;
    layout = (struct layout){.base = graph->memory};
    lay_out(graph, &layout);
    assert(layout.used == graph->memory_bytes);
    return KELP_OK;
}

static kelp_status check_target(const struct kelp_graph *graph, const struct kelp_shape *target,
                                struct kelp_error *reterr)
{
    const struct kelp_shape *output = &graph->nodes[graph->output].shape;
    if (kelp_shape_equal(output, target)) {
        return KELP_OK;
    }
    char output_text[192], target_text[192];
    kelp_shape_print(output, output_text, sizeof(output_text));
    kelp_shape_print(target, target_text, sizeof(target_text));
    return kelp_fail(reterr, KELP_ERR_INVALID,
                     "layer %s: the model's output is %s for each sample, but the target is %s",
                     graph->nodes[graph->output].name, output_text, target_text);
}

kelp_status kelp_graph_finish(struct kelp_graph *graph, uint32_t output,
                              const struct kelp_shape *target, enum kelp_loss_kind loss,
                              struct kelp_error *reterr)
{
    if (graph->status != KELP_OK) {
        return kelp_fail(reterr, graph->status, "%s", graph->error.text);
    }
    assert(graph->memory == NULL);
    if (graph->input == KELP_GRAPH_NONE || output >= graph->node_count ||
        !graph->nodes[output].needs_gradient || !graph->nodes[output].per_sample) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "the model has no input, or its output depends on no parameter");
    }
    if (graph->batch_max == 0) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "a batch of 0 samples at most");
    }
    graph->output = output;
    graph->loss = loss;
    kelp_status status = check_target(graph, target, reterr);
    if (status == KELP_OK) {
        plan_backward(graph);
        plan_sharing(graph);
        status = list_parameters(graph, reterr);
    }
    if (status == KELP_OK) {
        status = check_sizes(graph, reterr);
    }
    return status == KELP_OK ? allocate(graph, reterr) : status;
}

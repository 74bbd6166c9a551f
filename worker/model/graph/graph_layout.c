/*
 * The memory layout of images: channels first, as in their shapes, or channels last if the device
 * supports it (kernels/device.h).
 *
 * The layout is chosen while the graph grows. Convolutions ask for channels last; elementwise
 * operators, pooling and batch norm keep the layout of their input; all others, and the model's
 * output, need channels first. If a value has the other layout, one node transposes it for all its
 * readers, and the backward pass transposes the gradient back. Images of one channel, or of one
 * element per channel, are the same in both layouts and count as channels first.
 */
#include <assert.h>

#include "worker/model/graph/graph_internal.h"

bool kelp__graph_is_flat(const struct kelp_shape *shape)
{
    return shape->rank != 3 || shape->dims[0] == 1 || (shape->dims[1] == 1 && shape->dims[2] == 1);
}

enum kelp_layout kelp__graph_layout_of(const struct kelp_graph *graph,
                                       const struct graph_operator *op,
                                       struct graph_operands operands)
{
    if (!graph->stream->table->channels_last || op->images == GRAPH_IMAGES_FIRST) {
        return KELP_CHANNELS_FIRST;
    }
    bool last = op->images == GRAPH_IMAGES_LAST;
    for (uint32_t i = 0; i < operands.count; i++) {
        last = last || graph->nodes[operands.nodes[i]].layout == KELP_CHANNELS_LAST;
    }
    return last ? KELP_CHANNELS_LAST : KELP_CHANNELS_FIRST;
}

static bool stands_so(const struct graph_node *node, enum kelp_layout layout)
{
    return !node->per_sample || node->layout == layout || kelp__graph_is_flat(&node->shape);
}

uint32_t kelp__graph_turned(const struct kelp_graph *graph, uint32_t node, enum kelp_layout layout)
{
    const uint32_t turned = graph->nodes[node].turned;
    assert(stands_so(&graph->nodes[node], layout) || turned != KELP_GRAPH_NONE);
    return stands_so(&graph->nodes[node], layout) ? node : turned;
}

/* ---- the node that transposes a value -------------------------------------------------------- */

/* The transposition from this layout to the other one. */
static struct kelp_transpose transpose_of(const struct graph_node *node, enum kelp_layout from,
                                          uint32_t count)
{
    const uint32_t channels = (uint32_t)node->shape.dims[0];
    const uint32_t plane = (uint32_t)(node->elem_count / channels);
    const bool first = from == KELP_CHANNELS_FIRST;
    return (struct kelp_transpose){
        .batch = count, .rows = first ? channels : plane, .columns = first ? plane : channels};
}

static void turn_forward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    const struct graph_node *x = graph_operand(graph, node, 0);
    struct kelp_transpose transpose = transpose_of(node, x->layout, count);
    transpose.x = x->value;
    transpose.y = node->buffer;
    graph->stream->table->transpose(graph->stream, &transpose);
}

static void turn_backward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    struct kelp_transpose transpose = transpose_of(node, node->layout, count);
    transpose.x = node->gradient;
    transpose.y = graph_operand(graph, node, 0)->gradient;
    transpose.write = graph_write(graph, node, 0);
    graph->stream->table->transpose(graph->stream, &transpose);
}

static const struct graph_operator turns[] = {
    [KELP_CHANNELS_FIRST] = {.name = "channels_first",
                             .forward = turn_forward,
                             .backward = turn_backward},
    [KELP_CHANNELS_LAST] = {.name = "channels_last",
                            .forward = turn_forward,
                            .backward = turn_backward},
};

uint32_t kelp__graph_turn(struct kelp_graph *graph, uint32_t node, enum kelp_layout layout)
{
    if (stands_so(&graph->nodes[node], layout)) {
        return node;
    }
    if (graph->nodes[node].turned == KELP_GRAPH_NONE) {
        const struct graph_node from = graph->nodes[node]; /* a copy: adding a node may move it */
        const uint32_t turned =
            kelp__graph_add_node(graph, &turns[layout], from.name, &from.shape,
                                 (struct graph_operands){&node, 1}, from.layout, layout);
        if (turned == KELP_GRAPH_NONE) {
            return turned;
        }
        graph->nodes[turned].turned = node;
        graph->nodes[node].turned = turned;
    }
    return graph->nodes[node].turned;
}

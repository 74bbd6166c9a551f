/*
 * Fuses nodes that one operator can compute: a linear layer and the elementwise function that
 * follows it. The layer takes the function's place, and the function is no longer reached. No other
 * node may read the layer's output, so results stay the same, bit for bit.
 */
#include "worker/model/graph/graph_internal.h"

/* Make all readers of `from` read `to`, an earlier node. */
static void redirect(struct kelp_graph *graph, uint32_t from, uint32_t to)
{
    for (uint32_t e = 0; e < graph->edge_count; e++) {
        graph->edges[e].node = graph->edges[e].node == from ? to : graph->edges[e].node;
    }
    graph->nodes[to].consumer_count = graph->nodes[from].consumer_count;
    graph->output = graph->output == from ? to : graph->output;
}

void kelp__graph_fuse(struct kelp_graph *graph)
{
    for (uint32_t i = 0; i < graph->node_count; i++) {
        const struct graph_node *node = &graph->nodes[i];
        if (!node->op->function) {
            continue;
        }
        const uint32_t before = graph_edge(graph, node, 0)->node;
        if (graph->nodes[before].consumer_count == 1 && before != graph->output &&
            kelp__graph_linear_activate(graph, &graph->nodes[before], node->u.unary)) {
            redirect(graph, i, before);
        }
    }
}

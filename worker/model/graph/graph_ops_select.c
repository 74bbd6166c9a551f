/* Moving averages, weighted sums, and rows of a table. */
#include "worker/model/graph/graph_internal.h"

/* ---- moving average -------------------------------------------------------------------------- */

static struct kelp_moving_average average_of(const struct graph_node *node, uint32_t count)
{
    return (struct kelp_moving_average){.rows = graph_rows(node, count),
                                        .length = graph_last_dim(node),
                                        .kernel_size = node->u.kernel_size};
}

static void average_forward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    struct kelp_moving_average average = average_of(node, count);
    average.x = graph_operand(graph, node, 0)->value;
    average.y = node->buffer;
    average.workspace = node->workspace[0];
    graph->stream->table->moving_average(graph->stream, &average);
}

static void average_backward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    struct kelp_moving_average average = average_of(node, count);
    average.x = node->gradient;
    average.y = graph_operand(graph, node, 0)->gradient;
    average.workspace = node->workspace[1];
    average.write = graph_write(graph, node, 0);
    graph->stream->table->moving_average_gradient(graph->stream, &average);
}

static const struct graph_operator average_operator = {
    .name = "moving_average", .forward = average_forward, .backward = average_backward};

uint32_t kelp_graph_moving_average(struct kelp_graph *graph, const char *name, uint32_t x,
                                   uint32_t kernel_size)
{
    const struct graph_node *operand = kelp__graph_operand(graph, name, x);
    if (!operand) {
        return KELP_GRAPH_NONE;
    }
    if (operand->shape.rank == 0 || operand->shape.dims[operand->shape.rank - 1] > UINT32_MAX) {
        return kelp__graph_fail_form(graph, name, "the input", "[..., length], length below 2^32",
                                     &operand->shape);
    }
    if (kernel_size % 2 == 0 || kernel_size > (1u << 24)) {
        return kelp_graph_fail(graph, KELP_ERR_INVALID,
                               "layer %s: kernel size %u: must be odd and at most 2^24", name,
                               kernel_size);
    }
    const uint32_t id = kelp__graph_add_like(graph, &average_operator, name, x);
    if (id != KELP_GRAPH_NONE) {
        struct graph_node *node = &graph->nodes[id];
        node->u.kernel_size = kernel_size;
        node->workspace_count[0] = node->workspace_count[1] =
            kelp_moving_average_workspace(graph_last_dim(node), kernel_size);
    }
    return id;
}

/* ---- weighted sum ---------------------------------------------------------------------------- */

static bool weighted_sum_available(const struct kelp_device_table *table)
{
    return table->weighted_sum && table->weighted_sum_gradient;
}

static struct kelp_weighted_sum weighted_sum_of(const struct kelp_graph *graph,
                                                const struct graph_node *node, uint32_t count)
{
    const struct graph_node *weights = graph_operand(graph, node, 0);
    return (struct kelp_weighted_sum){.weights = weights->value,
                                      .x = graph_operand(graph, node, 1)->value,
                                      .rows = graph_rows(node, count),
                                      .count = graph_last_dim(weights),
                                      .width = graph_last_dim(node)};
}

static void weighted_sum_forward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    struct kelp_weighted_sum sum = weighted_sum_of(graph, node, count);
    sum.y = node->buffer;
    graph->stream->table->weighted_sum(graph->stream, &sum);
}

static void weighted_sum_backward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    struct kelp_weighted_sum sum = weighted_sum_of(graph, node, count);
    sum.dy = node->gradient;
    sum.dweights = graph_gradient(graph, node, 0);
    sum.dx = graph_gradient(graph, node, 1);
    sum.write_weights = graph_write(graph, node, 0);
    sum.write_x = graph_write(graph, node, 1);
    graph->stream->table->weighted_sum_gradient(graph->stream, &sum);
}

static const struct graph_operator weighted_sum_operator = {.name = "weighted_sum",
                                                            .available = weighted_sum_available,
                                                            .forward = weighted_sum_forward,
                                                            .backward = weighted_sum_backward,
                                                            .backward_reads = 3};

uint32_t kelp_graph_weighted_sum(struct kelp_graph *graph, const char *name, uint32_t weights,
                                 uint32_t x)
{
    const struct graph_node *first = kelp__graph_operand(graph, name, weights);
    const struct graph_node *second = !first ? NULL : kelp__graph_operand(graph, name, x);
    if (!second) {
        return KELP_GRAPH_NONE;
    }
    struct kelp_shape shape = second->shape;
    if (shape.rank < 2) {
        return kelp__graph_fail_form(graph, name, "the input", "[..., count, width]", &shape);
    }
    struct kelp_shape wanted = shape;
    wanted.rank--;
    if (!kelp_shape_equal(&first->shape, &wanted)) {
        return kelp__graph_fail_shape(graph, name, "the weights", &wanted, &first->shape);
    }
    shape.rank--;
    shape.dims[shape.rank - 1] = shape.dims[shape.rank];
    const uint32_t operands[] = {weights, x};
    return kelp__graph_add(graph, &weighted_sum_operator, name, &shape,
                           (struct graph_operands){operands, 2});
}

/* ---- embedding ------------------------------------------------------------------------------- */

static bool embedding_available(const struct kelp_device_table *table)
{
    return table->embedding && table->embedding_gradient;
}

/* One row for each id: all of them, or the column's. */
static struct kelp_embedding embedding_of(const struct kelp_graph *graph,
                                          const struct graph_node *node, uint32_t count)
{
    const struct graph_node *ids = graph_operand(graph, node, 0);
    const struct graph_node *table = graph_operand(graph, node, 1);
    const bool all = node->u.column == KELP_GRAPH_NONE;
    return (struct kelp_embedding){.ids = ids->value + (all ? 0 : node->u.column),
                                   .ids_stride = all ? 1 : graph_last_dim(ids),
                                   .rows = graph_rows(node, count),
                                   .vocab = (uint32_t)table->shape.dims[0],
                                   .width = graph_last_dim(table)};
}

static void embedding_forward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    struct kelp_embedding embedding = embedding_of(graph, node, count);
    embedding.table = graph_operand(graph, node, 1)->value;
    embedding.y = node->buffer;
    graph->stream->table->embedding(graph->stream, &embedding);
}

static void embedding_backward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    struct kelp_embedding embedding = embedding_of(graph, node, count);
    embedding.dy = node->gradient;
    embedding.dtable = graph_operand(graph, node, 1)->gradient;
    embedding.write = graph_write(graph, node, 1);
    graph->stream->table->embedding_gradient(graph->stream, &embedding);
}

static const struct graph_operator embedding_operator = {.name = "embedding",
                                                         .available = embedding_available,
                                                         .forward = embedding_forward,
                                                         .backward = embedding_backward,
                                                         .backward_reads = 1};

uint32_t kelp_graph_embedding(struct kelp_graph *graph, const char *name, uint32_t ids,
                              uint32_t column, uint32_t table)
{
    const struct graph_node *operand = kelp__graph_operand(graph, name, ids);
    if (!operand) {
        return KELP_GRAPH_NONE;
    }
    struct kelp_shape shape = operand->shape;
    if (operand->needs_gradient) {
        return kelp_graph_fail(graph, KELP_ERR_INVALID,
                               "layer %s: %s is computed, but categories are inputs", name,
                               operand->name);
    }
    if (column != KELP_GRAPH_NONE && (shape.rank == 0 || column >= shape.dims[shape.rank - 1])) {
        char text[GRAPH_SHAPE_TEXT_SIZE];
        kelp_shape_print(&shape, text, sizeof(text));
        return kelp_graph_fail(graph, KELP_ERR_INVALID, "layer %s: column %u of %s", name, column,
                               text);
    }
    if (shape.rank == KELP_TENSOR_RANK_MAX) {
        return kelp__graph_fail_form(graph, name, "the input", "of fewer dimensions", &shape);
    }
    const struct kelp_shape *rows = table >= graph->node_count ? NULL : &graph->nodes[table].shape;
    const uint64_t vocab = rows && rows->rank == 2 ? rows->dims[0] : 0;
    const uint64_t width = rows && rows->rank == 2 ? rows->dims[1] : 0;
    const struct kelp_shape wanted = {.rank = 2, .dims = {vocab, width}};
    if (!kelp__graph_check_parameter(graph, name, "the table", table, &wanted)) {
        return KELP_GRAPH_NONE;
    }
    if (column != KELP_GRAPH_NONE) {
        shape.rank--;
    }
    shape.dims[shape.rank++] = width;
    const uint32_t operands[] = {ids, table};
    const uint32_t id = kelp__graph_add(graph, &embedding_operator, name, &shape,
                                        (struct graph_operands){operands, 2});
    if (id != KELP_GRAPH_NONE) {
        graph->nodes[id].u.column = column;
    }
    return id;
}

/* Layer norm and batch norm. */
#include "worker/model/graph/graph_internal.h"

/* ---- layer norm: keeps mean and rstd of each row --------------------------------------------- */

static bool layer_norm_available(const struct kelp_device_table *table)
{
    return table->layer_norm && table->layer_norm_gradient;
}

static struct kelp_layer_norm layer_norm_of(const struct kelp_graph *graph,
                                            const struct graph_node *node, uint32_t count)
{
    return (struct kelp_layer_norm){.x = graph_operand(graph, node, 0)->value,
                                    .weight = graph_operand(graph, node, 1)->value,
                                    .bias = graph_operand(graph, node, 2)->value,
                                    .mean = node->kept,
                                    .rstd = node->kept + node->kept_count / 2,
                                    .rows = graph_rows(node, count),
                                    .width = graph_last_dim(node),
                                    .eps = node->u.eps};
}

static void layer_norm_forward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    struct kelp_layer_norm norm = layer_norm_of(graph, node, count);
    norm.y = node->buffer;
    graph->stream->table->layer_norm(graph->stream, &norm);
}

static void layer_norm_backward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    struct kelp_layer_norm norm = layer_norm_of(graph, node, count);
    norm.dy = node->gradient;
    norm.dx = graph_gradient(graph, node, 0);
    norm.dweight = graph_gradient(graph, node, 1);
    norm.dbias = graph_gradient(graph, node, 2);
    norm.write_x = graph_write(graph, node, 0);
    norm.write_weight = graph_write(graph, node, 1);
    norm.write_bias = graph_write(graph, node, 2);
    graph->stream->table->layer_norm_gradient(graph->stream, &norm);
}

static const struct graph_operator layer_norm_operator = {.name = "layer_norm",
                                                          .available = layer_norm_available,
                                                          .forward = layer_norm_forward,
                                                          .backward = layer_norm_backward,
                                                          .backward_reads = 1};

uint32_t kelp_graph_layer_norm(struct kelp_graph *graph, const char *name, uint32_t x,
                               uint32_t weight, uint32_t bias, float eps)
{
    const struct graph_node *operand = kelp__graph_operand(graph, name, x);
    if (!operand) {
        return KELP_GRAPH_NONE;
    }
    const struct kelp_shape shape = operand->shape;
    if (shape.rank == 0) {
        return kelp__graph_fail_form(graph, name, "the input", "[..., width]", &shape);
    }
    const struct kelp_shape wanted = {.rank = 1, .dims = {shape.dims[shape.rank - 1]}};
    if (!kelp__graph_check_parameter(graph, name, "the weight", weight, &wanted) ||
        !kelp__graph_check_parameter(graph, name, "the bias", bias, &wanted)) {
        return KELP_GRAPH_NONE;
    }
    const uint32_t operands[] = {x, weight, bias};
    const uint32_t id = kelp__graph_add(graph, &layer_norm_operator, name, &shape,
                                        (struct graph_operands){operands, 3});
    if (id != KELP_GRAPH_NONE) {
        struct graph_node *node = &graph->nodes[id];
        node->u.eps = eps;
        node->kept_count = kelp__graph_product(node->elem_count / shape.dims[shape.rank - 1],
                                               2 * (uint64_t)graph->batch_max);
    }
    return id;
}

/* ---- batch norm: keeps mean and rstd of each channel ----------------------------------------- */

static bool batch_norm_available(const struct kelp_device_table *table)
{
    return table->batch_norm && table->batch_norm_gradient;
}

enum batch_norm_operand { BATCH_NORM_X, WEIGHT, BIAS, MEAN, VARIANCE };

static struct kelp_batch_norm batch_norm_of(const struct kelp_graph *graph,
                                            const struct graph_node *node, uint32_t count)
{
    const uint32_t channels = (uint32_t)node->shape.dims[0];
    return (struct kelp_batch_norm){.x = graph_operand(graph, node, BATCH_NORM_X)->value,
                                    .weight = graph_operand(graph, node, WEIGHT)->value,
                                    .bias = graph_operand(graph, node, BIAS)->value,
                                    .samples = count,
                                    .channels = channels,
                                    .inner = node->elem_count / channels,
                                    .layout = node->layout,
                                    .eps = node->u.eps,
                                    .training = graph->training,
                                    .mean = node->kept,
                                    .rstd = node->kept + channels};
}

static void batch_norm_forward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    struct kelp_batch_norm norm = batch_norm_of(graph, node, count);
    norm.y = node->buffer;
    norm.running_mean = graph_operand(graph, node, MEAN)->value;
    norm.running_variance = graph_operand(graph, node, VARIANCE)->value;
    norm.statistic_scale = &graph->scales[GRAPH_SCALE_STATISTIC];
    if (graph->training) {
        norm.statistic_mean = graph_operand(graph, node, MEAN)->gradient;
        norm.statistic_variance = graph_operand(graph, node, VARIANCE)->gradient;
    }
    norm.write_statistic = graph_write(graph, node, MEAN);
    graph->stream->table->batch_norm(graph->stream, &norm);
}

static void batch_norm_backward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    struct kelp_batch_norm norm = batch_norm_of(graph, node, count);
    norm.dy = node->gradient;
    norm.dx = graph_gradient(graph, node, BATCH_NORM_X);
    norm.dweight = graph_gradient(graph, node, WEIGHT);
    norm.dbias = graph_gradient(graph, node, BIAS);
    norm.write_x = graph_write(graph, node, BATCH_NORM_X);
    norm.write_weight = graph_write(graph, node, WEIGHT);
    norm.write_bias = graph_write(graph, node, BIAS);
    graph->stream->table->batch_norm_gradient(graph->stream, &norm);
}

const struct graph_operator kelp__graph_batch_norm = {.name = "batch_norm",
                                                      .available = batch_norm_available,
                                                      .forward = batch_norm_forward,
                                                      .backward = batch_norm_backward,
                                                      .backward_reads = 1,
                                                      .images = GRAPH_IMAGES_AS_IS};

/* A running statistic must belong to this batch norm only. */
static bool check_statistic(struct kelp_graph *graph, const char *name, const char *what,
                            uint32_t statistic, const struct kelp_shape *wanted)
{
    if (!kelp__graph_check_parameter(graph, name, what, statistic, wanted)) {
        return false;
    }
    if (!graph->nodes[statistic].statistic || graph->nodes[statistic].consumer_count != 0) {
        (void)kelp_graph_fail(graph, KELP_ERR_INVALID,
                              "layer %s: %s must be a statistic of its own", name, what);
        return false;
    }
    return true;
}

uint32_t kelp_graph_batch_norm(struct kelp_graph *graph, const char *name, uint32_t x,
                               const struct kelp_graph_batch_norm *norm)
{
    const struct graph_node *operand = kelp__graph_operand(graph, name, x);
    if (!operand) {
        return KELP_GRAPH_NONE;
    }
    const struct kelp_shape shape = operand->shape;
    if (shape.rank == 0 || shape.dims[0] > UINT32_MAX) {
        return kelp__graph_fail_form(graph, name, "the input", "[channels, ...]", &shape);
    }
    const struct kelp_shape wanted = {.rank = 1, .dims = {shape.dims[0]}};
    if (!kelp__graph_check_parameter(graph, name, "the weight", norm->weight, &wanted) ||
        !kelp__graph_check_parameter(graph, name, "the bias", norm->bias, &wanted) ||
        !check_statistic(graph, name, "the running mean", norm->mean, &wanted) ||
        !check_statistic(graph, name, "the running variance", norm->variance, &wanted)) {
        return KELP_GRAPH_NONE;
    }
    const uint32_t operands[] = {x, norm->weight, norm->bias, norm->mean, norm->variance};
    const uint32_t id = kelp__graph_add(graph, &kelp__graph_batch_norm, name, &shape,
                                        (struct graph_operands){operands, 5});
    if (id != KELP_GRAPH_NONE) {
        graph->nodes[id].u.eps = norm->eps;
        graph->nodes[id].kept_count = 2 * shape.dims[0];
    }
    return id;
}

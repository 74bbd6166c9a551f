/* Convolution and pooling over [channels, height, width], which may be in memory with channels
 * last. */
#include "worker/model/graph/graph_internal.h"

#include <inttypes.h>

/*
 * Compute the window's sizes over x. False: they do not fit, and the failure is kept. graph_plan.c
 * later checks rows and columns as 32-bit numbers, so only overflow matters here.
 */
static bool fill_window(struct kelp_graph *graph, const char *name, const struct kelp_shape *x,
                        struct kelp_window *window)
{
    if (x->rank != 3 || x->dims[0] > INT32_MAX || x->dims[1] > INT32_MAX ||
        x->dims[2] > INT32_MAX) {
        (void)kelp__graph_fail_form(graph, name, "the input", "[channels, height, width]", x);
        return false;
    }
    window->channels = (uint32_t)x->dims[0];
    for (uint32_t side = 0; side < 2; side++) {
        const uint64_t input = x->dims[1 + side], kernel = window->kernel[side];
        const uint64_t padded = input + 2 * (uint64_t)window->padding[side];
        window->input[side] = (uint32_t)input;
        if (window->stride[side] == 0 || kernel == 0 || kernel > padded || padded > INT32_MAX) {
            char text[GRAPH_SHAPE_TEXT_SIZE];
            kelp_shape_print(x, text, sizeof(text));
            (void)kelp_graph_fail(graph, KELP_ERR_INVALID,
                                  "layer %s: a window of [%u, %u] with stride [%u, %u] and padding "
                                  "[%u, %u] does not fit %s",
                                  name, window->kernel[0], window->kernel[1], window->stride[0],
                                  window->stride[1], window->padding[0], window->padding[1], text);
            return false;
        }
        window->output[side] = (uint32_t)((padded - kernel) / window->stride[side] + 1);
    }
    return true;
}

static struct kelp_window window_of(const struct kelp_graph_window *window)
{
    return (struct kelp_window){.kernel = {window->kernel[0], window->kernel[1]},
                                .stride = {window->stride[0], window->stride[1]},
                                .padding = {window->padding[0], window->padding[1]}};
}

/* ---- convolution ----------------------------------------------------------------------------- */

static bool conv2d_available(const struct kelp_device_table *table)
{
    return table->conv2d_create && table->conv2d && table->conv2d_gradient;
}

static struct kelp_conv2d_run conv2d_of(const struct kelp_graph *graph,
                                        const struct graph_node *node, uint32_t count)
{
    return (struct kelp_conv2d_run){.conv = node->u.window.conv,
                                    .samples = count,
                                    .x = graph_operand(graph, node, 0)->value,
                                    .weight = graph_operand(graph, node, 1)->value};
}

static void conv2d_forward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    struct kelp_conv2d_run run = conv2d_of(graph, node, count);
    run.bias = node->edge_count == 3 ? graph_operand(graph, node, 2)->value : NULL;
    run.y = node->buffer;
    run.workspace = node->workspace[0];
    graph->stream->table->conv2d(graph->stream, &run);
}

static void conv2d_backward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    struct kelp_conv2d_run run = conv2d_of(graph, node, count);
    run.workspace = node->workspace[1];
    run.dy = node->gradient;
    run.dx = graph_gradient(graph, node, 0);
    run.dweight = graph_gradient(graph, node, 1);
    run.write_x = graph_write(graph, node, 0);
    run.write_weight = graph_write(graph, node, 1);
    if (node->edge_count == 3) {
        run.dbias = graph_gradient(graph, node, 2);
        run.write_bias = graph_write(graph, node, 2);
    }
    graph->stream->table->conv2d_gradient(graph->stream, &run);
}

const struct graph_operator kelp__graph_conv2d = {.name = "conv2d",
                                                  .available = conv2d_available,
                                                  .forward = conv2d_forward,
                                                  .backward = conv2d_backward,
                                                  .backward_reads = 1,
                                                  .images = GRAPH_IMAGES_LAST};

/* The device's part of the node, if the device has one (otherwise finish() reports it). */
static uint32_t prepare_conv2d(struct kelp_graph *graph, uint32_t id,
                               const struct kelp_conv2d_shape *shape)
{
    const struct kelp_device_table *table = graph->stream->table;
    struct graph_node *node = &graph->nodes[id];
    struct kelp_error error = {KELP_OK, ""};
    if (!conv2d_available(table)) {
        return id;
    }
    const kelp_status status =
        table->conv2d_create(graph->stream->device, shape, &node->u.window.conv, &error);
    if (status != KELP_OK) {
        return kelp_graph_fail(graph, status, "layer %s: %s", node->name, error.text);
    }
    node->workspace_count[0] = node->workspace_count[1] =
        table->conv2d_workspace(node->u.window.conv);
    const uint64_t scratch = table->conv2d_scratch ? table->conv2d_scratch(node->u.window.conv) : 0;
    graph->bytes.scratch = scratch > graph->bytes.scratch ? scratch : graph->bytes.scratch;
    return id;
}

static bool check_conv2d(struct kelp_graph *graph, const char *name, const struct kelp_shape *x,
                         uint32_t weight, uint32_t bias, struct kelp_conv2d_shape *shape)
{
    const uint32_t groups = shape->groups;
    if (x->rank != 3 || x->dims[0] > INT32_MAX) {
        (void)kelp__graph_fail_form(graph, name, "the input", "[channels, height, width]", x);
        return false;
    }
    if (weight >= graph->node_count || graph->nodes[weight].shape.rank != 4) {
        (void)kelp_graph_fail(
            graph, KELP_ERR_INVALID,
            "layer %s: the weight must be [out, in / groups, kernel height, kernel width]", name);
        return false;
    }
    const struct kelp_shape found = graph->nodes[weight].shape;
    if (groups == 0 || x->dims[0] % groups != 0 || found.dims[0] % groups != 0) {
        (void)kelp_graph_fail(graph, KELP_ERR_INVALID,
                              "layer %s: %" PRIu64 " channels to %" PRIu64
                              " cannot be split into %u groups",
                              name, x->dims[0], found.dims[0], groups);
        return false;
    }
    struct kelp_shape wanted = found;
    wanted.dims[1] = x->dims[0] / groups;
    const struct kelp_shape bias_wanted = {.rank = 1, .dims = {found.dims[0]}};
    if (!kelp__graph_check_parameter(graph, name, "the weight", weight, &wanted) ||
        (bias != KELP_GRAPH_NO_BIAS &&
         !kelp__graph_check_parameter(graph, name, "the bias", bias, &bias_wanted))) {
        return false;
    }
    if (found.dims[0] > INT32_MAX || found.dims[2] > INT32_MAX || found.dims[3] > INT32_MAX) {
        (void)kelp__graph_fail_form(graph, name, "the weight", "below 2^31 in each dimension",
                                    &found);
        return false;
    }
    shape->channels_out = (uint32_t)found.dims[0];
    shape->window.kernel[0] = (uint32_t)found.dims[2];
    shape->window.kernel[1] = (uint32_t)found.dims[3];
    return fill_window(graph, name, x, &shape->window);
}

uint32_t kelp_graph_conv2d(struct kelp_graph *graph, const char *name, uint32_t x, uint32_t weight,
                           uint32_t bias, const struct kelp_graph_window *window)
{
    const struct graph_node *operand = kelp__graph_operand(graph, name, x);
    if (!operand) {
        return KELP_GRAPH_NONE;
    }
    const struct kelp_shape input = operand->shape;
    struct kelp_conv2d_shape conv = {
        .window = window_of(window), .groups = window->groups, .samples_max = graph->batch_max};
    if (!check_conv2d(graph, name, &input, weight, bias, &conv)) {
        return KELP_GRAPH_NONE;
    }
    const struct kelp_shape shape = {
        .rank = 3, .dims = {conv.channels_out, conv.window.output[0], conv.window.output[1]}};
    const uint32_t operands[] = {x, weight, bias};
    conv.window.layout =
        kelp__graph_layout_of(graph, &kelp__graph_conv2d, (struct graph_operands){operands, 2});
    const uint32_t id =
        kelp__graph_add(graph, &kelp__graph_conv2d, name, &shape,
                        (struct graph_operands){operands, bias == KELP_GRAPH_NO_BIAS ? 2 : 3});
    return id == KELP_GRAPH_NONE ? id : prepare_conv2d(graph, id, &conv);
}

/* ---- pooling --------------------------------------------------------------------------------- */

static bool max_pool_available(const struct kelp_device_table *table)
{
    return table->max_pool && table->max_pool_gradient;
}

static void max_pool_forward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    const struct kelp_max_pool pool = {.window = node->u.window.window,
                                       .samples = count,
                                       .x = graph_operand(graph, node, 0)->value,
                                       .y = node->buffer,
                                       .chosen = (uint32_t *)(void *)node->kept};
    graph->stream->table->max_pool(graph->stream, &pool);
}

static void max_pool_backward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    const struct kelp_max_pool pool = {.window = node->u.window.window,
                                       .samples = count,
                                       .chosen = (uint32_t *)(void *)node->kept,
                                       .dy = node->gradient,
                                       .dx = graph_operand(graph, node, 0)->gradient,
                                       .write = graph_write(graph, node, 0)};
    graph->stream->table->max_pool_gradient(graph->stream, &pool);
}

static bool average_pool_available(const struct kelp_device_table *table)
{
    return table->average_pool && table->average_pool_gradient;
}

static void average_pool_forward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    const struct kelp_average_pool pool = {.window = node->u.window.window,
                                           .samples = count,
                                           .x = graph_operand(graph, node, 0)->value,
                                           .y = node->buffer};
    graph->stream->table->average_pool(graph->stream, &pool);
}

static void average_pool_backward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    const struct kelp_average_pool pool = {.window = node->u.window.window,
                                           .samples = count,
                                           .dy = node->gradient,
                                           .dx = graph_operand(graph, node, 0)->gradient,
                                           .write = graph_write(graph, node, 0)};
    graph->stream->table->average_pool_gradient(graph->stream, &pool);
}

static const struct graph_operator max_pool_operator = {.name = "max_pool",
                                                        .available = max_pool_available,
                                                        .forward = max_pool_forward,
                                                        .backward = max_pool_backward,
                                                        .images = GRAPH_IMAGES_AS_IS};
static const struct graph_operator average_pool_operator = {.name = "average_pool",
                                                            .available = average_pool_available,
                                                            .forward = average_pool_forward,
                                                            .backward = average_pool_backward,
                                                            .images = GRAPH_IMAGES_AS_IS};

static uint32_t add_pool(struct kelp_graph *graph, const struct graph_operator *op,
                         const char *name, uint32_t x, const struct kelp_graph_window *given)
{
    const struct graph_node *operand = kelp__graph_operand(graph, name, x);
    if (!operand) {
        return KELP_GRAPH_NONE;
    }
    struct kelp_window window = window_of(given);
    if (!fill_window(graph, name, &operand->shape, &window)) {
        return KELP_GRAPH_NONE;
    }
    if (window.padding[0] >= window.kernel[0] || window.padding[1] >= window.kernel[1]) {
        return kelp_graph_fail(
            graph, KELP_ERR_INVALID,
            "layer %s: padding [%u, %u] must be smaller than the window [%u, %u]", name,
            window.padding[0], window.padding[1], window.kernel[0], window.kernel[1]);
    }
    const struct kelp_shape shape = {.rank = 3,
                                     .dims = {window.channels, window.output[0], window.output[1]}};
    window.layout = kelp__graph_layout_of(graph, op, (struct graph_operands){&x, 1});
    const uint32_t id = kelp__graph_add(graph, op, name, &shape, (struct graph_operands){&x, 1});
    if (id != KELP_GRAPH_NONE) {
        struct graph_node *node = &graph->nodes[id];
        node->u.window.window = window;
        node->kept_count =
            op == &max_pool_operator ? kelp__graph_product(node->elem_count, graph->batch_max) : 0;
    }
    return id;
}

uint32_t kelp_graph_max_pool(struct kelp_graph *graph, const char *name, uint32_t x,
                             const struct kelp_graph_window *window)
{
    return add_pool(graph, &max_pool_operator, name, x, window);
}

uint32_t kelp_graph_average_pool(struct kelp_graph *graph, const char *name, uint32_t x,
                                 const struct kelp_graph_window *window)
{
    return add_pool(graph, &average_pool_operator, name, x, window);
}

/* Finishes a graph: checks that loss, target and device fit, which gradients are computed, and
 * which node writes each first. graph_memory.c plans the memory. */
#include <assert.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/model/graph/graph_internal.h"

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

/* Find where in the backward pass the gradients of all parameters from an index on are complete. */
static kelp_status plan_completion(struct kelp_graph *graph, struct kelp_error *reterr)
{
    uint32_t *first = malloc((graph->node_count + 1u) * sizeof(*first));
    if (!first) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    for (uint32_t i = 0; i < graph->node_count; i++) {
        first[i] = KELP_GRAPH_NONE;
    }
    /* Rows of a parameter are later nodes: users of the rows count as users of the parameter. */
    for (uint32_t i = graph->node_count; i-- > 0;) {
        const struct graph_node *node = &graph->nodes[i];
        const uint32_t user = node->op == &kelp__graph_rows ? first[i] : i;
        for (uint32_t e = 0; node->reached && e < node->edge_count; e++) {
            const uint32_t operand = graph_edge(graph, node, e)->node;
            first[operand] = user < first[operand] ? user : first[operand];
        }
    }
    uint32_t latest = KELP_GRAPH_NONE; /* last of parameters k, k + 1, ... to complete */
    for (uint32_t k = graph->parameter_count; k-- > 0;) {
        const uint32_t user = first[graph->parameters[k]];
        latest = user < latest ? user : latest;
        assert(latest < graph->node_count);
        graph->nodes[latest].complete_from = k;
    }
    free(first);
    return KELP_OK;
}

/* Rows and columns are 32-bit numbers in the operators. */
static kelp_status check_sizes(const struct kelp_graph *graph, struct kelp_error *reterr)
{
    for (uint32_t i = 0; i < graph->node_count; i++) {
        const struct graph_node *node = &graph->nodes[i];
        const uint64_t last = node->shape.rank == 0 ? 1 : node->shape.dims[node->shape.rank - 1];
        const uint64_t batch = node->per_sample ? graph->batch_max : 1;
        uint64_t rows;
        if (last > INT_MAX || __builtin_mul_overflow(node->elem_count / last, batch, &rows) ||
            rows > INT_MAX ||
            (node->layout == KELP_CHANNELS_LAST &&
             node->elem_count / node->shape.dims[0] > INT_MAX)) {
            return kelp_fail(reterr, KELP_ERR_LIMIT,
                             "layer %s: with %u samples at once it has more than 2^31 rows or "
                             "columns",
                             node->name, graph->batch_max);
        }
    }
    return KELP_OK;
}

/* Report operators that the device cannot compute. */
static kelp_status check_operators(const struct kelp_graph *graph, struct kelp_error *reterr)
{
    const struct kelp_device_table *table = graph->stream->table;
    for (uint32_t i = 0; i < graph->node_count; i++) {
        const struct graph_node *node = &graph->nodes[i];
        if (node->reached && node->op->available && !node->op->available(table)) {
            return kelp_fail(reterr, KELP_ERR_UNSUPPORTED, "layer %s: the device %s has no %s",
                             node->name, table->name, node->op->name);
        }
    }
    if (graph->input_count > 1 && !table->copy) {
        return kelp_fail(reterr, KELP_ERR_UNSUPPORTED, "the device %s takes one input, not %u",
                         table->name, graph->input_count);
    }
    if (!table->criterion) {
        return kelp_fail(reterr, KELP_ERR_UNSUPPORTED, "the device %s has no losses", table->name);
    }
    return KELP_OK;
}

/* The rows taken of a parameter must cover it, each row once, in any order: its gradient has no
 * other source. */
static kelp_status check_rows(const struct kelp_graph *graph, uint32_t parameter,
                              struct kelp_error *reterr)
{
    const struct graph_node *whole = &graph->nodes[parameter];
    uint64_t covered = 0;
    bool overlap = false, other_use = false;
    for (uint32_t i = 0; i < graph->node_count; i++) {
        const struct graph_node *node = &graph->nodes[i];
        for (uint32_t e = 0; node->reached && e < node->edge_count; e++) {
            other_use = other_use || (graph_edge(graph, node, e)->node == parameter &&
                                      node->op != &kelp__graph_rows);
        }
        if (!node->reached || node->op != &kelp__graph_rows ||
            graph_edge(graph, node, 0)->node != parameter) {
            continue;
        }
        covered += node->elem_count;
        for (uint32_t j = parameter + 1; j < i; j++) {
            const struct graph_node *before = &graph->nodes[j];
            overlap = overlap || (before->reached && before->op == &kelp__graph_rows &&
                                  graph_edge(graph, before, 0)->node == parameter &&
                                  before->u.rows_first < node->u.rows_first + node->elem_count &&
                                  node->u.rows_first < before->u.rows_first + before->elem_count);
        }
    }
    if (other_use || overlap || covered != whole->elem_count) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "parameter %s: its rows are used, so each row must be used exactly once, "
                         "and the whole parameter nowhere",
                         whole->name);
    }
    return KELP_OK;
}

static kelp_status list_parameters(struct kelp_graph *graph, struct kelp_error *reterr)
{
    graph->parameters = calloc(graph->parameter_count + 1u, sizeof(*graph->parameters));
    graph->steps = calloc(graph->node_count + 1u, sizeof(*graph->steps));
    if (!graph->parameters || !graph->steps) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    uint32_t count = 0;
    kelp_status status = KELP_OK;
    for (uint32_t i = 0; status == KELP_OK && i < graph->node_count; i++) {
        const struct graph_node *node = &graph->nodes[i];
        if (node->reached && node->op->forward) {
            graph->steps[graph->step_count++] = i;
        }
        if (node->op != &kelp__graph_parameter) {
            continue;
        }
        if (!node->reached) {
            return kelp_fail(reterr, KELP_ERR_INVALID,
                             "parameter %s has no effect on the model's output", node->name);
        }
        graph->parameters[count++] = i;
        if (node->u.parameter.viewed) {
            status = check_rows(graph, i, reterr);
        }
    }
    assert(status != KELP_OK || count == graph->parameter_count);
    return status;
}

/* The target that this loss compares with an output; false: the output does not suit the loss. */
static bool target_of(const struct kelp_graph_loss *loss, const struct kelp_shape *output,
                      struct kelp_shape *ret_target)
{
    *ret_target = *output;
    switch (loss->kind) {
    case KELP_LOSS_MSE:
    case KELP_LOSS_MAE:
    case KELP_LOSS_SMOOTH_L1:
    case KELP_LOSS_HUBER:
    case KELP_LOSS_BCE:
    case KELP_LOSS_BCE_WITH_LOGITS:
        return true;
    case KELP_LOSS_CROSS_ENTROPY:
    case KELP_LOSS_NLL:
        ret_target->rank = 0;
        return output->rank == 1;
    case KELP_LOSS_QUANTILE:
        ret_target->rank = output->rank == 0 ? 0 : output->rank - 1;
        return output->rank > 0 && output->dims[output->rank - 1] == loss->quantile_count;
    }
    return false;
}

static kelp_status check_target(const struct kelp_graph *graph, const struct kelp_shape *target,
                                const struct kelp_graph_loss *loss, struct kelp_error *reterr)
{
    const struct graph_node *output = &graph->nodes[graph->output];
    struct kelp_shape wanted;
    char output_text[GRAPH_SHAPE_TEXT_SIZE], target_text[GRAPH_SHAPE_TEXT_SIZE];
    kelp_shape_print(&output->shape, output_text, sizeof(output_text));
    if (!target_of(loss, &output->shape, &wanted)) {
        char needed[32] = "[classes]";
        if (loss->kind == KELP_LOSS_QUANTILE) {
            (void)snprintf(needed, sizeof(needed), "[..., %u]", loss->quantile_count);
        }
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "layer %s: the model's output is %s for each sample, but the loss takes "
                         "%s",
                         output->name, output_text, needed);
    }
    if (kelp_shape_equal(&wanted, target)) {
        return KELP_OK;
    }
    kelp_shape_print(target, target_text, sizeof(target_text));
    return kelp_fail(reterr, KELP_ERR_INVALID,
                     "layer %s: the model's output is %s for each sample, but the target is %s",
                     output->name, output_text, target_text);
}

static void set_loss(struct kelp_graph *graph, const struct kelp_shape *target,
                     const struct kelp_graph_loss *loss)
{
    assert(loss->quantile_count <= KELP_JOB_LIST_MAX);
    graph->loss_kind = loss->kind;
    graph->loss_beta = loss->beta;
    graph->label_smoothing = loss->label_smoothing;
    graph->quantile_count = loss->quantile_count;
    if (loss->quantile_count != 0) {
        memcpy(graph->quantiles, loss->quantiles,
               loss->quantile_count * sizeof(graph->quantiles[0]));
    }
    graph->target_count = graph_dims_count(target, 0, target->rank);
}

kelp_status kelp_graph_finish(struct kelp_graph *graph, uint32_t output,
                              const struct kelp_shape *target, const struct kelp_graph_loss *loss,
                              struct kelp_error *reterr)
{
    if (graph->status != KELP_OK) {
        return kelp_fail(reterr, graph->status, "%s", graph->error.text);
    }
    assert(!graph->memory);
    if (graph->input_count == 0 || output >= graph->node_count ||
        !graph->nodes[output].needs_gradient || !graph->nodes[output].per_sample) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "the model has no input, or its output depends on no parameter");
    }
    if (graph->batch_max == 0) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "a batch of 0 samples at most");
    }
    graph->output = kelp__graph_turn(graph, output, KELP_CHANNELS_FIRST);
    if (graph->output == KELP_GRAPH_NONE) {
        return kelp_fail(reterr, graph->status, "%s", graph->error.text);
    }
    kelp_status status = check_target(graph, target, loss, reterr);
    if (status == KELP_OK) {
        set_loss(graph, target, loss);
        kelp__graph_fuse(graph);
        plan_backward(graph);
        status = list_parameters(graph, reterr);
    }
    if (status == KELP_OK) {
        status = plan_completion(graph, reterr);
    }
    if (status == KELP_OK) {
        status = check_operators(graph, reterr);
    }
    if (status == KELP_OK) {
        status = check_sizes(graph, reterr);
    }
    return status == KELP_OK ? kelp__graph_allocate(graph, reterr) : status;
}

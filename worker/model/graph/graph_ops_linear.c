/* Matrix products: linear layers and products of two values. */
#include <limits.h>
#include <stdlib.h>

#include "worker/model/graph/graph_internal.h"

static const struct graph_operator linear_grouped, linear_activated, linear_gelu;

/*
 * One layer x W^T + b: rows of `in` values, x_ld apart, to rows of `out` values, y_ld apart. A
 * grouped layer is one of these per group, the groups interleaved row by row.
 */
struct group {
    uint32_t weight_operand, bias_operand; /* bias_operand 0: none */
    uint64_t x_first, y_first;             /* of the group's first row, in elements */
};

static uint32_t group_count(const struct graph_node *node)
{
    return node->op == &linear_grouped ? (node->edge_count - 1) / 2 : 1;
}

static struct group group_of(const struct kelp_graph *graph, const struct graph_node *node,
                             uint32_t group)
{
    return (struct group){
        .weight_operand = 1 + 2 * group,
        .bias_operand = node->edge_count == 2 ? 0 : 2 + 2 * group,
        .x_first = (uint64_t)group * graph_last_dim(graph_operand(graph, node, 0)),
        .y_first = (uint64_t)group * graph_last_dim(node),
    };
}

/* All arguments except the gradients. */
static struct kelp_linear linear_of(const struct kelp_graph *graph, const struct graph_node *node,
                                    uint32_t count, const struct group *group)
{
    const struct graph_node *x = graph_operand(graph, node, 0);
    const bool grouped = node->op == &linear_grouped;
    const uint64_t groups = group_count(node);
    const uint32_t in = graph_last_dim(x), out = graph_last_dim(node);
    return (struct kelp_linear){
        .rows = grouped ? count : graph_rows(node, count),
        .in = in,
        .out = out,
        .x = x->value + group->x_first,
        .x_ld = groups * in,
        .weight = graph_operand(graph, node, group->weight_operand)->value,
        .bias = group->bias_operand == 0 ? NULL
                                         : graph_operand(graph, node, group->bias_operand)->value,
        .activated = node->op == &linear_activated || node->op == &linear_gelu,
        .activation = node->u.unary,
        .sums = node->kept,
        .y = node->buffer + group->y_first,
        .y_ld = groups * out,
    };
}

static void linear_forward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    for (uint32_t g = 0; g < group_count(node); g++) {
        const struct group group = group_of(graph, node, g);
        const struct kelp_linear linear = linear_of(graph, node, count, &group);
        graph->stream->table->linear(graph->stream, &linear);
    }
}

static void linear_backward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    float *dx = graph_gradient(graph, node, 0);
    for (uint32_t g = 0; g < group_count(node); g++) {
        const struct group group = group_of(graph, node, g);
        struct kelp_linear linear = linear_of(graph, node, count, &group);
        linear.dy = node->gradient + group.y_first;
        linear.dsums = node->workspace[1];
        linear.dweight = graph_operand(graph, node, group.weight_operand)->gradient;
        linear.write_weight = graph_write(graph, node, group.weight_operand);
        if (group.bias_operand != 0) {
            linear.dbias = graph_operand(graph, node, group.bias_operand)->gradient;
            linear.write_bias = graph_write(graph, node, group.bias_operand);
        }
        if (dx) {
            linear.dx = dx + group.x_first;
            linear.write_x = graph_write(graph, node, 0);
        }
        graph->stream->table->linear_gradient(graph->stream, &linear);
    }
}

static const struct graph_operator linear = {
    .name = "linear", .forward = linear_forward, .backward = linear_backward, .backward_reads = 1};
static const struct graph_operator linear_grouped = {.name = "linear_grouped",
                                                     .forward = linear_forward,
                                                     .backward = linear_backward,
                                                     .backward_reads = 1};
/* With an elementwise function behind it: u.unary. */
static const struct graph_operator linear_activated = {.name = "linear",
                                                       .forward = linear_forward,
                                                       .backward = linear_backward,
                                                       .backward_reads_output = true,
                                                       .backward_reads = 1,
                                                       .gradient_room = true};
static const struct graph_operator linear_gelu = {.name = "linear",
                                                  .forward = linear_forward,
                                                  .backward = linear_backward,
                                                  .backward_reads = 1,
                                                  .gradient_room = true};

bool kelp__graph_linear_activate(const struct kelp_graph *graph, struct graph_node *node,
                                 enum kelp_unary_kind kind)
{
    if (node->op != &linear) {
        return false;
    }
    node->u.unary = kind;
    node->op = &linear_activated;
    if (kind == KELP_UNARY_GELU) { /* its gradient reads the function's input */
        node->op = &linear_gelu;
        node->kept_count = kelp__graph_product(node->elem_count, graph->batch_max);
    }
    return true;
}

/* weight must be [out, in] and bias [out] for this `in`; ret_out is set on success. */
static bool check_linear(struct kelp_graph *graph, const char *name, uint64_t in, uint32_t weight,
                         uint32_t bias, uint64_t *ret_out)
{
    if (weight >= graph->node_count) {
        (void)kelp_graph_fail(graph, KELP_ERR_INVALID, "layer %s: the weight does not exist", name);
        return false;
    }
    const struct kelp_shape *shape = &graph->nodes[weight].shape;
    const uint64_t out = shape->rank > 0 ? shape->dims[0] : 0;
    *ret_out = out;
    return kelp__graph_check_parameter(graph, name, "the weight", weight,
                                       &(struct kelp_shape){.rank = 2, .dims = {out, in}}) &&
           (bias == KELP_GRAPH_NO_BIAS ||
            kelp__graph_check_parameter(graph, name, "the bias", bias,
                                        &(struct kelp_shape){.rank = 1, .dims = {out}}));
}

uint32_t kelp_graph_linear(struct kelp_graph *graph, const char *name, uint32_t x, uint32_t weight,
                           uint32_t bias)
{
    const struct graph_node *operand = kelp__graph_operand(graph, name, x);
    if (!operand) {
        return KELP_GRAPH_NONE;
    }
    struct kelp_shape shape = operand->shape;
    if (shape.rank == 0) {
        return kelp__graph_fail_form(graph, name, "the input", "[..., in]", &shape);
    }
    uint64_t *last = &shape.dims[shape.rank - 1];
    if (!check_linear(graph, name, *last, weight, bias, last)) {
        return KELP_GRAPH_NONE;
    }
    const uint32_t operands[] = {x, weight, bias};
    return kelp__graph_add(graph, &linear, name, &shape,
                           (struct graph_operands){operands, bias == KELP_GRAPH_NO_BIAS ? 2 : 3});
}

/* Check each group's parameters. Returns the outputs per group; 0 after a failure. */
static uint64_t check_groups(struct kelp_graph *graph, const char *name, uint64_t in,
                             const uint32_t *weights, const uint32_t *biases, uint32_t group_count)
{
    uint64_t out = 0;
    for (uint32_t g = 0; g < group_count; g++) {
        uint64_t group_out;
        if (biases[g] == KELP_GRAPH_NO_BIAS) {
            (void)kelp_graph_fail(graph, KELP_ERR_INVALID, "layer %s: each group has a bias", name);
            return 0;
        }
        if (!check_linear(graph, name, in, weights[g], biases[g], &group_out)) {
            return 0;
        }
        if (g > 0 && group_out != out) {
            const struct kelp_shape like_first = {.rank = 2, .dims = {out, in}};
            (void)kelp__graph_fail_shape(graph, name, "each weight", &like_first,
                                         &graph->nodes[weights[g]].shape);
            return 0;
        }
        out = group_out;
    }
    return out;
}

uint32_t kelp_graph_linear_grouped(struct kelp_graph *graph, const char *name, uint32_t x,
                                   const uint32_t *weights, const uint32_t *biases,
                                   uint32_t group_count)
{
    const struct graph_node *operand = kelp__graph_operand(graph, name, x);
    if (!operand) {
        return KELP_GRAPH_NONE;
    }
    const struct kelp_shape found = operand->shape;
    const struct kelp_shape wanted = {.rank = 2,
                                      .dims = {group_count, found.rank == 2 ? found.dims[1] : 0}};
    if (group_count == 0 || !kelp_shape_equal(&found, &wanted)) {
        return kelp__graph_fail_shape(graph, name, "the input", &wanted, &found);
    }
    const uint64_t out = check_groups(graph, name, found.dims[1], weights, biases, group_count);
    if (out == 0) {
        return KELP_GRAPH_NONE;
    }
    uint32_t *operands = calloc(1 + 2 * (size_t)group_count, sizeof(*operands));
    if (!operands) {
        return kelp_graph_fail(graph, KELP_ERR_NO_MEMORY, "layer %s: out of memory", name);
    }
    operands[0] = x;
    for (uint32_t g = 0; g < group_count; g++) {
        operands[1 + 2 * (size_t)g] = weights[g];
        operands[2 + 2 * (size_t)g] = biases[g];
    }
    const struct kelp_shape shape = {.rank = 2, .dims = {group_count, out}};
    const uint32_t id = kelp__graph_add(graph, &linear_grouped, name, &shape,
                                        (struct graph_operands){operands, 1 + 2 * group_count});
    free(operands);
    return id;
}

/* ---- products of two values ------------------------------------------------------------------ */

/* y [batch][m, n] = a [batch][m, k] b [batch][k, n], or b stored as [n, k]. */
struct pair {
    const struct graph_node *a, *b;
    uint32_t batch, m, n, k;
};

static struct pair pair_of(const struct kelp_graph *graph, const struct graph_node *node,
                           uint32_t count)
{
    const struct graph_node *a = graph_operand(graph, node, 0);
    const uint32_t m = (uint32_t)node->shape.dims[node->shape.rank - 2];
    return (struct pair){.a = a,
                         .b = graph_operand(graph, node, 1),
                         .batch = graph_rows(node, count) / m,
                         .m = m,
                         .n = graph_last_dim(node),
                         .k = graph_last_dim(a)};
}

/* Dense matrices, one after the other. */
static void set_strides(struct kelp_matmul *matmul, uint32_t batch)
{
    matmul->batch = batch;
    matmul->lda = matmul->transpose_a ? matmul->m : matmul->k;
    matmul->ldb = matmul->transpose_b ? matmul->k : matmul->n;
    matmul->ldc = matmul->n;
    matmul->stride_a = (uint64_t)matmul->m * matmul->k;
    matmul->stride_b = (uint64_t)matmul->k * matmul->n;
    matmul->stride_c = (uint64_t)matmul->m * matmul->n;
}

static void matmul_forward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    const struct pair p = pair_of(graph, node, count);
    struct kelp_matmul matmul = {.transpose_b = node->u.transpose_b,
                                 .m = p.m,
                                 .n = p.n,
                                 .k = p.k,
                                 .a = p.a->value,
                                 .b = p.b->value,
                                 .c = node->buffer};
    set_strides(&matmul, p.batch);
    graph->stream->table->matmul(graph->stream, &matmul);
}

static void matmul_backward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    const struct pair p = pair_of(graph, node, count);
    const bool transposed = node->u.transpose_b;
    if (graph_gradient(graph, node, 0)) { /* da = dy b^T */
        struct kelp_matmul da = {.transpose_b = !transposed,
                                 .m = p.m,
                                 .n = p.k,
                                 .k = p.n,
                                 .a = node->gradient,
                                 .b = p.b->value,
                                 .c = p.a->gradient,
                                 .write = graph_write(graph, node, 0)};
        set_strides(&da, p.batch);
        graph->stream->table->matmul(graph->stream, &da);
    }
    if (graph_gradient(graph, node, 1)) { /* db = a^T dy, or if b is stored transposed: dy^T a */
        struct kelp_matmul db = {.transpose_a = true,
                                 .m = transposed ? p.n : p.k,
                                 .n = transposed ? p.k : p.n,
                                 .k = p.m,
                                 .a = transposed ? node->gradient : p.a->value,
                                 .b = transposed ? p.a->value : node->gradient,
                                 .c = p.b->gradient,
                                 .write = graph_write(graph, node, 1)};
        set_strides(&db, p.batch);
        graph->stream->table->matmul(graph->stream, &db);
    }
}

static const struct graph_operator matmul_operator = {
    .name = "matmul", .forward = matmul_forward, .backward = matmul_backward, .backward_reads = 3};

uint32_t kelp_graph_matmul(struct kelp_graph *graph, const char *name, uint32_t a, uint32_t b,
                           bool transpose_b)
{
    const struct graph_node *first = kelp__graph_operand(graph, name, a);
    const struct graph_node *second = !first ? NULL : kelp__graph_operand(graph, name, b);
    if (!second) {
        return KELP_GRAPH_NONE;
    }
    struct kelp_shape shape = first->shape;
    const uint32_t rank = shape.rank;
    if (rank < 2) {
        return kelp__graph_fail_form(graph, name, "the first operand", "[..., m, k]", &shape);
    }
    /* The shape that b must have; n is taken from b. */
    struct kelp_shape wanted = shape;
    const uint64_t k = shape.dims[rank - 1];
    const uint64_t n =
        second->shape.rank == rank ? second->shape.dims[transpose_b ? rank - 2 : rank - 1] : 1;
    wanted.dims[rank - 2] = transpose_b ? n : k;
    wanted.dims[rank - 1] = transpose_b ? k : n;
    if (!kelp_shape_equal(&second->shape, &wanted)) {
        return kelp__graph_fail_shape(graph, name, "the second operand", &wanted, &second->shape);
    }
    shape.dims[rank - 1] = n;
    const uint32_t operands[] = {a, b};
    const uint32_t id = kelp__graph_add(graph, &matmul_operator, name, &shape,
                                        (struct graph_operands){operands, 2});
    if (id != KELP_GRAPH_NONE) {
        graph->nodes[id].u.transpose_b = transpose_b;
    }
    return id;
}

/* Operators that move values without computing with them, and sums along one dimension. */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "worker/model/graph/graph_internal.h"

/* ---- transpose ------------------------------------------------------------------------------- */

/* From x to y. */
static struct kelp_transpose transpose_of(const struct graph_node *from, uint32_t count)
{
    assert(from->shape.rank >= 2);
    const uint32_t columns = graph_last_dim(from);
    const uint32_t rows = (uint32_t)from->shape.dims[from->shape.rank - 2];
    return (struct kelp_transpose){
        .batch = graph_rows(from, count) / rows, .rows = rows, .columns = columns};
}

static void transpose_forward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    const struct graph_node *x = graph_operand(graph, node, 0);
    struct kelp_transpose transpose = transpose_of(x, count);
    transpose.x = x->value;
    transpose.y = node->buffer;
    graph->stream->table->transpose(graph->stream, &transpose);
}

static void transpose_backward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    struct kelp_transpose transpose = transpose_of(node, count);
    transpose.x = node->gradient;
    transpose.y = graph_operand(graph, node, 0)->gradient;
    transpose.write = graph_write(graph, node, 0);
    graph->stream->table->transpose(graph->stream, &transpose);
}

static const struct graph_operator transpose_operator = {
    .name = "transpose", .forward = transpose_forward, .backward = transpose_backward};

uint32_t kelp_graph_transpose(struct kelp_graph *graph, const char *name, uint32_t x)
{
    const struct graph_node *operand = kelp__graph_operand(graph, name, x);
    if (!operand) {
        return KELP_GRAPH_NONE;
    }
    struct kelp_shape shape = operand->shape;
    if (shape.rank < 2) {
        return kelp__graph_fail_form(graph, name, "the input", "[..., rows, columns]", &shape);
    }
    const uint64_t columns = shape.dims[shape.rank - 1];
    shape.dims[shape.rank - 1] = shape.dims[shape.rank - 2];
    shape.dims[shape.rank - 2] = columns;
    return kelp__graph_add(graph, &transpose_operator, name, &shape,
                           (struct graph_operands){&x, 1});
}

/* ---- permute --------------------------------------------------------------------------------- */

static bool copy_available(const struct kelp_device_table *table)
{
    return table->copy;
}

/* All of y, in its own order; the strides of x follow the order of the dimensions. */
static struct kelp_copy permute_of(const struct kelp_graph *graph, const struct graph_node *node,
                                   uint32_t count)
{
    const struct kelp_shape *x = &graph_operand(graph, node, 0)->shape;
    struct kelp_copy copy = {.rank = node->shape.rank + 1, .scale = 1.0f};
    copy.dims[0] = count;
    copy.x_strides[0] = copy.y_strides[0] = node->elem_count;
    for (uint32_t i = 0; i < node->shape.rank; i++) {
        copy.dims[i + 1] = node->shape.dims[i];
        copy.x_strides[i + 1] = graph_dims_count(x, node->u.move.order[i] + 1, x->rank);
        copy.y_strides[i + 1] = graph_dims_count(&node->shape, i + 1, node->shape.rank);
    }
    return copy;
}

static void permute_forward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    struct kelp_copy copy = permute_of(graph, node, count);
    copy.x = graph_operand(graph, node, 0)->value;
    copy.y = node->buffer;
    graph->stream->table->copy(graph->stream, &copy);
}

static void permute_backward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    const struct kelp_copy forward = permute_of(graph, node, count);
    struct kelp_copy copy = forward;
    copy.x = node->gradient;
    copy.y = graph_operand(graph, node, 0)->gradient;
    memcpy(copy.x_strides, forward.y_strides, sizeof(copy.x_strides));
    memcpy(copy.y_strides, forward.x_strides, sizeof(copy.y_strides));
    copy.write = graph_write(graph, node, 0);
    graph->stream->table->copy(graph->stream, &copy);
}

static const struct graph_operator permute_operator = {.name = "permute",
                                                       .available = copy_available,
                                                       .forward = permute_forward,
                                                       .backward = permute_backward};

uint32_t kelp_graph_permute(struct kelp_graph *graph, const char *name, uint32_t x,
                            const uint32_t *order)
{
    const struct graph_node *operand = kelp__graph_operand(graph, name, x);
    if (!operand) {
        return KELP_GRAPH_NONE;
    }
    const struct kelp_shape from = operand->shape;
    struct kelp_shape shape = from;
    uint32_t seen = 0;
    if (from.rank > KELP_COPY_RANK_MAX - 1) {
        return kelp__graph_fail_form(graph, name, "the input", "of 5 dimensions at most", &from);
    }
    for (uint32_t i = 0; i < from.rank; i++) {
        if (order[i] >= from.rank || (seen >> order[i] & 1u) != 0) {
            return kelp_graph_fail(graph, KELP_ERR_INVALID,
                                   "layer %s: the order must name each of %u dimensions once", name,
                                   from.rank);
        }
        seen |= 1u << order[i];
        shape.dims[i] = from.dims[order[i]];
    }
    const uint32_t id =
        kelp__graph_add(graph, &permute_operator, name, &shape, (struct graph_operands){&x, 1});
    if (id != KELP_GRAPH_NONE) {
        memcpy(graph->nodes[id].u.move.order, order, from.rank * sizeof(*order));
    }
    return id;
}

/* ---- reshape --------------------------------------------------------------------------------- */

/* The value of an input, and with it what is another shape of it, moves from run to run. */
static void reshape_forward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    (void)count;
    node->value = graph_operand(graph, node, 0)->value;
}

static void reshape_backward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    kelp__graph_add_gradient(graph, node, 0, 1.0f, count);
}

static const struct graph_operator reshape_operator = {.name = "reshape",
                                                       .forward = reshape_forward,
                                                       .backward = reshape_backward,
                                                       .alias = true,
                                                       .gradient_same = 1};

uint32_t kelp_graph_reshape(struct kelp_graph *graph, const char *name, uint32_t x,
                            const struct kelp_shape *shape)
{
    const struct graph_node *operand = kelp__graph_operand(graph, name, x);
    if (!operand) {
        return KELP_GRAPH_NONE;
    }
    const struct kelp_shape from = operand->shape;
    const uint64_t elem_count = operand->elem_count;
    const uint32_t id =
        kelp__graph_add(graph, &reshape_operator, name, shape, (struct graph_operands){&x, 1});
    if (id != KELP_GRAPH_NONE && graph->nodes[id].elem_count != elem_count) {
        char wanted[GRAPH_SHAPE_TEXT_SIZE + 32] = "of the elements of ";
        const size_t used = strlen(wanted);
        kelp_shape_print(shape, wanted + used, sizeof(wanted) - used);
        return kelp__graph_fail_form(graph, name, "the input", wanted, &from);
    }
    return id;
}

/* ---- parts along one axis: concat, slice, repeat --------------------------------------------- */

/* y[o][first + i] = or += x[o][i], i below `length`; rows of x and y are their ld apart. */
struct part {
    uint64_t outer, length;
    const float *x;
    uint64_t x_ld;
    float *y;
    uint64_t y_ld;
    enum kelp_write write;
};

static void copy_part(struct kelp_graph *graph, const struct part *part)
{
    const struct kelp_copy copy = {.rank = 2,
                                   .dims = {part->outer, part->length},
                                   .x = part->x,
                                   .x_strides = {part->x_ld, 1},
                                   .y = part->y,
                                   .y_strides = {part->y_ld, 1},
                                   .scale = 1.0f,
                                   .write = part->write};
    graph->stream->table->copy(graph->stream, &copy);
}

/* Rows in front of the axis, over count samples, and elements of a row from the axis on. */
static uint64_t outer_of(const struct graph_node *node, uint32_t count)
{
    return count * graph_dims_count(&node->shape, 0, node->u.move.axis);
}

static uint64_t row_of(const struct graph_node *node, uint32_t axis)
{
    return graph_dims_count(&node->shape, axis, node->shape.rank);
}

static void concat_forward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    uint64_t first = 0;
    for (uint32_t e = 0; e < node->edge_count; e++) {
        const struct graph_node *operand = graph_operand(graph, node, e);
        const uint64_t length = row_of(operand, node->u.move.axis);
        copy_part(graph, &(struct part){.outer = outer_of(node, count),
                                        .length = length,
                                        .x = operand->value,
                                        .x_ld = length,
                                        .y = node->buffer + first,
                                        .y_ld = row_of(node, node->u.move.axis)});
        first += length;
    }
}

static void concat_backward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    uint64_t first = 0;
    for (uint32_t e = 0; e < node->edge_count; e++) {
        const struct graph_node *operand = graph_operand(graph, node, e);
        const uint64_t length = row_of(operand, node->u.move.axis);
        if (graph_gradient(graph, node, e)) {
            copy_part(graph, &(struct part){.outer = outer_of(node, count),
                                            .length = length,
                                            .x = node->gradient + first,
                                            .x_ld = row_of(node, node->u.move.axis),
                                            .y = operand->gradient,
                                            .y_ld = length,
                                            .write = graph_write(graph, node, e)});
        }
        first += length;
    }
}

static const struct graph_operator concat_operator = {.name = "concat",
                                                      .available = copy_available,
                                                      .forward = concat_forward,
                                                      .backward = concat_backward};

static uint32_t check_axis(struct kelp_graph *graph, const char *name, uint32_t axis,
                           const struct kelp_shape *shape, uint32_t rank)
{
    if (axis < rank) {
        return axis;
    }
    char found_text[GRAPH_SHAPE_TEXT_SIZE];
    kelp_shape_print(shape, found_text, sizeof(found_text));
    return kelp_graph_fail(graph, KELP_ERR_INVALID, "layer %s: axis %u of %s", name, axis,
                           found_text);
}

uint32_t kelp_graph_concat(struct kelp_graph *graph, const char *name, const uint32_t *parts,
                           uint32_t part_count, uint32_t axis)
{
    struct kelp_shape shape = {0};
    if (part_count == 0) {
        return kelp_graph_fail(graph, KELP_ERR_INVALID, "layer %s: nothing to join", name);
    }
    for (uint32_t i = 0; i < part_count; i++) {
        const struct graph_node *part = kelp__graph_operand(graph, name, parts[i]);
        if (!part ||
            check_axis(graph, name, axis, &part->shape, part->shape.rank) == KELP_GRAPH_NONE) {
            return KELP_GRAPH_NONE;
        }
        struct kelp_shape wanted = i == 0 ? part->shape : shape;
        wanted.dims[axis] = part->shape.dims[axis];
        if (!kelp_shape_equal(&part->shape, &wanted)) {
            return kelp__graph_fail_shape(graph, name, "each part", &wanted, &part->shape);
        }
        if (i == 0) {
            shape = wanted;
        } else if (__builtin_add_overflow(shape.dims[axis], wanted.dims[axis], &shape.dims[axis])) {
            return kelp_graph_fail(graph, KELP_ERR_LIMIT, "layer %s: too large", name);
        }
    }
    const uint32_t id = kelp__graph_add(graph, &concat_operator, name, &shape,
                                        (struct graph_operands){parts, part_count});
    if (id != KELP_GRAPH_NONE) {
        graph->nodes[id].u.move.axis = axis;
    }
    return id;
}

/* Where the slice begins in a row of its operand. */
static uint64_t slice_first(const struct graph_node *node)
{
    return node->u.move.first *
           graph_dims_count(&node->shape, node->u.move.axis + 1, node->shape.rank);
}

static void slice_forward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    const struct graph_node *x = graph_operand(graph, node, 0);
    copy_part(graph, &(struct part){.outer = outer_of(node, count),
                                    .length = row_of(node, node->u.move.axis),
                                    .x = x->value + slice_first(node),
                                    .x_ld = row_of(x, node->u.move.axis),
                                    .y = node->buffer,
                                    .y_ld = row_of(node, node->u.move.axis)});
}

static void slice_backward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    const struct graph_node *x = graph_operand(graph, node, 0);
    const uint64_t outer = outer_of(node, count), row = row_of(x, node->u.move.axis);
    const enum kelp_write write = graph_write(graph, node, 0);
    if (write == KELP_OVERWRITE) { /* what is not in the slice, too */
        graph->stream->table->fill(graph->stream, x->gradient, 0.0f, outer * row);
    }
    copy_part(graph, &(struct part){.outer = outer,
                                    .length = row_of(node, node->u.move.axis),
                                    .x = node->gradient,
                                    .x_ld = row_of(node, node->u.move.axis),
                                    .y = x->gradient + slice_first(node),
                                    .y_ld = row,
                                    .write = write});
}

static const struct graph_operator slice_operator = {.name = "slice",
                                                     .available = copy_available,
                                                     .forward = slice_forward,
                                                     .backward = slice_backward};

uint32_t kelp_graph_slice(struct kelp_graph *graph, const char *name, uint32_t x, uint32_t axis,
                          uint64_t first, uint64_t length)
{
    const struct graph_node *operand = kelp__graph_operand(graph, name, x);
    if (!operand ||
        check_axis(graph, name, axis, &operand->shape, operand->shape.rank) == KELP_GRAPH_NONE) {
        return KELP_GRAPH_NONE;
    }
    struct kelp_shape shape = operand->shape;
    if (first > shape.dims[axis] || length > shape.dims[axis] - first) {
        char text[GRAPH_SHAPE_TEXT_SIZE];
        kelp_shape_print(&shape, text, sizeof(text));
        return kelp_graph_fail(graph, KELP_ERR_INVALID,
                               "layer %s: no [%" PRIu64 ", +%" PRIu64 ") along axis %u of %s", name,
                               first, length, axis, text);
    }
    shape.dims[axis] = length;
    const uint32_t id =
        kelp__graph_add(graph, &slice_operator, name, &shape, (struct graph_operands){&x, 1});
    if (id != KELP_GRAPH_NONE) {
        graph->nodes[id].u.move.axis = axis;
        graph->nodes[id].u.move.first = first;
    }
    return id;
}

/* ---- repeat and reduce: a dimension that the other one has not ------------------------------- */

/* [outer][middle][inner] of the shape that has the dimension. */
struct folded {
    uint64_t outer, middle, inner;
};

static struct folded folded_of(const struct graph_node *full, uint32_t axis, uint32_t count)
{
    return (struct folded){.outer = count * graph_dims_count(&full->shape, 0, axis),
                           .middle = full->shape.dims[axis],
                           .inner = graph_dims_count(&full->shape, axis + 1, full->shape.rank)};
}

/* NOLINTBEGIN(readability-non-const-parameter): written through the operator's arguments */

/* full[o][m][i] = or += scale * folded[o][i] */
static void spread(struct kelp_graph *graph, const struct folded *f, float *full,
                   const float *folded, float scale, enum kelp_write write)
{
    const struct kelp_copy copy = {.rank = 3,
                                   .dims = {f->outer, f->middle, f->inner},
                                   .x = folded,
                                   .x_strides = {f->inner, 0, 1},
                                   .y = full,
                                   .y_strides = {f->middle * f->inner, f->inner, 1},
                                   .scale = scale,
                                   .write = write};
    graph->stream->table->copy(graph->stream, &copy);
}

/* folded[o][i] = or += scale * the sum over m of full[o][m][i] */
static void sum_up(struct kelp_graph *graph, const struct folded *f, float *folded,
                   const float *full, float scale, enum kelp_write write)
{
    const struct kelp_reduce reduce = {.x = full,
                                       .y = folded,
                                       .outer = f->outer,
                                       .middle = f->middle,
                                       .inner = f->inner,
                                       .scale = scale,
                                       .write = write};
    graph->stream->table->reduce(graph->stream, &reduce);
}

/* NOLINTEND(readability-non-const-parameter) */

static bool spread_available(const struct kelp_device_table *table)
{
    return table->copy && table->reduce;
}

static void repeat_forward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    const struct folded f = folded_of(node, node->u.move.axis, count);
    spread(graph, &f, node->buffer, graph_operand(graph, node, 0)->value, 1.0f, KELP_OVERWRITE);
}

static void repeat_backward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    const struct folded f = folded_of(node, node->u.move.axis, count);
    sum_up(graph, &f, graph_operand(graph, node, 0)->gradient, node->gradient, 1.0f,
           graph_write(graph, node, 0));
}

static const struct graph_operator repeat_operator = {.name = "repeat",
                                                      .available = spread_available,
                                                      .forward = repeat_forward,
                                                      .backward = repeat_backward};

uint32_t kelp_graph_repeat(struct kelp_graph *graph, const char *name, uint32_t x, uint32_t axis,
                           uint64_t times)
{
    const struct graph_node *operand = kelp__graph_operand(graph, name, x);
    if (!operand || check_axis(graph, name, axis, &operand->shape, operand->shape.rank + 1) ==
                        KELP_GRAPH_NONE) {
        return KELP_GRAPH_NONE;
    }
    if (operand->shape.rank == KELP_TENSOR_RANK_MAX) {
        return kelp__graph_fail_form(graph, name, "the input", "of fewer dimensions",
                                     &operand->shape);
    }
    struct kelp_shape shape = operand->shape;
    memmove(&shape.dims[axis + 1], &shape.dims[axis], (shape.rank - axis) * sizeof(shape.dims[0]));
    shape.dims[axis] = times;
    shape.rank++;
    const uint32_t id =
        kelp__graph_add(graph, &repeat_operator, name, &shape, (struct graph_operands){&x, 1});
    if (id != KELP_GRAPH_NONE) {
        graph->nodes[id].u.move.axis = axis;
    }
    return id;
}

static float reduce_scale(const struct graph_node *node, const struct folded *f)
{
    return node->u.move.first != 0 ? (float)(1.0 / (double)f->middle) : 1.0f;
}

static void reduce_forward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    const struct graph_node *x = graph_operand(graph, node, 0);
    const struct folded f = folded_of(x, node->u.move.axis, count);
    sum_up(graph, &f, node->buffer, x->value, reduce_scale(node, &f), KELP_OVERWRITE);
}

static void reduce_backward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    const struct graph_node *x = graph_operand(graph, node, 0);
    const struct folded f = folded_of(x, node->u.move.axis, count);
    spread(graph, &f, x->gradient, node->gradient, reduce_scale(node, &f),
           graph_write(graph, node, 0));
}

static const struct graph_operator reduce_sum_operator = {.name = "reduce_sum",
                                                          .available = spread_available,
                                                          .forward = reduce_forward,
                                                          .backward = reduce_backward};
static const struct graph_operator reduce_mean_operator = {.name = "reduce_mean",
                                                           .available = spread_available,
                                                           .forward = reduce_forward,
                                                           .backward = reduce_backward};

static uint32_t add_reduce(struct kelp_graph *graph, const struct graph_operator *op,
                           const char *name, uint32_t x, uint32_t axis)
{
    const struct graph_node *operand = kelp__graph_operand(graph, name, x);
    if (!operand ||
        check_axis(graph, name, axis, &operand->shape, operand->shape.rank) == KELP_GRAPH_NONE) {
        return KELP_GRAPH_NONE;
    }
    struct kelp_shape shape = operand->shape;
    memmove(&shape.dims[axis], &shape.dims[axis + 1],
            (shape.rank - axis - 1) * sizeof(shape.dims[0]));
    shape.rank--;
    const uint32_t id = kelp__graph_add(graph, op, name, &shape, (struct graph_operands){&x, 1});
    if (id != KELP_GRAPH_NONE) {
        graph->nodes[id].u.move.axis = axis;
        graph->nodes[id].u.move.first = op == &reduce_mean_operator;
    }
    return id;
}

uint32_t kelp_graph_reduce_sum(struct kelp_graph *graph, const char *name, uint32_t x,
                               uint32_t axis)
{
    return add_reduce(graph, &reduce_sum_operator, name, x, axis);
}

uint32_t kelp_graph_reduce_mean(struct kelp_graph *graph, const char *name, uint32_t x,
                                uint32_t axis)
{
    return add_reduce(graph, &reduce_mean_operator, name, x, axis);
}

#include "tests/lib/models/graph_builders.h"

#include <stdio.h>

#include "worker/model/graph/layers.h"

uint32_t built_below(struct built *b, uint32_t bound)
{
    return source_below(b->source, bound);
}

static uint64_t size(struct built *b, uint32_t max)
{
    return 1 + built_below(b, max);
}

static const char *name(struct built *b, char text[32])
{
    (void)snprintf(text, 32, "l%u", b->name_count++);
    return text;
}

struct kelp_shape built_shape1(uint64_t a)
{
    return (struct kelp_shape){.rank = 1, .dims = {a}};
}

static struct kelp_shape shape2(uint64_t a, uint64_t b)
{
    return (struct kelp_shape){.rank = 2, .dims = {a, b}};
}

static struct kelp_shape shape3(uint64_t a, uint64_t b, uint64_t c)
{
    return (struct kelp_shape){.rank = 3, .dims = {a, b, c}};
}

static uint64_t elements(const struct kelp_shape *shape)
{
    uint64_t count = 1;
    for (uint32_t i = 0; i < shape->rank; i++) {
        count *= shape->dims[i];
    }
    return count;
}

/* One to three dimensions, the last at most `last_max`. */
static struct kelp_shape any_shape(struct built *b, uint32_t rank_min, uint32_t last_max)
{
    struct kelp_shape shape = {.rank = rank_min + built_below(b, 4 - rank_min)};
    for (uint32_t i = 0; i < shape.rank; i++) {
        shape.dims[i] = i + 1 == shape.rank ? size(b, last_max) : size(b, 3);
    }
    return shape;
}

void built_give_out(struct built *b, uint32_t node)
{
    char text[32];
    const struct kelp_shape flat = built_shape1(elements(kelp_graph_shape(b->graph, node)));
    const uint32_t x = kelp_graph_reshape(b->graph, "flat", node, &flat);
    b->outputs[b->output_count++] = kelp_layer_linear(b->graph, name(b, text), x, 2, false);
}

/* A computed value of this shape, which may also be taken by something in front of the operator or
 * behind it. */
static uint32_t operand(struct built *b, struct kelp_shape shape)
{
    char text[32];
    const uint32_t x =
        kelp_layer_linear(b->graph, name(b, text), b->numbers, elements(&shape), true);
    const uint32_t node = kelp_graph_reshape(b->graph, "operand", x, &shape);
    const uint32_t elsewhere = built_below(b, 3);
    if (elsewhere == 0) {
        built_give_out(b, node);
    } else if (elsewhere == 1) {
        b->late[b->late_count++] = node;
    }
    return node;
}

/* ---- the operators ---- */

#define ELEMENT(op)                                                                                \
    static uint32_t build_##op(struct built *b)                                                    \
    {                                                                                              \
        return kelp_graph_##op(b->graph, #op, operand(b, any_shape(b, 1, 9)));                     \
    }
ELEMENT(relu)
ELEMENT(gelu)
ELEMENT(elu)
ELEMENT(sigmoid)
ELEMENT(tanh)
ELEMENT(softmax)
ELEMENT(log_softmax)

static uint32_t build_scale(struct built *b)
{
    return kelp_graph_scale(b->graph, "scale", operand(b, any_shape(b, 1, 9)),
                            source_uniform(b->source));
}

static uint32_t build_causal_softmax(struct built *b)
{
    const uint64_t queries = size(b, 4), keys = size(b, 6);
    return kelp_graph_causal_softmax(
        b->graph, "causal", operand(b, shape3(size(b, 2), queries, keys)), built_below(b, 4));
}

static uint32_t build_glu(struct built *b)
{
    struct kelp_shape shape = any_shape(b, 1, 5);
    shape.dims[shape.rank - 1] *= 2;
    return kelp_graph_glu(b->graph, "glu", operand(b, shape));
}

static uint32_t build_moving_average(struct built *b)
{
    return kelp_graph_moving_average(b->graph, "average", operand(b, any_shape(b, 1, 12)),
                                     1 + 2 * built_below(b, 6));
}

/* Sometimes one operand in both places. */
static uint32_t build_two(struct built *b)
{
    const struct kelp_shape shape = any_shape(b, 1, 7);
    const uint32_t first = operand(b, shape);
    const uint32_t second = built_below(b, 4) == 0 ? first : operand(b, shape);
    switch (built_below(b, 3)) {
    case 0:
        return kelp_graph_add(b->graph, "add", first, second);
    case 1:
        return kelp_graph_subtract(b->graph, "subtract", first, second);
    default:
        return kelp_graph_multiply(b->graph, "multiply", first, second);
    }
}

static uint32_t build_weighted_sum(struct built *b)
{
    struct kelp_shape x = any_shape(b, 2, 5), weights = x;
    weights.rank--;
    const uint32_t first = operand(b, weights);
    return kelp_graph_weighted_sum(b->graph, "weighted_sum", first, operand(b, x));
}

static uint32_t build_matmul(struct built *b)
{
    const uint64_t batch = size(b, 3), m = size(b, 4), n = size(b, 4), k = size(b, 5);
    const bool transposed = built_below(b, 2) == 0;
    if (built_below(b, 4) == 0) { /* a product of a value with itself */
        const uint32_t x = operand(b, shape3(batch, m, k));
        return kelp_graph_matmul(b->graph, "gram", x, x, true);
    }
    const uint32_t a = operand(b, shape3(batch, m, k));
    const uint32_t c = operand(b, transposed ? shape3(batch, n, k) : shape3(batch, k, n));
    return kelp_graph_matmul(b->graph, "matmul", a, c, transposed);
}

static uint32_t build_linear(struct built *b)
{
    const uint32_t x = operand(b, any_shape(b, 1, 6));
    return kelp_layer_linear(b->graph, "linear", x, size(b, 5), built_below(b, 2) == 0);
}

/* A layer whose sums are often read by the function alone, and whose gradient may be read by others
 * after it: that of a sum is its operands'. */
static uint32_t build_linear_activated(struct built *b)
{
    static uint32_t (*const functions[])(struct kelp_graph *, const char *, uint32_t) = {
        kelp_graph_relu, kelp_graph_gelu, kelp_graph_elu, kelp_graph_sigmoid, kelp_graph_tanh};
    const struct kelp_shape in = any_shape(b, 1, 6);
    struct kelp_shape out = in;
    out.dims[out.rank - 1] = size(b, 5);
    const uint32_t other = operand(b, out);
    const uint32_t sums = kelp_layer_linear(b->graph, "linear", operand(b, in),
                                            out.dims[out.rank - 1], built_below(b, 3) != 0);
    if (built_below(b, 4) == 0) {
        built_give_out(b, sums);
    }
    const uint32_t y =
        functions[built_below(b, KELP_ARRAY_COUNT(functions))](b->graph, "function", sums);
    switch (built_below(b, 3)) {
    case 0:
        return kelp_graph_add(b->graph, "add", y, other);
    case 1:
        return kelp_graph_multiply(b->graph, "multiply", other, y);
    default:
        built_give_out(b, other);
        return y;
    }
}

static uint32_t build_linear_grouped(struct built *b)
{
    const uint64_t groups = size(b, 4), in = size(b, 5), out = size(b, 4);
    uint32_t weights[4], biases[4];
    for (uint32_t g = 0; g < groups; g++) {
        char text[32];
        const struct kelp_shape weight = shape2(out, in), bias = built_shape1(out);
        weights[g] = kelp_graph_parameter(b->graph, name(b, text), &weight,
                                          (struct kelp_graph_init){KELP_INIT_UNIFORM, 0.5f});
        biases[g] = kelp_graph_parameter(b->graph, name(b, text), &bias,
                                         (struct kelp_graph_init){KELP_INIT_UNIFORM, 0.5f});
    }
    return kelp_graph_linear_grouped(b->graph, "grouped", operand(b, shape2(groups, in)), weights,
                                     biases, (uint32_t)groups);
}

/* Rows of one parameter, for two layers in any order. */
static uint32_t build_rows(struct built *b)
{
    const uint64_t first = size(b, 4), second = size(b, 4), in = size(b, 4);
    const struct kelp_shape weight_shape = shape2(first + second, in);
    const uint32_t weight = kelp_graph_parameter(b->graph, "shared.weight", &weight_shape,
                                                 (struct kelp_graph_init){KELP_INIT_UNIFORM, 0.5f});
    const uint32_t x = operand(b, built_shape1(in));
    const uint32_t tail = kelp_graph_rows(b->graph, "tail", weight, first, second);
    built_give_out(b, kelp_graph_linear(b->graph, "of_tail", x, tail, KELP_GRAPH_NO_BIAS));
    const uint32_t head = kelp_graph_rows(b->graph, "head", weight, 0, first);
    return kelp_graph_linear(b->graph, "of_head", x, head, KELP_GRAPH_NO_BIAS);
}

static uint32_t build_transpose(struct built *b)
{
    return kelp_graph_transpose(b->graph, "transpose", operand(b, any_shape(b, 2, 6)));
}

static uint32_t build_permute(struct built *b)
{
    static const uint32_t orders[][3] = {{0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    const uint32_t x = operand(b, shape3(size(b, 4), size(b, 3), size(b, 4)));
    return kelp_graph_permute(b->graph, "permute", x, orders[built_below(b, 5)]);
}

static uint32_t build_concat(struct built *b)
{
    const struct kelp_shape shape = any_shape(b, 1, 5);
    const uint32_t axis = built_below(b, shape.rank), count = 1 + built_below(b, 3);
    uint32_t parts[3];
    for (uint32_t i = 0; i < count; i++) {
        struct kelp_shape part = shape;
        part.dims[axis] = size(b, 3);
        parts[i] =
            i > 0 && part.dims[axis] == 1 && built_below(b, 3) == 0 ? parts[0] : operand(b, part);
    }
    return kelp_graph_concat(b->graph, "concat", parts, count, axis);
}

static uint32_t build_slice(struct built *b)
{
    const struct kelp_shape shape = any_shape(b, 1, 6);
    const uint32_t axis = built_below(b, shape.rank), x = operand(b, shape);
    const uint32_t first = built_below(b, (uint32_t)shape.dims[axis]);
    return kelp_graph_slice(b->graph, "slice", x, axis, first,
                            size(b, (uint32_t)shape.dims[axis] - first));
}

static uint32_t build_repeat(struct built *b)
{
    const struct kelp_shape shape = any_shape(b, 1, 4);
    return kelp_graph_repeat(b->graph, "repeat", operand(b, shape), built_below(b, shape.rank + 1),
                             size(b, 4));
}

static uint32_t build_reduce(struct built *b)
{
    const struct kelp_shape shape = any_shape(b, 1, 6);
    const uint32_t x = operand(b, shape), axis = built_below(b, shape.rank);
    return built_below(b, 2) == 0 ? kelp_graph_reduce_sum(b->graph, "sum", x, axis)
                                  : kelp_graph_reduce_mean(b->graph, "mean", x, axis);
}

static uint32_t build_layer_norm(struct built *b)
{
    struct kelp_shape shape = any_shape(b, 1, 5);
    shape.dims[shape.rank - 1] += 2; /* the norm of two values knows their order alone */
    return kelp_layer_layer_norm(b->graph, "layer_norm", operand(b, shape));
}

static uint32_t build_batch_norm(struct built *b)
{
    b->batch = 3 + built_below(b, GRAPH_BATCH_MAX - 2);
    return kelp_layer_batch_norm(b->graph, "batch_norm", operand(b, any_shape(b, 1, 3)));
}

static uint32_t build_dropout(struct built *b)
{
    const uint32_t x =
        kelp_graph_dropout(b->graph, "dropout", operand(b, any_shape(b, 1, 9)), 0.4f);
    return built_below(b, 2) == 0 ? x : kelp_graph_dropout(b->graph, "again", x, 0.2f);
}

/* All ids, or a column of them; the table sometimes serves both. */
static uint32_t build_embedding(struct built *b)
{
    char text[32];
    const struct kelp_shape table_shape = shape2(GRAPH_VOCAB, size(b, 4));
    const uint32_t table = kelp_graph_parameter(b->graph, name(b, text), &table_shape,
                                                (struct kelp_graph_init){KELP_INIT_UNIFORM, 0.5f});
    const uint32_t column =
        built_below(b, 2) == 0 ? KELP_GRAPH_NONE : built_below(b, GRAPH_CATEGORIES);
    if (built_below(b, 2) == 0) {
        built_give_out(b, kelp_graph_embedding(b->graph, "first", b->categories, 1, table));
    }
    return kelp_graph_embedding(b->graph, "embedding", b->categories, column, table);
}

static uint32_t build_lstm(struct built *b)
{
    const uint64_t hidden = size(b, 4);
    const uint32_t x = operand(b, shape2(size(b, 4), size(b, 4)));
    const uint32_t h = operand(b, built_shape1(hidden));
    const uint32_t c = built_below(b, 3) == 0 ? h : operand(b, built_shape1(hidden));
    return kelp_layer_lstm(b->graph, "lstm", x, h, c);
}

static uint32_t build_attention(struct built *b)
{
    const uint32_t heads = 1 + built_below(b, 2);
    const uint64_t width = heads * size(b, 3);
    const uint32_t queries = operand(b, shape2(size(b, 3), width));
    const uint32_t keys = built_below(b, 2) == 0 ? queries : operand(b, shape2(size(b, 3), width));
    return kelp_layer_attention(b->graph, "attention", queries, keys, heads);
}

static struct kelp_graph_window window(struct built *b)
{
    struct kelp_graph_window w = {.groups = 1 + built_below(b, 2)};
    for (uint32_t side = 0; side < 2; side++) {
        w.kernel[side] = 1 + built_below(b, 3);
        w.stride[side] = 1 + built_below(b, 3);
        w.padding[side] = built_below(b, w.kernel[side]);
    }
    return w;
}

static uint32_t image(struct built *b, const struct kelp_graph_window *w)
{
    return operand(b, shape3(w->groups * size(b, 2), w->kernel[0] + built_below(b, 4),
                             w->kernel[1] + built_below(b, 4)));
}

static uint32_t build_conv2d(struct built *b)
{
    const struct kelp_graph_window w = window(b);
    return kelp_layer_conv2d(b->graph, "conv", image(b, &w), w.groups * size(b, 2), &w,
                             built_below(b, 2) == 0);
}

static uint32_t build_max_pool(struct built *b)
{
    const struct kelp_graph_window w = window(b);
    return kelp_graph_max_pool(b->graph, "max_pool", image(b, &w), &w);
}

static uint32_t build_average_pool(struct built *b)
{
    const struct kelp_graph_window w = window(b);
    return kelp_graph_average_pool(b->graph, "average_pool", image(b, &w), &w);
}

/* ---- several operators on images ---- */

#define STEPS_MAX 6

/* Images, the first ones first; all may be read again. */
struct images {
    uint32_t nodes[STEPS_MAX + 1];
    uint32_t count;
};

/* A window that leaves something of the image. */
static struct kelp_graph_window window_over(struct built *b, const struct kelp_shape *image)
{
    struct kelp_graph_window w = {.groups = 1};
    for (uint32_t side = 0; side < 2; side++) {
        const uint32_t most = image->dims[1 + side] < 3 ? (uint32_t)image->dims[1 + side] : 3;
        w.kernel[side] = 1 + built_below(b, most);
        w.stride[side] = 1 + built_below(b, 2);
        w.padding[side] = built_below(b, w.kernel[side]);
    }
    return w;
}

/* The first one of x's shape: x itself at the latest. */
static uint32_t like(struct built *b, const struct images *images, uint32_t x)
{
    for (uint32_t i = 0; i < images->count; i++) {
        if (kelp_shape_equal(kelp_graph_shape(b->graph, images->nodes[i]),
                             kelp_graph_shape(b->graph, x))) {
            return images->nodes[i];
        }
    }
    return x;
}

/* Operators that ask for channels last, that need them first, and that take them as they are. */
static uint32_t image_step(struct built *b, const struct images *images, uint32_t x)
{
    static const uint32_t order[] = {0, 2, 1};
    const struct kelp_shape shape = *kelp_graph_shape(b->graph, x);
    const struct kelp_graph_window w = window_over(b, &shape);
    const uint32_t parts[] = {like(b, images, x), x};
    char text[32];
    switch (built_below(b, 12)) {
    case 0:
        return kelp_graph_max_pool(b->graph, "max", x, &w);
    case 1:
        return kelp_graph_average_pool(b->graph, "average", x, &w);
    case 2:
        return kelp_layer_batch_norm(b->graph, name(b, text), x);
    case 3:
        return kelp_graph_tanh(b->graph, "tanh", x);
    case 4:
        return kelp_graph_gelu(b->graph, "gelu", x);
    case 5:
        return kelp_graph_add(b->graph, "add", parts[0], x);
    case 6:
        return kelp_graph_multiply(b->graph, "multiply", x, parts[0]);
    case 7:
        return kelp_graph_dropout(b->graph, "dropout", x, 0.3f);
    case 8:
        return kelp_graph_concat(b->graph, "concat", parts, 2, built_below(b, 3));
    case 9:
        return kelp_graph_permute(b->graph, "permute", x, order);
    default:
        return kelp_layer_conv2d(b->graph, name(b, text), x, size(b, 4), &w,
                                 built_below(b, 2) == 0);
    }
}

static uint32_t build_images(struct built *b)
{
    struct images images = {.count = 1};
    b->batch = 3 + built_below(b, GRAPH_BATCH_MAX - 2);
    images.nodes[0] = operand(b, shape3(size(b, 3), 1 + size(b, 4), 1 + size(b, 4)));
    while (images.count <= STEPS_MAX) {
        const uint32_t x = image_step(b, &images, images.nodes[images.count - 1]);
        if (x == KELP_GRAPH_NONE) {
            return x;
        }
        if (b->output_count + b->late_count < GRAPH_LIST_MAX - 1 && built_below(b, 4) == 0) {
            built_give_out(b, x);
        }
        images.nodes[images.count++] = x;
    }
    return images.nodes[STEPS_MAX];
}

const struct graph_builder graph_builders[GRAPH_BUILDERS] = {
    {"relu", build_relu},
    {"gelu", build_gelu},
    {"elu", build_elu},
    {"sigmoid", build_sigmoid},
    {"tanh", build_tanh},
    {"softmax", build_softmax},
    {"log_softmax", build_log_softmax},
    {"scale", build_scale},
    {"causal_softmax", build_causal_softmax},
    {"glu", build_glu},
    {"moving_average", build_moving_average},
    {"two operands", build_two},
    {"weighted_sum", build_weighted_sum},
    {"matmul", build_matmul},
    {"linear", build_linear},
    {"linear_activated", build_linear_activated},
    {"linear_grouped", build_linear_grouped},
    {"rows", build_rows},
    {"transpose", build_transpose},
    {"permute", build_permute},
    {"concat", build_concat},
    {"slice", build_slice},
    {"repeat", build_repeat},
    {"reduce", build_reduce},
    {"layer_norm", build_layer_norm},
    {"batch_norm", build_batch_norm},
    {"dropout", build_dropout},
    {"embedding", build_embedding},
    {"lstm", build_lstm},
    {"attention", build_attention},
    {"conv2d", build_conv2d},
    {"max_pool", build_max_pool},
    {"average_pool", build_average_pool},
    {"images", build_images},
};

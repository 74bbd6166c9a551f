/* Initial values have the distributions of PyTorch's reset_parameters(). */
#include "worker/model/graph/layers.h"

#include <math.h>
#include <stdio.h>

/* Longer than a parameter's name may be, so that a name that is too long is not cut but refused. */
#define NAME_SIZE (KELP_TENSOR_NAME_MAX + 64)

static struct kelp_graph_init init_of(enum kelp_init_kind kind, double a)
{
    return (struct kelp_graph_init){.kind = kind, .a = (float)a};
}

static uint32_t parameter(struct kelp_graph *graph, const char *layer, const char *name,
                          const struct kelp_shape *shape, struct kelp_graph_init init)
{
    char text[NAME_SIZE];
    (void)snprintf(text, sizeof(text), "%.150s.%s", layer, name);
    return kelp_graph_parameter(graph, text, shape, init);
}

static uint32_t vector(struct kelp_graph *graph, const char *layer, const char *name,
                       uint64_t length, struct kelp_graph_init init)
{
    const struct kelp_shape shape = {.rank = 1, .dims = {length}};
    return parameter(graph, layer, name, &shape, init);
}

static uint32_t matrix(struct kelp_graph *graph, const char *layer, const char *name, uint64_t rows,
                       uint64_t columns, struct kelp_graph_init init)
{
    const struct kelp_shape shape = {.rank = 2, .dims = {rows, columns}};
    return parameter(graph, layer, name, &shape, init);
}

/* The operand's last dimension; 0: it has none, and the failure is kept. */
static uint64_t last_dim(struct kelp_graph *graph, const char *name, uint32_t x)
{
    const struct kelp_shape *shape = kelp_graph_shape(graph, x);
    if (shape && shape->rank == 0) {
        (void)kelp_graph_fail(graph, KELP_ERR_INVALID,
                              "layer %s: the input must be [..., in], but is []", name);
        return 0;
    }
    return !shape ? 0 : shape->dims[shape->rank - 1];
}

struct kelp__layers_linear kelp__layers_linear_parameters(struct kelp_graph *graph,
                                                          const char *name, uint64_t in,
                                                          uint64_t out)
{
    /* kaiming_uniform_(a=sqrt(5)) of the weight has the same bound as the bias. */
    const double bound = 1.0 / sqrt((double)in);
    struct kelp__layers_linear linear;
    linear.weight = matrix(graph, name, "weight", out, in, init_of(KELP_INIT_UNIFORM, bound));
    linear.bias = vector(graph, name, "bias", out, init_of(KELP_INIT_UNIFORM, bound));
    return linear;
}

uint32_t kelp_layer_linear(struct kelp_graph *graph, const char *name, uint32_t x, uint64_t out,
                           bool bias)
{
    const uint64_t in = last_dim(graph, name, x);
    if (in == 0) {
        return KELP_GRAPH_NONE;
    }
    if (bias) {
        const struct kelp__layers_linear linear =
            kelp__layers_linear_parameters(graph, name, in, out);
        return kelp_graph_linear(graph, name, x, linear.weight, linear.bias);
    }
    const uint32_t weight =
        matrix(graph, name, "weight", out, in, init_of(KELP_INIT_UNIFORM, 1.0 / sqrt((double)in)));
    return kelp_graph_linear(graph, name, x, weight, KELP_GRAPH_NO_BIAS);
}

uint32_t kelp_layer_conv2d(struct kelp_graph *graph, const char *name, uint32_t x, uint64_t out,
                           const struct kelp_graph_window *window, bool bias)
{
    const struct kelp_shape *shape = kelp_graph_shape(graph, x);
    if (!shape) {
        return KELP_GRAPH_NONE;
    }
    if (shape->rank != 3 || window->groups == 0 || shape->dims[0] % window->groups != 0) {
        char text[192];
        kelp_shape_print(shape, text, sizeof(text));
        return kelp_graph_fail(
            graph, KELP_ERR_INVALID,
            "layer %s: the input must be [channels, height, width], the channels "
            "in %u groups, but is %s",
            name, window->groups, text);
    }
    const struct kelp_shape weight_shape = {
        .rank = 4,
        .dims = {out, shape->dims[0] / window->groups, window->kernel[0], window->kernel[1]}};
    const double fan_in = (double)weight_shape.dims[1] * window->kernel[0] * window->kernel[1];
    const double bound = 1.0 / sqrt(fan_in);
    const uint32_t weight =
        parameter(graph, name, "weight", &weight_shape, init_of(KELP_INIT_UNIFORM, bound));
    return kelp_graph_conv2d(
        graph, name, x, weight,
        bias ? vector(graph, name, "bias", out, init_of(KELP_INIT_UNIFORM, bound))
             : KELP_GRAPH_NO_BIAS,
        window);
}

static uint32_t statistic(struct kelp_graph *graph, const char *layer, const char *name,
                          uint64_t channels, float initial)
{
    char text[NAME_SIZE];
    const struct kelp_shape shape = {.rank = 1, .dims = {channels}};
    (void)snprintf(text, sizeof(text), "%.150s.%s", layer, name);
    return kelp_graph_statistic(graph, text, &shape, initial, 0.1f);
}

uint32_t kelp_layer_batch_norm(struct kelp_graph *graph, const char *name, uint32_t x)
{
    const struct kelp_shape *shape = kelp_graph_shape(graph, x);
    if (!shape) {
        return KELP_GRAPH_NONE;
    }
    if (shape->rank == 0) {
        return kelp_graph_fail(graph, KELP_ERR_INVALID,
                               "layer %s: the input must be [channels, ...], but is []", name);
    }
    const uint64_t channels = shape->dims[0];
    struct kelp_graph_batch_norm norm = {.eps = 1e-5f};
    norm.weight = vector(graph, name, "weight", channels, init_of(KELP_INIT_CONSTANT, 1.0));
    norm.bias = vector(graph, name, "bias", channels, init_of(KELP_INIT_CONSTANT, 0.0));
    norm.mean = statistic(graph, name, "running_mean", channels, 0.0f);
    norm.variance = statistic(graph, name, "running_var", channels, 1.0f);
    return kelp_graph_batch_norm(graph, name, x, &norm);
}

uint32_t kelp_layer_layer_norm(struct kelp_graph *graph, const char *name, uint32_t x)
{
    const uint64_t width = last_dim(graph, name, x);
    if (width == 0) {
        return KELP_GRAPH_NONE;
    }
    const uint32_t weight = vector(graph, name, "weight", width, init_of(KELP_INIT_CONSTANT, 1.0));
    const uint32_t bias = vector(graph, name, "bias", width, init_of(KELP_INIT_CONSTANT, 0.0));
    return kelp_graph_layer_norm(graph, name, x, weight, bias, 1e-5f);
}

uint32_t kelp_layer_embedding(struct kelp_graph *graph, const char *name, uint32_t ids,
                              uint32_t column, uint64_t vocab, uint64_t width)
{
    const uint32_t table =
        matrix(graph, name, "weight", vocab, width, init_of(KELP_INIT_NORMAL, 1.0));
    return kelp_graph_embedding(graph, name, ids, column, table);
}

uint32_t kelp_layer_lstm(struct kelp_graph *graph, const char *name, uint32_t x, uint32_t h,
                         uint32_t c)
{
    const uint64_t in = last_dim(graph, name, x), hidden = last_dim(graph, name, h);
    if (in == 0 || hidden == 0) {
        return KELP_GRAPH_NONE;
    }
    const double bound = 1.0 / sqrt((double)hidden);
    const uint64_t gates = 4 * hidden;
    struct kelp_graph_lstm lstm;
    lstm.weight_ih =
        matrix(graph, name, "weight_ih_l0", gates, in, init_of(KELP_INIT_UNIFORM, bound));
    lstm.weight_hh =
        matrix(graph, name, "weight_hh_l0", gates, hidden, init_of(KELP_INIT_UNIFORM, bound));
    lstm.bias_ih = vector(graph, name, "bias_ih_l0", gates, init_of(KELP_INIT_UNIFORM, bound));
    lstm.bias_hh = vector(graph, name, "bias_hh_l0", gates, init_of(KELP_INIT_UNIFORM, bound));
    return kelp_graph_lstm(graph, name, x, h, c, &lstm);
}

/* ---- multi-head attention -------------------------------------------------------------------- */

/* The three projections: rows [part width, +width) of one weight and bias. */
struct projections {
    const char *name;
    uint32_t weight, bias;
    uint64_t width;
    uint32_t heads;
};

/* x [n, width] projected, as [heads, n, width / heads]. */
static uint32_t project(struct kelp_graph *graph, const struct projections *projections,
                        const char *part_name, uint32_t x, uint64_t part)
{
    char name[NAME_SIZE];
    const uint64_t width = projections->width;
    const uint32_t order[] = {1, 0, 2};
    (void)snprintf(name, sizeof(name), "%.150s.%s", projections->name, part_name);
    const uint32_t weight = kelp_graph_rows(graph, name, projections->weight, part * width, width);
    const uint32_t bias = kelp_graph_rows(graph, name, projections->bias, part * width, width);
    const uint32_t projected = kelp_graph_linear(graph, name, x, weight, bias);
    const struct kelp_shape *shape = kelp_graph_shape(graph, projected);
    if (!shape) {
        return KELP_GRAPH_NONE;
    }
    const struct kelp_shape split = {
        .rank = 3, .dims = {shape->dims[0], projections->heads, width / projections->heads}};
    return kelp_graph_permute(graph, name, kelp_graph_reshape(graph, name, projected, &split),
                              order);
}

/* context [heads, n, width / heads] as [n, width], through the last projection. */
static uint32_t join_heads(struct kelp_graph *graph, const char *name, uint32_t context,
                           uint64_t width)
{
    char out_name[NAME_SIZE];
    const uint32_t order[] = {1, 0, 2};
    const uint32_t moved = kelp_graph_permute(graph, name, context, order);
    const struct kelp_shape *shape = kelp_graph_shape(graph, moved);
    if (!shape) {
        return KELP_GRAPH_NONE;
    }
    const struct kelp_shape joined = {.rank = 2, .dims = {shape->dims[0], width}};
    const uint32_t x = kelp_graph_reshape(graph, name, moved, &joined);
    (void)snprintf(out_name, sizeof(out_name), "%.150s.out_proj", name);
    const uint32_t weight = matrix(graph, out_name, "weight", width, width,
                                   init_of(KELP_INIT_UNIFORM, 1.0 / sqrt((double)width)));
    const uint32_t bias = vector(graph, out_name, "bias", width, init_of(KELP_INIT_CONSTANT, 0.0));
    return kelp_graph_linear(graph, out_name, x, weight, bias);
}

uint32_t kelp_layer_attention(struct kelp_graph *graph, const char *name, uint32_t queries,
                              uint32_t keys, uint32_t heads)
{
    const uint64_t width = last_dim(graph, name, queries);
    const struct kelp_shape *shape = kelp_graph_shape(graph, queries);
    if (width == 0 || !shape) {
        return KELP_GRAPH_NONE;
    }
    if (shape->rank != 2 || heads == 0 || width % heads != 0) {
        char text[192];
        kelp_shape_print(shape, text, sizeof(text));
        return kelp_graph_fail(graph, KELP_ERR_INVALID,
                               "layer %s: queries must be [n, width], the width a multiple of %u "
                               "heads, but are %s",
                               name, heads, text);
    }
    struct projections projections = {.name = name, .width = width, .heads = heads};
    /* xavier_uniform_ of [3 width, width]. */
    projections.weight = matrix(graph, name, "in_proj_weight", 3 * width, width,
                                init_of(KELP_INIT_UNIFORM, sqrt(6.0 / (4.0 * (double)width))));
    projections.bias =
        vector(graph, name, "in_proj_bias", 3 * width, init_of(KELP_INIT_CONSTANT, 0.0));
    const uint64_t head = width / heads;
    const uint32_t q = project(graph, &projections, "query", queries, 0);
    const uint32_t k = project(graph, &projections, "key", keys, 1);
    const uint32_t v = project(graph, &projections, "value", keys, 2);
    const uint32_t scores = kelp_graph_scale(
        graph, name, kelp_graph_matmul(graph, name, q, k, true), (float)(1.0 / sqrt((double)head)));
    const uint32_t weights = kelp_graph_softmax(graph, name, scores);
    return join_heads(graph, name, kelp_graph_matmul(graph, name, weights, v, false), width);
}

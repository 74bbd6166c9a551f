/*
 * The table of functions that a model in a shared library calls: each hands over to the graph or to
 * its layers, once what came from outside is known to be safe to read.
 */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "common/base/value.h"
#include "worker/model/plugin.h"

_Static_assert(KELP_MODEL_NONE == KELP_GRAPH_NONE, "nodes are the graph's");
/* NOLINTNEXTLINE(misc-redundant-expression): two definitions that must agree */
_Static_assert(KELP_MODEL_NO_BIAS == KELP_GRAPH_NO_BIAS, "nodes are the graph's");
/* The table only grows at its end: a function that moves would break the libraries that are there.
 */
#define AT(name, place)                                                                            \
    _Static_assert(offsetof(struct kelp_model_api, name) == (place) * sizeof(void *),              \
                   "the place of " #name " is for ever")
AT(param, 1);
AT(input, 8);
AT(layer_linear, 13);
AT(linear, 20);
AT(matmul, 27);
AT(reduce_mean, 53);
_Static_assert(KELP_SAMPLE_RANK_MAX <= KELP_TENSOR_RANK_MAX, "inputs are values");

static const char *safe_name(const char *name)
{
    return name ? name : "(no name)";
}

static uint32_t refuse(struct kelp_model_builder *b, const char *name, const char *what)
{
    return kelp_graph_fail(b->graph, KELP_ERR_INVALID, "layer %s: %s", safe_name(name), what);
}

/* ---- the job --------------------------------------------------------------------------------- */

static const char *api_param(struct kelp_model_builder *b, const char *name)
{
    for (uint32_t i = 0; name && i < b->param_count; i++) {
        if (strcmp(b->params[i].name, name) == 0) {
            b->params[i].asked_for = true;
            return b->params[i].value;
        }
    }
    return NULL;
}

static uint64_t api_param_integer(struct kelp_model_builder *b, const char *name,
                                  uint64_t otherwise, uint64_t low, uint64_t high)
{
    struct kelp_error error;
    uint64_t value = otherwise;
    const char *text = api_param(b, name);
    if (text && kelp_value_u64(text, low, high, &value, &error) != KELP_OK) {
        (void)kelp_graph_fail(b->graph, KELP_ERR_INVALID, "model.params: %s: %s", name, error.text);
        return otherwise;
    }
    return value;
}

static double api_param_number(struct kelp_model_builder *b, const char *name, double otherwise,
                               double low, double high)
{
    struct kelp_error error;
    double value = otherwise;
    const char *text = api_param(b, name);
    if (text && kelp_value_double(text, low, high, &value, &error) != KELP_OK) {
        (void)kelp_graph_fail(b->graph, KELP_ERR_INVALID, "model.params: %s: %s", name, error.text);
        return otherwise;
    }
    return value;
}

static uint32_t api_sample_input_count(struct kelp_model_builder *b)
{
    return b->shape->input_count;
}

/* A tensor of rank 0 for an index that there is not, so that a model can go on to its error. */
static const struct kelp_model_tensor *api_sample_input(struct kelp_model_builder *b,
                                                        uint32_t index)
{
    static const struct kelp_model_tensor none = {.size = sizeof(none)};
    if (index >= b->shape->input_count) {
        (void)kelp_graph_fail(b->graph, KELP_ERR_INVALID,
                              "the model wants input %u of samples with %u", index,
                              b->shape->input_count);
        return &none;
    }
    return &b->inputs[index];
}

static const struct kelp_model_tensor *api_sample_target(struct kelp_model_builder *b)
{
    return &b->target;
}

static uint32_t api_fail(struct kelp_model_builder *b, const char *text)
{
    return kelp_graph_fail(b->graph, KELP_ERR_INVALID, "%s", safe_name(text));
}

/* ---- shapes from outside --------------------------------------------------------------------- */

/* False, with the failure in the graph, for what is no shape. */
static bool shape_of(struct kelp_model_builder *b, const char *name, uint32_t rank,
                     const uint64_t *dims, struct kelp_shape *ret)
{
    if (rank > KELP_TENSOR_RANK_MAX || (rank > 0 && !dims)) {
        (void)refuse(b, name, "a shape of more than 8 dimensions, or without them");
        return false;
    }
    *ret = (struct kelp_shape){.rank = rank};
    if (rank > 0) {
        memcpy(ret->dims, dims, rank * sizeof(*dims));
    }
    return true;
}

static bool window_of(struct kelp_model_builder *b, const char *name,
                      const struct kelp_model_window *window, struct kelp_graph_window *ret)
{
    if (!window || window->size < sizeof(*window)) {
        (void)refuse(b, name, "a window without its size set to sizeof(struct kelp_model_window)");
        return false;
    }
    *ret = (struct kelp_graph_window){.groups = window->groups != 0 ? window->groups : 1};
    memcpy(ret->kernel, window->kernel, sizeof(ret->kernel));
    memcpy(ret->stride, window->stride, sizeof(ret->stride));
    memcpy(ret->padding, window->padding, sizeof(ret->padding));
    return true;
}

static uint32_t api_input(struct kelp_model_builder *b, const char *name, uint32_t rank,
                          const uint64_t *dims)
{
    struct kelp_shape shape;
    return shape_of(b, name, rank, dims, &shape)
               ? kelp_graph_input(b->graph, safe_name(name), &shape)
               : KELP_GRAPH_NONE;
}

static uint32_t api_parameter(struct kelp_model_builder *b, const char *name, uint32_t rank,
                              const uint64_t *dims, enum kelp_model_init init, double a)
{
    static const enum kelp_init_kind kinds[] = {
        [KELP_MODEL_INIT_CONSTANT] = KELP_INIT_CONSTANT,
        [KELP_MODEL_INIT_UNIFORM] = KELP_INIT_UNIFORM,
        [KELP_MODEL_INIT_NORMAL] = KELP_INIT_NORMAL,
    };
    struct kelp_shape shape;
    if ((size_t)init >= KELP_ARRAY_COUNT(kinds) || !isfinite((float)a)) {
        return refuse(b, name, "no such initial values");
    }
    const struct kelp_graph_init how = {.kind = kinds[init], .a = (float)a};
    return shape_of(b, name, rank, dims, &shape)
               ? kelp_graph_parameter(b->graph, safe_name(name), &shape, how)
               : KELP_GRAPH_NONE;
}

static uint32_t api_statistic(struct kelp_model_builder *b, const char *name, uint32_t rank,
                              const uint64_t *dims, double initial, double momentum)
{
    struct kelp_shape shape;
    if (!isfinite((float)initial) || !(momentum >= 0.0 && momentum <= 1.0)) {
        return refuse(b, name, "a statistic's momentum is from 0 to 1, its first value finite");
    }
    return shape_of(b, name, rank, dims, &shape)
               ? kelp_graph_statistic(b->graph, safe_name(name), &shape, (float)initial,
                                      (float)momentum)
               : KELP_GRAPH_NONE;
}

static uint32_t api_rank(struct kelp_model_builder *b, uint32_t node)
{
    const struct kelp_shape *shape = kelp_graph_shape(b->graph, node);
    return shape ? shape->rank : 0;
}

static uint64_t api_dim(struct kelp_model_builder *b, uint32_t node, uint32_t axis)
{
    const struct kelp_shape *shape = kelp_graph_shape(b->graph, node);
    return shape && axis < shape->rank ? shape->dims[axis] : 0;
}

/* ---- layers ---------------------------------------------------------------------------------- */

static uint32_t api_layer_linear(struct kelp_model_builder *b, const char *name, uint32_t x,
                                 uint64_t out, int bias)
{
    return kelp_layer_linear(b->graph, safe_name(name), x, out, bias != 0);
}

static uint32_t api_layer_conv2d(struct kelp_model_builder *b, const char *name, uint32_t x,
                                 uint64_t out, const struct kelp_model_window *window, int bias)
{
    struct kelp_graph_window own;
    return window_of(b, name, window, &own)
               ? kelp_layer_conv2d(b->graph, safe_name(name), x, out, &own, bias != 0)
               : KELP_GRAPH_NONE;
}

static uint32_t api_layer_embedding(struct kelp_model_builder *b, const char *name, uint32_t ids,
                                    uint32_t column, uint64_t vocab, uint64_t width)
{
    return kelp_layer_embedding(b->graph, safe_name(name), ids, column, vocab, width);
}

static uint32_t api_layer_lstm(struct kelp_model_builder *b, const char *name, uint32_t x,
                               uint32_t h, uint32_t c)
{
    return kelp_layer_lstm(b->graph, safe_name(name), x, h, c);
}

static uint32_t api_layer_attention(struct kelp_model_builder *b, const char *name,
                                    uint32_t queries, uint32_t keys, uint32_t heads)
{
    return kelp_layer_attention(b->graph, safe_name(name), queries, keys, heads);
}

/* ---- operators with parameters --------------------------------------------------------------- */

static uint32_t api_linear(struct kelp_model_builder *b, const char *name, uint32_t x,
                           uint32_t weight, uint32_t bias)
{
    return kelp_graph_linear(b->graph, safe_name(name), x, weight, bias);
}

static uint32_t api_linear_grouped(struct kelp_model_builder *b, const char *name, uint32_t x,
                                   const uint32_t *weights, const uint32_t *biases, uint32_t groups)
{
    return weights && biases
               ? kelp_graph_linear_grouped(b->graph, safe_name(name), x, weights, biases, groups)
               : refuse(b, name, "groups without weights or biases");
}

static uint32_t api_conv2d(struct kelp_model_builder *b, const char *name, uint32_t x,
                           uint32_t weight, uint32_t bias, const struct kelp_model_window *window)
{
    struct kelp_graph_window own;
    return window_of(b, name, window, &own)
               ? kelp_graph_conv2d(b->graph, safe_name(name), x, weight, bias, &own)
               : KELP_GRAPH_NONE;
}

static uint32_t api_batch_norm(struct kelp_model_builder *b, const char *name, uint32_t x,
                               const uint32_t nodes[4], double eps)
{
    if (!nodes || !(eps > 0.0)) {
        return refuse(b, name, "a batch norm wants four parameters and eps above 0");
    }
    const struct kelp_graph_batch_norm norm = {.weight = nodes[0],
                                               .bias = nodes[1],
                                               .mean = nodes[2],
                                               .variance = nodes[3],
                                               .eps = (float)eps};
    return kelp_graph_batch_norm(b->graph, safe_name(name), x, &norm);
}

static uint32_t api_layer_norm(struct kelp_model_builder *b, const char *name, uint32_t x,
                               uint32_t weight, uint32_t bias, double eps)
{
    return eps > 0.0 ? kelp_graph_layer_norm(b->graph, safe_name(name), x, weight, bias, (float)eps)
                     : refuse(b, name, "a layer norm wants eps above 0");
}

static uint32_t api_embedding(struct kelp_model_builder *b, const char *name, uint32_t ids,
                              uint32_t column, uint32_t table)
{
    return kelp_graph_embedding(b->graph, safe_name(name), ids, column, table);
}

static uint32_t api_lstm(struct kelp_model_builder *b, const char *name, uint32_t x, uint32_t h,
                         uint32_t c, const uint32_t nodes[4])
{
    if (!nodes) {
        return refuse(b, name, "an LSTM wants four parameters");
    }
    const struct kelp_graph_lstm lstm = {
        .weight_ih = nodes[0], .weight_hh = nodes[1], .bias_ih = nodes[2], .bias_hh = nodes[3]};
    return kelp_graph_lstm(b->graph, safe_name(name), x, h, c, &lstm);
}

/* ---- operators without parameters ------------------------------------------------------------ */

static uint32_t api_matmul(struct kelp_model_builder *b, const char *name, uint32_t left,
                           uint32_t right, int transpose_b)
{
    return kelp_graph_matmul(b->graph, safe_name(name), left, right, transpose_b != 0);
}

static uint32_t api_max_pool(struct kelp_model_builder *b, const char *name, uint32_t x,
                             const struct kelp_model_window *window)
{
    struct kelp_graph_window own;
    return window_of(b, name, window, &own)
               ? kelp_graph_max_pool(b->graph, safe_name(name), x, &own)
               : KELP_GRAPH_NONE;
}

static uint32_t api_average_pool(struct kelp_model_builder *b, const char *name, uint32_t x,
                                 const struct kelp_model_window *window)
{
    struct kelp_graph_window own;
    return window_of(b, name, window, &own)
               ? kelp_graph_average_pool(b->graph, safe_name(name), x, &own)
               : KELP_GRAPH_NONE;
}

static uint32_t api_dropout(struct kelp_model_builder *b, const char *name, uint32_t x, double p)
{
    return p >= 0.0 && p < 1.0 ? kelp_graph_dropout(b->graph, safe_name(name), x, (float)p)
                               : refuse(b, name, "dropout is at least 0 and below 1");
}

static uint32_t api_scale(struct kelp_model_builder *b, const char *name, uint32_t x, double factor)
{
    return kelp_graph_scale(b->graph, safe_name(name), x, (float)factor);
}

static uint32_t api_causal_softmax(struct kelp_model_builder *b, const char *name, uint32_t x,
                                   uint32_t offset)
{
    return kelp_graph_causal_softmax(b->graph, safe_name(name), x, offset);
}

static uint32_t api_moving_average(struct kelp_model_builder *b, const char *name, uint32_t x,
                                   uint32_t kernel)
{
    return kelp_graph_moving_average(b->graph, safe_name(name), x, kernel);
}

static uint32_t api_permute(struct kelp_model_builder *b, const char *name, uint32_t x,
                            const uint32_t *order)
{
    return order ? kelp_graph_permute(b->graph, safe_name(name), x, order)
                 : refuse(b, name, "a permutation without an order");
}

static uint32_t api_reshape(struct kelp_model_builder *b, const char *name, uint32_t x,
                            uint32_t rank, const uint64_t *dims)
{
    struct kelp_shape shape;
    return shape_of(b, name, rank, dims, &shape)
               ? kelp_graph_reshape(b->graph, safe_name(name), x, &shape)
               : KELP_GRAPH_NONE;
}

static uint32_t api_concat(struct kelp_model_builder *b, const char *name, const uint32_t *parts,
                           uint32_t part_count, uint32_t axis)
{
    return parts && part_count > 0
               ? kelp_graph_concat(b->graph, safe_name(name), parts, part_count, axis)
               : refuse(b, name, "nothing to put together");
}

static uint32_t api_slice(struct kelp_model_builder *b, const char *name, uint32_t x, uint32_t axis,
                          uint64_t first, uint64_t length)
{
    return kelp_graph_slice(b->graph, safe_name(name), x, axis, first, length);
}

static uint32_t api_repeat(struct kelp_model_builder *b, const char *name, uint32_t x,
                           uint32_t axis, uint64_t times)
{
    return kelp_graph_repeat(b->graph, safe_name(name), x, axis, times);
}

/* Those that take operands alone, or an operand and an axis. */
#define ONE(name, function)                                                                        \
    static uint32_t api_##name(struct kelp_model_builder *b, const char *layer, uint32_t x)        \
    {                                                                                              \
        return function(b->graph, safe_name(layer), x);                                            \
    }
#define TWO(name, function)                                                                        \
    static uint32_t api_##name(struct kelp_model_builder *b, const char *layer, uint32_t left,     \
                               uint32_t right)                                                     \
    {                                                                                              \
        return function(b->graph, safe_name(layer), left, right);                                  \
    }

ONE(layer_batch_norm, kelp_layer_batch_norm)
ONE(layer_layer_norm, kelp_layer_layer_norm)
ONE(relu, kelp_graph_relu)
ONE(gelu, kelp_graph_gelu)
ONE(elu, kelp_graph_elu)
ONE(sigmoid, kelp_graph_sigmoid)
ONE(tanh, kelp_graph_tanh)
ONE(softmax, kelp_graph_softmax)
ONE(log_softmax, kelp_graph_log_softmax)
ONE(glu, kelp_graph_glu)
ONE(transpose, kelp_graph_transpose)
TWO(add, kelp_graph_add)
TWO(subtract, kelp_graph_subtract)
TWO(multiply, kelp_graph_multiply)
TWO(weighted_sum, kelp_graph_weighted_sum)
TWO(reduce_sum, kelp_graph_reduce_sum)
TWO(reduce_mean, kelp_graph_reduce_mean)

#define ENTRY(name) .name = api_##name
const struct kelp_model_api kelp__plugin_api = {
    .size = sizeof(struct kelp_model_api),
    ENTRY(param),
    ENTRY(param_integer),
    ENTRY(param_number),
    ENTRY(sample_input_count),
    ENTRY(sample_input),
    ENTRY(sample_target),
    ENTRY(fail),
    ENTRY(input),
    ENTRY(parameter),
    ENTRY(statistic),
    ENTRY(rank),
    ENTRY(dim),
    ENTRY(layer_linear),
    ENTRY(layer_conv2d),
    ENTRY(layer_batch_norm),
    ENTRY(layer_layer_norm),
    ENTRY(layer_embedding),
    ENTRY(layer_lstm),
    ENTRY(layer_attention),
    ENTRY(linear),
    ENTRY(linear_grouped),
    ENTRY(conv2d),
    ENTRY(batch_norm),
    ENTRY(layer_norm),
    ENTRY(embedding),
    ENTRY(lstm),
    ENTRY(matmul),
    ENTRY(max_pool),
    ENTRY(average_pool),
    ENTRY(dropout),
    ENTRY(relu),
    ENTRY(gelu),
    ENTRY(elu),
    ENTRY(sigmoid),
    ENTRY(tanh),
    ENTRY(scale),
    ENTRY(softmax),
    ENTRY(log_softmax),
    ENTRY(causal_softmax),
    ENTRY(glu),
    ENTRY(moving_average),
    ENTRY(add),
    ENTRY(subtract),
    ENTRY(multiply),
    ENTRY(weighted_sum),
    ENTRY(transpose),
    ENTRY(permute),
    ENTRY(reshape),
    ENTRY(concat),
    ENTRY(slice),
    ENTRY(repeat),
    ENTRY(reduce_sum),
    ENTRY(reduce_mean),
};

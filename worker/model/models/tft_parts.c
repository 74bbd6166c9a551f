#include "worker/model/models/tft_parts.h"

#include <math.h>
#include <stdlib.h>

#include "worker/model/models/shapes.h"

static uint64_t last_dim(const struct kelp_shape *shape)
{
    return shape->dims[shape->rank - 1];
}

static uint32_t dropout_of(struct kelp_graph *graph, const char *name, uint32_t x, float p)
{
    return p > 0.0f ? kelp_graph_dropout(graph, kelp__model_name(name, "dropout").text, x, p) : x;
}

uint32_t kelp__tft_glu(struct kelp_graph *graph, const char *name, uint32_t x, uint64_t out,
                       float dropout)
{
    x = dropout_of(graph, name, x, dropout);
    x = kelp_layer_linear(graph, kelp__model_name(name, "fc").text, x, 2 * out, true);
    return kelp_graph_glu(graph, name, x);
}

/* context(c) with the leading dimensions of x. */
static uint32_t add_context(struct kelp_graph *graph, const char *name, uint32_t x,
                            const struct kelp__tft_grn *grn)
{
    if (grn->context == KELP_GRAPH_NONE) {
        return x;
    }
    uint32_t c = kelp_layer_linear(graph, kelp__model_name(name, "context").text, grn->context,
                                   grn->hidden, false);
    const struct kelp_shape *x_shape = kelp_graph_shape(graph, x);
    const struct kelp_shape *c_shape = kelp_graph_shape(graph, c);
    if (x_shape && c_shape && c_shape->rank + 1 == x_shape->rank) {
        c = kelp_graph_repeat(graph, kelp__model_name(name, "context_rows").text, c, 0,
                              x_shape->dims[0]);
    }
    return kelp_graph_add(graph, kelp__model_name(name, "add_context").text, x, c);
}

uint32_t kelp__tft_grn(struct kelp_graph *graph, const char *name, uint32_t x,
                       const struct kelp__tft_grn *grn)
{
    const struct kelp_shape *shape = kelp_graph_shape(graph, x);
    if (!shape) {
        return KELP_GRAPH_NONE;
    }
    const bool same_width = last_dim(shape) == grn->out;

    uint32_t y = kelp_layer_linear(graph, kelp__model_name(name, "fc1").text, x, grn->hidden, true);
    y = add_context(graph, name, y, grn);
    y = kelp_graph_elu(graph, kelp__model_name(name, "elu").text, y);
    y = kelp_layer_linear(graph, kelp__model_name(name, "fc2").text, y, grn->hidden, true);
    y = kelp__tft_glu(graph, kelp__model_name(name, "glu").text, y, grn->out, grn->dropout);
    const uint32_t skip = same_width ? x
                                     : kelp_layer_linear(graph, kelp__model_name(name, "skip").text,
                                                         x, grn->out, true);
    y = kelp_graph_add(graph, kelp__model_name(name, "residual").text, skip, y);
    return kelp_layer_layer_norm(graph, kelp__model_name(name, "norm").text, y);
}

uint32_t kelp__tft_gate_norm(struct kelp_graph *graph, const char *name, uint32_t x, uint32_t skip,
                             float dropout)
{
    const struct kelp_shape *shape = kelp_graph_shape(graph, skip);
    if (!shape) {
        return KELP_GRAPH_NONE;
    }
    const uint32_t gated =
        kelp__tft_glu(graph, kelp__model_name(name, "glu").text, x, last_dim(shape), dropout);
    const uint32_t y = kelp_graph_add(graph, kelp__model_name(name, "residual").text, gated, skip);
    return kelp_layer_layer_norm(graph, kelp__model_name(name, "norm").text, y);
}

/* softmax(GRN_weight(concatenated variables, c)): [time, variables] */
static uint32_t selection_weights(struct kelp_graph *graph, const char *name,
                                  const struct kelp__tft_selection *selection)
{
    const struct kelp__tft_grn grn = {.hidden = selection->d,
                                      .out = selection->variable_count,
                                      .context = selection->context,
                                      .dropout = selection->dropout};
    const uint32_t all = kelp_graph_concat(graph, kelp__model_name(name, "variables").text,
                                           selection->variables, selection->variable_count, 1);
    const uint32_t scores = kelp__tft_grn(graph, kelp__model_name(name, "weight").text, all, &grn);
    return kelp_graph_softmax(graph, kelp__model_name(name, "weights").text, scores);
}

/* GRN_i(variable i), stacked: [time, variables, d] */
static uint32_t selection_values(struct kelp_graph *graph, const char *name,
                                 const struct kelp__tft_selection *selection, uint32_t *values)
{
    const struct kelp__tft_grn grn = {.hidden = selection->d,
                                      .out = selection->d,
                                      .context = KELP_GRAPH_NONE,
                                      .dropout = selection->dropout};
    const struct kelp__model_name grns = kelp__model_name(name, "grns");
    for (uint32_t i = 0; i < selection->variable_count; i++) {
        values[i] = kelp__tft_grn(graph, kelp__model_name_index(grns.text, i).text,
                                  selection->variables[i], &grn);
    }
    const uint32_t all = kelp_graph_concat(graph, kelp__model_name(name, "values").text, values,
                                           selection->variable_count, 1);
    const struct kelp_shape *shape = kelp_graph_shape(graph, all);
    if (!shape) {
        return KELP_GRAPH_NONE;
    }
    const struct kelp_shape by_variable =
        kelp__model_shape3(shape->dims[0], selection->variable_count, selection->d);
    return kelp_graph_reshape(graph, kelp__model_name(name, "by_variable").text, all, &by_variable);
}

uint32_t kelp__tft_selection(struct kelp_graph *graph, const char *name,
                             const struct kelp__tft_selection *selection)
{
    uint32_t *values = calloc(selection->variable_count, sizeof(*values));
    if (!values) {
        return kelp_graph_fail(graph, KELP_ERR_NO_MEMORY, "layer %s: out of memory", name);
    }
    const uint32_t weights = selection_weights(graph, name, selection);
    const uint32_t by_variable = selection_values(graph, name, selection, values);
    free(values);
    return kelp_graph_weighted_sum(graph, name, weights, by_variable);
}

/* "<name>.<part>" of x [rows, d], split into heads: [heads, rows, d / heads] */
static uint32_t heads_of(struct kelp_graph *graph, const struct kelp__model_name *name, uint32_t x,
                         uint32_t heads, float scale)
{
    static const uint32_t heads_first[] = {1, 0, 2};
    const struct kelp_shape *shape = kelp_graph_shape(graph, x);
    if (!shape) {
        return KELP_GRAPH_NONE;
    }
    const uint64_t d = shape->dims[1];
    const struct kelp_shape cut = kelp__model_shape3(shape->dims[0], heads, d / heads);
    x = kelp_layer_linear(graph, name->text, x, d, true);
    if (scale != 1.0f) {
        x = kelp_graph_scale(graph, kelp__model_name(name->text, "scale").text, x, scale);
    }
    x = kelp_graph_reshape(graph, kelp__model_name(name->text, "cut").text, x, &cut);
    return kelp_graph_permute(graph, kelp__model_name(name->text, "heads").text, x, heads_first);
}

uint32_t kelp__tft_attention(struct kelp_graph *graph, const char *name, uint32_t queries,
                             uint32_t keys, const struct kelp__tft_attention *attention)
{
    const struct kelp_shape *shape = kelp_graph_shape(graph, queries);
    if (!shape) {
        return KELP_GRAPH_NONE;
    }
    const uint64_t d = shape->dims[1], dk = d / attention->heads;
    const struct kelp__model_name q_name = kelp__model_name(name, "q"),
                                  k_name = kelp__model_name(name, "k");

    /* The factor 1 / sqrt(dk) is applied to the queries, which are fewer than the scores. */
    const uint32_t q =
        heads_of(graph, &q_name, queries, attention->heads, (float)(1.0 / sqrt((double)dk)));
    const uint32_t k = heads_of(graph, &k_name, keys, attention->heads, 1.0f);
    const uint32_t v = kelp_layer_linear(graph, kelp__model_name(name, "v").text, keys, dk, true);
    uint32_t y = kelp_graph_matmul(graph, kelp__model_name(name, "scores").text, q, k, true);
    y = kelp_graph_causal_softmax(graph, kelp__model_name(name, "weights").text, y,
                                  attention->offset);
    /* All heads share the values, so the mean of the heads is the mean of their weights times
     * the values. */
    y = kelp_graph_reduce_mean(graph, kelp__model_name(name, "mean").text, y, 0);
    y = kelp_graph_matmul(graph, name, y, v, false);
    y = dropout_of(graph, name, y, attention->dropout);
    return kelp_layer_linear(graph, kelp__model_name(name, "out").text, y, d, false);
}

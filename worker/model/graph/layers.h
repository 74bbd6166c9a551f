/*
 * Layers as PyTorch has them: parameters with its names ("<name>.weight") and its default initial
 * values (the same distribution), and the operator on them. What a model is written with.
 *
 * Each returns the layer's output, or KELP_GRAPH_NONE as the functions of
 * worker/model/graph/graph.h do.
 */
#ifndef KELP_WORKER_MODEL_GRAPH_LAYERS_H
#define KELP_WORKER_MODEL_GRAPH_LAYERS_H

#include "worker/model/graph/graph.h"

/* nn.Linear(in, out) over the last dimension: "<name>.weight", and with bias "<name>.bias". */
uint32_t kelp_layer_linear(struct kelp_graph *graph, const char *name, uint32_t x, uint64_t out,
                           bool bias);
/* nn.Conv2d: window's kernel, stride, padding and groups. */
uint32_t kelp_layer_conv2d(struct kelp_graph *graph, const char *name, uint32_t x, uint64_t out,
                           const struct kelp_graph_window *window, bool bias);
/* nn.BatchNorm1d or 2d: eps 1e-5, momentum 0.1; "<name>.weight", ".bias", ".running_mean",
 * ".running_var". */
uint32_t kelp_layer_batch_norm(struct kelp_graph *graph, const char *name, uint32_t x);
/* nn.LayerNorm over the last dimension, eps 1e-5. */
uint32_t kelp_layer_layer_norm(struct kelp_graph *graph, const char *name, uint32_t x);
/* nn.Embedding(vocab, width), values normal; column as in kelp_graph_embedding(). */
uint32_t kelp_layer_embedding(struct kelp_graph *graph, const char *name, uint32_t ids,
                              uint32_t column, uint64_t vocab, uint64_t width);
/* nn.LSTM(in, hidden), one layer: "<name>.weight_ih_l0" and so on; y as kelp_graph_lstm(). */
uint32_t kelp_layer_lstm(struct kelp_graph *graph, const char *name, uint32_t x, uint32_t h,
                         uint32_t c);
/* nn.MultiheadAttention(width, heads, batch_first), keys and values the same:
 * "<name>.in_proj_weight", ".in_proj_bias", ".out_proj.weight", ".out_proj.bias".
 * queries [q, width], keys [k, width]. */
uint32_t kelp_layer_attention(struct kelp_graph *graph, const char *name, uint32_t queries,
                              uint32_t keys, uint32_t heads);

/* PyTorch's nn.Linear with its default initial values: parameters "<name>.weight" [out, in] and
 * "<name>.bias" [out], both uniform in +-1/sqrt(in). */
struct kelp__layers_linear {
    uint32_t weight;
    uint32_t bias;
};
struct kelp__layers_linear kelp__layers_linear_parameters(struct kelp_graph *graph,
                                                          const char *name, uint64_t in,
                                                          uint64_t out);

#endif

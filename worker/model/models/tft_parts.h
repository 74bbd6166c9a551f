/*
 * The pieces of the Temporal Fusion Transformer (Lim et al., arXiv 1912.09363), sections 4.1 to
 * 4.4: each can be used and checked by itself. Values are [.., width]; `name` stands in front of
 * the parameters' names.
 */
#ifndef KELP_WORKER_MODEL_MODELS_TFT_PARTS_H
#define KELP_WORKER_MODEL_MODELS_TFT_PARTS_H

#include "worker/model/graph/graph.h"

/* GLU(x): "<name>.fc" to twice the width, the first half gated by the second (eq. 5). dropout
 * comes before. */
uint32_t kelp__tft_glu(struct kelp_graph *graph, const char *name, uint32_t x, uint64_t out,
                       float dropout);

/*
 * Gated residual network (eqs. 2 to 4): LayerNorm(skip(x) + GLU(fc2(ELU(fc1(x) + context(c))))).
 * "context" has no bias; "skip" is there only where the widths of x and output differ.
 */
struct kelp__tft_grn {
    uint64_t hidden, out;
    uint32_t context; /* [.., any], or of one rank less than x: the same for all of x's rows;
                         KELP_GRAPH_NONE: none */
    float dropout;
};
uint32_t kelp__tft_grn(struct kelp_graph *graph, const char *name, uint32_t x,
                       const struct kelp__tft_grn *grn);

/* LayerNorm(GLU(x) + skip). */
uint32_t kelp__tft_gate_norm(struct kelp_graph *graph, const char *name, uint32_t x, uint32_t skip,
                             float dropout);

/*
 * Variable selection (eqs. 6 to 8): softmax(GRN_weight(all variables, c)) weighs
 * GRN_i(variable i). variables are [time, d] each, context as in kelp__tft_grn.
 */
struct kelp__tft_selection {
    const uint32_t *variables;
    uint32_t variable_count;
    uint64_t d;
    uint32_t context;
    float dropout;
};
uint32_t kelp__tft_selection(struct kelp_graph *graph, const char *name,
                             const struct kelp__tft_selection *selection);

/*
 * Interpretable multi-head attention (eqs. 13 to 16): heads of their own for queries and keys, one
 * projection of the values for all of them, and the mean of the heads. queries [q, d], keys [k, d];
 * query i sees keys up to i + offset.
 */
struct kelp__tft_attention {
    uint32_t heads, offset;
    float dropout;
};
uint32_t kelp__tft_attention(struct kelp_graph *graph, const char *name, uint32_t queries,
                             uint32_t keys, const struct kelp__tft_attention *attention);

#endif

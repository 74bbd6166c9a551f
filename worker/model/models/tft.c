/*
 * Temporal Fusion Transformer (Lim et al., "Temporal Fusion Transformers for Interpretable
 * Multi-horizon Time Series Forecasting", arXiv 1912.09363, 2019): variable selection, an LSTM
 * encoder-decoder, static enrichment, interpretable attention over all positions, and quantiles of
 * the target for each future position (train.loss quantile).
 *
 * Inputs of a sample (worker/data/sample.h, panel): the category of the series, known values
 * [seq_len, n], observed values [seq_len] or [seq_len, m] with the targets first, and known future
 * values [pred_len, n]. The target is [pred_len] or [pred_len, t].
 */
#include <stdlib.h>

#include "worker/model/models/shapes.h"
#include "worker/model/models/tft_parts.h"

struct tft {
    struct kelp_graph *graph;
    uint64_t d;
    float dropout;
    uint32_t heads;
    uint64_t seq, pred;
    uint32_t known_count, observed_count, target_count;
    bool quantiles;                          /* the output's last dimension holds quantiles */
    uint32_t quantile_count;                 /* 1 without quantiles */
    uint32_t series, known, observed, ahead; /* inputs */
};

/* Contexts from the static covariate encoders. */
struct contexts {
    uint32_t selection, h, c, enrichment;
};

static bool read_sample(struct tft *tft, const struct kelp_sample_shape *shape)
{
    const struct kelp_sample_tensor *in = shape->inputs, *target = &shape->target;
    tft->seq = in[1].dims[0];
    tft->pred = target->dims[0];
    tft->known_count = (uint32_t)in[1].dims[1];
    tft->observed_count = in[2].rank == 2 ? (uint32_t)in[2].dims[1] : 1;
    tft->target_count = target->rank == 2 ? (uint32_t)target->dims[1] : 1;
    return shape->input_count == 4 && in[0].vocab_count == 1 &&
           kelp_sample_tensor_count(&in[0]) == 1 && in[1].rank == 2 && in[1].vocab_count == 0 &&
           (in[2].rank == 1 || in[2].rank == 2) && in[2].dims[0] == tft->seq &&
           in[2].vocab_count == 0 && in[3].rank == 2 && in[3].dims[0] == tft->pred &&
           in[3].dims[1] == in[1].dims[1] && in[3].vocab_count == 0 &&
           (target->rank == 1 || target->rank == 2) && target->vocab_count == 0 &&
           tft->target_count <= tft->observed_count && tft->known_count <= KELP_PLAN_TENSORS_MAX &&
           tft->observed_count <= KELP_PLAN_TENSORS_MAX;
}

static void declare_inputs(struct tft *tft, const struct kelp_sample_shape *shape)
{
    static const char *const names[] = {"series", "known", "observed", "known_ahead"};
    uint32_t *const inputs[] = {&tft->series, &tft->known, &tft->observed, &tft->ahead};
    for (uint32_t i = 0; i < KELP_ARRAY_COUNT(inputs); i++) {
        /* A single category is a scalar whatever its rank, so its embedding is [d]. */
        const struct kelp_shape dims =
            i == 0 ? (struct kelp_shape){.rank = 0} : kelp__model_shape_of(&shape->inputs[i]);
        *inputs[i] = kelp_graph_input(tft->graph, names[i], &dims);
    }
}

/* Column i of x [time, columns], or x [time] itself, through Linear(1, d): [time, d]. */
static uint32_t project(const struct tft *tft, const char *name, uint32_t x, uint32_t column,
                        const struct kelp__layers_linear *layer)
{
    const struct kelp_shape *shape = kelp_graph_shape(tft->graph, x);
    if (!shape) {
        return KELP_GRAPH_NONE;
    }
    const struct kelp_shape one_column = kelp__model_shape2(shape->dims[0], 1);
    const struct kelp__model_name column_name = kelp__model_name(name, "column");
    const uint32_t values = shape->rank == 1 || shape->dims[1] == 1
                                ? kelp_graph_reshape(tft->graph, column_name.text, x, &one_column)
                                : kelp_graph_slice(tft->graph, column_name.text, x, 1, column, 1);
    return kelp_graph_linear(tft->graph, name, values, layer->weight, layer->bias);
}

/* The variables of the encoder (known, then observed) and of the decoder (known), [time, d]
 * each. A known variable uses one layer, "kn.<i>", for past and future. */
static void project_all(const struct tft *tft, uint32_t *encoder, uint32_t *decoder)
{
    for (uint32_t i = 0; i < tft->known_count; i++) {
        const struct kelp__model_name name = kelp__model_name_index("kn", i);
        const struct kelp__layers_linear layer =
            kelp__layers_linear_parameters(tft->graph, name.text, 1, tft->d);
        encoder[i] = project(tft, name.text, tft->known, i, &layer);
        decoder[i] = project(tft, kelp__model_name(name.text, "ahead").text, tft->ahead, i, &layer);
    }
    for (uint32_t i = 0; i < tft->observed_count; i++) {
        const struct kelp__model_name name =
            tft->observed_count == 1 ? kelp__model_name("", "tg") : kelp__model_name_index("tg", i);
        const struct kelp__layers_linear layer =
            kelp__layers_linear_parameters(tft->graph, name.text, 1, tft->d);
        encoder[tft->known_count + i] = project(tft, name.text, tft->observed, i, &layer);
    }
}

static uint32_t static_encoder(const struct tft *tft, const char *name, uint32_t embedding)
{
    const struct kelp__tft_grn grn = {
        .hidden = tft->d, .out = tft->d, .context = KELP_GRAPH_NONE, .dropout = tft->dropout};
    return kelp__tft_grn(tft->graph, name, embedding, &grn);
}

static struct contexts encode_static(const struct tft *tft, uint32_t vocab)
{
    const uint32_t e =
        kelp_layer_embedding(tft->graph, "emb", tft->series, KELP_GRAPH_NONE, vocab, tft->d);
    return (struct contexts){
        .selection = static_encoder(tft, "cs", e),
        .h = static_encoder(tft, "ch", e),
        .c = static_encoder(tft, "cc", e),
        .enrichment = static_encoder(tft, "ce", e),
    };
}

static uint32_t select_variables(const struct tft *tft, const char *name, const uint32_t *variables,
                                 uint32_t count, uint32_t context)
{
    const struct kelp__tft_selection selection = {.variables = variables,
                                                  .variable_count = count,
                                                  .d = tft->d,
                                                  .context = context,
                                                  .dropout = tft->dropout};
    return kelp__tft_selection(tft->graph, name, &selection);
}

/* Columns [first, first + d) of the last row of an LSTM's states [time, 2 d]. */
static uint32_t final_state(const struct tft *tft, const char *name, uint32_t states,
                            uint64_t first)
{
    uint32_t x = kelp_graph_slice(tft->graph, name, states, 0, tft->seq - 1, 1);
    x = kelp_graph_slice(tft->graph, name, x, 1, first, tft->d);
    return kelp__model_flatten(tft->graph, name, x);
}

/* The LSTM encoder-decoder over the selected variables: its outputs at all positions. */
static uint32_t local_processing(const struct tft *tft, const struct contexts *contexts,
                                 uint32_t encoder, uint32_t decoder)
{
    struct kelp_graph *graph = tft->graph;
    const uint32_t past = kelp_layer_lstm(graph, "enc", encoder, contexts->h, contexts->c);
    const uint32_t h = final_state(tft, "enc_h", past, 0);
    const uint32_t c = final_state(tft, "enc_c", past, tft->d);
    const uint32_t future = kelp_layer_lstm(graph, "dec", decoder, h, c);
    const uint32_t outputs[] = {kelp_graph_slice(graph, "enc_outputs", past, 1, 0, tft->d),
                                kelp_graph_slice(graph, "dec_outputs", future, 1, 0, tft->d)};
    return kelp_graph_concat(graph, "lstm", outputs, KELP_ARRAY_COUNT(outputs), 0);
}

/* The positions to forecast, from a value of all positions. */
static uint32_t ahead_of(const struct tft *tft, const char *name, uint32_t x)
{
    return kelp_graph_slice(tft->graph, name, x, 0, tft->seq, tft->pred);
}

/* Temporal fusion decoder: enrichment, attention, and a last gated network. */
static uint32_t fusion(const struct tft *tft, const struct contexts *contexts, uint32_t temporal)
{
    struct kelp_graph *graph = tft->graph;
    const struct kelp__tft_grn enrichment = {
        .hidden = tft->d, .out = tft->d, .context = contexts->enrichment, .dropout = tft->dropout};
    const uint32_t enriched = kelp__tft_grn(graph, "enrich", temporal, &enrichment);
    const uint32_t queries = ahead_of(tft, "enriched_ahead", enriched);
    const struct kelp__tft_attention attention = {
        .heads = tft->heads, .offset = (uint32_t)tft->seq, .dropout = tft->dropout};
    const uint32_t attended = kelp__tft_attention(graph, "att", queries, enriched, &attention);
    const uint32_t g2 = kelp__tft_gate_norm(graph, "g2", attended, queries, tft->dropout);
    const uint32_t ff = static_encoder(tft, "ff", g2);
    return kelp__tft_gate_norm(graph, "g3", ff, ahead_of(tft, "temporal_ahead", temporal), 0.0f);
}

/* The quantiles of each target at each future position. */
static uint32_t output(const struct tft *tft, uint32_t x)
{
    const uint32_t values = tft->target_count * tft->quantile_count;
    const uint32_t y = kelp_layer_linear(tft->graph, "out", x, values, true);
    if (tft->target_count == 1) {
        const struct kelp_shape forecast = kelp__model_shape1(tft->pred);
        return tft->quantiles ? y : kelp_graph_reshape(tft->graph, "forecast", y, &forecast);
    }
    const struct kelp_shape by_target =
        kelp__model_shape3(tft->pred, tft->target_count, tft->quantile_count);
    return tft->quantiles ? kelp_graph_reshape(tft->graph, "forecast", y, &by_target) : y;
}

static uint32_t build(const struct tft *tft, uint32_t vocab, uint32_t *encoder, uint32_t *decoder)
{
    struct kelp_graph *graph = tft->graph;
    project_all(tft, encoder, decoder);
    const struct contexts contexts = encode_static(tft, vocab);
    const uint32_t selected[] = {
        select_variables(tft, "vsn_enc", encoder, tft->known_count + tft->observed_count,
                         contexts.selection),
        select_variables(tft, "vsn_dec", decoder, tft->known_count, contexts.selection)};
    const uint32_t lstm = local_processing(tft, &contexts, selected[0], selected[1]);
    const uint32_t all =
        kelp_graph_concat(graph, "selected", selected, KELP_ARRAY_COUNT(selected), 0);
    const uint32_t temporal = kelp__tft_gate_norm(graph, "g1", lstm, all, tft->dropout);
    return output(tft, fusion(tft, &contexts, temporal));
}

uint32_t kelp__tft_build(struct kelp_graph *graph, const struct kelp_job *job,
                         const struct kelp_sample_shape *shape, struct kelp_shape *ret_target)
{
    const bool quantiles = job->train.loss == KELP_LOSS_QUANTILE;
    struct tft tft = {.graph = graph,
                      .d = job->model.d_model,
                      .dropout = job->model.dropout_count > 0 ? (float)job->model.dropout[0] : 0.0f,
                      .heads = job->model.heads,
                      .quantiles = quantiles,
                      .quantile_count = quantiles ? job->train.quantile_count : 1};
    if (!read_sample(&tft, shape)) {
        return kelp__model_refuse_sample(
            graph, shape,
            "tft takes one category, known inputs [seq_len, n], observed "
            "ones [seq_len, m] and known ones ahead [pred_len, n] to "
            "targets [pred_len, t]");
    }
    declare_inputs(&tft, shape);
    *ret_target = tft.target_count == 1 ? kelp__model_shape1(tft.pred)
                                        : kelp__model_shape2(tft.pred, tft.target_count);
    const size_t variable_count = (size_t)tft.known_count + tft.observed_count;
    uint32_t *variables = calloc(2 * variable_count, sizeof(*variables));
    if (!variables) {
        return kelp_graph_fail(graph, KELP_ERR_NO_MEMORY, "out of memory");
    }
    const uint32_t y =
        build(&tft, shape->inputs[0].vocab[0], variables, variables + variable_count);
    free(variables);
    return y;
}

/*
 * DeepFM (Guo et al., "DeepFM: A Factorization-Machine based Neural Network for CTR Prediction",
 * 2017): a linear part, a factorization machine over the embeddings of the categories, and a
 * perceptron over the same embeddings and the numbers add up to one logit (train.loss
 * bce_with_logits). Embedding tables are dense parameters, normal around 0 with a deviation of
 * 0.01: with nn.Embedding's 1 the products of pairs would drown all else at first.
 *
 * With category f's id in column f:
 *   logit = sum w.f[id] + lin(numbers) + 1/2 sum_d ((sum_f e_f)^2 - sum_f e_f^2)
 *         + mlp(e_0, e_1, ..., numbers),   e_f = v.f[id]
 */
#include "worker/model/models/shapes.h"

#define FIELDS_MAX KELP_SAMPLE_VOCAB_MAX

struct fields {
    const struct kelp_sample_tensor *shape;
    uint32_t count;
    uint32_t ids;     /* the input */
    uint32_t numbers; /* KELP_GRAPH_NONE: there are none */
};

/* The rows of tables "<table>.<field>", each of `width`, concatenated: [fields * width]. */
static uint32_t embed(struct kelp_graph *graph, const struct fields *fields, const char *table,
                      uint64_t width)
{
    uint32_t rows[FIELDS_MAX];
    for (uint32_t f = 0; f < fields->count; f++) {
        const uint32_t column = fields->shape->rank == 0 ? KELP_GRAPH_NONE : f;
        const struct kelp__model_name name = kelp__model_name_index(table, f);
        const struct kelp_shape shape = kelp__model_shape2(fields->shape->vocab[f], width);
        const struct kelp_graph_init init = {KELP_INIT_NORMAL, 0.01f};
        const uint32_t weight =
            kelp_graph_parameter(graph, kelp__model_name(name.text, "weight").text, &shape, init);
        rows[f] = kelp_graph_embedding(graph, name.text, fields->ids, column, weight);
    }
    return kelp_graph_concat(graph, table, rows, fields->count, 0);
}

static uint32_t linear_part(struct kelp_graph *graph, const struct fields *fields)
{
    const uint32_t w = kelp_graph_reduce_sum(graph, "w_sum", embed(graph, fields, "w", 1), 0);
    if (fields->numbers == KELP_GRAPH_NONE) {
        return w;
    }
    const struct kelp_shape one = {.rank = 0};
    const uint32_t lin = kelp_layer_linear(graph, "lin", fields->numbers, 1, true);
    return kelp_graph_add(graph, "linear", w, kelp_graph_reshape(graph, "lin_value", lin, &one));
}

/* 1/2 sum_d ((sum_f e_f)^2 - sum_f e_f^2): all pairs of fields at once. */
static uint32_t factorization_machine(struct kelp_graph *graph, const struct fields *fields,
                                      uint32_t embeddings, uint64_t width)
{
    const struct kelp_shape shape = kelp__model_shape2(fields->count, width);
    const uint32_t e = kelp_graph_reshape(graph, "fm", embeddings, &shape);
    const uint32_t sum = kelp_graph_reduce_sum(graph, "fm_sum", e, 0);
    const uint32_t square_of_sum = kelp_graph_multiply(graph, "fm_square_of_sum", sum, sum);
    const uint32_t squares = kelp_graph_multiply(graph, "fm_squares", e, e);
    const uint32_t sum_of_squares = kelp_graph_reduce_sum(graph, "fm_sum_of_squares", squares, 0);
    const uint32_t pairs = kelp_graph_subtract(graph, "fm_pairs", square_of_sum, sum_of_squares);
    return kelp_graph_scale(graph, "fm_half", kelp_graph_reduce_sum(graph, "fm_total", pairs, 0),
                            0.5f);
}

/* Linear, ReLU, (dropout,) ..., Linear to one value; "mlp.0", "mlp.2" as in an nn.Sequential
 * without the dropout. */
static uint32_t perceptron(struct kelp_graph *graph, const struct kelp_job *job, uint32_t x)
{
    const struct kelp_shape one = {.rank = 0};
    for (uint32_t i = 0; i < job->model.hidden_count; i++) {
        x = kelp_layer_linear(graph, kelp__model_name_index("mlp", 2 * i).text, x,
                              job->model.hidden[i], true);
        x = kelp_graph_relu(graph, kelp__model_name_index("mlp", 2 * i + 1).text, x);
        if (job->model.dropout_count > 0) {
            x = kelp_graph_dropout(graph, kelp__model_name_index("dropout", i).text, x,
                                   (float)job->model.dropout[i]);
        }
    }
    x = kelp_layer_linear(graph, kelp__model_name_index("mlp", 2 * job->model.hidden_count).text, x,
                          1, true);
    return kelp_graph_reshape(graph, "mlp_value", x, &one);
}

/* The inputs: categories, then optionally numbers. */
static bool read_fields(struct kelp_graph *graph, const struct kelp_sample_shape *shape,
                        struct fields *ret_fields)
{
    const struct kelp_sample_tensor *ids = &shape->inputs[0], *numbers = &shape->inputs[1];
    const bool has_numbers = shape->input_count == 2;
    if (shape->input_count > 2 || ids->vocab_count == 0 || ids->rank > 1 ||
        (has_numbers && (numbers->vocab_count != 0 || numbers->rank != 1)) ||
        shape->target.vocab_count != 0 || kelp_sample_target_count(shape) != 1) {
        (void)kelp__model_refuse_sample(
            graph, shape, "deepfm takes categories [m], then numbers [n] or none, to one number");
        return false;
    }
    const struct kelp_shape ids_shape = kelp__model_shape_of(ids);
    const struct kelp_shape numbers_shape = kelp__model_shape_of(numbers);
    *ret_fields = (struct fields){
        .shape = ids,
        .count = ids->vocab_count,
        .ids = kelp_graph_input(graph, "categories", &ids_shape),
        .numbers =
            has_numbers ? kelp_graph_input(graph, "numbers", &numbers_shape) : KELP_GRAPH_NONE,
    };
    return true;
}

uint32_t kelp__deepfm_build(struct kelp_graph *graph, const struct kelp_job *job,
                            const struct kelp_sample_shape *shape, struct kelp_shape *ret_target)
{
    struct fields fields;
    if (!read_fields(graph, shape, &fields)) {
        return KELP_GRAPH_NONE;
    }
    *ret_target = (struct kelp_shape){.rank = 0};

    const uint64_t width = job->model.embedding_dim;
    const uint32_t linear = linear_part(graph, &fields);
    const uint32_t embeddings = embed(graph, &fields, "v", width);
    const uint32_t pairs = factorization_machine(graph, &fields, embeddings, width);
    const uint32_t parts[] = {embeddings, fields.numbers};
    const uint32_t deep_input =
        fields.numbers == KELP_GRAPH_NONE
            ? embeddings
            : kelp_graph_concat(graph, "mlp_input", parts, KELP_ARRAY_COUNT(parts), 0);
    const uint32_t deep = perceptron(graph, job, deep_input);
    const uint32_t shallow = kelp_graph_add(graph, "shallow", linear, pairs);
    return kelp_graph_add(graph, "output", shallow, deep);
}

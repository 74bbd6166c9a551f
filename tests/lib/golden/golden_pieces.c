/*
 * Fixtures of single layers and parts of models: inputs, parameters, the output, and the gradients
 * of sum(output * grad_output), through a graph. The inputs are rows of tables that a sample looks
 * up by its number, so that their gradients are available like a parameter's.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/training/control.h"
#include "tests/lib/golden/golden_report.h"
#include "worker/model/graph/layers.h"
#include "worker/model/models/tft_parts.h"

#define INPUTS_MAX 3

struct piece {
    struct kelp_golden_report *report;
    uint32_t samples;
    uint32_t input_count;
    struct kelp_shape inputs[INPUTS_MAX]; /* of one sample */
    uint64_t output_count;                /* elements of one sample */
    uint32_t (*build)(const struct piece *piece, struct kelp_graph *graph, const uint32_t *inputs);
};

static uint64_t dim(const struct piece *piece, const char *name, uint32_t index)
{
    const struct kelp_safetensors_tensor *tensor =
        kelp_safetensors_find(piece->report->file->tensors, name);
    return tensor != NULL && tensor->rank > index ? tensor->shape[index] : 0;
}

/* The number before a word: 2 in "2 heads". */
static uint32_t number_before(const char *text, const char *word)
{
    const char *at = strstr(text, word);
    while (at != NULL && at > text && (at[-1] == ' ' || (at[-1] >= '0' && at[-1] <= '9'))) {
        at--;
    }
    return at != NULL ? (uint32_t)strtoul(at, NULL, 10) : 0;
}

static uint32_t build_layer_norm(const struct piece *piece, struct kelp_graph *graph,
                                 const uint32_t *inputs)
{
    const struct kelp_shape shape = {.rank = 1, .dims = {dim(piece, "param/weight", 0)}};
    const uint32_t weight = kelp_graph_parameter(graph, "weight", &shape,
                                                 (struct kelp_graph_init){KELP_INIT_UNIFORM, 1.0f});
    const uint32_t bias = kelp_graph_parameter(graph, "bias", &shape,
                                               (struct kelp_graph_init){KELP_INIT_UNIFORM, 1.0f});
    return kelp_graph_layer_norm(graph, "norm", inputs[0], weight, bias,
                                 (float)kelp_golden_real(piece->report->file->model, "eps ", 1e-5));
}

static uint32_t build_glu(const struct piece *piece, struct kelp_graph *graph,
                          const uint32_t *inputs)
{
    return kelp__tft_glu(graph, "", inputs[0], dim(piece, "param/fc.weight", 0) / 2, 0.0f);
}

static uint32_t build_grn(const struct piece *piece, struct kelp_graph *graph,
                          const uint32_t *inputs)
{
    const struct kelp__tft_grn grn = {.hidden = dim(piece, "param/fc1.weight", 0),
                                      .out = dim(piece, "param/norm.weight", 0),
                                      .context =
                                          piece->input_count > 1 ? inputs[1] : KELP_GRAPH_NONE};
    return kelp__tft_grn(graph, "", inputs[0], &grn);
}

/* input 0 [time, variables, d], input 1 [time, d] */
static uint32_t build_selection(const struct piece *piece, struct kelp_graph *graph,
                                const uint32_t *inputs)
{
    const uint64_t *dims = piece->inputs[0].dims;
    const struct kelp_shape side_by_side = {.rank = 2, .dims = {dims[0], dims[1] * dims[2]}};
    const uint32_t all = kelp_graph_reshape(graph, "side_by_side", inputs[0], &side_by_side);
    uint32_t variables[16];
    const uint32_t count = (uint32_t)dims[1];
    assert(count <= KELP_ARRAY_COUNT(variables));
    for (uint32_t i = 0; i < count; i++) {
        variables[i] = kelp_graph_slice(graph, "variable", all, 1, i * dims[2], dims[2]);
    }
    const struct kelp__tft_selection selection = {
        .variables = variables, .variable_count = count, .d = dims[2], .context = inputs[1]};
    return kelp__tft_selection(graph, "", &selection);
}

static uint32_t build_interpretable(const struct piece *piece, struct kelp_graph *graph,
                                    const uint32_t *inputs)
{
    const uint64_t queries = piece->inputs[0].dims[0], keys = piece->inputs[1].dims[0];
    const struct kelp__tft_attention attention = {
        .heads = number_before(piece->report->file->model, "heads"),
        .offset = (uint32_t)(keys - queries)};
    return kelp__tft_attention(graph, "att", inputs[0], inputs[1], &attention);
}

static uint32_t build_attention(const struct piece *piece, struct kelp_graph *graph,
                                const uint32_t *inputs)
{
    return kelp_layer_attention(graph, "att", inputs[0], inputs[1],
                                number_before(piece->report->file->model, "heads"));
}

/* Columns [first, first + width) of the rows [row, row + rows) of x, as one dimension. */
static uint32_t cut(struct kelp_graph *graph, uint32_t x, const uint64_t rows[2],
                    const uint64_t columns[2])
{
    const struct kelp_shape flat = {.rank = 1, .dims = {rows[1] * columns[1]}};
    x = kelp_graph_slice(graph, "rows", x, 0, rows[0], rows[1]);
    x = kelp_graph_slice(graph, "columns", x, 1, columns[0], columns[1]);
    return kelp_graph_reshape(graph, "cut", x, &flat);
}

/* h at all times, then the last h and c */
static uint32_t build_lstm(const struct piece *piece, struct kelp_graph *graph,
                           const uint32_t *inputs)
{
    const uint64_t time = piece->inputs[0].dims[0], hidden = piece->inputs[1].dims[0];
    const uint32_t states = kelp_layer_lstm(graph, "lstm", inputs[0], inputs[1], inputs[2]);
    const uint64_t all[] = {0, time}, last[] = {time - 1, 1};
    const uint64_t h[] = {0, hidden}, c[] = {hidden, hidden};
    const uint32_t parts[] = {cut(graph, states, all, h), cut(graph, states, last, h),
                              cut(graph, states, last, c)};
    return kelp_graph_concat(graph, "output", parts, KELP_ARRAY_COUNT(parts), 0);
}

static const struct {
    const char *word; /* of the model's text */
    uint32_t (*build)(const struct piece *piece, struct kelp_graph *graph, const uint32_t *inputs);
} pieces[] = {
    {"LayerNorm", build_layer_norm},
    {"first half * sigmoid(second half)", build_glu},
    {"GRN", build_grn},
    {"variable selection network", build_selection},
    {"interpretable multi-head attention", build_interpretable},
    {"nn.MultiheadAttention", build_attention},
    {"nn.LSTM", build_lstm},
};

/* ---- running one ------------------------------------------------------------------------------
 */

struct parameters {
    uint32_t count;
    struct kelp_tensor *tensors;
    float **values, **gradients;
};

/* Add the table "input.<i>", of which each sample takes a row. */
static uint32_t add_input(const struct piece *piece, struct kelp_graph *graph, uint32_t ids,
                          uint32_t i)
{
    char name[32];
    uint64_t count = 1;
    for (uint32_t k = 0; k < piece->inputs[i].rank; k++) {
        count *= piece->inputs[i].dims[k];
    }
    const struct kelp_shape table_shape = {.rank = 2, .dims = {piece->samples, count}};
    (void)snprintf(name, sizeof(name), "input.%u", i);
    const uint32_t table = kelp_graph_parameter(graph, name, &table_shape,
                                                (struct kelp_graph_init){KELP_INIT_UNIFORM, 1.0f});
    const uint32_t row = kelp_graph_embedding(graph, name, ids, KELP_GRAPH_NONE, table);
    return kelp_graph_reshape(graph, name, row, &piece->inputs[i]);
}

/* The output; weighted: the sum of the output times another input. */
static kelp_status build_graph(const struct piece *piece, struct kelp_graph *graph, bool weighted,
                               struct kelp_error *error)
{
    const struct kelp_shape number = {.rank = 0};
    const struct kelp_shape flat = {.rank = 1, .dims = {piece->output_count}};
    const struct kelp_graph_loss loss = {.kind = KELP_LOSS_MAE};
    uint32_t inputs[INPUTS_MAX];
    const uint32_t ids = kelp_graph_input(graph, "ids", &number);
    for (uint32_t i = 0; i < piece->input_count; i++) {
        inputs[i] = add_input(piece, graph, ids, i);
    }
    uint32_t y = piece->build(piece, graph, inputs);
    y = kelp_graph_reshape(graph, "flat", y, &flat);
    if (!weighted) {
        return kelp_graph_finish(graph, y, &flat, &loss, error);
    }
    const uint32_t weights = kelp_graph_input(graph, "grad_output", &flat);
    y = kelp_graph_multiply(graph, "weighted", y, weights);
    y = kelp_graph_reduce_sum(graph, "sum", y, 0);
    return kelp_graph_finish(graph, y, &number, &loss, error);
}

static void parameter_name(char name[KELP_GOLDEN_NAME_SIZE], const struct kelp_tensor *tensor,
                           const char *of_input, const char *of_parameter)
{
    if (strncmp(tensor->name, "input.", strlen("input.")) == 0) {
        kelp_golden_print(name, "%s%s", of_input, tensor->name + strlen("input."));
    } else {
        kelp_golden_print(name, "%s%s", of_parameter, tensor->name);
    }
}

/* Read all parameters from the file; false, reported: one is missing. */
static bool parameters_read(struct parameters *parameters, struct kelp_graph *graph,
                            struct kelp_golden_report *report)
{
    const uint32_t count = kelp_graph_parameter_count(graph);
    *parameters =
        (struct parameters){.count = count,
                            .tensors = kelp_golden_allocate(count, sizeof(struct kelp_tensor)),
                            .values = kelp_golden_allocate(count, sizeof(float *)),
                            .gradients = kelp_golden_allocate(count, sizeof(float *))};
    for (uint32_t i = 0; i < count; i++) {
        char name[KELP_GOLDEN_NAME_SIZE];
        uint64_t found = 0;
        struct kelp_tensor *tensor = &parameters->tensors[i];
        kelp_graph_parameter_tensor(graph, i, tensor);
        parameter_name(name, tensor, "input/", "param/");
        parameters->values[i] = kelp_golden_floats(report->file, name, &found);
        parameters->gradients[i] = kelp_golden_allocate(tensor->elem_count, sizeof(float));
        if (parameters->values[i] == NULL || found != tensor->elem_count) {
            kelp_golden_fail(report, name);
            return false;
        }
        kelp_graph_bind(graph, i, parameters->values[i], parameters->gradients[i]);
    }
    return true;
}

static void parameters_fini(struct parameters *parameters)
{
    for (uint32_t i = 0; i < parameters->count; i++) {
        free(parameters->values[i]);
        free(parameters->gradients[i]);
    }
    free(parameters->tensors);
    free(parameters->values);
    free(parameters->gradients);
}

/*
 * The fixture of nn.LSTM has the outputs of all samples, then all last h, then all last c; ours has
 * one sample after the other. Convert from one to the other.
 */
static void reorder(const struct piece *piece, const float *from, float *to, bool to_file)
{
    const uint64_t hidden = piece->inputs[1].dims[0];
    const uint64_t lengths[] = {piece->output_count - 2 * hidden, hidden, hidden};
    uint64_t in_file = 0, in_sample = 0;
    for (size_t part = 0; part < KELP_ARRAY_COUNT(lengths); part++) {
        for (uint32_t s = 0; s < piece->samples; s++) {
            const uint64_t ours = s * piece->output_count + in_sample;
            memcpy(to + (to_file ? in_file : ours), from + (to_file ? ours : in_file),
                   (size_t)lengths[part] * sizeof(float));
            in_file += lengths[part];
        }
        in_sample += lengths[part];
    }
}

static void check_output(const struct piece *piece, struct kelp_graph *graph)
{
    const uint64_t count = piece->output_count * piece->samples;
    float *ids = kelp_golden_allocate(piece->samples, sizeof(float));
    float *output = kelp_golden_allocate(count, sizeof(float));
    float *in_order = kelp_golden_allocate(count, sizeof(float));
    for (uint32_t s = 0; s < piece->samples; s++) {
        ids[s] = (float)s;
    }
    struct kelp_error error = {KELP_OK, ""};
    const struct kelp_graph_run run = {
        .mode = KELP_GRAPH_FORWARD, .input = ids, .count = piece->samples, .output = output};
    if (kelp_graph_run(graph, &run, &error) != KELP_OK) {
        kelp_golden_fail(piece->report, error.text);
    }
    if (piece->build == build_lstm) {
        reorder(piece, output, in_order, true);
    } else {
        memcpy(in_order, output, (size_t)count * sizeof(*output));
    }
    kelp_golden_check(piece->report, "output", in_order, count, &kelp_golden_values);
    free(in_order);
    free(output);
    free(ids);
}

/* Samples (number, grad_output...); the caller frees. */
static float *weighted_inputs(const struct piece *piece)
{
    const uint64_t record = piece->output_count + 1;
    uint64_t count = 0;
    float *grad_output = kelp_golden_floats(piece->report->file, "grad_output", &count);
    assert(grad_output != NULL && count == piece->output_count * piece->samples);
    float *in_order = kelp_golden_allocate(count, sizeof(float));
    if (piece->build == build_lstm) {
        reorder(piece, grad_output, in_order, false);
    } else {
        memcpy(in_order, grad_output, (size_t)count * sizeof(float));
    }
    float *input = kelp_golden_allocate(record * piece->samples, sizeof(float));
    for (uint32_t s = 0; s < piece->samples; s++) {
        input[s * record] = (float)s;
        memcpy(input + s * record + 1, in_order + s * piece->output_count,
               (size_t)piece->output_count * sizeof(float));
    }
    free(in_order);
    free(grad_output);
    return input;
}

/* The loss is |sum - target| with a target far below, so its gradient is that of the sum. */
static void check_gradients(const struct piece *piece, struct kelp_graph *graph,
                            const struct parameters *parameters)
{
    float *input = weighted_inputs(piece);
    float *target = kelp_golden_allocate(piece->samples, sizeof(float));
    double sums[KELP_METRIC_SUM_COUNT];
    struct kelp_error error = {KELP_OK, ""};
    for (uint32_t s = 0; s < piece->samples; s++) {
        target[s] = -1e30f;
    }
    const struct kelp_graph_run run = {.mode = KELP_GRAPH_TRAIN,
                                       .input = input,
                                       .target = target,
                                       .count = piece->samples,
                                       .batch_total = 1.0,
                                       .sums = sums};
    if (kelp_graph_run(graph, &run, &error) != KELP_OK) {
        kelp_golden_fail(piece->report, error.text);
    }
    for (uint32_t i = 0; i < parameters->count; i++) {
        char name[KELP_GOLDEN_NAME_SIZE];
        parameter_name(name, &parameters->tensors[i], "grad_input/", "grad/");
        kelp_golden_check(piece->report, name, parameters->gradients[i],
                          parameters->tensors[i].elem_count, &kelp_golden_gradients);
    }
    free(target);
    free(input);
}

static void check_graph(const struct piece *piece, struct kelp_stream *stream, bool weighted)
{
    struct kelp_error error = {KELP_OK, ""};
    struct parameters parameters = {.count = 0};
    struct kelp_graph *graph = kelp_graph_create(stream, piece->samples);
    if (graph == NULL || build_graph(piece, graph, weighted, &error) != KELP_OK) {
        kelp_golden_fail(piece->report, error.text);
    } else if (parameters_read(&parameters, graph, piece->report)) {
        if (weighted) {
            check_gradients(piece, graph, &parameters);
        } else {
            check_output(piece, graph);
        }
    }
    parameters_fini(&parameters);
    kelp_graph_destroy(graph);
}

static bool read_inputs(struct piece *piece)
{
    for (; piece->input_count < INPUTS_MAX; piece->input_count++) {
        char name[32];
        struct kelp_shape *shape = &piece->inputs[piece->input_count];
        (void)snprintf(name, sizeof(name), "input/%u", piece->input_count);
        const struct kelp_safetensors_tensor *input =
            kelp_safetensors_find(piece->report->file->tensors, name);
        if (input == NULL) {
            break;
        }
        piece->samples = (uint32_t)input->shape[0];
        shape->rank = input->rank - 1;
        memcpy(shape->dims, input->shape + 1, shape->rank * sizeof(uint64_t));
    }
    const struct kelp_safetensors_tensor *output =
        kelp_safetensors_find(piece->report->file->tensors, "output");
    if (piece->input_count == 0 || output == NULL || piece->samples == 0) {
        return false;
    }
    piece->output_count = output->elem_count / piece->samples;
    return true;
}

bool kelp_golden_check_piece(struct kelp_golden_report *report, struct kelp_stream *stream)
{
    struct piece piece = {.report = report};
    if (!kelp_golden_has(report->file, "grad_output") || !read_inputs(&piece)) {
        return false;
    }
    for (size_t i = 0; i < KELP_ARRAY_COUNT(pieces) && piece.build == NULL; i++) {
        if (strstr(report->file->model, pieces[i].word) != NULL) {
            piece.build = pieces[i].build;
        }
    }
    if (piece.build == NULL) {
        return false;
    }
    kelp_golden_case_begin(report, "output and gradients");
    check_graph(&piece, stream, false);
    check_graph(&piece, stream, true);
    kelp_golden_case_end(report, "");
    return true;
}

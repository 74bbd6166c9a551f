/*
 * Every operator of the graph against differences of the loss, over random shapes: each with
 * operands that are computed, some of which go elsewhere too, before or behind it, so that
 * gradients are written and added to. In training, since some operators do other things there.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/device.h"
#include "tests/lib/gradient_check.h"
#include "tests/lib/suite.h"
#include "worker/model/graph/graph.h"
#include "worker/model/graph/layers.h"

#define SEEDS_DEFAULT  80
#define BATCH_MAX      4
#define NUMBERS        3 /* first input */
#define CATEGORIES     4 /* second input */
#define VOCAB          5
#define LIST_MAX       8
#define CHECKED_MAX    80 /* elements of a graph's parameters */
#define PARAMETERS_MAX (1u << 16)

struct built {
    struct source *source;
    struct kelp_device *device;
    struct kelp_stream *stream;
    struct kelp_graph *graph;
    uint32_t batch;
    uint32_t numbers, categories; /* inputs */
    uint32_t name_count;
    uint32_t outputs[LIST_MAX]; /* that the model's output is made of */
    uint32_t output_count;
    uint32_t late[LIST_MAX]; /* operands that something behind the operator takes too */
    uint32_t late_count;
    uint32_t loss_kind;
};

typedef uint32_t build_operator(struct built *b);

static uint32_t below(struct built *b, uint32_t bound)
{
    return source_below(b->source, bound);
}

static uint64_t size(struct built *b, uint32_t max)
{
    return 1 + below(b, max);
}

static const char *name(struct built *b, char text[32])
{
    (void)snprintf(text, 32, "l%u", b->name_count++);
    return text;
}

static struct kelp_shape shape1(uint64_t a)
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
    struct kelp_shape shape = {.rank = rank_min + below(b, 4 - rank_min)};
    for (uint32_t i = 0; i < shape.rank; i++) {
        shape.dims[i] = i + 1 == shape.rank ? size(b, last_max) : size(b, 3);
    }
    return shape;
}

/* A part of the model's output: its elements, mixed. */
static void give_out(struct built *b, uint32_t node)
{
    char text[32];
    const struct kelp_shape flat = shape1(elements(kelp_graph_shape(b->graph, node)));
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
    const uint32_t elsewhere = below(b, 3);
    if (elsewhere == 0) {
        give_out(b, node);
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
    return kelp_graph_causal_softmax(b->graph, "causal",
                                     operand(b, shape3(size(b, 2), queries, keys)), below(b, 4));
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
                                     1 + 2 * below(b, 6));
}

/* Sometimes one operand in both places. */
static uint32_t build_two(struct built *b)
{
    const struct kelp_shape shape = any_shape(b, 1, 7);
    const uint32_t first = operand(b, shape);
    const uint32_t second = below(b, 4) == 0 ? first : operand(b, shape);
    switch (below(b, 3)) {
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
    const bool transposed = below(b, 2) == 0;
    if (below(b, 4) == 0) { /* a product of a value with itself */
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
    return kelp_layer_linear(b->graph, "linear", x, size(b, 5), below(b, 2) == 0);
}

static uint32_t build_linear_grouped(struct built *b)
{
    const uint64_t groups = size(b, 4), in = size(b, 5), out = size(b, 4);
    uint32_t weights[4], biases[4];
    for (uint32_t g = 0; g < groups; g++) {
        char text[32];
        const struct kelp_shape weight = shape2(out, in), bias = shape1(out);
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
    const uint32_t x = operand(b, shape1(in));
    const uint32_t tail = kelp_graph_rows(b->graph, "tail", weight, first, second);
    give_out(b, kelp_graph_linear(b->graph, "of_tail", x, tail, KELP_GRAPH_NO_BIAS));
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
    return kelp_graph_permute(b->graph, "permute", x, orders[below(b, 5)]);
}

static uint32_t build_concat(struct built *b)
{
    const struct kelp_shape shape = any_shape(b, 1, 5);
    const uint32_t axis = below(b, shape.rank), count = 1 + below(b, 3);
    uint32_t parts[3];
    for (uint32_t i = 0; i < count; i++) {
        struct kelp_shape part = shape;
        part.dims[axis] = size(b, 3);
        parts[i] = i > 0 && part.dims[axis] == 1 && below(b, 3) == 0 ? parts[0] : operand(b, part);
    }
    return kelp_graph_concat(b->graph, "concat", parts, count, axis);
}

static uint32_t build_slice(struct built *b)
{
    const struct kelp_shape shape = any_shape(b, 1, 6);
    const uint32_t axis = below(b, shape.rank), x = operand(b, shape);
    const uint32_t first = below(b, (uint32_t)shape.dims[axis]);
    return kelp_graph_slice(b->graph, "slice", x, axis, first,
                            size(b, (uint32_t)shape.dims[axis] - first));
}

static uint32_t build_repeat(struct built *b)
{
    const struct kelp_shape shape = any_shape(b, 1, 4);
    return kelp_graph_repeat(b->graph, "repeat", operand(b, shape), below(b, shape.rank + 1),
                             size(b, 4));
}

static uint32_t build_reduce(struct built *b)
{
    const struct kelp_shape shape = any_shape(b, 1, 6);
    const uint32_t x = operand(b, shape), axis = below(b, shape.rank);
    return below(b, 2) == 0 ? kelp_graph_reduce_sum(b->graph, "sum", x, axis)
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
    b->batch = 3 + below(b, BATCH_MAX - 2);
    return kelp_layer_batch_norm(b->graph, "batch_norm", operand(b, any_shape(b, 1, 3)));
}

static uint32_t build_dropout(struct built *b)
{
    const uint32_t x =
        kelp_graph_dropout(b->graph, "dropout", operand(b, any_shape(b, 1, 9)), 0.4f);
    return below(b, 2) == 0 ? x : kelp_graph_dropout(b->graph, "again", x, 0.2f);
}

/* All ids, or a column of them; the table sometimes serves both. */
static uint32_t build_embedding(struct built *b)
{
    char text[32];
    const struct kelp_shape table_shape = shape2(VOCAB, size(b, 4));
    const uint32_t table = kelp_graph_parameter(b->graph, name(b, text), &table_shape,
                                                (struct kelp_graph_init){KELP_INIT_UNIFORM, 0.5f});
    const uint32_t column = below(b, 2) == 0 ? KELP_GRAPH_NONE : below(b, CATEGORIES);
    if (below(b, 2) == 0) {
        give_out(b, kelp_graph_embedding(b->graph, "first", b->categories, 1, table));
    }
    return kelp_graph_embedding(b->graph, "embedding", b->categories, column, table);
}

static uint32_t build_lstm(struct built *b)
{
    const uint64_t hidden = size(b, 4);
    const uint32_t x = operand(b, shape2(size(b, 4), size(b, 4)));
    const uint32_t h = operand(b, shape1(hidden));
    const uint32_t c = below(b, 3) == 0 ? h : operand(b, shape1(hidden));
    return kelp_layer_lstm(b->graph, "lstm", x, h, c);
}

static uint32_t build_attention(struct built *b)
{
    const uint32_t heads = 1 + below(b, 2);
    const uint64_t width = heads * size(b, 3);
    const uint32_t queries = operand(b, shape2(size(b, 3), width));
    const uint32_t keys = below(b, 2) == 0 ? queries : operand(b, shape2(size(b, 3), width));
    return kelp_layer_attention(b->graph, "attention", queries, keys, heads);
}

static struct kelp_graph_window window(struct built *b)
{
    struct kelp_graph_window w = {.groups = 1 + below(b, 2)};
    for (uint32_t side = 0; side < 2; side++) {
        w.kernel[side] = 1 + below(b, 3);
        w.stride[side] = 1 + below(b, 3);
        w.padding[side] = below(b, w.kernel[side]);
    }
    return w;
}

static uint32_t image(struct built *b, const struct kelp_graph_window *w)
{
    return operand(
        b, shape3(w->groups * size(b, 2), w->kernel[0] + below(b, 4), w->kernel[1] + below(b, 4)));
}

static uint32_t build_conv2d(struct built *b)
{
    const struct kelp_graph_window w = window(b);
    return kelp_layer_conv2d(b->graph, "conv", image(b, &w), w.groups * size(b, 2), &w,
                             below(b, 2) == 0);
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

static const struct {
    const char *name;
    build_operator *build;
} cases[] = {
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
};

/* ---- graphs of them ---- */

/* The sum of what was given out, as the loss takes it. */
static void finish(struct built *b)
{
    static const double quantiles[] = {0.1, 0.7};
    static const enum kelp_loss_kind kinds[] = {KELP_LOSS_MSE,           KELP_LOSS_MAE,
                                                KELP_LOSS_SMOOTH_L1,     KELP_LOSS_HUBER,
                                                KELP_LOSS_CROSS_ENTROPY, KELP_LOSS_BCE_WITH_LOGITS,
                                                KELP_LOSS_QUANTILE};
    struct kelp_error error = {KELP_OK, ""};
    const struct kelp_graph_loss loss = {.kind = kinds[b->loss_kind % KELP_ARRAY_COUNT(kinds)],
                                         .beta = 0.7,
                                         .label_smoothing = 0.1,
                                         .quantiles = quantiles,
                                         .quantile_count = 2};
    uint32_t output = b->outputs[0];
    for (uint32_t i = 1; i < b->output_count; i++) {
        output = kelp_graph_add(b->graph, "output", output, b->outputs[i]);
    }
    const bool one = loss.kind == KELP_LOSS_CROSS_ENTROPY || loss.kind == KELP_LOSS_QUANTILE;
    const struct kelp_shape target = {.rank = one ? 0 : 1, .dims = {2}};
    const kelp_status status = kelp_graph_finish(b->graph, output, &target, &loss, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
}

static void built_init(struct built *b, struct source *source, build_operator *build)
{
    struct kelp_error error = {KELP_OK, ""};
    const struct kelp_shape numbers = shape1(NUMBERS), categories = shape1(CATEGORIES);
    *b = (struct built){.source = source, .batch = 1 + source_below(source, BATCH_MAX)};
    b->loss_kind = below(b, 64);
    ck_assert_int_eq(kelp_device_cpu_create(1, &b->device, &error), KELP_OK);
    ck_assert_int_eq(b->device->table->stream_create(b->device, &b->stream, &error), KELP_OK);
    b->graph = kelp_graph_create(b->stream, BATCH_MAX);
    ck_assert_ptr_nonnull(b->graph);
    b->numbers = kelp_graph_input(b->graph, "numbers", &numbers);
    b->categories = kelp_graph_input(b->graph, "categories", &categories);
    const uint32_t y = build(b);
    if (y != KELP_GRAPH_NONE) { /* else finish() says why */
        give_out(b, y);
    }
    for (uint32_t i = 0; i < b->late_count; i++) {
        give_out(b, b->late[i]);
    }
    finish(b);
}

static void built_fini(struct built *b)
{
    kelp_graph_destroy(b->graph);
    b->device->table->stream_destroy(b->stream);
    b->device->table->destroy(b->device);
}

/* Samples, weights and gradients of one graph, and runs of it. */
struct trial {
    struct built *b;
    float *input, *target, *weights, *gradient, *scratch;
    uint64_t count; /* elements of all parameters and statistics */
    bool accumulate;
    uint32_t complete_next; /* the index that the next call of complete() must be below */
    uint32_t complete_calls;
};

static void bind(struct trial *trial, float *gradient)
{
    uint64_t offset = 0;
    for (uint32_t i = 0; i < kelp_graph_parameter_count(trial->b->graph); i++) {
        struct kelp_tensor tensor;
        kelp_graph_parameter_tensor(trial->b->graph, i, &tensor);
        kelp_graph_bind(trial->b->graph, i, trial->weights + offset, gradient + offset);
        offset += tensor.elem_count;
    }
}

static void on_complete(void *user, uint32_t index)
{
    struct trial *trial = user;
    ck_assert_uint_lt(index, trial->complete_next);
    trial->complete_next = index;
    trial->complete_calls++;
}

static double train(struct trial *trial, float *gradient)
{
    double sums[KELP_METRIC_SUM_COUNT];
    struct kelp_error error = {KELP_OK, ""};
    bind(trial, gradient);
    trial->complete_next = UINT32_MAX;
    const struct kelp_graph_run run = {.mode = KELP_GRAPH_TRAIN,
                                       .input = trial->input,
                                       .target = trial->target,
                                       .count = trial->b->batch,
                                       .batch_total = 1.0,
                                       .accumulate = trial->accumulate,
                                       .sums = sums,
                                       .seed = 5,
                                       .step = 77,
                                       .position = 3,
                                       .complete = on_complete,
                                       .user = trial};
    const kelp_status status = kelp_graph_run(trial->b->graph, &run, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    ck_assert_uint_eq(trial->complete_next, 0);
    return sums[KELP_METRIC_SUM_LOSS];
}

static double trial_loss(void *context)
{
    struct trial *trial = context;
    return train(trial, trial->scratch);
}

static void trial_init(struct trial *trial, struct built *b)
{
    *trial = (struct trial){.b = b};
    for (uint32_t i = 0; i < kelp_graph_parameter_count(b->graph); i++) {
        struct kelp_tensor tensor;
        kelp_graph_parameter_tensor(b->graph, i, &tensor);
        trial->count += tensor.elem_count;
    }
    ck_assert_uint_lt(trial->count, PARAMETERS_MAX);
    trial->input = source_floats(b->source, (uint64_t)b->batch * (NUMBERS + CATEGORIES));
    trial->target = source_floats(b->source, (uint64_t)b->batch * 2);
    trial->weights = source_floats(b->source, trial->count);
    trial->gradient = source_floats(b->source, trial->count);
    trial->scratch = source_floats(b->source, trial->count);
    for (uint32_t s = 0; s < b->batch; s++) {
        for (uint32_t i = 0; i < CATEGORIES; i++) {
            trial->input[s * (NUMBERS + CATEGORIES) + NUMBERS + i] = (float)below(b, VOCAB);
        }
    }
    for (uint32_t i = 0; i < b->batch * 2; i++) { /* classes, and probabilities too */
        trial->target[i] = b->loss_kind % 7 < 4 ? trial->target[i] : (float)below(b, 2);
    }
}

static void trial_fini(struct trial *trial)
{
    free(trial->input);
    free(trial->target);
    free(trial->weights);
    free(trial->gradient);
    free(trial->scratch);
}

static uint32_t seeds(void)
{
    const char *text = getenv("KELP_GRADIENT_SEEDS");
    const unsigned long count = text == NULL ? SEEDS_DEFAULT : strtoul(text, NULL, 10);
    return count == 0 || count > 1000000 ? SEEDS_DEFAULT : (uint32_t)count;
}

/* Derivatives by what is no statistic, at random places. */
static void check_some(struct trial *trial, const char *what, uint64_t seed)
{
    const struct objective objective = {.loss = trial_loss,
                                        .context = trial,
                                        .scale = gradient_scale(trial->gradient, trial->count),
                                        .seed = seed};
    uint64_t offset = 0;
    for (uint32_t i = 0; i < kelp_graph_parameter_count(trial->b->graph); i++) {
        struct kelp_tensor tensor;
        kelp_graph_parameter_tensor(trial->b->graph, i, &tensor);
        for (uint64_t e = 0; !tensor.statistic && e < tensor.elem_count; e++) {
            if (trial->count <= CHECKED_MAX ||
                source_below(trial->b->source, (uint32_t)trial->count) < CHECKED_MAX) {
                gradient_check(&objective, &trial->weights[offset + e],
                               (double)trial->gradient[offset + e], what, offset + e);
            }
        }
        offset += tensor.elem_count;
    }
}

KELP_CASE("operators", .timeout_s = 600)

/* Gradients are those of the loss; a second pass is the same bits, and added up it is twice as
 * much. */
KELP_LOOP_TEST(test_operator, 0, KELP_ARRAY_COUNT(cases))
{
    for (uint32_t seed = 0; seed < seeds(); seed++) {
        struct source source = {.seed = (uint64_t)_i << 32 | seed};
        struct built b;
        struct trial trial;
        built_init(&b, &source, cases[_i].build);
        trial_init(&trial, &b);
        const double loss = train(&trial, trial.gradient);
        ck_assert_double_eq(train(&trial, trial.scratch), loss);
        ck_assert_mem_eq(trial.gradient, trial.scratch, (size_t)trial.count * sizeof(float));
        ck_assert_uint_gt(trial.complete_calls, 1);
        check_some(&trial, cases[_i].name, seed);

        const double scale = gradient_scale(trial.gradient, trial.count);
        trial.accumulate = true;
        (void)train(&trial, trial.gradient);
        trial.accumulate = false;
        (void)train(&trial, trial.scratch);
        for (uint64_t i = 0; i < trial.count; i++) {
            ck_assert_double_eq_tol((double)trial.gradient[i], 2.0 * (double)trial.scratch[i],
                                    1e-4 * scale);
        }
        trial_fini(&trial);
        built_fini(&b);
    }
}

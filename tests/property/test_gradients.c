/*
 * The gradient of every operator and of both models against central differences of the loss, over
 * random graphs; and the same bits on every call, wherever the buffers lie.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/device.h"
#include "tests/lib/models/gradient_check.h"
#include "tests/lib/suite.h"
#include "worker/model/graph/graph.h"
#include "worker/model/model.h"

#define SEEDS       300
#define NODES_MAX   24
#define BATCH_MAX   5
#define PARAMS_MAX  8192 /* elements of all parameters of a random graph */
#define ALIGN_SHIFT 3    /* floats */

/* ---- random graphs ---- */

struct random_graph {
    struct kelp_device *device;
    struct kelp_stream *stream;
    struct kelp_graph *graph;
    uint32_t nodes[NODES_MAX]; /* of samples, candidates for operands */
    uint32_t node_count;
    uint64_t parameter_elements; /* so far */
    uint32_t parameter_count;
    struct kelp_shape target;
    uint32_t batch;
};

static uint32_t parameter(struct random_graph *random, const char *kind, uint64_t rows,
                          uint64_t columns)
{
    char name[32];
    struct kelp_shape shape = {.rank = columns == 0 ? 1 : 2, .dims = {rows, columns}};
    (void)snprintf(name, sizeof(name), "p%u.%s", random->parameter_count++, kind);
    random->parameter_elements += rows * (columns == 0 ? 1 : columns);
    return kelp_graph_parameter(random->graph, name, &shape,
                                (struct kelp_graph_init){KELP_INIT_UNIFORM, 0.5f});
}

static uint32_t add_linear(struct random_graph *random, uint32_t x, uint64_t out)
{
    const struct kelp_shape shape = *kelp_graph_shape(random->graph, x);
    const uint64_t in = shape.dims[shape.rank - 1];
    const uint32_t weight = parameter(random, "weight", out, in);
    const uint32_t bias = parameter(random, "bias", out, 0);
    return kelp_graph_linear(random->graph, "linear", x, weight, bias);
}

static uint32_t add_grouped(struct random_graph *random, struct source *source, uint32_t x)
{
    const struct kelp_shape shape = *kelp_graph_shape(random->graph, x);
    const uint64_t in = shape.dims[1], out = 1 + source_below(source, 7);
    uint32_t weights[16], biases[16];
    const uint32_t groups = (uint32_t)shape.dims[0];
    /* Sometimes the groups share one map: a parameter with several gradients. */
    const bool shared = source_below(source, 3) == 0;
    for (uint32_t g = 0; g < groups; g++) {
        weights[g] = shared && g > 0 ? weights[0] : parameter(random, "weight", out, in);
        biases[g] = shared && g > 0 ? biases[0] : parameter(random, "bias", out, 0);
    }
    return kelp_graph_linear_grouped(random->graph, "grouped", x, weights, biases, groups);
}

/* An earlier node of the same shape, x itself included: there is always one. */
static uint32_t same_shape(struct random_graph *random, struct source *source, uint32_t x)
{
    uint32_t found[NODES_MAX], count = 0;
    for (uint32_t i = 0; i < random->node_count; i++) {
        if (kelp_shape_equal(kelp_graph_shape(random->graph, random->nodes[i]),
                             kelp_graph_shape(random->graph, x))) {
            found[count++] = random->nodes[i];
        }
    }
    return found[source_below(source, count)];
}

/* Two branches from x, each with or without a ReLU, and their sum or difference. */
static uint32_t add_branches(struct random_graph *random, struct source *source, uint32_t x)
{
    const uint64_t out = 1 + source_below(source, 9);
    uint32_t branch[2];
    for (uint32_t i = 0; i < 2; i++) {
        branch[i] = add_linear(random, x, out);
        if (source_below(source, 2) == 0) {
            branch[i] = kelp_graph_relu(random->graph, "branch_relu", branch[i]);
        }
    }
    return source_below(source, 2) == 0
               ? kelp_graph_add(random->graph, "branch_sum", branch[0], branch[1])
               : kelp_graph_subtract(random->graph, "branch_difference", branch[1], branch[0]);
}

static uint32_t add_layer(struct random_graph *random, struct source *source, uint32_t x)
{
    const struct kelp_shape shape = *kelp_graph_shape(random->graph, x);
    const struct kelp_shape turned = {.rank = 2, .dims = {shape.dims[1], shape.dims[0]}};
    switch (source_below(source, 18)) {
    case 0:
        return add_grouped(random, source, x);
    case 7:
        return kelp_graph_sigmoid(random->graph, "sigmoid", x);
    case 8:
        return kelp_graph_tanh(random->graph, "tanh", x);
    case 9:
        return kelp_graph_gelu(random->graph, "gelu", x);
    case 10:
        return kelp_graph_softmax(random->graph, "softmax", x);
    case 11:
        return kelp_graph_multiply(random->graph, "multiply", x, same_shape(random, source, x));
    case 12:
        return kelp_graph_reshape(random->graph, "reshape", x, &turned);
    case 13:
        return kelp_graph_scale(random->graph, "scale", x, source_uniform(source));
    case 14:
        return kelp_graph_add(random->graph, "add", same_shape(random, source, x), x);
    case 1:
        return kelp_graph_relu(random->graph, "relu", x);
    case 2:
        return kelp_graph_moving_average(random->graph, "average", x,
                                         1 + 2 * source_below(source, 7));
    case 3:
        return kelp_graph_add(random->graph, "add", x, same_shape(random, source, x));
    case 4:
        return kelp_graph_subtract(random->graph, "subtract", same_shape(random, source, x), x);
    case 5:
        return kelp_graph_transpose(random->graph, "transpose", x);
    case 6:
        return add_branches(random, source, x);
    default:
        return add_linear(random, x, 1 + source_below(source, 9));
    }
}

/* A chain with shortcuts: each layer takes the latest node, sums take any node that fits. */
static void random_graph_init(struct random_graph *random, struct source *source,
                              enum kelp_loss_kind loss)
{
    struct kelp_error error = {KELP_OK, ""};
    *random = (struct random_graph){.batch = 1 + source_below(source, BATCH_MAX)};
    ck_assert_int_eq(kelp_device_cpu_create(1, &random->device, &error), KELP_OK);
    ck_assert_int_eq(random->device->table->stream_create(random->device, &random->stream, &error),
                     KELP_OK);
    random->graph = kelp_graph_create(random->stream, BATCH_MAX);
    ck_assert_ptr_nonnull(random->graph);
    const struct kelp_shape input = {
        .rank = 2, .dims = {1 + source_below(source, 6), 1 + source_below(source, 9)}};
    uint32_t x = kelp_graph_input(random->graph, "input", &input);
    random->nodes[random->node_count++] = x;
    x = add_linear(random, x, 1 + source_below(source, 9));
    random->nodes[random->node_count++] = x;
    const uint32_t layers = 1 + source_below(source, 9);
    for (uint32_t i = 0; i < layers; i++) {
        x = add_layer(random, source, x);
        random->nodes[random->node_count++] = x;
    }
    random->target = *kelp_graph_shape(random->graph, x);
    const struct kelp_graph_loss graph_loss_kind = {.kind = loss};
    const kelp_status status =
        kelp_graph_finish(random->graph, x, &random->target, &graph_loss_kind, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    ck_assert_uint_lt(random->parameter_elements, PARAMS_MAX);
}

static void random_graph_fini(struct random_graph *random)
{
    kelp_graph_destroy(random->graph);
    random->device->table->stream_destroy(random->stream);
    random->device->table->destroy(random->device);
}

static void bind(struct random_graph *random, float *weights, float *gradient)
{
    uint64_t offset = 0;
    for (uint32_t i = 0; i < kelp_graph_parameter_count(random->graph); i++) {
        struct kelp_tensor tensor;
        kelp_graph_parameter_tensor(random->graph, i, &tensor);
        kelp_graph_bind(random->graph, i, weights + offset,
                        gradient == NULL ? NULL : gradient + offset);
        offset += tensor.elem_count;
    }
}

static double run(struct random_graph *random, enum kelp_graph_mode mode, const float *input,
                  const float *target)
{
    double sums[KELP_METRIC_SUM_COUNT];
    struct kelp_error error = {KELP_OK, ""};
    const struct kelp_graph_run graph_run = {.mode = mode,
                                             .input = input,
                                             .target = target,
                                             .count = random->batch,
                                             .batch_total = 1.0,
                                             .sums = sums};
    ck_assert_int_eq(kelp_graph_run(random->graph, &graph_run, &error), KELP_OK);
    return sums[KELP_METRIC_SUM_LOSS];
}

struct graph_loss {
    struct random_graph *random;
    const float *input, *target;
};

static double graph_loss(void *context)
{
    const struct graph_loss *graph = context;
    return run(graph->random, KELP_GRAPH_EVALUATE, graph->input, graph->target);
}

KELP_CASE("gradients", .timeout_s = 120)

/* Gradients of random graphs are those of the loss. */
KELP_LOOP_TEST(test_random_graphs, 0, SEEDS)
{
    struct source source = {.seed = (uint64_t)_i};
    struct random_graph random;
    random_graph_init(&random, &source, _i % 4 == 3 ? KELP_LOSS_MAE : KELP_LOSS_MSE);
    struct kelp_shape input_shape = *kelp_graph_shape(random.graph, random.nodes[0]);
    uint64_t target_count = random.batch;
    for (uint32_t d = 0; d < random.target.rank; d++) {
        target_count *= random.target.dims[d];
    }
    float *input = source_floats(&source, random.batch * input_shape.dims[0] * input_shape.dims[1]);
    float *target = source_floats(&source, target_count);
    float *weights = source_floats(&source, random.parameter_elements);
    float *gradient = source_floats(&source, random.parameter_elements); /* to be overwritten */

    bind(&random, weights, gradient);
    const double loss = run(&random, KELP_GRAPH_TRAIN, input, target);
    ck_assert_double_eq(loss, run(&random, KELP_GRAPH_EVALUATE, input, target));
    struct graph_loss context = {.random = &random, .input = input, .target = target};
    const struct objective objective = {.loss = graph_loss,
                                        .context = &context,
                                        .scale =
                                            gradient_scale(gradient, random.parameter_elements),
                                        .seed = source.seed};
    for (uint64_t i = 0; i < random.parameter_elements; i++) {
        gradient_check(&objective, &weights[i], (double)gradient[i], "parameters", i);
    }
    free(input);
    free(target);
    free(weights);
    free(gradient);
    random_graph_fini(&random);
}

/* ---- models ---- */

struct setup {
    struct kelp_model *model;
    struct kelp_plan plan;
    struct kelp_sample_shape shape;
    uint32_t batch;
    float *input, *target, *weights, *gradient;
};

static void random_job(struct source *source, struct kelp_job *job, struct kelp_sample_shape *shape)
{
    *job = (struct kelp_job){.cluster = {.lane_threads = 1}};
    job->train.loss = source_below(source, 4) == 0 ? KELP_LOSS_MAE : KELP_LOSS_MSE;
    if (source_below(source, 2) == 0) {
        job->model.kind = KELP_MODEL_MLP;
        job->model.hidden_count = source_below(source, 4);
        for (uint32_t i = 0; i < job->model.hidden_count; i++) {
            job->model.hidden[i] = 1 + source_below(source, 9);
        }
        *shape = (struct kelp_sample_shape){
            .input_count = 1,
            .inputs[0] = {.rank = 1, .dims = {1 + source_below(source, 9)}},
            .target = {.rank = source_below(source, 2)}};
        shape->target.dims[0] = 1 + source_below(source, 5);
        return;
    }
    job->model.kind = KELP_MODEL_DLINEAR;
    job->model.individual = source_below(source, 2) == 0;
    job->model.kernel_size = 1 + 2 * source_below(source, 14);
    const uint32_t channels = 1 + source_below(source, 4);
    *shape = (struct kelp_sample_shape){
        .input_count = 1,
        .inputs[0] = {.rank = 2, .dims = {1 + source_below(source, 20), channels}},
        .target = {.rank = 2, .dims = {1 + source_below(source, 9), channels}}};
}

static void setup_init(struct setup *setup, struct source *source)
{
    struct kelp_job job;
    struct kelp_error error = {KELP_OK, ""};
    *setup = (struct setup){.batch = 1 + source_below(source, BATCH_MAX)};
    random_job(source, &job, &setup->shape);
    const kelp_status status =
        kelp_model_create(&job, &setup->shape, BATCH_MAX, &setup->model, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    const struct kelp_tensor *tensors = kelp_model_tensors(setup->model, &setup->plan.tensor_count);
    setup->plan.tensors = malloc(setup->plan.tensor_count * sizeof(*tensors));
    ck_assert_ptr_nonnull(setup->plan.tensors);
    memcpy(setup->plan.tensors, tensors, setup->plan.tensor_count * sizeof(*tensors));
    ck_assert_int_eq(kelp_plan_lay_out(&setup->plan, 4, &error), KELP_OK);
    setup->input = source_floats(source, setup->batch * kelp_sample_input_count(&setup->shape));
    setup->target = source_floats(source, setup->batch * kelp_sample_target_count(&setup->shape));
    setup->weights = source_floats(source, setup->plan.flat_count);
    setup->gradient = source_floats(source, setup->plan.flat_count);
}

static void setup_fini(struct setup *setup)
{
    kelp_model_destroy(setup->model);
    kelp_plan_fini(&setup->plan);
    free(setup->input);
    free(setup->target);
    free(setup->weights);
    free(setup->gradient);
}

static double train(struct setup *setup, const float *weights, float *gradient)
{
    double sums[KELP_METRIC_SUM_COUNT];
    struct kelp_error error = {KELP_OK, ""};
    kelp_model_bind(setup->model, &setup->plan, weights, gradient);
    ck_assert_int_eq(kelp_model_train(setup->model,
                                      &(struct kelp_model_piece){.input = setup->input,
                                                                 .target = setup->target,
                                                                 .count = setup->batch,
                                                                 .batch_total = 1.0},
                                      sums, &error),
                     KELP_OK);
    return sums[KELP_METRIC_SUM_LOSS];
}

static double model_loss(void *context)
{
    struct setup *setup = context;
    double sums[KELP_METRIC_SUM_COUNT];
    struct kelp_error error = {KELP_OK, ""};
    const struct kelp_model_evaluation what = {
        .input = setup->input, .target = setup->target, .count = setup->batch};
    ck_assert_int_eq(kelp_model_evaluate(setup->model, &what, sums, &error), KELP_OK);
    return sums[KELP_METRIC_SUM_LOSS];
}

/* Gradients of both models are those of their loss, for any shape. */
KELP_LOOP_TEST(test_models, 0, SEEDS)
{
    struct source source = {.seed = 1000 + (uint64_t)_i};
    struct setup setup;
    setup_init(&setup, &source);
    memset(setup.gradient, 0, (size_t)setup.plan.flat_count * sizeof(float)); /* the padding */
    ck_assert_double_eq(train(&setup, setup.weights, setup.gradient), model_loss(&setup));
    const struct objective objective = {.loss = model_loss,
                                        .context = &setup,
                                        .scale =
                                            gradient_scale(setup.gradient, setup.plan.flat_count),
                                        .seed = source.seed};
    for (uint32_t t = 0; t < setup.plan.tensor_count; t++) {
        const struct kelp_tensor *tensor = &setup.plan.tensors[t];
        for (uint64_t i = tensor->offset; i < tensor->offset + tensor->elem_count; i++) {
            gradient_check(&objective, &setup.weights[i], (double)setup.gradient[i], "parameters",
                           i);
        }
    }
    setup_fini(&setup);
}

/* The same arguments give the same bits: on the next call, in another model, and with every buffer
 * elsewhere. */
KELP_LOOP_TEST(test_same_bits, 0, SEEDS)
{
    struct source source = {.seed = 2000 + (uint64_t)_i}, again = source;
    struct setup first, second;
    setup_init(&first, &source);
    setup_init(&second, &again);
    const size_t bytes = (size_t)first.plan.flat_count * sizeof(float);
    float *moved_weights = malloc(bytes + ALIGN_SHIFT * sizeof(float));
    float *moved_gradient = malloc(bytes + ALIGN_SHIFT * sizeof(float));
    ck_assert(moved_weights != NULL && moved_gradient != NULL);
    memcpy(moved_weights + ALIGN_SHIFT, first.weights, bytes);
    memcpy(moved_gradient + ALIGN_SHIFT, first.gradient, bytes); /* for the padding's sake */

    const double loss = train(&first, first.weights, first.gradient);
    ck_assert_double_eq(train(&second, moved_weights + ALIGN_SHIFT, moved_gradient + ALIGN_SHIFT),
                        loss);
    ck_assert_mem_eq(moved_gradient + ALIGN_SHIFT, first.gradient, bytes);

    /* The input too, by one float. */
    const size_t input_bytes =
        (size_t)(first.batch * kelp_sample_input_count(&first.shape)) * sizeof(float);
    float *input = second.input;
    second.input = malloc(input_bytes + sizeof(float));
    ck_assert_ptr_nonnull(second.input);
    memcpy(second.input + 1, input, input_bytes);
    second.input += 1;
    memcpy(second.gradient, first.gradient, bytes);
    ck_assert_double_eq(train(&second, second.weights, second.gradient), loss);
    ck_assert_mem_eq(second.gradient, first.gradient, bytes);
    free(second.input - 1);
    second.input = input;
    free(moved_weights);
    free(moved_gradient);
    setup_fini(&first);
    setup_fini(&second);
}

/* The graph: what does not fit is named with layer and shapes, before anything is allocated. That
 * gradients are right is tests/property/test_gradients.c. */
#include <stdlib.h>
#include <string.h>

#include "kernels/device.h"
#include "tests/lib/suite.h"
#include "worker/model/graph/graph.h"

static struct kelp_device *device;
static struct kelp_stream *stream;
static struct kelp_graph *graph;
static struct kelp_error error;
static const struct kelp_graph_loss mse = {.kind = KELP_LOSS_MSE};

static void setup(void)
{
    error = (struct kelp_error){KELP_OK, ""};
    ck_assert_int_eq(kelp_device_cpu_create(1, &device, &error), KELP_OK);
    ck_assert_int_eq(device->table->stream_create(device, &stream, &error), KELP_OK);
    graph = kelp_graph_create(stream, 4);
    ck_assert_ptr_nonnull(graph);
}

static void teardown(void)
{
    kelp_graph_destroy(graph);
    device->table->stream_destroy(stream);
    device->table->destroy(device);
}

static uint32_t input(uint64_t rows, uint64_t columns)
{
    const struct kelp_shape shape = {.rank = 2, .dims = {rows, columns}};
    return kelp_graph_input(graph, "input", &shape);
}

static uint32_t matrix(const char *name, uint64_t rows, uint64_t columns)
{
    const struct kelp_shape shape = {.rank = 2, .dims = {rows, columns}};
    return kelp_graph_parameter(graph, name, &shape,
                                (struct kelp_graph_init){KELP_INIT_UNIFORM, 0.5f});
}

static uint32_t vector(const char *name, uint64_t length)
{
    const struct kelp_shape shape = {.rank = 1, .dims = {length}};
    return kelp_graph_parameter(graph, name, &shape,
                                (struct kelp_graph_init){KELP_INIT_UNIFORM, 0.5f});
}

static uint32_t linear(uint32_t x, uint64_t out, uint64_t in)
{
    const uint32_t weight = matrix("fc.weight", out, in); /* declared first */
    return kelp_graph_linear(graph, "fc", x, weight, vector("fc.bias", out));
}

/* Finishing fails with this status, and the text holds these words. */
static void expect_failure(uint32_t output, uint64_t rows, uint64_t columns, kelp_status status,
                           const char *first, const char *second)
{
    const struct kelp_shape target = {.rank = 2, .dims = {rows, columns}};
    ck_assert_int_eq(kelp_graph_finish(graph, output, &target, &mse, &error), status);
    ck_assert_msg(strstr(error.text, first) != NULL, "%s", error.text);
    ck_assert_msg(strstr(error.text, second) != NULL, "%s", error.text);
}

KELP_CASE("graph", .setup = setup, .teardown = teardown)

/* The error of a weight that does not fit names layer, wanted and found shape. */
KELP_TEST(test_weight_shape)
{
    const uint32_t output = linear(input(3, 5), 7, 6);
    ck_assert_uint_eq(output, KELP_GRAPH_NONE);
    expect_failure(output, 3, 7, KELP_ERR_INVALID, "layer fc", "must be [7, 5], but is [7, 6]");
}

KELP_TEST(test_bias_shape)
{
    const uint32_t x = input(3, 5);
    const uint32_t output =
        kelp_graph_linear(graph, "fc", x, matrix("fc.weight", 7, 5), vector("fc.bias", 6));
    expect_failure(output, 3, 7, KELP_ERR_INVALID, "layer fc", "must be [7], but is [6]");
}

KELP_TEST(test_sum_shape)
{
    const uint32_t x = input(3, 5);
    const uint32_t output = kelp_graph_add(graph, "sum", x, linear(x, 4, 5));
    expect_failure(output, 3, 4, KELP_ERR_INVALID, "layer sum", "must be [3, 5], but is [3, 4]");
}

KELP_TEST(test_group_shapes)
{
    const uint32_t x = input(2, 5);
    const uint32_t weights[] = {matrix("w0", 4, 5), matrix("w1", 6, 5)};
    const uint32_t biases[] = {vector("b0", 4), vector("b1", 6)};
    const uint32_t output = kelp_graph_linear_grouped(graph, "grouped", x, weights, biases, 2);
    expect_failure(output, 2, 4, KELP_ERR_INVALID, "layer grouped",
                   "must be [4, 5], but is [6, 5]");
}

KELP_TEST(test_group_count)
{
    const uint32_t x = input(3, 5);
    const uint32_t weights[] = {matrix("w0", 4, 5), matrix("w1", 4, 5)};
    const uint32_t biases[] = {vector("b0", 4), vector("b1", 4)};
    const uint32_t output = kelp_graph_linear_grouped(graph, "grouped", x, weights, biases, 2);
    expect_failure(output, 3, 4, KELP_ERR_INVALID, "layer grouped",
                   "must be [2, 5], but is [3, 5]");
}

KELP_TEST(test_even_kernel)
{
    const uint32_t output = kelp_graph_moving_average(graph, "average", input(3, 5), 4);
    expect_failure(output, 3, 5, KELP_ERR_INVALID, "layer average", "kernel size 4");
}

KELP_TEST(test_target_shape)
{
    expect_failure(linear(input(3, 5), 4, 5), 3, 6, KELP_ERR_INVALID, "[3, 4]", "[3, 6]");
}

/* A dimension of zero, and one whose elements cannot be counted. */
KELP_LOOP_TEST(test_impossible_shapes, 0, 2)
{
    if (_i == 0) {
        expect_failure(input(0, 5), 0, 5, KELP_ERR_INVALID, "layer input", "[0, 5]");
    } else {
        expect_failure(input(UINT64_MAX, 5), 3, 5, KELP_ERR_INVALID, "layer input",
                       "18446744073709551615");
    }
}

/* Too many rows for one operator call, and too much memory, are limits and not crashes. */
KELP_LOOP_TEST(test_limits, 0, 2)
{
    const uint64_t rows = _i == 0 ? UINT64_C(1) << 31 : UINT64_C(1) << 28;
    const uint32_t x = input(rows, 8);
    const uint32_t output = linear(x, 1u << 20, 8);
    expect_failure(output, rows, 1u << 20, KELP_ERR_LIMIT, _i == 0 ? "layer" : "too large", "4");
}

/* Names stand in files and on screens, a line each. */
KELP_LOOP_TEST(test_parameter_names, 0, 5)
{
    static const char *const names[] = {"", "two words", "two\nlines", "\x1b[2J", "gr\xc3\xbcn"};
    const uint32_t x = input(3, 5);
    (void)vector(names[_i], 3);
    expect_failure(linear(x, 4, 5), 3, 4, KELP_ERR_INVALID, "parameter '", "printable ASCII");
}

KELP_TEST(test_unused_parameter)
{
    const uint32_t x = input(3, 5);
    (void)vector("left_over", 3);
    expect_failure(linear(x, 4, 5), 3, 4, KELP_ERR_INVALID, "left_over", "no effect");
}

KELP_TEST(test_parameter_is_no_operand)
{
    const uint32_t w = matrix("w", 3, 5);
    (void)input(3, 5);
    expect_failure(kelp_graph_relu(graph, "relu", w), 3, 5, KELP_ERR_INVALID, "layer relu", "w");
}

KELP_TEST(test_no_parameters)
{
    expect_failure(kelp_graph_relu(graph, "relu", input(3, 5)), 3, 5, KELP_ERR_INVALID,
                   "depends on no parameter", "");
}

static uint32_t image(uint64_t channels, uint64_t height, uint64_t width)
{
    const struct kelp_shape shape = {.rank = 3, .dims = {channels, height, width}};
    return kelp_graph_input(graph, "input", &shape);
}

/* A convolution names what does not fit: channels, groups, or a window that is too large. */
KELP_LOOP_TEST(test_conv_shapes, 0, 4)
{
    static const struct {
        uint64_t weight[4];
        uint32_t groups, padding;
        const char *text;
    } cases[] = {
        {{4, 3, 3, 3}, 1, 0, "must be [4, 2, 3, 3], but is [4, 3, 3, 3]"},
        {{4, 2, 3, 3}, 3, 0, "2 channels to 4 cannot be split into 3 groups"},
        {{4, 2, 9, 3}, 1, 0, "a window of [9, 3] with stride [1, 1] and padding [0, 0]"},
        {{4, 2, 9, 3}, 1, 1, "does not fit [2, 5, 6]"},
    };
    const struct kelp_shape weight_shape = {.rank = 4,
                                            .dims = {cases[_i].weight[0], cases[_i].weight[1],
                                                     cases[_i].weight[2], cases[_i].weight[3]}};
    const uint32_t x = image(2, 5, 6);
    const uint32_t weight = kelp_graph_parameter(graph, "conv.weight", &weight_shape,
                                                 (struct kelp_graph_init){KELP_INIT_UNIFORM, 0.5f});
    const struct kelp_graph_window window = {.stride = {1, 1},
                                             .padding = {cases[_i].padding, cases[_i].padding},
                                             .groups = cases[_i].groups};
    const uint32_t output =
        kelp_graph_conv2d(graph, "conv", x, weight, KELP_GRAPH_NO_BIAS, &window);
    expect_failure(output, 3, 5, KELP_ERR_INVALID, "layer conv", cases[_i].text);
}

KELP_TEST(test_pool_padding)
{
    const struct kelp_graph_window window = {.kernel = {2, 2}, .stride = {1, 1}, .padding = {2, 0}};
    const uint32_t output = kelp_graph_max_pool(graph, "pool", image(2, 5, 6), &window);
    expect_failure(output, 3, 5, KELP_ERR_INVALID, "layer pool",
                   "padding [2, 0] must be smaller than the window [2, 2]");
}

/* Layers that move values say what they were given. */
KELP_LOOP_TEST(test_moving_shapes, 0, 8)
{
    static const char *const texts[] = {
        "must be of the elements of [2, 7], but is [3, 5]",
        "no [4, +2) along axis 1 of [3, 5]",
        "axis 2 of [3, 5]",
        "each part must be [3, 5], but is [4, 5]",
        "the order must name each of 2 dimensions once",
        "must be [3, 5, 1], but is [3, 5]",
        "must be [..., 2 width], but is [3, 5]",
        "dropout of 1: must be at least 0 and below 1",
    };
    const struct kelp_shape wrong = {.rank = 2, .dims = {2, 7}};
    const struct kelp_shape cube = {.rank = 3, .dims = {3, 5, 1}};
    const uint32_t order[] = {1, 1};
    const uint32_t x = input(3, 5), y = input(4, 5), z = kelp_graph_input(graph, "z", &cube);
    const uint32_t parts[] = {x, y};
    uint32_t output = KELP_GRAPH_NONE;
    switch (_i) {
    case 0:
        output = kelp_graph_reshape(graph, "layer", x, &wrong);
        break;
    case 1:
        output = kelp_graph_slice(graph, "layer", x, 1, 4, 2);
        break;
    case 2:
        output = kelp_graph_reduce_sum(graph, "layer", x, 2);
        break;
    case 3:
        output = kelp_graph_concat(graph, "layer", parts, 2, 1);
        break;
    case 4:
        output = kelp_graph_permute(graph, "layer", x, order);
        break;
    case 5:
        output = kelp_graph_multiply(graph, "layer", z, x);
        break;
    case 6:
        output = kelp_graph_glu(graph, "layer", x);
        break;
    default:
        output = kelp_graph_dropout(graph, "layer", x, 1.0f);
        break;
    }
    ck_assert_uint_eq(output, KELP_GRAPH_NONE);
    expect_failure(output, 3, 5, KELP_ERR_INVALID, "layer layer", texts[_i]);
}

/* Losses of classes and of quantiles have outputs and targets of their own. */
KELP_TEST(test_loss_shapes)
{
    static const double quantiles[] = {0.1, 0.5, 0.9};
    const struct kelp_graph_loss classes = {.kind = KELP_LOSS_CROSS_ENTROPY};
    const struct kelp_graph_loss three = {
        .kind = KELP_LOSS_QUANTILE, .quantiles = quantiles, .quantile_count = 3};
    const struct kelp_shape target = {.rank = 1, .dims = {3}};
    const uint32_t output = linear(input(3, 5), 4, 5);
    ck_assert_int_eq(kelp_graph_finish(graph, output, &target, &classes, &error), KELP_ERR_INVALID);
    ck_assert_msg(strstr(error.text, "[3, 4] for each sample, but the loss takes [classes]"), "%s",
                  error.text);
    ck_assert_int_eq(kelp_graph_finish(graph, output, &target, &three, &error), KELP_ERR_INVALID);
    ck_assert_msg(strstr(error.text, "but the loss takes [..., 3]"), "%s", error.text);
}

/* Rows of a parameter must be all of it: what is left over would keep an old gradient. */
KELP_TEST(test_rows_left_over)
{
    const uint32_t weight = matrix("w", 6, 5);
    const uint32_t x = input(3, 5);
    const uint32_t rows = kelp_graph_rows(graph, "rows", weight, 1, 4);
    const uint32_t output = kelp_graph_linear(graph, "fc", x, rows, KELP_GRAPH_NO_BIAS);
    expect_failure(output, 3, 4, KELP_ERR_INVALID, "parameter w",
                   "each row must be used exactly once");
}

/* Buffers that are never alive together share their place: a deep chain needs hardly more than its
 * widest point where nothing has to be kept. */
KELP_TEST(test_memory_is_reused)
{
    struct kelp_graph_memory memory;
    const struct kelp_shape target = {.rank = 2, .dims = {64, 64}};
    const uint64_t value = UINT64_C(4) * 64 * 64 * sizeof(float);
    uint32_t x = linear(input(64, 64), 64, 64);
    for (uint32_t i = 0; i < 20; i++) {
        x = kelp_graph_transpose(graph, "turn", x);
    }
    ck_assert_int_eq(kelp_graph_finish(graph, x, &target, &mse, &error), KELP_OK);
    kelp_graph_memory(graph, &memory);
    ck_assert_uint_eq(memory.values, 21 * value);
    ck_assert_uint_eq(memory.gradients, 21 * value);
    ck_assert_uint_ge(memory.total, 2 * value);
    ck_assert_uint_lt(memory.total, 3 * value);
}

/* The first failure is the one that is told. */
KELP_TEST(test_first_failure)
{
    const uint32_t bad = kelp_graph_moving_average(graph, "first", input(3, 5), 2);
    ck_assert_uint_eq(kelp_graph_relu(graph, "second", bad), KELP_GRAPH_NONE);
    ck_assert_ptr_null(kelp_graph_shape(graph, bad));
    expect_failure(bad, 3, 5, KELP_ERR_INVALID, "layer first", "");
}

/* More samples than planned are refused; what fits runs. */
KELP_TEST(test_batch_limit)
{
    const struct kelp_shape target = {.rank = 2, .dims = {3, 4}};
    const uint32_t output = linear(input(3, 5), 4, 5);
    ck_assert_int_eq(kelp_graph_finish(graph, output, &target, &mse, &error), KELP_OK);
    struct kelp_graph_memory memory;
    kelp_graph_memory(graph, &memory);
    ck_assert_uint_ge(memory.total, sizeof(float) * 4 * 3 * 4);
    float weight[20] = {0}, bias[4] = {1, 2, 3, 4}, samples[5 * 15] = {0}, result[5 * 12];
    kelp_graph_bind(graph, 0, weight, NULL);
    kelp_graph_bind(graph, 1, bias, NULL);
    struct kelp_graph_run run = {
        .mode = KELP_GRAPH_FORWARD, .input = samples, .count = 4, .output = result};
    ck_assert_int_eq(kelp_graph_run(graph, &run, &error), KELP_OK);
    for (uint32_t i = 0; i < 4 * 12; i++) {
        ck_assert_float_eq(result[i], bias[i % 4]);
    }
    run.count = 5;
    ck_assert_int_eq(kelp_graph_run(graph, &run, &error), KELP_ERR_LIMIT);
    ck_assert_ptr_nonnull(strstr(error.text, "5 samples"));
}

/* The output of a layer over 3 by 5 samples, of relu behind it, or of what reads both. */
enum form { SUMS, UNUSED_RELU, RELU, SUMS_AND_RELU, RELU_TWICE };

static void run_form(enum form form, float output[24])
{
    static float weight[20], bias[4], samples[2 * 15];
    for (uint32_t i = 0; i < 30; i++) {
        samples[i] = (float)(i * 7 % 11) - 5.0f;
        weight[i % 20] = (float)(i * 3 % 17) * 0.1f - 0.8f;
        bias[i % 4] = (float)(i % 4) * 0.2f;
    }
    const struct kelp_shape target = {.rank = 2, .dims = {3, 4}};
    kelp_graph_destroy(graph);
    graph = kelp_graph_create(stream, 4);
    const uint32_t sums = linear(input(3, 5), 4, 5);
    const uint32_t relu = form == SUMS ? KELP_GRAPH_NONE : kelp_graph_relu(graph, "relu", sums);
    uint32_t of_all = form == RELU ? relu : sums;
    if (form == SUMS_AND_RELU || form == RELU_TWICE) {
        of_all = kelp_graph_add(graph, "add", relu, form == RELU_TWICE ? relu : sums);
    }
    ck_assert_int_eq(kelp_graph_finish(graph, of_all, &target, &mse, &error), KELP_OK);
    kelp_graph_bind(graph, 0, weight, NULL);
    kelp_graph_bind(graph, 1, bias, NULL);
    const struct kelp_graph_run run = {
        .mode = KELP_GRAPH_FORWARD, .input = samples, .count = 2, .output = output};
    ck_assert_int_eq(kelp_graph_run(graph, &run, &error), KELP_OK);
}

/* A function becomes part of the layer before it where nothing else reads the layer's output, and
 * nowhere else. */
KELP_TEST(test_function_behind_a_layer)
{
    float sums[24], unused[24], relu[24], both[24], twice[24];
    uint32_t negative = 0;
    run_form(SUMS, sums);
    run_form(UNUSED_RELU, unused);
    run_form(RELU, relu);
    run_form(SUMS_AND_RELU, both);
    run_form(RELU_TWICE, twice);
    for (uint32_t i = 0; i < 24; i++) {
        const float positive = sums[i] > 0.0f ? sums[i] : 0.0f;
        negative += sums[i] < 0.0f;
        ck_assert_float_eq(unused[i], sums[i]);
        ck_assert_float_eq(relu[i], positive);
        ck_assert_float_eq(both[i], positive + sums[i]);
        ck_assert_float_eq(twice[i], positive + positive);
    }
    ck_assert_uint_gt(negative, 0);
}

/* A device that does as the CPU but for what a test wants. */
static struct kelp_device_table other_table;
static int32_t allocations_left; /* before alloc() fails */

static kelp_status counted_alloc(struct kelp_device *on, size_t bytes, void **ret,
                                 struct kelp_error *reterr)
{
    return allocations_left-- > 0
               ? device->table->alloc(on, bytes, ret, reterr)
               : kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no device memory: %zu bytes", bytes);
}

static kelp_status failing_wait(struct kelp_stream *on, struct kelp_error *reterr)
{
    (void)on;
    return kelp_fail(reterr, KELP_ERR_DEVICE, "the device fell off the bus");
}

/* A graph of one layer over 3 by 5 samples, with random-looking weights; sums[] of a training run.
 */
/* NOLINTNEXTLINE(readability-non-const-parameter): sums are written through the run */
static kelp_status train_one_layer(float gradient[24], double sums[KELP_METRIC_SUM_COUNT])
{
    static float weight[20], bias[4], samples[2 * 15], wanted[2 * 12];
    for (uint32_t i = 0; i < 30; i++) {
        samples[i] = (float)(i * 7 % 11) - 5.0f;
        wanted[i % 24] = (float)(i * 5 % 13) - 6.0f;
        weight[i % 20] = (float)(i * 3 % 17) * 0.1f - 0.8f;
        bias[i % 4] = (float)i * 0.2f;
    }
    const struct kelp_shape target = {.rank = 2, .dims = {3, 4}};
    const uint32_t output = kelp_graph_relu(graph, "relu", linear(input(3, 5), 4, 5));
    kelp_status status = kelp_graph_finish(graph, output, &target, &mse, &error);
    if (status != KELP_OK) {
        return status;
    }
    kelp_graph_bind(graph, 0, weight, gradient);
    kelp_graph_bind(graph, 1, bias, gradient + 20);
    const struct kelp_graph_run run = {.mode = KELP_GRAPH_TRAIN,
                                       .input = samples,
                                       .target = wanted,
                                       .count = 2,
                                       .batch_total = 2.0,
                                       .sums = sums};
    return kelp_graph_run(graph, &run, &error);
}

/* A device with memory of its own gets copies, and the results are the same. */
KELP_TEST(test_device_with_own_memory)
{
    float first[24], second[24];
    double first_sums[KELP_METRIC_SUM_COUNT], second_sums[KELP_METRIC_SUM_COUNT];
    ck_assert_int_eq(train_one_layer(first, first_sums), KELP_OK);
    kelp_graph_destroy(graph);
    other_table = *device->table;
    other_table.host_memory = false;
    stream->table = &other_table;
    graph = kelp_graph_create(stream, 4);
    ck_assert_int_eq(train_one_layer(second, second_sums), KELP_OK);
    ck_assert_mem_eq(first, second, sizeof(first));
    ck_assert_mem_eq(first_sums, second_sums, KELP_METRIC_SUM_SCALARS * sizeof(first_sums[0]));
    ck_assert_float_ne(first[0], 0.0f);
}

/* What a device cannot compute is told when the graph is finished, by layer. */
KELP_TEST(test_no_such_operator)
{
    const struct kelp_shape target = {.rank = 2, .dims = {3, 4}};
    other_table = *device->table;
    other_table.softmax = NULL;
    stream->table = &other_table;
    const uint32_t output = kelp_graph_softmax(graph, "act", linear(input(3, 5), 4, 5));
    ck_assert_int_eq(kelp_graph_finish(graph, output, &target, &mse, &error), KELP_ERR_UNSUPPORTED);
    ck_assert_str_eq(error.text, "layer act: the device cpu has no softmax");
}

/* Without device memory a graph is not finished, and can be destroyed. */
KELP_TEST(test_no_device_memory)
{
    float gradient[24];
    double sums[KELP_METRIC_SUM_COUNT];
    other_table = *device->table;
    other_table.alloc = counted_alloc;
    stream->table = &other_table;
    allocations_left = 0;
    ck_assert_int_eq(train_one_layer(gradient, sums), KELP_ERR_NO_MEMORY);
    ck_assert_ptr_nonnull(strstr(error.text, "no device memory"));
}

/* What goes wrong on the device is reported, and the sums are not touched. */
KELP_TEST(test_device_failure)
{
    float gradient[24];
    double sums[KELP_METRIC_SUM_COUNT] = {77.0};
    other_table = *device->table;
    other_table.wait = failing_wait;
    stream->table = &other_table;
    ck_assert_int_eq(train_one_layer(gradient, sums), KELP_ERR_DEVICE);
    ck_assert_str_eq(error.text, "the device fell off the bus");
    ck_assert_double_eq(sums[0], 77.0);
}

KELP_TEST(test_shape_text)
{
    char text[64];
    struct kelp_shape shape = {.rank = 3, .dims = {1, 20, 300}};
    kelp_shape_print(&shape, text, sizeof(text));
    ck_assert_str_eq(text, "[1, 20, 300]");
    kelp_shape_print(&shape, text, 7);
    ck_assert_str_eq(text, "[1, 20");
    shape.rank = 0;
    kelp_shape_print(&shape, text, sizeof(text));
    ck_assert_str_eq(text, "[]");
}

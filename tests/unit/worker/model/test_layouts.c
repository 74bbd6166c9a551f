/*
 * How images stand on a device that takes them with the channels last: what is turned, how often,
 * and that training and evaluating give the bits of the CPU, which takes the channels first alone.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/lib/models/channels_last.h"
#include "tests/lib/suite.h"
#include "worker/model/graph/graph.h"
#include "worker/model/graph/layers.h"
#include "worker/model/model_build.h"

#define BATCH   3u
#define CLASSES 5u

/* Returns the output. */
typedef uint32_t build_function(struct kelp_graph *graph);

struct side {
    struct kelp_device_table table; /* the device's, with transpose counted */
    struct kelp_device *device;
    struct kelp_stream *stream;
    struct kelp_graph *graph;
    uint64_t elements, outputs; /* of the parameters; of the output, for one sample */
    float *weights, *gradient, *output;
    double sums[KELP_METRIC_SUM_COUNT];
};
static struct side first, last;
static struct kelp_error error;

static void (*transpose)(struct kelp_stream *stream, const struct kelp_transpose *p);
static uint32_t turned; /* calls of it */

static void counted_transpose(struct kelp_stream *stream, const struct kelp_transpose *p)
{
    turned++;
    transpose(stream, p);
}

static float *drawn(uint64_t count, uint64_t seed, float scale)
{
    float *values = calloc((size_t)count + 1, sizeof(*values));
    ck_assert_ptr_nonnull(values);
    for (uint64_t i = 0; i < count; i++) {
        values[i] = scale * ((float)((i + seed) * 2654435761u % 1000) / 500.0f - 1.0f);
    }
    return values;
}

static void bind(struct side *side)
{
    uint64_t offset = 0;
    for (uint32_t i = 0; i < kelp_graph_parameter_count(side->graph); i++) {
        struct kelp_tensor tensor;
        kelp_graph_parameter_tensor(side->graph, i, &tensor);
        kelp_graph_bind(side->graph, i, side->weights + offset, side->gradient + offset);
        for (uint64_t e = 0; tensor.statistic && e < tensor.elem_count; e++) {
            side->weights[offset + e] = 0.5f; /* a variance is positive */
        }
        offset += tensor.elem_count;
    }
}

static void open_side(struct side *side, build_function *build, enum kelp_loss_kind kind)
{
    struct kelp_shape target = {.rank = 0};
    side->table = *side->device->table;
    transpose = side->table.transpose;
    side->table.transpose = counted_transpose;
    side->device->table = &side->table;
    ck_assert_int_eq(side->table.stream_create(side->device, &side->stream, &error), KELP_OK);
    side->graph = kelp_graph_create(side->stream, BATCH);
    ck_assert_ptr_nonnull(side->graph);
    const uint32_t output = build(side->graph);
    const struct kelp_graph_loss loss = {.kind = kind};
    const struct kelp_shape *shape = kelp_graph_shape(side->graph, output);
    side->outputs = 1;
    for (uint32_t i = 0; shape && i < shape->rank; i++) {
        side->outputs *= shape->dims[i];
    }
    if (kind == KELP_LOSS_MSE && shape) {
        target = *shape;
    }
    ck_assert_msg(kelp_graph_finish(side->graph, output, &target, &loss, &error) == KELP_OK, "%s",
                  error.text);
    for (uint32_t i = 0; i < kelp_graph_parameter_count(side->graph); i++) {
        struct kelp_tensor tensor;
        kelp_graph_parameter_tensor(side->graph, i, &tensor);
        side->elements += tensor.elem_count;
    }
    side->weights = drawn(side->elements, 1, 0.3f);
    side->gradient = drawn(side->elements, 0, 0.0f);
    side->output = drawn(side->outputs * BATCH, 0, 0.0f);
    bind(side);
}

static void close_side(struct side *side)
{
    kelp_graph_destroy(side->graph);
    side->table.stream_destroy(side->stream);
    side->table.destroy(side->device);
    free(side->weights);
    free(side->gradient);
    free(side->output);
    *side = (struct side){.device = NULL};
}

static void run(struct side *side, enum kelp_graph_mode mode, bool accumulate)
{
    const uint32_t count = accumulate ? BATCH - 1 : BATCH;
    float *input = drawn(BATCH * kelp_graph_record_count(side->graph), 7, 1.0f);
    float *target = drawn(BATCH * side->outputs, 0, 0.0f); /* the first class, too */
    const struct kelp_graph_run step = {.mode = mode,
                                        .input = input,
                                        .target = mode == KELP_GRAPH_FORWARD ? NULL : target,
                                        .count = count,
                                        .output = mode == KELP_GRAPH_TRAIN ? NULL : side->output,
                                        .sums = mode == KELP_GRAPH_FORWARD ? NULL : side->sums,
                                        .batch_total = 2.0 * BATCH,
                                        .accumulate = accumulate,
                                        .seed = 3,
                                        .step = 9,
                                        .position = 1};
    ck_assert_msg(kelp_graph_run(side->graph, &step, &error) == KELP_OK, "%s", error.text);
    free(input);
    free(target);
}

static bool same(const void *a, const void *b, uint64_t count, size_t size)
{
    return memcmp(a, b, (size_t)count * size) == 0;
}

/* Both sides do the same, in all modes. */
static void expect_same_bits(void)
{
    static const struct {
        enum kelp_graph_mode mode;
        bool accumulate;
    } runs[] = {{KELP_GRAPH_TRAIN, false},
                {KELP_GRAPH_TRAIN, true},
                {KELP_GRAPH_EVALUATE, false},
                {KELP_GRAPH_FORWARD, false}};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(runs); i++) {
        const uint32_t sums =
            runs[i].mode == KELP_GRAPH_TRAIN ? KELP_METRIC_SUM_SCALARS : KELP_METRIC_SUM_COUNT;
        memset(first.output, 0, (size_t)(BATCH * first.outputs) * sizeof(float));
        memset(last.output, 0, (size_t)(BATCH * last.outputs) * sizeof(float));
        run(&first, runs[i].mode, runs[i].accumulate);
        run(&last, runs[i].mode, runs[i].accumulate);
        ck_assert_msg(same(first.gradient, last.gradient, first.elements, sizeof(float)),
                      "gradients of run %zu", i);
        ck_assert_msg(same(first.output, last.output, BATCH * first.outputs, sizeof(float)),
                      "outputs of run %zu", i);
        ck_assert_msg(same(first.sums, last.sums, sums, sizeof(double)), "sums of run %zu", i);
    }
}

static uint32_t count_of(struct side *side, enum kelp_graph_mode mode)
{
    turned = 0;
    run(side, mode, false);
    return turned;
}

static void open_sides(build_function *build, enum kelp_loss_kind kind)
{
    error = (struct kelp_error){KELP_OK, ""};
    ck_assert_int_eq(kelp_device_cpu_create(1, &first.device, &error), KELP_OK);
    ck_assert_int_eq(channels_last_cpu_create(&last.device, &error), KELP_OK);
    open_side(&first, build, kind);
    open_side(&last, build, kind);
}

/* So many arrays are turned on the way forward, and so many back. */
static void expect(build_function *build, enum kelp_loss_kind kind, uint32_t forward,
                   uint32_t backward)
{
    open_sides(build, kind);
    ck_assert_uint_eq(count_of(&last, KELP_GRAPH_FORWARD), forward);
    ck_assert_uint_eq(count_of(&last, KELP_GRAPH_TRAIN), forward + backward);
    ck_assert_uint_eq(count_of(&first, KELP_GRAPH_TRAIN), 0);
    expect_same_bits();
    close_side(&first);
    close_side(&last);
}

/* ---- graphs ---------------------------------------------------------------------------------- */

static uint32_t image(struct kelp_graph *graph, uint64_t channels, uint64_t height, uint64_t width)
{
    const struct kelp_shape shape = {.rank = 3, .dims = {channels, height, width}};
    return kelp_graph_input(graph, "image", &shape);
}

static uint32_t conv(struct kelp_graph *graph, const char *name, uint32_t x, uint64_t out)
{
    const struct kelp_graph_window window = {
        .kernel = {3, 3}, .stride = {1, 1}, .padding = {1, 1}, .groups = 1};
    return kelp_layer_conv2d(graph, name, x, out, &window, true);
}

static uint32_t classify(struct kelp_graph *graph, const char *name, uint32_t x)
{
    const struct kelp_shape *shape = kelp_graph_shape(graph, x);
    const struct kelp_shape flat = {.rank = 1,
                                    .dims = {shape->dims[0] * shape->dims[1] * shape->dims[2]}};
    return kelp_layer_linear(graph, name, kelp_graph_reshape(graph, "flatten", x, &flat), CLASSES,
                             true);
}

static struct kelp_sample_shape images(uint64_t channels, uint64_t side)
{
    return (struct kelp_sample_shape){.input_count = 1,
                                      .inputs = {{.rank = 3, .dims = {channels, side, side}}},
                                      .target = {.rank = 0, .vocab_count = 1, .vocab = {CLASSES}}};
}

static uint32_t build_convnet(struct kelp_graph *graph)
{
    struct kelp_shape target;
    const struct kelp_job job = {.model = {.classes = CLASSES}};
    const struct kelp_sample_shape shape = images(1, 14);
    return kelp__convnet_build(graph, &job, &shape, &target);
}

static uint32_t build_resnet18(struct kelp_graph *graph)
{
    struct kelp_shape target;
    const struct kelp_job job = {.model = {.classes = CLASSES}};
    const struct kelp_sample_shape shape = images(3, 40);
    return kelp__resnet18_build(graph, &job, &shape, &target);
}

/* A convolution's output as the model's. */
static uint32_t build_image_to_image(struct kelp_graph *graph)
{
    return conv(graph, "conv", image(graph, 3, 5, 4), 2);
}

static uint32_t build_dropout_between(struct kelp_graph *graph)
{
    uint32_t x = conv(graph, "conv1", image(graph, 2, 5, 4), 3);
    x = kelp_graph_dropout(graph, "dropout", kelp_graph_relu(graph, "relu", x), 0.3f);
    return classify(graph, "fc", conv(graph, "conv2", x, 2));
}

/* What follows element by element, and batch norm, stay as they are; pooling before any convolution
 * leaves the channels first, and fewer elements to be turned. */
static uint32_t build_all_as_is(struct kelp_graph *graph)
{
    const struct kelp_graph_window window = {.kernel = {2, 3}, .stride = {2, 1}, .padding = {1, 0}};
    uint32_t x = image(graph, 2, 9, 8);
    x = kelp_graph_average_pool(graph, "average", x, &window);
    x = kelp_graph_scale(graph, "scale", x, 1.5f);
    x = conv(graph, "conv", x, 3);
    x = kelp_layer_batch_norm(graph, "norm", x);
    const uint32_t gate = kelp_graph_sigmoid(graph, "gate", x);
    x = kelp_graph_multiply(graph, "product", kelp_graph_gelu(graph, "gelu", x), gate);
    x = kelp_graph_max_pool(graph, "max", x, &window);
    return classify(graph, "fc", x);
}

/* Of the input and of the convolution there is a copy each, whoever reads it. */
static uint32_t build_shared(struct kelp_graph *graph)
{
    const uint32_t x = image(graph, 2, 4, 4);
    const uint32_t a = conv(graph, "conv1", x, 2), b = conv(graph, "conv2", x, 2);
    const uint32_t sum = kelp_graph_add(graph, "sum", kelp_graph_add(graph, "residual", a, x), b);
    const uint32_t head = classify(graph, "fc1", sum);
    return kelp_graph_add(graph, "heads", head, classify(graph, "fc2", sum));
}

/* Read in one layout and in the other one. */
static uint32_t build_two_forms(struct kelp_graph *graph)
{
    const uint32_t x = conv(graph, "conv1", image(graph, 2, 4, 5), 3);
    const uint32_t early = classify(graph, "fc1", x);
    const uint32_t late = classify(graph, "fc2", conv(graph, "conv2", x, 1));
    return kelp_graph_add(graph, "heads", early, late);
}

/* Nothing but one channel, or one element a channel, where the layout changes. */
static uint32_t build_flat(struct kelp_graph *graph)
{
    const struct kelp_graph_window whole = {.kernel = {5, 6}, .stride = {1, 1}};
    const uint32_t x = conv(graph, "conv1", image(graph, 1, 5, 6), 4);
    const uint32_t mean = kelp_graph_average_pool(graph, "mean", x, &whole);
    return kelp_graph_add(graph, "heads", classify(graph, "fc1", mean),
                          classify(graph, "fc2", conv(graph, "conv2", x, 1)));
}

KELP_CASE("layouts", .timeout_s = 120)

/* Before dropout, which goes by the elements' order. */
KELP_TEST(convnet)
{
    expect(build_convnet, KELP_LOSS_NLL, 1, 1);
}

/* The samples. */
KELP_TEST(resnet18)
{
    expect(build_resnet18, KELP_LOSS_CROSS_ENTROPY, 1, 0);
}

KELP_TEST(an_output_of_images)
{
    expect(build_image_to_image, KELP_LOSS_MSE, 2, 1);
}

KELP_TEST(dropout_between_convolutions)
{
    expect(build_dropout_between, KELP_LOSS_MSE, 4, 3);
}

KELP_TEST(what_takes_images_as_they_are)
{
    expect(build_all_as_is, KELP_LOSS_MSE, 2, 1);
}

KELP_TEST(copies_are_shared)
{
    expect(build_shared, KELP_LOSS_MSE, 2, 1);
}

KELP_TEST(two_forms_of_one_value)
{
    expect(build_two_forms, KELP_LOSS_MSE, 2, 1);
}

KELP_TEST(flat_images)
{
    expect(build_flat, KELP_LOSS_MSE, 0, 0);
}

/* Without a GPU plans are a GPU's: ResNet18 is turned once there, too. */
KELP_TEST(plans_of_a_gpu)
{
    struct kelp_device *device = NULL;
    struct kelp_stream *stream = NULL;
    const struct kelp_graph_loss loss = {.kind = KELP_LOSS_CROSS_ENTROPY};
    const struct kelp_shape target = {.rank = 0};
    uint32_t copies = 0;
    ck_assert_int_eq(kelp_device_plan_create(&device, &error), KELP_OK);
    ck_assert_int_eq(device->table->stream_create(device, &stream, &error), KELP_OK);
    struct kelp_graph *graph = kelp_graph_create(stream, BATCH);
    const uint32_t output = build_resnet18(graph);
    ck_assert_msg(kelp_graph_finish(graph, output, &target, &loss, &error) == KELP_OK, "%s",
                  error.text);
    for (uint32_t i = 0; i < kelp_graph_layer_count(graph); i++) {
        struct kelp_graph_layer layer;
        kelp_graph_layer(graph, i, &layer);
        copies += strncmp(layer.operator_name, "channels_", strlen("channels_")) == 0;
    }
    ck_assert_uint_eq(copies, 1);
    kelp_graph_destroy(graph);
    device->table->stream_destroy(stream);
    device->table->destroy(device);
}

/* A copy is a layer for people to read, and takes memory. */
KELP_TEST(copies_are_counted)
{
    uint32_t copies = 0;
    struct kelp_graph_memory of_first, of_last;
    open_sides(build_dropout_between, KELP_LOSS_MSE);
    for (uint32_t i = 0; i < kelp_graph_layer_count(last.graph); i++) {
        struct kelp_graph_layer layer;
        kelp_graph_layer(last.graph, i, &layer);
        if (strcmp(layer.operator_name, "channels_last") == 0 && strcmp(layer.name, "image") == 0) {
            ck_assert_uint_eq(layer.shape.dims[0], 2);
            ck_assert_uint_eq(layer.shape.dims[2], 4);
            copies++;
        }
    }
    ck_assert_uint_eq(copies, 1);
    ck_assert_uint_eq(kelp_graph_layer_count(last.graph), kelp_graph_layer_count(first.graph) + 4);
    kelp_graph_memory(first.graph, &of_first);
    kelp_graph_memory(last.graph, &of_last);
    /* Of the image, of what goes into dropout (which takes the copy over, not the value itself) and
     * into the second convolution, and of what comes out of that. */
    ck_assert_uint_eq(of_last.values - of_first.values,
                      BATCH * UINT64_C(20) * (2 + 3 - 3 + 3 + 2) * sizeof(float));
    close_side(&first);
    close_side(&last);
}

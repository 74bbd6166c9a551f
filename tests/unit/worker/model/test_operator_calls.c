/*
 * How often a step of a model calls the device: what a GPU has to be told one by one. A layer's
 * product, bias and activation are one call, and so is a whole sequence of an LSTM.
 */
#include <stdlib.h>
#include <string.h>

#include "common/training/plan.h"
#include "tests/lib/fake/fake_operators.h"
#include "tests/lib/suite.h"
#include "worker/model/graph/graph.h"
#include "worker/model/model_build.h"

#define SAMPLES 3u

/* The CPU's table with each operator counted, but for those that an operator itself calls. */
static const struct kelp_device_table *cpu;
static struct kelp_device_table counting;
static uint32_t calls[FAKE_OPERATOR_COUNT], depth;

static uint32_t enter(enum fake_operator_index index)
{
    calls[index] += depth == 0;
    return ++depth;
}

#define COUNTED(name, type)                                                                        \
    static void counted_##name(struct kelp_stream *stream, const struct type *arguments)           \
    {                                                                                              \
        (void)enter(FAKE_OPERATOR_##name);                                                         \
        cpu->name(stream, arguments);                                                              \
        depth--;                                                                                   \
    }
FAKE_STRUCT_OPERATORS(COUNTED)

static void counted_fill(struct kelp_stream *stream, float *values, float value, uint64_t count)
{
    (void)enter(FAKE_OPERATOR_fill);
    cpu->fill(stream, values, value, count);
    depth--;
}

static void counted_axpy(struct kelp_stream *stream, float *y, float alpha, const float *x,
                         uint64_t count)
{
    (void)enter(FAKE_OPERATOR_axpy);
    cpu->axpy(stream, y, alpha, x, count);
    depth--;
}

static void counted_add(struct kelp_stream *stream, float *y, const float *a, const float *b,
                        uint64_t count)
{
    (void)enter(FAKE_OPERATOR_add);
    cpu->add(stream, y, a, b, count);
    depth--;
}

static void counted_subtract(struct kelp_stream *stream, float *y, const float *a, const float *b,
                             uint64_t count)
{
    (void)enter(FAKE_OPERATOR_subtract);
    cpu->subtract(stream, y, a, b, count);
    depth--;
}

static struct kelp_device *device;
static struct kelp_stream *stream;

static void setup(void)
{
    struct kelp_error error = {KELP_OK, ""};
    ck_assert_int_eq(kelp_device_cpu_create(1, &device, &error), KELP_OK);
    cpu = device->table;
    counting = *cpu;
#define COUNT_ENTRY(name, type) counting.name = counted_##name;
    FAKE_STRUCT_OPERATORS(COUNT_ENTRY)
    counting.fill = counted_fill;
    counting.axpy = counted_axpy;
    counting.add = counted_add;
    counting.subtract = counted_subtract;
    device->table = &counting;
    ck_assert_int_eq(counting.stream_create(device, &stream, &error), KELP_OK);
}

static void teardown(void)
{
    counting.stream_destroy(stream);
    counting.destroy(device);
}

static struct kelp_sample_tensor numbers(uint32_t rank, uint64_t a, uint64_t b)
{
    return (struct kelp_sample_tensor){.rank = rank, .dims = {a, b}};
}

static struct kelp_job job_of(enum kelp_loss_kind loss)
{
    struct kelp_job job = {.seed = 3};
    job.model.kernel_size = 25;
    job.model.d_model = 16;
    job.model.heads = 4;
    job.model.embedding_dim = 4;
    job.model.hidden[0] = job.model.hidden[1] = 8;
    job.model.hidden_count = 2;
    job.train.loss = loss;
    return job;
}

static float *drawn(uint64_t count, float scale)
{
    float *values = calloc(count + 1, sizeof(*values));
    ck_assert_ptr_nonnull(values);
    for (uint64_t i = 0; i < count; i++) {
        values[i] = scale * ((float)(i * 2654435761u % 1000) / 500.0f - 1.0f);
    }
    return values;
}

/* All calls of one training step; what each operator's are is in `calls`. */
static uint32_t calls_of(kelp__model_build *build, const struct kelp_job *job,
                         const struct kelp_sample_shape *shape)
{
    struct kelp_error error = {KELP_OK, ""};
    struct kelp_graph *graph = kelp_graph_create(stream, SAMPLES);
    struct kelp_shape target;
    uint64_t count = 0, offset = 0;
    uint32_t all = 0;
    const uint32_t output = build(graph, job, shape, &target);
    const struct kelp_graph_loss loss = {.kind = job->train.loss,
                                         .quantiles = job->train.quantiles,
                                         .quantile_count = job->train.quantile_count};
    ck_assert_msg(kelp_graph_finish(graph, output, &target, &loss, &error) == KELP_OK, "%s",
                  error.text);
    const uint32_t tensors = kelp_graph_parameter_count(graph);
    struct kelp_tensor tensor;
    for (uint32_t i = 0; i < tensors; i++) {
        kelp_graph_parameter_tensor(graph, i, &tensor);
        count += tensor.elem_count;
    }
    float *weights = drawn(count, 0.3f), *gradient = drawn(count, 0.0f);
    for (uint32_t i = 0; i < tensors; i++) {
        kelp_graph_parameter_tensor(graph, i, &tensor);
        kelp_graph_bind(graph, i, weights + offset, gradient + offset);
        offset += tensor.elem_count;
    }
    float *input = drawn(SAMPLES * kelp_graph_record_count(graph), 0.0f);
    float *targets = drawn(SAMPLES * kelp_sample_target_count(shape), 1.0f);
    double sums[KELP_METRIC_SUM_COUNT];
    const struct kelp_graph_run run = {.mode = KELP_GRAPH_TRAIN,
                                       .input = input,
                                       .target = targets,
                                       .count = SAMPLES,
                                       .sums = sums,
                                       .batch_total = SAMPLES};
    memset(calls, 0, sizeof(calls));
    ck_assert_msg(kelp_graph_run(graph, &run, &error) == KELP_OK, "%s", error.text);
    for (uint32_t i = 0; i < FAKE_OPERATOR_COUNT; i++) {
        all += calls[i];
    }
    free(input);
    free(targets);
    free(weights);
    free(gradient);
    kelp_graph_destroy(graph);
    return all;
}

KELP_CASE("operator_calls", .timeout_s = 60, .setup = setup, .teardown = teardown)

KELP_TEST(mlp)
{
    const struct kelp_job job = job_of(KELP_LOSS_MSE);
    const struct kelp_sample_shape shape = {
        .input_count = 1, .inputs = {numbers(1, 6, 0)}, .target = numbers(1, 2, 0)};
    ck_assert_uint_eq(calls_of(kelp__mlp_build, &job, &shape), 7);
}

/* The model of the hourly taxi rides: two LSTMs, of 63 and of 168 steps. */
KELP_TEST(tft)
{
    struct kelp_job job = job_of(KELP_LOSS_QUANTILE);
    const double quantiles[] = {0.1, 0.5, 0.9};
    memcpy(job.train.quantiles, quantiles, sizeof(quantiles));
    job.train.quantile_count = 3;
    const struct kelp_sample_shape shape = {.input_count = 4,
                                            .inputs = {{.vocab_count = 1, .vocab = {73}},
                                                       numbers(2, 63, 6),
                                                       numbers(1, 63, 0),
                                                       numbers(2, 168, 6)},
                                            .target = numbers(1, 168, 0)};
    ck_assert_uint_eq(calls_of(kelp__tft_build, &job, &shape), 445);
}

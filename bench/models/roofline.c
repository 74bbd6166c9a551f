#include "bench/models/roofline.h"

#include <stdio.h>
#include <stdlib.h>

#include <check.h>

#include "common/base/clock.h"
#include "tests/lib/fake/fake_operators.h"

#define CONVOLUTIONS_MAX 128
#define PRODUCT_SIZE     8192u
#define PRODUCT_SIZE_MIN 512u
#define COPY_COUNT       (64u << 20) /* floats, as the large product has: more than a cache holds */
#define COPY_COUNT_MIN   (1u << 18)
#define LONG_SECONDS     0.005
#define ROUNDS           5
#define RUNS             4

struct roofline roofline;

static bool counting;
static const struct kelp_device_table *real;
static struct kelp_device_table counted;
static struct {
    const struct kelp_conv2d *conv;
    struct kelp_conv2d_shape shape;
} convolutions[CONVOLUTIONS_MAX];
static unsigned convolution_count;

/* ---- the device's speeds ---- */

struct measured {
    struct kelp_stream *stream;
    float *from, *with, *to;
    uint64_t size;
};

static void run_product(const struct measured *with)
{
    const uint32_t size = (uint32_t)with->size;
    const struct kelp_matmul product = {.m = size,
                                        .n = size,
                                        .k = size,
                                        .a = with->from,
                                        .lda = size,
                                        .b = with->with,
                                        .ldb = size,
                                        .c = with->to,
                                        .ldc = size};
    with->stream->table->matmul(with->stream, &product);
}

static void run_copy(const struct measured *with)
{
    const struct kelp_copy copy = {.rank = 1,
                                   .dims = {with->size},
                                   .x = with->from,
                                   .x_strides = {1},
                                   .y = with->to,
                                   .y_strides = {1},
                                   .scale = 1.0f};
    with->stream->table->copy(with->stream, &copy);
}

/* Seconds of one run, the best of several rounds of RUNS. */
static double best_of(const struct measured *with, void (*run)(const struct measured *with))
{
    struct kelp_error error = {KELP_OK, ""};
    double best = 0;
    for (unsigned round = 0; round < ROUNDS; round++) {
        const uint64_t begin_us = kelp_clock_us();
        for (unsigned i = 0; i < RUNS; i++) {
            run(with);
        }
        ck_assert_msg(with->stream->table->wait(with->stream, &error) == KELP_OK, "%s", error.text);
        const double seconds = 1e-6 * (double)(kelp_clock_us() - begin_us) / RUNS;
        best = round == 0 || seconds < best ? seconds : best;
    }
    return best;
}

/* A slow device is measured with less. */
static double best_of_largest(struct measured *with, void (*run)(const struct measured *with),
                              uint64_t size_max)
{
    double seconds = best_of(with, run);
    while (with->size < size_max && seconds < LONG_SECONDS) {
        with->size *= 2;
        seconds = best_of(with, run);
    }
    return seconds;
}

static float *allocate(struct measured *with, uint64_t count)
{
    struct kelp_device *device = with->stream->device;
    struct kelp_error error = {KELP_OK, ""};
    void *memory = NULL;
    ck_assert_msg(device->table->alloc(device, count * sizeof(float), &memory, &error) == KELP_OK,
                  "%s", error.text);
    with->stream->table->fill(with->stream, memory, 0.5f, count);
    return memory;
}

void roofline_measure(struct kelp_stream *stream)
{
    struct measured with = {.stream = stream};
    with.from = allocate(&with, COPY_COUNT);
    with.with = allocate(&with, COPY_COUNT);
    with.to = allocate(&with, COPY_COUNT);
    with.size = PRODUCT_SIZE_MIN;
    const double product_s = best_of_largest(&with, run_product, PRODUCT_SIZE);
    const double size = (double)with.size;
    roofline.flop_s = 2 * size * size * size / product_s;
    with.size = COPY_COUNT_MIN;
    const double copy_s = best_of_largest(&with, run_copy, COPY_COUNT);
    roofline.byte_s = 2.0 * (double)with.size * sizeof(float) / copy_s;
    stream->table->free(stream->device, with.from);
    stream->table->free(stream->device, with.with);
    stream->table->free(stream->device, with.to);
}

/* ---- costs ---- */

/* A part of an operator: its multiplications and additions, and its floats read or written. */
static void add(double flops, double values)
{
    const double computing_s = flops / roofline.flop_s;
    const double moving_s = values * sizeof(float) / roofline.byte_s;
    roofline.seconds += computing_s > moving_s ? computing_s : moving_s;
}

/* How often an output is touched. */
static double times(enum kelp_write write)
{
    return write == KELP_ACCUMULATE ? 2 : 1;
}

/* ---- products ---- */

static void cost_matmul(const struct kelp_matmul *p)
{
    const double batch = p->batch > 0 ? p->batch : 1;
    add(2.0 * p->m * p->n * p->k * batch, (p->stride_a > 0 ? batch : 1) * p->m * p->k +
                                              (p->stride_b > 0 ? batch : 1) * p->k * p->n +
                                              batch * p->m * p->n * times(p->write));
}

static void cost_linear(const struct kelp_linear *p)
{
    const double rows = p->rows, in = p->in, out = p->out;
    const bool keeps_sums = p->activated && p->activation == KELP_UNARY_GELU;
    add(2 * rows * in * out, rows * in + in * out + rows * out * (keeps_sums ? 2 : 1));
}

static void cost_linear_gradient(const struct kelp_linear *p)
{
    const double rows = p->rows, in = p->in, out = p->out;
    if (p->activated) {
        add(0, 3 * rows * out);
    }
    if (p->dx) {
        add(2 * rows * in * out, rows * out + in * out + rows * in * times(p->write_x));
    }
    if (p->dweight) {
        add(2 * rows * in * out, rows * out + rows * in + in * out * times(p->write_weight));
    }
    if (p->dbias) {
        add(0, rows * out + out * times(p->write_bias));
    }
}

static double lstm_flops(const struct kelp_lstm *p)
{
    return 2.0 * p->batch * p->time * 4 * p->hidden * (p->in + (double)p->hidden);
}

static double lstm_values(const struct kelp_lstm *p)
{
    const double steps = (double)p->batch * p->time;
    return steps * p->in + 4.0 * p->hidden * (p->in + (double)p->hidden) +
           steps * p->hidden * (2 + 5);
}

static void cost_lstm(const struct kelp_lstm *p)
{
    add(lstm_flops(p), lstm_values(p));
}

static void cost_lstm_gradient(const struct kelp_lstm *p)
{
    add(2 * lstm_flops(p), 2 * lstm_values(p));
}

static void add_conv2d(const struct kelp_conv2d_run *p, bool gradient)
{
    for (unsigned i = 0; i < convolution_count; i++) {
        const struct kelp_conv2d_shape *shape = &convolutions[i].shape;
        const struct kelp_window *window = &shape->window;
        if (convolutions[i].conv != p->conv) {
            continue;
        }
        const double output = (double)window->output[0] * window->output[1] * shape->channels_out;
        const double input = (double)window->input[0] * window->input[1] * window->channels;
        const double weight = (double)shape->channels_out * window->channels / shape->groups *
                              window->kernel[0] * window->kernel[1];
        const double flops = 2.0 * p->samples * output * weight / shape->channels_out;
        const double x = input * p->samples, y = output * p->samples;
        if (!gradient) {
            add(flops, x + weight + y);
            return;
        }
        if (p->dx) {
            add(flops, y + weight + x * times(p->write_x));
        }
        if (p->dweight) {
            add(flops, y + x + weight * times(p->write_weight));
        }
        if (p->dbias) {
            add(0, y);
        }
        return;
    }
    ck_abort_msg("a convolution that was not created");
}

static void cost_conv2d(const struct kelp_conv2d_run *p)
{
    add_conv2d(p, false);
}

static void cost_conv2d_gradient(const struct kelp_conv2d_run *p)
{
    add_conv2d(p, true);
}

/* ---- what moves data ---- */

static double matrix(uint64_t rows, uint64_t columns)
{
    return (double)rows * (double)columns;
}

static void cost_bias_add(const struct kelp_bias *p)
{
    add(0, 2 * matrix(p->rows, p->columns));
}

static void cost_bias_gradient(const struct kelp_bias_gradient *p)
{
    add(0, matrix(p->rows, p->columns));
}

static void cost_moving_average(const struct kelp_moving_average *p)
{
    add(0, 2 * matrix(p->rows, p->length));
}

static void cost_moving_average_gradient(const struct kelp_moving_average *p)
{
    add(0, matrix(p->rows, p->length) * (1 + times(p->write)));
}

static void cost_transpose(const struct kelp_transpose *p)
{
    add(0, matrix(p->rows, p->columns) * p->batch * (1 + times(p->write)));
}

static void cost_unary(const struct kelp_unary *p)
{
    add(0, 2.0 * (double)p->count);
}

static void cost_unary_gradient(const struct kelp_unary_gradient *p)
{
    add(0, (double)p->count * (2 + times(p->write)));
}

static void cost_multiply(const struct kelp_multiply *p)
{
    add(0, (double)p->count * (2 + times(p->write)));
}

static void cost_copy(const struct kelp_copy *p)
{
    double read = 1, written = 1;
    for (uint32_t i = 0; i < p->rank; i++) {
        read *= p->x_strides[i] > 0 ? (double)p->dims[i] : 1;
        written *= (double)p->dims[i];
    }
    add(0, read + written * times(p->write));
}

static void cost_reduce(const struct kelp_reduce *p)
{
    add(0, matrix(p->outer, p->inner) * ((double)p->middle + times(p->write)));
}

static void cost_weighted_sum(const struct kelp_weighted_sum *p)
{
    add(0, matrix(p->rows, p->count) * (1 + (double)p->width) + matrix(p->rows, p->width));
}

static void cost_weighted_sum_gradient(const struct kelp_weighted_sum *p)
{
    const double weights = matrix(p->rows, p->count), x = weights * p->width;
    add(0, matrix(p->rows, p->width) + (p->dweights ? x + weights * times(p->write_weights) : 0) +
               (p->dx ? weights + x * times(p->write_x) : 0));
}

static void cost_softmax(const struct kelp_softmax *p)
{
    add(0, 2 * matrix(p->rows, p->columns));
}

static void cost_softmax_gradient(const struct kelp_softmax *p)
{
    add(0, matrix(p->rows, p->columns) * (2 + times(p->write)));
}

static void cost_glu(const struct kelp_glu *p)
{
    add(0, 3 * matrix(p->rows, p->width));
}

static void cost_glu_gradient(const struct kelp_glu *p)
{
    add(0, matrix(p->rows, p->width) * (3 + 2 * times(p->write)));
}

static void cost_layer_norm(const struct kelp_layer_norm *p)
{
    add(0, 2 * matrix(p->rows, p->width));
}

static void cost_layer_norm_gradient(const struct kelp_layer_norm *p)
{
    add(0, matrix(p->rows, p->width) * (2 + (p->dx ? times(p->write_x) : 0)));
}

static void cost_batch_norm(const struct kelp_batch_norm *p)
{
    add(0, matrix(p->samples, p->channels) * (double)p->inner * (p->training ? 3 : 2));
}

static void cost_batch_norm_gradient(const struct kelp_batch_norm *p)
{
    add(0,
        matrix(p->samples, p->channels) * (double)p->inner * (p->dx ? 4 + times(p->write_x) : 2));
}

static void cost_dropout(const struct kelp_dropout *p)
{
    add(0, matrix(p->samples, p->elements) * (1 + times(p->write)));
}

static void cost_embedding(const struct kelp_embedding *p)
{
    add(0, matrix(p->rows, 1 + 2 * (uint64_t)p->width));
}

static void cost_embedding_gradient(const struct kelp_embedding *p)
{
    const double table = matrix(p->vocab, p->width);
    add(0, matrix(p->rows, 1 + (uint64_t)p->width) + table * times(p->write));
}

static void cost_lstm_cell(const struct kelp_lstm_cell *p)
{
    add(0, 11 * matrix(p->batch, p->hidden)); /* gates twice, three states */
}

static void cost_lstm_cell_gradient(const struct kelp_lstm_cell *p)
{
    add(0, 13 * matrix(p->batch, p->hidden)); /* gates, dgates, both c, dh, dc twice */
}

static double windows_in(const struct kelp_window *window, uint32_t samples)
{
    return matrix(window->input[0], window->input[1]) * window->channels * samples;
}

static double windows_out(const struct kelp_window *window, uint32_t samples)
{
    return matrix(window->output[0], window->output[1]) * window->channels * samples;
}

static void cost_max_pool(const struct kelp_max_pool *p)
{
    add(0, windows_in(&p->window, p->samples) + 2 * windows_out(&p->window, p->samples));
}

static void cost_max_pool_gradient(const struct kelp_max_pool *p)
{
    add(0, windows_in(&p->window, p->samples) * times(p->write) +
               2 * windows_out(&p->window, p->samples));
}

static void cost_average_pool(const struct kelp_average_pool *p)
{
    add(0, windows_in(&p->window, p->samples) + windows_out(&p->window, p->samples));
}

static void cost_average_pool_gradient(const struct kelp_average_pool *p)
{
    add(0,
        windows_in(&p->window, p->samples) * times(p->write) + windows_out(&p->window, p->samples));
}

static void cost_optimizer(const struct kelp_optimizer_run *p)
{
    double slots = 0;
    while (slots < KELP_OPTIMIZER_SLOTS_MAX && p->slots[(unsigned)slots]) {
        slots++;
    }
    add(0, (double)p->count * (3 + 2 * slots));
}

static void cost_criterion(const struct kelp_criterion *p)
{
    add(0, matrix(p->samples, p->elements) * (p->gradient ? 2 : 1) +
               matrix(p->samples, p->target_elements));
}

/* ---- the table that counts ---- */

static void counted_fill(struct kelp_stream *stream, float *values, float value, uint64_t count)
{
    roofline.operators++;
    add(0, (double)count);
    real->fill(stream, values, value, count);
}

static void counted_axpy(struct kelp_stream *stream, float *y, float alpha, const float *x,
                         uint64_t count)
{
    roofline.operators++;
    add(0, 3.0 * (double)count);
    real->axpy(stream, y, alpha, x, count);
}

static void counted_add(struct kelp_stream *stream, float *y, const float *a, const float *b,
                        uint64_t count)
{
    roofline.operators++;
    add(0, 3.0 * (double)count);
    real->add(stream, y, a, b, count);
}

static void counted_subtract(struct kelp_stream *stream, float *y, const float *a, const float *b,
                             uint64_t count)
{
    roofline.operators++;
    add(0, 3.0 * (double)count);
    real->subtract(stream, y, a, b, count);
}

/* All the others take one struct. */
#define COUNTED(name, type)                                                                        \
    static void counted_##name(struct kelp_stream *stream, const struct type *p)                   \
    {                                                                                              \
        roofline.operators++;                                                                      \
        cost_##name(p);                                                                            \
        real->name(stream, p);                                                                     \
    }
FAKE_STRUCT_OPERATORS(COUNTED)

static kelp_status counted_conv2d_create(struct kelp_device *device,
                                         const struct kelp_conv2d_shape *shape,
                                         struct kelp_conv2d **ret, struct kelp_error *reterr)
{
    const kelp_status status = real->conv2d_create(device, shape, ret, reterr);
    if (status == KELP_OK) {
        ck_assert_uint_lt(convolution_count, CONVOLUTIONS_MAX);
        convolutions[convolution_count].conv = *ret;
        convolutions[convolution_count++].shape = *shape;
    }
    return status;
}

void roofline_count(bool on)
{
    counting = on;
}

/* The linker puts this in the place of kelp_device_cuda_create(). */
kelp_status __real_kelp_device_cuda_create(uint32_t index, struct kelp_device **ret,
                                           struct kelp_error *reterr);
kelp_status __wrap_kelp_device_cuda_create(uint32_t index, struct kelp_device **ret,
                                           struct kelp_error *reterr);
kelp_status __wrap_kelp_device_cuda_create(uint32_t index, struct kelp_device **ret,
                                           struct kelp_error *reterr)
{
    const kelp_status status = __real_kelp_device_cuda_create(index, ret, reterr);
    if (status != KELP_OK || !counting) {
        return status;
    }
    real = (*ret)->table;
    counted = *real;
#define ENTRY(name, ...) counted.name = counted_##name;
    KELP_PRODUCT_OPERATORS(ENTRY)
    KELP_OPERATORS(ENTRY)
#undef ENTRY
    counted.conv2d = counted_conv2d;
    counted.conv2d_gradient = counted_conv2d_gradient;
    counted.conv2d_create = counted_conv2d_create;
    convolution_count = 0;
    roofline.seconds = 0;
    roofline.operators = 0;
    (*ret)->table = &counted;
    return KELP_OK;
}

/*
 * The CPU device. A stream runs each operator at once in the caller's thread; matrix products go to
 * OpenBLAS, everything else to the loops that fit the processor.
 */
#include "kernels/device.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "kernels/cpu/conv2d.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/loops.h"

struct cpu_device {
    struct kelp_device base;
    struct kelp_gemm gemm;
};

struct cpu_stream {
    struct kelp_stream base;
    const struct kelp_loops *loops;
    /* What wait() reports: why a matrix product failed, or the latest number that is no class or no
     * row of a table. */
    kelp_status product_failed;
    struct kelp_loop_fault fault;
};

static const struct kelp_loops *all_loops_of(struct kelp_stream *stream)
{
    return ((struct cpu_stream *)stream)->loops;
}

static const struct kelp_operator_loops *loops_of(struct kelp_stream *stream)
{
    return all_loops_of(stream)->operators;
}

static const struct kelp_window_loops *windows_of(struct kelp_stream *stream)
{
    return all_loops_of(stream)->window;
}

static void device_destroy(struct kelp_device *device)
{
    free(device);
}

static void device_describe(const struct kelp_device *device, char text[KELP_COMPUTE_KIND_SIZE])
{
    char libraries[KELP_GEMM_TEXT_SIZE];
    kelp__gemm_describe(libraries);
    struct utsname host = {.machine = "?"};
    (void)uname(&host);
    (void)snprintf(text, KELP_COMPUTE_KIND_SIZE, "cpu %.16s %s %s threads=%u", host.machine,
                   kelp__loops()->name, libraries,
                   ((const struct cpu_device *)device)->gemm.threads);
}

static kelp_status device_alloc(struct kelp_device *device, size_t bytes, void **ret,
                                struct kelp_error *reterr)
{
    (void)device;
    const size_t rounded = (bytes + KELP_DEVICE_ALIGN - 1) / KELP_DEVICE_ALIGN * KELP_DEVICE_ALIGN;
    void *memory = rounded < bytes ? NULL
                                   : aligned_alloc(KELP_DEVICE_ALIGN,
                                                   rounded != 0 ? rounded : KELP_DEVICE_ALIGN);
    if (memory == NULL) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "cannot allocate %zu bytes", bytes);
    }
    *ret = memory;
    return KELP_OK;
}

static void device_free(struct kelp_device *device, void *memory)
{
    (void)device;
    free(memory);
}

static kelp_status stream_create(struct kelp_device *device, struct kelp_stream **ret,
                                 struct kelp_error *reterr)
{
    struct cpu_stream *stream = calloc(1, sizeof(*stream));
    if (stream == NULL) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "cannot allocate a stream");
    }
    stream->base = (struct kelp_stream){.table = device->table, .device = device};
    stream->loops = kelp__loops();
    *ret = &stream->base;
    return KELP_OK;
}

static void stream_destroy(struct kelp_stream *stream)
{
    free(stream);
}

static kelp_status stream_wait(struct kelp_stream *base, struct kelp_error *reterr)
{
    struct cpu_stream *stream = (struct cpu_stream *)base;
    const kelp_status failed = stream->product_failed;
    stream->product_failed = KELP_OK;
    if (failed == KELP_ERR_DEVICE) {
        return kelp_fail(reterr, failed,
                         "a matrix product has more than %d rows, columns or elements in a row",
                         INT_MAX);
    }
    if (failed != KELP_OK) {
        return kelp_fail(reterr, failed, "a matrix product found no memory");
    }
    const struct kelp_loop_fault fault = stream->fault;
    stream->fault = (struct kelp_loop_fault){.what = KELP_LOOP_FINE};
    switch (fault.what) {
    case KELP_LOOP_FINE:
        break;
    case KELP_LOOP_BAD_ID:
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "category %g: the embedding's table has rows 0 to %llu",
                         (double)fault.value, (unsigned long long)fault.limit - 1);
    case KELP_LOOP_BAD_CLASS:
        return kelp_fail(reterr, KELP_ERR_INVALID, "class %g: the model has classes 0 to %llu",
                         (double)fault.value, (unsigned long long)fault.limit - 1);
    }
    return KELP_OK;
}

static void copy_bytes(struct kelp_stream *stream, void *to, const void *from, size_t bytes)
{
    (void)stream;
    if (bytes != 0) {
        memcpy(to, from, bytes);
    }
}

static void fill(struct kelp_stream *stream, float *values, float value, uint64_t count)
{
    loops_of(stream)->fill(values, value, count);
}

static void axpy(struct kelp_stream *stream, float *y, float alpha, const float *x, uint64_t count)
{
    loops_of(stream)->axpy(y, alpha, x, count);
}

static void add(struct kelp_stream *stream, float *y, const float *a, const float *b,
                uint64_t count)
{
    loops_of(stream)->add(y, a, b, count);
}

static void subtract(struct kelp_stream *stream, float *y, const float *a, const float *b,
                     uint64_t count)
{
    loops_of(stream)->subtract(y, a, b, count);
}

/* The first failure is the one that wait() reports. */
static bool note(struct kelp_stream *stream, kelp_status status)
{
    struct cpu_stream *cpu = (struct cpu_stream *)stream;
    if (cpu->product_failed == KELP_OK) {
        cpu->product_failed = status;
    }
    return status == KELP_OK;
}

static const struct kelp_gemm *gemm_of(struct kelp_stream *stream)
{
    return &((const struct cpu_device *)stream->device)->gemm;
}

static void matmul(struct kelp_stream *stream, const struct kelp_matmul *p)
{
    const uint32_t batch = p->batch != 0 ? p->batch : 1;
    struct kelp_matmul one = *p;
    for (uint32_t i = 0; i < batch; i++) {
        if (!note(stream, kelp__gemm_run(gemm_of(stream), &one))) {
            return;
        }
        one.a += p->stride_a;
        one.b += p->stride_b;
        one.c += p->stride_c;
    }
}

static void bias_add(struct kelp_stream *stream, const struct kelp_bias *bias)
{
    loops_of(stream)->bias_add(bias);
}

static void bias_gradient(struct kelp_stream *stream, const struct kelp_bias_gradient *gradient)
{
    loops_of(stream)->bias_gradient(gradient);
}

static void relu(struct kelp_stream *stream, float *y, const float *x, uint64_t count)
{
    loops_of(stream)->relu(y, x, count);
}

static void relu_gradient(struct kelp_stream *stream, float *dx, const float *y, const float *dy,
                          uint64_t count, enum kelp_write write)
{
    loops_of(stream)->relu_gradient(dx, y, dy, count, write);
}

static void moving_average(struct kelp_stream *stream, const struct kelp_moving_average *average)
{
    if (average->length != 0) {
        loops_of(stream)->moving_average(average);
    }
}

static void moving_average_gradient(struct kelp_stream *stream,
                                    const struct kelp_moving_average *average)
{
    if (average->length != 0) {
        loops_of(stream)->moving_average_gradient(average);
    }
}

static void transpose(struct kelp_stream *stream, const struct kelp_transpose *transpose)
{
    loops_of(stream)->transpose(transpose);
}

static void max_pool(struct kelp_stream *stream, const struct kelp_max_pool *pool)
{
    windows_of(stream)->max_pool(pool);
}

static void max_pool_gradient(struct kelp_stream *stream, const struct kelp_max_pool *pool)
{
    windows_of(stream)->max_pool_gradient(pool);
}

static void average_pool(struct kelp_stream *stream, const struct kelp_average_pool *pool)
{
    windows_of(stream)->average_pool(pool);
}

static void average_pool_gradient(struct kelp_stream *stream, const struct kelp_average_pool *pool)
{
    windows_of(stream)->average_pool_gradient(pool);
}

static kelp_status conv2d_create(struct kelp_device *device, const struct kelp_conv2d_shape *shape,
                                 struct kelp_conv2d **ret, struct kelp_error *reterr)
{
    (void)device;
    return kelp__conv2d_create(shape, ret, reterr);
}

static void conv2d(struct kelp_stream *stream, const struct kelp_conv2d_run *run)
{
    const struct kelp_conv2d_context context = {gemm_of(stream), windows_of(stream), run};
    (void)note(stream, kelp__conv2d_forward(&context));
}

static void conv2d_gradient(struct kelp_stream *stream, const struct kelp_conv2d_run *run)
{
    const struct kelp_conv2d_context context = {gemm_of(stream), windows_of(stream), run};
    (void)note(stream, kelp__conv2d_gradient(&context));
}

/* Operators that are a loop and nothing else; the second kind may meet a number that is not one of
 * those it can take. */
#define LOOP(table, name, arguments)                                                               \
    static void name(struct kelp_stream *stream, const struct arguments *p)                        \
    {                                                                                              \
        all_loops_of(stream)->table->name(p);                                                      \
    }
#define LOOP_WITH_FAULT(table, name, arguments)                                                    \
    static void name(struct kelp_stream *stream, const struct arguments *p)                        \
    {                                                                                              \
        all_loops_of(stream)->table->name(p, &((struct cpu_stream *)stream)->fault);               \
    }

LOOP(activation, unary, kelp_unary)
LOOP(activation, unary_gradient, kelp_unary_gradient)
LOOP(activation, softmax, kelp_softmax)
LOOP(activation, softmax_gradient, kelp_softmax)
LOOP(activation, glu, kelp_glu)
LOOP(activation, glu_gradient, kelp_glu)
LOOP(activation, lstm_cell, kelp_lstm_cell)
LOOP(activation, lstm_cell_gradient, kelp_lstm_cell)
LOOP(shape, multiply, kelp_multiply)
LOOP(shape, copy, kelp_copy)
LOOP(shape, reduce, kelp_reduce)
LOOP(shape, weighted_sum, kelp_weighted_sum)
LOOP(shape, weighted_sum_gradient, kelp_weighted_sum)
LOOP(norm, layer_norm, kelp_layer_norm)
LOOP(norm, layer_norm_gradient, kelp_layer_norm)
LOOP(norm, batch_norm, kelp_batch_norm)
LOOP(norm, batch_norm_gradient, kelp_batch_norm)
LOOP(dropout, dropout, kelp_dropout)
LOOP_WITH_FAULT(shape, embedding, kelp_embedding)
LOOP_WITH_FAULT(shape, embedding_gradient, kelp_embedding)
LOOP_WITH_FAULT(criterion, criterion, kelp_criterion)

static const struct kelp_device_table cpu_table = {
    .name = "cpu",
    .host_memory = true,
    .destroy = device_destroy,
    .describe = device_describe,
    .alloc = device_alloc,
    .free = device_free,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .wait = stream_wait,
    .copy_in = copy_bytes,
    .copy_out = copy_bytes,
    .fill = fill,
    .axpy = axpy,
    .add = add,
    .subtract = subtract,
    .matmul = matmul,
    .bias_add = bias_add,
    .bias_gradient = bias_gradient,
    .relu = relu,
    .relu_gradient = relu_gradient,
    .moving_average = moving_average,
    .moving_average_gradient = moving_average_gradient,
    .transpose = transpose,
    .unary = unary,
    .unary_gradient = unary_gradient,
    .softmax = softmax,
    .softmax_gradient = softmax_gradient,
    .glu = glu,
    .glu_gradient = glu_gradient,
    .lstm_cell = lstm_cell,
    .lstm_cell_gradient = lstm_cell_gradient,
    .multiply = multiply,
    .copy = copy,
    .reduce = reduce,
    .weighted_sum = weighted_sum,
    .weighted_sum_gradient = weighted_sum_gradient,
    .layer_norm = layer_norm,
    .layer_norm_gradient = layer_norm_gradient,
    .batch_norm = batch_norm,
    .batch_norm_gradient = batch_norm_gradient,
    .dropout = dropout,
    .embedding = embedding,
    .embedding_gradient = embedding_gradient,
    .criterion = criterion,
    .max_pool = max_pool,
    .max_pool_gradient = max_pool_gradient,
    .average_pool = average_pool,
    .average_pool_gradient = average_pool_gradient,
    .conv2d_create = conv2d_create,
    .conv2d_destroy = kelp__conv2d_destroy,
    .conv2d_workspace = kelp__conv2d_workspace,
    .conv2d = conv2d,
    .conv2d_gradient = conv2d_gradient,
};

kelp_status kelp_device_cpu_create(uint32_t threads, struct kelp_device **ret,
                                   struct kelp_error *reterr)
{
    if (threads == 0 || threads > INT_MAX) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "%u threads: at least one is needed", threads);
    }
    struct kelp_gemm gemm;
    const kelp_status status = kelp__gemm_init(&gemm, threads, reterr);
    if (status != KELP_OK) {
        return status;
    }
    struct cpu_device *device = calloc(1, sizeof(*device));
    if (device == NULL) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "cannot allocate the CPU device");
    }
    device->base.table = &cpu_table;
    device->gemm = gemm;
    *ret = &device->base;
    return KELP_OK;
}

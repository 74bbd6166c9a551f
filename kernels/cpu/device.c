/*
 * The CPU device. A stream runs each operator at once in the caller's thread; matrix products go to
 * OpenBLAS, everything else to the loops that fit the processor.
 */
#include "kernels/device.h"

#include <cblas.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "kernels/cpu/conv2d.h"
#include "kernels/cpu/loops.h"

struct cpu_device {
    struct kelp_device base;
    uint32_t threads;
};

struct cpu_stream {
    struct kelp_stream base;
    const struct kelp_operator_loops *loops;
    const struct kelp_window_loops *windows;
    bool too_large; /* a matrix product whose sizes OpenBLAS cannot take; wait() reports it */
};

static const struct kelp_operator_loops *loops_of(struct kelp_stream *stream)
{
    return ((struct cpu_stream *)stream)->loops;
}

static const struct kelp_window_loops *windows_of(struct kelp_stream *stream)
{
    return ((struct cpu_stream *)stream)->windows;
}

static void device_destroy(struct kelp_device *device)
{
    free(device);
}

static void device_describe(const struct kelp_device *device, char text[KELP_COMPUTE_KIND_SIZE])
{
    /* "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH ...": the second word is the version. */
    char version[32] = "?";
    (void)sscanf(openblas_get_config(), "%*s %31s", version); /* "?" stays when there is none */
    struct utsname host = {.machine = "?"};
    (void)uname(&host);
    (void)snprintf(text, KELP_COMPUTE_KIND_SIZE, "cpu %.16s %s openblas-%s %.24s threads=%u",
                   host.machine, kelp__loops()->name, version, openblas_get_corename(),
                   ((const struct cpu_device *)device)->threads);
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
    stream->loops = kelp__loops()->operators;
    stream->windows = kelp__loops()->window;
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
    if (stream->too_large) {
        stream->too_large = false;
        return kelp_fail(reterr, KELP_ERR_DEVICE,
                         "a matrix product has more than %d rows, columns or elements in a row",
                         INT_MAX);
    }
    return KELP_OK;
}

static void copy(struct kelp_stream *stream, void *to, const void *from, size_t bytes)
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

static bool fits_blas(uint64_t size)
{
    return size <= INT_MAX;
}

/* OpenBLAS has one number of threads in a process; devices that take turns may want two. */
static void take_threads(const struct kelp_stream *stream)
{
    int threads = (int)((const struct cpu_device *)stream->device)->threads;

    if (openblas_get_num_threads() != threads) {
        openblas_set_num_threads(threads);
    }
}

static void matmul(struct kelp_stream *stream, const struct kelp_matmul *p)
{
    if (!fits_blas(p->m) || !fits_blas(p->n) || !fits_blas(p->k) || !fits_blas(p->lda) ||
        !fits_blas(p->ldb) || !fits_blas(p->ldc)) {
        ((struct cpu_stream *)stream)->too_large = true;
        return;
    }
    if (p->m == 0 || p->n == 0) {
        return;
    }
    if (p->k == 0) { /* OpenBLAS takes no ld of 0 */
        for (uint32_t row = 0; p->write == KELP_OVERWRITE && row < p->m; row++) {
            memset(p->c + row * p->ldc, 0, p->n * sizeof(float));
        }
        return;
    }
    take_threads(stream);
    cblas_sgemm(CblasRowMajor, p->transpose_a ? CblasTrans : CblasNoTrans,
                p->transpose_b ? CblasTrans : CblasNoTrans, (int)p->m, (int)p->n, (int)p->k, 1.0f,
                p->a, (int)p->lda, p->b, (int)p->ldb, p->write == KELP_ACCUMULATE ? 1.0f : 0.0f,
                p->c, (int)p->ldc);
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

static void loss(struct kelp_stream *stream, const struct kelp_loss *loss)
{
    loops_of(stream)->loss(loss);
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
    take_threads(stream);
    kelp__conv2d_forward(windows_of(stream), run);
}

static void conv2d_gradient(struct kelp_stream *stream, const struct kelp_conv2d_run *run)
{
    take_threads(stream);
    kelp__conv2d_gradient(windows_of(stream), run);
}

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
    .copy_in = copy,
    .copy_out = copy,
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
    .loss = loss,
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
    openblas_set_num_threads((int)threads);
    if (openblas_get_num_threads() != (int)threads) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "%u threads: this OpenBLAS runs %d at most",
                         threads, openblas_get_num_threads());
    }
    struct cpu_device *device = calloc(1, sizeof(*device));
    if (device == NULL) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "cannot allocate the CPU device");
    }
    device->base.table = &cpu_table;
    device->threads = threads;
    *ret = &device->base;
    return KELP_OK;
}

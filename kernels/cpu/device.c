/*
 * The CPU device. A stream runs each operator at once in the caller's thread. OpenBLAS computes
 * matrix products; loops compiled for the processor's instruction set do the rest.
 */
#include "kernels/device.h"

#include <assert.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "kernels/cpu/composed.h"
#include "kernels/cpu/conv2d.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/loops/loops.h"

struct cpu_device {
    struct kelp_device base;
    struct kelp_gemm gemm;
};

static void device_destroy(struct kelp_device *device)
{
    free(device);
}

static void device_describe(const struct kelp_device *device, char text[KELP_COMPUTE_KIND_SIZE])
{
    const struct kelp_gemm *gemm = &((const struct cpu_device *)device)->gemm;
    char libraries[KELP_GEMM_TEXT_SIZE];
    kelp__gemm_describe(gemm, libraries);
    if (gemm->portable) { /* all variants of the loops give the same bits */
        (void)snprintf(text, KELP_COMPUTE_KIND_SIZE, "cpu portable x86-64-v3 %.60s threads=%u",
                       libraries, gemm->threads);
        return;
    }
    struct utsname host = {.machine = "?"};
    (void)uname(&host);
    (void)snprintf(text, KELP_COMPUTE_KIND_SIZE, "cpu %.16s %s %s threads=%u", host.machine,
                   kelp__loops()->operators, libraries, gemm->threads);
}

static kelp_status device_alloc(struct kelp_device *device, size_t bytes, void **ret,
                                struct kelp_error *reterr)
{
    (void)device;
    const size_t rounded = (bytes + KELP_DEVICE_ALIGN - 1) / KELP_DEVICE_ALIGN * KELP_DEVICE_ALIGN;
    void *memory = rounded < bytes ? NULL
                                   : aligned_alloc(KELP_DEVICE_ALIGN,
                                                   rounded != 0 ? rounded : KELP_DEVICE_ALIGN);
    if (!memory) {
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
    struct kelp__cpu_stream *stream = calloc(1, sizeof(*stream));
    if (!stream) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "cannot allocate a stream");
    }
    stream->base = (struct kelp_stream){.table = device->table, .device = device};
    *ret = &stream->base;
    return KELP_OK;
}

static void stream_destroy(struct kelp_stream *stream)
{
    free(stream);
}

static kelp_status stream_wait(struct kelp_stream *base, struct kelp_error *reterr)
{
    struct kelp__cpu_stream *stream = (struct kelp__cpu_stream *)base;
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
                         "category %g: the embedding's table has rows 0 to %" PRIu64,
                         (double)fault.value, fault.limit - 1);
    case KELP_LOOP_BAD_CLASS:
        return kelp_fail(reterr, KELP_ERR_INVALID, "class %g: the model has classes 0 to %" PRIu64,
                         (double)fault.value, fault.limit - 1);
    }
    return KELP_OK;
}

/* All work of the stream is done already. */
static uint64_t stream_mark(struct kelp_stream *stream)
{
    (void)stream;
    return 0;
}

static bool stream_wait_mark(struct kelp_stream *stream, uint64_t mark)
{
    (void)mark;
    return ((const struct kelp__cpu_stream *)stream)->product_failed == KELP_OK;
}

static void stream_after(struct kelp_stream *stream, struct kelp_stream *other, uint64_t mark)
{
    (void)stream;
    (void)other;
    (void)mark;
}

static void copy_bytes(struct kelp_stream *stream, void *to, const void *from, size_t bytes)
{
    (void)stream;
    if (bytes != 0) {
        memcpy(to, from, bytes);
    }
}

/* wait() reports the first failure. */
static bool note(struct kelp_stream *stream, kelp_status status)
{
    struct kelp__cpu_stream *cpu = (struct kelp__cpu_stream *)stream;
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

static kelp_status conv2d_create(struct kelp_device *device, const struct kelp_conv2d_shape *shape,
                                 struct kelp_conv2d **ret, struct kelp_error *reterr)
{
    (void)device;
    return kelp__conv2d_create(shape, ret, reterr);
}

static void conv2d(struct kelp_stream *stream, const struct kelp_conv2d_run *run)
{
    const struct kelp_conv2d_context context = {gemm_of(stream), kelp__loops()->window, run};
    (void)note(stream, kelp__conv2d_forward(&context));
}

static void conv2d_gradient(struct kelp_stream *stream, const struct kelp_conv2d_run *run)
{
    const struct kelp_conv2d_context context = {gemm_of(stream), kelp__loops()->window, run};
    (void)note(stream, kelp__conv2d_gradient(&context));
}

/* The device table of one variant; variants differ only in the loops. */
#define CPU_TABLE(variant, loop)                                                                   \
    static const struct kelp_device_table cpu_table_##variant = {                                  \
        .name = "cpu",                                                                             \
        .alignment = KELP_DEVICE_ALIGN,                                                            \
        .host_memory = true,                                                                       \
        .destroy = device_destroy,                                                                 \
        .describe = device_describe,                                                               \
        .alloc = device_alloc,                                                                     \
        .free = device_free,                                                                       \
        .host_alloc = device_alloc,                                                                \
        .host_free = device_free,                                                                  \
        .stream_create = stream_create,                                                            \
        .stream_destroy = stream_destroy,                                                          \
        .wait = stream_wait,                                                                       \
        .mark = stream_mark,                                                                       \
        .wait_mark = stream_wait_mark,                                                             \
        .after = stream_after,                                                                     \
        .copy_in = copy_bytes,                                                                     \
        .copy_out = copy_bytes,                                                                    \
        .matmul = matmul,                                                                          \
        .linear = kelp__cpu_linear,                                                                \
        .linear_gradient = kelp__cpu_linear_gradient,                                              \
        .lstm = kelp__cpu_lstm,                                                                    \
        .lstm_gradient = kelp__cpu_lstm_gradient,                                                  \
        .conv2d_create = conv2d_create,                                                            \
        .conv2d_destroy = kelp__conv2d_destroy,                                                    \
        .conv2d_workspace = kelp__conv2d_workspace,                                                \
        .conv2d = conv2d,                                                                          \
        .conv2d_gradient = conv2d_gradient,                                                        \
        KELP_OPERATORS(loop)};

#define BASE_LOOP(name, ...) .name = kelp__loop_##name##_base,
CPU_TABLE(base, BASE_LOOP)
#ifdef KELP_LOOPS_AVX2
#define DECLARE_AVX2(name, ...) void kelp__loop_##name##_avx2(struct kelp_stream *, __VA_ARGS__);
#define AVX2_LOOP(name, ...)    .name = kelp__loop_##name##_avx2,
KELP_OPERATORS(DECLARE_AVX2)
CPU_TABLE(avx2, AVX2_LOOP)
#endif

const struct kelp_device_table *kelp__cpu_table(const struct kelp_loops *loops)
{
#ifdef KELP_LOOPS_AVX2
    if (strcmp(loops->operators, "avx2") == 0) {
        return &cpu_table_avx2;
    }
#endif
    assert(strcmp(loops->operators, "base") == 0);
    return &cpu_table_base;
}

static kelp_status check_threads(uint32_t threads, struct kelp_error *reterr)
{
    return threads > 0 && threads <= INT_MAX
               ? KELP_OK
               : kelp_fail(reterr, KELP_ERR_INVALID, "%u threads: at least one is needed", threads);
}

static kelp_status create(const struct kelp_gemm *gemm, struct kelp_device **ret,
                          struct kelp_error *reterr)
{
    struct cpu_device *device = calloc(1, sizeof(*device));
    if (!device) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "cannot allocate the CPU device");
    }
    device->base.table = kelp__cpu_table(kelp__loops());
    device->gemm = *gemm;
    *ret = &device->base;
    return KELP_OK;
}

kelp_status kelp_device_cpu_create(uint32_t threads, struct kelp_device **ret,
                                   struct kelp_error *reterr)
{
    struct kelp_gemm gemm;
    kelp_status status = check_threads(threads, reterr);
    if (status == KELP_OK) {
        status = kelp__gemm_init(&gemm, threads, reterr);
    }
    return status == KELP_OK ? create(&gemm, ret, reterr) : status;
}

kelp_status kelp_device_cpu_create_portable(uint32_t threads, struct kelp_device **ret,
                                            struct kelp_error *reterr)
{
    struct kelp_gemm gemm;
    kelp_status status = check_threads(threads, reterr);
    if (status == KELP_OK) {
        status = kelp__gemm_init_portable(&gemm, threads, reterr);
    }
    return status == KELP_OK ? create(&gemm, ret, reterr) : status;
}

/*
 * A device that stands for a GPU while a model is planned. Memory is a range of addresses that
 * nothing may touch, so that no size is too large. It has all operators, and none may be called.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "kernels/conv2d_sizes.h"
#include "kernels/cuda_entry.h"
#include "kernels/cudnn_sizes.h"
#include "kernels/device.h"

/* Before each range: how long it is. */
#define HEADER_BYTES 4096

struct planned {
    struct kelp_device base;
    bool cudnn; /* computes convolutions */
};

static void destroy(struct kelp_device *device)
{
    free(device);
}

static void describe(const struct kelp_device *device, char text[KELP_COMPUTE_KIND_SIZE])
{
    (void)device;
    (void)snprintf(text, KELP_COMPUTE_KIND_SIZE, "cuda, planned without a device");
}

/* auto: it may be there. */
static kelp_status set_cudnn(struct kelp_device *device, enum kelp_cudnn cudnn,
                             struct kelp_error *reterr)
{
    (void)reterr;
    ((struct planned *)device)->cudnn = cudnn != KELP_CUDNN_NEVER;
    return KELP_OK;
}

static kelp_status reserve(struct kelp_device *device, size_t bytes, void **ret,
                           struct kelp_error *reterr)
{
    (void)device;
    char *range = bytes > SIZE_MAX - HEADER_BYTES
                      ? MAP_FAILED
                      : mmap(NULL, bytes + HEADER_BYTES, PROT_NONE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED || mprotect(range, HEADER_BYTES, PROT_READ | PROT_WRITE) != 0) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "cannot reserve addresses of %zu bytes",
                         bytes);
    }
    *(size_t *)(void *)range = bytes + HEADER_BYTES;
    *ret = range + HEADER_BYTES;
    return KELP_OK;
}

static void release(struct kelp_device *device, void *memory)
{
    (void)device;
    if (memory) {
        char *range = (char *)memory - HEADER_BYTES;
        (void)munmap(range, *(size_t *)(void *)range);
    }
}

static kelp_status stream_create(struct kelp_device *device, struct kelp_stream **ret,
                                 struct kelp_error *reterr)
{
    struct kelp_stream *stream = malloc(sizeof(*stream));
    if (!stream) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "cannot allocate a stream");
    }
    *stream = (struct kelp_stream){.table = device->table, .device = device};
    *ret = stream;
    return KELP_OK;
}

static void stream_destroy(struct kelp_stream *stream)
{
    free(stream);
}

struct kelp_conv2d {
    struct kelp__cuda_conv2d sizes;
    uint64_t scratch; /* bytes */
};

static kelp_status conv2d_create(struct kelp_device *device, const struct kelp_conv2d_shape *shape,
                                 struct kelp_conv2d **ret, struct kelp_error *reterr)
{
    const kelp_status status = kelp__cuda_conv2d_check(shape, reterr);
    if (status != KELP_OK) {
        return status;
    }
    struct kelp_conv2d *conv = calloc(1, sizeof(*conv));
    if (!conv) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "cannot allocate a convolution");
    }
    kelp__cuda_conv2d_plan(&conv->sizes, shape);
    conv->scratch = ((struct planned *)device)->cudnn ? kelp__cudnn_scratch_max(shape) : 0;
    *ret = conv;
    return KELP_OK;
}

static void conv2d_destroy(struct kelp_conv2d *conv)
{
    free(conv);
}

static uint64_t conv2d_workspace(const struct kelp_conv2d *conv)
{
    return conv->sizes.workspace;
}

static uint64_t conv2d_scratch(const struct kelp_conv2d *conv)
{
    return conv->scratch;
}

#pragma GCC diagnostic ignored "-Wunused-parameter"
#define PLANNED_OPERATOR(name, ...)                                                                \
    _Noreturn static void planned_##name(struct kelp_stream *stream, __VA_ARGS__)                  \
    {                                                                                              \
        abort();                                                                                   \
    }
KELP_OPERATORS(PLANNED_OPERATOR)
KELP_PRODUCT_OPERATORS(PLANNED_OPERATOR)
PLANNED_OPERATOR(conv2d, const struct kelp_conv2d_run *run)
PLANNED_OPERATOR(conv2d_gradient, const struct kelp_conv2d_run *run)

static const struct kelp_device_table table = {.name = "planned",
                                               .alignment = 256, /* a GPU's */
                                               .channels_last = KELP_CUDA_CHANNELS_LAST,
                                               .destroy = destroy,
                                               .describe = describe,
                                               .set_cudnn = set_cudnn,
                                               .alloc = reserve,
                                               .free = release,
                                               .host_alloc = reserve,
                                               .host_free = release,
                                               .stream_create = stream_create,
                                               .stream_destroy = stream_destroy,
                                               .conv2d_create = conv2d_create,
                                               .conv2d_destroy = conv2d_destroy,
                                               .conv2d_workspace = conv2d_workspace,
                                               .conv2d_scratch = conv2d_scratch,
                                               .conv2d = planned_conv2d,
                                               .conv2d_gradient = planned_conv2d_gradient,
#define PLANNED_ENTRY(name, ...) .name = planned_##name,
                                               KELP_PRODUCT_OPERATORS(PLANNED_ENTRY)
                                                   KELP_OPERATORS(PLANNED_ENTRY)};

kelp_status kelp_device_plan_create(struct kelp_device **ret, struct kelp_error *reterr)
{
    struct planned *device = malloc(sizeof(*device));
    if (!device) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "cannot allocate a device");
    }
    *device = (struct planned){.base = {.table = &table}};
    *ret = &device->base;
    return KELP_OK;
}

/* Convolutions of Kelp and of cuDNN. */
#include <stdio.h>

#include "bench/gpu/gpu.h"

struct conv_sizes {
    uint32_t channels, side, kernel, stride, padding, channels_out, samples, groups;
};

/* Those of ResNet-18 for images of 224 by 224, then of ResNet-18 and the convnet for 28 by 28,
 * as in the examples. */
static const struct conv_sizes conv_sizes[] = {
    {3, 224, 7, 2, 3, 64, 64, 1},   {64, 56, 3, 1, 1, 64, 64, 1},   {64, 56, 3, 2, 1, 128, 64, 1},
    {64, 56, 1, 2, 0, 128, 64, 1},  {128, 28, 3, 1, 1, 128, 64, 1}, {128, 28, 3, 2, 1, 256, 64, 1},
    {256, 14, 3, 1, 1, 256, 64, 1}, {256, 14, 3, 2, 1, 512, 64, 1}, {512, 7, 3, 1, 1, 512, 64, 1},
    {64, 7, 3, 1, 1, 64, 512, 1},   {512, 1, 3, 1, 1, 512, 512, 1}, {1, 28, 3, 1, 0, 32, 512, 1},
    {32, 26, 3, 1, 0, 64, 512, 1},
};
/* Depthwise ones, mostly of MobileNet, and groups of four and eight of ResNeXt-50. */
static const struct conv_sizes grouped_sizes[] = {
    {64, 112, 3, 1, 1, 64, 64, 64},   {64, 112, 3, 2, 1, 64, 64, 64},
    {128, 56, 3, 1, 1, 128, 64, 128}, {512, 14, 3, 1, 1, 512, 256, 512},
    {96, 56, 7, 1, 3, 96, 64, 96},    {128, 56, 3, 1, 1, 128, 64, 32},
    {256, 28, 3, 1, 1, 256, 64, 32},
};
static const char *const conv_directions[] = {"y", "dx", "dweight"};

struct conv_side {              /* Kelp's, or cuDNN's */
    struct kelp_device *device; /* NULL: not available */
    struct kelp_stream *stream;
    struct kelp_conv2d_run run;
    uint32_t direction;
};

static void run_conv(const void *argument)
{
    const struct conv_side *side = argument;
    if (side->direction == 0) {
        side->stream->table->conv2d(side->stream, &side->run);
    } else {
        side->stream->table->conv2d_gradient(side->stream, &side->run);
    }
}

static void close_conv_side(struct conv_side *side)
{
    if (side->device) {
        side->device->table->stream_destroy(side->stream);
        side->device->table->destroy(side->device);
        side->device = NULL;
    }
}

/* No device if there is no cuDNN, or the GPU does not support the precision. */
static void open_conv_side(struct conv_side *side, enum kelp_product_precision precision,
                           bool cudnn)
{
    struct kelp_error error = {KELP_OK, ""};
    *side = (struct conv_side){.device = NULL};
    kelp_status status = kelp_device_cuda_create(0, &side->device, &error);
    if (status == KELP_OK) {
        status = side->device->table->set_precision(side->device, precision, &error);
    }
    if (status == KELP_OK && cudnn) {
        status = side->device->table->set_cudnn(side->device, KELP_CUDNN_ALWAYS, &error);
    }
    if (status == KELP_ERR_NOT_FOUND || status == KELP_ERR_UNSUPPORTED) {
        printf("\nconvolutions%s: skipped: %s\n", cudnn ? " by cuDNN" : "", error.text);
        close_conv_side(side);
        return;
    }
    if (status != KELP_OK ||
        side->device->table->stream_create(side->device, &side->stream, &error) != KELP_OK) {
        gpu_fail(&error);
    }
}

/* Seconds; 0: this side is not available. Channels first are computed by unfolded columns. */
static double measure_conv(const struct gpu_operands *operands, struct conv_side *side,
                           struct kelp_conv2d_shape shape, enum kelp_layout layout,
                           uint32_t direction)
{
    shape.window.layout = layout;
    if (!side->device) {
        return 0.0;
    }
    struct kelp_error error = {KELP_OK, ""};
    void *workspace = NULL;
    struct kelp_conv2d_run *run = &side->run;
    *run = (struct kelp_conv2d_run){.samples = shape.samples_max,
                                    .x = operands->x,
                                    .weight = operands->weight,
                                    .dy = operands->dy};
    if (side->device->table->conv2d_create(side->device, &shape, &run->conv, &error) != KELP_OK ||
        side->device->table->alloc(side->device,
                                   side->device->table->conv2d_workspace(run->conv) * sizeof(float),
                                   &workspace, &error) != KELP_OK) {
        gpu_fail(&error);
    }
    run->workspace = workspace;
    run->y = direction == 0 ? operands->out : NULL;
    run->dx = direction == 1 ? operands->out : NULL;
    run->dweight = direction == 2 ? operands->out : NULL;
    side->direction = direction;
    const double seconds = gpu_measure(side->stream, run_conv, side);
    side->device->table->free(side->device, workspace);
    side->device->table->conv2d_destroy(run->conv);
    return seconds;
}

static struct kelp_conv2d_shape conv_shape(const struct conv_sizes *size)
{
    struct kelp_conv2d_shape shape = {
        .window = {.channels = size->channels},
        .channels_out = size->channels_out,
        .groups = size->groups,
        .samples_max = size->samples,
    };
    for (uint32_t i = 0; i < 2; i++) {
        shape.window.input[i] = size->side;
        shape.window.kernel[i] = size->kernel;
        shape.window.stride[i] = size->stride;
        shape.window.padding[i] = size->padding;
        shape.window.output[i] = (size->side + 2 * size->padding - size->kernel) / size->stride + 1;
    }
    return shape;
}

/* Kelp's tiles with channels last, compared with columns and cuDNN. */
static void bench_conv(const struct gpu_operands *operands, struct conv_side *own,
                       struct conv_side *cudnn, const struct conv_sizes *size,
                       const char *precision)
{
    const struct kelp_conv2d_shape shape = conv_shape(size);
    const double operations = 2.0 * size->samples * size->channels_out * shape.window.output[0] *
                              shape.window.output[1] * size->channels * size->kernel * size->kernel;
    for (uint32_t i = 0; i < KELP_ARRAY_COUNT(conv_directions); i++) {
        const double tiles = measure_conv(operands, own, shape, KELP_CHANNELS_LAST, i);
        const double columns = measure_conv(operands, own, shape, KELP_CHANNELS_FIRST, i);
        const double theirs = measure_conv(operands, cudnn, shape, KELP_CHANNELS_LAST, i);
        printf("| %u of %ux%u %u to %u by %u/%u | %s | %s | %.1f | %.1f | %.2f ", size->samples,
               size->side, size->side, size->channels, size->channels_out, size->kernel,
               size->stride, precision, conv_directions[i], tiles * 1e6, 1e-12 * operations / tiles,
               columns / tiles);
        if (theirs > 0.0) {
            printf("| %.1f | %.2f |\n", theirs * 1e6, theirs / tiles);
        } else {
            printf("| | |\n");
        }
        (void)fflush(stdout);
    }
}

/* Grouped convolutions, only in float32: bound by memory. Bytes count both images once. */
static void bench_grouped(const struct gpu_operands *operands, struct conv_side *own,
                          struct conv_side *cudnn, const struct conv_sizes *size)
{
    const struct kelp_conv2d_shape shape = conv_shape(size);
    const uint32_t *in = shape.window.input, *out = shape.window.output;
    const double values =
        (double)size->channels * in[0] * in[1] + (double)size->channels_out * out[0] * out[1];
    for (uint32_t i = 0; i < KELP_ARRAY_COUNT(conv_directions); i++) {
        const double seconds = measure_conv(operands, own, shape, KELP_CHANNELS_LAST, i);
        const double columns = measure_conv(operands, own, shape, KELP_CHANNELS_FIRST, i);
        const double theirs = measure_conv(operands, cudnn, shape, KELP_CHANNELS_LAST, i);
        const double gbs = 1e-9 * sizeof(float) * size->samples * values / seconds;
        printf("| %u of %ux%u %u to %u by %u/%u | %u | %s | %.1f | %.0f | %.1f %% | %.2f ",
               size->samples, size->side, size->side, size->channels, size->channels_out,
               size->kernel, size->stride, size->groups, conv_directions[i], seconds * 1e6, gbs,
               100.0 * gbs / operands->copy_gbs, columns / seconds);
        if (theirs > 0.0) {
            printf("| %.1f | %.2f |\n", theirs * 1e6, theirs / seconds);
        } else {
            printf("| | |\n");
        }
        (void)fflush(stdout);
    }
}

static void bench_all_grouped(const struct gpu_operands *operands, struct conv_side *own,
                              struct conv_side *cudnn)
{
    printf("\n| convolution | groups | gives | us | GB/s | of a copy | of columns | cuDNN us | of "
           "cuDNN |\n|---|--:|---|--:|--:|--:|--:|--:|--:|\n");
    for (size_t i = 0; i < KELP_ARRAY_COUNT(grouped_sizes); i++) {
        bench_grouped(operands, own, cudnn, &grouped_sizes[i]);
    }
}

void gpu_bench_convolutions(const struct gpu_operands *operands)
{
    static const char *const names[] = {"float32", "tf32", "bfloat16"};
    for (int precision = KELP_PRODUCT_FLOAT32; precision <= KELP_PRODUCT_BFLOAT16; precision++) {
        struct conv_side own, cudnn;
        char text[KELP_COMPUTE_KIND_SIZE];
        open_conv_side(&own, (enum kelp_product_precision)precision, false);
        if (!own.device) {
            return;
        }
        open_conv_side(&cudnn, (enum kelp_product_precision)precision, true);
        struct kelp_device *named = cudnn.device ? cudnn.device : own.device;
        named->table->describe(named, text);
        printf("\n%s\n\n| convolution | reads | gives | us | TFLOP/s | of columns | cuDNN us | of "
               "cuDNN |\n|---|---|---|--:|--:|--:|--:|--:|\n",
               text);
        for (size_t i = 0; i < KELP_ARRAY_COUNT(conv_sizes); i++) {
            bench_conv(operands, &own, &cudnn, &conv_sizes[i], names[precision]);
        }
        if (precision == KELP_PRODUCT_FLOAT32) {
            bench_all_grouped(operands, &own, &cudnn);
        }
        close_conv_side(&own);
        close_conv_side(&cudnn);
    }
}

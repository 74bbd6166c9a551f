/*
 * kernels: throughput of the CPU device's operators.
 *
 *     usage: kernels [THREADS]
 */
#include <stdio.h>
#include <stdlib.h>

#include "bench/measure.h"
#include "kernels/device.h"

struct product {
    struct kelp_stream *stream;
    struct kelp_matmul matmul;
};

static void run_product(void *argument)
{
    struct product *product = argument;
    product->stream->table->matmul(product->stream, &product->matmul);
}

static void bench_product(struct kelp_stream *stream, uint32_t m, uint32_t n, uint32_t k,
                          bool transpose_a, bool transpose_b)
{
    float *a = floats((uint64_t)m * k), *b = floats((uint64_t)k * n), *c = floats((uint64_t)m * n);
    struct product product = {stream,
                              {.transpose_a = transpose_a,
                               .transpose_b = transpose_b,
                               .m = m,
                               .n = n,
                               .k = k,
                               .a = a,
                               .lda = transpose_a ? m : k,
                               .b = b,
                               .ldb = transpose_b ? k : n,
                               .c = c,
                               .ldc = n}};
    const double seconds = measure(run_product, &product);
    char name[64];
    (void)snprintf(name, sizeof(name), "matmul %ux%ux%u %c%c", m, n, k, transpose_a ? 'T' : 'N',
                   transpose_b ? 'T' : 'N');
    printf("%-32s %10.2f us %8.1f GFLOP/s\n", name, seconds * 1e6,
           2e-9 * (double)m * n * k / seconds);
    free(a);
    free(b);
    free(c);
}

struct convolution {
    struct kelp_stream *stream;
    struct kelp_conv2d_run run;
    bool gradient;
};

static void run_convolution(void *argument)
{
    struct convolution *convolution = argument;
    if (convolution->gradient) {
        convolution->stream->table->conv2d_gradient(convolution->stream, &convolution->run);
    } else {
        convolution->stream->table->conv2d(convolution->stream, &convolution->run);
    }
}

/* Columns: channels in, image side, channels out, kernel, stride, padding. */
static const uint32_t convolutions[][6] = {
    {1, 28, 32, 3, 1, 0},   {32, 26, 64, 3, 1, 0},  {1, 28, 64, 7, 2, 3},   {64, 7, 64, 3, 1, 1},
    {64, 7, 128, 3, 2, 1},  {64, 7, 128, 1, 2, 0},  {128, 4, 128, 3, 1, 1}, {128, 4, 256, 3, 2, 1},
    {256, 2, 256, 3, 1, 1}, {256, 2, 512, 3, 2, 1}, {512, 1, 512, 3, 1, 1}, {64, 56, 64, 3, 1, 1}};
#define CONVOLUTION_SAMPLES 128u

static struct kelp_conv2d_shape convolution_shape(const uint32_t sizes[6])
{
    const uint32_t side = (sizes[1] + 2 * sizes[5] - sizes[3]) / sizes[4] + 1;
    return (struct kelp_conv2d_shape){.window = {.channels = sizes[0],
                                                 .input = {sizes[1], sizes[1]},
                                                 .kernel = {sizes[3], sizes[3]},
                                                 .stride = {sizes[4], sizes[4]},
                                                 .padding = {sizes[5], sizes[5]},
                                                 .output = {side, side}},
                                      .channels_out = sizes[2],
                                      .groups = 1,
                                      .samples_max = CONVOLUTION_SAMPLES};
}

/* Multiplications with padding count, as is usual for the cost of a convolution. The ratio is
 * relative to the product of two matrices 1024x1024. The gradient of a first layer has no dx. */
static void bench_convolution(struct kelp_stream *stream, const uint32_t sizes[6],
                              double product_per_second)
{
    const struct kelp_conv2d_shape shape = convolution_shape(sizes);
    const struct kelp_window *window = &shape.window;
    const uint64_t weight = (uint64_t)sizes[0] * sizes[2] * sizes[3] * sizes[3];
    const uint64_t output = (uint64_t)window->output[0] * window->output[1];
    const uint64_t x_count = (uint64_t)CONVOLUTION_SAMPLES * sizes[0] * sizes[1] * sizes[1];
    const uint64_t y_count = CONVOLUTION_SAMPLES * sizes[2] * output;
    struct convolution convolution = {.stream = stream, .run = {.samples = CONVOLUTION_SAMPLES}};
    struct kelp_error error = {KELP_OK, ""};
    if (stream->table->conv2d_create(stream->device, &shape, &convolution.run.conv, &error) !=
        KELP_OK) {
        fail(&error);
    }
    float *x = floats(x_count), *y = floats(y_count), *weights = floats(weight);
    float *dx = floats(x_count), *dy = floats(y_count), *dweights = floats(weight);
    float *workspace = floats(stream->table->conv2d_workspace(convolution.run.conv));
    convolution.run.x = x;
    convolution.run.y = y;
    convolution.run.weight = weights;
    convolution.run.workspace = workspace;
    convolution.run.dy = dy;
    convolution.run.dx = sizes[0] == 1 ? NULL : dx;
    convolution.run.dweight = dweights;
    const double forward = measure(run_convolution, &convolution);
    convolution.gradient = true;
    const double gradient = measure(run_convolution, &convolution);
    const double products = (double)CONVOLUTION_SAMPLES * (double)(weight * output);
    const double parts = sizes[0] == 1 ? 2e-9 : 4e-9;
    char name[64];
    (void)snprintf(name, sizeof(name), "conv2d %ux%ux%u to %u, %ux%u/%u", sizes[0], sizes[1],
                   sizes[1], sizes[2], sizes[3], sizes[3], sizes[4]);
    printf("%-32s %10.2f us %8.1f GFLOP/s %5.2f   gradient %10.2f us %8.1f GFLOP/s %5.2f\n", name,
           forward * 1e6, 2e-9 * products / forward, 2 * products / forward / product_per_second,
           gradient * 1e6, parts * products / gradient,
           parts * 1e9 * products / gradient / product_per_second);
    stream->table->conv2d_destroy(convolution.run.conv);
    float *buffers[] = {x, y, weights, dx, dy, dweights, workspace};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(buffers); i++) {
        free(buffers[i]);
    }
}

static double product_per_second(struct kelp_stream *stream)
{
    const uint32_t side = 1024;
    float *a = floats(side * side), *b = floats(side * side), *c = floats(side * side);
    struct product product = {stream,
                              {.m = side,
                               .n = side,
                               .k = side,
                               .a = a,
                               .lda = side,
                               .b = b,
                               .ldb = side,
                               .c = c,
                               .ldc = side}};
    const double seconds = measure(run_product, &product);
    free(a);
    free(b);
    free(c);
    return 2.0 * side * side * side / seconds;
}

static void bench_convolutions(struct kelp_stream *stream)
{
    const double product = product_per_second(stream);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(convolutions); i++) {
        bench_convolution(stream, convolutions[i], product);
    }
}

struct average {
    struct kelp_stream *stream;
    struct kelp_moving_average average;
    bool gradient;
};

static void run_average(void *argument)
{
    struct average *average = argument;
    if (average->gradient) {
        average->stream->table->moving_average_gradient(average->stream, &average->average);
    } else {
        average->stream->table->moving_average(average->stream, &average->average);
    }
}

static void bench_average(struct kelp_stream *stream, uint32_t rows, uint32_t length, bool gradient)
{
    const uint64_t count = (uint64_t)rows * length;
    float *x = floats(count), *y = floats(count);
    float *workspace = floats(kelp_moving_average_workspace(length, 25));
    struct average average = {
        stream,
        {.x = x, .y = y, .rows = rows, .length = length, .kernel_size = 25, .workspace = workspace},
        gradient};
    const double seconds = measure(run_average, &average);
    char name[64];
    (void)snprintf(name, sizeof(name), "moving average%s %ux%u k 25", gradient ? " gradient" : "",
                   rows, length);
    printf("%-32s %10.2f us %8.2f ns per value\n", name, seconds * 1e6,
           seconds * 1e9 / (double)count);
    free(x);
    free(y);
    free(workspace);
}

struct losses {
    struct kelp_stream *stream;
    struct kelp_criterion criterion;
};

static void run_loss(void *argument)
{
    struct losses *losses = argument;
    losses->stream->table->criterion(losses->stream, &losses->criterion);
}

static void bench_loss(struct kelp_stream *stream, uint32_t samples, uint64_t elements)
{
    const uint64_t count = samples * elements;
    float *output = floats(count), *target = floats(count), *gradient = floats(count);
    double *sums = calloc((uint64_t)samples * KELP_LOSS_SUMS, sizeof(*sums));
    const float scale = 0.5f;
    struct losses losses = {stream,
                            {.kind = KELP_LOSS_MSE,
                             .output = output,
                             .target = target,
                             .samples = samples,
                             .elements = elements,
                             .target_elements = elements,
                             .loss_alone = true,
                             .gradient_scale = &scale,
                             .gradient = gradient,
                             .sums = sums}};
    const double seconds = measure(run_loss, &losses);
    char name[64];
    (void)snprintf(name, sizeof(name), "mse loss and gradient %ux%llu", samples,
                   (unsigned long long)elements);
    printf("%-32s %10.2f us %8.2f ns per value\n", name, seconds * 1e6,
           seconds * 1e9 / (double)count);
    free(output);
    free(target);
    free(gradient);
    free(sums);
}

int main(int argc, char **argv)
{
    char *end = NULL;
    const unsigned long threads = argc > 1 ? strtoul(argv[1], &end, 10) : 1;
    struct kelp_device *device = NULL;
    struct kelp_stream *stream = NULL;
    struct kelp_error error = {KELP_OK, ""};
    char kind[KELP_COMPUTE_KIND_SIZE];
    uint64_t answer = 0;
    if (argc > 2 || (end != NULL && *end != '\0') || threads > 1024) {
        fprintf(stderr, "usage: kernels [THREADS]\n");
        return 2;
    }
    if (kelp_device_cpu_create((uint32_t)threads, &device, &error) != KELP_OK ||
        device->table->stream_create(device, &stream, &error) != KELP_OK ||
        kelp_compute_kind(device, kind, &answer, &error) != KELP_OK) {
        fail(&error);
    }
    printf("%s, known answer %016llx\n\n", kind, (unsigned long long)answer);
    bench_product(stream, 32, 96, 96, false, true);
    bench_product(stream, 96, 96, 32, true, false);
    bench_product(stream, 224, 96, 336, false, true);
    bench_product(stream, 96, 336, 224, true, false);
    bench_product(stream, 1024, 1024, 1024, false, false);
    printf("\n");
    bench_convolutions(stream);
    printf("\n");
    bench_average(stream, 32, 96, false);
    bench_average(stream, 32, 96, true);
    bench_average(stream, 224, 336, false);
    bench_loss(stream, 32, 96);
    device->table->stream_destroy(stream);
    device->table->destroy(device);
    return 0;
}

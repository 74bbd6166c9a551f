/*
 * Products of layers, compared with the fastest kernel that cuBLASLt offers for each: under the
 * same limits (workspace, alignment, reductions in a fixed order), each kernel is measured. Kelp
 * uses the heuristic's first choice without measuring.
 */
#include <stdio.h>

#include "bench/gpu/candidates.h"
#include "bench/gpu/gpu.h"

/* From first_of_step on: a training step of the MLP 4096-8192-8192-4096, batch 512. */
static const struct gpu_product products[] = {
    {4096, 4096, 4096, false, true}, {4096, 4096, 4096, false, false},
    {4096, 4096, 4096, true, false}, {4096, 4096, 4096, true, true},
    {32, 128, 784, false, true},     {32, 784, 128, false, false},
    {128, 784, 32, true, false},     {512, 8192, 4096, false, true},
    {512, 8192, 8192, false, true},  {512, 4096, 8192, false, true},
    {512, 8192, 4096, false, false}, {512, 8192, 8192, false, false},
    {4096, 8192, 512, true, false},  {8192, 8192, 512, true, false},
    {8192, 4096, 512, true, false},
};
static const size_t first_of_step = 7;

/* Seconds. */
struct times {
    double own, best; /* best is 0 if unknown */
};

struct launch {
    struct kelp_stream *stream;
    struct kelp_matmul matmul;
};

static void run_product(const void *argument)
{
    const struct launch *launch = argument;
    launch->stream->table->matmul(launch->stream, &launch->matmul);
}

static double measure_product(struct kelp_stream *stream, const struct gpu_operands *operands,
                              const struct gpu_product *product)
{
    const struct launch launch = {
        stream,
        {.transpose_a = product->transpose_a,
         .transpose_b = product->transpose_b,
         .m = product->m,
         .n = product->n,
         .k = product->k,
         .a = operands->x,
         .lda = product->transpose_a ? product->m : product->k,
         .b = operands->dy,
         .ldb = product->transpose_b ? product->k : product->n,
         .c = operands->out,
         .ldc = product->n},
    };
    return gpu_measure(stream, run_product, &launch);
}

static struct times bench_product(struct kelp_stream *stream, const struct gpu_operands *operands,
                                  const struct gpu_product *product,
                                  enum kelp_product_precision precision, const char *name)
{
    const double seconds = measure_product(stream, operands, product);
    const double best = gpu_best_candidate(operands, product, precision);
    printf("| %ux%ux%u | %c%c | %s | %.1f | %.2f ", product->m, product->n, product->k,
           product->transpose_a ? 'T' : 'N', product->transpose_b ? 'T' : 'N', name, seconds * 1e6,
           2e-12 * product->m * product->n * product->k / seconds);
    if (best > 0.0) {
        printf("| %.1f | %.1f %% |\n", best * 1e6, 100.0 * best / seconds);
    } else {
        printf("| | |\n");
    }
    (void)fflush(stdout);
    return (struct times){seconds, best};
}

static void bench_precision(struct kelp_stream *stream, const struct gpu_operands *operands,
                            enum kelp_product_precision precision, const char *name)
{
    struct times step = {0.0, 0.0};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(products); i++) {
        const struct times times = bench_product(stream, operands, &products[i], precision, name);
        step.own += i >= first_of_step ? times.own : 0.0;
        step.best += i >= first_of_step ? times.best : 0.0;
    }
    printf("| a step of mlp_wide | | %s | %.1f | | %.1f | |\n", name, step.own * 1e6,
           step.best * 1e6);
}

void gpu_bench_products(const struct gpu_operands *operands)
{
    static const char *const names[] = {"float32", "tf32", "bfloat16"};
    printf("\n| m x n x k | transposes | reads | us | TFLOP/s | best us | of the best |\n"
           "|---|---|---|--:|--:|--:|--:|\n");
    for (int i = KELP_PRODUCT_FLOAT32; i <= KELP_PRODUCT_BFLOAT16; i++) {
        const enum kelp_product_precision precision = (enum kelp_product_precision)i;
        struct kelp_error error = {KELP_OK, ""};
        struct kelp_device *device = NULL;
        struct kelp_stream *stream = NULL;
        kelp_status status = kelp_device_cuda_create(0, &device, &error);
        if (status == KELP_OK) {
            status = device->table->set_precision(device, precision, &error);
        }
        if (status == KELP_OK) {
            status = device->table->stream_create(device, &stream, &error);
        }
        if (status == KELP_ERR_UNSUPPORTED) {
            printf("| skipped: %s | | %s | | | | |\n", error.text, names[i]);
        } else if (status != KELP_OK) {
            gpu_fail(&error);
        }
        if (stream) {
            bench_precision(stream, operands, precision, names[i]);
            device->table->stream_destroy(stream);
        }
        device->table->destroy(device);
    }
}

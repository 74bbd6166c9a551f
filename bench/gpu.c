/*
 * gpu: throughput of the CUDA device: operators compared with the GPU's memory bandwidth, products,
 * copies to and from the host, launches.
 *
 *     usage: gpu [--rounds N] [--copy-gbs X] [NAME ...]
 *
 * A number is the median of N rounds (9). A round has as many launches as take ROUND_SECONDS, timed
 * from the first enqueuing to the end of wait(). The last column of the operators is relative to X,
 * the bandwidth of a copy within the GPU's memory (bytes read and written, 1e9 a second), or
 * without X to the operator `copy`. NAME: run only benchmarks whose names begin so, and no copies
 * to the host.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/gpu/gpu.h"
#include "common/base/clock.h"

#define EXIT_SKIPPED  77
#define ROUND_SECONDS 0.02

uint32_t gpu_rounds = 9;

void gpu_fail(const struct kelp_error *error)
{
    fprintf(stderr, "gpu: %s\n", error->text);
    exit(1);
}

static void wait_for(struct kelp_stream *on)
{
    struct kelp_error error = {KELP_OK, ""};
    if (on->table->wait(on, &error) != KELP_OK) {
        gpu_fail(&error);
    }
}

static double now(void)
{
    return 1e-6 * (double)kelp_clock_us();
}

/* ---- measuring ------------------------------------------------------------------------------- */

static double seconds_of(struct kelp_stream *on, void (*run)(const void *), const void *argument,
                         uint64_t launches)
{
    const double begin = now();
    for (uint64_t i = 0; i < launches; i++) {
        run(argument);
    }
    wait_for(on);
    return now() - begin;
}

static int compare_doubles(const void *left, const void *right)
{
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double median(double *values, size_t count)
{
    qsort(values, count, sizeof(*values), compare_doubles);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

double gpu_measure(struct kelp_stream *on, void (*run)(const void *), const void *argument)
{
    static double times[GPU_ROUNDS_MAX];
    uint64_t launches = 1;
    (void)seconds_of(on, run, argument, 3); /* loads the kernels */
    for (double taken = 0.0; taken < ROUND_SECONDS;) {
        taken = seconds_of(on, run, argument, launches);
        launches *= taken < ROUND_SECONDS ? 2 : 1;
    }
    for (uint32_t i = 0; i < gpu_rounds; i++) {
        times[i] = seconds_of(on, run, argument, launches) / (double)launches;
    }
    return median(times, gpu_rounds);
}

/* ---- the program ----------------------------------------------------------------------------- */

static void bench_all(struct kelp_device *device, struct kelp_stream *stream, char **names,
                      int name_count, double copy_gbs)
{
    char text[KELP_COMPUTE_KIND_SIZE];
    struct gpu_memory memory;
    gpu_memory_init(&memory, device, stream);
    device->table->describe(device, text);
    printf("%s, medians of %u rounds, ", text, gpu_rounds);
    if (copy_gbs > 0.0) {
        printf("a copy reaches %.0f GB/s\n\n", copy_gbs);
    } else {
        printf("compared with the fastest copy below\n\n");
    }
    copy_gbs = gpu_bench_operators(stream, &memory, names, name_count, copy_gbs);
    if (name_count == 0) {
        const struct gpu_operands operands = {.x = memory.x,
                                              .weight = memory.weight,
                                              .dy = memory.dy,
                                              .out = memory.out,
                                              .workspace = memory.more,
                                              .copy_gbs = copy_gbs};
        gpu_bench_host(device, stream, &memory);
        gpu_bench_products(&operands);
        gpu_bench_convolutions(&operands);
    }
    gpu_memory_fini(&memory, device);
}

/* How many arguments were options; -1: wrong options. */
static int parse(int argc, char **argv, double *copy_gbs)
{
    int i = 1;
    for (; i + 1 < argc && strncmp(argv[i], "--", 2) == 0; i += 2) {
        char *end = NULL;
        const double number = strtod(argv[i + 1], &end);
        if (end == argv[i + 1] || *end != '\0') {
            return -1;
        }
        if (strcmp(argv[i], "--rounds") == 0 && number >= 1 && number <= GPU_ROUNDS_MAX) {
            gpu_rounds = (uint32_t)number;
        } else if (strcmp(argv[i], "--copy-gbs") == 0 && number > 0) {
            *copy_gbs = number;
        } else {
            return -1;
        }
    }
    return i < argc && strncmp(argv[i], "--", 2) == 0 ? -1 : i;
}

int main(int argc, char **argv)
{
    struct kelp_error error = {KELP_OK, ""};
    struct kelp_device *device = NULL;
    struct kelp_stream *stream = NULL;
    double copy_gbs = 0.0; /* unknown */
    const int first = parse(argc, argv, &copy_gbs);
    if (first < 0) {
        fprintf(stderr, "usage: gpu [--rounds N] [--copy-gbs X] [NAME ...]\n");
        return 2;
    }
    const kelp_status status = kelp_device_cuda_create(0, &device, &error);
    if (status == KELP_ERR_NOT_FOUND || status == KELP_ERR_UNSUPPORTED) {
        printf("skipped: %s\n", error.text);
        return EXIT_SKIPPED;
    }
    if (status != KELP_OK || device->table->stream_create(device, &stream, &error) != KELP_OK) {
        gpu_fail(&error);
    }
    bench_all(device, stream, argv + first, argc - first, copy_gbs);
    device->table->stream_destroy(stream);
    device->table->destroy(device);
    return 0;
}

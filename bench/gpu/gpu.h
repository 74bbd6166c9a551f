/*
 * Shared by the files of the benchmark gpu.
 */
#ifndef KELP_BENCH_GPU_GPU_H
#define KELP_BENCH_GPU_GPU_H

#include "kernels/device.h"

/* Ends the program. */
_Noreturn void gpu_fail(const struct kelp_error *error);

#define GPU_MI (1024u * 1024u)

/* Limit for the number of rounds of a median. */
#define GPU_ROUNDS_MAX 1000u
extern uint32_t gpu_rounds;

/* Seconds of one launch by run(argument) on that stream: the median of several rounds. */
double gpu_measure(struct kelp_stream *on, void (*run)(const void *), const void *argument);

#define GPU_SLOT_COUNT                                                                             \
    (128u * GPU_MI) /* floats of the large buffers, far more than a cache holds */
#define GPU_SMALL_COUNT (4u * GPU_MI)
#define GPU_ROWS        65536u
#define GPU_CLASSES     1000u
#define GPU_TABLE_ROWS  100000u
#define GPU_TABLE_IDS   1000000u

/* Device memory. x and dy are only read; scale holds 1. */
struct gpu_memory {
    float *x, *dy, *out, *more;               /* float32[GPU_SLOT_COUNT] */
    float *weight, *bias, *small, *small_two; /* float32[GPU_SMALL_COUNT] */
    float *ids;                               /* [GPU_TABLE_IDS], below GPU_TABLE_ROWS */
    float *classes;                           /* [GPU_ROWS], below GPU_CLASSES */
    float *scale;
    uint32_t *chosen;    /* [GPU_SLOT_COUNT / 4] */
    uint32_t *positions; /* [GPU_ROWS] */
    uint64_t *seed_step;
    double *sums; /* float64[GPU_ROWS][KELP_LOSS_SUMS] */
};
/* These functions end the program on an error. */
void gpu_memory_init(struct gpu_memory *memory, struct kelp_device *device,
                     struct kelp_stream *stream);
void gpu_memory_fini(const struct gpu_memory *memory, struct kelp_device *device);

/* Print a table of operators, compared with copy_gbs, the bandwidth of a copy within the memory,
 * or if that is 0 with the operator `copy`. Returns the bandwidth compared with. names: run only
 * these, if there are any. */
double gpu_bench_operators(struct kelp_stream *stream, const struct gpu_memory *memory,
                           char **names, int name_count, double copy_gbs);

/* Print a table of copies to and from the host, and of launches. */
void gpu_bench_host(struct kelp_device *device, struct kelp_stream *stream,
                    const struct gpu_memory *memory);

/* Device memory, larger than any convolution or product of the benchmark needs. The first three
 * are only read. */
struct gpu_operands {
    const float *x, *weight, *dy;
    float *out, *workspace;
    double copy_gbs; /* bandwidth of a copy within it */
};

/* Print a table of products in each precision, with cuBLASLt's fastest kernel for each. */
void gpu_bench_products(const struct gpu_operands *operands);

/* Print a table of the convolutions of ResNet-18 and the convnet in each precision, by Kelp and
 * by cuDNN's deterministic algorithms; and one of grouped convolutions, compared with a copy. */
void gpu_bench_convolutions(const struct gpu_operands *operands);

#endif

/*
 * The device interface: memory, streams and operators behind one table of functions, so that a
 * model runs on whatever provides the table. kelp_device_cpu_create() is the CPU's; its operators
 * are the definition of correct.
 *
 * Operators are enqueued on a stream and return nothing to the host: whatever goes wrong stays with
 * the stream until wait() reports it, and reading a result is copy_out() followed by wait(). On the
 * CPU a stream runs at once. Pointers in operator arguments are device memory unless their comment
 * says host; the structs themselves are read before the call returns. Scalars that change from step
 * to step (kelp_loss.gradient_scale) are read from device memory, so that a step's work can be
 * recorded once and replayed.
 *
 * Matrices are row-major; ld is the distance between rows in elements. Buffers of one operator do
 * not overlap unless it says so. Alignment never changes a result; 64 bytes is fastest. Every
 * operator does its sums in one fixed order, so the same arguments give the same bits on devices of
 * one compute kind. Sizes of zero are allowed and do nothing.
 *
 * Threads: one caller per stream at a time; different streams at once.
 */
#ifndef KELP_KERNELS_DEVICE_H
#define KELP_KERNELS_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

#define KELP_DEVICE_ALIGN      64 /* bytes, of memory from alloc() */
#define KELP_COMPUTE_KIND_SIZE 128

/* What an operator does with what its output holds already. */
enum kelp_write { KELP_OVERWRITE, KELP_ACCUMULATE };

/* C = op(A) op(B), or C += with KELP_ACCUMULATE; op transposes where the flag is set.
 * op(A) is [m, k], op(B) is [k, n], C is [m, n]; with a flag set the matrix is stored the other way
 * round and its ld is that of the stored form. */
struct kelp_matmul {
    bool transpose_a;
    bool transpose_b;
    uint32_t m, n, k;
    const float *a;
    uint64_t lda;
    const float *b;
    uint64_t ldb;
    float *c;
    uint64_t ldc;
    enum kelp_write write;
};

/* matrix[r][c] += bias[c]; matrix is [rows, columns]. */
struct kelp_bias {
    float *matrix;
    uint64_t ld;
    uint32_t rows, columns;
    const float *bias;
};

/* bias[c] = or += the sum of matrix[r][c] over r, rows in ascending order. */
struct kelp_bias_gradient {
    const float *matrix;
    uint64_t ld;
    uint32_t rows, columns;
    float *bias;
    enum kelp_write write;
};

/*
 * The moving average of each row of x, as wide as kernel_size (odd), after the row's first and last
 * value have been repeated (kernel_size - 1) / 2 times before and behind it:
 * y[r][t] = (sum of the kernel_size values around t, ascending) / kernel_size.
 * The gradient takes dy in x's place and gives dx in y's. x, y are [rows, length], dense.
 */
struct kelp_moving_average {
    const float *x;
    float *y;
    uint32_t rows, length, kernel_size;
    float *workspace;      /* float32[kelp_moving_average_workspace()] */
    enum kelp_write write; /* the gradient alone */
};
static inline uint64_t kelp_moving_average_workspace(uint32_t length, uint32_t kernel_size)
{
    return 2 * ((uint64_t)length + 2 * (uint64_t)kernel_size);
}

/* y[b][c][r] = or += x[b][r][c]: `batch` matrices [rows, columns] to [columns, rows], dense. */
struct kelp_transpose {
    const float *x;
    float *y;
    uint32_t batch, rows, columns;
    enum kelp_write write;
};

/*
 * The loss of `samples` samples of `elements` values each, d = output - target:
 *   sums[2 s], sums[2 s + 1] = sum over sample s of d^2 and of |d|, d in float32 and the rest in
 *     double, in an order that depends on `elements` alone;
 *   gradient = gradient_scale * d, or with `absolute` gradient_scale * sign(d), sign(0) = 0.
 * output, target, gradient are [samples, elements], dense. gradient may be NULL.
 */
struct kelp_loss {
    const float *output;
    const float *target;
    uint32_t samples;
    uint64_t elements;
    bool absolute;
    const float *gradient_scale; /* one value; not read when gradient is NULL */
    float *gradient;
    double *sums; /* float64[2 * samples] */
};

struct kelp_device;
struct kelp_stream;

struct kelp_device_table {
    const char *name; /* "cpu" */
    /* Device memory is host memory: pointers of the host can be operator arguments as they are. */
    bool host_memory;
    void (*destroy)(struct kelp_device *device);
    /* text names everything that decides the bits: instruction set, libraries, threads. */
    void (*describe)(const struct kelp_device *device, char text[KELP_COMPUTE_KIND_SIZE]);

    /* Contents are undefined. Errors: KELP_ERR_NO_MEMORY, KELP_ERR_DEVICE. */
    kelp_status (*alloc)(struct kelp_device *device, size_t bytes, void **ret,
                         struct kelp_error *reterr);
    void (*free)(struct kelp_device *device, void *memory); /* NULL: nothing */

    kelp_status (*stream_create)(struct kelp_device *device, struct kelp_stream **ret,
                                 struct kelp_error *reterr);
    void (*stream_destroy)(struct kelp_stream *stream); /* NULL: nothing */
    /* Until all that was enqueued is done; the first failure since the last wait. */
    kelp_status (*wait)(struct kelp_stream *stream, struct kelp_error *reterr);

    /* Host memory must stay as it is until wait() returned. */
    void (*copy_in)(struct kelp_stream *stream, void *to, const void *host_from, size_t bytes);
    void (*copy_out)(struct kelp_stream *stream, void *host_to, const void *from, size_t bytes);

    void (*fill)(struct kelp_stream *stream, float *values, float value, uint64_t count);
    void (*axpy)(struct kelp_stream *stream, float *y, float alpha, const float *x,
                 uint64_t count); /* y += alpha x */
    /* y = a + b, y = a - b; y may be a or b. */
    void (*add)(struct kelp_stream *stream, float *y, const float *a, const float *b,
                uint64_t count);
    void (*subtract)(struct kelp_stream *stream, float *y, const float *a, const float *b,
                     uint64_t count);
    void (*matmul)(struct kelp_stream *stream, const struct kelp_matmul *matmul);
    void (*bias_add)(struct kelp_stream *stream, const struct kelp_bias *bias);
    void (*bias_gradient)(struct kelp_stream *stream, const struct kelp_bias_gradient *gradient);
    /* y = max(x, 0), NaN stays; y may be x. Gradient: dx = or += dy where y > 0, else 0; with
     * KELP_OVERWRITE dx may be dy. */
    void (*relu)(struct kelp_stream *stream, float *y, const float *x, uint64_t count);
    void (*relu_gradient)(struct kelp_stream *stream, float *dx, const float *y, const float *dy,
                          uint64_t count, enum kelp_write write);
    void (*moving_average)(struct kelp_stream *stream, const struct kelp_moving_average *average);
    void (*moving_average_gradient)(struct kelp_stream *stream,
                                    const struct kelp_moving_average *average);
    void (*transpose)(struct kelp_stream *stream, const struct kelp_transpose *transpose);
    void (*loss)(struct kelp_stream *stream, const struct kelp_loss *loss);
};

/* What every device and stream begins with. */
struct kelp_device {
    const struct kelp_device_table *table;
};
struct kelp_stream {
    const struct kelp_device_table *table;
    struct kelp_device *device;
};

/*
 * The CPU. Matrix products run on `threads` threads of OpenBLAS; that number belongs to the
 * process: devices that compute at once must agree on it, those that take turns need not. *ret is
 * owned, table->destroy(). Errors: KELP_ERR_INVALID (threads 0 or more than OpenBLAS can),
 * KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_device_cpu_create(uint32_t threads, struct kelp_device **ret,
                                   struct kelp_error *reterr) KELP_MUST_USE;

/*
 * The compute kind as text ("cpu x86_64 avx2 openblas-0.3.21 Zen threads=1"), and the XXH3-64 of
 * the results of a fixed computation that uses every operator: a device whose text is right but
 * whose arithmetic is not has another answer. Takes about a millisecond.
 * Errors: KELP_ERR_NO_MEMORY, KELP_ERR_DEVICE.
 */
kelp_status kelp_compute_kind(struct kelp_device *device, char text[KELP_COMPUTE_KIND_SIZE],
                              uint64_t *ret_answer, struct kelp_error *reterr) KELP_MUST_USE;

#endif

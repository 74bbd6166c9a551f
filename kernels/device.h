/*
 * The device interface: memory, streams and operators behind one table of functions, so that a
 * model runs on whatever provides the table. kelp_device_cpu_create() is the CPU's; its operators
 * are the definition of correct.
 *
 * Operators are enqueued on a stream and return nothing to the host: whatever goes wrong stays with
 * the stream until wait() reports it, and reading a result is copy_out() followed by wait(). On the
 * CPU a stream runs at once. Pointers in operator arguments are device memory unless their comment
 * says host; the structs themselves are read before the call returns. Scalars that change from step
 * to step (kelp_criterion.gradient_scale) are read from device memory, so that a step's work can be
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

#include "common/base/status.h"
#include "kernels/operators.h"

#define KELP_DEVICE_ALIGN      64 /* bytes, of memory from alloc() */
#define KELP_COMPUTE_KIND_SIZE 128

/* Arguments of operators stand in kernels/operators.h. */
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

    void (*unary)(struct kelp_stream *stream, const struct kelp_unary *unary);
    void (*unary_gradient)(struct kelp_stream *stream, const struct kelp_unary_gradient *gradient);
    void (*multiply)(struct kelp_stream *stream, const struct kelp_multiply *multiply);
    void (*copy)(struct kelp_stream *stream, const struct kelp_copy *copy);
    void (*reduce)(struct kelp_stream *stream, const struct kelp_reduce *reduce);
    void (*weighted_sum)(struct kelp_stream *stream, const struct kelp_weighted_sum *sum);
    void (*weighted_sum_gradient)(struct kelp_stream *stream, const struct kelp_weighted_sum *sum);
    void (*softmax)(struct kelp_stream *stream, const struct kelp_softmax *softmax);
    void (*softmax_gradient)(struct kelp_stream *stream, const struct kelp_softmax *softmax);
    void (*glu)(struct kelp_stream *stream, const struct kelp_glu *glu);
    void (*glu_gradient)(struct kelp_stream *stream, const struct kelp_glu *glu);
    void (*layer_norm)(struct kelp_stream *stream, const struct kelp_layer_norm *norm);
    void (*layer_norm_gradient)(struct kelp_stream *stream, const struct kelp_layer_norm *norm);
    void (*batch_norm)(struct kelp_stream *stream, const struct kelp_batch_norm *norm);
    void (*batch_norm_gradient)(struct kelp_stream *stream, const struct kelp_batch_norm *norm);
    void (*dropout)(struct kelp_stream *stream, const struct kelp_dropout *dropout);
    void (*embedding)(struct kelp_stream *stream, const struct kelp_embedding *embedding);
    void (*embedding_gradient)(struct kelp_stream *stream, const struct kelp_embedding *embedding);
    void (*lstm_cell)(struct kelp_stream *stream, const struct kelp_lstm_cell *cell);
    void (*lstm_cell_gradient)(struct kelp_stream *stream, const struct kelp_lstm_cell *cell);
    void (*max_pool)(struct kelp_stream *stream, const struct kelp_max_pool *pool);
    void (*max_pool_gradient)(struct kelp_stream *stream, const struct kelp_max_pool *pool);
    void (*average_pool)(struct kelp_stream *stream, const struct kelp_average_pool *pool);
    void (*average_pool_gradient)(struct kelp_stream *stream, const struct kelp_average_pool *pool);
    void (*criterion)(struct kelp_stream *stream, const struct kelp_criterion *criterion);

    /* *ret is owned, conv2d_destroy(), before the device goes. Errors: KELP_ERR_INVALID (sizes that
     * do not fit together), KELP_ERR_NO_MEMORY, KELP_ERR_DEVICE. */
    kelp_status (*conv2d_create)(struct kelp_device *device, const struct kelp_conv2d_shape *shape,
                                 struct kelp_conv2d **ret, struct kelp_error *reterr);
    void (*conv2d_destroy)(struct kelp_conv2d *conv); /* NULL: nothing */
    /* Elements of workspace that a run needs. */
    uint64_t (*conv2d_workspace)(const struct kelp_conv2d *conv);
    void (*conv2d)(struct kelp_stream *stream, const struct kelp_conv2d_run *run);
    void (*conv2d_gradient)(struct kelp_stream *stream, const struct kelp_conv2d_run *run);
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
 * The CPU. Matrix products run on `threads` threads of OpenBLAS or oneDNN; that number belongs to
 * the process: devices that compute at once must agree on it, those that take turns need not. *ret
 * is owned, table->destroy(). Errors: KELP_ERR_INVALID (threads 0 or more than OpenBLAS or OpenMP
 * can), KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_device_cpu_create(uint32_t threads, struct kelp_device **ret,
                                   struct kelp_error *reterr) KELP_MUST_USE;

/*
 * The compute kind as text ("cpu x86_64 avx2 openblas-0.3.21 Zen onednn-2.6.3 avx2 threads=1"), and
 * the XXH3-64 of the results of a fixed computation that uses every operator: a device whose text
 * is right but whose arithmetic is not has another answer. Takes a few milliseconds.
 * Errors: KELP_ERR_NO_MEMORY, KELP_ERR_DEVICE.
 */
kelp_status kelp_compute_kind(struct kelp_device *device, char text[KELP_COMPUTE_KIND_SIZE],
                              uint64_t *ret_answer, struct kelp_error *reterr) KELP_MUST_USE;

#endif

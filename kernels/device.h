/*
 * The device interface: memory, streams and operators behind one table of functions, so that a
 * model runs on whatever provides the table. kelp_device_cpu_create() is the CPU's; its operators
 * are the definition of correct. kelp_device_cuda_create() is a GPU's.
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

#define KELP_DEVICE_ALIGN      64 /* bytes; of the CPU's memory, and the least of any device's */
#define KELP_COMPUTE_KIND_SIZE 128

/* Arguments of operators stand in kernels/operators.h. */
struct kelp_device;
struct kelp_stream;
struct kelp_recording; /* opaque, of a stream */

struct kelp_device_table {
    const char *name; /* "cpu", "cuda" */
    /* Bytes, a power of two: of memory from alloc() and host_alloc(), and what to begin buffers at
     * within it that are to be fast. */
    uint32_t alignment;
    /* Device memory is host memory: pointers of the host can be operator arguments as they are. */
    bool host_memory;
    /* Convolution, pooling and batch norm take images in KELP_CHANNELS_LAST, too. Convolutions are
     * faster so. */
    bool channels_last;
    void (*destroy)(struct kelp_device *device);
    /* Of the device's own memory, all of it; 0: not known. NULL: its memory is the host's. */
    uint64_t (*memory_bytes)(const struct kelp_device *device);
    /* Of that, what nobody has taken; 0: not known. NULL: not known, ever. */
    uint64_t (*memory_free)(const struct kelp_device *device);
    /* text names everything that decides the bits: instruction set, libraries, threads. */
    void (*describe)(const struct kelp_device *device, char text[KELP_COMPUTE_KIND_SIZE]);

    /* What products and convolutions read their operands as, before there is a stream; float32 in
     * the beginning. NULL: float32 alone. Errors: KELP_ERR_UNSUPPORTED (the device cannot). */
    kelp_status (*set_precision)(struct kelp_device *device, enum kelp_product_precision precision,
                                 struct kelp_error *reterr);

    /* Whether cuDNN computes convolutions, before there is a stream or a convolution; it does not
     * in the beginning. The kind names it where it does. NULL: the device knows of none. Errors:
     * KELP_ERR_NOT_FOUND (it is not there, with KELP_CUDNN_ALWAYS), KELP_ERR_UNSUPPORTED (another
     * version is), KELP_ERR_NO_MEMORY, KELP_ERR_DEVICE (it does not start). */
    kelp_status (*set_cudnn)(struct kelp_device *device, enum kelp_cudnn cudnn,
                             struct kelp_error *reterr);

    /* Contents are undefined. Errors: KELP_ERR_NO_MEMORY, KELP_ERR_DEVICE. */
    kelp_status (*alloc)(struct kelp_device *device, size_t bytes, void **ret,
                         struct kelp_error *reterr);
    /* NULL: nothing. All that was enqueued with it has been waited for. */
    void (*free)(struct kelp_device *device, void *memory);

    /* Host memory that copies go to and from while the host does other things; others may make
     * the caller of copy_in() or copy_out() wait. Contents are undefined. Errors:
     * KELP_ERR_NO_MEMORY, KELP_ERR_DEVICE. */
    kelp_status (*host_alloc)(struct kelp_device *device, size_t bytes, void **ret,
                              struct kelp_error *reterr);
    void (*host_free)(struct kelp_device *device, void *memory); /* as free() */

    kelp_status (*stream_create)(struct kelp_device *device, struct kelp_stream **ret,
                                 struct kelp_error *reterr);
    void (*stream_destroy)(struct kelp_stream *stream); /* after all of it is done; NULL: nothing */
    /* Until all that was enqueued is done; the first failure since the last wait. */
    kelp_status (*wait)(struct kelp_stream *stream, struct kelp_error *reterr);
    /* What was enqueued so far, as a number for wait_mark(). */
    uint64_t (*mark)(struct kelp_stream *stream);
    /* As wait(), for what was enqueued before the mark. False: something failed, perhaps after
     * that, and wait() will say what. Ids and classes out of range may show at wait() alone. */
    bool (*wait_mark)(struct kelp_stream *stream, uint64_t mark);
    /* What is enqueued on the stream from now on runs after what `other`, of the same device, was
     * given before the mark. Streams run beside each other otherwise. */
    void (*after)(struct kelp_stream *stream, struct kelp_stream *other, uint64_t mark);

    /* Host memory must stay as it is until wait() returned: what is copied, and where to. */
    void (*copy_in)(struct kelp_stream *stream, void *to, const void *host_from, size_t bytes);
    void (*copy_out)(struct kelp_stream *stream, void *host_to, const void *from, size_t bytes);

    /*
     * Operators kept by the device, to be enqueued again in one call. NULL, all four: not offered,
     * as by the CPU, which would gain nothing.
     *
     * Between begin and end the stream's operators are kept and do not run. It is given nothing
     * else meanwhile: no copy, mark or wait. Arguments stay as they are, so the device memory that
     * they name stays allocated; what it holds may change from replay to replay. Whatever an
     * operator has to prepare is prepared: each ran before on this stream, with the same sizes.
     * *ret is owned, recording_destroy(), before the stream goes and after its replays were waited
     * for. Errors of end: KELP_ERR_NO_MEMORY, KELP_ERR_DEVICE; nothing is recorded any more then.
     */
    void (*record_begin)(struct kelp_stream *stream);
    kelp_status (*record_end)(struct kelp_stream *stream, struct kelp_recording **ret,
                              struct kelp_error *reterr);
    void (*replay)(struct kelp_stream *stream, struct kelp_recording *recording);
    void (*recording_destroy)(struct kelp_recording *recording); /* NULL: nothing */

#define KELP_DEVICE_ENTRY(name, ...) void (*name)(struct kelp_stream * stream, __VA_ARGS__);
    KELP_PRODUCT_OPERATORS(KELP_DEVICE_ENTRY)
    KELP_OPERATORS(KELP_DEVICE_ENTRY)
#undef KELP_DEVICE_ENTRY

    /* *ret is owned, conv2d_destroy(), before the device goes. Errors: KELP_ERR_INVALID (sizes that
     * do not fit together), KELP_ERR_UNSUPPORTED (the layout), KELP_ERR_NO_MEMORY, KELP_ERR_DEVICE.
     */
    kelp_status (*conv2d_create)(struct kelp_device *device, const struct kelp_conv2d_shape *shape,
                                 struct kelp_conv2d **ret, struct kelp_error *reterr);
    void (*conv2d_destroy)(struct kelp_conv2d *conv); /* NULL: nothing */
    /* Elements of workspace that a run needs. */
    uint64_t (*conv2d_workspace)(const struct kelp_conv2d *conv);
    /* Bytes that the stream takes for a run beside that, at most: once, for its convolutions that
     * takes most. NULL: none. */
    uint64_t (*conv2d_scratch)(const struct kelp_conv2d *conv);
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
 * The CPU with the same bits on every x86-64-v3 processor: all matrix products are OpenBLAS's, by
 * its kernels for Haswell. Errors: also KELP_ERR_INVALID where the processor has no AVX2 or FMA, or
 * OpenBLAS was loaded with other kernels (common/program/portable.h).
 */
kelp_status kelp_device_cpu_create_portable(uint32_t threads, struct kelp_device **ret,
                                            struct kelp_error *reterr) KELP_MUST_USE;

/*
 * GPU `index` of this machine, counted from 0 as CUDA counts them. Loads libkelp-cuda.so from
 * lib/kelp beside the program's folder, and cuBLASLt from the toolkit. A stream is a CUDA stream:
 * operators run after the call returned, and its failures come out of wait(). Memory from alloc()
 * is not the host's. An alignment other than 16 bytes may pick another of cuBLASLt's kernels, and
 * Kelp's convolution in cuDNN's place, so products and convolutions have the same bits for the same
 * sizes, distances and alignments. *ret is owned, table->destroy().
 *
 * Errors: KELP_ERR_NOT_FOUND (no such library, driver or GPU), KELP_ERR_UNSUPPORTED (a GPU before
 * compute capability 7.5), KELP_ERR_NO_MEMORY, KELP_ERR_DEVICE.
 */
kelp_status kelp_device_cuda_create(uint32_t index, struct kelp_device **ret,
                                    struct kelp_error *reterr) KELP_MUST_USE;

/*
 * What plans models for a GPU that is not there: all sizes are a GPU's, memory can be neither read
 * nor written, and nothing can be enqueued. *ret is owned, table->destroy(). Errors:
 * KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_device_plan_create(struct kelp_device **ret,
                                    struct kelp_error *reterr) KELP_MUST_USE;

/*
 * The compute kind as text ("cpu x86_64 avx2 openblas-0.3.21 Zen onednn-2.6.3 avx2 threads=1", "cpu
 * portable x86-64-v3 openblas-0.3.21 Haswell threads=1"), and a hash of the results of a fixed
 * computation that uses every operator: a device whose text is right but whose arithmetic is not
 * has another answer. Takes a few milliseconds. Errors: KELP_ERR_NO_MEMORY, KELP_ERR_DEVICE.
 */
kelp_status kelp_compute_kind(struct kelp_device *device, char text[KELP_COMPUTE_KIND_SIZE],
                              uint64_t *ret_answer, struct kelp_error *reterr) KELP_MUST_USE;

#endif

/*
 * The device interface: memory, streams and operators behind one table of functions, so that a
 * model runs on any device. kelp_device_cpu_create() creates the CPU's, whose operators define what
 * is correct; kelp_device_cuda_create() creates a GPU's.
 *
 * Operators are enqueued on a stream and return nothing to the host. A failure stays with the
 * stream until wait() reports it; to read a result, call copy_out() and then wait(). A CPU stream
 * runs synchronously. Pointers in operator arguments are device memory unless their comment says
 * host; the structs themselves are read before the call returns. Scalars that change from step to
 * step (kelp_criterion.gradient_scale) are read from device memory, so that a step can be recorded
 * once and replayed.
 *
 * Matrices are row-major; ld is the distance between rows in elements. Buffers of one operator do
 * not overlap unless it says so. 64-byte alignment is fastest. Every operator adds in one fixed
 * order, so the same arguments give the same bits on devices of one compute kind. On the CPU
 * alignment never changes a result; for a GPU see kelp_device_cuda_create(). Sizes of zero are
 * allowed and do nothing.
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

/* Arguments of operators are in kernels/operators.h. */
struct kelp_device;
struct kelp_stream;
struct kelp_recording; /* opaque, of a stream */

struct kelp_device_table {
    const char *name; /* "cpu", "cuda" */
    /* Bytes, a power of two: alignment of memory from alloc() and host_alloc(), and of buffers
     * within it for full speed. */
    uint32_t alignment;
    /* Device memory is host memory: host pointers can be operator arguments. */
    bool host_memory;
    /* Convolution, pooling and batch norm also accept KELP_CHANNELS_LAST, which is faster for
     * convolutions. */
    bool channels_last;
    void (*destroy)(struct kelp_device *device);
    /* Total bytes of the device's own memory; 0: unknown. NULL: its memory is the host's. */
    uint64_t (*memory_bytes)(const struct kelp_device *device);
    /* Free bytes of that; 0: unknown. NULL: never known. */
    uint64_t (*memory_free)(const struct kelp_device *device);
    /* text names everything that affects the bits: instruction set, libraries, threads. */
    void (*describe)(const struct kelp_device *device, char text[KELP_COMPUTE_KIND_SIZE]);

    /* Set the precision in which products and convolutions read their operands, before the first
     * stream; float32 by default. NULL: float32 only. Errors: KELP_ERR_UNSUPPORTED. */
    kelp_status (*set_precision)(struct kelp_device *device, enum kelp_product_precision precision,
                                 struct kelp_error *reterr);

    /* Choose whether cuDNN computes convolutions, before the first stream or convolution; by
     * default it does not. The compute kind names it if it does. NULL: not supported. Errors:
     * KELP_ERR_NOT_FOUND (not installed, with KELP_CUDNN_ALWAYS), KELP_ERR_UNSUPPORTED (another
     * version is), KELP_ERR_NO_MEMORY, KELP_ERR_DEVICE (it does not start). */
    kelp_status (*set_cudnn)(struct kelp_device *device, enum kelp_cudnn cudnn,
                             struct kelp_error *reterr);

    /* *ret is owned, free(). Contents are undefined. Errors: KELP_ERR_NO_MEMORY, KELP_ERR_DEVICE.
     */
    kelp_status (*alloc)(struct kelp_device *device, size_t bytes, void **ret,
                         struct kelp_error *reterr);
    /* NULL does nothing. Everything enqueued with the memory must have been waited for. */
    void (*free)(struct kelp_device *device, void *memory);

    /* Pinned host memory, for asynchronous copies; with other memory copy_in() and copy_out() may
     * block. *ret is owned, host_free(). Contents are undefined. Errors: KELP_ERR_NO_MEMORY,
     * KELP_ERR_DEVICE. */
    kelp_status (*host_alloc)(struct kelp_device *device, size_t bytes, void **ret,
                              struct kelp_error *reterr);
    void (*host_free)(struct kelp_device *device, void *memory); /* as free() */

    kelp_status (*stream_create)(struct kelp_device *device, struct kelp_stream **ret,
                                 struct kelp_error *reterr);
    void (*stream_destroy)(struct kelp_stream *stream); /* once it is idle; NULL does nothing */
    /* Wait until everything enqueued is done. Returns the first failure since the last wait. */
    kelp_status (*wait)(struct kelp_stream *stream, struct kelp_error *reterr);
    /* A mark after everything enqueued so far, for wait_mark() and after(). */
    uint64_t (*mark)(struct kelp_stream *stream);
    /* Wait for what was enqueued before the mark. False: something failed, perhaps after the mark;
     * wait() will say what. Ids and classes out of range may be reported only by wait(). */
    bool (*wait_mark)(struct kelp_stream *stream, uint64_t mark);
    /* Work enqueued on the stream from now on runs after the work of `other`, of the same device,
     * up to the mark. Streams are otherwise concurrent. */
    void (*after)(struct kelp_stream *stream, struct kelp_stream *other, uint64_t mark);

    /* Source and destination in host memory must stay valid, and the source unchanged, until wait()
     * has returned. */
    void (*copy_in)(struct kelp_stream *stream, void *to, const void *host_from, size_t bytes);
    void (*copy_out)(struct kelp_stream *stream, void *host_to, const void *from, size_t bytes);

    /*
     * Record operators, to enqueue them again in one call. All four are NULL if not supported, as
     * on the CPU, which would gain nothing.
     *
     * Between begin and end the stream's operators are recorded and do not run. Do not enqueue
     * anything else meanwhile: no copy, mark or wait. Arguments are fixed, so the device memory
     * that they name must stay allocated; its contents may change between replays. Each operator
     * must have run before on this stream with the same sizes, so that nothing is left to prepare.
     * *ret is owned; call recording_destroy() before the stream is destroyed and after its replays
     * were waited for. Errors of end: KELP_ERR_NO_MEMORY, KELP_ERR_DEVICE; recording has then
     * stopped.
     */
    void (*record_begin)(struct kelp_stream *stream);
    kelp_status (*record_end)(struct kelp_stream *stream, struct kelp_recording **ret,
                              struct kelp_error *reterr);
    void (*replay)(struct kelp_stream *stream, struct kelp_recording *recording);
    void (*recording_destroy)(struct kelp_recording *recording); /* NULL does nothing */

#define KELP_DEVICE_ENTRY(name, ...) void (*name)(struct kelp_stream * stream, __VA_ARGS__);
    KELP_PRODUCT_OPERATORS(KELP_DEVICE_ENTRY)
    KELP_OPERATORS(KELP_DEVICE_ENTRY)
#undef KELP_DEVICE_ENTRY

    /* *ret is owned; call conv2d_destroy() before the device is destroyed. Errors: KELP_ERR_INVALID
     * (inconsistent sizes), KELP_ERR_UNSUPPORTED (the layout), KELP_ERR_NO_MEMORY, KELP_ERR_DEVICE.
     */
    kelp_status (*conv2d_create)(struct kelp_device *device, const struct kelp_conv2d_shape *shape,
                                 struct kelp_conv2d **ret, struct kelp_error *reterr);
    void (*conv2d_destroy)(struct kelp_conv2d *conv); /* NULL does nothing */
    /* Elements of workspace for one run. */
    uint64_t (*conv2d_workspace)(const struct kelp_conv2d *conv);
    /* Maximum bytes that a stream allocates for a run besides that; its convolutions share them, so
     * the largest counts. NULL: none. */
    uint64_t (*conv2d_scratch)(const struct kelp_conv2d *conv);
    void (*conv2d)(struct kelp_stream *stream, const struct kelp_conv2d_run *run);
    void (*conv2d_gradient)(struct kelp_stream *stream, const struct kelp_conv2d_run *run);
};

/* First member of every device and stream. */
struct kelp_device {
    const struct kelp_device_table *table;
};
struct kelp_stream {
    const struct kelp_device_table *table;
    struct kelp_device *device;
};

/*
 * The CPU. Matrix products run on `threads` threads of OpenBLAS or oneDNN. That number is global to
 * the process: devices that compute concurrently must agree on it. *ret is owned, table->destroy().
 * Errors: KELP_ERR_INVALID (threads is 0 or more than OpenBLAS or OpenMP support),
 * KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_device_cpu_create(uint32_t threads, struct kelp_device **ret,
                                   struct kelp_error *reterr) KELP_MUST_USE;

/*
 * The CPU, with the same bits on every x86-64-v3 processor: all matrix products use OpenBLAS's
 * kernels for Haswell. Errors: also KELP_ERR_INVALID if the processor has no AVX2 or FMA, or if
 * OpenBLAS was loaded with other kernels (common/program/portable.h).
 */
kelp_status kelp_device_cpu_create_portable(uint32_t threads, struct kelp_device **ret,
                                            struct kelp_error *reterr) KELP_MUST_USE;

/*
 * GPU `index` of this machine, from 0 in CUDA's order. Loads libkelp-cuda.so from lib/kelp beside
 * the program's folder, and cuBLASLt from the toolkit. A stream is a CUDA stream: operators run
 * asynchronously, and wait() reports their failures. Memory from alloc() is not the host's. An
 * alignment other than 16 bytes may select another cuBLASLt kernel, or Kelp's convolution instead
 * of cuDNN's, so products and convolutions have the same bits only for the same sizes, distances
 * and alignments. *ret is owned, table->destroy().
 *
 * Errors: KELP_ERR_NOT_FOUND (no such library, driver or GPU), KELP_ERR_UNSUPPORTED (a GPU before
 * compute capability 7.5), KELP_ERR_NO_MEMORY, KELP_ERR_DEVICE.
 */
kelp_status kelp_device_cuda_create(uint32_t index, struct kelp_device **ret,
                                    struct kelp_error *reterr) KELP_MUST_USE;

/*
 * Give back what CUDA keeps of a GPU for this process, some hundred MiB of its memory, which
 * outlives the devices: for a process that only asked a device. None may be there any more. Call it
 * in the thread that created them. One that is created later works.
 */
void kelp_device_cuda_leave(void);

/*
 * A device that plans models for a GPU that is not present: it reports a GPU's sizes, its memory
 * can be neither read nor written, and nothing can be enqueued. *ret is owned, table->destroy().
 * Errors: KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_device_plan_create(struct kelp_device **ret,
                                    struct kelp_error *reterr) KELP_MUST_USE;

/*
 * The compute kind as text ("cpu x86_64 avx2 openblas-0.3.21 Zen onednn-2.6.3 avx2 threads=1", "cpu
 * portable x86-64-v3 openblas-0.3.21 Haswell threads=1"), and a hash of the results of a fixed
 * computation that uses every operator. A device with the same text but other arithmetic has
 * another hash. Takes a few milliseconds. Errors: KELP_ERR_NO_MEMORY, KELP_ERR_DEVICE.
 */
kelp_status kelp_compute_kind(struct kelp_device *device, char text[KELP_COMPUTE_KIND_SIZE],
                              uint64_t *ret_answer, struct kelp_error *reterr) KELP_MUST_USE;

#endif

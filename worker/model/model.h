/*
 * A model: the job's model.kind and hyper-parameters, for samples of one shape. It holds no
 * weights: they are in a flat vector of the caller, laid out by the plan, and gradients are written
 * to another one of the same layout.
 *
 * kelp_model_create() allocates everything; binding, training and evaluating allocate nothing.
 * Results are a function of the arguments and of the compute kind (kernels/device.h) alone,
 * whatever the alignment of the buffers.
 *
 * Threads: one caller per model at a time. Models on one device share its BLAS threads.
 */
#ifndef KELP_WORKER_MODEL_MODEL_H
#define KELP_WORKER_MODEL_MODEL_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/job/job.h"
#include "common/training/control.h"
#include "common/training/plan.h"
#include "worker/data/sample.h"

#define KELP_MODEL_STREAMS_MAX 8

struct kelp_model;
struct kelp_graph;
struct kelp_trace;
struct kelp_shape;

/*
 * Build the model of job for samples of this shape.
 *
 * batch_max    maximum number of samples per call of train. It determines memory, and how evaluate
 *              and forward divide more samples than that, so derive it from the job alone.
 * ret          owned by the caller, kelp_model_destroy().
 *
 * Errors: KELP_ERR_INVALID (hyper-parameters and shapes do not fit: the text names the layer and
 *         both shapes), KELP_ERR_LIMIT, KELP_ERR_NO_MEMORY, KELP_ERR_DEVICE.
 */
kelp_status kelp_model_create(const struct kelp_job *job, const struct kelp_sample_shape *shape,
                              uint32_t batch_max, struct kelp_model **ret,
                              struct kelp_error *reterr) KELP_MUST_USE;

/* Rebuild the model for another batch_max, on the same device. Pointers borrowed from it, and
 * bindings, become invalid. After an error it can only be rebuilt again, or destroyed.
 * Errors: as kelp_model_create(). */
kelp_status kelp_model_rebuild(struct kelp_model *model, const struct kelp_job *job,
                               const struct kelp_sample_shape *shape, uint32_t batch_max,
                               struct kelp_error *reterr) KELP_MUST_USE;

/* On a device with its own memory: compute up to `streams` lanes concurrently, at most
 * KELP_MODEL_STREAMS_MAX, each on its own stream and in its own memory. Results do not change. The
 * model must not be rebuilt afterwards. Does nothing on other devices. Errors: as
 * kelp_model_create(). */
kelp_status kelp_model_widen(struct kelp_model *model, const struct kelp_job *job,
                             const struct kelp_sample_shape *shape, uint32_t streams,
                             struct kelp_error *reterr) KELP_MUST_USE;
uint32_t kelp_model_streams(const struct kelp_model *model); /* 1 by default */

/* Does nothing for NULL. */
void kelp_model_destroy(struct kelp_model *model);
/* The same, and the process gives the memory back that CUDA keeps for it on the GPU: for one that
 * only asked the model, beside workers that need it. No other model may be there. */
void kelp_model_leave(struct kelp_model *model);

/*
 * Parameters and statistics in declaration order, with PyTorch's names, shapes and default initial
 * values, or KELP_INIT_FILE if the job has model.init. Offsets are zero: the plan sets them.
 * Borrowed until the model is destroyed.
 */
const struct kelp_tensor *kelp_model_tensors(const struct kelp_model *model, uint32_t *ret_count);

/*
 * Use these vectors from now on. Cheap enough for each step.
 *
 * plan           made of this model's tensors (asserted); its offsets are copied.
 * flat_weights   float32[plan->flat_count], borrowed until the next bind. A device with its own
 *                memory copies them at the first run after this call; bind again after a change.
 * flat_gradient  the same, written by kelp_model_train(): each parameter's part is overwritten; the
 *                padding between them is untouched, or zeroed on a device with its own memory. NULL
 *                when only evaluating.
 */
void kelp_model_bind(struct kelp_model *model, const struct kelp_plan *plan,
                     const float *flat_weights, float *flat_gradient);
/* Bind another gradient, or none, for the next piece; the bound weights stay and are unchanged. */
void kelp_model_bind_gradient(struct kelp_model *model, float *flat_gradient);

/*
 * The gradient of (the sum over the samples of each sample's mean loss) / batch_total.
 *
 * input        float32[count][input dims], target float32[count][target dims]; borrowed until
 *              return.
 * count        0 (gradient zero) to batch_max.
 * batch_total  samples of the step over all lanes, so that the lanes' gradients add up to the mean.
 * sums         as in common/training/control.h, of these samples only; set on success only. For a
 *              training step only the scalars, without the histogram.
 * accumulate   add to the gradient instead of overwriting it: for all pieces but the first.
 * more         another piece follows, which adds to this gradient; until then the contents of
 *              flat_gradient are undefined.
 * step         training steps before this one; position: the first sample's index in the step's
 *              batch. With the job's seed they determine dropout.
 * need         called before tensor `index` is read: waits for its weights. If it returns false,
 *              training ends with KELP_ERR_BUSY. A device with its own memory copies at least 1 MiB
 *              at a time, tensor by tensor, while it computes with earlier ones. NULL: all weights
 *              are present.
 * complete     called during the backward pass with decreasing indices: the gradients of the
 * tensors from index on are complete. The last call has index 0, unless training fails. On a device
 * with its own memory this needs as much host memory as a gradient, and reports at least 1 MiB at a
 * time. NULL: not reported.
 *
 * Errors: KELP_ERR_LIMIT (count over batch_max), KELP_ERR_BUSY (need() returned false),
 * KELP_ERR_DEVICE.
 */
struct kelp_model_sum;
struct kelp_model_piece {
    const float *input, *target;
    uint32_t count;
    double batch_total;
    bool accumulate;
    bool more;
    const struct kelp_model_sum
        *sum; /* only with kelp_model_sums_up(); NULL: flat_gradient is the lane's */
    uint64_t step, position;
    bool (*need)(void *user, uint32_t index);
    void (*complete)(void *user, uint32_t index);
    void (*idle)(void *user); /* once while the device computes and the host waits; or NULL */
    void *user;
    float *output;            /* gets the model's output of this training pass; or NULL */
    struct kelp_trace *trace; /* common/log/trace.h; NULL: none */
};
/* For a device with its own memory, which adds up the gradients of a node's lanes in tree order:
 * the lane's place in the node. Lanes come in ascending order. */
struct kelp_model_sum {
    uint32_t lane; /* of the step */
    bool begins;   /* the node's first lane */
    bool ends;     /* the node's last lane: flat_gradient gets the node's sum, earlier lanes write
                      nothing */
};
/* Does the device add up nodes? */
bool kelp_model_sums_up(const struct kelp_model *model);

kelp_status kelp_model_train(struct kelp_model *model, const struct kelp_model_piece *piece,
                             double sums[KELP_METRIC_SUM_COUNT],
                             struct kelp_error *reterr) KELP_MUST_USE;

/*
 * kelp_model_train() in two calls, on a device with its own memory: begin() enqueues the piece,
 * finish() waits for the oldest pending one, returns its sums, and writes its gradient; it also
 * calls complete(). Until then everything that the piece points to is borrowed, samples at most
 * until kelp_model_release(). A lane begun before the previous one is finished overlaps with it.
 *
 * Ids or classes out of range may be reported only by the last finish(): do not pass gradients on
 * before that. After an error of either, call only kelp_model_drop().
 */
uint32_t
kelp_model_ahead(const struct kelp_model *model); /* useful number of lanes begun at once */
uint32_t kelp_model_pending(const struct kelp_model *model); /* pieces */
/* May this piece be begun before another one is finished? Always true if none is pending. */
bool kelp_model_may_begin(const struct kelp_model *model, const struct kelp_model_piece *piece);
/* Errors: those of kelp_model_train(). */
kelp_status kelp_model_begin(struct kelp_model *model, const struct kelp_model_piece *piece,
                             struct kelp_error *reterr) KELP_MUST_USE;
kelp_status kelp_model_finish(struct kelp_model *model, double sums[KELP_METRIC_SUM_COUNT],
                              struct kelp_error *reterr) KELP_MUST_USE;
/* Wait for all pending pieces and drop their results. */
void kelp_model_drop(struct kelp_model *model);
/* Wait until the device has copied these samples, before writing the buffer again while the piece
 * is pending. */
void kelp_model_release(struct kelp_model *model, const float *samples);

/*
 * A block of an evaluation (target) or of predictions (output), of at most batch_max samples. It is
 * begun in the same way, and finished by kelp_model_finish() in order; blocks and pieces do not
 * mix. Blocks take the streams in turn. sums are kelp_model_evaluate()'s; predictions do not set
 * them. Pointers are borrowed as for a piece; factors until begin() returns.
 */
struct kelp_model_block {
    const float *input, *target;
    const double *factors;
    uint32_t count;
    float *output;
    void (*idle)(void *user);
    void *user;
};
uint32_t kelp_model_blocks_max(const struct kelp_model *model); /* maximum pending */
bool kelp_model_may_begin_block(const struct kelp_model *model);
/* Errors: KELP_ERR_NO_MEMORY, KELP_ERR_DEVICE. */
kelp_status kelp_model_begin_block(struct kelp_model *model, const struct kelp_model_block *block,
                                   struct kelp_error *reterr) KELP_MUST_USE;

/* Call once in idle(): copy the samples of the next piece to the device while it computes. That
 * piece uses them if it has the same input, target and count; otherwise they are dropped. They are
 * borrowed until it has ended. With count 0, at any time: drop them. */
void kelp_model_stage(struct kelp_model *model, const float *input, const float *target,
                      uint32_t count);
/* Pinned memory for samples or weights, for asynchronous copies. Owned (kelp_model_host_free()).
 * NULL: out of memory. */
void *kelp_model_host_alloc(struct kelp_model *model, size_t bytes);
void kelp_model_host_free(struct kelp_model *model, void *memory); /* NULL does nothing */

/* The same sums without a gradient, for any count: batch_max samples at a time. factors:
 * float64[count], converts each sample's errors to the data's own unit, 0: no conversion; or NULL.
 */
struct kelp_model_evaluation {
    const float *input, *target;
    const double *factors;
    uint32_t count;
};
kelp_status kelp_model_evaluate(struct kelp_model *model, const struct kelp_model_evaluation *what,
                                double sums[KELP_METRIC_SUM_COUNT],
                                struct kelp_error *reterr) KELP_MUST_USE;

/* output float32[count][kelp_model_output()], for any count: batch_max samples at a time. */
kelp_status kelp_model_forward(struct kelp_model *model, const float *input, uint32_t count,
                               float *output, struct kelp_error *reterr) KELP_MUST_USE;

/* As passed to kelp_model_create(). */
uint32_t kelp_model_batch_max(const struct kelp_model *model);

/* The dimensions of the model's output for one sample: the target's, or for classes [classes] and
 * for quantiles [..., quantiles]. Borrowed until the model is destroyed. */
const struct kelp_shape *kelp_model_output(const struct kelp_model *model);

/* Bytes of the device's own memory; 0: it has none, or unknown. */
uint64_t kelp_model_device_memory(const struct kelp_model *model);

/* Free bytes of it; 0: unknown. */
uint64_t kelp_model_device_free(const struct kelp_model *model);

/* The graph, for reading (kelp_graph_layer(), kelp_graph_memory()). Borrowed until the model is
 * destroyed. */
const struct kelp_graph *kelp_model_graph(const struct kelp_model *model);

/*
 * The compute kind of the job's device ("x86_64 avx2 openblas-0.3.21 Zen threads=1") and the
 * digest of a known-answer computation on it, for the plan.
 */
kelp_status kelp_model_compute_kind(const struct kelp_model *model, char *text, size_t text_bytes,
                                    uint64_t *ret_answer, struct kelp_error *reterr) KELP_MUST_USE;

#endif

/*
 * A model: what the job's model.kind and hyper-parameters mean for samples of one shape. It holds
 * no weights: they live in a flat vector of the caller, laid out by the plan, and gradients go to
 * another one of the same layout.
 *
 * Everything is allocated by kelp_model_create(); binding, training and evaluating allocate
 * nothing. Results are a function of the arguments and of the compute kind (kernels/device.h)
 * alone, whatever the alignment of the buffers.
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
 * batch_max    samples that one call of train computes at most. It decides memory, and for more
 *              samples than that how evaluate and forward cut them, so take it from the job alone.
 * ret          owned by the caller, kelp_model_destroy().
 *
 * Errors: KELP_ERR_INVALID (hyper-parameters and shapes do not fit: the text names the layer and
 *         both shapes), KELP_ERR_LIMIT, KELP_ERR_NO_MEMORY, KELP_ERR_DEVICE.
 */
kelp_status kelp_model_create(const struct kelp_job *job, const struct kelp_sample_shape *shape,
                              uint32_t batch_max, struct kelp_model **ret,
                              struct kelp_error *reterr) KELP_MUST_USE;

/* The same model for another batch_max, on the device that it has. What was borrowed from it, and
 * bound, is no more. After an error it can be rebuilt again, or destroyed, and nothing else.
 * Errors: as kelp_model_create(). */
kelp_status kelp_model_rebuild(struct kelp_model *model, const struct kelp_job *job,
                               const struct kelp_sample_shape *shape, uint32_t batch_max,
                               struct kelp_error *reterr) KELP_MUST_USE;

/* On a device with memory of its own: compute so many lanes beside each other, at most
 * KELP_MODEL_STREAMS_MAX, each on a stream and in memory of its own. It changes no result. Of a
 * model that is not rebuilt again. Elsewhere it does nothing. Errors: as kelp_model_create(). */
kelp_status kelp_model_widen(struct kelp_model *model, const struct kelp_job *job,
                             const struct kelp_sample_shape *shape, uint32_t streams,
                             struct kelp_error *reterr) KELP_MUST_USE;
uint32_t kelp_model_streams(const struct kelp_model *model); /* 1 at first */

/* Does nothing for NULL. */
void kelp_model_destroy(struct kelp_model *model);

/*
 * Parameters and statistics in declaration order, with PyTorch's names, shapes and default initial
 * values, or KELP_INIT_FILE where the job has model.init. Offsets are zero: a plan gives them.
 * Borrowed until the model is destroyed.
 */
const struct kelp_tensor *kelp_model_tensors(const struct kelp_model *model, uint32_t *ret_count);

/*
 * Compute with these vectors from now on. Cheap enough for each step.
 *
 * plan           made of this model's tensors (asserted); its offsets are copied.
 * flat_weights   float32[plan->flat_count], borrowed until the next bind. A device with memory of
 *                its own copies them at the first run behind this call: what changes needs a bind.
 * flat_gradient  the same, written by kelp_model_train(): each parameter's part is overwritten, the
 *                padding between them is left alone, or becomes zero on a device with memory of its
 *                own. NULL when only evaluating.
 */
void kelp_model_bind(struct kelp_model *model, const struct kelp_plan *plan,
                     const float *flat_weights, float *flat_gradient);
/* Another gradient, or none, and the weights that are bound, unchanged since. Of the next piece. */
void kelp_model_bind_gradient(struct kelp_model *model, float *flat_gradient);

/*
 * The gradient of (the sum over the samples of each sample's mean loss) / batch_total.
 *
 * input        float32[count][input dims], target float32[count][target dims]; borrowed until
 *              return.
 * count        0 (gradient zero) to batch_max.
 * batch_total  samples of the step over all lanes, so that lanes' gradients add up to the mean's.
 * sums         as in common/training/control.h, of these samples alone; set on success only. Of a
 *              training step the scalars only, without the histogram.
 * accumulate   add to the gradient instead of overwriting it: not the first piece.
 * more         another piece comes, which adds to this gradient: until then flat_gradient may hold
 *              anything.
 * step         training steps before this one; position: the first sample's place in the step's
 *              batch. They decide, with the job's seed, what dropout keeps.
 * need         called before the tensor is read: waits for its weights. False: training ends with
 *              KELP_ERR_BUSY. A device with memory of its own gets them 1 MiB or more at a time,
 *              tensor by tensor, while it computes with those before. NULL: all are there.
 * complete     called while the backward pass runs, with falling indices: the gradients of the
 *              tensors from index on are complete. The last call has index 0, unless training
 *              fails. On a device with memory of its own it takes as much host memory as a
 *              gradient, and tells 1 MiB or more at a time. NULL: not.
 *
 * Errors: KELP_ERR_LIMIT (count over batch_max), KELP_ERR_BUSY (need() said no), KELP_ERR_DEVICE.
 */
struct kelp_model_sum;
struct kelp_model_piece {
    const float *input, *target;
    uint32_t count;
    double batch_total;
    bool accumulate;
    bool more;
    const struct kelp_model_sum
        *sum; /* kelp_model_sums_up() alone; NULL: flat_gradient is the lane's */
    uint64_t step, position;
    bool (*need)(void *user, uint32_t index);
    void (*complete)(void *user, uint32_t index);
    void (*idle)(void *user); /* once while the device computes and the host waits; NULL: not */
    void *user;
    float *output;            /* the model's output as it was in training, or NULL */
    struct kelp_trace *trace; /* common/log/trace.h; NULL: none */
};
/* Where a device with memory of its own adds up the gradients of a node's lanes, in the order of
 * the tree: what this lane's is in it. Lanes come with rising numbers. */
struct kelp_model_sum {
    uint32_t lane; /* of the step */
    bool begins;   /* no lane of the node has come before */
    bool ends; /* no lane of it comes: flat_gradient gets the node's sum; before that, nothing */
};
/* Is there such a device? */
bool kelp_model_sums_up(const struct kelp_model *model);

kelp_status kelp_model_train(struct kelp_model *model, const struct kelp_model_piece *piece,
                             double sums[KELP_METRIC_SUM_COUNT],
                             struct kelp_error *reterr) KELP_MUST_USE;

/*
 * The same in two, on a device with memory of its own: begin() enqueues the piece, finish() waits
 * for the oldest one that is pending, gives its sums, and writes its gradient. complete() is called
 * by finish(). Until then what the piece names is borrowed, apart from itself, and samples at most
 * until kelp_model_release(). Lanes that are begun before the one before is finished overlap.
 *
 * Samples with ids or classes out of range may show at the last finish() alone: until then nobody
 * outside relies on a gradient. After an error of either: kelp_model_drop(), and nothing else.
 */
uint32_t
kelp_model_ahead(const struct kelp_model *model); /* lanes that are of use, begun at once */
uint32_t kelp_model_pending(const struct kelp_model *model); /* pieces */
/* May this piece be begun before another one is finished? Yes, once none is pending. */
bool kelp_model_may_begin(const struct kelp_model *model, const struct kelp_model_piece *piece);
/* Errors: those of kelp_model_train(). */
kelp_status kelp_model_begin(struct kelp_model *model, const struct kelp_model_piece *piece,
                             struct kelp_error *reterr) KELP_MUST_USE;
kelp_status kelp_model_finish(struct kelp_model *model, double sums[KELP_METRIC_SUM_COUNT],
                              struct kelp_error *reterr) KELP_MUST_USE;
/* None is pending any more: waits for them, and drops their results. */
void kelp_model_drop(struct kelp_model *model);
/* Before a piece's input or target is written again while the piece is pending: waits until the
 * device has copied it. */
void kelp_model_release(struct kelp_model *model, const float *samples);

/*
 * A block of an evaluation (target) or of predictions (output), of at most batch_max samples, begun
 * likewise, and finished by kelp_model_finish(), in turn with others and never with pieces. Blocks
 * take the streams in turn. sums are kelp_model_evaluate()'s; those of predictions are not set.
 * What the block names is borrowed as of a piece; factors until begin() returns.
 */
struct kelp_model_block {
    const float *input, *target;
    const double *factors;
    uint32_t count;
    float *output;
    void (*idle)(void *user);
    void *user;
};
uint32_t kelp_model_blocks_max(const struct kelp_model *model); /* that may be pending */
bool kelp_model_may_begin_block(const struct kelp_model *model);
/* Errors: KELP_ERR_NO_MEMORY, KELP_ERR_DEVICE. */
kelp_status kelp_model_begin_block(struct kelp_model *model, const struct kelp_model_block *block,
                                   struct kelp_error *reterr) KELP_MUST_USE;

/* In idle(), once: bring the samples of the next piece to the device, beside the computing. That
 * piece takes them if it has the same input, target and count, and else they are forgotten; they
 * are borrowed until it has ended. With count 0, at any time: they are forgotten. */
void kelp_model_stage(struct kelp_model *model, const float *input, const float *target,
                      uint32_t count);
/* Memory for samples or weights, from which the device copies while the host does other things.
 * NULL: there is none. */
void *kelp_model_host_alloc(struct kelp_model *model, size_t bytes);
void kelp_model_host_free(struct kelp_model *model, void *memory); /* NULL: nothing */

/* The same sums without a gradient, for any count: batch_max samples at a time. factors: [count],
 * what turns each sample's errors into the data's own unit, 0 for none; NULL: there are none. */
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

/* What kelp_model_create() got. */
uint32_t kelp_model_batch_max(const struct kelp_model *model);

/* The dimensions of the model's output for one sample: the target's, or for classes [classes] and
 * for quantiles [..., quantiles]. Borrowed until the model is destroyed. */
const struct kelp_shape *kelp_model_output(const struct kelp_model *model);

/* The memory of the job's device, in bytes, if it has its own; 0: it has not, or nobody knows. */
uint64_t kelp_model_device_memory(const struct kelp_model *model);

/* What of it nobody has taken yet; 0: nobody knows. */
uint64_t kelp_model_device_free(const struct kelp_model *model);

/* The graph, for reading (kelp_graph_layer(), kelp_graph_memory()). Borrowed likewise. */
const struct kelp_graph *kelp_model_graph(const struct kelp_model *model);

/*
 * The compute kind of the job's device ("x86_64 avx2 openblas-0.3.21 Zen threads=1") and the
 * digest of a known-answer computation on it, for the plan.
 */
kelp_status kelp_model_compute_kind(const struct kelp_model *model, char *text, size_t text_bytes,
                                    uint64_t *ret_answer, struct kelp_error *reterr) KELP_MUST_USE;

#endif

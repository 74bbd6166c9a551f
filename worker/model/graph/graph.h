/*
 * A small graph of operators with automatic differentiation. A model builds it once, from its
 * hyper-parameters; shapes are checked while it grows, memory is planned and allocated by
 * kelp_graph_finish(), and from then on running it allocates nothing.
 *
 * Values either belong to samples (the input and everything computed from it: [n][shape], n at most
 * batch_max) or are parameters ([shape]). Parameters are in memory that the caller binds; each run
 * overwrites a parameter's gradient.
 *
 * Building: every function that adds a node returns its number, or KELP_GRAPH_NONE on failure. The
 * first failure is kept, later calls with KELP_GRAPH_NONE do nothing, and kelp_graph_finish()
 * reports it, so that a model reads as a list of layers. `name` is the layer's name in error texts,
 * for parameters PyTorch's parameter name.
 *
 * Threads: one caller per graph at a time.
 */
#ifndef KELP_WORKER_MODEL_GRAPH_GRAPH_H
#define KELP_WORKER_MODEL_GRAPH_GRAPH_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/log/trace.h"
#include "common/training/control.h"
#include "common/training/plan.h"
#include "kernels/device.h"

#define KELP_GRAPH_NONE      UINT32_MAX
#define KELP_GRAPH_NODES_MAX (4u * KELP_PLAN_TENSORS_MAX)

struct kelp_graph;

/* Dimensions; of one sample if the value belongs to samples. Rank 0 is a single number. */
struct kelp_shape {
    uint32_t rank;
    uint64_t dims[KELP_TENSOR_RANK_MAX];
};

/* stream is borrowed until the graph is destroyed. NULL: out of memory. */
struct kelp_graph *kelp_graph_create(struct kelp_stream *stream, uint32_t batch_max);
/* Does nothing for NULL. */
void kelp_graph_destroy(struct kelp_graph *graph);

/*
 * One input of the samples. Inputs are consecutive pieces of the sample's record
 * (worker/data/sample.h), in the order in which they are declared; together they must cover the
 * whole record.
 */
uint32_t kelp_graph_input(struct kelp_graph *graph, const char *name,
                          const struct kelp_shape *shape);
/* A parameter with initial values: KELP_INIT_CONSTANT, _UNIFORM or _NORMAL with a. */
struct kelp_graph_init {
    enum kelp_init_kind kind;
    float a;
};
uint32_t kelp_graph_parameter(struct kelp_graph *graph, const char *name,
                              const struct kelp_shape *shape, struct kelp_graph_init init);
/* Rows [first, first + count) of a parameter's first dimension, for use as a parameter of their
 * own; nothing is copied. Each row of such a parameter must be used exactly once, and the parameter
 * as a whole nowhere. */
uint32_t kelp_graph_rows(struct kelp_graph *graph, const char *name, uint32_t parameter,
                         uint64_t first, uint64_t count);
/* A running statistic, [channels], with initial value `initial`: not a parameter
 * (kelp_tensor.statistic). */
uint32_t kelp_graph_statistic(struct kelp_graph *graph, const char *name,
                              const struct kelp_shape *shape, float initial, float momentum);

/* Passed as `bias`: the layer has no bias. */
#define KELP_GRAPH_NO_BIAS (UINT32_MAX - 1)

/* y[..., out] = x[..., in] weight[out, in]^T + bias[out]. */
uint32_t kelp_graph_linear(struct kelp_graph *graph, const char *name, uint32_t x, uint32_t weight,
                           uint32_t bias);
/* y[g, out] = x[g, in] weights[g][out, in]^T + biases[g][out], for each group g; x has one row for
 * each group. */
uint32_t kelp_graph_linear_grouped(struct kelp_graph *graph, const char *name, uint32_t x,
                                   const uint32_t *weights, const uint32_t *biases,
                                   uint32_t group_count);
/* y[..., m, n] = a[..., m, k] b[..., k, n]; with transpose_b, b is [..., n, k]. The leading
 * dimensions of a and b must be equal. */
uint32_t kelp_graph_matmul(struct kelp_graph *graph, const char *name, uint32_t a, uint32_t b,
                           bool transpose_b);

/* Pairs are height, then width; x is [channels, height, width]. */
struct kelp_graph_window {
    uint32_t kernel[2]; /* pooling only; a convolution takes its kernel size from the weight */
    uint32_t stride[2];
    uint32_t padding[2];
    uint32_t groups; /* convolution only */
};
/* weight [out, in / groups, kernel height, kernel width], bias [out]. */
uint32_t kelp_graph_conv2d(struct kelp_graph *graph, const char *name, uint32_t x, uint32_t weight,
                           uint32_t bias, const struct kelp_graph_window *window);
uint32_t kelp_graph_max_pool(struct kelp_graph *graph, const char *name, uint32_t x,
                             const struct kelp_graph_window *window);
uint32_t kelp_graph_average_pool(struct kelp_graph *graph, const char *name, uint32_t x,
                                 const struct kelp_graph_window *window);

/* x [channels] or [channels, ...]; weight, bias parameters and mean, variance statistics, all
 * [channels]. */
struct kelp_graph_batch_norm {
    uint32_t weight, bias, mean, variance;
    float eps;
};
uint32_t kelp_graph_batch_norm(struct kelp_graph *graph, const char *name, uint32_t x,
                               const struct kelp_graph_batch_norm *norm);
/* Over the last dimension; weight and bias [last]. */
uint32_t kelp_graph_layer_norm(struct kelp_graph *graph, const char *name, uint32_t x,
                               uint32_t weight, uint32_t bias, float eps);
/* 0 <= p < 1; the identity outside training. A layer's random numbers depend on its position among
 * the graph's dropout layers. */
uint32_t kelp_graph_dropout(struct kelp_graph *graph, const char *name, uint32_t x, float p);

/* y[..., width] = table[ids[...]]. If ids is [..., m], `column` says which of the m columns holds
 * the ids; KELP_GRAPH_NONE: ids has no columns. table is [vocab, width], and ids must be an input.
 */
uint32_t kelp_graph_embedding(struct kelp_graph *graph, const char *name, uint32_t ids,
                              uint32_t column, uint32_t table);

/* Element by element (kernels/operators.h, kelp_unary). */
uint32_t kelp_graph_relu(struct kelp_graph *graph, const char *name, uint32_t x);
uint32_t kelp_graph_gelu(struct kelp_graph *graph, const char *name, uint32_t x);
uint32_t kelp_graph_elu(struct kelp_graph *graph, const char *name, uint32_t x);
uint32_t kelp_graph_sigmoid(struct kelp_graph *graph, const char *name, uint32_t x);
uint32_t kelp_graph_tanh(struct kelp_graph *graph, const char *name, uint32_t x);
uint32_t kelp_graph_scale(struct kelp_graph *graph, const char *name, uint32_t x, float factor);

/* Over the last dimension. */
uint32_t kelp_graph_softmax(struct kelp_graph *graph, const char *name, uint32_t x);
uint32_t kelp_graph_log_softmax(struct kelp_graph *graph, const char *name, uint32_t x);
/* x [..., queries, keys]: query q sees keys up to q + offset alone. */
uint32_t kelp_graph_causal_softmax(struct kelp_graph *graph, const char *name, uint32_t x,
                                   uint32_t offset);
/* y[..., w] = x[..., 0 to w - 1] sigmoid(x[..., w to 2 w - 1]). */
uint32_t kelp_graph_glu(struct kelp_graph *graph, const char *name, uint32_t x);

/* Moving average along the last dimension, kernel_size odd, ends repeated (kernels/operators.h). */
uint32_t kelp_graph_moving_average(struct kelp_graph *graph, const char *name, uint32_t x,
                                   uint32_t kernel_size);

/* a and b must have the same shape. */
uint32_t kelp_graph_add(struct kelp_graph *graph, const char *name, uint32_t a, uint32_t b);
uint32_t kelp_graph_subtract(struct kelp_graph *graph, const char *name, uint32_t a, uint32_t b);
uint32_t kelp_graph_multiply(struct kelp_graph *graph, const char *name, uint32_t a, uint32_t b);
/* y[..., d] = sum over i of weights[..., i] x[..., i, d]. */
uint32_t kelp_graph_weighted_sum(struct kelp_graph *graph, const char *name, uint32_t weights,
                                 uint32_t x);

/* Changes of shape. Axis 0 is the first dimension of one sample. */
/* y[..., c, r] = x[..., r, c] */
uint32_t kelp_graph_transpose(struct kelp_graph *graph, const char *name, uint32_t x);
/* Dimension i of y is dimension order[i] of x. order has as many entries as x has dimensions, at
 * most KELP_COPY_RANK_MAX - 1. */
uint32_t kelp_graph_permute(struct kelp_graph *graph, const char *name, uint32_t x,
                            const uint32_t *order);
/* The same elements in another shape; nothing is copied. */
uint32_t kelp_graph_reshape(struct kelp_graph *graph, const char *name, uint32_t x,
                            const struct kelp_shape *shape);
uint32_t kelp_graph_concat(struct kelp_graph *graph, const char *name, const uint32_t *parts,
                           uint32_t part_count, uint32_t axis);
uint32_t kelp_graph_slice(struct kelp_graph *graph, const char *name, uint32_t x, uint32_t axis,
                          uint64_t first, uint64_t length);
/* y has a new dimension of size `times` at `axis`. */
uint32_t kelp_graph_repeat(struct kelp_graph *graph, const char *name, uint32_t x, uint32_t axis,
                           uint64_t times);
/* y lacks the dimension at `axis`. */
uint32_t kelp_graph_reduce_sum(struct kelp_graph *graph, const char *name, uint32_t x,
                               uint32_t axis);
uint32_t kelp_graph_reduce_mean(struct kelp_graph *graph, const char *name, uint32_t x,
                                uint32_t axis);

/*
 * One LSTM layer over x [time, in] from state h, c [hidden]: y[t] = (h_t, c_t), [time, 2 hidden].
 * Parameters are those of PyTorch's nn.LSTM: weight_ih [4 hidden, in], weight_hh [4 hidden,
 * hidden], both biases [4 hidden], gates in the order i, f, g, o.
 */
struct kelp_graph_lstm {
    uint32_t weight_ih, weight_hh, bias_ih, bias_hh;
};
uint32_t kelp_graph_lstm(struct kelp_graph *graph, const char *name, uint32_t x, uint32_t h,
                         uint32_t c, const struct kelp_graph_lstm *lstm);

/* Record a failure that the caller found, as if a layer had failed. Returns KELP_GRAPH_NONE. */
uint32_t kelp_graph_fail(struct kelp_graph *graph, kelp_status status, const char *format, ...)
    KELP_PRINTF(3, 4);

/* The shape of a node; NULL for KELP_GRAPH_NONE. Borrowed until the next node is added. */
const struct kelp_shape *kelp_graph_shape(const struct kelp_graph *graph, uint32_t node);
/* Write the shape as "[3, 4]", or "[]" for rank 0; truncated if `text` is too short. */
void kelp_shape_print(const struct kelp_shape *shape, char *text, size_t text_bytes);
bool kelp_shape_equal(const struct kelp_shape *a, const struct kelp_shape *b);

/* The loss of the model's output (kernels/operators.h, kelp_criterion). */
struct kelp_graph_loss {
    enum kelp_loss_kind kind;
    double beta;             /* smooth_l1: beta, huber: delta */
    double label_smoothing;  /* cross_entropy */
    const double *quantiles; /* quantile; copied */
    uint32_t quantile_count; /* at most KELP_JOB_LIST_MAX */
};

/*
 * Set the output and the loss, plan the memory and allocate it.
 *
 * target       shape of one sample's target. It is the output's shape, with two exceptions: losses
 *              over classes take an output [classes] and a single number as target (rank 0); the
 *              quantile loss takes an output whose last dimension is the quantiles, and a target
 *              without that dimension.
 *
 * Errors: the first failure of building; KELP_ERR_INVALID (output and target do not fit, a
 *         parameter that the output does not depend on), KELP_ERR_UNSUPPORTED (the device has no
 *         such operator), KELP_ERR_LIMIT, KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_graph_finish(struct kelp_graph *graph, uint32_t output,
                              const struct kelp_shape *target, const struct kelp_graph_loss *loss,
                              struct kelp_error *reterr) KELP_MUST_USE;

/* All functions below need a finished graph. */

/* Parameters and statistics, in the order in which they were declared. ret_tensor->offset is 0. */
uint32_t kelp_graph_parameter_count(const struct kelp_graph *graph);
void kelp_graph_parameter_tensor(const struct kelp_graph *graph, uint32_t index,
                                 struct kelp_tensor *ret_tensor);
/* Give the parameter its device memory, which is borrowed until the next call for this parameter.
 * gradient may be NULL if no run trains. */
void kelp_graph_bind(struct kelp_graph *graph, uint32_t index, const float *value, float *gradient);

/* Elements of one sample's record: all inputs together. */
uint64_t kelp_graph_record_count(const struct kelp_graph *graph);

/* Device memory of the graph, in bytes. `total` was allocated: buffers that are never in use at the
 * same time share memory in it. The parts below it count each buffer as if it had memory of its
 * own, so their sum may be larger than `total`. */
struct kelp_graph_memory {
    uint64_t total;
    uint64_t values;    /* outputs of layers */
    uint64_t gradients; /* of those outputs */
    uint64_t kept;      /* what layers keep from the forward for the backward pass */
    uint64_t workspaces;
    uint64_t scratch; /* upper bound of what the device's libraries take; not part of `total` */
};
void kelp_graph_memory(const struct kelp_graph *graph, struct kelp_graph_memory *ret_memory);

/* The layers in order of declaration, with inputs and parameters, for people to read. */
struct kelp_graph_layer {
    const char *name;          /* borrowed until the graph is destroyed */
    const char *operator_name; /* "conv2d", "input", "parameter", "statistic"; borrowed likewise */
    struct kelp_shape shape;
    uint64_t parameters; /* elements of the parameters that the layer uses directly */
};
uint32_t kelp_graph_layer_count(const struct kelp_graph *graph);
void kelp_graph_layer(const struct kelp_graph *graph, uint32_t index,
                      struct kelp_graph_layer *ret_layer);

/* How many values each sample gives to a channel's statistics, in the batch norm that gets the
 * fewest; *ret_name is that layer's name. A batch of one sample that gives one value has no
 * variance. Without a batch norm: 0, and *ret_name is NULL. */
uint64_t kelp_graph_batch_norm_values(const struct kelp_graph *graph, const char **ret_name);

/*
 * Run the forward pass on `count` samples. KELP_GRAPH_EVALUATE also computes the metrics, and
 * KELP_GRAPH_TRAIN the metrics, the loss's gradient and the backward pass.
 *
 * input, target  host memory, borrowed until return; target is NULL with KELP_GRAPH_FORWARD.
 * count          at most batch_max.
 * output         host memory for the output, or NULL.
 * sums           the metrics of these samples, set on success; NULL with KELP_GRAPH_FORWARD.
 * need           called before a layer reads a parameter for the first time, and perhaps again
 *                later; it waits until the parameter is there. If it returns false, the run ends
 *                with KELP_ERR_BUSY. NULL: all parameters are there.
 * trace          gets a span for each pass and for each layer in it. On an asynchronous device a
 *                span is the time of enqueueing. A replayed step has no spans for layers. NULL: no
 *                trace.
 *
 * Only KELP_GRAPH_TRAIN reads the rest:
 * batch_total    samples of the whole step; the gradient is divided by it.
 * accumulate     add to the gradients instead of overwriting them; for a further piece of a batch.
 * seed, step     the job's seed and the training step. Together with `position`, the place of the
 *                first sample in the step's batch, they determine what dropout keeps. The other
 *                samples have the places that follow.
 * complete       called during the backward pass, each time with a smaller index: the gradients of
 *                all parameters from that index on are complete. The last call has index 0. On an
 *                asynchronous device, the work that completes them is enqueued, not done. NULL: no
 *                calls.
 *
 * Errors: KELP_ERR_LIMIT, KELP_ERR_INVALID (a class or category that does not exist),
 *         KELP_ERR_BUSY (need() returned false; the gradients are undefined), KELP_ERR_NO_MEMORY,
 *         KELP_ERR_DEVICE.
 */
enum kelp_graph_mode { KELP_GRAPH_FORWARD, KELP_GRAPH_EVALUATE, KELP_GRAPH_TRAIN };
struct kelp_graph_run {
    enum kelp_graph_mode mode;
    const float *input;
    const float *target;
    uint32_t count;
    float *output;
    double *sums; /* float64[KELP_METRIC_SUM_COUNT]; a training run sets the scalars only */
    const double
        *factors; /* KELP_GRAPH_EVALUATE: [count], for each sample the factor from its
                     target to the data's unit, 0 if it has none; NULL: no sample has one */
    double batch_total;
    bool accumulate;
    uint64_t seed, step, position;
    bool (*need)(void *user, uint32_t index);
    void (*complete)(void *user, uint32_t index);
    void *user;
    struct kelp_trace *trace;
};
kelp_status kelp_graph_run(struct kelp_graph *graph, const struct kelp_graph_run *run,
                           struct kelp_error *reterr) KELP_MUST_USE;

/* Recorded steps that are kept. A job needs one for each combination of training or evaluating,
 * a whole batch or the last batch of an epoch, and the first or second set of buffers. */
#define KELP_GRAPH_STEPS_KEPT 16

/* Runs that may have begun and not ended. With two, the device computes one while the host works on
 * the other. On a device that computes in host memory the limit is one. */
#define KELP_GRAPH_PENDING_MAX 2

/*
 * kelp_graph_run() in two parts: begin enqueues the whole run, end waits for it. Each begin that
 * succeeded needs an end with the same run; ends come in the order of the begins. Memory that the
 * run names is borrowed until its end, but `factors` only until begin returns. While other runs are
 * pending, an end need not report ids or classes that are out of range; the last end reports them.
 * Errors of begin: KELP_ERR_LIMIT, KELP_ERR_NO_MEMORY, KELP_ERR_DEVICE.
 *
 * If the device offers recordings, a run is recorded when its mode, count, accumulate and buffers,
 * and the set of its callbacks, are those of an earlier run; after that it is replayed. At most
 * KELP_GRAPH_STEPS_KEPT recordings are kept.
 */
kelp_status kelp_graph_begin(struct kelp_graph *graph, const struct kelp_graph_run *run,
                             struct kelp_error *reterr) KELP_MUST_USE;
kelp_status kelp_graph_end(struct kelp_graph *graph, const struct kelp_graph_run *run,
                           struct kelp_error *reterr) KELP_MUST_USE;

/* Runs that have begun and not ended. */
uint32_t kelp_graph_pending(const struct kelp_graph *graph);
/* Wait for all pending runs and staged samples, and discard their results. */
void kelp_graph_drop(struct kelp_graph *graph);

/*
 * Copy the samples of the next run to the device while the last run still computes, on the stream
 * of kelp_graph_copies(); target is NULL with KELP_GRAPH_FORWARD. The next run uses the copies if
 * it has the same input, target and count, and otherwise discards them. input and target are
 * borrowed until that run has ended. At most one call for each run; a call with count 0 discards
 * the copies and is allowed at any time. Without such a stream, or on a device that computes in
 * host memory, it does nothing.
 */
void kelp_graph_stage(struct kelp_graph *graph, const float *input, const float *target,
                      uint32_t count);
/* The stream for kelp_graph_stage(), of the same device; borrowed until the graph is destroyed. */
void kelp_graph_copies(struct kelp_graph *graph, struct kelp_stream *copies);
/* Give `samples`, the input or target of a pending run or of staged samples, back to the caller
 * before the run's end: waits until the device has copied them. */
void kelp_graph_release(struct kelp_graph *graph, const float *samples);

/* Whether all of the run that was begun last is enqueued; false if its need() returned false. */
bool kelp_graph_is_whole(const struct kelp_graph *graph);

/* Must be called inside need() or complete() before the caller enqueues work of its own on the
 * stream: it enqueues the graph's work so far. Runs of the same mode, count and buffers must call
 * it at the same places. */
void kelp_graph_pause(struct kelp_graph *graph);

#endif

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
 * One of the samples' inputs: pieces of the sample's record (worker/data/sample.h), in the order in
 * which they are declared; together they must be all of it.
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
/* Rows [first, first + count) of a parameter's first dimension, instead of a parameter; no
 * copy is made. Such a parameter may not be used in any other way, and each row only once. */
uint32_t kelp_graph_rows(struct kelp_graph *graph, const char *name, uint32_t parameter,
                         uint64_t first, uint64_t count);
/* A running statistic, [channels], with initial value `initial`: not a parameter
 * (kelp_tensor.statistic). */
uint32_t kelp_graph_statistic(struct kelp_graph *graph, const char *name,
                              const struct kelp_shape *shape, float initial, float momentum);

/* In place of a bias: the layer has none. */
#define KELP_GRAPH_NO_BIAS (UINT32_MAX - 1)

/* y[..., out] = x[..., in] weight[out, in]^T + bias[out]. */
uint32_t kelp_graph_linear(struct kelp_graph *graph, const char *name, uint32_t x, uint32_t weight,
                           uint32_t bias);
/* y[g, out] = x[g, in] weights[g][out, in]^T + biases[g][out], for each of the groups g, as many as
 * x has rows. */
uint32_t kelp_graph_linear_grouped(struct kelp_graph *graph, const char *name, uint32_t x,
                                   const uint32_t *weights, const uint32_t *biases,
                                   uint32_t group_count);
/* y[..., m, n] = a[..., m, k] b[..., k, n], or with transpose_b b[..., n, k]; the dimensions in
 * front are the same. */
uint32_t kelp_graph_matmul(struct kelp_graph *graph, const char *name, uint32_t a, uint32_t b,
                           bool transpose_b);

/* Sides in the order height, width; x [channels, height, width]. */
struct kelp_graph_window {
    uint32_t kernel[2]; /* pooling; a convolution takes its weight's */
    uint32_t stride[2];
    uint32_t padding[2];
    uint32_t groups; /* convolution */
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
/* 0 <= p < 1; the identity outside training. A layer's random numbers depend on its position in the
 * order of declaration. */
uint32_t kelp_graph_dropout(struct kelp_graph *graph, const char *name, uint32_t x, float p);

/* y[..., width] = table[ids[...]], or with ids [..., m] their given column: `column` is
 * KELP_GRAPH_NONE if ids has none. table [vocab, width]; ids is an input. */
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

/* Of one shape. */
uint32_t kelp_graph_add(struct kelp_graph *graph, const char *name, uint32_t a, uint32_t b);
uint32_t kelp_graph_subtract(struct kelp_graph *graph, const char *name, uint32_t a, uint32_t b);
uint32_t kelp_graph_multiply(struct kelp_graph *graph, const char *name, uint32_t a, uint32_t b);
/* y[..., d] = sum over i of weights[..., i] x[..., i, d]. */
uint32_t kelp_graph_weighted_sum(struct kelp_graph *graph, const char *name, uint32_t weights,
                                 uint32_t x);

/* Shapes. An axis counts the dimensions of one sample from 0. */
/* y[..., c, r] = x[..., r, c] */
uint32_t kelp_graph_transpose(struct kelp_graph *graph, const char *name, uint32_t x);
/* Dimension i of y is dimension order[i] of x; as many as x has, at most KELP_COPY_RANK_MAX - 1. */
uint32_t kelp_graph_permute(struct kelp_graph *graph, const char *name, uint32_t x,
                            const uint32_t *order);
/* The same elements; no copy is made. */
uint32_t kelp_graph_reshape(struct kelp_graph *graph, const char *name, uint32_t x,
                            const struct kelp_shape *shape);
uint32_t kelp_graph_concat(struct kelp_graph *graph, const char *name, const uint32_t *parts,
                           uint32_t part_count, uint32_t axis);
uint32_t kelp_graph_slice(struct kelp_graph *graph, const char *name, uint32_t x, uint32_t axis,
                          uint64_t first, uint64_t length);
/* y has a new dimension of `times` at axis. */
uint32_t kelp_graph_repeat(struct kelp_graph *graph, const char *name, uint32_t x, uint32_t axis,
                           uint64_t times);
/* The dimension at axis goes. */
uint32_t kelp_graph_reduce_sum(struct kelp_graph *graph, const char *name, uint32_t x,
                               uint32_t axis);
uint32_t kelp_graph_reduce_mean(struct kelp_graph *graph, const char *name, uint32_t x,
                                uint32_t axis);

/*
 * One LSTM layer over x [time, in] from state h, c [hidden]: y[t] = (h_t, c_t), [time, 2 hidden].
 * Parameters as PyTorch's nn.LSTM: weight_ih [4 hidden, in], weight_hh [4 hidden, hidden], both
 * biases [4 hidden], gates in the order i, f, g, o.
 */
struct kelp_graph_lstm {
    uint32_t weight_ih, weight_hh, bias_ih, bias_hh;
};
uint32_t kelp_graph_lstm(struct kelp_graph *graph, const char *name, uint32_t x, uint32_t h,
                         uint32_t c, const struct kelp_graph_lstm *lstm);

/* Keep a failure of the caller's own as if a layer had failed. Returns KELP_GRAPH_NONE. */
uint32_t kelp_graph_fail(struct kelp_graph *graph, kelp_status status, const char *format, ...)
    KELP_PRINTF(3, 4);

/* The shape of a node; NULL for KELP_GRAPH_NONE. Borrowed until the next node is added. */
const struct kelp_shape *kelp_graph_shape(const struct kelp_graph *graph, uint32_t node);
/* "[3, 4]"; "[]" for rank 0. Truncated where text is too short. */
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
 * Name the output and the loss, plan and allocate.
 *
 * target       shape of one sample's target: the output's; for losses of classes that without the
 *              output's only dimension (a single number), for quantiles that without the last one.
 *
 * Errors: the first failure of building; KELP_ERR_INVALID (output and target do not fit, a
 *         parameter that the output does not depend on), KELP_ERR_UNSUPPORTED (the device has no
 *         such operator), KELP_ERR_LIMIT, KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_graph_finish(struct kelp_graph *graph, uint32_t output,
                              const struct kelp_shape *target, const struct kelp_graph_loss *loss,
                              struct kelp_error *reterr) KELP_MUST_USE;

/* All that follows needs a finished graph. */

/* Parameters and statistics in the order in which they were declared; offset is 0. */
uint32_t kelp_graph_parameter_count(const struct kelp_graph *graph);
void kelp_graph_parameter_tensor(const struct kelp_graph *graph, uint32_t index,
                                 struct kelp_tensor *ret_tensor);
/* value and gradient are device memory, borrowed until bound again; gradient may be NULL when
 * kelp_graph_run() does not train. */
void kelp_graph_bind(struct kelp_graph *graph, uint32_t index, const float *value, float *gradient);

/* Elements of a sample's record: of all inputs together. */
uint64_t kelp_graph_record_count(const struct kelp_graph *graph);

/* What the plan takes of device memory, in bytes. The parts are what their buffers would take
 * without reuse; `total`, in which buffers that are never alive together share their place, is what
 * was allocated. */
struct kelp_graph_memory {
    uint64_t total;
    uint64_t values;    /* outputs of layers */
    uint64_t gradients; /* of those outputs */
    uint64_t kept;      /* what layers keep from the forward for the backward pass */
    uint64_t workspaces;
    uint64_t scratch; /* beside `total`: what the device's own libraries take, at most */
};
void kelp_graph_memory(const struct kelp_graph *graph, struct kelp_graph_memory *ret_memory);

/* The layers in order of declaration, parameters and inputs included, for people to read. */
struct kelp_graph_layer {
    const char *name;          /* borrowed until the graph is destroyed, as operator_name */
    const char *operator_name; /* "conv2d"; "input", "parameter", "statistic" */
    struct kelp_shape shape;
    uint64_t parameters; /* elements of the parameters that it uses directly */
};
uint32_t kelp_graph_layer_count(const struct kelp_graph *graph);
void kelp_graph_layer(const struct kelp_graph *graph, uint32_t index,
                      struct kelp_graph_layer *ret_layer);

/* The smallest number of values that a batch norm has for a channel per sample (the inner size),
 * and the layer's name: with one sample and one value there is no variance. 0 without batch norm,
 * *ret_name then is NULL. */
uint64_t kelp_graph_batch_norm_values(const struct kelp_graph *graph, const char **ret_name);

/*
 * Run forward and, with KELP_GRAPH_TRAIN, the loss's gradient and backward, on count samples.
 *
 * input, target  host memory, borrowed until return; target is NULL with KELP_GRAPH_FORWARD.
 * count          at most batch_max.
 * output         host memory for the output, or NULL.
 * sums           the metrics of these samples, set on success; NULL with KELP_GRAPH_FORWARD.
 *
 * The rest is read with KELP_GRAPH_TRAIN alone:
 * batch_total    samples of the whole step: what the gradient is divided by.
 * accumulate     add to the gradients instead of overwriting them: a further piece of a batch.
 * seed, step     of the job and of the training; with position, the place of the first sample in
 *                the step's batch (the others follow it), they decide what dropout keeps.
 * need           called before a layer reads a parameter for the first time, perhaps more often:
 *                waits for it. False: the run ends with KELP_ERR_BUSY. NULL: all are there.
 * complete       called during the backward pass, with falling indices: the gradients of the
 *                parameters from index on are complete. The last call has index 0. On a device that
 *                computes while the host goes on, all that completes them is enqueued. NULL: not.
 * trace          the passes, and in them the layers; on a device that computes while the host goes
 *                on, when they were handed to it; a step that is replayed has no layers. NULL:
 * none.
 *
 * Errors: KELP_ERR_LIMIT, KELP_ERR_INVALID (a class or category that does not exist),
 *         KELP_ERR_BUSY (need() said no: gradients are undefined), KELP_ERR_DEVICE.
 */
enum kelp_graph_mode { KELP_GRAPH_FORWARD, KELP_GRAPH_EVALUATE, KELP_GRAPH_TRAIN };
struct kelp_graph_run {
    enum kelp_graph_mode mode;
    const float *input;
    const float *target;
    uint32_t count;
    float *output;
    double *sums; /* float64[KELP_METRIC_SUM_COUNT]; a training run sets the scalars only */
    const double *factors; /* evaluating: [count], of each sample's target to the data's unit, 0 for
                              none; NULL: there are none */
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

/* Steps that are kept for replays: training and evaluating, whole batches and the last one of an
 * epoch, with one and the other of the buffers. */
#define KELP_GRAPH_STEPS_KEPT 16

/* Runs that were begun and have not ended, at most: with two, a device computes one while the host
 * sees to the other. Where streams run at once, one. */
#define KELP_GRAPH_PENDING_MAX 2

/*
 * The same in two: enqueue all of it, and wait for that. What the run names is borrowed until the
 * end, which follows each begin that succeeded, in the same order; factors until begin returns.
 * While other runs are pending, an end may say nothing of ids and classes out of range; the last
 * end does. Errors of begin: KELP_ERR_LIMIT, KELP_ERR_NO_MEMORY, KELP_ERR_DEVICE.
 *
 * Where the device offers recordings, a run that has the same mode, count, accumulate, buffers and
 * callbacks as one before is recorded and then replayed; at most KELP_GRAPH_STEPS_KEPT are kept.
 */
kelp_status kelp_graph_begin(struct kelp_graph *graph, const struct kelp_graph_run *run,
                             struct kelp_error *reterr) KELP_MUST_USE;
kelp_status kelp_graph_end(struct kelp_graph *graph, const struct kelp_graph_run *run,
                           struct kelp_error *reterr) KELP_MUST_USE;

/* Runs that are pending. */
uint32_t kelp_graph_pending(const struct kelp_graph *graph);
/* None is any more, nor is what was staged: waits for them, and drops their results. */
void kelp_graph_drop(struct kelp_graph *graph);

/*
 * On a device with memory of its own, beside the run that was begun last: bring the samples of the
 * run to come there, on a stream of the same device; target is NULL with KELP_GRAPH_FORWARD. The
 * next run takes them if it has the same input, target and count, and else forgets them; both are
 * borrowed until it has ended. Once for each run; with count 0, at any time, what was brought is
 * forgotten. Elsewhere, and without such a stream, it does nothing.
 */
void kelp_graph_stage(struct kelp_graph *graph, const float *input, const float *target,
                      uint32_t count);
/* That stream; borrowed until the graph is destroyed. */
void kelp_graph_copies(struct kelp_graph *graph, struct kelp_stream *copies);
/* What a run has as input or target, or was brought, is the caller's again before the run has
 * ended: waits until the device has copied it. */
void kelp_graph_release(struct kelp_graph *graph, const float *samples);

/* Of the run that was begun last: is all of it enqueued? need() may have said no. */
bool kelp_graph_is_whole(const struct kelp_graph *graph);

/* In need() and complete(), before the caller gives the stream work of its own: what came before
 * has been enqueued then. In the same calls of each run with the same mode, count and buffers. */
void kelp_graph_pause(struct kelp_graph *graph);

#endif

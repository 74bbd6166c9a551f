/*
 * The arguments of operators, shared by all devices. Pointers are device memory unless their
 * comment says host; the structs themselves are read before the call returns. kernels/device.h has
 * the rules common to all. "dx = or +=" means that `write` decides; a NULL gradient is not
 * computed.
 */
#ifndef KELP_KERNELS_OPERATORS_H
#define KELP_KERNELS_OPERATORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/job/job.h"
#include "kernels/optimizer.h"

/* What an operator does with the previous contents of its output. */
enum kelp_write { KELP_OVERWRITE, KELP_ACCUMULATE };

/* C = op(A) op(B), or C += with KELP_ACCUMULATE; op transposes where the flag is set.
 * op(A) is [m, k], op(B) is [k, n], C is [m, n]; with a flag set the matrix is stored transposed,
 * and its ld is that of the stored form. With a batch, the strides are the distances between the
 * matrices of consecutive products, in elements (0: the same matrix; for A and B only). */
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
    uint32_t batch; /* 0 means 1 */
    uint64_t stride_a, stride_b, stride_c;
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
 * The moving average of each row of x, of width kernel_size (odd), with the row's first and last
 * value repeated (kernel_size - 1) / 2 times before and after it:
 * y[r][t] = (sum of the kernel_size values around t, ascending) / kernel_size.
 * The gradient reads dy from x and writes dx to y. x, y are [rows, length], dense.
 */
struct kelp_moving_average {
    const float *x;
    float *y;
    uint32_t rows, length, kernel_size;
    float *workspace;      /* float32[kelp_moving_average_workspace()] */
    enum kelp_write write; /* gradient only */
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
 * Functions of one element. Formulas are PyTorch's: gelu is x Phi(x) with erf, elu has alpha 1. The
 * gradient reads what it needs, y or x: relu, elu, sigmoid and tanh read y only, gelu x only, and
 * the other pointer may be NULL.
 */
enum kelp_unary_kind {
    KELP_UNARY_RELU,
    KELP_UNARY_GELU,
    KELP_UNARY_ELU,
    KELP_UNARY_SIGMOID,
    KELP_UNARY_TANH
};
struct kelp_unary {
    enum kelp_unary_kind kind;
    const float *x;
    float *y; /* may be x */
    uint64_t count;
};
struct kelp_unary_gradient {
    enum kelp_unary_kind kind;
    const float *x, *y, *dy;
    float *dx; /* dx = or += dy f'(x); with KELP_OVERWRITE may be dy */
    uint64_t count;
    enum kelp_write write;
};

/*
 * A linear layer: y = f(x weight^T + bias), where f is an elementwise function, or the identity.
 * Rows of x and dx are x_ld apart, rows of y and dy y_ld; with a function y_ld is `out`. The
 * gradient reads what the function's gradient reads: for gelu the sums before it, which the forward
 * pass stores in `sums`, otherwise y. dsums gets the gradient of the sums, dy f'.
 */
struct kelp_linear {
    uint32_t rows, in, out;
    const float *x; /* [rows, in] */
    uint64_t x_ld;
    const float *weight, *bias; /* [out, in]; [out] or NULL */
    bool activated;
    enum kelp_unary_kind activation;
    float *sums; /* [rows, out]; gelu only, otherwise ignored */
    float *y;    /* [rows, out] */
    uint64_t y_ld;
    const float *dy;             /* gradient */
    float *dsums;                /* [rows, out]; activated only; may be dy */
    float *dx, *dweight, *dbias; /* each may be NULL: not computed */
    enum kelp_write write_x, write_weight, write_bias;
};

/* y = or += a b, element by element. */
struct kelp_multiply {
    const float *a, *b;
    float *y;
    uint64_t count;
    enum kelp_write write;
};

/*
 * y[i] = or += scale * x[i] over all indices i of dims, each array with strides of its own, in
 * elements: slices, concatenation, permutations, and (x stride 0) repetition. Without overlap in y.
 */
#define KELP_COPY_RANK_MAX 6
struct kelp_copy {
    uint32_t rank;
    uint64_t dims[KELP_COPY_RANK_MAX];
    const float *x;
    uint64_t x_strides[KELP_COPY_RANK_MAX];
    float *y;
    uint64_t y_strides[KELP_COPY_RANK_MAX];
    float scale;
    enum kelp_write write;
};

/* y[o][i] = or += scale * (sum over m of x[o][m][i]), in an order that depends on the sizes alone;
 * x is [outer, middle, inner]. */
struct kelp_reduce {
    const float *x;
    float *y;
    uint64_t outer, middle, inner;
    float scale;
    enum kelp_write write;
};

/* y[r][d] = sum over i, ascending, of weights[r][i] x[r][i][d]; x is [rows, count, width].
 * Gradients: dweights[r][i] = or += sum of dy[r] x[r][i]; dx[r][i][d] = or += weights[r][i]
 * dy[r][d]. */
struct kelp_weighted_sum {
    const float *weights, *x;
    float *y; /* forward */
    uint32_t rows, count, width;
    const float *dy; /* gradient */
    float *dweights, *dx;
    enum kelp_write write_weights, write_x;
};

/* y = softmax, or its logarithm, of each row of x, the largest element taken off first. With
 * causal, row r is query q = r % queries and sees columns up to q + offset alone; the others get 0
 * (the logarithm is not offered then). y may be x. Gradient: from y and dy. */
struct kelp_softmax {
    const float *x;
    float *y;
    uint64_t rows;
    uint32_t columns;
    bool logarithm;
    bool causal;
    uint32_t queries, offset;
    const float *dy; /* gradient; y is read */
    float *dx;       /* with KELP_OVERWRITE may be dy */
    enum kelp_write write;
};

/* y[r][j] = x[r][j] sigmoid(x[r][width + j]); x is [rows, 2 width]. */
struct kelp_glu {
    const float *x;
    float *y;
    uint64_t rows;
    uint32_t width;
    const float *dy;
    float *dx; /* [rows, 2 width] */
    enum kelp_write write;
};

/* y[r] = (x[r] - mean[r]) rstd[r] * weight + bias over rows of `width`, variance biased. mean and
 * rstd are written by the forward pass and read by the gradient. */
struct kelp_layer_norm {
    const float *x, *weight, *bias;
    float *y, *mean, *rstd; /* mean, rstd: [rows] */
    uint64_t rows;
    uint32_t width;
    float eps;
    const float *dy;
    float *dx, *dweight, *dbias;
    enum kelp_write write_x, write_weight, write_bias;
};

/* How the elements of each sample's images stand: [channels, height, width], or [height, width,
 * channels], which only devices whose table says channels_last take. */
enum kelp_layout { KELP_CHANNELS_FIRST, KELP_CHANNELS_LAST };

/*
 * Batch norm over x [samples, channels, inner] (inner 1: 1-D), or with KELP_CHANNELS_LAST
 * [samples, inner, channels]. Training: normalised by the batch's
 * mean and biased variance, which go to mean and rstd; statistic_mean and statistic_variance, the
 * "gradients" of the running statistics, get statistic_scale times the batch's mean and unbiased
 * variance. Otherwise by running_mean and running_variance.
 */
struct kelp_batch_norm {
    const float *x, *weight, *bias;
    float *y;
    uint32_t samples, channels;
    uint64_t inner;
    enum kelp_layout layout;
    float eps;
    bool training;
    const float *running_mean, *running_variance; /* [channels] */
    float *mean, *rstd;                           /* [channels]; training */
    const float *statistic_scale;                 /* one value; training */
    float *statistic_mean, *statistic_variance;   /* [channels]; training; NULL: not wanted */
    enum kelp_write write_statistic;
    const float *dy; /* gradient, of the training form */
    float *dx, *dweight, *dbias;
    enum kelp_write write_x, write_weight, write_bias;
};

/*
 * y = x / (1 - p) where the element is kept, else 0; the gradient is the same of dy. What is kept
 * follows from the seed, the step, the layer (`use`), the sample's position in its step, and the
 * element's index in the sample: philox4x32 of counter (index / 4, position, step low, step high)
 * and key (seed and use mixed, kernels/cpu/loops/loops_dropout.c); word index % 4 at or above p
 * 2^32 keeps. Fewer than 2^33 elements.
 */
struct kelp_dropout {
    const float *x;
    float *y; /* may be x */
    uint32_t samples;
    uint64_t elements;         /* of one sample */
    float p;                   /* 0 <= p < 1 */
    uint32_t use;              /* the layer */
    const uint64_t *seed_step; /* uint64[2]: seed, training step */
    const uint32_t *positions; /* uint32[samples] */
    enum kelp_write write;     /* of y; the gradient alone accumulates */
};

/* y[r] = table[ids[r]]: rows of `width`; ids are whole numbers below `vocab` as float32. One that
 * is not is an error of the stream (KELP_ERR_INVALID at wait()). Gradient: dtable[id] = or += the
 * sum of dy over the rows with that id, rows ascending; KELP_OVERWRITE zeroes the table first.
 * ids_stride: elements between one row's id and the next one's. */
struct kelp_embedding {
    const float *ids;
    uint64_t ids_stride;
    uint64_t rows;
    uint32_t vocab, width;
    const float *table;
    float *y;
    const float *dy;
    float *dtable;
    enum kelp_write write;
};

/*
 * One step of an LSTM for `batch` sequences, gates in PyTorch's order i, f, g, o. gates
 * [batch, 4 hidden] holds the sums before activation and keeps the activated values.
 * c = f c_before + i g, h = o tanh(c). Rows of h are h_ld apart. The gradient takes dh (+= of both
 * sources done by the caller) and dc, and leaves the gradient of the sums in dgates and that of
 * c_before in dc.
 */
struct kelp_lstm_cell {
    uint32_t batch, hidden;
    float *gates;
    const float *c_before;
    float *c, *h;
    uint64_t h_ld;
    const float *dh;
    uint64_t dh_ld;
    float *dc;
    float *dgates;
};

/*
 * An LSTM layer over whole sequences, each step as above: gates = x weight_ih^T + bias_ih + bias_hh
 * + h weight_hh^T, from h_first and c_first on. y holds (h, c) of each step. `kept` is left by the
 * forward pass for the gradient, on the same device and in an order of that device's own. The
 * gradient reads y, too. time is at least 1.
 */
struct kelp_lstm {
    uint32_t batch, time, in, hidden;
    const float *x;                     /* [batch, time, in] */
    const float *h_first, *c_first;     /* [batch, hidden] */
    const float *weight_ih, *weight_hh; /* [4 hidden, in], [4 hidden, hidden] */
    const float *bias_ih, *bias_hh;     /* [4 hidden] */
    float *y;                           /* [batch, time, 2 hidden] */
    float *kept;                        /* float32[batch hidden kelp_lstm_kept(time)] */
    const float *dy;                    /* gradient; like y */
    float *workspace;                   /* float32[batch hidden kelp_lstm_workspace(time)] */
    float *dx, *dh_first, *dc_first;    /* each NULL when not wanted, as those of the parameters */
    float *dweight_ih, *dweight_hh, *dbias_ih, *dbias_hh;
    enum kelp_write write_x, write_h, write_c;
    enum kelp_write write_weight_ih, write_weight_hh, write_bias_ih, write_bias_hh;
};
static inline uint64_t kelp_lstm_kept(uint64_t time)
{
    return 5 * time;
}
static inline uint64_t kelp_lstm_workspace(uint64_t time)
{
    return 4 * time + 2;
}

/* Sizes of a convolution or pooling over [samples, channels, height, width], sides in the order
 * height, width. output = (input + 2 padding - kernel) / stride + 1, rounded down. Pooling: padding
 * is smaller than the kernel, so that no window is all padding. `layout` is that of x, y and their
 * gradients; weights have one form. */
struct kelp_window {
    uint32_t channels, input[2], kernel[2], stride[2], padding[2], output[2];
    enum kelp_layout layout;
};

/*
 * 2-D convolution (cross-correlation, as PyTorch). Made once for a shape by conv2d_create(), since
 * a device may have to prepare it; a run takes any number of samples up to samples_max. weight
 * [channels_out, channels / groups, kernel], bias [channels_out] or NULL.
 */
struct kelp_conv2d_shape {
    struct kelp_window window; /* channels: in */
    uint32_t channels_out, groups, samples_max;
};
struct kelp_conv2d; /* opaque, of a device */
struct kelp_conv2d_run {
    struct kelp_conv2d *conv;
    uint32_t samples;
    const float *x, *weight, *bias;
    float *y;
    float *workspace; /* float32[conv2d_workspace()], contents of no interest before and after */
    const float *dy;  /* gradient: each of the three NULL when not wanted */
    float *dx, *dweight, *dbias;
    enum kelp_write write_x, write_weight, write_bias;
};

/* Max pooling keeps for each output where its value came from: the offset in a plane of one channel
 * alone, whatever the layout, the first of equal ones (NaN counts as largest). Padding is never
 * chosen. */
struct kelp_max_pool {
    struct kelp_window window;
    uint32_t samples;
    const float *x;
    float *y;
    uint32_t *chosen; /* uint32, one for each of y: written forward, read by the gradient */
    const float *dy;
    float *dx;
    enum kelp_write write;
};

/* Average pooling; padding counts as zeros in the average (PyTorch's default). */
struct kelp_average_pool {
    struct kelp_window window;
    uint32_t samples;
    const float *x;
    float *y;
    const float *dy;
    float *dx;
    enum kelp_write write;
};

/*
 * The loss of `samples` samples: output [samples, elements], target [samples, target_elements].
 *   mse, mae, smooth_l1, huber, bce, bce_with_logits  target like output; mean over the elements
 *   cross_entropy, nll  output: `elements` classes; target: one class number
 *   quantile            output [.., quantile_count], target [..]: elements = target_elements times
 *                       quantile_count; mean over elements of max(q e, (q - 1) e), where e is the
 *                       target less the output
 *
 * gradient = *gradient_scale times the gradient of the sample's mean loss, so the scale is 1 over
 * the samples of the whole step. A class that is no whole number below `elements` is an error of
 * the stream (KELP_ERR_INVALID at wait()).
 *
 * sums float64[KELP_LOSS_SUMS] for each sample, in double, in an order that depends on the number
 * of elements alone. SQUARED to TARGET_SQUARED compare the forecast (the output; of quantiles the
 * middle one, index quantile_count / 2; of bce_with_logits its sigmoid) with the target, element by
 * element; for class losses they are zero. CORRECT counts elements: the largest class is the
 * target's (the first of equal ones), or for other losses forecast >= 0.5 and target >= 0.5 are the
 * same. SCORE is the forecast of the first element, for AUC, or for two classes the probability
 * of class 1; 0 otherwise.
 */
enum kelp_loss_sum {
    KELP_LOSS_SUM_LOSS, /* of the sample: already divided by its elements */
    KELP_LOSS_SUM_SQUARED,
    KELP_LOSS_SUM_ABSOLUTE,
    KELP_LOSS_SUM_RELATIVE,         /* |d / target|, infinite where the target is 0 */
    KELP_LOSS_SUM_RELATIVE_SQUARED, /* (d / target)^2 */
    KELP_LOSS_SUM_TARGET,
    KELP_LOSS_SUM_TARGET_SQUARED,
    KELP_LOSS_SUM_CORRECT,
    KELP_LOSS_SUM_SCORE,
    KELP_LOSS_SUMS = 10 /* one to spare */
};
struct kelp_criterion {
    enum kelp_loss_kind kind;
    const float *output;
    const float *target;
    uint32_t samples;
    uint64_t elements, target_elements;
    double beta;             /* smooth_l1: beta, huber: delta */
    double label_smoothing;  /* cross_entropy */
    const double *quantiles; /* host, float64[quantile_count] */
    uint32_t quantile_count;
    const float *gradient_scale; /* one value; not read when gradient is NULL */
    float *gradient;             /* like output, or NULL */
    double *sums;                /* float64[samples][KELP_LOSS_SUMS] */
    bool loss_alone;             /* of the sums; the others are then 0, as in training */
    float *workspace;            /* float32[samples * elements] for class losses, else NULL */
};

/* The operators with matrix products in them: X(name, parameters behind the stream). The CPU
 * composes them of products and loops (kernels/cpu/composed.h). */
#define KELP_PRODUCT_OPERATORS(X)                                                                  \
    X(matmul, const struct kelp_matmul *p)                                                         \
    X(linear, const struct kelp_linear *p)                                                         \
    X(linear_gradient, const struct kelp_linear *p)                                                \
    X(lstm, const struct kelp_lstm *p)                                                             \
    X(lstm_gradient, const struct kelp_lstm *p)

/* One update of `count` elements, as kelp_optimizer_apply() does it: all kinds but lamb. not_finite
 * becomes |= 1 where a gradient element is not. */
struct kelp_optimizer_run {
    struct kelp_optimizer_step step;
    uint64_t count;
    const float *weights, *gradient;
    float *weights_next;                    /* not overlapping weights */
    float *slots[KELP_OPTIMIZER_SLOTS_MAX]; /* those of the optimizer, then NULL */
    uint32_t *not_finite;                   /* [1] */
};

/*
 * The operators that a device does as loops over arrays: X(name, parameters behind the stream).
 * A line here, and a function KELP_LOOP(name) in kernels/cpu/loops/, put an operator into the
 * table of kernels/device.h and into each variant of the CPU's. fill: value everywhere; axpy:
 * y += alpha x; add, subtract: y = a + b, y = a - b, y may be a or b.
 */
#define KELP_OPERATORS(X)                                                                          \
    X(fill, float *values, float value, uint64_t count)                                            \
    X(axpy, float *y, float alpha, const float *x, uint64_t count)                                 \
    X(add, float *y, const float *a, const float *b, uint64_t count)                               \
    X(subtract, float *y, const float *a, const float *b, uint64_t count)                          \
    X(bias_add, const struct kelp_bias *p)                                                         \
    X(bias_gradient, const struct kelp_bias_gradient *p)                                           \
    X(moving_average, const struct kelp_moving_average *p)                                         \
    X(moving_average_gradient, const struct kelp_moving_average *p)                                \
    X(transpose, const struct kelp_transpose *p)                                                   \
    X(unary, const struct kelp_unary *p)                                                           \
    X(unary_gradient, const struct kelp_unary_gradient *p)                                         \
    X(multiply, const struct kelp_multiply *p)                                                     \
    X(copy, const struct kelp_copy *p)                                                             \
    X(reduce, const struct kelp_reduce *p)                                                         \
    X(weighted_sum, const struct kelp_weighted_sum *p)                                             \
    X(weighted_sum_gradient, const struct kelp_weighted_sum *p)                                    \
    X(softmax, const struct kelp_softmax *p)                                                       \
    X(softmax_gradient, const struct kelp_softmax *p)                                              \
    X(glu, const struct kelp_glu *p)                                                               \
    X(glu_gradient, const struct kelp_glu *p)                                                      \
    X(layer_norm, const struct kelp_layer_norm *p)                                                 \
    X(layer_norm_gradient, const struct kelp_layer_norm *p)                                        \
    X(batch_norm, const struct kelp_batch_norm *p)                                                 \
    X(batch_norm_gradient, const struct kelp_batch_norm *p)                                        \
    X(dropout, const struct kelp_dropout *p)                                                       \
    X(embedding, const struct kelp_embedding *p)                                                   \
    X(embedding_gradient, const struct kelp_embedding *p)                                          \
    X(lstm_cell, const struct kelp_lstm_cell *p)                                                   \
    X(lstm_cell_gradient, const struct kelp_lstm_cell *p)                                          \
    X(max_pool, const struct kelp_max_pool *p)                                                     \
    X(max_pool_gradient, const struct kelp_max_pool *p)                                            \
    X(average_pool, const struct kelp_average_pool *p)                                             \
    X(average_pool_gradient, const struct kelp_average_pool *p)                                    \
    X(optimizer, const struct kelp_optimizer_run *p)                                               \
    X(criterion, const struct kelp_criterion *p)

#endif

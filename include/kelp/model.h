/*
 * A model of your own: a shared library that the job file names (`model: {plugin: ./mymodel.so}`)
 * and whose one function describes the model once, layer by layer. docs/MODELS.md shows how;
 * examples/plugin is one to start from.
 *
 *     #include <kelp/model.h>
 *
 *     static uint32_t build(const struct kelp_model_api *api, struct kelp_model_builder *b)
 *     {
 *         const struct kelp_model_tensor *in = api->sample_input(b, 0);
 *         uint32_t x = api->input(b, "input", in->rank, in->dims);
 *         x = api->relu(b, "relu", api->layer_linear(b, "fc1", x, 64, 1));
 *         return api->layer_linear(b, "fc2", x, 1, 1);
 *     }
 *     KELP_MODEL("mymodel", build)
 *
 * The library needs only this header: it links to nothing of Kelp's, and calls the table that it is
 * given. The table only grows at its end, so a library built today loads into every later Kelp of
 * the same KELP_MODEL_ABI.
 *
 * Functions of the table add a node and return its number, or KELP_MODEL_NONE on failure. The first
 * failure is kept and reported with the layer's name and the shapes; calls with KELP_MODEL_NONE do
 * nothing, so nothing has to be checked in between. Shapes are those of one sample, without the
 * batch. `name` is the layer's name in error texts, for parameters PyTorch's parameter name. Texts
 * and arrays are borrowed until the function returns.
 *
 * A model must be the same each time it is built: it may depend on its params and the sample's
 * shape, not on time, environment or random numbers. All workers must have the same library; its
 * digest is part of the job's plan.
 *
 * Threads: build() is called on one thread, and may call the table only until it returns.
 */
#ifndef KELP_MODEL_H
#define KELP_MODEL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KELP_MODEL_ABI     1u
#define KELP_MODEL_NONE    UINT32_MAX
#define KELP_MODEL_NO_BIAS (UINT32_MAX - 1) /* in place of a bias: the layer has none */

struct kelp_model_builder; /* Kelp's; valid during build() */

/* An input of the samples, or their target. Kelp's; valid during build(). */
struct kelp_model_tensor {
    size_t size; /* of this struct, as Kelp knows it */
    uint32_t rank;
    const uint64_t *dims;
    /* 0: any numbers. Otherwise categories: those at index i of the last dimension are below
     * vocab[i]. A target of classes has one entry, the number of classes. */
    uint32_t vocab_count;
    const uint32_t *vocab;
};

enum kelp_model_init {
    KELP_MODEL_INIT_CONSTANT, /* a */
    KELP_MODEL_INIT_UNIFORM,  /* [-a, a) */
    KELP_MODEL_INIT_NORMAL    /* mean 0, standard deviation a */
};

/* Window over images: height, then width. */
struct kelp_model_window {
    size_t size; /* sizeof(struct kelp_model_window) */
    uint32_t kernel[2];
    uint32_t stride[2];
    uint32_t padding[2];
    uint32_t groups; /* of a convolution; 0 means 1 */
};

struct kelp_model_api {
    size_t size; /* of this table, as Kelp knows it */

    /* ---- the job ---- */

    /* The text of `name=text` in the job's model.params; NULL: not set. Valid during build(). */
    const char *(*param)(struct kelp_model_builder *b, const char *name);
    /* The same as an integer from low to high; `otherwise` if not set. Any other text fails the
     * model with a line that names the param. */
    uint64_t (*param_integer)(struct kelp_model_builder *b, const char *name, uint64_t otherwise,
                              uint64_t low, uint64_t high);
    double (*param_number)(struct kelp_model_builder *b, const char *name, double otherwise,
                           double low, double high);
    uint32_t (*sample_input_count)(struct kelp_model_builder *b);
    const struct kelp_model_tensor *(*sample_input)(struct kelp_model_builder *b, uint32_t index);
    const struct kelp_model_tensor *(*sample_target)(struct kelp_model_builder *b);
    /* Fail, saying why in one line. Returns KELP_MODEL_NONE. */
    uint32_t (*fail)(struct kelp_model_builder *b, const char *text);

    /* ---- nodes without operands ---- */

    /* The inputs, in order; together they must be all of the sample. */
    uint32_t (*input)(struct kelp_model_builder *b, const char *name, uint32_t rank,
                      const uint64_t *dims);
    uint32_t (*parameter)(struct kelp_model_builder *b, const char *name, uint32_t rank,
                          const uint64_t *dims, enum kelp_model_init init, double a);
    /* A running statistic, such as batch norm's; the optimizer does not update it. */
    uint32_t (*statistic)(struct kelp_model_builder *b, const char *name, uint32_t rank,
                          const uint64_t *dims, double initial, double momentum);
    /* A node's rank and dimensions; 0 for KELP_MODEL_NONE and past the last dimension. */
    uint32_t (*rank)(struct kelp_model_builder *b, uint32_t node);
    uint64_t (*dim)(struct kelp_model_builder *b, uint32_t node, uint32_t axis);

    /* ---- layers with PyTorch's parameters, names and initial values ---- */

    uint32_t (*layer_linear)(struct kelp_model_builder *b, const char *name, uint32_t x,
                             uint64_t out, int bias);
    uint32_t (*layer_conv2d)(struct kelp_model_builder *b, const char *name, uint32_t x,
                             uint64_t out, const struct kelp_model_window *window, int bias);
    uint32_t (*layer_batch_norm)(struct kelp_model_builder *b, const char *name, uint32_t x);
    uint32_t (*layer_layer_norm)(struct kelp_model_builder *b, const char *name, uint32_t x);
    /* ids: an input of categories; column: index in its last dimension, KELP_MODEL_NONE if it has
     * none. */
    uint32_t (*layer_embedding)(struct kelp_model_builder *b, const char *name, uint32_t ids,
                                uint32_t column, uint64_t vocab, uint64_t width);
    /* x [time, in], initial state h and c [hidden]; y[t] = (h, c) of time t, [time, 2 hidden]. */
    uint32_t (*layer_lstm)(struct kelp_model_builder *b, const char *name, uint32_t x, uint32_t h,
                           uint32_t c);
    /* queries [q, width]; keys, which are also the values, [k, width]. */
    uint32_t (*layer_attention)(struct kelp_model_builder *b, const char *name, uint32_t queries,
                                uint32_t keys, uint32_t heads);

    /* ---- operators with parameters of your own ---- */

    /* y[..., out] = x[..., in] weight[out, in]^T + bias[out] */
    uint32_t (*linear)(struct kelp_model_builder *b, const char *name, uint32_t x, uint32_t weight,
                       uint32_t bias);
    /* y[g, out] = x[g, in] weights[g][out, in]^T + biases[g][out] for each of x's rows g */
    uint32_t (*linear_grouped)(struct kelp_model_builder *b, const char *name, uint32_t x,
                               const uint32_t *weights, const uint32_t *biases, uint32_t groups);
    /* weight [out, in / groups, kernel height, kernel width], bias [out] */
    uint32_t (*conv2d)(struct kelp_model_builder *b, const char *name, uint32_t x, uint32_t weight,
                       uint32_t bias, const struct kelp_model_window *window);
    /* All [channels]: weight, bias, and the statistics mean and variance. */
    uint32_t (*batch_norm)(struct kelp_model_builder *b, const char *name, uint32_t x,
                           const uint32_t weight_bias_mean_variance[4], double eps);
    uint32_t (*layer_norm)(struct kelp_model_builder *b, const char *name, uint32_t x,
                           uint32_t weight, uint32_t bias, double eps);
    uint32_t (*embedding)(struct kelp_model_builder *b, const char *name, uint32_t ids,
                          uint32_t column, uint32_t table);
    /* weight_ih [4 hidden, in], weight_hh [4 hidden, hidden], both biases [4 hidden] */
    uint32_t (*lstm)(struct kelp_model_builder *b, const char *name, uint32_t x, uint32_t h,
                     uint32_t c, const uint32_t weight_ih_hh_bias_ih_hh[4]);

    /* ---- operators without parameters ---- */

    /* y[..., m, n] = a[..., m, k] b[..., k, n]; with transpose_b b is [..., n, k] */
    uint32_t (*matmul)(struct kelp_model_builder *b, const char *name, uint32_t left,
                       uint32_t right, int transpose_b);
    uint32_t (*max_pool)(struct kelp_model_builder *b, const char *name, uint32_t x,
                         const struct kelp_model_window *window);
    uint32_t (*average_pool)(struct kelp_model_builder *b, const char *name, uint32_t x,
                             const struct kelp_model_window *window);
    uint32_t (*dropout)(struct kelp_model_builder *b, const char *name, uint32_t x, double p);
    uint32_t (*relu)(struct kelp_model_builder *b, const char *name, uint32_t x);
    uint32_t (*gelu)(struct kelp_model_builder *b, const char *name, uint32_t x);
    uint32_t (*elu)(struct kelp_model_builder *b, const char *name, uint32_t x);
    uint32_t (*sigmoid)(struct kelp_model_builder *b, const char *name, uint32_t x);
    uint32_t (*tanh)(struct kelp_model_builder *b, const char *name, uint32_t x);
    uint32_t (*scale)(struct kelp_model_builder *b, const char *name, uint32_t x, double factor);
    /* Over the last dimension. */
    uint32_t (*softmax)(struct kelp_model_builder *b, const char *name, uint32_t x);
    uint32_t (*log_softmax)(struct kelp_model_builder *b, const char *name, uint32_t x);
    /* x [..., queries, keys]: query q attends to keys up to q + offset only. */
    uint32_t (*causal_softmax)(struct kelp_model_builder *b, const char *name, uint32_t x,
                               uint32_t offset);
    /* y[..., w] = x[..., w] sigmoid(x[..., width + w]) */
    uint32_t (*glu)(struct kelp_model_builder *b, const char *name, uint32_t x);
    /* Along the last dimension; kernel is odd; the edge values are repeated. */
    uint32_t (*moving_average)(struct kelp_model_builder *b, const char *name, uint32_t x,
                               uint32_t kernel);
    uint32_t (*add)(struct kelp_model_builder *b, const char *name, uint32_t left, uint32_t right);
    uint32_t (*subtract)(struct kelp_model_builder *b, const char *name, uint32_t left,
                         uint32_t right);
    uint32_t (*multiply)(struct kelp_model_builder *b, const char *name, uint32_t left,
                         uint32_t right);
    /* y[..., d] = sum over i of weights[..., i] x[..., i, d] */
    uint32_t (*weighted_sum)(struct kelp_model_builder *b, const char *name, uint32_t weights,
                             uint32_t x);
    uint32_t (*transpose)(struct kelp_model_builder *b, const char *name, uint32_t x);
    /* Dimension i of y is dimension order[i] of x. */
    uint32_t (*permute)(struct kelp_model_builder *b, const char *name, uint32_t x,
                        const uint32_t *order);
    uint32_t (*reshape)(struct kelp_model_builder *b, const char *name, uint32_t x, uint32_t rank,
                        const uint64_t *dims);
    uint32_t (*concat)(struct kelp_model_builder *b, const char *name, const uint32_t *parts,
                       uint32_t part_count, uint32_t axis);
    uint32_t (*slice)(struct kelp_model_builder *b, const char *name, uint32_t x, uint32_t axis,
                      uint64_t first, uint64_t length);
    uint32_t (*repeat)(struct kelp_model_builder *b, const char *name, uint32_t x, uint32_t axis,
                       uint64_t times);
    uint32_t (*reduce_sum)(struct kelp_model_builder *b, const char *name, uint32_t x,
                           uint32_t axis);
    uint32_t (*reduce_mean)(struct kelp_model_builder *b, const char *name, uint32_t x,
                            uint32_t axis);
    /* Add new functions here, after all others. */
};

/* What the library exports, as `kelp_model_plugin`. */
struct kelp_model_plugin {
    uint32_t abi;    /* KELP_MODEL_ABI; always first */
    size_t size;     /* sizeof(struct kelp_model_plugin) */
    size_t api_size; /* sizeof(struct kelp_model_api): what the library may call */
    const char *name;
    /* Adds inputs and layers, and returns the output. Its shape is the target's, or what train.loss
     * needs: [classes] for cross_entropy and nll, [..., quantiles] for quantile. */
    uint32_t (*build)(const struct kelp_model_api *api, struct kelp_model_builder *b);
};

#if defined(__GNUC__)
#define KELP_MODEL_VISIBLE __attribute__((visibility("default")))
#else
#define KELP_MODEL_VISIBLE
#endif

/* This declaration makes the following definition visible, also in C++. */
extern KELP_MODEL_VISIBLE const struct kelp_model_plugin kelp_model_plugin;

/* Export a model: once per library, outside any function. */
#define KELP_MODEL(model_name, build_function)                                                     \
    const struct kelp_model_plugin kelp_model_plugin = {                                           \
        KELP_MODEL_ABI, sizeof(struct kelp_model_plugin), sizeof(struct kelp_model_api),           \
        model_name, build_function};

#ifdef __cplusplus
}
#endif

#endif

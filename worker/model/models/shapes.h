/* What the models share: reading the sample's shape, and saying what they take. */
#ifndef KELP_WORKER_MODEL_MODELS_SHAPES_H
#define KELP_WORKER_MODEL_MODELS_SHAPES_H

#include "worker/model/graph/layers.h"
#include "worker/model/model_build.h"

struct kelp_shape kelp__model_shape_of(const struct kelp_sample_tensor *tensor);

static inline struct kelp_shape kelp__model_shape1(uint64_t a)
{
    return (struct kelp_shape){.rank = 1, .dims = {a}};
}
static inline struct kelp_shape kelp__model_shape2(uint64_t a, uint64_t b)
{
    return (struct kelp_shape){.rank = 2, .dims = {a, b}};
}
static inline struct kelp_shape kelp__model_shape3(uint64_t a, uint64_t b, uint64_t c)
{
    return (struct kelp_shape){.rank = 3, .dims = {a, b, c}};
}

/* x with all its dimensions as one. */
uint32_t kelp__model_flatten(struct kelp_graph *graph, const char *name, uint32_t x);

/*
 * Fail: "<takes>, but the data has <its inputs> to <its target>". takes says what the model wants:
 * "fare takes numbers [n] to one number". Returns KELP_GRAPH_NONE.
 */
uint32_t kelp__model_refuse_sample(struct kelp_graph *graph, const struct kelp_sample_shape *shape,
                                   const char *takes);

/* Is the target one class of at most `classes`? One whose number is not known counts. */
bool kelp__model_is_class(const struct kelp_sample_tensor *target, uint32_t classes);

/* "<prefix>.<part>" for a layer within a layer, or `part` alone for an empty prefix. */
struct kelp__model_name {
    char text[KELP_TENSOR_NAME_MAX + 1];
};
struct kelp__model_name kelp__model_name(const char *prefix, const char *part);
struct kelp__model_name kelp__model_name_index(const char *prefix, uint32_t index);

/* A model over windows [sequence, channels] to [prediction, channels], or to the last channel
 * alone, [prediction, 1] (dlinear, nlinear). */
struct kelp__model_windows {
    uint64_t sequence, prediction, channels;
    bool last_alone;
};
/*
 * Declare the input and hand it out with time as the last dimension, [channels, sequence], so that
 * a map over time is one matrix product over all samples and channels; with a single channel
 * nothing has to be moved for that. The target is the one of kelp__model_windows_output().
 */
uint32_t kelp__model_windows_input(struct kelp_graph *graph, const char *model,
                                   const struct kelp_sample_shape *shape,
                                   struct kelp__model_windows *ret_windows,
                                   struct kelp_shape *ret_target);
/* A linear map over time, "<name>" for all channels, or with model.individual one for each,
 * "<name>.<channel>". */
uint32_t kelp__model_windows_linear(struct kelp_graph *graph, const struct kelp_job *job,
                                    const char *name, uint32_t x,
                                    const struct kelp__model_windows *windows);
/* [channels, prediction] as the target has it. */
uint32_t kelp__model_windows_output(struct kelp_graph *graph, uint32_t y,
                                    const struct kelp__model_windows *windows);

#endif

#include "worker/model/models/shapes.h"

#include <stdio.h>

struct kelp_shape kelp__model_shape_of(const struct kelp_sample_tensor *tensor)
{
    struct kelp_shape shape = {.rank = tensor->rank};
    for (uint32_t i = 0; i < tensor->rank; i++) {
        shape.dims[i] = tensor->dims[i];
    }
    return shape;
}

uint32_t kelp__model_flatten(struct kelp_graph *graph, const char *name, uint32_t x)
{
    const struct kelp_shape *shape = kelp_graph_shape(graph, x);
    if (!shape) {
        return KELP_GRAPH_NONE;
    }
    struct kelp_shape flat = kelp__model_shape1(1);
    for (uint32_t i = 0; i < shape->rank; i++) {
        flat.dims[0] *= shape->dims[i];
    }
    return kelp_graph_reshape(graph, name, x, &flat);
}

/* "categories [3]", "one category", "[28, 28]", "one number", "one of 10 classes" */
static void print_tensor(const struct kelp_sample_tensor *tensor, bool is_target, char *text,
                         size_t text_bytes)
{
    char dims[160];
    const struct kelp_shape shape = kelp__model_shape_of(tensor);
    kelp_shape_print(&shape, dims, sizeof(dims));
    if (is_target && tensor->vocab_count == 1) {
        (void)snprintf(text, text_bytes, "one of %u classes", tensor->vocab[0]);
        return;
    }
    if (tensor->rank == 0) {
        (void)snprintf(text, text_bytes, "one %s", tensor->vocab_count > 0 ? "category" : "number");
        return;
    }
    (void)snprintf(text, text_bytes, "%s%s", tensor->vocab_count > 0 ? "categories " : "", dims);
}

uint32_t kelp__model_refuse_sample(struct kelp_graph *graph, const struct kelp_sample_shape *shape,
                                   const char *takes)
{
    char inputs[KELP_SAMPLE_INPUTS_MAX * 48] = "", target[192];
    size_t used = 0;
    for (uint32_t i = 0; i < shape->input_count && used < sizeof(inputs); i++) {
        char text[192];
        print_tensor(&shape->inputs[i], false, text, sizeof(text));
        used += (size_t)snprintf(inputs + used, sizeof(inputs) - used, "%s%s",
                                 i == 0 ? "" : " and ", text);
    }
    print_tensor(&shape->target, true, target, sizeof(target));
    return kelp_graph_fail(graph, KELP_ERR_INVALID, "%s, but the data has %s to %s", takes, inputs,
                           target);
}

bool kelp__model_is_class(const struct kelp_sample_tensor *target, uint32_t classes)
{
    return kelp_sample_tensor_count(target) == 1 &&
           (target->vocab_count == 0 || target->vocab[0] <= classes);
}

struct kelp__model_name kelp__model_name(const char *prefix, const char *part)
{
    struct kelp__model_name name;
    (void)snprintf(name.text, sizeof(name.text), "%s%s%s", prefix, prefix[0] == '\0' ? "" : ".",
                   part);
    return name;
}

struct kelp__model_name kelp__model_name_index(const char *prefix, uint32_t index)
{
    char part[16];
    (void)snprintf(part, sizeof(part), "%u", index);
    return kelp__model_name(prefix, part);
}

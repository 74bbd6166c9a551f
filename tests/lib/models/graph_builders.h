/*
 * Every operator of the graph with random operands, which are computed; some have other users, too.
 */
#ifndef KELP_TESTS_LIB_MODELS_GRAPH_BUILDERS_H
#define KELP_TESTS_LIB_MODELS_GRAPH_BUILDERS_H

#include "kernels/device.h"
#include "tests/lib/models/gradient_check.h"
#include "worker/model/graph/graph.h"

#define GRAPH_BUILDERS   34
#define GRAPH_IMAGES     30 /* builders from this one on concern images */
#define GRAPH_NUMBERS    3  /* first input */
#define GRAPH_CATEGORIES 4  /* second input */
#define GRAPH_VOCAB      5
#define GRAPH_LIST_MAX   8
#define GRAPH_BATCH_MAX  4

struct built {
    struct source *source;
    struct kelp_device *device;
    struct kelp_stream *stream;
    struct kelp_graph *graph;
    uint32_t batch;
    uint32_t numbers, categories; /* inputs */
    uint32_t name_count;
    uint32_t outputs[GRAPH_LIST_MAX]; /* parts of the model's output */
    uint32_t output_count;
    uint32_t late[GRAPH_LIST_MAX]; /* operands that a later node also uses */
    uint32_t late_count;
    uint32_t loss_kind;
};

struct graph_builder {
    const char *name;
    uint32_t (*build)(struct built *b); /* returns the operator's node */
};
extern const struct graph_builder graph_builders[GRAPH_BUILDERS];

uint32_t built_below(struct built *b, uint32_t bound);
struct kelp_shape built_shape1(uint64_t a);
/* Add the node's elements, mixed, to the model's output. */
void built_give_out(struct built *b, uint32_t node);

#endif

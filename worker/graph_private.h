/* What graph.c (building), graph_plan.c (memory) and graph_run.c (running) share. */
#ifndef KELP_WORKER_GRAPH_PRIVATE_H
#define KELP_WORKER_GRAPH_PRIVATE_H

#include "worker/graph.h"

enum graph_op {
    GRAPH_INPUT,
    GRAPH_PARAMETER,
    GRAPH_LINEAR,
    GRAPH_LINEAR_GROUPED,
    GRAPH_RELU,
    GRAPH_MOVING_AVERAGE,
    GRAPH_ADD,
    GRAPH_SUBTRACT,
    GRAPH_TRANSPOSE,
};

/* One operand of a node. */
struct graph_edge {
    uint32_t node;
    /* How this edge's share of the operand's gradient is written: the first one in the order of
     * the backward pass overwrites. */
    enum kelp_write write;
    bool wanted; /* the operand needs a gradient and the backward pass comes by here */
    bool shared; /* the operand's gradient is the same buffer as the node's */
};

struct graph_node {
    enum graph_op op;
    char name[KELP_TENSOR_NAME_MAX + 1];
    struct kelp_shape shape;
    uint64_t elem_count; /* of shape */
    bool per_sample;
    bool needs_gradient;  /* a parameter, or follows from one */
    bool reached;         /* the output depends on it */
    bool value_shared;    /* works in place on its first operand's value */
    bool gradient_shared; /* its gradient is the buffer of the node that consumes it */
    uint32_t edge_first, edge_count;
    uint32_t consumer_count;
    uint32_t kernel_size; /* moving average */
    float bound;          /* parameter */
    /* Device memory. value is what others read; buffer the same place where the graph writes it,
     * NULL for input and parameters, which are the caller's. */
    const float *value;
    float *buffer;
    float *gradient;
    float *workspace;
    uint64_t workspace_count;
};

struct kelp_graph {
    struct kelp_stream *stream;
    uint32_t batch_max;
    kelp_status status; /* first failure of building */
    struct kelp_error error;
    struct graph_node *nodes;
    uint32_t node_count, node_capacity;
    struct graph_edge *edges;
    uint32_t edge_count, edge_capacity;
    uint32_t *parameters; /* node numbers, in order of declaration */
    uint32_t parameter_count;
    uint32_t input, output;
    enum kelp_loss_kind loss;
    char *memory; /* device memory that holds all of the plan */
    size_t memory_bytes;
    float *input_buffer; /* device copies, where the device cannot read host memory */
    float *target_buffer;
    float *gradient_scale; /* one value */
    double *sample_sums;   /* float64[2 * batch_max], device */
    double *host_sums;     /* the same, host */
};

/* The operand number i of a node. */
static inline struct graph_node *graph_operand(const struct kelp_graph *graph,
                                               const struct graph_node *node, uint32_t i)
{
    return &graph->nodes[graph->edges[node->edge_first + i].node];
}

static inline const struct graph_edge *graph_edge(const struct kelp_graph *graph,
                                                  const struct graph_node *node, uint32_t i)
{
    return &graph->edges[node->edge_first + i];
}

#endif

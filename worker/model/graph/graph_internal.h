/*
 * What the files of the graph share: graph.c (building), graph_ops_*.c (operators), graph_layout.c
 * (how images stand), graph_fuse.c (several nodes as one), graph_plan.c (what is computed, and the
 * memory for it) and graph_run.c (running).
 */
#ifndef KELP_WORKER_MODEL_GRAPH_GRAPH_INTERNAL_H
#define KELP_WORKER_MODEL_GRAPH_GRAPH_INTERNAL_H

#include "worker/model/graph/graph.h"

#define GRAPH_SHAPE_TEXT_SIZE 192

struct graph_node;

/* How the images stand that an operator takes and gives, where the device takes channels last. */
enum graph_images {
    GRAPH_IMAGES_FIRST, /* with their channels first: it goes by the order of the shape */
    GRAPH_IMAGES_LAST,  /* with their channels last */
    GRAPH_IMAGES_AS_IS  /* as they come; with their channels last as soon as one comes so */
};

/*
 * An operator. Its builder checks shapes and adds a node; these functions compute `count` samples.
 * What the memory plan has to know of it is said here and nowhere else.
 */
struct graph_operator {
    const char *name;
    /* Does the device have the functions that it takes? NULL: always. */
    bool (*available)(const struct kelp_device_table *table);
    void (*forward)(struct kelp_graph *graph, struct graph_node *node, uint32_t count);
    /* Writes the gradient of each operand whose edge is `wanted` and not `shared`. */
    void (*backward)(struct kelp_graph *graph, struct graph_node *node, uint32_t count);
    bool backward_reads_output;
    uint32_t backward_reads; /* bit i: the value of operand i */
    /* The output may stand in operand 0's place: the same memory, element by element. */
    bool in_place;
    /* The output is operand 0's value under another shape: no memory of its own. */
    bool alias;
    /* With KELP_OVERWRITE the gradient of operand 0 may be written over the node's own. */
    bool gradient_in_place;
    /* Bit i: the gradient of operand i is the node's own, element by element. */
    uint32_t gradient_same;
    /* A function of one element, u.unary, which may become part of the operator before it. */
    bool function;
    /* The backward pass takes as much room as the node's gradient, workspace[1]: the same memory
     * where nothing else reads that. */
    bool gradient_room;
    enum graph_images images;
};

/* One operand of a node. */
struct graph_edge {
    uint32_t node;
    /* How this edge's share of the operand's gradient is written: the first one in the order of
     * the backward pass overwrites. graph_write() has the last word. */
    enum kelp_write write;
    bool wanted; /* the operand needs a gradient and the backward pass comes by here */
    bool shared; /* the operand's gradient is the node's, in the same memory: nothing to write */
};

struct graph_node {
    const struct graph_operator *op;
    char name[KELP_TENSOR_NAME_MAX + 1];
    struct kelp_shape shape;
    uint64_t elem_count; /* of shape */
    bool per_sample;
    bool statistic;
    bool needs_gradient; /* a parameter, or follows from one */
    bool reached;        /* the output depends on it */
    /* Of the value and its gradient; first where both are the same. The shape says nothing of it.
     */
    enum kelp_layout layout;
    uint32_t turned; /* the node with this value in the other layout; KELP_GRAPH_NONE: none yet */
    uint32_t edge_first, edge_count;
    uint32_t consumer_count;
    /* After this node's backward pass the gradients of the parameters from this index on are
     * complete; KELP_GRAPH_NONE where that is nothing new. */
    uint32_t complete_from;
    /* Device memory. value is what others read; buffer the same place where the graph writes it,
     * NULL for what is the caller's. */
    const float *value;
    float *buffer;
    float *gradient;
    float *kept;                             /* from the forward to the backward pass */
    float *workspace[2];                     /* of the forward and of the backward pass */
    uint64_t kept_count, workspace_count[2]; /* for batch_max samples */
    union {
        struct {
            struct kelp_graph_init init;
            float momentum;
            uint32_t index; /* among the parameters */
            bool viewed;    /* rows of it are taken */
        } parameter;
        uint64_t rows_first;  /* of the parameter, in elements */
        uint64_t input_first; /* in the sample's record */
        uint32_t kernel_size; /* moving average */
        enum kelp_unary_kind unary;
        float factor; /* scale, reduce */
        float eps;
        struct {
            float p;
            uint32_t use;
        } dropout;
        struct {
            bool logarithm, causal;
            uint32_t offset;
        } softmax;
        struct {
            uint32_t axis;
            uint64_t first;                       /* slice */
            uint32_t order[KELP_TENSOR_RANK_MAX]; /* permute */
        } move;
        bool transpose_b;
        uint32_t column; /* embedding */
        struct {
            struct kelp_window window;
            struct kelp_conv2d *conv; /* owned */
        } window;
    } u;
};

/* Numbers of a run that the device reads. */
enum graph_scale {
    GRAPH_SCALE_GRADIENT,  /* 1 / batch_total */
    GRAPH_SCALE_STATISTIC, /* count / batch_total */
    GRAPH_SCALES
};

/* What is copied from the host, for the device to read. */
struct graph_numbers {
    float scales[GRAPH_SCALES];
    uint64_t seed_step[2];
};

/* A run that was begun and has not ended: what must stay as it is meanwhile. */
struct graph_pending {
    uint32_t set;                  /* of the device's buffers for samples */
    const float *input, *target;   /* the host's */
    bool whole;                    /* need() never said no */
    bool staged;                   /* its samples came on `copies` */
    uint64_t read_mark;            /* behind their copies, there or on `stream` */
    uint64_t mark;                 /* behind all of it */
    struct kelp_error unkept;      /* why the device did not record */
    struct graph_numbers *numbers; /* owned, of host_alloc(), as the next ones */
    uint32_t *positions;           /* uint32[batch_max] */
    double *sums;                  /* float64[batch_max][KELP_LOSS_SUMS] */
    /* Of an evaluation, whose own samples may be the caller's again before it has ended: */
    float *labels;   /* owned, float32[batch_max], where each sample has one */
    double *factors; /* owned, float64[batch_max] */
};

/* What decides which operators a run is made of, and their arguments. */
struct graph_step_key {
    enum kelp_graph_mode mode;
    uint32_t count;
    bool accumulate;
    bool pauses; /* for what is complete */
    bool needs;  /* pauses for what is needed */
    bool outputs;
    const float *input, *target;
};

/* A step as the device keeps it: what is enqueued between two pauses is a piece of its own. */
struct graph_step {
    struct graph_step_key key;
    const float **bound;            /* owned: values and gradients of all parameters */
    struct kelp_recording **pieces; /* owned, with what they point to; NULL: nothing to enqueue */
    uint32_t piece_count, piece_capacity;
    bool recorded;
    uint64_t used; /* the run that used it last */
};

/* How operators reach the device in the run in work. */
enum graph_tape {
    GRAPH_TAPE_NONE,   /* they are enqueued */
    GRAPH_TAPE_RECORD, /* recorded, and each piece replayed at its end */
    GRAPH_TAPE_REPLAY, /* replayed piece by piece; none is called */
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
    uint32_t *parameters; /* node numbers, in order of declaration; statistics too */
    uint32_t parameter_count;
    uint32_t *steps; /* nodes that have something to compute, in order */
    uint32_t step_count;
    uint32_t dropout_count;
    uint32_t input_count;  /* pieces of the record */
    uint64_t record_count; /* elements of one sample's record */
    uint32_t output;
    enum kelp_loss_kind loss_kind;
    double loss_beta, label_smoothing;
    double quantiles[KELP_JOB_LIST_MAX];
    uint32_t quantile_count;
    uint64_t target_count; /* elements of one sample's target */
    char *memory;          /* device memory that holds all of the plan */
    struct kelp_graph_memory bytes;
    /* Device copies, where the device cannot read host memory: of the run that was begun last
     * (`set`), and of the one before or to come. */
    float *input_buffer[2];
    float *target_buffer[2];
    uint32_t set;
    struct kelp_stream *copies; /* borrowed; NULL: samples come on `stream` alone */
    struct {
        const float *input, *target; /* the host's */
        uint32_t count;              /* 0: nothing is there */
        uint64_t mark;
    } staged;
    float *scales;       /* device: float32[GRAPH_SCALES] */
    uint64_t *seed_step; /* device: uint64[2] */
    uint32_t *positions; /* device: uint32[batch_max], of the samples in their step */
    double *sample_sums; /* device: float64[batch_max][KELP_LOSS_SUMS] */
    float *loss_workspace;
    struct graph_pending pending[KELP_GRAPH_PENDING_MAX]; /* in turn */
    uint32_t pending_first, pending_count;
    /* The run that is being enqueued, or was last. */
    struct graph_pending *begun;
    const float *input;
    bool training;
    bool accumulate;
    const float *target;
    enum graph_tape tape;
    struct graph_step *step;       /* of the tape */
    uint32_t piece;                /* the next one of it */
    bool piece_begun;              /* recording */
    struct graph_step *steps_kept; /* owned, [KELP_GRAPH_STEPS_KEPT]; NULL: not offered */
    uint32_t steps_kept_count;
    uint64_t run_count;
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

/* How the gradient of operand i is written in this run. */
static inline enum kelp_write graph_write(const struct kelp_graph *graph,
                                          const struct graph_node *node, uint32_t i)
{
    const struct graph_edge *edge = graph_edge(graph, node, i);
    return graph->accumulate && !graph->nodes[edge->node].per_sample ? KELP_ACCUMULATE
                                                                     : edge->write;
}

/* The gradient of operand i, NULL where it is not wanted. */
static inline float *graph_gradient(const struct kelp_graph *graph, const struct graph_node *node,
                                    uint32_t i)
{
    const struct graph_edge *edge = graph_edge(graph, node, i);
    return edge->wanted ? graph->nodes[edge->node].gradient : NULL;
}

static inline uint32_t graph_last_dim(const struct graph_node *node)
{
    return node->shape.rank == 0 ? 1 : (uint32_t)node->shape.dims[node->shape.rank - 1];
}

/* Rows of the last dimension over `count` samples; graph_plan.c checked that they fit. */
static inline uint32_t graph_rows(const struct graph_node *node, uint32_t count)
{
    return (uint32_t)(node->elem_count / graph_last_dim(node) * count);
}

/* Elements of the dimensions [first, end). */
static inline uint64_t graph_dims_count(const struct kelp_shape *shape, uint32_t first,
                                        uint32_t end)
{
    uint64_t count = 1;
    for (uint32_t i = first; i < end; i++) {
        count *= shape->dims[i];
    }
    return count;
}

/* ---- building (graph.c) ---------------------------------------------------------------------- */

/* Those that more than their own file knows. */
extern const struct graph_operator kelp__graph_input, kelp__graph_parameter, kelp__graph_rows;
extern const struct graph_operator kelp__graph_conv2d, kelp__graph_batch_norm;

/* The operands of a node to be. */
struct graph_operands {
    const uint32_t *nodes;
    uint32_t count;
};

/* KELP_GRAPH_NONE, the failure kept, where the shape is impossible. */
uint32_t kelp__graph_add(struct kelp_graph *graph, const struct graph_operator *op,
                         const char *name, const struct kelp_shape *shape,
                         struct graph_operands operands);
/* The same for a node of this layout, whose operands stand as `from` says by now. */
uint32_t kelp__graph_add_node(struct kelp_graph *graph, const struct graph_operator *op,
                              const char *name, const struct kelp_shape *shape,
                              struct graph_operands operands, enum kelp_layout from,
                              enum kelp_layout layout);
/* A layer's operand: a value of samples; NULL, the failure kept, for anything else. */
const struct graph_node *kelp__graph_operand(struct kelp_graph *graph, const char *name,
                                             uint32_t x);
/* A layer's parameter, with this shape; false, the failure kept, for anything else. what: "the
 * weight". */
bool kelp__graph_check_parameter(struct kelp_graph *graph, const char *name, const char *what,
                                 uint32_t parameter, const struct kelp_shape *wanted);
/* "layer fc1: the weight must be [7, 5], but is [7, 6]": the form of shape errors. */
uint32_t kelp__graph_fail_shape(struct kelp_graph *graph, const char *name, const char *what,
                                const struct kelp_shape *wanted, const struct kelp_shape *found);
/* The same where what is wanted is no one shape: wanted "[..., rows, columns]". */
uint32_t kelp__graph_fail_form(struct kelp_graph *graph, const char *name, const char *what,
                               const char *wanted, const struct kelp_shape *found);
/* A layer of one operand that keeps its shape. */
uint32_t kelp__graph_add_like(struct kelp_graph *graph, const struct graph_operator *op,
                              const char *name, uint32_t x);
/* a * b; UINT64_MAX where that does not fit, which no memory plan accepts. */
uint64_t kelp__graph_product(uint64_t a, uint64_t b);

/* Make the function of one element part of the node; false where it is no linear layer, or has one
 * already. graph_ops_linear.c. */
bool kelp__graph_linear_activate(const struct kelp_graph *graph, struct graph_node *node,
                                 enum kelp_unary_kind kind);

/* Operand gradient = or += factor * the node's own, element by element. */
void kelp__graph_add_gradient(struct kelp_graph *graph, const struct graph_node *node,
                              uint32_t operand, float factor, uint32_t count);

/* ---- layouts (graph_layout.c) ---------------------------------------------------------------- */

/* How an operator's images are to stand, those of its operands and its own. */
enum kelp_layout kelp__graph_layout_of(const struct kelp_graph *graph,
                                       const struct graph_operator *op,
                                       struct graph_operands operands);
/* The node with this node's value in that layout: itself, or a copy, made once and shared by all
 * who ask. KELP_GRAPH_NONE: the failure is kept. */
uint32_t kelp__graph_turn(struct kelp_graph *graph, uint32_t node, enum kelp_layout layout);
/* The same of a node that is turned already, or need not be. */
uint32_t kelp__graph_turned(const struct kelp_graph *graph, uint32_t node, enum kelp_layout layout);
/* Images of this shape are the same in both layouts. */
bool kelp__graph_is_flat(const struct kelp_shape *shape);

/* ---- running (graph_run.c) ------------------------------------------------------------------- */

/* Runs that may be begun and not ended: where a stream runs at once there is no use of more. */
static inline uint32_t kelp__graph_pending_max(const struct kelp_graph *graph)
{
    return graph->stream->table->host_memory ? 1 : KELP_GRAPH_PENDING_MAX;
}

/* Nobody takes what was staged: it is over. */
void kelp__graph_forget_staged(struct kelp_graph *graph);

/* ---- recorded steps (graph_record.c) --------------------------------------------------------- */

/* Choose the run's tape: a step that came before is recorded, and from then on replayed.
 * Errors: KELP_ERR_NO_MEMORY. */
kelp_status kelp__graph_tape_begin(struct kelp_graph *graph, const struct kelp_graph_run *run,
                                   struct kelp_error *reterr);
/* Before operators are enqueued. False: they are not to be. */
bool kelp__graph_tape_enqueues(struct kelp_graph *graph);
/* whole: all was enqueued. */
void kelp__graph_tape_end(struct kelp_graph *graph, bool whole);
void kelp__graph_steps_fini(struct kelp_graph *graph);

/* ---- fusing (graph_fuse.c) ------------------------------------------------------------------- */

/* Before anything is planned: nodes that others do the work of are no longer operands. */
void kelp__graph_fuse(struct kelp_graph *graph);

/* ---- memory (graph_memory.c) ----------------------------------------------------------------- */

/* Plan and allocate the values, gradients and workspaces of a graph whose edges are planned. */
kelp_status kelp__graph_allocate(struct kelp_graph *graph, struct kelp_error *reterr);

#endif

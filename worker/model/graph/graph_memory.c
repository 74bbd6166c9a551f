/*
 * Memory of a finished graph: one block of the device for everything that a run computes.
 *
 * A run is a line of moments: forward of node i is moment i, the loss moment n, backward of node i
 * moment 2 n - i. Each value, gradient, kept array and workspace is a buffer that is alive from a
 * first to a last moment; buffers that are never alive together may have the same place. They get
 * their places largest first, each at the lowest one that is free while it lives.
 *
 * Before that, values and gradients that can be one buffer become one: an operator that works in
 * place takes over a value that nothing reads later, a reshape and its operand are one, and the
 * gradient of a sum is the gradient of each of its operands as long as nobody writes to it.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "worker/model/graph/graph_internal.h"

/* Between buffers, so that those that one loop walks together do not start at the same offset in a
 * page: equal alignment costs a factor of two to three. */
#define STAGGER_BYTES 320

#define NO_BUFFER UINT32_MAX
#define NEVER     UINT32_MAX

struct buffer {
    uint64_t bytes;
    uint32_t first, last; /* moments in which it is alive, both included */
    /* Of what shares it from now on: the first and last moment in which somebody adds to it. */
    uint32_t write_first, write_last;
    uint64_t offset;
};

struct ranked {
    uint64_t bytes;
    uint32_t id;
};

struct memory {
    struct kelp_graph *graph;
    uint32_t alignment; /* of the device's buffers */
    struct buffer *buffers;
    uint32_t buffer_count;
    bool overflow;
    uint32_t *value, *gradient, *kept, *workspace[2]; /* of each node, NO_BUFFER: none */
    uint32_t *value_last; /* moment in which a node's value is read for the last time */
    uint32_t *next_write; /* of each edge: when the operand's gradient is written after it */
    uint32_t *placed;     /* buffers that have their place, by offset */
    struct ranked *order; /* buffers by size */
    uint64_t total;
};

static uint32_t backward_moment(const struct kelp_graph *graph, uint32_t node)
{
    return 2 * graph->node_count - node;
}

/* ---- lifetimes ------------------------------------------------------------------------------- */

static void read_at(struct memory *memory, uint32_t node, uint32_t moment)
{
    if (memory->value_last[node] < moment) {
        memory->value_last[node] = moment;
    }
}

static void plan_reads(struct memory *memory)
{
    const struct kelp_graph *graph = memory->graph;
    for (uint32_t i = 0; i < graph->node_count; i++) {
        const struct graph_node *node = &graph->nodes[i];
        if (!node->reached) {
            continue;
        }
        const bool backward = node->needs_gradient && node->op->backward;
        read_at(memory, i, i);
        if (backward && node->op->backward_reads_output) {
            read_at(memory, i, backward_moment(graph, i));
        }
        for (uint32_t e = 0; e < node->edge_count; e++) {
            const uint32_t operand = graph_edge(graph, node, e)->node;
            read_at(memory, operand, i);
            if (backward && e < 32 && (node->op->backward_reads >> e & 1u) != 0) {
                read_at(memory, operand, backward_moment(graph, i));
            }
        }
    }
    read_at(memory, graph->output, graph->node_count); /* the loss */
}

/* For each edge, when the same operand's gradient is written again: the order of the backward pass
 * walked the other way round. */
static kelp_status plan_writes(struct memory *memory, struct kelp_error *reterr)
{
    const struct kelp_graph *graph = memory->graph;
    uint32_t *pending = malloc((graph->node_count + 1u) * sizeof(*pending));
    if (!pending) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    for (uint32_t i = 0; i < graph->node_count; i++) {
        pending[i] = NEVER;
    }
    for (uint32_t i = 0; i < graph->node_count; i++) {
        const struct graph_node *node = &graph->nodes[i];
        for (uint32_t e = node->edge_count; node->reached && e-- > 0;) {
            const uint32_t operand = graph_edge(graph, node, e)->node;
            memory->next_write[node->edge_first + e] = pending[operand];
            pending[operand] = backward_moment(graph, i);
        }
    }
    free(pending);
    return KELP_OK;
}

/* ---- buffers --------------------------------------------------------------------------------- */

/* count elements of batch samples each, alive in [first, last]. */
static uint32_t add_buffer(struct memory *memory, uint64_t count, uint64_t batch, uint32_t first,
                           uint32_t last, uint64_t *total)
{
    uint64_t bytes;
    if (__builtin_mul_overflow(count, batch, &bytes) ||
        __builtin_mul_overflow(bytes, sizeof(float), &bytes) || bytes > (uint64_t)1 << 46) {
        memory->overflow = true;
        bytes = 0;
    }
    *total += bytes;
    bytes += STAGGER_BYTES + memory->alignment - 1;
    bytes -= bytes % memory->alignment;
    memory->buffers[memory->buffer_count] = (struct buffer){
        .bytes = bytes, .first = first, .last = last, .write_first = NEVER, .write_last = 0};
    return memory->buffer_count++;
}

static void extend(struct buffer *buffer, uint32_t last)
{
    if (buffer->last < last) {
        buffer->last = last;
    }
}

/* The buffer that a node's value can take over from its operand, or NO_BUFFER. */
static uint32_t value_to_share(const struct memory *memory, uint32_t id)
{
    const struct graph_node *node = &memory->graph->nodes[id];
    if (!node->op->alias && !node->op->in_place) {
        return NO_BUFFER;
    }
    const uint32_t buffer = memory->value[graph_edge(memory->graph, node, 0)->node];
    if (buffer == NO_BUFFER || node->op->alias) {
        return buffer;
    }
    return memory->buffers[buffer].last == id ? buffer : NO_BUFFER;
}

/* The single input is the caller's memory, and so is another shape of it. */
static bool is_callers(const struct memory *memory, const struct graph_node *node)
{
    if (node->op == &kelp__graph_input) {
        return memory->graph->input_count == 1;
    }
    return node->op->alias && memory->value[graph_edge(memory->graph, node, 0)->node] == NO_BUFFER;
}

/* In the order of the forward pass. A buffer's last moment is that of all nodes that share it so
 * far; a node that is planned later reads it later. */
static void plan_values(struct memory *memory)
{
    struct kelp_graph *graph = memory->graph;
    for (uint32_t i = 0; i < graph->node_count; i++) {
        const struct graph_node *node = &graph->nodes[i];
        if (!node->reached || !node->per_sample || is_callers(memory, node)) {
            continue;
        }
        const uint32_t last = memory->value_last[i], end = backward_moment(graph, i);
        memory->value[i] = value_to_share(memory, i);
        if (memory->value[i] != NO_BUFFER) {
            extend(&memory->buffers[memory->value[i]], last);
        } else {
            memory->value[i] = add_buffer(memory, node->elem_count, graph->batch_max, i, last,
                                          &graph->bytes.values);
        }
        if (node->kept_count != 0) {
            memory->kept[i] = add_buffer(memory, node->kept_count, 1, i, end, &graph->bytes.kept);
        }
        for (uint32_t w = 0; w < 2; w++) {
            if (node->workspace_count[w] != 0) {
                const uint32_t moment = w == 0 ? i : end;
                memory->workspace[w][i] = add_buffer(memory, node->workspace_count[w], 1, moment,
                                                     moment, &graph->bytes.workspaces);
            }
        }
    }
}

/* The gradient of this edge's operand can be the node's own: see the head of the file. */
static bool can_share_gradient(const struct memory *memory, uint32_t id, uint32_t edge)
{
    const struct kelp_graph *graph = memory->graph;
    const struct graph_node *node = &graph->nodes[id];
    const struct buffer *buffer = &memory->buffers[memory->gradient[id]];
    const uint32_t now = backward_moment(graph, id);
    const uint32_t operand = graph_edge(graph, node, edge)->node;
    if (edge < 32 && (node->op->gradient_same >> edge & 1u) != 0) {
        const bool others_write =
            buffer->write_last > now && buffer->write_first <= backward_moment(graph, operand);
        return memory->next_write[node->edge_first + edge] > buffer->last && !others_write;
    }
    return edge == 0 && node->op->gradient_in_place && buffer->last == now;
}

static void share_gradient(struct memory *memory, uint32_t id, uint32_t edge)
{
    const struct kelp_graph *graph = memory->graph;
    struct buffer *buffer = &memory->buffers[memory->gradient[id]];
    const struct graph_node *node = &graph->nodes[id];
    const uint32_t operand = graph_edge(graph, node, edge)->node;
    const uint32_t write = memory->next_write[node->edge_first + edge];
    graph->edges[node->edge_first + edge].shared =
        edge < 32 && (node->op->gradient_same >> edge & 1u) != 0;
    memory->gradient[operand] = memory->gradient[id];
    if (buffer->last == backward_moment(graph, id)) { /* nobody else is left: what was is over */
        buffer->write_first = NEVER;
        buffer->write_last = 0;
    }
    extend(buffer, backward_moment(graph, operand));
    if (write != NEVER) {
        buffer->write_first = write < buffer->write_first ? write : buffer->write_first;
        /* The last of several additions is at the operand's own moment at the latest. */
        buffer->write_last = backward_moment(graph, operand);
    }
}

/* In the order of the backward pass, each gradient at its first writer. */
static void plan_gradients(struct memory *memory)
{
    struct kelp_graph *graph = memory->graph;
    const uint32_t output = graph->output;
    memory->gradient[output] =
        add_buffer(memory, graph->nodes[output].elem_count, graph->batch_max, graph->node_count,
                   backward_moment(graph, output), &graph->bytes.gradients);
    for (uint32_t i = graph->node_count; i-- > 0;) {
        const struct graph_node *node = &graph->nodes[i];
        for (uint32_t e = 0; node->reached && node->per_sample && e < node->edge_count; e++) {
            const struct graph_edge *edge = graph_edge(graph, node, e);
            const struct graph_node *operand = &graph->nodes[edge->node];
            if (!edge->wanted || !operand->per_sample || edge->write != KELP_OVERWRITE) {
                continue;
            }
            if (can_share_gradient(memory, i, e)) {
                share_gradient(memory, i, e);
                continue;
            }
            memory->gradient[edge->node] =
                add_buffer(memory, operand->elem_count, graph->batch_max, backward_moment(graph, i),
                           backward_moment(graph, edge->node), &graph->bytes.gradients);
        }
    }
}

/* Room of the backward pass as large as the node's gradient, and over it where it is read here for
 * the last time. */
static void plan_rooms(struct memory *memory)
{
    struct kelp_graph *graph = memory->graph;
    for (uint32_t i = 0; i < graph->node_count; i++) {
        const struct graph_node *node = &graph->nodes[i];
        const uint32_t now = backward_moment(graph, i), gradient = memory->gradient[i];
        if (node->reached && node->op->gradient_room) {
            memory->workspace[1][i] = memory->buffers[gradient].last == now
                                          ? gradient
                                          : add_buffer(memory, node->elem_count, graph->batch_max,
                                                       now, now, &graph->bytes.workspaces);
        }
    }
}

/* ---- places ---------------------------------------------------------------------------------- */

static int by_size(const void *a, const void *b)
{
    const struct ranked *left = a, *right = b;
    if (left->bytes != right->bytes) {
        return left->bytes > right->bytes ? -1 : 1;
    }
    return left->id < right->id ? -1 : 1;
}

/* The lowest place that is free in all of the buffer's moments; `placed` is in order of offset. */
static void place_buffer(struct memory *memory, uint32_t id, uint32_t placed_count)
{
    struct buffer *buffer = &memory->buffers[id];
    uint64_t offset = 0;
    uint32_t at;
    for (uint32_t i = 0; i < placed_count; i++) {
        const struct buffer *other = &memory->buffers[memory->placed[i]];
        if (other->last < buffer->first || buffer->last < other->first) {
            continue;
        }
        if (other->offset >= offset && other->offset - offset >= buffer->bytes) {
            break;
        }
        if (other->offset + other->bytes > offset) {
            offset = other->offset + other->bytes;
        }
    }
    buffer->offset = offset;
    for (at = placed_count; at > 0; at--) {
        if (memory->buffers[memory->placed[at - 1]].offset <= offset) {
            break;
        }
        memory->placed[at] = memory->placed[at - 1];
    }
    memory->placed[at] = id;
    memory->overflow = memory->overflow || __builtin_add_overflow(offset, buffer->bytes, &offset);
    memory->total = offset > memory->total ? offset : memory->total;
}

static void place_buffers(struct memory *memory)
{
    for (uint32_t i = 0; i < memory->buffer_count; i++) {
        memory->order[i] = (struct ranked){.bytes = memory->buffers[i].bytes, .id = i};
    }
    qsort(memory->order, memory->buffer_count, sizeof(*memory->order), by_size);
    for (uint32_t i = 0; i < memory->buffer_count; i++) {
        place_buffer(memory, memory->order[i].id, i);
    }
}

/* ---- all of it ------------------------------------------------------------------------------- */

static float *place_of(const struct memory *memory, uint32_t buffer)
{
    return buffer == NO_BUFFER
               ? NULL
               : (float *)(void *)(memory->graph->memory + memory->buffers[buffer].offset);
}

/* Nodes get their pointers, edges from which nothing is written their mark. */
static void set_pointers(const struct memory *memory)
{
    for (uint32_t i = 0; i < memory->graph->node_count; i++) {
        struct graph_node *node = &memory->graph->nodes[i];
        if (!node->per_sample) {
            continue;
        }
        node->buffer = place_of(memory, memory->value[i]);
        node->value = node->buffer;
        node->gradient = place_of(memory, memory->gradient[i]);
        node->kept = place_of(memory, memory->kept[i]);
        node->workspace[0] = place_of(memory, memory->workspace[0][i]);
        node->workspace[1] = place_of(memory, memory->workspace[1][i]);
    }
}

/* What does not belong to a node: behind the planned block, alive always. */
struct fixed {
    uint64_t input[2], target[2], scales, seed_step, positions, sums, loss_workspace;
};

static uint64_t add_fixed(struct memory *memory, uint64_t count, uint64_t batch, size_t elem_bytes)
{
    const uint64_t at = memory->total;
    uint64_t bytes;
    if (__builtin_mul_overflow(count, batch, &bytes) ||
        __builtin_mul_overflow(bytes, elem_bytes, &bytes) || bytes > (uint64_t)1 << 46 ||
        __builtin_add_overflow(at, bytes + STAGGER_BYTES + memory->alignment, &memory->total)) {
        memory->overflow = true;
        return 0;
    }
    memory->total -= memory->total % memory->alignment;
    return at;
}

static struct fixed plan_fixed(struct memory *memory)
{
    struct kelp_graph *graph = memory->graph;
    const bool copies = !graph->stream->table->host_memory;
    const bool classes =
        graph->loss_kind == KELP_LOSS_CROSS_ENTROPY || graph->loss_kind == KELP_LOSS_NLL;
    const uint64_t batch = graph->batch_max, before = memory->total;
    struct fixed fixed = {0};
    for (uint32_t i = 0; i < 2; i++) {
        fixed.input[i] = add_fixed(memory, copies ? graph->record_count : 0, batch, sizeof(float));
        fixed.target[i] = add_fixed(memory, copies ? graph->target_count : 0, batch, sizeof(float));
    }
    fixed.scales = add_fixed(memory, GRAPH_SCALES, 1, sizeof(float));
    fixed.seed_step = add_fixed(memory, 2, 1, sizeof(uint64_t));
    fixed.positions = add_fixed(memory, graph->dropout_count != 0, batch, sizeof(uint32_t));
    fixed.sums = add_fixed(memory, KELP_LOSS_SUMS, batch, sizeof(double));
    fixed.loss_workspace = add_fixed(memory, classes ? graph->nodes[graph->output].elem_count : 0,
                                     batch, sizeof(float));
    graph->bytes.workspaces += memory->total - before;
    return fixed;
}

static void set_fixed(struct kelp_graph *graph, const struct fixed *fixed)
{
    char *base = graph->memory;
    for (uint32_t i = 0; i < 2; i++) {
        graph->input_buffer[i] = (float *)(void *)(base + fixed->input[i]);
        graph->target_buffer[i] = (float *)(void *)(base + fixed->target[i]);
    }
    graph->scales = (float *)(void *)(base + fixed->scales);
    graph->seed_step = (uint64_t *)(void *)(base + fixed->seed_step);
    graph->positions = (uint32_t *)(void *)(base + fixed->positions);
    graph->sample_sums = (double *)(void *)(base + fixed->sums);
    graph->loss_workspace = (float *)(void *)(base + fixed->loss_workspace);
}

/* One array for all that is counted per node, edge or buffer. */
static uint32_t *memory_init(struct memory *memory, struct kelp_graph *graph)
{
    const size_t nodes = graph->node_count, buffers = 5 * nodes + 1;
    *memory = (struct memory){.graph = graph, .alignment = graph->stream->table->alignment};
    uint32_t *arrays = malloc((6 * nodes + graph->edge_count + buffers) * sizeof(*arrays));
    memory->buffers = calloc(buffers, sizeof(*memory->buffers));
    memory->order = calloc(buffers, sizeof(*memory->order));
    if (!arrays || !memory->buffers || !memory->order) {
        free(arrays);
        return NULL;
    }
    memset(arrays, 0xff, 6 * nodes * sizeof(*arrays)); /* NO_BUFFER */
    memory->value = arrays;
    memory->gradient = arrays + nodes;
    memory->kept = arrays + 2 * nodes;
    memory->workspace[0] = arrays + 3 * nodes;
    memory->workspace[1] = arrays + 4 * nodes;
    memory->value_last = arrays + 5 * nodes;
    memory->next_write = arrays + 6 * nodes;
    memory->placed = memory->next_write + graph->edge_count;
    memset(memory->value_last, 0, nodes * sizeof(*arrays));
    return arrays;
}

/* What is copied to and from the device, of one run. */
static kelp_status allocate_pending(struct kelp_graph *graph, struct graph_pending *pending,
                                    struct kelp_error *reterr)
{
    struct kelp_device *device = graph->stream->device;
    const struct kelp_device_table *table = device->table;
    const size_t batch = graph->batch_max;
    void *numbers = NULL, *positions = NULL, *sums = NULL;
    kelp_status status = table->host_alloc(device, sizeof(*pending->numbers), &numbers, reterr);
    if (status == KELP_OK) {
        status = table->host_alloc(device, batch * sizeof(*pending->positions), &positions, reterr);
    }
    if (status == KELP_OK) {
        status = table->host_alloc(device, KELP_LOSS_SUMS * batch * sizeof(*pending->sums), &sums,
                                   reterr);
    }
    pending->numbers = numbers;
    pending->positions = positions;
    pending->sums = sums;
    pending->labels = calloc(batch, sizeof(*pending->labels));
    pending->factors = calloc(batch, sizeof(*pending->factors));
    return status != KELP_OK || (pending->labels && pending->factors)
               ? status
               : kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
}

static kelp_status allocate_host(struct kelp_graph *graph, struct kelp_error *reterr)
{
    const uint32_t count = kelp__graph_pending_max(graph);
    kelp_status status = KELP_OK;
    for (uint32_t i = 0; status == KELP_OK && i < count; i++) {
        status = allocate_pending(graph, &graph->pending[i], reterr);
    }
    return status;
}

static kelp_status allocate(struct memory *memory, struct kelp_error *reterr)
{
    struct kelp_graph *graph = memory->graph;
    void *block = NULL;
    place_buffers(memory);
    const struct fixed fixed = plan_fixed(memory);
    if (memory->overflow || memory->total > SIZE_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "the model is too large for %u samples at once",
                         graph->batch_max);
    }
    kelp_status status = allocate_host(graph, reterr);
    if (status == KELP_OK) {
        status = graph->stream->table->alloc(graph->stream->device, (size_t)memory->total, &block,
                                             reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    graph->memory = block;
    graph->bytes.total = memory->total;
    set_pointers(memory);
    set_fixed(graph, &fixed);
    return KELP_OK;
}

kelp_status kelp__graph_allocate(struct kelp_graph *graph, struct kelp_error *reterr)
{
    struct memory memory;
    uint32_t *arrays = memory_init(&memory, graph);
    if (!arrays) {
        free(memory.buffers);
        free(memory.order);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    kelp_status status = plan_writes(&memory, reterr);
    if (status == KELP_OK) {
        plan_reads(&memory);
        plan_values(&memory);
        plan_gradients(&memory);
        plan_rooms(&memory);
        status = allocate(&memory, reterr);
    }
    free(arrays);
    free(memory.buffers);
    free(memory.order);
    return status;
}

/* Running: forward in the order of declaration, loss, backward in the opposite order. */
#include <assert.h>
#include <string.h>

#include "worker/model/graph/graph_internal.h"

/* ---- samples --------------------------------------------------------------------------------- */

void kelp_graph_copies(struct kelp_graph *graph, struct kelp_stream *copies)
{
    graph->copies = copies;
}

/* The copies of what nobody takes are over. What fails of them, the next wait for them says. */
void kelp__graph_forget_staged(struct kelp_graph *graph)
{
    if (graph->staged.count != 0) {
        (void)graph->copies->table->wait_mark(graph->copies, graph->staged.mark);
        graph->staged.count = 0;
    }
}

/* The i-th oldest one; behind the last one, a place for the next. */
static struct graph_pending *pending_at(struct kelp_graph *graph, uint32_t i)
{
    return &graph->pending[(graph->pending_first + i) % KELP_GRAPH_PENDING_MAX];
}

/* Where the samples of the run to come go: the run before the last one, which may not have ended,
 * read its own there. */
static uint32_t free_set(struct kelp_graph *graph)
{
    const uint32_t other = 1 - graph->set;
    for (uint32_t i = 0; i < graph->pending_count; i++) {
        if (pending_at(graph, i)->set == other) {
            graph->copies->table->after(graph->copies, graph->stream, pending_at(graph, i)->mark);
        }
    }
    return other;
}

void kelp_graph_stage(struct kelp_graph *graph, const float *input, const float *target,
                      uint32_t count)
{
    struct kelp_stream *copies = graph->copies;
    if (count == 0) {
        kelp__graph_forget_staged(graph);
        return;
    }
    if (!copies || copies->table->host_memory) {
        return;
    }
    assert(count <= graph->batch_max && graph->staged.count == 0);
    const uint32_t set = free_set(graph);
    copies->table->copy_in(copies, graph->input_buffer[set], input,
                           graph->record_count * count * sizeof(float));
    if (target) {
        copies->table->copy_in(copies, graph->target_buffer[set], target,
                               graph->target_count * count * sizeof(float));
    }
    graph->staged.input = input;
    graph->staged.target = target;
    graph->staged.count = count;
    graph->staged.mark = copies->table->mark(copies);
}

/* Take them for the run, whose buffers then are those that they were copied to. */
static bool take_staged(struct kelp_graph *graph, const struct kelp_graph_run *run)
{
    if (graph->staged.count == 0 || graph->staged.count != run->count ||
        graph->staged.input != run->input || graph->staged.target != run->target) {
        kelp__graph_forget_staged(graph);
        return false;
    }
    graph->set = 1 - graph->set;
    graph->begun->read_mark = graph->staged.mark;
    graph->staged.count = 0;
    return true;
}

/* Operators read the host's values in place, or in a copy on the device. */
static void place_samples(struct kelp_graph *graph, const struct kelp_graph_run *run)
{
    const bool in_place = graph->stream->table->host_memory;
    graph->begun->staged = !in_place && take_staged(graph, run);
    graph->begun->set = graph->set;
    graph->input = in_place ? run->input : graph->input_buffer[graph->set];
    graph->target = in_place ? run->target : graph->target_buffer[graph->set];
}

static void copy_samples(struct kelp_graph *graph, const struct kelp_graph_run *run)
{
    struct kelp_stream *stream = graph->stream;
    if (stream->table->host_memory) {
        return;
    }
    if (graph->begun->staged) {
        stream->table->after(stream, graph->copies, graph->begun->read_mark);
        return;
    }
    stream->table->copy_in(stream, graph->input_buffer[graph->set], run->input,
                           graph->record_count * run->count * sizeof(float));
    if (run->mode != KELP_GRAPH_FORWARD) {
        stream->table->copy_in(stream, graph->target_buffer[graph->set], run->target,
                               graph->target_count * run->count * sizeof(float));
    }
    graph->begun->read_mark = stream->table->mark(stream);
}

void kelp_graph_release(struct kelp_graph *graph, const float *samples)
{
    for (uint32_t i = 0; i < graph->pending_count; i++) {
        const struct graph_pending *pending = pending_at(graph, i);
        struct kelp_stream *by = pending->staged ? graph->copies : graph->stream;
        if (pending->input == samples || pending->target == samples) {
            (void)by->table->wait_mark(by, pending->read_mark); /* the run's end says what failed */
        }
    }
    if (graph->staged.count != 0 &&
        (graph->staged.input == samples || graph->staged.target == samples)) {
        kelp__graph_forget_staged(graph);
    }
}

/* ---- a run ----------------------------------------------------------------------------------- */

/* The numbers that operators read from device memory. */
static void set_numbers(struct kelp_graph *graph, const struct kelp_graph_run *run)
{
    struct kelp_stream *stream = graph->stream;
    float *scales = graph->begun->numbers->scales;
    uint64_t *seed_step = graph->begun->numbers->seed_step;
    uint32_t *positions = graph->begun->positions;
    scales[GRAPH_SCALE_GRADIENT] = (float)(1.0 / run->batch_total);
    scales[GRAPH_SCALE_STATISTIC] = (float)((double)run->count / run->batch_total);
    stream->table->copy_in(stream, graph->scales, scales, GRAPH_SCALES * sizeof(*scales));
    if (graph->dropout_count == 0) {
        return;
    }
    seed_step[0] = run->seed;
    seed_step[1] = run->step;
    stream->table->copy_in(stream, graph->seed_step, seed_step, 2 * sizeof(*seed_step));
    for (uint32_t i = 0; i < run->count; i++) {
        positions[i] = (uint32_t)(run->position + i);
    }
    stream->table->copy_in(stream, graph->positions, positions, run->count * sizeof(*positions));
}

static void run_loss(struct kelp_graph *graph, const struct kelp_graph_run *run)
{
    struct kelp_stream *stream = graph->stream;
    struct graph_node *output = &graph->nodes[graph->output];
    const struct kelp_criterion criterion = {
        .kind = graph->loss_kind,
        .output = output->value,
        .target = graph->target,
        .samples = run->count,
        .elements = output->elem_count,
        .target_elements = graph->target_count,
        .beta = graph->loss_beta,
        .label_smoothing = graph->label_smoothing,
        .quantiles = graph->quantiles,
        .quantile_count = graph->quantile_count,
        .gradient_scale = &graph->scales[GRAPH_SCALE_GRADIENT],
        .gradient = graph->training ? output->gradient : NULL,
        .sums = graph->sample_sums,
        .loss_alone = graph->training,
        .workspace = graph->loss_workspace,
    };
    stream->table->criterion(stream, &criterion);
}

/* Which metric each of a sample's sums belongs to. */
static const struct {
    enum kelp_loss_sum sum;
    enum kelp_metric_sum metric;
} summed[] = {
    {KELP_LOSS_SUM_LOSS, KELP_METRIC_SUM_LOSS},
    {KELP_LOSS_SUM_SQUARED, KELP_METRIC_SUM_SQUARED},
    {KELP_LOSS_SUM_ABSOLUTE, KELP_METRIC_SUM_ABSOLUTE},
    {KELP_LOSS_SUM_RELATIVE, KELP_METRIC_SUM_RELATIVE},
    {KELP_LOSS_SUM_RELATIVE_SQUARED, KELP_METRIC_SUM_RELATIVE_SQUARED},
    {KELP_LOSS_SUM_TARGET, KELP_METRIC_SUM_TARGET},
    {KELP_LOSS_SUM_TARGET_SQUARED, KELP_METRIC_SUM_TARGET_SQUARED},
    {KELP_LOSS_SUM_CORRECT, KELP_METRIC_SUM_CORRECT},
};

/* Has each sample one score that can be held against its target? */
static bool has_scores(const struct kelp_graph *graph)
{
    const uint64_t elements = graph->nodes[graph->output].elem_count;
    const bool classes =
        graph->loss_kind == KELP_LOSS_CROSS_ENTROPY || graph->loss_kind == KELP_LOSS_NLL;
    return classes ? elements == 2 : graph->target_count == 1;
}

/* The same in the data's own unit: all elements of a sample have one factor. */
static void add_unscaled(const struct graph_pending *pending, const struct kelp_graph_run *run)
{
    for (uint32_t s = 0; s < run->count; s++) {
        const double *sums = pending->sums + KELP_LOSS_SUMS * (size_t)s;
        const double factor = pending->factors[s];
        if (factor != 0.0) {
            run->sums[KELP_METRIC_SUM_UNSCALED_SQUARED] +=
                factor * factor * sums[KELP_LOSS_SUM_SQUARED];
            run->sums[KELP_METRIC_SUM_UNSCALED_ABSOLUTE] += factor * sums[KELP_LOSS_SUM_ABSOLUTE];
            run->sums[KELP_METRIC_SUM_UNSCALED_SAMPLES] += 1.0;
        }
    }
}

/* Sample by sample, so that the sums do not depend on how the device cut its work. */
static void add_up(const struct kelp_graph *graph, const struct graph_pending *pending,
                   const struct kelp_graph_run *run)
{
    const bool training = run->mode == KELP_GRAPH_TRAIN;
    const bool scores = !training && has_scores(graph);
    const uint32_t sum_count = training ? KELP_METRIC_SUM_SCALARS : KELP_METRIC_SUM_COUNT;
    for (uint32_t i = 0; i < sum_count; i++) {
        run->sums[i] = 0.0;
    }
    for (uint32_t s = 0; s < run->count; s++) {
        const double *sums = pending->sums + KELP_LOSS_SUMS * (size_t)s;
        for (uint32_t i = 0; i < KELP_ARRAY_COUNT(summed); i++) {
            run->sums[summed[i].metric] += sums[summed[i].sum];
        }
        if (scores) {
            const enum kelp_metric_sum first =
                pending->labels[s] < 0.5f ? KELP_METRIC_SUM_NEGATIVE : KELP_METRIC_SUM_POSITIVE;
            run->sums[(uint32_t)first + kelp_metric_sum_bin(sums[KELP_LOSS_SUM_SCORE])] += 1.0;
        }
    }
    if (run->factors) {
        add_unscaled(pending, run);
    }
    run->sums[KELP_METRIC_SUM_SAMPLES] = run->count;
    run->sums[KELP_METRIC_SUM_ELEMENTS] = (double)graph->target_count * run->count;
}

static void end_span(const struct kelp_graph_run *run, uint64_t begin_ns, const char *name)
{
    kelp_trace_end(run->trace, begin_ns,
                   &(struct kelp_trace_span){
                       .name = name, .step = run->step, .arguments = {{"samples", run->count}}});
}

/* Wait for the parameters that the node reads. */
static bool await_parameters(const struct kelp_graph *graph, const struct graph_node *node,
                             const struct kelp_graph_run *run)
{
    for (uint32_t e = 0; run->need && e < node->edge_count; e++) {
        const struct graph_node *operand = graph_operand(graph, node, e);
        operand = operand->op == &kelp__graph_rows ? graph_operand(graph, operand, 0) : operand;
        if (operand->op == &kelp__graph_parameter &&
            !run->need(run->user, operand->u.parameter.index)) {
            return false;
        }
    }
    return true;
}

static bool run_forward(struct kelp_graph *graph, const struct kelp_graph_run *run)
{
    const uint64_t begin_ns = kelp_trace_begin(run->trace);
    for (uint32_t i = 0; i < graph->step_count; i++) {
        struct graph_node *node = &graph->nodes[graph->steps[i]];
        if (!await_parameters(graph, node, run)) {
            return false;
        }
        if (kelp__graph_tape_enqueues(graph)) {
            const uint64_t layer_ns = kelp_trace_begin(run->trace);
            node->op->forward(graph, node, run->count);
            end_span(run, layer_ns, node->name);
        }
    }
    end_span(run, begin_ns, "forward");
    return true;
}

static void run_backward(struct kelp_graph *graph, const struct kelp_graph_run *run)
{
    const uint64_t begin_ns = kelp_trace_begin(run->trace);
    for (uint32_t i = graph->step_count; i-- > 0;) {
        struct graph_node *node = &graph->nodes[graph->steps[i]];
        if (!node->needs_gradient) {
            continue;
        }
        if (kelp__graph_tape_enqueues(graph)) {
            const uint64_t layer_ns = kelp_trace_begin(run->trace);
            node->op->backward(graph, node, run->count);
            end_span(run, layer_ns, node->name);
        }
        if (node->complete_from != KELP_GRAPH_NONE && run->complete) {
            run->complete(run->user, node->complete_from);
        }
    }
    end_span(run, begin_ns, "backward");
}

/* Without samples the gradient is zero. */
static void clear_gradients(struct kelp_graph *graph, const struct kelp_graph_run *run)
{
    for (uint32_t i = 0; !run->accumulate && i < graph->parameter_count; i++) {
        const struct graph_node *node = &graph->nodes[graph->parameters[i]];
        graph->stream->table->fill(graph->stream, node->gradient, 0.0f, node->elem_count);
    }
    if (run->complete) {
        run->complete(run->user, 0);
    }
}

/* False: need() said no. */
static bool run_all(struct kelp_graph *graph, const struct kelp_graph_run *run)
{
    const struct graph_node *output = &graph->nodes[graph->output];
    if (!run_forward(graph, run)) {
        return false;
    }
    if (run->output) {
        kelp_graph_pause(graph);
        graph->stream->table->copy_out(graph->stream, run->output, output->value,
                                       output->elem_count * run->count * sizeof(float));
    }
    if (run->mode != KELP_GRAPH_FORWARD && kelp__graph_tape_enqueues(graph)) {
        const uint64_t begin_ns = kelp_trace_begin(run->trace);
        run_loss(graph, run);
        end_span(run, begin_ns, "loss");
    }
    if (graph->training) {
        run_backward(graph, run);
    }
    return true;
}

static void run_samples(struct kelp_graph *graph, const struct kelp_graph_run *run)
{
    copy_samples(graph, run);
    graph->begun->whole = run_all(graph, run);
    kelp__graph_tape_end(graph, graph->begun->whole);
    if (graph->begun->whole && run->mode != KELP_GRAPH_FORWARD) {
        graph->stream->table->copy_out(graph->stream, graph->begun->sums, graph->sample_sums,
                                       KELP_LOSS_SUMS * sizeof(double) * run->count);
    }
}

/* The next one of them; the run before says what it could not record, which may still run. */
static kelp_status begin_pending(struct kelp_graph *graph, const struct kelp_graph_run *run,
                                 struct kelp_error *reterr)
{
    assert(graph->pending_count < kelp__graph_pending_max(graph));
    if (graph->pending_count != 0 && graph->begun->unkept.status != KELP_OK) {
        return kelp_fail(reterr, graph->begun->unkept.status, "%s", graph->begun->unkept.text);
    }
    graph->begun = pending_at(graph, graph->pending_count);
    graph->begun->input = run->count != 0 ? run->input : NULL;
    graph->begun->target = run->count != 0 ? run->target : NULL;
    graph->begun->whole = true;
    graph->begun->unkept.status = KELP_OK;
    return KELP_OK;
}

/* What add_up() reads of the samples. */
static void keep_labels(struct kelp_graph *graph, const struct kelp_graph_run *run)
{
    if (run->mode != KELP_GRAPH_EVALUATE) {
        return;
    }
    if (has_scores(graph)) {
        memcpy(graph->begun->labels, run->target, run->count * sizeof(float));
    }
    if (run->factors) {
        memcpy(graph->begun->factors, run->factors, run->count * sizeof(double));
    }
}

kelp_status kelp_graph_begin(struct kelp_graph *graph, const struct kelp_graph_run *run,
                             struct kelp_error *reterr)
{
    const struct kelp_device_table *table = graph->stream->table;
    assert(graph->memory);
    if (run->count > graph->batch_max) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "%u samples at once: the model was made for %u",
                         run->count, graph->batch_max);
    }
    kelp_status status = begin_pending(graph, run, reterr);
    if (status != KELP_OK) {
        return status;
    }
    graph->training = run->mode == KELP_GRAPH_TRAIN;
    graph->accumulate = graph->training && run->accumulate;
    place_samples(graph, run);
    keep_labels(graph, run);
    status = kelp__graph_tape_begin(graph, run, reterr);
    if (status != KELP_OK) {
        return status;
    }
    if (graph->training) {
        set_numbers(graph, run);
    }
    if (run->count != 0) {
        run_samples(graph, run);
    } else if (graph->training) {
        clear_gradients(graph, run);
    }
    graph->begun->mark = table->host_memory ? 0 : table->mark(graph->stream);
    graph->pending_count++;
    return KELP_OK;
}

bool kelp_graph_is_whole(const struct kelp_graph *graph)
{
    return graph->begun->whole;
}

/* The oldest one. */
static void pop_pending(struct kelp_graph *graph)
{
    graph->pending_first = (graph->pending_first + 1) % kelp__graph_pending_max(graph);
    graph->pending_count--;
}

/* Until the run is done: a wait() says more, and would wait for the runs behind it too. */
static kelp_status await_run(struct kelp_graph *graph, const struct graph_pending *pending,
                             struct kelp_error *reterr)
{
    const struct kelp_device_table *table = graph->stream->table;
    kelp_status status = KELP_OK;
    if (graph->pending_count == 1 || !table->wait_mark(graph->stream, pending->mark)) {
        status = table->wait(graph->stream, reterr);
    }
    if (pending->staged && !graph->copies->table->wait_mark(graph->copies, pending->read_mark) &&
        status == KELP_OK) {
        status = graph->copies->table->wait(graph->copies, reterr);
    }
    return status;
}

kelp_status kelp_graph_end(struct kelp_graph *graph, const struct kelp_graph_run *run,
                           struct kelp_error *reterr)
{
    const struct graph_pending *pending = pending_at(graph, 0);
    assert(graph->pending_count != 0);
    const kelp_status status = await_run(graph, pending, reterr);
    pop_pending(graph);
    if (status == KELP_OK && pending->unkept.status != KELP_OK) {
        return kelp_fail(reterr, pending->unkept.status, "%s", pending->unkept.text);
    }
    if (status == KELP_OK && !pending->whole) {
        return kelp_fail(reterr, KELP_ERR_BUSY, "the weights of this step will not come");
    }
    if (status == KELP_OK && run->mode != KELP_GRAPH_FORWARD) {
        add_up(graph, pending, run);
    }
    return status;
}

uint32_t kelp_graph_pending(const struct kelp_graph *graph)
{
    return graph->pending_count;
}

void kelp_graph_drop(struct kelp_graph *graph)
{
    kelp__graph_forget_staged(graph);
    while (graph->pending_count != 0) {
        const struct graph_pending *pending = pending_at(graph, 0);
        if (pending->input) {
            kelp_graph_release(graph, pending->input);
        }
        (void)graph->stream->table->wait(graph->stream, NULL); /* nobody wants it, or to know */
        pop_pending(graph);
    }
}

kelp_status kelp_graph_run(struct kelp_graph *graph, const struct kelp_graph_run *run,
                           struct kelp_error *reterr)
{
    assert(graph->pending_count == 0);
    const kelp_status status = kelp_graph_begin(graph, run, reterr);
    return status == KELP_OK ? kelp_graph_end(graph, run, reterr) : status;
}

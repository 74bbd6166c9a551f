/*
 * Recorded steps: runs with the same operators and arguments are enqueued as one replay, if the
 * device offers that. The first such run is enqueued normally, so that the device prepares what it
 * needs; the second is recorded. What changes from run to run (samples, the step, sums and
 * gradients that are copied out) is copied outside of recordings.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "worker/model/graph/graph_internal.h"

static void step_fini(struct kelp_graph *graph, struct graph_step *step)
{
    for (uint32_t i = 0; i < step->piece_count; i++) {
        graph->stream->table->recording_destroy(step->pieces[i]);
    }
    free(step->pieces);
    free(step->bound);
    *step = (struct graph_step){.recorded = false};
}

void kelp__graph_steps_fini(struct kelp_graph *graph)
{
    for (uint32_t i = 0; i < graph->steps_kept_count; i++) {
        step_fini(graph, &graph->steps_kept[i]);
    }
    free(graph->steps_kept);
}

/* ---- finding the step ------------------------------------------------------------------------ */

/* Parameter i's value is bound[2 i], its gradient bound[2 i + 1]. */
static const float *bound_at(const struct kelp_graph *graph, uint32_t i)
{
    const struct graph_node *node = &graph->nodes[graph->parameters[i / 2]];
    return i % 2 == 0 ? node->value : node->gradient;
}

static bool is_bound(const struct kelp_graph *graph, const struct graph_step *step)
{
    for (uint32_t i = 0; i < 2 * graph->parameter_count; i++) {
        if (step->bound[i] != bound_at(graph, i)) {
            return false;
        }
    }
    return true;
}

static bool same_key(const struct graph_step_key *a, const struct graph_step_key *b)
{
    return a->mode == b->mode && a->count == b->count && a->accumulate == b->accumulate &&
           a->pauses == b->pauses && a->needs == b->needs && a->outputs == b->outputs &&
           a->input == b->input && a->target == b->target;
}

static struct graph_step *find(const struct kelp_graph *graph, const struct graph_step_key *key)
{
    for (uint32_t i = 0; i < graph->steps_kept_count; i++) {
        struct graph_step *step = &graph->steps_kept[i];
        if (same_key(&step->key, key) && is_bound(graph, step)) {
            return step;
        }
    }
    return NULL;
}

/* A place for another step: a free one, or that of the step not used for the longest time. */
static struct graph_step *make_place(struct kelp_graph *graph)
{
    if (graph->steps_kept_count < KELP_GRAPH_STEPS_KEPT) {
        return &graph->steps_kept[graph->steps_kept_count++];
    }
    struct graph_step *oldest = &graph->steps_kept[0];
    for (uint32_t i = 1; i < graph->steps_kept_count; i++) {
        if (graph->steps_kept[i].used < oldest->used) {
            oldest = &graph->steps_kept[i];
        }
    }
    step_fini(graph, oldest);
    return oldest;
}

static kelp_status keep(struct kelp_graph *graph, const struct graph_step_key *key,
                        struct kelp_error *reterr)
{
    const float **bound = malloc(2 * (size_t)graph->parameter_count * sizeof(*bound));
    if (!graph->steps_kept) {
        graph->steps_kept = calloc(KELP_GRAPH_STEPS_KEPT, sizeof(*graph->steps_kept));
    }
    if (!bound || !graph->steps_kept) {
        free(bound);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    for (uint32_t i = 0; i < 2 * graph->parameter_count; i++) {
        bound[i] = bound_at(graph, i);
    }
    *make_place(graph) = (struct graph_step){.key = *key, .bound = bound, .used = graph->run_count};
    return KELP_OK;
}

kelp_status kelp__graph_tape_begin(struct kelp_graph *graph, const struct kelp_graph_run *run,
                                   struct kelp_error *reterr)
{
    const struct graph_step_key key = {.mode = run->mode,
                                       .count = run->count,
                                       .accumulate = graph->accumulate,
                                       .pauses = run->complete != NULL,
                                       .needs = run->need != NULL,
                                       .outputs = run->output != NULL,
                                       .input = graph->input,
                                       .target = graph->target};
    graph->tape = GRAPH_TAPE_NONE;
    if (!graph->stream->table->replay || run->count == 0) {
        return KELP_OK;
    }
    graph->run_count++;
    graph->step = find(graph, &key);
    if (!graph->step) {
        return keep(graph, &key, reterr);
    }
    graph->step->used = graph->run_count;
    graph->tape = graph->step->recorded ? GRAPH_TAPE_REPLAY : GRAPH_TAPE_RECORD;
    graph->piece = 0;
    graph->piece_begun = false;
    return KELP_OK;
}

/* ---- pieces ---------------------------------------------------------------------------------- */

/* The rest of this run stays missing, and kelp_graph_end() fails. The step matches no run any
 * more and is replaced first; it is not freed yet, because its replays may still run. */
static void give_up(struct kelp_graph *graph)
{
    graph->step->key.count = 0;
    graph->step->used = 0;
    graph->tape = GRAPH_TAPE_NONE;
}

static bool make_room(struct graph_step *step)
{
    if (step->piece_count < step->piece_capacity) {
        return true;
    }
    const uint32_t capacity = step->piece_capacity != 0 ? 2 * step->piece_capacity : 4;
    /* NOLINTNEXTLINE(bugprone-sizeof-expression): an array of pointers */
    struct kelp_recording **larger = realloc(step->pieces, capacity * sizeof(*larger));
    if (larger) {
        step->pieces = larger;
        step->piece_capacity = capacity;
    }
    return larger != NULL;
}

bool kelp__graph_tape_enqueues(struct kelp_graph *graph)
{
    if (graph->tape == GRAPH_TAPE_RECORD && !graph->piece_begun) {
        graph->stream->table->record_begin(graph->stream);
        graph->piece_begun = true;
    }
    return graph->tape != GRAPH_TAPE_REPLAY;
}

static void end_piece(struct kelp_graph *graph)
{
    struct graph_step *step = graph->step;
    struct kelp_recording *piece = NULL;
    kelp_status status = KELP_OK;
    if (graph->piece_begun) {
        status = graph->stream->table->record_end(graph->stream, &piece, &graph->begun->unkept);
        graph->piece_begun = false;
    }
    if (status == KELP_OK && !make_room(step)) {
        graph->stream->table->recording_destroy(piece);
        status = kelp_fail(&graph->begun->unkept, KELP_ERR_NO_MEMORY, "out of memory");
    }
    if (status != KELP_OK) {
        give_up(graph);
        return;
    }
    step->pieces[step->piece_count++] = piece;
}

void kelp_graph_pause(struct kelp_graph *graph)
{
    if (graph->tape == GRAPH_TAPE_RECORD) {
        end_piece(graph);
    }
    if (graph->tape == GRAPH_TAPE_NONE) {
        return;
    }
    assert(graph->piece < graph->step->piece_count);
    struct kelp_recording *piece = graph->step->pieces[graph->piece++];
    if (piece) {
        graph->stream->table->replay(graph->stream, piece);
    }
}

void kelp__graph_tape_end(struct kelp_graph *graph, bool whole)
{
    if (whole || graph->tape == GRAPH_TAPE_RECORD) {
        kelp_graph_pause(graph);
    }
    if (graph->tape == GRAPH_TAPE_RECORD && !whole) {
        give_up(graph);
    }
    if (graph->tape != GRAPH_TAPE_NONE && whole) {
        assert(graph->piece == graph->step->piece_count);
        graph->step->recorded = true;
    }
    graph->tape = GRAPH_TAPE_NONE;
}

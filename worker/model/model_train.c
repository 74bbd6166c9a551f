/*
 * Training on a device with its own memory: a piece is enqueued now and finished later, so that the
 * device always has work. The same holds for blocks of evaluations and predictions. Pieces of one
 * lane follow each other in one arena; lanes take the arenas in turn.
 */
#include <assert.h>

#include "worker/model/model_internal.h"

static struct model_pending *pending_at(struct kelp_model *model, uint32_t i)
{
    return &model->pending[(model->pending_first + i) % MODEL_PENDING_MAX];
}

uint32_t kelp_model_ahead(const struct kelp_model *model)
{
    return model->device->table->host_memory ? 1 : model->arena_count + 1;
}

uint32_t kelp_model_pending(const struct kelp_model *model)
{
    return model->pending_count;
}

/* ---- weights and gradient on the device ------------------------------------------------------ */

static kelp_status prepare_gradient(struct kelp_model *model, struct model_arena *arena,
                                    struct kelp_error *reterr)
{
    const struct kelp_device_table *table = model->device->table;
    void *memory = NULL;
    if (arena->gradient && arena->gradient_count == model->flat_count) {
        return KELP_OK;
    }
    table->free(model->device, arena->gradient);
    arena->gradient = NULL;
    const kelp_status status =
        table->alloc(model->device, (size_t)model->flat_count * sizeof(float), &memory, reterr);
    if (status == KELP_OK) {
        arena->gradient = memory;
        arena->gradient_count = model->flat_count;
        arena->bound = false;
        arena->has_gradient = false;
        table->fill(arena->stream, arena->gradient, 0.0f, model->flat_count); /* padding, too */
    }
    return status;
}

static void bind_arena(struct kelp_model *model, struct model_arena *arena)
{
    const bool gradient = model->gradient != NULL;
    if (arena->bound && arena->bound_gradient == gradient) {
        return;
    }
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const uint64_t offset = model->offsets[i];
        kelp_graph_bind(arena->graph, i, model->mirror.weights + offset,
                        gradient ? arena->gradient + offset : NULL);
    }
    arena->bound = true;
    arena->bound_gradient = gradient;
}

static void upload_weights(struct kelp_model *model, struct model_arena *arena)
{
    if (!model->mirror.has_weights) {
        kelp__mirror_upload(&model->mirror, arena->stream, model->weights);
        model->uploads.count++;
        model->uploads.stream = arena->stream;
        model->uploads.mark = arena->stream->table->mark(arena->stream);
    }
    if (arena->uploads != model->uploads.count && arena->stream != model->uploads.stream) {
        arena->stream->table->after(arena->stream, model->uploads.stream, model->uploads.mark);
    }
    arena->uploads = model->uploads.count;
}

kelp_status kelp__model_upload(struct kelp_model *model, struct model_arena *arena, bool arriving,
                               bool accumulate, struct kelp_error *reterr)
{
    if (model->device->table->host_memory) {
        return KELP_OK;
    }
    kelp_status status =
        kelp__mirror_prepare(&model->mirror, model->device, model->flat_count, reterr);
    if (status == KELP_OK && model->gradient) {
        status = prepare_gradient(model, arena, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    bind_arena(model, arena);
    if (!arriving) {
        upload_weights(model, arena);
    }
    if (accumulate && !arena->has_gradient) {
        arena->stream->table->copy_in(arena->stream, arena->gradient, model->gradient,
                                      (size_t)model->flat_count * sizeof(float));
    }
    return KELP_OK;
}

/* ---- while a piece is enqueued --------------------------------------------------------------- */

static struct model_arena *begun_arena(struct kelp_model *model)
{
    return &model->arenas[model->begun->arena];
}

/* Wait for arriving weights and copy them to the device. */
static bool bring(struct kelp_model *model, struct kelp__mirror_group *group)
{
    const struct kelp_model_piece *piece = &model->begun->piece;
    for (uint32_t i = group->first; i < group->end; i++) {
        if (!piece->need(piece->user, i)) {
            return false;
        }
    }
    kelp_graph_pause(begun_arena(model)->graph);
    kelp__mirror_bring(&model->mirror, group, begun_arena(model)->stream, model->copies,
                       model->weights);
    return true;
}

static bool on_need(void *user, uint32_t index)
{
    struct kelp_model *model = user;
    struct kelp__mirror_group *group = &model->mirror.groups[model->mirror.group_of[index]];
    return group->there || bring(model, group);
}

/* Bring the weights that training does not read, for later use. */
static void bring_rest(struct kelp_model *model)
{
    for (uint32_t i = 0; i < model->mirror.group_count; i++) {
        if (!model->mirror.groups[i].there && !bring(model, &model->mirror.groups[i])) {
            return; /* the next piece brings them */
        }
    }
}

/* Called before the lane is added to its node's sum. Lanes are added in order, whichever stream
 * computed them. */
static void begin_sum(struct kelp_model *model)
{
    struct kelp_stream *stream = begun_arena(model)->stream;
    if (model->sum_begun) {
        return;
    }
    if (model->summed.stream && model->summed.stream != stream) {
        stream->table->after(stream, model->summed.stream, model->summed.mark);
    }
    kelp__level_sums_advance(&model->sums, stream, model->begun->sum.lane);
    model->sum_begun = true;
}

/* Add elements [first, end) to the sum of the node's last lane. */
static void add_to_last(struct kelp_model *model, uint64_t first, uint64_t end)
{
    begin_sum(model);
    kelp__level_sums_add(&model->sums, begun_arena(model)->stream, begun_arena(model)->gradient,
                         first, end - first);
}

static void leave(struct kelp_model *model, uint32_t index, uint64_t first)
{
    kelp__mirror_leave(&model->mirror, begun_arena(model)->stream, model->copies,
                       begun_arena(model)->gradient, index, first);
}

static void on_complete(void *user, uint32_t index)
{
    struct kelp_model *model = user;
    const uint64_t first = index == 0 ? 0 : model->offsets[index];
    if (kelp__mirror_is_due(&model->mirror, index, first)) {
        kelp_graph_pause(begun_arena(model)->graph);
        if (model->begun->piece.sum) {
            add_to_last(model, first, kelp__mirror_left(&model->mirror));
        }
        leave(model, index, first);
    }
}

/* At the end of the piece, copy out what was not copied in parts. */
static void end_piece(struct kelp_model *model)
{
    const struct model_pending *begun = model->begun;
    struct model_arena *arena = begun_arena(model);
    const bool sums = begun->piece.sum && !begun->piece.more;
    if (sums && !begun->sum.ends) {
        begin_sum(model);
        kelp__level_sums_keep(&model->sums, arena->stream, arena->gradient, begun->sum.lane);
    } else if (begun->brings && !begun->piece.complete) {
        if (sums) {
            add_to_last(model, 0, model->flat_count);
        }
        leave(model, 0, 0);
    }
    if (sums && model->arena_count > 1) {
        model->summed.stream = arena->stream;
        model->summed.mark = arena->stream->table->mark(arena->stream);
    }
    arena->has_gradient = true;
}

/* ---- pieces ---------------------------------------------------------------------------------- */

static bool brings(const struct kelp_model_piece *piece)
{
    return piece->complete || (!piece->more && (!piece->sum || piece->sum->ends));
}

bool kelp_model_may_begin(const struct kelp_model *model, const struct kelp_model_piece *piece)
{
    if (model->pending_count == 0) {
        return true;
    }
    for (uint32_t i = 0; i < model->pending_count && brings(piece); i++) {
        if (pending_at((struct kelp_model *)model, i)->brings) {
            return false; /* the host has memory for one */
        }
    }
    /* If some weights are missing, all are brought again over the present ones. */
    return kelp_graph_pending(model->arenas[model->next].graph) < KELP_GRAPH_PENDING_MAX &&
           (!piece->need || kelp__mirror_is_there(&model->mirror));
}

/* Do all that needs memory. */
static kelp_status prepare_piece(struct kelp_model *model, const struct model_pending *pending,
                                 bool arriving, struct kelp_error *reterr)
{
    kelp_status status = kelp__model_upload(model, &model->arenas[pending->arena], arriving,
                                            pending->piece.accumulate, reterr);
    if (status == KELP_OK && pending->brings) {
        status = kelp__mirror_begin(&model->mirror, model->device, reterr);
    }
    if (status != KELP_OK || !pending->piece.sum || pending->piece.more) {
        return status;
    }
    if (pending->sum.begins) {
        kelp__level_sums_begin(&model->sums);
    }
    return pending->sum.ends
               ? KELP_OK
               : kelp__level_sums_reserve(&model->sums, model->device, model->flat_count, reterr);
}

static void fill_run(struct kelp_model *model, struct model_pending *pending, bool arriving)
{
    const struct kelp_model_piece *piece = &pending->piece;
    pending->run = (struct kelp_graph_run){
        .mode = KELP_GRAPH_TRAIN,
        .input = piece->input,
        .target = piece->target,
        .count = piece->count,
        .batch_total = piece->batch_total,
        .output = piece->output,
        .accumulate = piece->accumulate,
        .seed = model->seed,
        .step = piece->step,
        .position = piece->position,
        .need = arriving ? on_need : NULL,
        .complete = piece->complete ? on_complete : NULL,
        .user = model,
        .trace = piece->trace,
    };
}

/* The piece's weights will not come. */
static kelp_status end_unfinished(struct kelp_model *model, struct kelp_error *reterr)
{
    const kelp_status status =
        kelp_graph_end(begun_arena(model)->graph, &model->begun->run, reterr);
    const kelp_status settled = kelp__mirror_settle(&model->mirror, model->copies, NULL);
    assert(status != KELP_OK);
    (void)settled; /* the failure is known already */
    kelp__mirror_abandon(&model->mirror, model->copies);
    return status;
}

kelp_status kelp_model_begin(struct kelp_model *model, const struct kelp_model_piece *piece,
                             struct kelp_error *reterr)
{
    struct model_pending *pending = pending_at(model, model->pending_count);
    assert(!model->device->table->host_memory && model->gradient);
    assert(kelp_model_may_begin(model, piece));
    kelp_status status = kelp__mirror_settle(&model->mirror, model->copies, reterr);
    if (status != KELP_OK) {
        return status;
    }
    const bool arriving = piece->need && !model->mirror.has_weights;
    if (arriving) { /* all weights, even if some came in an earlier run, so that pauses are equal */
        kelp__mirror_lay_out(&model->mirror, model->offsets, model->tensor_count,
                             model->flat_count);
    }
    *pending = (struct model_pending){.piece = *piece,
                                      .arena = model->next,
                                      .brings = brings(piece),
                                      .gradient = model->gradient};
    if (piece->sum) {
        pending->sum = *piece->sum;
        pending->piece.sum = &pending->sum;
    }
    status = prepare_piece(model, pending, arriving, reterr);
    if (status != KELP_OK) {
        return status;
    }
    fill_run(model, pending, arriving);
    model->begun = pending;
    model->sum_begun = false;
    status = kelp_graph_begin(begun_arena(model)->graph, &pending->run, reterr);
    if (status != KELP_OK) {
        return status;
    }
    if (!kelp_graph_is_whole(begun_arena(model)->graph)) {
        return end_unfinished(model, reterr);
    }
    if (arriving) {
        bring_rest(model);
    }
    end_piece(model);
    model->pending_count++;
    model->next = piece->more ? model->next : (model->next + 1) % model->arena_count;
    if (piece->idle) {
        piece->idle(piece->user);
    }
    return KELP_OK;
}

uint32_t kelp_model_blocks_max(const struct kelp_model *model)
{
    return model->device->table->host_memory ? 1 : model->arena_count * KELP_GRAPH_PENDING_MAX;
}

bool kelp_model_may_begin_block(const struct kelp_model *model)
{
    return kelp_graph_pending(model->arenas[model->next].graph) < KELP_GRAPH_PENDING_MAX;
}

kelp_status kelp_model_begin_block(struct kelp_model *model, const struct kelp_model_block *block,
                                   struct kelp_error *reterr)
{
    struct model_pending *pending = pending_at(model, model->pending_count);
    struct model_arena *arena = &model->arenas[model->next];
    assert(!model->device->table->host_memory && model->weights && !model->gradient);
    assert(kelp_model_may_begin_block(model) && block->count > 0);
    kelp_status status = kelp__mirror_settle(&model->mirror, model->copies, reterr);
    if (status == KELP_OK) {
        status = kelp__model_upload(model, arena, false, false, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    *pending = (struct model_pending){
        .run = {.mode = block->target ? KELP_GRAPH_EVALUATE : KELP_GRAPH_FORWARD,
                .input = block->input,
                .target = block->target,
                .factors = block->factors,
                .count = block->count,
                .output = block->output},
        .arena = model->next};
    status = kelp_graph_begin(arena->graph, &pending->run, reterr);
    if (status != KELP_OK) {
        return status;
    }
    model->pending_count++;
    model->next = (model->next + 1) % model->arena_count;
    if (block->idle) {
        block->idle(block->user);
    }
    return KELP_OK;
}

/* NOLINTNEXTLINE(readability-non-const-parameter): sums are written through the run */
kelp_status kelp_model_finish(struct kelp_model *model, double sums[KELP_METRIC_SUM_COUNT],
                              struct kelp_error *reterr)
{
    struct model_pending *pending = pending_at(model, 0);
    struct model_arena *arena = &model->arenas[pending->arena];
    assert(model->pending_count != 0);
    kelp_status arrived = KELP_OK;
    if (pending->brings) {
        arrived =
            kelp__mirror_arrive(&model->mirror, arena->stream, model->copies, pending->gradient,
                                pending->piece.complete, pending->piece.user, reterr);
    }
    pending->run.sums = sums;
    kelp_status status =
        kelp_graph_end(arena->graph, &pending->run, arrived == KELP_OK ? reterr : NULL);
    status = arrived == KELP_OK ? status : arrived;
    const kelp_status settled =
        kelp__mirror_settle(&model->mirror, model->copies, status == KELP_OK ? reterr : NULL);
    model->pending_first = (model->pending_first + 1) % MODEL_PENDING_MAX;
    model->pending_count--;
    return status == KELP_OK ? settled : status;
}

void kelp_model_drop(struct kelp_model *model)
{
    for (uint32_t i = 0; i < model->arena_count; i++) {
        if (model->arenas[i].graph) {
            kelp_graph_drop(model->arenas[i].graph);
        }
    }
    model->pending_count = 0;
    if (model->copies) { /* what is still copied is dropped */
        const kelp_status settled = kelp__mirror_settle(&model->mirror, model->copies, NULL);
        (void)settled;
        kelp__mirror_abandon(&model->mirror, model->copies);
    }
}

void kelp_model_release(struct kelp_model *model, const float *samples)
{
    for (uint32_t i = 0; i < model->arena_count; i++) {
        kelp_graph_release(model->arenas[i].graph, samples);
    }
}

void kelp_model_stage(struct kelp_model *model, const float *input, const float *target,
                      uint32_t count)
{
    if (count != 0) {
        kelp_graph_stage(model->arenas[model->next].graph, input, target, count);
        return;
    }
    for (uint32_t i = 0; i < model->arena_count; i++) {
        kelp_graph_stage(model->arenas[i].graph, NULL, NULL, 0);
    }
}

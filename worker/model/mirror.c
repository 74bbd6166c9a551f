#include "worker/model/mirror.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* The least elements of a part, because each copy and its mark have a cost. */
#define PART_ELEMENTS ((UINT64_C(1) << 20) / sizeof(float))

static void free_leaving(struct kelp__mirror *mirror, struct kelp_device *device)
{
    device->table->host_free(device, mirror->leaving);
    free(mirror->parts);
    mirror->leaving = NULL;
    mirror->parts = NULL;
}

void kelp__mirror_fini(struct kelp__mirror *mirror, struct kelp_device *device)
{
    if (mirror->count != 0) {
        device->table->free(device, mirror->weights);
        free_leaving(mirror, device);
    }
    free(mirror->groups);
    free(mirror->group_of);
    *mirror = (struct kelp__mirror){0};
}

kelp_status kelp__mirror_prepare(struct kelp__mirror *mirror, struct kelp_device *device,
                                 uint64_t count, struct kelp_error *reterr)
{
    void *memory = NULL;
    if (mirror->count != count) {
        device->table->free(device, mirror->weights);
        free_leaving(mirror, device);
        mirror->weights = NULL;
        mirror->count = count;
        mirror->has_weights = false;
    }
    if (mirror->weights) {
        return KELP_OK;
    }
    const kelp_status status = device->table->alloc(device, count * sizeof(float), &memory, reterr);
    mirror->weights = memory;
    return status;
}

void kelp__mirror_upload(struct kelp__mirror *mirror, struct kelp_stream *stream,
                         const float *weights)
{
    assert(!mirror->has_weights);
    stream->table->copy_in(stream, mirror->weights, weights, (size_t)mirror->count * sizeof(float));
    mirror->has_weights = true;
}

/* ---- weights as they arrive ------------------------------------------------------------------ */

kelp_status kelp__mirror_init(struct kelp__mirror *mirror, uint32_t tensor_count,
                              struct kelp_error *reterr)
{
    mirror->groups = calloc(tensor_count, sizeof(*mirror->groups));
    mirror->group_of = calloc(tensor_count, sizeof(*mirror->group_of));
    return mirror->groups && mirror->group_of
               ? KELP_OK
               : kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
}

void kelp__mirror_lay_out(struct kelp__mirror *mirror, const uint64_t *offsets,
                          uint32_t tensor_count, uint64_t count)
{
    struct kelp__mirror_group *group = NULL;
    mirror->group_count = 0;
    mirror->has_weights = false;
    for (uint32_t i = 0; i < tensor_count; i++) {
        const uint64_t end = i + 1 < tensor_count ? offsets[i + 1] : count;
        if (!group || group->to - group->from >= PART_ELEMENTS) {
            group = &mirror->groups[mirror->group_count++];
            *group = (struct kelp__mirror_group){.first = i, .from = offsets[i]};
        }
        group->end = i + 1;
        group->to = end;
        mirror->group_of[i] = mirror->group_count - 1;
    }
}

void kelp__mirror_bring(struct kelp__mirror *mirror, struct kelp__mirror_group *group,
                        struct kelp_stream *stream, struct kelp_stream *copies,
                        const float *weights)
{
    assert(!group->there && !mirror->has_weights);
    copies->table->copy_in(copies, mirror->weights + group->from, weights + group->from,
                           (size_t)(group->to - group->from) * sizeof(float));
    mirror->brought_mark = copies->table->mark(copies);
    mirror->brought = true;
    stream->table->after(stream, copies, mirror->brought_mark);
    group->there = true;
}

bool kelp__mirror_is_there(const struct kelp__mirror *mirror)
{
    bool there = true;
    for (uint32_t i = 0; i < mirror->group_count && !mirror->has_weights; i++) {
        there = there && mirror->groups[i].there;
    }
    return there;
}

kelp_status kelp__mirror_settle(struct kelp__mirror *mirror, struct kelp_stream *copies,
                                struct kelp_error *reterr)
{
    if (!mirror->brought) {
        return KELP_OK;
    }
    mirror->brought = false;
    if (!copies->table->wait_mark(copies, mirror->brought_mark)) {
        return copies->table->wait(copies, reterr);
    }
    mirror->has_weights = kelp__mirror_is_there(mirror);
    return KELP_OK;
}

/* ---- gradients that are copied out ----------------------------------------------------------- */

kelp_status kelp__mirror_begin(struct kelp__mirror *mirror, struct kelp_device *device,
                               struct kelp_error *reterr)
{
    const uint64_t parts = mirror->count / PART_ELEMENTS + 1;
    mirror->part_count = 0;
    if (mirror->leaving) {
        return KELP_OK;
    }
    void *memory = NULL;
    mirror->parts = malloc(parts * sizeof(*mirror->parts));
    const kelp_status status =
        mirror->parts ? device->table->host_alloc(device, (size_t)mirror->count * sizeof(float),
                                                  &memory, reterr)
                      : kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    if (status != KELP_OK) {
        free(mirror->parts);
        mirror->parts = NULL;
    }
    mirror->leaving = memory;
    return status;
}

uint64_t kelp__mirror_left(const struct kelp__mirror *mirror)
{
    return mirror->part_count != 0 ? mirror->parts[mirror->part_count - 1].first : mirror->count;
}

bool kelp__mirror_is_due(const struct kelp__mirror *mirror, uint32_t index, uint64_t first)
{
    assert(first <= kelp__mirror_left(mirror));
    return index == 0 || kelp__mirror_left(mirror) - first >= PART_ELEMENTS;
}

void kelp__mirror_leave(struct kelp__mirror *mirror, struct kelp_stream *stream,
                        struct kelp_stream *copies, const float *gradient, uint32_t index,
                        uint64_t first)
{
    const uint64_t end = kelp__mirror_left(mirror);
    if (!kelp__mirror_is_due(mirror, index, first)) {
        return; /* copied with the next tensor */
    }
    struct kelp__mirror_part *part = &mirror->parts[mirror->part_count++];
    *part = (struct kelp__mirror_part){.first = first,
                                       .count = end - first,
                                       .index = index,
                                       .computed = stream->table->mark(stream)};
    copies->table->after(copies, stream, part->computed);
    copies->table->copy_out(copies, mirror->leaving + first, gradient + first,
                            (size_t)part->count * sizeof(float));
    part->mark = copies->table->mark(copies);
    mirror->leaves = true;
    if (index == 0) { /* the next piece overwrites the gradient */
        stream->table->after(stream, copies, part->mark);
    }
}

kelp_status kelp__mirror_arrive(struct kelp__mirror *mirror, struct kelp_stream *stream,
                                struct kelp_stream *copies, float *gradient,
                                void (*tell)(void *user, uint32_t index), void *user,
                                struct kelp_error *reterr)
{
    for (uint32_t i = 0; i < mirror->part_count; i++) {
        const struct kelp__mirror_part *part = &mirror->parts[i];
        if (!stream->table->wait_mark(stream, part->computed)) {
            kelp__mirror_abandon(mirror, copies);
            return KELP_OK; /* the stream says what failed */
        }
        if (!copies->table->wait_mark(copies, part->mark)) {
            mirror->leaves = false;
            return copies->table->wait(copies, reterr);
        }
        memcpy(gradient + part->first, mirror->leaving + part->first,
               (size_t)part->count * sizeof(float));
        if (tell) {
            tell(user, part->index);
        }
    }
    mirror->leaves = false;
    return KELP_OK;
}

void kelp__mirror_abandon(struct kelp__mirror *mirror, struct kelp_stream *copies)
{
    if (mirror->leaves) {
        const kelp_status status = copies->table->wait(copies, NULL);
        (void)status; /* nobody reads what came */
        mirror->leaves = false;
    }
}

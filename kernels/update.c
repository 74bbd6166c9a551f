#include "kernels/update.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/loops.h"

static enum kelp_update_kind kind_of(const struct kelp_job *job, const struct kelp_tensor *tensor)
{
    if (tensor->statistic) {
        return KELP_UPDATE_STATISTIC;
    }
    /* Without decay in the job all are of one kind, whatever their names. */
    return tensor->decays || job->train.weight_decay == 0.0 ? KELP_UPDATE_DECAYED
                                                            : KELP_UPDATE_PLAIN;
}

static bool same_kind(const struct kelp_update_segment *a, const struct kelp_update_segment *b)
{
    return a->kind == b->kind && memcmp(&a->momentum, &b->momentum, sizeof(a->momentum)) == 0;
}

/* Behind the last one, or joined to it. */
static void add_segment(struct kelp_update *update, const struct kelp_update_segment *segment)
{
    struct kelp_update_segment *last =
        update->count > 0 ? &update->segments[update->count - 1] : NULL;

    assert(segment->first == (last ? last->first + last->count : 0));
    if (last && same_kind(last, segment)) {
        last->count += segment->count;
    } else {
        update->segments[update->count++] = *segment;
    }
}

/* What of tensor i, with the padding behind it, lies in the range; count 0: nothing. */
static struct kelp_slice_range part_in(const struct kelp_plan *plan, uint32_t i,
                                       struct kelp_slice_range range)
{
    const uint64_t begin = plan->tensors[i].offset;
    const uint64_t end =
        i + 1 < plan->tensor_count ? plan->tensors[i + 1].offset : plan->flat_count;
    const uint64_t first = begin > range.first ? begin : range.first;
    const uint64_t last = end < range.first + range.count ? end : range.first + range.count;

    return (struct kelp_slice_range){.first = first, .count = last > first ? last - first : 0};
}

kelp_status kelp_update_init(struct kelp_update *update, const struct kelp_job *job,
                             const struct kelp_plan *plan, struct kelp_slice_range range,
                             struct kelp_error *reterr)
{
    size_t parts = 0;

    assert(range.first + range.count <= plan->flat_count);
    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        parts += part_in(plan, i, range).count > 0 ? 1 : 0;
    }
    *update = (struct kelp_update){.segments = calloc(parts + 1, sizeof(*update->segments))};
    if (!update->segments) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for the update of %zu tensors",
                         parts);
    }
    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        const struct kelp_slice_range part = part_in(plan, i, range);
        if (part.count > 0) {
            add_segment(update,
                        &(struct kelp_update_segment){.first = part.first - range.first,
                                                      .count = part.count,
                                                      .kind = kind_of(job, &plan->tensors[i]),
                                                      .momentum = plan->tensors[i].momentum});
        }
    }
    return KELP_OK;
}

void kelp_update_fini(struct kelp_update *update)
{
    free(update->segments);
    memset(update, 0, sizeof(*update));
}

/* The buffers from an element on. */
static struct kelp_optimizer_buffers buffers_at(const struct kelp_optimizer_buffers *buffers,
                                                uint64_t first)
{
    struct kelp_optimizer_buffers at = {.weights = buffers->weights + first,
                                        .gradient = buffers->gradient + first,
                                        .weights_next = buffers->weights_next + first};

    for (uint32_t i = 0; i < KELP_OPTIMIZER_SLOTS_MAX; i++) {
        at.slots[i] = buffers->slots[i] ? buffers->slots[i] + first : NULL;
    }
    return at;
}

bool kelp_update_apply(const struct kelp_update *update, const struct kelp_optimizer_step *step,
                       const struct kelp_optimizer_buffers *buffers)
{
    const struct kelp_optimizer_loops *loops = kelp__loops()->optimizer;
    struct kelp_optimizer_step plain = *step;
    bool finite = true;

    kelp_optimizer_leave_decay(&plain);
    for (uint32_t i = 0; i < update->count; i++) {
        const struct kelp_update_segment *segment = &update->segments[i];
        const struct kelp_optimizer_buffers at = buffers_at(buffers, segment->first);
        bool good = false;
        switch (segment->kind) {
        case KELP_UPDATE_DECAYED:
            good = kelp__optimizer_update(loops, step, &at, segment->count);
            break;
        case KELP_UPDATE_PLAIN:
            good = kelp__optimizer_update(loops, &plain, &at, segment->count);
            break;
        case KELP_UPDATE_STATISTIC:
            good = loops->statistic(segment->momentum, &at, segment->count);
            break;
        }
        finite = finite && good;
    }
    return finite;
}

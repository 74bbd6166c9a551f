#include "worker/model/level_sums.h"

#include <assert.h>

void kelp__level_sums_fini(struct kelp__level_sums *sums, struct kelp_device *device)
{
    kelp__level_sums_begin(sums);
    for (uint32_t i = 0; i < sums->unused_count; i++) {
        device->table->free(device, sums->unused[i]);
    }
    *sums = (struct kelp__level_sums){.count = 0};
}

void kelp__level_sums_begin(struct kelp__level_sums *sums)
{
    while (sums->waiting_count > 0) {
        sums->unused[sums->unused_count++] = sums->waiting[--sums->waiting_count].values;
    }
}

kelp_status kelp__level_sums_reserve(struct kelp__level_sums *sums, struct kelp_device *device,
                                     uint64_t count, struct kelp_error *reterr)
{
    void *memory = NULL;
    assert(sums->count == 0 || sums->count == count);
    if (sums->unused_count > 0) {
        return KELP_OK;
    }
    const kelp_status status =
        device->table->alloc(device, (size_t)count * sizeof(float), &memory, reterr);
    if (status == KELP_OK) {
        sums->count = count;
        sums->unused[sums->unused_count++] = memory;
    }
    return status;
}

/* End of the smallest node that contains both lanes. */
static uint32_t end_of_both(uint32_t left, uint32_t right)
{
    uint32_t lanes = 2;
    assert(left < right);
    while (left / lanes != right / lanes) {
        lanes *= 2;
    }
    return (right / lanes + 1) * lanes;
}

void kelp__level_sums_advance(struct kelp__level_sums *sums, struct kelp_stream *stream,
                              uint32_t index)
{
    while (sums->waiting_count >= 2) {
        const uint32_t last = sums->waiting_count - 1;
        float *left = sums->waiting[last - 1].values, *right = sums->waiting[last].values;
        if (end_of_both(sums->waiting[last - 1].index, sums->waiting[last].index) > index) {
            return;
        }
        stream->table->add(stream, left, left, right, sums->count);
        sums->unused[sums->unused_count++] = right;
        sums->waiting_count--;
    }
}

/* Let the values of lane `index` wait; waiting sums are in the order of lanes. */
static void push(struct kelp__level_sums *sums, float *values, uint32_t index)
{
    assert(sums->waiting_count < KELP_LEVEL_SUMS_MAX);
    sums->waiting[sums->waiting_count].values = values;
    sums->waiting[sums->waiting_count].index = index;
    sums->waiting_count++;
}

void kelp__level_sums_keep(struct kelp__level_sums *sums, struct kelp_stream *stream,
                           const float *gradient, uint32_t index)
{
    const uint32_t last = sums->waiting_count - 1;
    if (sums->waiting_count > 0 && end_of_both(sums->waiting[last].index, index) == index + 1) {
        float *left = sums->waiting[last].values; /* added without a copy */
        stream->table->add(stream, left, left, gradient, sums->count);
    } else {
        assert(sums->unused_count > 0);
        float *values = sums->unused[--sums->unused_count];
        const struct kelp_copy copy = {.rank = 1,
                                       .dims = {sums->count},
                                       .x = gradient,
                                       .x_strides = {1},
                                       .y = values,
                                       .y_strides = {1},
                                       .scale = 1.0f};
        stream->table->copy(stream, &copy);
        push(sums, values, index);
    }
    kelp__level_sums_advance(sums, stream, index + 1);
}

void kelp__level_sums_add(const struct kelp__level_sums *sums, struct kelp_stream *stream,
                          float *gradient, uint64_t first, uint64_t count)
{
    for (uint32_t i = sums->waiting_count; i-- > 0;) {
        stream->table->add(stream, gradient + first, sums->waiting[i].values + first,
                           gradient + first, count);
    }
}

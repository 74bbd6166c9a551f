#include <stdlib.h>

#include "bench/gpu/gpu.h"

#define PATTERN_COUNT (16u * GPU_MI)

/* Where arrays are allocated, and the pattern they are filled with. */
struct filling {
    struct kelp_device *device;
    struct kelp_stream *stream;
    float *pattern;
};

static void wait_for(struct kelp_stream *stream)
{
    struct kelp_error error = {KELP_OK, ""};
    if (stream->table->wait(stream, &error) != KELP_OK) {
        gpu_fail(&error);
    }
}

static void *allocate_host(uint64_t bytes)
{
    void *ret = malloc(bytes);
    if (ret == NULL) {
        gpu_fail(&(struct kelp_error){KELP_ERR_NO_MEMORY, "out of memory"});
    }
    return ret;
}

static void *allocate(const struct filling *with, uint64_t bytes)
{
    struct kelp_error error = {KELP_OK, ""};
    void *ret = NULL;
    if (with->device->table->alloc(with->device, bytes, &ret, &error) != KELP_OK) {
        gpu_fail(&error);
    }
    return ret;
}

/* Filled by repeating the pattern. */
static float *allocate_floats(const struct filling *with, uint64_t count)
{
    float *ret = allocate(with, count * sizeof(*ret));
    for (uint64_t i = 0; i < count; i += PATTERN_COUNT) {
        const uint64_t some = count - i < PATTERN_COUNT ? count - i : PATTERN_COUNT;
        with->stream->table->copy_in(with->stream, ret + i, with->pattern, some * sizeof(*ret));
    }
    wait_for(with->stream);
    return ret;
}

/* Filled with whole numbers below limit. */
static float *allocate_numbers(const struct filling *with, uint64_t count, uint32_t limit)
{
    float *host = allocate_host(count * sizeof(*host));
    uint64_t bits = limit;
    for (uint64_t i = 0; i < count; i++) {
        bits = bits * 6364136223846793005u + 1442695040888963407u;
        host[i] = (float)((bits >> 33) % limit);
    }
    float *ret = allocate(with, count * sizeof(*ret));
    with->stream->table->copy_in(with->stream, ret, host, count * sizeof(*ret));
    wait_for(with->stream);
    free(host);
    return ret;
}

static void fill(struct gpu_memory *memory, const struct filling *with)
{
    static const float one = 1.0f;
    static const uint64_t seed_step[2] = {1, 2};
    memory->x = allocate_floats(with, GPU_SLOT_COUNT);
    memory->dy = allocate_floats(with, GPU_SLOT_COUNT);
    memory->out = allocate_floats(with, GPU_SLOT_COUNT);
    memory->more = allocate_floats(with, GPU_SLOT_COUNT);
    memory->weight = allocate_floats(with, GPU_SMALL_COUNT);
    memory->bias = allocate_floats(with, GPU_SMALL_COUNT);
    memory->small = allocate_floats(with, GPU_SMALL_COUNT);
    memory->small_two = allocate_floats(with, GPU_SMALL_COUNT);
    memory->ids = allocate_numbers(with, GPU_TABLE_IDS, GPU_TABLE_ROWS);
    memory->classes = allocate_numbers(with, GPU_ROWS, GPU_CLASSES);
    memory->positions =
        (uint32_t *)(void *)allocate_numbers(with, GPU_ROWS, GPU_ROWS); /* any values do */
    memory->scale = allocate(with, sizeof(one));
    memory->seed_step = allocate(with, sizeof(seed_step));
    memory->chosen = allocate(with, GPU_SLOT_COUNT / 4 * sizeof(*memory->chosen));
    memory->sums = allocate(with, (uint64_t)GPU_ROWS * KELP_LOSS_SUMS * sizeof(*memory->sums));
    with->stream->table->copy_in(with->stream, memory->scale, &one, sizeof(one));
    with->stream->table->copy_in(with->stream, memory->seed_step, seed_step, sizeof(seed_step));
    wait_for(with->stream);
}

void gpu_memory_init(struct gpu_memory *memory, struct kelp_device *device,
                     struct kelp_stream *stream)
{
    const struct filling with = {device, stream, allocate_host(PATTERN_COUNT * sizeof(float))};
    for (uint64_t i = 0; i < PATTERN_COUNT; i++) {
        with.pattern[i] = (float)((i * 2654435761u) % 2001) / 1000.0f - 1.0f;
    }
    fill(memory, &with);
    free(with.pattern);
}

void gpu_memory_fini(const struct gpu_memory *memory, struct kelp_device *device)
{
    void *all[] = {memory->x,         memory->dy,        memory->out,   memory->more,
                   memory->weight,    memory->bias,      memory->small, memory->small_two,
                   memory->ids,       memory->classes,   memory->scale, memory->chosen,
                   memory->positions, memory->seed_step, memory->sums};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(all); i++) {
        device->table->free(device, all[i]);
    }
}

#include "worker/compute/prefetch.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/*
 *     EMPTY -> ASKED -> READING -> READY -> EMPTY
 *                ^                   |
 *                +-------------------+  other samples are requested
 */
enum state { EMPTY, ASKED, READING, READY };

struct kelp_prefetch {
    const struct kelp_dataset *dataset;
    struct kelp_sample_memory memory;
    uint32_t count_max;
    pthread_t thread;
    pthread_mutex_t mutex; /* guards the rest; in READING only the thread uses the buffers */
    pthread_cond_t changed;
    bool stop;
    enum state state;
    enum kelp_split split;
    uint32_t count;
    uint64_t *indices;
    float *input;
    float *target;
    kelp_status status; /* of READY */
};

static void *read_batches(void *user)
{
    struct kelp_prefetch *prefetch = user;
    (void)pthread_mutex_lock(&prefetch->mutex);
    while (!prefetch->stop) {
        if (prefetch->state != ASKED) {
            (void)pthread_cond_wait(&prefetch->changed, &prefetch->mutex);
            continue;
        }
        prefetch->state = READING;
        (void)pthread_mutex_unlock(&prefetch->mutex);
        kelp_status status =
            kelp_dataset_read(prefetch->dataset, prefetch->split, prefetch->indices,
                              prefetch->count, prefetch->input, prefetch->target);
        (void)pthread_mutex_lock(&prefetch->mutex);
        prefetch->status = status;
        prefetch->state = READY;
        (void)pthread_cond_broadcast(&prefetch->changed);
    }
    (void)pthread_mutex_unlock(&prefetch->mutex);
    return NULL;
}

void kelp_prefetch_ask(struct kelp_prefetch *prefetch, const struct kelp_prefetch_batch *batch)
{
    assert(batch->count <= prefetch->count_max);
    (void)pthread_mutex_lock(&prefetch->mutex);
    if (prefetch->state != READING) {
        prefetch->split = batch->split;
        prefetch->count = batch->count;
        memcpy(prefetch->indices, batch->indices, batch->count * sizeof(*prefetch->indices));
        prefetch->state = ASKED;
        (void)pthread_cond_broadcast(&prefetch->changed);
    }
    (void)pthread_mutex_unlock(&prefetch->mutex);
}

static bool is_asked(const struct kelp_prefetch *prefetch, const struct kelp_prefetch_batch *batch)
{
    return prefetch->state != EMPTY && prefetch->split == batch->split &&
           prefetch->count == batch->count &&
           memcmp(prefetch->indices, batch->indices, batch->count * sizeof(*batch->indices)) == 0;
}

bool kelp_prefetch_is_read(struct kelp_prefetch *prefetch, const struct kelp_prefetch_batch *batch)
{
    (void)pthread_mutex_lock(&prefetch->mutex);
    const bool read = prefetch->state == READY && is_asked(prefetch, batch);
    (void)pthread_mutex_unlock(&prefetch->mutex);
    return read;
}

bool kelp_prefetch_take(struct kelp_prefetch *prefetch, const struct kelp_prefetch_batch *batch,
                        float **input, float **target, kelp_status *ret_status)
{
    (void)pthread_mutex_lock(&prefetch->mutex);
    bool asked = is_asked(prefetch, batch);
    while (asked && prefetch->state != READY) {
        (void)pthread_cond_wait(&prefetch->changed, &prefetch->mutex);
    }
    if (asked) {
        float *own_input = *input, *own_target = *target;
        *input = prefetch->input;
        *target = prefetch->target;
        *ret_status = prefetch->status;
        prefetch->input = own_input;
        prefetch->target = own_target;
        prefetch->state = EMPTY;
    }
    (void)pthread_mutex_unlock(&prefetch->mutex);
    return asked;
}

/* ---- life ------------------------------------------------------------------------------------ */

static void free_all(struct kelp_prefetch *prefetch)
{
    free(prefetch->indices);
    prefetch->memory.free(prefetch->memory.user, prefetch->input);
    prefetch->memory.free(prefetch->memory.user, prefetch->target);
    free(prefetch);
}

kelp_status kelp_prefetch_create(const struct kelp_dataset *dataset, uint32_t count_max,
                                 const struct kelp_sample_memory *memory,
                                 struct kelp_prefetch **ret_prefetch, struct kelp_error *reterr)
{
    const struct kelp_sample_shape *shape = &kelp_dataset_info(dataset)->shape;
    size_t input_bytes = (size_t)kelp_sample_input_count(shape) * sizeof(float);
    size_t target_bytes = (size_t)kelp_sample_target_count(shape) * sizeof(float);
    struct kelp_prefetch *prefetch = calloc(1, sizeof(*prefetch));
    if (!prefetch) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    prefetch->dataset = dataset;
    prefetch->memory = *memory;
    prefetch->count_max = count_max;
    prefetch->indices = calloc(count_max, sizeof(*prefetch->indices));
    prefetch->input = memory->alloc(memory->user, count_max * input_bytes);
    prefetch->target = memory->alloc(memory->user, count_max * target_bytes);
    if (!prefetch->indices || !prefetch->input || !prefetch->target) {
        free_all(prefetch);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for batches of %u samples",
                         count_max);
    }
    (void)pthread_mutex_init(&prefetch->mutex, NULL); /* cannot fail without attributes */
    (void)pthread_cond_init(&prefetch->changed, NULL);
    if (pthread_create(&prefetch->thread, NULL, read_batches, prefetch) != 0) {
        free_all(prefetch);
        return kelp_fail(reterr, KELP_ERR_IO, "no thread can be started to read samples");
    }
    *ret_prefetch = prefetch;
    return KELP_OK;
}

void kelp_prefetch_destroy(struct kelp_prefetch *prefetch)
{
    if (!prefetch) {
        return;
    }
    (void)pthread_mutex_lock(&prefetch->mutex);
    prefetch->stop = true;
    (void)pthread_cond_broadcast(&prefetch->changed);
    (void)pthread_mutex_unlock(&prefetch->mutex);
    (void)pthread_join(prefetch->thread, NULL);
    (void)pthread_mutex_destroy(&prefetch->mutex);
    (void)pthread_cond_destroy(&prefetch->changed);
    free_all(prefetch);
}

#include "ps/shard/tensors/area_pool.h"

#include <pthread.h>
#include <stdlib.h>

#include "ps/core/limits.h"

#define PAGE_BYTES 4096u

struct chunk {
    struct chunk *next;
    struct kelp_shm_area *area;
};

struct kelp_area_pool {
    pthread_mutex_t lock; /* guards the rest; no other lock is taken under it */
    uint32_t refs;
    struct chunk *chunks; /* newest first; pieces are taken from the newest */
    size_t used;          /* bytes of the newest chunk */
};

struct kelp_area_pool *kelp_area_pool_create(void)
{
    struct kelp_area_pool *pool = calloc(1, sizeof(*pool));

    if (pool) {
        (void)pthread_mutex_init(&pool->lock, NULL);
        pool->refs = 1;
    }
    return pool;
}

void kelp_area_pool_ref(struct kelp_area_pool *pool)
{
    (void)pthread_mutex_lock(&pool->lock);
    pool->refs++;
    (void)pthread_mutex_unlock(&pool->lock);
}

void kelp_area_pool_unref(struct kelp_area_pool *pool)
{
    if (!pool) {
        return;
    }
    (void)pthread_mutex_lock(&pool->lock);
    const bool last = --pool->refs == 0;
    (void)pthread_mutex_unlock(&pool->lock);
    if (!last) {
        return;
    }
    while (pool->chunks) {
        struct chunk *chunk = pool->chunks;
        pool->chunks = chunk->next;
        kelp_shm_area_retire(chunk->area);
        kelp_shm_area_unref(chunk->area);
        free(chunk);
    }
    (void)pthread_mutex_destroy(&pool->lock);
    free(pool);
}

static bool add_chunk(struct kelp_area_pool *pool, size_t bytes)
{
    struct chunk *chunk = calloc(1, sizeof(*chunk));
    const size_t length = bytes > KELP_PS_AREA_CHUNK_BYTES ? bytes : KELP_PS_AREA_CHUNK_BYTES;

    if (!chunk || kelp_shm_area_create(length, &chunk->area, NULL) != KELP_OK) {
        free(chunk);
        return false;
    }
    chunk->next = pool->chunks;
    pool->chunks = chunk;
    pool->used = 0;
    return true;
}

void *kelp_area_pool_take(struct kelp_area_pool *pool, size_t bytes,
                          struct kelp_shm_area **ret_area)
{
    char *taken = NULL;

    bytes = (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    (void)pthread_mutex_lock(&pool->lock);
    if ((pool->chunks && kelp_shm_area_length(pool->chunks->area) - pool->used >= bytes) ||
        add_chunk(pool, bytes)) {
        *ret_area = pool->chunks->area;
        kelp_shm_area_ref(*ret_area);
        taken = (char *)kelp_shm_area_bytes(*ret_area) + pool->used;
        pool->used += bytes;
    }
    (void)pthread_mutex_unlock(&pool->lock);
    return taken;
}

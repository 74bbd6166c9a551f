#include "ps/shard/tensors/capture.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "ps/core/limits.h"

/* ---- buffers ---- */

struct kelp_capture_pool {
    pthread_mutex_t lock; /* guards the rest; no other lock is taken under it */
    struct kelp_capture_buffer *idle;
    uint32_t idle_count;
    uint32_t idle_capacity;
    uint32_t limit; /* largest idle_count */
    uint32_t out;   /* buffers in use */
    uint32_t made;  /* buffers made so far; staggers them */
    bool ended;     /* the owner is gone: freed with the last buffer */
};

kelp_status kelp_capture_pool_create(struct kelp_capture_pool **ret_pool, struct kelp_error *reterr)
{
    struct kelp_capture_pool *pool = calloc(1, sizeof(*pool));

    if (!pool) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for snapshots");
    }
    (void)pthread_mutex_init(&pool->lock, NULL);
    *ret_pool = pool;
    return KELP_OK;
}

static void free_pool(struct kelp_capture_pool *pool)
{
    while (pool->idle_count > 0) {
        free(pool->idle[--pool->idle_count].base);
    }
    free(pool->idle);
    (void)pthread_mutex_destroy(&pool->lock);
    free(pool);
}

void kelp_capture_pool_destroy(struct kelp_capture_pool *pool)
{
    if (!pool) {
        return;
    }
    (void)pthread_mutex_lock(&pool->lock);
    pool->ended = true;
    bool last = pool->out == 0;
    (void)pthread_mutex_unlock(&pool->lock);
    if (last) {
        free_pool(pool);
    }
}

void kelp_capture_pool_limit(struct kelp_capture_pool *pool, uint32_t count)
{
    (void)pthread_mutex_lock(&pool->lock);
    pool->limit = count;
    while (pool->idle_count > count) {
        free(pool->idle[--pool->idle_count].base);
    }
    (void)pthread_mutex_unlock(&pool->lock);
}

static bool pop_idle(struct kelp_capture_pool *pool, size_t bytes,
                     struct kelp_capture_buffer *ret_buffer)
{
    for (uint32_t i = pool->idle_count; i > 0; i--) {
        if (pool->idle[i - 1].bytes >= bytes) { /* nearly all have one size */
            *ret_buffer = pool->idle[i - 1];
            pool->idle[i - 1] = pool->idle[--pool->idle_count];
            return true;
        }
    }
    return false;
}

/* values is NULL: out of memory. */
static struct kelp_capture_buffer take(struct kelp_capture_pool *pool, size_t bytes)
{
    struct kelp_capture_buffer buffer = {.bytes = bytes};

    (void)pthread_mutex_lock(&pool->lock);
    bool found = pop_idle(pool, bytes, &buffer);
    uint32_t index = pool->made;
    pool->made += found ? 0 : 1;
    pool->out++;
    (void)pthread_mutex_unlock(&pool->lock);
    if (!found) {
        buffer.values = kelp__extent_alloc_staggered(bytes, index, &buffer.base);
    }
    if (!buffer.values) {
        (void)pthread_mutex_lock(&pool->lock);
        pool->out--;
        (void)pthread_mutex_unlock(&pool->lock);
    }
    return buffer;
}

/* False: the caller frees the buffer. The lock is held. */
static bool keep_idle(struct kelp_capture_pool *pool, const struct kelp_capture_buffer *buffer)
{
    if (pool->idle_count >= pool->limit) {
        return false;
    }
    if (pool->idle_count == pool->idle_capacity) {
        uint32_t capacity = pool->idle_capacity ? 2 * pool->idle_capacity : 16;
        struct kelp_capture_buffer *idle = realloc(pool->idle, capacity * sizeof(*idle));
        if (!idle) {
            return false;
        }
        pool->idle = idle;
        pool->idle_capacity = capacity;
    }
    pool->idle[pool->idle_count++] = *buffer;
    return true;
}

static void give(struct kelp_capture_pool *pool, struct kelp_capture_buffer *buffer)
{
    if (!buffer->values) {
        return;
    }
    (void)pthread_mutex_lock(&pool->lock);
    bool kept = keep_idle(pool, buffer);
    assert(pool->out > 0);
    bool last = --pool->out == 0 && pool->ended;
    (void)pthread_mutex_unlock(&pool->lock);
    if (!kept) {
        free(buffer->base);
    }
    if (last) {
        free_pool(pool);
    }
    *buffer = (struct kelp_capture_buffer){0};
}

void kelp_capture_pool_fill(struct kelp_capture_pool *pool, uint32_t count, size_t bytes)
{
    for (;;) {
        (void)pthread_mutex_lock(&pool->lock);
        bool enough = pool->idle_count + pool->out >= count || pool->idle_count >= pool->limit;
        uint32_t index = pool->made;
        pool->made += enough ? 0 : 1;
        (void)pthread_mutex_unlock(&pool->lock);
        struct kelp_capture_buffer buffer = {.bytes = bytes};
        if (!enough) {
            buffer.values = kelp__extent_alloc_staggered(bytes, index, &buffer.base);
        }
        if (!buffer.values) {
            return;
        }
        memset(buffer.values, 0xff, bytes); /* zeros could leave pages unmapped */
        (void)pthread_mutex_lock(&pool->lock);
        bool kept = keep_idle(pool, &buffer);
        (void)pthread_mutex_unlock(&pool->lock);
        if (!kept) {
            free(buffer.base);
            return;
        }
    }
}

/* ---- captures ---- */

static kelp_status keep_weights(struct kelp_capture *capture)
{
    capture->lent =
        kelp_extent_lend(capture->extent, KELP_WEIGHTS_CURRENT, &capture->weights, &capture->loan);
    if (capture->lent) {
        return KELP_OK;
    }
    capture->weights_copy = take(capture->pool, capture->bytes);
    if (!capture->weights_copy.values) {
        return KELP_ERR_NO_MEMORY;
    }
    memcpy(capture->weights_copy.values, capture->weights, capture->bytes);
    capture->weights = capture->weights_copy.values;
    return KELP_OK;
}

/* The capture reads nothing of the extent any more. */
static void let_go(struct kelp_capture *capture)
{
    kelp_extent_unref(capture->extent);
    capture->extent = NULL;
}

kelp_status kelp_capture_take(struct kelp_capture *capture, struct kelp_capture_pool *pool,
                              uint64_t ticket, struct kelp_extent *extent,
                              const struct kelp_control_state *control)
{
    assert(!capture->pool);
    *capture = (struct kelp_capture){.pool = pool,
                                     .ticket = ticket,
                                     .has_control = control != NULL,
                                     .bytes = kelp_extent_bytes(extent),
                                     .slot_count = kelp_extent_slot_count(extent)};
    if (control) {
        capture->control = *control;
    }
    if (capture->bytes == 0) {
        return KELP_OK;
    }
    kelp_extent_ref(extent);
    capture->extent = extent;
    for (uint32_t i = 0; i < capture->slot_count; i++) {
        capture->slots[i] = kelp_extent_slot(extent, i);
    }
    kelp_status status = keep_weights(capture);
    if (status != KELP_OK) {
        kelp_capture_release(capture);
    }
    return status;
}

kelp_status kelp_capture_detach(struct kelp_capture *capture)
{
    for (uint32_t i = 0; capture->extent && i < capture->slot_count; i++) {
        if (capture->copies[i].values) {
            continue; /* copied already: an earlier attempt ran out of memory later */
        }
        capture->copies[i] = take(capture->pool, capture->bytes);
        if (!capture->copies[i].values) {
            return KELP_ERR_NO_MEMORY;
        }
        memcpy(capture->copies[i].values, capture->slots[i], capture->bytes);
        capture->slots[i] = capture->copies[i].values;
    }
    let_go(capture);
    return KELP_OK;
}

void kelp_capture_release(struct kelp_capture *capture)
{
    if (!capture->pool) {
        return;
    }
    let_go(capture);
    if (capture->lent) {
        kelp_extent_return(&capture->loan);
    }
    give(capture->pool, &capture->weights_copy);
    for (uint32_t i = 0; i < capture->slot_count; i++) {
        give(capture->pool, &capture->copies[i]);
    }
    *capture = (struct kelp_capture){0};
}

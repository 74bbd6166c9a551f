#include "worker/compute/gradients.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/shm/shm_area.h"
#include "kernels/optimizer.h"
#include "worker/compute/limits.h"

#define PAGE_BYTES   4096u
#define HEADER_BYTES ((sizeof(struct kelp_gradient) + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES)
#define STAGGER_BYTES                                                                              \
    320u /* an odd number of cache lines: equal alignment costs a factor 2 to 3                    \
          */

struct kelp_gradient_pool {
    pthread_mutex_t mutex; /* guards what follows */
    bool destroyed;        /* the last buffer frees the pool */
    bool shares;           /* new buffers lie in areas */
    struct kelp_gradient *free_list;
    uint64_t flat_count;
    unsigned live_count;
    unsigned made_count;
};

struct kelp_gradient_pool *kelp_gradient_pool_create(uint64_t flat_count)
{
    struct kelp_gradient_pool *pool = calloc(1, sizeof(*pool));
    if (pool) {
        pthread_mutex_init(&pool->mutex, NULL);
        pool->flat_count = flat_count;
    }
    return pool;
}

void kelp_gradient_pool_share(struct kelp_gradient_pool *pool)
{
    pthread_mutex_lock(&pool->mutex);
    pool->shares = pool->flat_count * sizeof(float) >= KELP_GRADIENT_SHARED_BYTES_MIN;
    pthread_mutex_unlock(&pool->mutex);
}

static void gradient_free(struct kelp_gradient *gradient)
{
    if (gradient->area) {
        kelp_shm_area_retire(gradient->area);
        kelp_shm_area_unref(gradient->area);
    }
    free(gradient);
}

static void pool_free(struct kelp_gradient_pool *pool)
{
    pthread_mutex_destroy(&pool->mutex);
    free(pool);
}

void kelp_gradient_pool_destroy(struct kelp_gradient_pool *pool)
{
    if (!pool) {
        return;
    }
    pthread_mutex_lock(&pool->mutex);
    pool->destroyed = true;
    while (pool->free_list) {
        struct kelp_gradient *gradient = pool->free_list;
        pool->free_list = gradient->next_free;
        gradient_free(gradient);
    }
    bool last = pool->live_count == 0;
    pthread_mutex_unlock(&pool->mutex);
    if (last) {
        pool_free(pool);
    }
}

/* Its values in an area of their own. NULL: there is none to be had. */
static struct kelp_gradient *gradient_make_shared(struct kelp_gradient_pool *pool, size_t stagger)
{
    struct kelp_gradient *gradient = calloc(1, sizeof(*gradient));
    if (gradient && kelp_shm_area_create(stagger + (size_t)pool->flat_count * sizeof(float),
                                         &gradient->area, NULL) != KELP_OK) {
        free(gradient);
        return NULL;
    }
    if (gradient) {
        char *bytes = kelp_shm_area_bytes(gradient->area);
        gradient->values = (float *)(void *)(bytes + stagger);
        gradient->pool = pool;
    }
    return gradient;
}

/* Header and values in one piece: header first, values at the next page after it plus a stagger
 * that differs from buffer to buffer. */
static struct kelp_gradient *gradient_make(struct kelp_gradient_pool *pool, unsigned number,
                                           bool shares)
{
    size_t stagger = (size_t)(number % 8) * STAGGER_BYTES;
    size_t value_bytes = (size_t)pool->flat_count * sizeof(float);
    struct kelp_gradient *shared = shares ? gradient_make_shared(pool, stagger) : NULL;
    if (shared) {
        return shared;
    }
    size_t total =
        (HEADER_BYTES + 8 * STAGGER_BYTES + value_bytes + 2 * PAGE_BYTES - 1) / PAGE_BYTES;
    struct kelp_gradient *gradient = aligned_alloc(PAGE_BYTES, total * PAGE_BYTES);
    if (gradient) {
        memset(gradient, 0, total * PAGE_BYTES);
        gradient->values = (float *)(void *)((char *)gradient + HEADER_BYTES + stagger);
        gradient->pool = pool;
    }
    return gradient;
}

struct kelp_gradient *kelp_gradient_get(struct kelp_gradient_pool *pool)
{
    pthread_mutex_lock(&pool->mutex);
    struct kelp_gradient *gradient = pool->free_list;
    unsigned number = pool->made_count;
    bool shares = pool->shares;
    if (gradient) {
        pool->free_list = gradient->next_free;
    } else {
        pool->made_count++;
    }
    pool->live_count++;
    pthread_mutex_unlock(&pool->mutex);

    if (!gradient) {
        gradient = gradient_make(pool, number, shares);
    }
    if (!gradient) {
        pthread_mutex_lock(&pool->mutex);
        pool->live_count--;
        pthread_mutex_unlock(&pool->mutex);
        return NULL;
    }
    gradient->present = false;
    gradient->digest[0] = '\0';
    memset(gradient->sums, 0, gradient->sum_count * sizeof(gradient->sums[0]));
    gradient->sum_count = KELP_METRIC_SUM_SCALARS;
    gradient->next_free = NULL;
    __atomic_store_n(&gradient->references, 1, __ATOMIC_RELAXED);
    return gradient;
}

void kelp_gradient_ref(struct kelp_gradient *gradient)
{
    int before = __atomic_fetch_add(&gradient->references, 1, __ATOMIC_RELAXED);
    assert(before > 0);
    (void)before;
}

void kelp_gradient_abandon(struct kelp_gradient *gradient)
{
    __atomic_store_n(&gradient->abandoned, true, __ATOMIC_RELAXED);
}

void kelp_gradient_unref(struct kelp_gradient *gradient)
{
    if (!gradient || __atomic_sub_fetch(&gradient->references, 1, __ATOMIC_ACQ_REL) > 0) {
        return;
    }
    struct kelp_gradient_pool *pool = gradient->pool;
    pthread_mutex_lock(&pool->mutex);
    assert(pool->live_count > 0);
    pool->live_count--;
    bool last = pool->destroyed && pool->live_count == 0;
    if (pool->destroyed || __atomic_load_n(&gradient->abandoned, __ATOMIC_RELAXED)) {
        gradient_free(gradient);
    } else {
        gradient->next_free = pool->free_list;
        pool->free_list = gradient;
    }
    pthread_mutex_unlock(&pool->mutex);
    if (last) {
        pool_free(pool);
    }
}

void kelp_gradient_merge(struct kelp_gradient *left, const struct kelp_gradient *right)
{
    if (left->sum_count < right->sum_count) {
        left->sum_count = right->sum_count;
    }
    for (uint32_t i = 0; i < left->sum_count; i++) {
        left->sums[i] = left->sums[i] + right->sums[i];
    }
    if (!right->present) {
        return;
    }
    if (left->present) {
        kelp_vector_add(left->values, right->values, left->pool->flat_count);
    } else {
        memcpy(left->values, right->values, (size_t)left->pool->flat_count * sizeof(float));
        left->present = true;
    }
}

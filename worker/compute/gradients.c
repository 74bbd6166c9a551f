#include "worker/compute/gradients.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/shm/shm_area.h"
#include "kernels/bfloat16.h"
#include "kernels/optimizer.h"
#include "worker/compute/limits.h"

#define PAGE_BYTES   4096u
#define HEADER_BYTES ((sizeof(struct kelp_gradient) + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES)
#define STAGGER_BYTES                                                                              \
    320u /* an odd number of cache lines: equal alignment costs a factor 2 to 3                    \
          */

struct kelp_gradient_pool {
    pthread_mutex_t mutex; /* guards the rest */
    bool destroyed;        /* freed with the last buffer */
    bool shares;           /* new buffers lie in shared memory */
    struct kelp_gradient *free_list;
    uint64_t flat_count;
    enum kelp_precision precision;
    unsigned live_count;
    unsigned made_count;
};

struct kelp_gradient_pool *kelp_gradient_pool_create(uint64_t flat_count,
                                                     enum kelp_precision precision)
{
    struct kelp_gradient_pool *pool = calloc(1, sizeof(*pool));
    if (pool) {
        pthread_mutex_init(&pool->mutex, NULL);
        pool->flat_count = flat_count;
        pool->precision = precision;
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

static size_t packed_bytes(const struct kelp_gradient_pool *pool)
{
    return pool->precision == KELP_PRECISION_BFLOAT16
               ? (size_t)pool->flat_count * kelp_precision_bytes(pool->precision)
               : 0;
}

static size_t value_bytes(const struct kelp_gradient_pool *pool)
{
    return (size_t)pool->flat_count * sizeof(float);
}

/* Place the values and, behind them, the packed values that are sent. */
static void lay_out(struct kelp_gradient *gradient, struct kelp_gradient_pool *pool, char *there)
{
    gradient->values = (float *)(void *)there;
    gradient->packed = packed_bytes(pool) > 0 ? there + value_bytes(pool) : NULL;
    gradient->pool = pool;
}

/* Allocate in a shared memory area of its own. NULL: impossible. */
static struct kelp_gradient *gradient_make_shared(struct kelp_gradient_pool *pool, size_t stagger)
{
    struct kelp_gradient *gradient = calloc(1, sizeof(*gradient));
    if (gradient && kelp_shm_area_create(stagger + value_bytes(pool) + packed_bytes(pool),
                                         &gradient->area, NULL) != KELP_OK) {
        free(gradient);
        return NULL;
    }
    if (gradient) {
        lay_out(gradient, pool, (char *)kelp_shm_area_bytes(gradient->area) + stagger);
    }
    return gradient;
}

/* Header and values in one allocation: the header first, the values at the next page plus a
 * stagger that differs between buffers. */
static struct kelp_gradient *gradient_make(struct kelp_gradient_pool *pool, unsigned number,
                                           bool shares)
{
    size_t stagger = (size_t)(number % 8) * STAGGER_BYTES;
    struct kelp_gradient *shared = shares ? gradient_make_shared(pool, stagger) : NULL;
    if (shared) {
        shared->number = number;
        return shared;
    }
    size_t bytes = HEADER_BYTES + 8 * STAGGER_BYTES + value_bytes(pool) + packed_bytes(pool);
    size_t total = (bytes + 2 * PAGE_BYTES - 1) / PAGE_BYTES;
    struct kelp_gradient *gradient = aligned_alloc(PAGE_BYTES, total * PAGE_BYTES);
    if (gradient) {
        memset(gradient, 0, total * PAGE_BYTES);
        lay_out(gradient, pool, (char *)gradient + HEADER_BYTES + stagger);
        gradient->number = number;
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
    gradient->apart = false;
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

static bool is_rounded(const struct kelp_gradient *gradient)
{
    return gradient->pool->precision == KELP_PRECISION_BFLOAT16;
}

uint64_t kelp_gradient_elements(const struct kelp_gradient *gradient)
{
    return gradient->pool->flat_count;
}

void kelp_gradient_round(struct kelp_gradient *gradient, uint64_t first, uint64_t count)
{
    if (is_rounded(gradient)) {
        kelp_bfloat16_round(gradient->values + first, count);
    }
}

void kelp_gradient_merge_values(struct kelp_gradient *left, const struct kelp_gradient *right,
                                uint64_t first, uint64_t count)
{
    if (!left->present) {
        memcpy(left->values + first, right->values + first, (size_t)count * sizeof(float));
    } else if (is_rounded(left)) {
        kelp_bfloat16_add(left->values + first, right->values + first, count);
    } else {
        kelp_vector_add(left->values + first, right->values + first, count);
    }
}

void kelp_gradient_merge(struct kelp_gradient *left, const struct kelp_gradient *right)
{
    kelp_gradient_merge_rest(left, right, left->pool->flat_count);
}

/* to = left + right; `to` is one of them. */
static void merge_sums(struct kelp_gradient *to, const struct kelp_gradient *left,
                       const struct kelp_gradient *right)
{
    to->sum_count = left->sum_count < right->sum_count ? right->sum_count
                                                       : left->sum_count; /* the rest is zero */
    for (uint32_t i = 0; i < to->sum_count; i++) {
        to->sums[i] = left->sums[i] + right->sums[i];
    }
}

void kelp_gradient_merge_rest(struct kelp_gradient *left, const struct kelp_gradient *right,
                              uint64_t count)
{
    assert(!left->apart || !right->present || right->apart);
    assert(!right->apart || !left->present || left->apart);
    merge_sums(left, left, right);
    if (!right->present) {
        return;
    }
    if (right->apart) {
        left->apart = true;
    } else {
        kelp_gradient_merge_values(left, right, 0, count);
    }
    left->present = true;
}

void kelp_gradient_merge_apart(const struct kelp_gradient *left, struct kelp_gradient *right)
{
    assert(left->apart && right->present && !right->apart);
    merge_sums(right, left, right);
}

void kelp_gradient_pack(struct kelp_gradient *gradient, uint64_t first, uint64_t count)
{
    if (is_rounded(gradient)) {
        char *packed = gradient->packed;
        kelp_bfloat16_pack(gradient->values + first, count,
                           packed + first * kelp_precision_bytes(KELP_PRECISION_BFLOAT16));
    }
}

const void *kelp_gradient_bytes(const struct kelp_gradient *gradient, uint64_t first)
{
    return is_rounded(gradient) ? (const char *)gradient->packed +
                                      first * kelp_precision_bytes(KELP_PRECISION_BFLOAT16)
                                : (const void *)(gradient->values + first);
}

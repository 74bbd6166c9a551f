#include "ps/shard/tensors/extent.h"

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/optimizer.h"
#include "ps/core/limits.h"

#define PAGE_BYTES    4096
#define STAGGER_BYTES 320 /* five cache lines: odd, so that 64 arrays get 64 different offsets */
#define HUGE_BYTES    (4u << 20) /* from here on huge pages are worth filling at once */
#define BUFFERS       KELP_PS_WEIGHT_BUFFERS_MAX
#define NO_BUFFER     BUFFERS

_Static_assert(BUFFERS >= 4, "current, older, next, and one that is being sent");

struct array {
    float *values;
    void *base; /* to free; NULL: the array lies in an area */
    struct kelp_shm_area *area;
    bool pooled;    /* other arrays share the area */
    bool abandoned; /* a reader may use it for ever */
};

struct kelp_extent {
    pthread_mutex_t lock; /* guards refs, lent and buffers; no other lock is taken under it */
    uint32_t refs;
    uint32_t slot_count;
    struct kelp_area_pool *pool; /* for weights; NULL: they lie in memory of their own */
    size_t bytes;
    uint32_t current;
    uint32_t older; /* NO_BUFFER: none */
    uint32_t next;  /* NO_BUFFER: none */
    uint32_t lent[BUFFERS];
    struct array buffers[BUFFERS]; /* allocated when first needed */
    struct array slots[KELP_OPTIMIZER_SLOTS_MAX];
};

float *kelp__extent_alloc_staggered(size_t bytes, uint32_t index, void **ret_base)
{
    size_t stagger = (size_t)index * STAGGER_BYTES % PAGE_BYTES;
    size_t total;
    char *base;

    if (__builtin_add_overflow(bytes, 2 * (size_t)PAGE_BYTES, &total)) {
        return NULL;
    }
    /* calloc, so that pages of buffers that are never written are never touched. */
    base = calloc(1, total);
    if (!base) {
        return NULL;
    }
    uintptr_t page = ((uintptr_t)base + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    if (bytes >= HUGE_BYTES) {
        /* Only advice. An update over several arrays in huge pages takes a tenth less time. */
        (void)madvise((void *)page, bytes / PAGE_BYTES * PAGE_BYTES, MADV_HUGEPAGE);
    }
    *ret_base = base;
    return (float *)(page + stagger);
}

/* index: chooses the offset within a page. */
static bool array_ready(struct array *array, size_t bytes, uint32_t index)
{
    if (!array->values) {
        array->values = kelp__extent_alloc_staggered(bytes, index, &array->base);
    }
    return array->values != NULL;
}

/* In shared memory if possible. alone: in an area of its own. */
static bool weights_ready(const struct kelp_extent *extent, struct array *array, uint32_t index,
                          bool alone)
{
    const size_t stagger = (size_t)index * STAGGER_BYTES % PAGE_BYTES;
    const size_t bytes = extent->bytes + stagger;
    char *base = NULL;

    if (!array->values && extent->pool && !alone && extent->bytes < KELP_PS_AREA_BYTES_MIN) {
        base = kelp_area_pool_take(extent->pool, bytes, &array->area);
        array->pooled = base != NULL;
    } else if (!array->values && extent->pool && bytes > 0 &&
               kelp_shm_area_create(bytes, &array->area, NULL) == KELP_OK) {
        base = kelp_shm_area_bytes(array->area);
    }
    if (base) {
        array->values = (float *)(void *)(base + stagger);
    }
    return array_ready(array, extent->bytes, index);
}

static void array_free(struct array *array)
{
    if (array->area && !array->pooled) {
        kelp_shm_area_retire(array->area);
    }
    kelp_shm_area_unref(array->area);
    free(array->base);
    *array = (struct array){.values = NULL};
}

/* Make the buffer ready to be written. The lock is held, except during creation. */
static bool buffer_ready(struct kelp_extent *extent, uint32_t buffer)
{
    struct array *array = &extent->buffers[buffer];
    const bool abandoned = array->abandoned;

    if (abandoned) {
        array_free(array);
    }
    return weights_ready(extent, array, buffer, abandoned); /* alone: a pool would only grow */
}

kelp_status kelp_extent_create(uint64_t count, uint32_t slot_count, struct kelp_area_pool *pool,
                               struct kelp_extent **ret_extent, struct kelp_error *reterr)
{
    struct kelp_extent *extent = calloc(1, sizeof(*extent));

    assert(count % 16 == 0);
    assert(slot_count <= KELP_OPTIMIZER_SLOTS_MAX);
    if (!extent) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a partition");
    }
    (void)pthread_mutex_init(&extent->lock, NULL);
    extent->refs = 1;
    extent->bytes = (size_t)count * sizeof(float);
    extent->slot_count = slot_count;
    extent->pool = pool;
    if (pool) {
        kelp_area_pool_ref(pool);
    }
    extent->older = NO_BUFFER;
    extent->next = NO_BUFFER;
    bool ready = buffer_ready(extent, 0) && buffer_ready(extent, 1);
    for (uint32_t i = 0; ready && i < slot_count; i++) {
        ready = array_ready(&extent->slots[i], extent->bytes, BUFFERS + i);
    }
    if (!ready) {
        kelp_extent_unref(extent);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY,
                         "no memory for weights and optimizer state of %" PRIu64 " elements",
                         count);
    }
    *ret_extent = extent;
    return KELP_OK;
}

static void destroy(struct kelp_extent *extent)
{
    for (uint32_t i = 0; i < BUFFERS; i++) {
        assert(extent->lent[i] == 0);
        array_free(&extent->buffers[i]);
    }
    for (uint32_t i = 0; i < extent->slot_count; i++) {
        free(extent->slots[i].base);
    }
    kelp_area_pool_unref(extent->pool);
    (void)pthread_mutex_destroy(&extent->lock);
    free(extent);
}

/* Called with the lock held; releases it. Destroys the extent with its last reference. */
static void drop_reference(struct kelp_extent *extent)
{
    assert(extent->refs > 0);
    bool last = --extent->refs == 0;
    (void)pthread_mutex_unlock(&extent->lock);
    if (last) {
        destroy(extent);
    }
}

void kelp_extent_unref(struct kelp_extent *extent)
{
    if (extent) {
        (void)pthread_mutex_lock(&extent->lock);
        drop_reference(extent);
    }
}

void kelp_extent_ref(struct kelp_extent *extent)
{
    (void)pthread_mutex_lock(&extent->lock);
    extent->refs++;
    (void)pthread_mutex_unlock(&extent->lock);
}

size_t kelp_extent_bytes(const struct kelp_extent *extent)
{
    return extent->bytes;
}

uint32_t kelp_extent_slot_count(const struct kelp_extent *extent)
{
    return extent->slot_count;
}

float *kelp_extent_slot(const struct kelp_extent *extent, uint32_t slot)
{
    assert(slot < extent->slot_count);
    return extent->slots[slot].values;
}

void kelp_extent_reserve(struct kelp_extent *extent, uint32_t count)
{
    assert(count <= BUFFERS);
    for (uint32_t i = 0; i < count; i++) {
        struct array array = {0};
        (void)pthread_mutex_lock(&extent->lock);
        bool there = extent->buffers[i].values != NULL;
        (void)pthread_mutex_unlock(&extent->lock);
        if (there || !weights_ready(extent, &array, i, false)) {
            continue;
        }
        if (!array.area) {
            memset(array.values, 0xff, extent->bytes); /* zeros could leave pages unmapped */
        }
        (void)pthread_mutex_lock(&extent->lock);
        if (!extent->buffers[i].values) {
            extent->buffers[i] = array;
            array = (struct array){.values = NULL};
        }
        (void)pthread_mutex_unlock(&extent->lock);
        array_free(&array); /* not NULL: a step allocated the buffer meanwhile */
    }
}

static float *values_of(const struct kelp_extent *extent, uint32_t buffer)
{
    assert(extent->buffers[buffer].values);
    return extent->buffers[buffer].values;
}

float *kelp_extent_current(struct kelp_extent *extent)
{
    return values_of(extent, extent->current);
}

float *kelp_extent_next(struct kelp_extent *extent)
{
    uint32_t chosen = NO_BUFFER;

    (void)pthread_mutex_lock(&extent->lock);
    for (uint32_t i = 0; i < BUFFERS && chosen == NO_BUFFER; i++) {
        if (i != extent->current && extent->lent[i] == 0 && buffer_ready(extent, i)) {
            chosen = i;
        }
    }
    (void)pthread_mutex_unlock(&extent->lock);
    extent->next = chosen;
    if (chosen == NO_BUFFER) {
        return NULL; /* out of memory: kelp_extent_lend() leaves one buffer free */
    }
    if (chosen == extent->older) {
        extent->older = NO_BUFFER;
    }
    return values_of(extent, chosen);
}

void kelp_extent_commit(struct kelp_extent *extent)
{
    assert(extent->next != NO_BUFFER);
    extent->older = extent->current;
    extent->current = extent->next;
    extent->next = NO_BUFFER;
}

void kelp_extent_repeat(struct kelp_extent *extent)
{
    extent->older = extent->current;
}

bool kelp_extent_refill(struct kelp_extent *extent)
{
    uint32_t found[2];
    uint32_t count = 0;

    (void)pthread_mutex_lock(&extent->lock);
    for (uint32_t i = 0; i < BUFFERS && count < KELP_ARRAY_COUNT(found); i++) {
        if (extent->lent[i] == 0 && buffer_ready(extent, i)) {
            found[count++] = i;
        }
    }
    (void)pthread_mutex_unlock(&extent->lock);
    if (count < KELP_ARRAY_COUNT(found)) {
        return false;
    }
    extent->current = found[0];
    extent->older = found[1];
    extent->next = NO_BUFFER;
    return true;
}

float *kelp_extent_older(struct kelp_extent *extent)
{
    return extent->older != NO_BUFFER ? values_of(extent, extent->older) : NULL;
}

bool kelp_extent_lend(struct kelp_extent *extent, enum kelp_weights_label label,
                      const float **ret_values, struct kelp_extent_loan *ret_loan)
{
    uint32_t buffer = label == KELP_WEIGHTS_CURRENT ? extent->current : extent->older;
    uint32_t free_after = 0;

    assert(label != KELP_WEIGHTS_NONE);
    assert(buffer != NO_BUFFER);
    *ret_values = values_of(extent, buffer);
    (void)pthread_mutex_lock(&extent->lock);
    for (uint32_t i = 0; i < BUFFERS; i++) {
        free_after += extent->lent[i] == 0 && i != buffer;
    }
    /* Two buffers stay unread, of which at most one is current, so there is always a next one. */
    bool lent = free_after >= 2;
    if (lent) {
        extent->lent[buffer]++;
        extent->refs++;
    }
    (void)pthread_mutex_unlock(&extent->lock);
    if (lent) {
        *ret_loan = (struct kelp_extent_loan){.extent = extent, .buffer = buffer};
    }
    return lent;
}

const void *kelp_extent_loan_bytes(const struct kelp_extent_loan *loan, size_t *ret_bytes)
{
    *ret_bytes = loan->extent->bytes;
    return values_of(loan->extent, loan->buffer);
}

struct kelp_shm_area *kelp_extent_loan_area(const struct kelp_extent_loan *loan)
{
    return loan->extent->buffers[loan->buffer].area;
}

static void end_loan(const struct kelp_extent_loan *loan, bool read)
{
    struct kelp_extent *extent = loan->extent;
    struct array *buffer = &extent->buffers[loan->buffer];

    (void)pthread_mutex_lock(&extent->lock);
    assert(extent->lent[loan->buffer] > 0);
    extent->lent[loan->buffer]--;
    buffer->abandoned = buffer->abandoned || !read;
    drop_reference(extent);
}

void kelp_extent_return(const struct kelp_extent_loan *loan)
{
    end_loan(loan, true);
}

void kelp_extent_abandon(const struct kelp_extent_loan *loan)
{
    end_loan(loan, false);
}

#include "ps/shard/weights.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "ps/core/limits.h"

#define PAGE_BYTES    4096
#define STAGGER_BYTES 320 /* five cache lines: odd, so that 64 arrays get 64 different places */
#define SLOTS         KELP_PS_WEIGHT_SLOTS_MAX
#define NO_SLOT       SLOTS

_Static_assert(KELP_PS_WEIGHT_SLOTS_MAX >= 4, "current, older, next, and one that is being sent");

struct slice {
    uint64_t offset; /* elements, in each block */
    uint64_t count;
    uint32_t current;
    uint32_t older; /* NO_SLOT: none */
    uint32_t next;  /* NO_SLOT: none */
    uint32_t lent[SLOTS];
};

struct kelp_weights {
    pthread_mutex_t lock; /* guards refs, slices[].lent, and blocks; a leaf: nothing is called */
    uint32_t refs;
    uint32_t slice_count;
    struct slice *slices;
    uint64_t total; /* elements of one block */
    struct {
        float *values;
        void *base;
    } blocks[SLOTS]; /* allocated when first needed */
};

float *kelp__weights_alloc_staggered(size_t bytes, uint32_t index, void **ret_base)
{
    size_t stagger = (size_t)index * STAGGER_BYTES % PAGE_BYTES;
    size_t total;
    char *base;

    if (__builtin_add_overflow(bytes, 2 * (size_t)PAGE_BYTES, &total)) {
        return NULL;
    }
    /* calloc, so that pages of blocks that are never written are never touched. */
    base = calloc(1, total);
    if (!base) {
        return NULL;
    }
    uintptr_t page = ((uintptr_t)base + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    *ret_base = base;
    return (float *)(page + stagger);
}

static bool block_ready(struct kelp_weights *weights, uint32_t slot)
{
    if (!weights->blocks[slot].values) {
        weights->blocks[slot].values = kelp__weights_alloc_staggered(
            (size_t)weights->total * sizeof(float), slot, &weights->blocks[slot].base);
    }
    return weights->blocks[slot].values != NULL;
}

kelp_status kelp_weights_create(const uint64_t *counts, uint32_t count,
                                struct kelp_weights **ret_weights, struct kelp_error *reterr)
{
    struct kelp_weights *weights = calloc(1, sizeof(*weights));

    if (!weights) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for weights");
    }
    (void)pthread_mutex_init(&weights->lock, NULL);
    weights->refs = 1;
    weights->slice_count = count;
    weights->slices = calloc(count ? count : 1, sizeof(*weights->slices));
    for (uint32_t i = 0; weights->slices && i < count; i++) {
        assert(counts[i] % 16 == 0);
        weights->slices[i] = (struct slice){
            .offset = weights->total, .count = counts[i], .older = NO_SLOT, .next = NO_SLOT};
        weights->total += counts[i];
    }
    if (!weights->slices || !block_ready(weights, 0) || !block_ready(weights, 1)) {
        kelp_weights_unref(weights);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for weights of %u partitions",
                         count);
    }
    *ret_weights = weights;
    return KELP_OK;
}

static void destroy(struct kelp_weights *weights)
{
    for (uint32_t i = 0; i < SLOTS; i++) {
        free(weights->blocks[i].base);
    }
    free(weights->slices);
    (void)pthread_mutex_destroy(&weights->lock);
    free(weights);
}

void kelp_weights_unref(struct kelp_weights *weights)
{
    if (!weights) {
        return;
    }
    (void)pthread_mutex_lock(&weights->lock);
    assert(weights->refs > 0);
    bool last = --weights->refs == 0;
    (void)pthread_mutex_unlock(&weights->lock);
    if (last) {
        destroy(weights);
    }
}

void kelp_weights_ref(struct kelp_weights *weights)
{
    (void)pthread_mutex_lock(&weights->lock);
    weights->refs++;
    (void)pthread_mutex_unlock(&weights->lock);
}

void kelp_weights_reserve(struct kelp_weights *weights, uint32_t count)
{
    size_t bytes = (size_t)weights->total * sizeof(float);

    assert(count <= SLOTS);
    for (uint32_t slot = 0; slot < count; slot++) {
        void *base = NULL;
        (void)pthread_mutex_lock(&weights->lock);
        bool there = weights->blocks[slot].values != NULL;
        (void)pthread_mutex_unlock(&weights->lock);
        float *values = there ? NULL : kelp__weights_alloc_staggered(bytes, slot, &base);
        if (!values) {
            continue;
        }
        memset(values, 0xff, bytes); /* not zero: that would leave the pages out */
        (void)pthread_mutex_lock(&weights->lock);
        if (!weights->blocks[slot].values) {
            weights->blocks[slot].values = values;
            weights->blocks[slot].base = base;
            base = NULL;
        }
        (void)pthread_mutex_unlock(&weights->lock);
        free(base); /* a step needed it meanwhile */
    }
}

static float *slot_values(const struct kelp_weights *weights, const struct slice *slice,
                          uint32_t slot)
{
    assert(weights->blocks[slot].values);
    return weights->blocks[slot].values + slice->offset;
}

static struct slice *slice_at(const struct kelp_weights *weights, uint32_t place)
{
    assert(place < weights->slice_count);
    return &weights->slices[place];
}

float *kelp_weights_current(struct kelp_weights *weights, uint32_t place)
{
    const struct slice *slice = slice_at(weights, place);

    return slot_values(weights, slice, slice->current);
}

static bool slot_free(const struct slice *slice, uint32_t slot)
{
    return slot != slice->current && slice->lent[slot] == 0;
}

float *kelp_weights_next(struct kelp_weights *weights, uint32_t place, uint64_t step)
{
    struct slice *slice = slice_at(weights, place);
    /* All partitions prefer the same slot for the same step, so that their slices stay joined. */
    uint32_t preferred = (uint32_t)((step + 1) % 2);
    uint32_t chosen = NO_SLOT;

    (void)pthread_mutex_lock(&weights->lock);
    if (slot_free(slice, preferred)) {
        chosen = preferred;
    }
    for (uint32_t slot = 0; slot < SLOTS && chosen == NO_SLOT; slot++) {
        if (slot_free(slice, slot) && block_ready(weights, slot)) {
            chosen = slot;
        }
    }
    (void)pthread_mutex_unlock(&weights->lock);
    slice->next = chosen;
    if (chosen == NO_SLOT) {
        return NULL; /* only when memory ran out: kelp_weights_lend() leaves one free */
    }
    if (chosen == slice->older) {
        slice->older = NO_SLOT;
    }
    return slot_values(weights, slice, chosen);
}

void kelp_weights_commit(struct kelp_weights *weights, uint32_t place)
{
    struct slice *slice = slice_at(weights, place);

    assert(slice->next != NO_SLOT);
    slice->older = slice->current;
    slice->current = slice->next;
    slice->next = NO_SLOT;
}

void kelp_weights_repeat(struct kelp_weights *weights, uint32_t place)
{
    struct slice *slice = slice_at(weights, place);

    slice->older = slice->current;
}

bool kelp_weights_lend(struct kelp_weights *weights, uint32_t place, enum kelp_weights_label label,
                       const float **ret_values, struct kelp_weights_loan *ret_loan)
{
    struct slice *slice = slice_at(weights, place);
    uint32_t slot = label == KELP_WEIGHTS_CURRENT ? slice->current : slice->older;
    uint32_t free_after = 0;

    assert(label != KELP_WEIGHTS_NONE);
    assert(slot != NO_SLOT);
    *ret_values = slot_values(weights, slice, slot);
    (void)pthread_mutex_lock(&weights->lock);
    for (uint32_t i = 0; i < SLOTS; i++) {
        free_after += slice->lent[i] == 0 && i != slot;
    }
    /* Two that nobody reads remain, of which one at most is current: there is always a next one. */
    bool lent = free_after >= 2;
    if (lent) {
        slice->lent[slot]++;
        weights->refs++;
    }
    (void)pthread_mutex_unlock(&weights->lock);
    if (lent) {
        *ret_loan = (struct kelp_weights_loan){
            .weights = weights, .slot = slot, .first = place, .last = place};
    }
    return lent;
}

bool kelp_weights_loan_join(struct kelp_weights_loan *loan, const struct kelp_weights_loan *next)
{
    if (loan->weights != next->weights || loan->slot != next->slot ||
        loan->last + 1 != next->first) {
        return false;
    }
    loan->last = next->last;
    (void)pthread_mutex_lock(&loan->weights->lock);
    loan->weights->refs--; /* one for each loan; at least ours remains */
    assert(loan->weights->refs > 0);
    (void)pthread_mutex_unlock(&loan->weights->lock);
    return true;
}

const void *kelp_weights_loan_bytes(const struct kelp_weights_loan *loan, size_t *ret_bytes)
{
    const struct slice *first = slice_at(loan->weights, loan->first);
    const struct slice *last = slice_at(loan->weights, loan->last);

    *ret_bytes = (size_t)(last->offset + last->count - first->offset) * sizeof(float);
    return slot_values(loan->weights, first, loan->slot);
}

void kelp_weights_return(const struct kelp_weights_loan *loan)
{
    struct kelp_weights *weights = loan->weights;

    (void)pthread_mutex_lock(&weights->lock);
    for (uint32_t i = loan->first; i <= loan->last; i++) {
        assert(weights->slices[i].lent[loan->slot] > 0);
        weights->slices[i].lent[loan->slot]--;
    }
    assert(weights->refs > 0);
    bool last = --weights->refs == 0;
    (void)pthread_mutex_unlock(&weights->lock);
    if (last) {
        destroy(weights);
    }
}

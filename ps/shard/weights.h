/*
 * The weight buffers of all partitions that a shard hosts in one generation.
 *
 * Memory is a few blocks, each as long as all slices together, so that slices of adjacent
 * partitions lie next to each other and leave in one piece. A partition's slice in one block is a
 * slot: one slot holds the current weights, one the older ones, others are free or still being
 * sent. Slots that are lent are never written; the next weights go to a slot that nobody reads.
 *
 * Threads: calls for one partition are serialised by its owner; lend and return may come from any
 * thread at any time.
 */
#ifndef KELP_PS_SHARD_WEIGHTS_H
#define KELP_PS_SHARD_WEIGHTS_H

#include <stdint.h>

#include "common/base/status.h"
#include "ps/core/partition.h"

struct kelp_weights;

/* Lay out `count` slices of counts[i] elements, each a multiple of 16. Owned: reference count 1. */
kelp_status kelp_weights_create(const uint64_t *counts, uint32_t count,
                                struct kelp_weights **ret_weights,
                                struct kelp_error *reterr) KELP_MUST_USE;
/* Freed when the owner and all that was lent have let go. NULL does nothing. */
void kelp_weights_unref(struct kelp_weights *weights);

void kelp_weights_ref(struct kelp_weights *weights);
/* Have so many blocks, with their pages in place, so that no step has to wait for memory when slots
 * are lent for long. What memory does not allow is left out. Any thread. */
void kelp_weights_reserve(struct kelp_weights *weights, uint32_t count);

/* The current weights of slice `place`; before the first commit, where S_0 is written. */
float *kelp_weights_current(struct kelp_weights *weights, uint32_t place);
/* A slot for the weights after `step`: not the current one, and nobody reads it. NULL: no memory.
 */
float *kelp_weights_next(struct kelp_weights *weights, uint32_t place, uint64_t step);
/* What kelp_weights_next() gave last becomes current, the current one older. */
void kelp_weights_commit(struct kelp_weights *weights, uint32_t place);

/* The current weights become older ones too, without a copy: a step that changes nothing. */
void kelp_weights_repeat(struct kelp_weights *weights, uint32_t place);

/* Slices [first, last] of one block, lent for sending. */
struct kelp_weights_loan {
    struct kelp_weights *weights;
    uint32_t slot;
    uint32_t first;
    uint32_t last;
};

/*
 * Bytes of the current or older weights of slice `place`. True: lent, until kelp_weights_return().
 * False: too many slots are lent already, the caller copies before the partition moves on.
 */
bool kelp_weights_lend(struct kelp_weights *weights, uint32_t place, enum kelp_weights_label label,
                       const float **ret_values, struct kelp_weights_loan *ret_loan);
/* Join two loans whose bytes follow one another; false if they do not. `next` is used up then. */
bool kelp_weights_loan_join(struct kelp_weights_loan *loan, const struct kelp_weights_loan *next);
const void *kelp_weights_loan_bytes(const struct kelp_weights_loan *loan, size_t *ret_bytes);
/* Any thread, inside any call of rpc: takes only a lock of its own. */
void kelp_weights_return(const struct kelp_weights_loan *loan);

/* 64-byte aligned memory of `bytes`, zeroed; starts `index` times five cache lines into a page, so
 * that arrays which one loop walks together do not collide in the cache (a factor of 2 to 3 when
 * they are equally aligned). *ret_base is what free() takes. NULL: out of memory. */
float *kelp__weights_alloc_staggered(size_t bytes, uint32_t index, void **ret_base);

#endif

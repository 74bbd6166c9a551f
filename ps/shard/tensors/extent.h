/*
 * The memory of one partition: buffers of weights, and the optimizer's slots.
 *
 * One buffer holds the current weights, one the older ones, others are free or still being sent.
 * Buffers that are lent are never written; the next weights go to one that nobody reads.
 *
 * An extent lives as long as somebody holds a reference or a loan. So a partition may leave, or its
 * generation end, while a message or a snapshot still reads what it had.
 *
 * Threads: calls for one extent are serialised by its owner; ref, unref, reserve, lend and return
 * may come from any thread at any time.
 */
#ifndef KELP_PS_SHARD_TENSORS_EXTENT_H
#define KELP_PS_SHARD_TENSORS_EXTENT_H

#include <stdint.h>

#include "common/base/status.h"
#include "ps/core/partition/partition.h"
#include "ps/shard/tensors/area_pool.h"

struct kelp_extent;

/* `count` elements, a multiple of 16, of weights and of each slot, all zero. pool: weights are in
 * areas that other processes of this host can read, if the system has them: of the pool, or large
 * ones in areas of their own; NULL: in none. Owned: reference count 1. Errors:
 * KELP_ERR_NO_MEMORY. */
kelp_status kelp_extent_create(uint64_t count, uint32_t slot_count, struct kelp_area_pool *pool,
                               struct kelp_extent **ret_extent,
                               struct kelp_error *reterr) KELP_MUST_USE;
void kelp_extent_ref(struct kelp_extent *extent);
/* NULL does nothing. */
void kelp_extent_unref(struct kelp_extent *extent);

/* Of the weights, and of each slot. */
size_t kelp_extent_bytes(const struct kelp_extent *extent);
uint32_t kelp_extent_slot_count(const struct kelp_extent *extent);
float *kelp_extent_slot(const struct kelp_extent *extent, uint32_t slot);

/* Have so many buffers, with their pages in place, so that no step has to wait for memory when
 * buffers are lent for long. What memory does not allow is left out. */
void kelp_extent_reserve(struct kelp_extent *extent, uint32_t count);

/* The current weights; before the first commit, where S_0 is written. */
float *kelp_extent_current(struct kelp_extent *extent);
/* A buffer for the next weights: not the current one, and nobody reads it. NULL: no memory. */
float *kelp_extent_next(struct kelp_extent *extent);
/* What kelp_extent_next() gave last becomes current, the current one older. */
void kelp_extent_commit(struct kelp_extent *extent);
/* The current weights become older ones too, without a copy: a step that changes nothing. */
void kelp_extent_repeat(struct kelp_extent *extent);

/* Other weights come from elsewhere: two buffers that nobody reads, for the current and the older
 * ones. False: no memory, and nothing changed. */
bool kelp_extent_refill(struct kelp_extent *extent);
/* The older weights, to be written after kelp_extent_refill(); to be read while they are there.
 * NULL: there are none. */
float *kelp_extent_older(struct kelp_extent *extent);

/* One buffer, lent for sending. */
struct kelp_extent_loan {
    struct kelp_extent *extent;
    uint32_t buffer;
};

/*
 * The current or older weights. True: lent, until kelp_extent_return(). False: too many buffers are
 * lent already, the caller copies before the partition moves on.
 */
bool kelp_extent_lend(struct kelp_extent *extent, enum kelp_weights_label label,
                      const float **ret_values, struct kelp_extent_loan *ret_loan);
const void *kelp_extent_loan_bytes(const struct kelp_extent_loan *loan, size_t *ret_bytes);
/* The area in which they lie, there as long as the loan; NULL: in none. */
struct kelp_shm_area *kelp_extent_loan_area(const struct kelp_extent_loan *loan);
/* Any thread, inside any call of rpc: takes only a lock of its own. */
void kelp_extent_return(const struct kelp_extent_loan *loan);
/* The same, but somebody may read the buffer for ever: it is never written again. */
void kelp_extent_abandon(const struct kelp_extent_loan *loan);

/* 64-byte aligned memory of `bytes`, zeroed; starts `index` times five cache lines into a page, so
 * that arrays which one loop walks together do not collide in the cache (a factor of 2 to 3 when
 * they are equally aligned). Large ones are in huge pages where the system has them. *ret_base is
 * what free() takes. NULL: out of memory. */
float *kelp__extent_alloc_staggered(size_t bytes, uint32_t index, void **ret_base);

#endif

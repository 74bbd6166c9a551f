/*
 * One partition's state after a step, kept while training goes on (copy on write). The weights are
 * lent, so that the next apply writes to another buffer (ps/shard/tensors/extent.h). Optimizer
 * slots are updated in place: the apply that would overwrite them copies them first, unless the
 * writer has them already. A capture outlives its partition: nothing changes the memory of one that
 * has left.
 *
 * Copies are in buffers that are used again and again: fresh pages for each snapshot would cost
 * half the speed.
 */
#ifndef KELP_PS_SHARD_TENSORS_CAPTURE_H
#define KELP_PS_SHARD_TENSORS_CAPTURE_H

#include "common/training/control.h"
#include "kernels/optimizer.h"
#include "ps/shard/tensors/extent.h"

/* ---- buffers ---- */

struct kelp_capture_pool; /* threads: any */

struct kelp_capture_buffer {
    float *values; /* NULL: none */
    void *base;
    size_t bytes;
};

kelp_status kelp_capture_pool_create(struct kelp_capture_pool **ret_pool,
                                     struct kelp_error *reterr) KELP_MUST_USE;
/* Gone once all buffers are given back. NULL does nothing. */
void kelp_capture_pool_destroy(struct kelp_capture_pool *pool);
/* Keep at most so many idle buffers from now on. */
void kelp_capture_pool_limit(struct kelp_capture_pool *pool, uint32_t count);
/* Have so many, of `bytes` each and with their pages in place, idle or in use. What memory does not
 * allow is left out. */
void kelp_capture_pool_fill(struct kelp_capture_pool *pool, uint32_t count, size_t bytes);

/* ---- captures ---- */

/* All zero: empty. Its owner sees to it that one thread at a time uses it. */
struct kelp_capture {
    struct kelp_capture_pool *pool; /* NULL: empty */
    uint64_t ticket;                /* of the snapshot that it belongs to */
    bool has_control;
    struct kelp_control_state control; /* partition 0 */
    struct kelp_extent *extent;        /* referenced while slots are live; NULL: none is */
    size_t bytes;
    bool lent;
    struct kelp_extent_loan loan;
    const float *weights;
    struct kelp_capture_buffer weights_copy; /* when they could not be lent */
    uint32_t slot_count;
    const float *slots[KELP_OPTIMIZER_SLOTS_MAX]; /* live ones, until they are copied */
    struct kelp_capture_buffer copies[KELP_OPTIMIZER_SLOTS_MAX];
};

/* Take the current state. control: partition 0's, NULL for others. capture must be empty, and is on
 * an error. Errors: KELP_ERR_NO_MEMORY. */
kelp_status kelp_capture_take(struct kelp_capture *capture, struct kelp_capture_pool *pool,
                              uint64_t ticket, struct kelp_extent *extent,
                              const struct kelp_control_state *control) KELP_MUST_USE;
/* Copy what is still live: afterwards the partition may go on without changing the capture. Empty
 * ones, and those that are copied already: nothing to do. Errors: KELP_ERR_NO_MEMORY: the capture
 * is still live. */
kelp_status kelp_capture_detach(struct kelp_capture *capture) KELP_MUST_USE;
/* Give everything back; empty afterwards. */
void kelp_capture_release(struct kelp_capture *capture);

#endif

/*
 * Gradient buffers of a worker: one flat vector for each node that it pushes, kept until the step
 * is over on every partition *and* gRPC has stopped reading it, and the sum of a node's lanes in
 * tree order.
 */
#ifndef KELP_WORKER_COMPUTE_GRADIENTS_H
#define KELP_WORKER_COMPUTE_GRADIENTS_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/job/job.h"
#include "common/training/control.h"

struct kelp_gradient_pool;
struct kelp_shm_area;

/* One node's content. `present` is false when no lane of it has samples: it is pushed empty. */
struct kelp_gradient {
    float *values; /* flat_count elements, 64-byte aligned, off from other buffers' pages */
    void *packed;  /* the same as bfloat16, once kelp_gradient_pack() was called; NULL: float32 */
    bool present;
    bool apart; /* its values are not here, but within those of a later lane of the same node */
    double sums[KELP_METRIC_SUM_COUNT];
    uint32_t sum_count; /* those from here on are zero: KELP_METRIC_SUM_SCALARS, or all of them */
    char digest[33];    /* of w_v, when it is due with this node; else "" */
    unsigned number;    /* from 0, in the order in which the pool made them */
    struct kelp_gradient_pool *pool;
    struct kelp_gradient *next_free;
    int references;             /* atomic */
    bool abandoned;             /* atomic: somebody may read the values for ever */
    struct kelp_shm_area *area; /* in which values and packed lie; NULL: behind this */
};

/* NULL: out of memory. Buffers are made on first use and reused. precision: transport.precision. */
struct kelp_gradient_pool *kelp_gradient_pool_create(uint64_t flat_count,
                                                     enum kelp_precision precision);
/* Shards of this host read gradients in place: buffers that are made from now on are in areas, if
 * the system has them, and values are KELP_GRADIENT_SHARED_BYTES_MIN. Threads: any. */
void kelp_gradient_pool_share(struct kelp_gradient_pool *pool);
/* Buffers that gRPC still reads are freed when it gives them back. NULL does nothing. */
void kelp_gradient_pool_destroy(struct kelp_gradient_pool *pool);

/* A buffer with one reference, present = false, no digest and sums zero; values are undefined but
 * for the padding between tensors, which is zero. NULL: out of memory. Threads: any. */
struct kelp_gradient *kelp_gradient_get(struct kelp_gradient_pool *pool);
void kelp_gradient_ref(struct kelp_gradient *gradient);
/* The last one puts it back into the pool. Threads: any. */
void kelp_gradient_unref(struct kelp_gradient *gradient);
/* Somebody may read its values for ever: they are not written again. A reference is kept. */
void kelp_gradient_abandon(struct kelp_gradient *gradient);

/* How many values it has. */
uint64_t kelp_gradient_elements(const struct kelp_gradient *gradient);

/* A lane's values [first, first + count), as every node has them: rounded, where the precision is
 * bfloat16. */
void kelp_gradient_round(struct kelp_gradient *gradient, uint64_t first, uint64_t count);

/* left = left + right, values and sums: two sibling nodes of the reduction tree, with values as
 * every node has them, become their parent. The left one's are not apart, or the right one has no
 * values of its own either. */
void kelp_gradient_merge(struct kelp_gradient *left, const struct kelp_gradient *right);
/* The same in pieces, in any order: values [first, first + count), for each element once, of a
 * right node that has some; then the rest of it, with the first `count` values. */
void kelp_gradient_merge_values(struct kelp_gradient *left, const struct kelp_gradient *right,
                                uint64_t first, uint64_t count);
void kelp_gradient_merge_rest(struct kelp_gradient *left, const struct kelp_gradient *right,
                              uint64_t count);

/* The other way round, where the right one has the values of a left one that is apart: right =
 * left + right. */
void kelp_gradient_merge_apart(const struct kelp_gradient *left, struct kelp_gradient *right);

/* Nothing more is added to values [first, first + count): make the bytes that travel. They are
 * rounded here, too. */
void kelp_gradient_pack(struct kelp_gradient *gradient, uint64_t first, uint64_t count);
/* Those of the elements from `first` on. */
const void *kelp_gradient_bytes(const struct kelp_gradient *gradient, uint64_t first);

#endif

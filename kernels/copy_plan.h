/*
 * What every device makes of a copy (kernels/operators.h) before it runs it: as few nested loops as
 * possible. Private to kernels/.
 */
#ifndef KELP_KERNELS_COPY_PLAN_H
#define KELP_KERNELS_COPY_PLAN_H

#include "kernels/operators.h"

/* Nested loops, the innermost one last; strides in elements. */
struct kelp__copy_loops {
    uint32_t rank;
    uint64_t dims[KELP_COPY_RANK_MAX], x[KELP_COPY_RANK_MAX], y[KELP_COPY_RANK_MAX];
};

/* Into its place among those that are there, by falling stride of y. */
static inline void kelp__copy_loops_insert(struct kelp__copy_loops *loops, uint64_t dim, uint64_t x,
                                           uint64_t y)
{
    uint32_t at = loops->rank++;
    for (; at > 0 && loops->y[at - 1] < y; at--) {
        loops->dims[at] = loops->dims[at - 1];
        loops->x[at] = loops->x[at - 1];
        loops->y[at] = loops->y[at - 1];
    }
    loops->dims[at] = dim;
    loops->x[at] = x;
    loops->y[at] = y;
}

/* Dimensions of 1 are left out, neighbours that both sides walk as one are joined, y's largest
 * strides are outermost. Rank 0: a single element. False when there is nothing to copy. */
static inline bool kelp__copy_plan(const struct kelp_copy *copy, struct kelp__copy_loops *ret)
{
    struct kelp__copy_loops sorted;
    sorted.rank = 0;
    for (uint32_t i = 0; i < copy->rank; i++) {
        if (copy->dims[i] == 0) {
            return false;
        }
        if (copy->dims[i] != 1) {
            kelp__copy_loops_insert(&sorted, copy->dims[i], copy->x_strides[i], copy->y_strides[i]);
        }
    }
    ret->rank = 0;
    for (uint32_t i = 0; i < sorted.rank; i++) {
        const uint32_t last = ret->rank - 1;
        if (ret->rank > 0 && ret->x[last] == sorted.dims[i] * sorted.x[i] &&
            ret->y[last] == sorted.dims[i] * sorted.y[i]) {
            ret->dims[last] *= sorted.dims[i];
        } else {
            ret->dims[ret->rank++] = sorted.dims[i];
        }
        ret->x[ret->rank - 1] = sorted.x[i];
        ret->y[ret->rank - 1] = sorted.y[i];
    }
    return true;
}

#endif

/*
 * The sum of a node's lanes where the device has memory of its own: gradients wait there for their
 * right siblings, and are added up in the order of the reduction tree, as worker/compute/node_sum.h
 * does on the host. Lanes without a gradient are left out.
 *
 * Private to worker/model. Threads: the model's.
 */
#ifndef KELP_WORKER_MODEL_LEVEL_SUMS_H
#define KELP_WORKER_MODEL_LEVEL_SUMS_H

#include "kernels/device.h"

#define KELP_LEVEL_SUMS_MAX 32u /* that wait at once: levels of a tree */

struct kelp__level_sums {
    uint64_t count; /* elements of each */
    struct {
        float *values;  /* device memory */
        uint32_t index; /* the first lane in it, from the node's first */
    } waiting[KELP_LEVEL_SUMS_MAX];
    uint32_t waiting_count;
    float *unused[KELP_LEVEL_SUMS_MAX + 1]; /* owned, as those that wait */
    uint32_t unused_count;
};

/* All zero are sums too, for `count` elements from the first reserve() on. */
void kelp__level_sums_fini(struct kelp__level_sums *sums, struct kelp_device *device);
/* Another node begins. */
void kelp__level_sums_begin(struct kelp__level_sums *sums);
/* Memory for the next keep(). Errors: KELP_ERR_NO_MEMORY, KELP_ERR_DEVICE. */
kelp_status kelp__level_sums_reserve(struct kelp__level_sums *sums, struct kelp_device *device,
                                     uint64_t count, struct kelp_error *reterr) KELP_MUST_USE;

/* Enqueue the additions that are due before lane `index` comes, with rising numbers. */
void kelp__level_sums_advance(struct kelp__level_sums *sums, struct kelp_stream *stream,
                              uint32_t index);
/* Enqueue: the gradient of lane `index` waits, or is added to what does. After advance(). */
void kelp__level_sums_keep(struct kelp__level_sums *sums, struct kelp_stream *stream,
                           const float *gradient, uint32_t index);
/* Enqueue: elements [first, first + count) of the last lane's gradient become the node's. After
 * advance(); the sums wait on until the next begin. */
void kelp__level_sums_add(const struct kelp__level_sums *sums, struct kelp_stream *stream,
                          float *gradient, uint64_t first, uint64_t count);

#endif

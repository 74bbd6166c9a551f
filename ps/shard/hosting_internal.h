/* What a hosting holds; for ps/shard/shard*.c and ps/shard/hosting*.c alone. */
#ifndef KELP_PS_SHARD_HOSTING_INTERNAL_H
#define KELP_PS_SHARD_HOSTING_INTERNAL_H

#include <pthread.h>

#include "kernels/update.h"
#include "ps/core/partition.h"
#include "ps/shard/capture.h"
#include "ps/shard/gradient.h"
#include "ps/shard/hosting.h"
#include "ps/shard/weights.h"

struct hosted {
    pthread_mutex_t lock; /* guards everything below */
    struct kelp_partition *core;
    uint32_t index;
    uint32_t place; /* in weights and slots */
    uint64_t map_epoch;
    struct kelp_slice_range range;
    struct kelp_update update;   /* of the range */
    uint64_t slot_offset;        /* elements, in each optimizer slot's block */
    struct kelp_capture capture; /* for a snapshot, until the writer takes it */
};

struct kelp_hosting {
    const struct kelp_job *job;
    uint64_t generation;
    struct hosted *hosted;
    uint32_t count;
    uint32_t partition_count;
    struct hosted **by_index; /* partition_count; NULL: another shard's */
    struct kelp_weights *weights;
    struct kelp_gradients *gradients;
    uint64_t element_count; /* of all partitions, and of each optimizer slot's block */
    uint32_t slot_count;
    float *slots[KELP_OPTIMIZER_SLOTS_MAX];
    void *slot_bases[KELP_OPTIMIZER_SLOTS_MAX];
};

/* hosting_restore.c: read weights, slots and control state of all partitions, and load them; the
 * memory is there. */
kelp_status kelp__hosting_restore(struct kelp_hosting *hosting, const struct kelp_plan *plan,
                                  const struct kelp_hosting_restore *restore,
                                  struct kelp_error *reterr) KELP_MUST_USE;

#endif

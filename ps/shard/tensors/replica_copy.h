/*
 * What a joiner gets of one partition: its state at a moment, kept while training goes on and while
 * messages that lend its bytes are in flight. Threads: any.
 */
#ifndef KELP_PS_SHARD_TENSORS_REPLICA_COPY_H
#define KELP_PS_SHARD_TENSORS_REPLICA_COPY_H

#include "ps/core/partition/partition.h"
#include "ps/shard/tensors/capture.h"

/* Kinds of pieces, in their order: as in keys of checkpoints, but for the older weights. */
#define KELP_REPLICA_WEIGHTS 2
#define KELP_REPLICA_OLDER   3  /* when there are any */
#define KELP_REPLICA_SLOT    16 /* + n: slot n */

struct kelp_replica_copy;

/* What is copied. All borrowed for the call. */
struct kelp_replica_copy_config {
    uint32_t partition;
    uint64_t generation;
    uint64_t map_epoch;
    const struct kelp_replica_state *state;
    struct kelp_capture_pool *pool;
    struct kelp_extent *extent;
    const struct kelp_partition *core; /* that tells who pushed what */
};

/* Slots are copied, weights lent. Owned: reference count 1. Errors: KELP_ERR_NO_MEMORY. */
kelp_status kelp_replica_copy_create(const struct kelp_replica_copy_config *config,
                                     struct kelp_replica_copy **ret_copy) KELP_MUST_USE;
void kelp_replica_copy_ref(struct kelp_replica_copy *copy);
/* NULL does nothing. */
void kelp_replica_copy_unref(struct kelp_replica_copy *copy);

/* Borrowed as long as the copy lives. */
struct kelp_replica_copy_view {
    uint32_t partition;
    uint64_t generation;
    uint64_t map_epoch;
    const struct kelp_replica_state *state;
    uint32_t item_count;
    struct {
        uint32_t kind;
        const void *values;
    } items[2 + KELP_OPTIMIZER_SLOTS_MAX];
    size_t item_bytes; /* of each */
};
void kelp_replica_copy_view(const struct kelp_replica_copy *copy,
                            struct kelp_replica_copy_view *ret_view);

#endif

/* What a hosting holds; for ps/shard/shard*.c and ps/shard/hosting*.c alone. */
#ifndef KELP_PS_SHARD_HOSTING_INTERNAL_H
#define KELP_PS_SHARD_HOSTING_INTERNAL_H

#include <pthread.h>

#include "kernels/update.h"
#include "ps/core/partition/partition.h"
#include "ps/shard/hosting.h"
#include "ps/shard/tensors/capture.h"
#include "ps/shard/tensors/extent.h"
#include "ps/shard/tensors/gradient.h"

/* One partition that is hosted here. */
struct hosted {
    pthread_mutex_t lock; /* guards everything below */
    struct kelp_partition *core;
    uint32_t index;
    struct kelp_replica_entry entry; /* of the newest map */
    uint64_t primary;                /* process; 0: this one */
    struct kelp_slice_range range;
    struct kelp_update update; /* of the range */
    struct kelp_extent *extent;
    struct kelp_capture capture; /* for a snapshot, until the writer takes it */
    uint64_t filled;             /* bytes of a copy that came so far, in the order of its pieces */
    bool fill_older;             /* there are older weights among them */
    struct {
        uint64_t version;  /* of the newest training step of which a push was taken */
        uint64_t since_us; /* when the first one came; 0: none has */
        bool open;         /* it is not complete */
        uint64_t number;   /* for a trace: that step's */
        uint64_t made_ns;  /* for a trace: when the one before was complete; 0: unknown */
    } step;                /* for whoever watches */
};

/* Which partitions it holds changes under the shard's lock alone (ps/shard/shard_internal.h). */
struct kelp_hosting {
    const struct kelp_job *job;
    const struct kelp_plan *plan;
    uint64_t generation;
    uint32_t partition_count; /* of the job */
    uint32_t count;           /* hosted here */
    struct hosted **by_index; /* partition_count; NULL: not hosted here */
    struct kelp_gradients *gradients;
    struct kelp_area_pool *areas; /* for weights; NULL: nobody reads them in place */
};

/* The hosted partition with the lowest index from *at on, and *at is behind it; NULL: none, or
 * hosting is NULL. */
static inline struct hosted *kelp__hosting_next(const struct kelp_hosting *hosting, uint32_t *at)
{
    while (hosting && *at < hosting->partition_count) {
        struct hosted *hosted = hosting->by_index[(*at)++];
        if (hosted) {
            return hosted;
        }
    }
    return NULL;
}

/* hosting.c: a partition with its memory, not loaded. Errors: those of kelp_hosting_prepare(). */
kelp_status kelp__hosted_create(const struct kelp_hosting *hosting,
                                const struct kelp_hosting_place *place, struct hosted **ret_hosted,
                                struct kelp_error *reterr) KELP_MUST_USE;
/* Begin its life in the generation, from S_0 or (step, version, control) a checkpoint; a joiner
 * has nothing. */
void kelp__hosted_load(const struct kelp_hosting *hosting, const struct hosted *hosted,
                       const struct kelp_partition_start *from);
/* NULL does nothing. */
void kelp__hosted_destroy(struct hosted *hosted);

/* hosting_restore.c: read weights, slots and control state of all partitions, and load them; the
 * memory is there. */
kelp_status kelp__hosting_restore(struct kelp_hosting *hosting,
                                  const struct kelp_hosting_restore *restore,
                                  struct kelp_error *reterr) KELP_MUST_USE;

#endif

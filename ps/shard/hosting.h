/*
 * One generation's partitions, weights, optimizer state and gradients, as one shard hosts them:
 * made new, or read from a checkpoint, before they are served.
 *
 * Threads: one per hosting, until it is installed (ps/shard/shard.h).
 */
#ifndef KELP_PS_SHARD_HOSTING_H
#define KELP_PS_SHARD_HOSTING_H

#include "common/job/job.h"
#include "common/training/manifest.h"
#include "common/training/plan.h"
#include "ps/core/partition_events.h"

struct kelp_hosting;

/* One partition of the map that this shard hosts, in whichever part. Other processes go by numbers
 * (ps/core/partition_events.h). */
struct kelp_hosting_place {
    uint32_t partition;
    struct kelp_replica_entry entry;
    uint64_t primary; /* process; 0: this one */
};

/* A checkpoint that a generation starts from. Everything is borrowed for the call. */
struct kelp_hosting_restore {
    const struct kelp_manifest *manifest;
    const char *run; /* folder of the run */
    /* Storage is not there (text says which and what is missing), which is no damage: wait a
     * little; true: look again, false: give up. */
    bool (*wait)(const char *text, void *user);
    void *user;
};

/* What a generation is made of here. The plan is borrowed as long as the hosting lives, the rest
 * for the call. */
struct kelp_hosting_config {
    const struct kelp_job *job;
    const struct kelp_plan *plan;
    uint64_t generation;
    bool shares;                             /* workers of this host read weights in place */
    const struct kelp_hosting_place *places; /* ascending, may be none */
    uint32_t place_count;
    const struct kelp_hosting_restore *restore; /* NULL: S_0, by the plan */
};

/*
 * Allocate the partitions of a generation and give them their state: S_0, or the checkpoint's. Each
 * part's digest is checked, whatever the number of shards was that wrote it. May take seconds; runs
 * beside all other calls.
 *
 * Errors: KELP_ERR_NO_MEMORY, KELP_ERR_LIMIT (a slice larger than a message may be), those of
 * reading model.init; of a checkpoint, with a text that names it, the storage and the partition:
 * KELP_ERR_CORRUPT, KELP_ERR_NOT_FOUND (wait() gave up), KELP_ERR_MISMATCH (of another model or
 * schedule), KELP_ERR_IO.
 */
kelp_status kelp_hosting_prepare(const struct kelp_hosting_config *config,
                                 struct kelp_hosting **ret_hosting,
                                 struct kelp_error *reterr) KELP_MUST_USE;
/* Of one that was never installed. NULL does nothing. */
void kelp_hosting_destroy(struct kelp_hosting *hosting);

#endif

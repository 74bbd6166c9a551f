/*
 * The committed checkpoints of a job: which one to restore, which ones to keep, and whether two of
 * one version agree. Pure.
 *
 * A checkpoint that was found damaged does not count for anything any more, but its digest does:
 * the manifest says what was to be written.
 */
#ifndef KELP_COORDINATOR_CORE_CHECKPOINTS_COMMITTED_LIST_H
#define KELP_COORDINATOR_CORE_CHECKPOINTS_COMMITTED_LIST_H

#include "common/job/job.h"
#include "common/tensors/digest.h"
#include "common/training/manifest.h"
#include "coordinator/core/limits.h"

/* One that is committed. revision and manifest are the shell's: they are carried along only. */
struct kelp_committed {
    uint64_t version;
    uint64_t step;
    uint32_t epochs;
    uint64_t generation; /* that made it */
    uint64_t unix_ms;
    uint64_t spec_digest; /* of the job that made it */
    bool has_metric;      /* its step was evaluated on the validation split */
    double metric[KELP_CHECKPOINT_METRICS];
    char state_digest[KELP_DIGEST_HEX_BYTES];
    char folder[KELP_FOLDER_NAME_MAX + 1];
    bool damaged;     /* cannot be restored */
    bool restored;    /* was restored once: what is on disk can be read */
    int64_t revision; /* of its key in etcd */
    char *manifest;   /* its text; owned */
};

/* A digest that was committed once, also when its checkpoint is gone. */
struct kelp_committed_digest {
    uint64_t version;
    uint64_t step; /* FINISH has a version, which is a step's in a job with more epochs */
    uint64_t generation;
    char state_digest[KELP_DIGEST_HEX_BYTES];
};

struct kelp_retention {
    uint32_t keep_last;
    uint32_t keep_best;
    uint32_t metric; /* kelp_checkpoint_metric_index() */
    enum kelp_checkpoint_order order;
};

struct kelp_committed_list {
    struct kelp_retention policy;
    struct kelp_committed *entries; /* owned; ascending versions */
    uint32_t count;
    uint32_t capacity;
    struct kelp_committed_digest *digests; /* owned; a ring, newest last */
    uint32_t digest_count;
    uint32_t digest_next;
};

/* Errors: KELP_ERR_NO_MEMORY. */
kelp_status kelp_committed_list_init(struct kelp_committed_list *list,
                                     const struct kelp_retention *policy,
                                     struct kelp_error *reterr) KELP_MUST_USE;
void kelp_committed_list_fini(struct kelp_committed_list *list);

/*
 * Take in one; the manifest's text is transferred on success. One of the same version is replaced
 * by it; what was known of that one (damaged, restored, metric) stays when it is the same
 * generation's. *ret_other, if not NULL, is the digest that an earlier checkpoint of this version
 * and step had when that is another one, else NULL; borrowed until the next call. Errors:
 * KELP_ERR_LIMIT (KELP_COORDINATOR_CHECKPOINTS_MAX), KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_committed_list_add(struct kelp_committed_list *list,
                                    const struct kelp_committed *checkpoint,
                                    const struct kelp_committed_digest **ret_other,
                                    struct kelp_error *reterr) KELP_MUST_USE;
void kelp_committed_list_remove(struct kelp_committed_list *list, uint64_t version);

/* NULL when there is none. Borrowed until the list changes. */
struct kelp_committed *kelp_committed_list_find(const struct kelp_committed_list *list,
                                                uint64_t version);
/* The newest one that is not damaged: the one to restore; NULL: version 0. */
struct kelp_committed *kelp_committed_list_newest(const struct kelp_committed_list *list);

/*
 * etcd, which was read again, has these now: is the manifest of that one out of it, and its folder
 * no other one's? A manifest that cannot be read names no folder, so that of its version counts.
 */
bool kelp_committed_gone(const struct kelp_committed *entry, const struct kelp_committed *now,
                         uint32_t now_count);

/* The validation split was evaluated at this step. */
void kelp_committed_list_evaluated(struct kelp_committed_list *list, uint64_t step,
                                   const double metric[KELP_CHECKPOINT_METRICS]);

/*
 * The oldest one that need not be kept, or NULL. Kept are the newest one; the keep_last newest, and
 * two at least while the newest was never restored from, since nobody knows yet whether it can be;
 * and the keep_best best ones of those that were evaluated (equal ones: the older). A damaged one
 * is not kept, and takes nobody's place.
 */
const struct kelp_committed *kelp_committed_list_surplus(const struct kelp_committed_list *list);

#endif

/*
 * What a term wants done with checkpoints' folders (etcd/checkpoint_files.h), on the disk's thread,
 * and the manifest of a checkpoint.
 */
#ifndef KELP_COORDINATOR_FILES_CHECKPOINT_FOLDERS_H
#define KELP_COORDINATOR_FILES_CHECKPOINT_FOLDERS_H

#include "coordinator/common/identity.h"
#include "coordinator/etcd/task_thread.h"
#include "coordinator/term/leadership.h"

struct kelp_checkpoint_folders {
    const char *run_folder;               /* borrowed */
    struct kelp_task_thread *disk;        /* borrowed */
    struct kelp_leadership *leadership;   /* borrowed; hears of job.yaml and plan.json */
    const struct kelp_identity *identity; /* borrowed */
};

/* False: it will not be done. Texts are copied. */

/* job.yaml and plan.json; then kelp_term_described(). */
bool kelp_checkpoint_folders_describe(struct kelp_checkpoint_folders *folders, const char *folder,
                                      const char *plan, uint64_t serial) KELP_MUST_USE;
bool kelp_checkpoint_folders_manifest(struct kelp_checkpoint_folders *folders, const char *folder,
                                      const char *text) KELP_MUST_USE;
bool kelp_checkpoint_folders_remove(struct kelp_checkpoint_folders *folders,
                                    const char *folder) KELP_MUST_USE;
bool kelp_checkpoint_folders_set_aside(struct kelp_checkpoint_folders *folders,
                                       const char *folder) KELP_MUST_USE;

/* What was reported of the order in progress, as a manifest with its text (owned by the caller).
 * Errors: KELP_ERR_NO_MEMORY, KELP_ERR_LIMIT. */
kelp_status kelp_checkpoint_folders_make(const struct kelp_checkpoint_folders *folders,
                                         const struct kelp_checkpointer *from,
                                         struct kelp_committed *ret_committed,
                                         struct kelp_error *reterr) KELP_MUST_USE;

#endif

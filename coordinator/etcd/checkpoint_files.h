/*
 * A run's checkpoints as folders (common/training/manifest.h), on the leader's side: what it adds
 * to what the shards wrote, and removing them. Blocking: for a helper's thread.
 */
#ifndef KELP_COORDINATOR_ETCD_CHECKPOINT_FILES_H
#define KELP_COORDINATOR_ETCD_CHECKPOINT_FILES_H

#include "common/training/manifest.h"
#include "coordinator/term/outside/found.h"

/* job.yaml, plan.json, and model.json of the run's folder, durable: before the commit. Errors:
 * those of common/base/files.h. */
kelp_status kelp_checkpoint_files_describe(const char *run, const char *folder, const char *spec,
                                           const char *plan,
                                           struct kelp_error *reterr) KELP_MUST_USE;
/* manifest.json, durable: after the commit. One that is there and the same is left. */
kelp_status kelp_checkpoint_files_manifest(const char *run, const char *folder, const char *text,
                                           struct kelp_error *reterr) KELP_MUST_USE;

/* Read one of these files; *ret_text is owned by the caller (free()). Errors: KELP_ERR_NOT_FOUND,
 * KELP_ERR_LIMIT, KELP_ERR_IO, KELP_ERR_NO_MEMORY. */
kelp_status kelp_checkpoint_files_read(const char *run, const char *folder, const char *name,
                                       char **ret_text, size_t *ret_bytes,
                                       struct kelp_error *reterr) KELP_MUST_USE;

/* Remove a checkpoint that no manifest names: renamed first, so that nobody takes half of it for a
 * whole one. Absence is no error. */
kelp_status kelp_checkpoint_files_remove(const char *run, const char *folder,
                                         struct kelp_error *reterr) KELP_MUST_USE;

/* Rename a damaged checkpoint that no manifest names to ".damaged-<folder>", which no leader
 * touches: what one host cannot read may be good on another. Absence is no error. */
kelp_status kelp_checkpoint_files_set_aside(const char *run, const char *folder,
                                            struct kelp_error *reterr) KELP_MUST_USE;

/* "step-<n>.g<n>[-<hex>]", as leaders name them? *ret_generation: that made it. */
bool kelp_checkpoint_folder_parse(const char *name, uint64_t *ret_generation);

/* All folders of checkpoints; none when there is no such place yet. What a removal left half done
 * is removed to the end. */
kelp_status kelp_checkpoint_files_list(const char *run, struct kelp_checkpoint_names *ret_names,
                                       struct kelp_error *reterr) KELP_MUST_USE;
void kelp_checkpoint_names_fini(struct kelp_checkpoint_names *names);

#endif

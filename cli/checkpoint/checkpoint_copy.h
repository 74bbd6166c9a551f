/*
 * A checkpoint's folder copied into a run. Threads: any.
 */
#ifndef KELP_CLI_CHECKPOINT_CHECKPOINT_COPY_H
#define KELP_CLI_CHECKPOINT_CHECKPOINT_COPY_H

#include "cli/checkpoint/checkpoint_read.h"

/*
 * Copy what the manifest names to <run>/checkpoints/<name>: under another name first, synced,
 * renamed: what is there is whole, also after a loss of power.
 * Errors: KELP_ERR_EXISTS (there is one of that name), KELP_ERR_NO_SPACE, KELP_ERR_IO,
 *         KELP_ERR_LIMIT.
 */
kelp_status kelp_checkpoint_copy(const struct kelp_checkpoint *checkpoint, const char *run_path,
                                 struct kelp_error *reterr) KELP_MUST_USE;

#endif

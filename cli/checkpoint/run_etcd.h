/*
 * What etcd holds of the checkpoints of a run that does not run: its private etcd is started for
 * as long as it takes. A folder alone is not enough: the leader goes by the manifests in etcd, and
 * removes folders that none of them names.
 *
 * The rules of docs/ARCHITECTURE.md hold here too: a manifest goes before its data, comes after it,
 * and whoever takes one out writes the fence.
 *
 * Threads: the main thread (common/process/process.h).
 */
#ifndef KELP_CLI_CHECKPOINT_RUN_ETCD_H
#define KELP_CLI_CHECKPOINT_RUN_ETCD_H

#include <stdint.h>

#include "cli/run/run_dir.h"
#include "common/base/status.h"

struct kelp_run_etcd;

/*
 * run is locked by us, so that nothing of it runs. *ret_etcd is owned (kelp_run_etcd_close()), and
 * NULL when the run has no etcd: then its folder says all that there is.
 * Errors: those of starting etcd; KELP_ERR_UNREACHABLE, KELP_ERR_TIMEOUT (it uses one that is not
 *         its own); KELP_ERR_BUSY (a coordinator leads the job there).
 */
kelp_status kelp_run_etcd_open(const struct kelp_run_dir *run, struct kelp_run_etcd **ret_etcd,
                               struct kelp_error *reterr) KELP_MUST_USE;
void kelp_run_etcd_close(struct kelp_run_etcd *etcd); /* NULL is fine */

/* Take a version's manifest out. One that is not there is no error.
 * Errors: KELP_ERR_BUSY (somebody else changed something meanwhile), those of etcd. */
kelp_status kelp_run_etcd_remove(struct kelp_run_etcd *etcd, uint64_t version,
                                 struct kelp_error *reterr) KELP_MUST_USE;

/* Put a manifest, whose data is there. Errors: KELP_ERR_EXISTS (the version has one), as above. */
kelp_status kelp_run_etcd_add(struct kelp_run_etcd *etcd, uint64_t version, const char *manifest,
                              struct kelp_error *reterr) KELP_MUST_USE;

#endif

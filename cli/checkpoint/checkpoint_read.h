/*
 * The checkpoints of a run by its folder, whether it runs or not and without etcd: what is
 * committed has a manifest.json beside its data (common/training/manifest.h).
 *
 * Threads: one at a time.
 */
#ifndef KELP_CLI_CHECKPOINT_CHECKPOINT_READ_H
#define KELP_CLI_CHECKPOINT_CHECKPOINT_READ_H

#include "cli/checkpoint/model_state.h"
#include "cli/run/run_dir.h"
#include "common/training/manifest.h"

struct kelp_checkpoint {
    char name[KELP_FOLDER_NAME_MAX + 1]; /* of its folder: "step-1500.g2" */
    char path[KELP_RUN_PATH_MAX + KELP_FOLDER_NAME_MAX + 32];
    struct kelp_error fault;       /* status is not KELP_OK: why its manifest cannot be used */
    struct kelp_manifest manifest; /* all zero with a fault */
};

struct kelp_checkpoints {
    struct kelp_checkpoint
        *items; /* owned; by growing step and version; those with a fault first */
    size_t count;
};

/* One without any is no error. Errors: KELP_ERR_IO, KELP_ERR_NO_MEMORY, KELP_ERR_LIMIT. */
kelp_status kelp_checkpoints_list(const char *run_path, struct kelp_checkpoints *ret_list,
                                  struct kelp_error *reterr) KELP_MUST_USE;
void kelp_checkpoints_fini(struct kelp_checkpoints *list); /* all zero is fine */

/* By name, or "best". Errors: KELP_ERR_NOT_FOUND (the text names those that are there), those of
 * kelp_checkpoints_best(). */
kelp_status kelp_checkpoints_find(const struct kelp_checkpoints *list, const char *name,
                                  const struct kelp_checkpoint **ret_checkpoint,
                                  struct kelp_error *reterr) KELP_MUST_USE;
/* The newest at or below a step, without a fault; NULL: none. */
const struct kelp_checkpoint *kelp_checkpoints_before(const struct kelp_checkpoints *list,
                                                      uint64_t step);

/* The newest good one of that step; NULL: none. */
const struct kelp_checkpoint *kelp_checkpoints_at(const struct kelp_checkpoints *list,
                                                  uint64_t step);
/*
 * That of the best evaluation of the validation split which metrics.jsonl of the run has, by the
 * job's train.monitor. Another one, though the best of those that are there, is no answer.
 * Errors: KELP_ERR_NOT_FOUND (nothing was evaluated, or it was not kept; the text says how to),
 *         those of kelp_checkpoint_job() and of reading the file.
 */
kelp_status kelp_checkpoints_best(const struct kelp_checkpoints *list,
                                  const struct kelp_checkpoint **ret_checkpoint,
                                  struct kelp_error *reterr) KELP_MUST_USE;

/* A checkpoint that lies at path, as a folder of its own. Errors: KELP_ERR_NOT_FOUND (it has no
 * manifest.json), KELP_ERR_CORRUPT, KELP_ERR_IO, KELP_ERR_LIMIT, KELP_ERR_NO_MEMORY. */
kelp_status kelp_checkpoint_open(const char *path, struct kelp_checkpoint *ret_checkpoint,
                                 struct kelp_error *reterr) KELP_MUST_USE;
void kelp_checkpoint_fini(struct kelp_checkpoint *checkpoint); /* all zero is fine */

/* Bytes of the state. */
uint64_t kelp_checkpoint_bytes(const struct kelp_checkpoint *checkpoint);

/* The job that made it: job.yaml of its folder, owned (kelp_job_file_destroy()). The plan: owned
 * (kelp_plan_fini()). Errors: KELP_ERR_NOT_FOUND, KELP_ERR_CORRUPT (they do not fit the manifest),
 * those of reading them. */
kelp_status kelp_checkpoint_job(const struct kelp_checkpoint *checkpoint,
                                struct kelp_job_file **ret_file, struct kelp_plan *ret_plan,
                                struct kelp_error *reterr) KELP_MUST_USE;

/*
 * Read the whole state, every part checked against its digest. state is one of the job and plan,
 * or of a job that may go on from it (common/job/job.h, kelp_job_compare()).
 * Errors: KELP_ERR_CORRUPT, KELP_ERR_NOT_FOUND (a storage is not there), KELP_ERR_IO,
 *         KELP_ERR_MISMATCH (the state is of another layout); the text names checkpoint, storage
 *         and partition. The state is undefined then.
 */
kelp_status kelp_checkpoint_load(const struct kelp_checkpoint *checkpoint,
                                 struct kelp_model_state *state,
                                 struct kelp_error *reterr) KELP_MUST_USE;

/* One fault that kelp_checkpoint_verify() found. */
struct kelp_checkpoint_fault {
    const char *storage; /* folder; "" for the checkpoint as a whole */
    bool has_partition;  /* false: all of the storage */
    uint32_t partition;
    const char *text;
};

/*
 * Check every part against the manifest, going on after a fault. Each is told once, by `found`.
 * *ret_faults counts them. Errors: KELP_ERR_NOT_FOUND (the run has removed it meanwhile),
 * KELP_ERR_NO_MEMORY; what is wrong with the checkpoint is a fault.
 */
kelp_status kelp_checkpoint_verify(
    const struct kelp_checkpoint *checkpoint, uint32_t *ret_faults, struct kelp_error *reterr,
    void (*found)(const struct kelp_checkpoint_fault *fault, void *user), void *user) KELP_MUST_USE;

#endif

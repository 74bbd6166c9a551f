/*
 * A job's weights, outside of it: pulled from the shards of a running cluster, written as
 * safetensors with PyTorch's parameter names, and the digest of such a file.
 */
#ifndef KELP_CLI_RUN_MODEL_FILE_H
#define KELP_CLI_RUN_MODEL_FILE_H

#include <stdint.h>

#include "cli/run/job_client.h"
#include "common/base/status.h"
#include "common/tensors/digest.h"
#include "common/training/plan.h"

/* Bytes of one answer: a shard cuts its answers at transport.piece_bytes, but never a partition. */
#define KELP_MODEL_ANSWER_MAX (256u << 20)

struct kelp_model_pull {
    const struct kelp_plan *plan;
    const Kelp__V1__Map *map; /* as a status gave it */
    uint64_t spec_digest;
    uint32_t deadline_ms; /* for all of it */
};

/*
 * Pull all weights as a client; workers do not notice. All partitions are of one training step:
 * where the job goes on meanwhile, those that are behind are waited for, and when they have gone
 * too far it begins again.
 *
 * flat       float32[plan->flat_count], written.
 * ret_step   the label of the weights.
 *
 * Errors: KELP_ERR_TIMEOUT, KELP_ERR_UNREACHABLE, KELP_ERR_OLD_GENERATION and
 * KELP_ERR_OLD_MAP_EPOCH (the map is an old one: ask for the status again), KELP_ERR_FORMAT,
 * KELP_ERR_INVALID.
 */
kelp_status kelp_model_pull_weights(struct kelp_job_client *client,
                                    const struct kelp_model_pull *pull, float *flat,
                                    uint64_t *ret_step, struct kelp_error *reterr) KELP_MUST_USE;

/* As kelp_model_pull_weights() with plan, map and generation asked for here. *ret_plan is owned
 * (kelp_plan_fini()), *ret_flat too (free()). */
kelp_status kelp_model_fetch(struct kelp_job_client *client, uint64_t spec_digest,
                             uint32_t deadline_ms, struct kelp_plan *ret_plan, float **ret_flat,
                             uint64_t *ret_step, struct kelp_error *reterr) KELP_MUST_USE;

/* Write the weights with metadata format, job, step, digest; path is replaced as a whole. */
kelp_status kelp_model_write(const char *path, const struct kelp_plan *plan, const float *flat,
                             const char *job, uint64_t step,
                             struct kelp_error *reterr) KELP_MUST_USE;

/* The digest of a file's tensors, in the order of their data. Errors: those of
 * kelp_safetensors_open(), KELP_ERR_UNSUPPORTED (a tensor that is not float32). */
kelp_status kelp_model_file_digest(const char *path, char ret_hex[KELP_DIGEST_HEX_BYTES],
                                   struct kelp_error *reterr) KELP_MUST_USE;

#endif

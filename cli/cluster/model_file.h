/*
 * A job's weights, outside of it: pulled from the shards of a running cluster, written as
 * safetensors with PyTorch's parameter names, and the digest of such a file.
 */
#ifndef KELP_CLI_CLUSTER_MODEL_FILE_H
#define KELP_CLI_CLUSTER_MODEL_FILE_H

#include <stdint.h>

#include "cli/cluster/job_client.h"
#include "common/base/status.h"
#include "common/tensors/digest.h"
#include "common/training/plan.h"

/* Bytes of one answer: a shard cuts its answers at transport.piece_bytes, but never a partition. */
#define KELP_MODEL_ANSWER_MAX (256u << 20)

/* All weights of one training step. */
struct kelp_model_copy {
    struct kelp_plan plan;
    float *flat; /* float32[plan.flat_count], owned */
    uint64_t step;
};
void kelp_model_copy_fini(struct kelp_model_copy *copy);

/*
 * Pull the model as a client; workers do not notice. *ret_copy is owned (kelp_model_copy_fini()).
 * Errors: KELP_ERR_TIMEOUT, KELP_ERR_UNREACHABLE, KELP_ERR_NOT_FOUND, KELP_ERR_FORMAT,
 * KELP_ERR_INVALID.
 */
kelp_status kelp_model_fetch(struct kelp_job_client *client, uint64_t spec_digest,
                             uint32_t deadline_ms, struct kelp_model_copy *ret_copy,
                             struct kelp_error *reterr) KELP_MUST_USE;

/* What is written beside the weights. */
struct kelp_model_about {
    const char *job;
    uint64_t step;
    const char *card; /* what the model carries (KELP_MODEL_CARD_KEY); NULL: nothing */
};

/* Write the weights with metadata format, job, step, digest; path is replaced as a whole. */
kelp_status kelp_model_write(const char *path, const struct kelp_plan *plan, const float *flat,
                             const struct kelp_model_about *about,
                             struct kelp_error *reterr) KELP_MUST_USE;

/* model.json of a folder, of a run or a checkpoint; *ret_text is owned (free()), NULL where there
 * is none. Errors: KELP_ERR_IO, KELP_ERR_LIMIT, KELP_ERR_NO_MEMORY. */
kelp_status kelp_model_card_read(const char *folder, char **ret_text,
                                 struct kelp_error *reterr) KELP_MUST_USE;

/* Copy a safetensors file tensor by tensor, so that what is written has been read and checked. card
 * replaces the file's own; NULL: that stays. Errors: those of reading and writing. */
kelp_status kelp_model_copy_file(const char *from, const char *to, const char *card,
                                 struct kelp_error *reterr) KELP_MUST_USE;

/* The digest of a file's tensors, in the order of their data. Errors: those of
 * kelp_safetensors_open(), KELP_ERR_UNSUPPORTED (a tensor that is not float32). */
kelp_status kelp_model_file_digest(const char *path, char ret_hex[KELP_DIGEST_HEX_BYTES],
                                   struct kelp_error *reterr) KELP_MUST_USE;

#endif

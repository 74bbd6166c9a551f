/*
 * The manifest of a committed checkpoint: which storage holds each part, with its digest. Canonical
 * JSON; /kelp/<job>/checkpoint/<version> in etcd, and manifest.json beside the data.
 *
 * Where a checkpoint lies, under the run's folder, which all hosts of the job can reach:
 *
 *     checkpoints/step-1500.g2/       one folder for each checkpoint: step and generation
 *         shard-0.1f3c…/              one for each storage: shard and incarnation; a RocksDB
 *                                     database, written under another name and renamed when whole
 *         job.yaml  plan.json         of the job, so that the folder says all there is to know
 *         model.json                  of the run's folder, where it has one: the fitted scales
 *         manifest.json               written once the commit is in etcd
 */
#ifndef KELP_COMMON_TRAINING_MANIFEST_H
#define KELP_COMMON_TRAINING_MANIFEST_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/job/job.h"
#include "common/tensors/digest.h"

#define KELP_CHECKPOINTS_FOLDER "checkpoints"
#define KELP_FOLDER_NAME_MAX    95 /* bytes of one folder's name */
#define KELP_MANIFEST_NONCE_MAX 47
#define KELP_MANIFEST_BYTES_MAX (1u << 20)

/* What a model carries besides its weights (worker/data/model_card.h): a file of the folders of
 * runs and checkpoints, an entry in the metadata of safetensors files, and its bytes: a million
 * categories. With its quotes escaped it fits into a file's header (KELP_SAFETENSORS_HEADER_MAX).
 */
#define KELP_MODEL_CARD_FILE      "model.json"
#define KELP_MODEL_CARD_KEY       "kelp.model"
#define KELP_MODEL_CARD_BYTES_MAX (24u << 20)

struct kelp_manifest_part {
    uint32_t storage; /* index into storages */
    uint64_t bytes;
    char digest[KELP_DIGEST_HEX_BYTES]; /* ps/storage/snapshot_store.h, "part digest" */
};

struct kelp_manifest {
    char job[KELP_JOB_NAME_MAX + 1];
    uint64_t spec_digest; /* kelp_job_file_digest() of the job that made it */
    uint64_t version;     /* completed entries: the key in etcd */
    uint64_t step;        /* completed training steps */
    uint32_t epochs;      /* completed epochs */
    uint64_t generation;  /* that made it */
    uint64_t unix_ms;     /* when it was committed, for people */
    bool has_metric;      /* evaluated at this step: checkpoint.metric can be told */
    double metric[KELP_CHECKPOINT_METRICS]; /* by enum kelp_checkpoint_metric; NaN: there is none */
    char nonce[KELP_MANIFEST_NONCE_MAX + 1]; /* of the commit: tells a lost answer from a failure */
    char folder[KELP_FOLDER_NAME_MAX + 1];   /* under checkpoints/ */
    uint32_t storage_count;
    char (*storages)[KELP_FOLDER_NAME_MAX + 1]; /* owned; folders under folder */
    uint32_t part_count;                        /* the plan's partition_count */
    struct kelp_manifest_part *parts;           /* owned; of each partition */
};

/* Room for so many, all zero. Errors: KELP_ERR_LIMIT, KELP_ERR_NO_MEMORY. */
kelp_status kelp_manifest_init(struct kelp_manifest *manifest, uint32_t storage_count,
                               uint32_t part_count, struct kelp_error *reterr) KELP_MUST_USE;
void kelp_manifest_fini(struct kelp_manifest *manifest);

/* The same manifest gives the same text. ret_text is owned by the caller (free()). */
kelp_status kelp_manifest_print(const struct kelp_manifest *manifest, char **ret_text,
                                struct kelp_error *reterr) KELP_MUST_USE;
/* Bounded and checked: names without '/' and not "." or "..", indices, digests. A metric that was
 * not finite is NaN. Errors: KELP_ERR_FORMAT, KELP_ERR_LIMIT, KELP_ERR_NO_MEMORY. */
kelp_status kelp_manifest_parse(const char *text, size_t text_bytes,
                                struct kelp_manifest *ret_manifest,
                                struct kelp_error *reterr) KELP_MUST_USE;

/* Digest of the whole state: XXH3-128 over version (u64, little-endian) and the parts' digests (32
 * digits each) in order. The same state gives the same one, whatever the number of shards was. */
void kelp_manifest_state_digest(const struct kelp_manifest *manifest,
                                char ret_hex[KELP_DIGEST_HEX_BYTES]);

/* True for a name that may be a folder of a checkpoint: letters, digits, '-', '_', '.', not
 * beginning with '.', 1 to KELP_FOLDER_NAME_MAX bytes. */
bool kelp_folder_name_valid(const char *name);

#endif

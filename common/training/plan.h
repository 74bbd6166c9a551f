/*
 * The plan: what a job means for its data and its model. The launcher derives it and writes it to
 * etcd with the job (/kelp/<job>/plan). Otherwise the first worker that joins proposes it, and the
 * leader writes it. Every worker must derive the same text; shards lay out their partitions by it.
 * It is a function of the job file and the data alone.
 */
#ifndef KELP_COMMON_TRAINING_PLAN_H
#define KELP_COMMON_TRAINING_PLAN_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/job/job.h"

#define KELP_TENSOR_NAME_MAX   127
#define KELP_TENSOR_RANK_MAX   8
#define KELP_TENSOR_ALIGN      64 /* bytes, of each tensor in the flat vector */
#define KELP_PLAN_TENSORS_MAX  16384
#define KELP_PLAN_TEXT_MAX     (1u << 20) /* bytes; etcd refuses requests over 1.5 MB */
#define KELP_PARTITIONS_MAX    1024
#define KELP_PLAN_ELEMENTS_MAX (UINT64_C(1) << 40) /* of the flat vector: 4 TiB */

enum kelp_split { KELP_SPLIT_TRAIN, KELP_SPLIT_VAL, KELP_SPLIT_TEST, KELP_SPLIT_COUNT };

enum kelp_init_kind {
    KELP_INIT_CONSTANT, /* a */
    KELP_INIT_UNIFORM,  /* [-a, a), by Philox keyed with (seed, tensor index) */
    KELP_INIT_NORMAL,   /* mean 0, standard deviation a, by Philox keyed likewise */
    KELP_INIT_FILE, /* the tensor of model.init; shards read it from that file. A running statistic
                       that the file lacks begins with the value a */
};

struct kelp_tensor {
    char name[KELP_TENSOR_NAME_MAX + 1]; /* PyTorch's parameter name */
    uint32_t rank;
    uint64_t shape[KELP_TENSOR_RANK_MAX];
    uint64_t elem_count;
    uint64_t offset; /* in elements of the flat vector, a multiple of 16 */
    enum kelp_init_kind init;
    float init_a;
    /* A statistic is not a parameter: its "gradient" is a lane's value weighted by the lane's share
     * of the step's samples, its update is w' = (1 - momentum) w + momentum g, and optimizer,
     * weight decay and the norm of the gradient ignore it. With momentum 0 it keeps its bits,
     * whatever its gradient is: a held parameter. */
    bool statistic;
    float momentum; /* of a statistic; else 0 */
    bool decays;    /* weight decay applies: a parameter that train.decay_exclude does not name */
};

struct kelp_plan {
    uint64_t samples[KELP_SPLIT_COUNT]; /* windows or rows of each split */
    uint64_t data_fingerprint;          /* XXH3-64 over what the data set reads */
    uint64_t model_digest;              /* XXH3-64 of model.plugin's library; 0 without one */
    char compute_kind[128];    /* instruction set and libraries; checked unless cluster.mixed */
    uint64_t compute_answer;   /* known-answer digest of the kernels */
    char compute_reasons[128]; /* why answers may differ, for people; not compared; or "" */
    uint32_t tensor_count;
    struct kelp_tensor *tensors; /* owned, declaration order */
    uint64_t flat_count;      /* elements of the flat vector, padding included (padding is zero) */
    uint32_t partition_count; /* docs/PROTOCOL.md, "Layout of the model" */
};

/*
 * Give each tensor its offset and fill flat_count and partition_count. Names, shapes and init of
 * plan->tensors are set by the caller.
 * Errors: KELP_ERR_LIMIT, KELP_ERR_INVALID (two tensors of one name, a dimension of zero).
 */
kelp_status kelp_plan_lay_out(struct kelp_plan *plan, uint32_t max_shards,
                              struct kelp_error *reterr) KELP_MUST_USE;

/*
 * Set `decays` of each tensor: parameters do but those that train.decay_exclude names.
 * Errors: KELP_ERR_INVALID (a pattern that names none).
 */
kelp_status kelp_plan_mark_decays(struct kelp_plan *plan, const struct kelp_job *job,
                                  struct kelp_error *reterr) KELP_MUST_USE;

void kelp_plan_fini(struct kelp_plan *plan);

/* Canonical JSON; ret_text owned by the caller (free()). */
kelp_status kelp_plan_print(const struct kelp_plan *plan, char **ret_text,
                            struct kelp_error *reterr) KELP_MUST_USE;
/* Everything is bounded and checked; *ret_plan is set on success only. */
kelp_status kelp_plan_parse(const char *text, size_t text_bytes, struct kelp_plan *ret_plan,
                            struct kelp_error *reterr) KELP_MUST_USE;

/* Was it derived as cluster.compute: portable asks for? */
bool kelp_plan_is_portable(const struct kelp_plan *plan);

/* How they compute otherwise ("compute kind cpu … differs from cpu …"), without what would be
 * right. False, and the text is not touched: they compute alike. */
bool kelp_plan_computes_otherwise(const struct kelp_plan *ours, const struct kelp_plan *theirs,
                                  char *text, size_t text_bytes);

/* What makes two plans differ. */
enum kelp_plan_part { KELP_PLAN_EQUAL, KELP_PLAN_DATA, KELP_PLAN_MODEL, KELP_PLAN_COMPUTE };

/* Say in one line how two plans differ ("data fingerprint 1a2b… differs from 3c4d…"); the text is
 * not touched where they are equal. With mixed, they may compute differently. */
enum kelp_plan_part kelp_plan_difference(const struct kelp_plan *ours,
                                         const struct kelp_plan *theirs, bool mixed, char *text,
                                         size_t text_bytes);

/* Elements [first, first + count) of the flat vector that partition holds. Slices are contiguous,
 * equal but for the last, each a multiple of 16 elements; count may be 0 only in the last ones. */
struct kelp_slice_range {
    uint64_t first;
    uint64_t count;
};
struct kelp_slice_range kelp_plan_partition(const struct kelp_plan *plan, uint32_t partition);

/*
 * Write the initial values S_0 of flat elements [first, first + count) to values. init_data is the
 * opened safetensors file of model.init (common/tensors/safetensors.h), or NULL when no tensor
 * needs it.
 */
struct kelp_safetensors;
kelp_status kelp_plan_initialise(const struct kelp_plan *plan, const struct kelp_job *job,
                                 const struct kelp_safetensors *init_data,
                                 struct kelp_slice_range range, float *values,
                                 struct kelp_error *reterr) KELP_MUST_USE;

/* Does the file have all tensors that the plan takes from it, in the right shapes? Errors:
 * KELP_ERR_NOT_FOUND, KELP_ERR_MISMATCH; the text names file and tensor. */
kelp_status kelp_plan_check_init(const struct kelp_plan *plan, const struct kelp_job *job,
                                 const struct kelp_safetensors *init_data,
                                 struct kelp_error *reterr) KELP_MUST_USE;

/* XXH3-128 over each tensor's name, shape and bytes in declaration order (docs/PROTOCOL.md,
 * "Digest"), as 32 hexadecimal digits. flat holds plan->flat_count elements. */
void kelp_plan_digest(const struct kelp_plan *plan, const float *flat, char ret_hex[33]);

#endif

/* The tensors of model.init by the names that the model has for them. */
#ifndef KELP_COMMON_TRAINING_PLAN_INIT_H
#define KELP_COMMON_TRAINING_PLAN_INIT_H

#include "common/base/status.h"
#include "common/job/job.h"
#include "common/tensors/safetensors.h"

/*
 * The file's tensor that the model calls name: behind model.init_prefix, renamed by model.init_map.
 * Letter case may differ where a single tensor is meant, and what wrappers of PyTorch put before
 * every name ("module.", "_orig_mod.") may be there. NULL, which is no error: there is none.
 * Errors: KELP_ERR_MISMATCH (two that model.init_map gives the name to).
 */
kelp_status kelp__init_find(const struct kelp_safetensors *file, const struct kelp_job *job,
                            const char *name, const struct kelp_safetensors_tensor **ret_found,
                            struct kelp_error *reterr) KELP_MUST_USE;

/* Say that there is none, and what would help. */
kelp_status kelp__init_lacks(const struct kelp_safetensors *file, const struct kelp_job *job,
                             const char *name, struct kelp_error *reterr);

/* Does each rule of model.init_map rename a tensor? Errors: KELP_ERR_NOT_FOUND. */
kelp_status kelp__init_check_map(const struct kelp_safetensors *file, const struct kelp_job *job,
                                 struct kelp_error *reterr) KELP_MUST_USE;

#endif

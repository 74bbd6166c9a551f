/*
 * Which GPUs the workers of this host compute on: one each, and in turn where there are more
 * workers.
 */
#ifndef KELP_CLI_HOST_GPUS_H
#define KELP_CLI_HOST_GPUS_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

#define KELP_GPUS_MAX      64
#define KELP_GPU_NAME_MAX  63                     /* bytes */
#define KELP_GPU_ENTRY     "CUDA_VISIBLE_DEVICES" /* of a worker's environment */
#define KELP_GPU_ENTRY_MAX (sizeof(KELP_GPU_ENTRY) + 1 + KELP_GPU_NAME_MAX)

struct kelp_gpus {
    char names[KELP_GPUS_MAX][KELP_GPU_NAME_MAX + 1]; /* as CUDA_VISIBLE_DEVICES has them */
    size_t count;                                     /* 0: none are known here */
};

/* "0,2" or "GPU-5ebe…,MIG-…": numbers or names, separated by commas, none twice. what: whose text
 * it is, for errors. Pure. Errors: KELP_ERR_INVALID, KELP_ERR_LIMIT. */
kelp_status kelp_gpus_parse(const char *what, const char *text, struct kelp_gpus *ret_gpus,
                            struct kelp_error *reterr) KELP_MUST_USE;

/* Those that are meant: typed (--gpus) names them; NULL: CUDA_VISIBLE_DEVICES does, as a batch
 * system sets it; else all that the driver has. A job that does not compute on them (cuda false)
 * needs none. Errors: likewise. */
kelp_status kelp_gpus_find(const char *typed, bool cuda, struct kelp_gpus *ret_gpus,
                           struct kelp_error *reterr) KELP_MUST_USE;

/* Of so many workers of the host, how many get the same GPU at most. 1 where none are known. Pure.
 */
uint32_t kelp_gpus_sharing(const struct kelp_gpus *gpus, uint32_t workers);

/* "CUDA_VISIBLE_DEVICES=2", of that worker of the host, from 0. There is one at least. Pure. */
void kelp_gpus_entry(const struct kelp_gpus *gpus, uint32_t worker,
                     char entry[KELP_GPU_ENTRY_MAX + 1]);

#endif

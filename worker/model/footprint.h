/*
 * The memory that a job takes in its workers and shards: estimated, as `kelp model show` prints it,
 * and measured by a worker of itself.
 */
#ifndef KELP_WORKER_MODEL_FOOTPRINT_H
#define KELP_WORKER_MODEL_FOOTPRINT_H

#include "common/job/job.h"
#include "common/training/plan.h"
#include "worker/data/dataset.h"
#include "worker/model/model.h"

/* In bytes. */
struct kelp_footprint {
    uint64_t weights;     /* two versions */
    uint64_t gradients;   /* of the nodes that are held at once */
    uint64_t activations; /* the graph's block: values, their gradients, workspaces */
    uint64_t batch;       /* the samples in work, with a GPU also those to come; predictions */
    uint64_t data;        /* what the data set holds */
    uint64_t messages;    /* weights on their way in */
    uint64_t process;     /* the program, its libraries and threads: about the same for every job */
    uint64_t total;
};

/* Of one worker where cluster.workers.min of them share the lanes; the dataset may be NULL. */
void kelp_footprint(const struct kelp_job *job, const struct kelp_plan *plan,
                    const struct kelp_model *model, const struct kelp_dataset *dataset,
                    struct kelp_footprint *ret_footprint);

/* Of that worker on its device, where that one has memory of its own; in bytes. */
struct kelp_device_footprint {
    uint64_t weights;
    uint64_t gradient;    /* of each stream, and the sums of a node's lanes that wait */
    uint64_t activations; /* the graph's block for each stream, samples too */
    uint64_t cudnn;       /* its workspace for each stream, at most; 0: it computes nothing */
    uint64_t libraries;   /* CUDA and cuBLASLt: about the same for every job */
    uint64_t total;
    uint64_t later; /* of the total, what a model that was made takes as it computes */
};
void kelp_footprint_device(const struct kelp_job *job, const struct kelp_plan *plan,
                           const struct kelp_model *model,
                           struct kelp_device_footprint *ret_footprint);
/* Do `sharing` such workers fit so many bytes? The text has the figures and what to change. Errors:
 * KELP_ERR_LIMIT. */
kelp_status kelp_footprint_device_check(const struct kelp_job *job,
                                        const struct kelp_device_footprint *footprint,
                                        uint32_t sharing, uint64_t memory_bytes,
                                        struct kelp_error *reterr) KELP_MUST_USE;

/* Does what such a worker, whose model was made, will take fit what nobody has taken of the GPU (0:
 * not known)? Others of the GPU may take it still. Errors: KELP_ERR_NO_MEMORY. */
kelp_status kelp_footprint_device_left(const struct kelp_device_footprint *footprint,
                                       uint64_t free_bytes,
                                       struct kelp_error *reterr) KELP_MUST_USE;

/* Of all shards together: two versions of the weights, the optimizer's slots, a gradient. */
uint64_t kelp_footprint_shards(const struct kelp_job *job, const struct kelp_plan *plan);

/* The most memory that this process has had so far, in bytes; 0 where the system does not tell. */
uint64_t kelp_footprint_peak(void);

#endif

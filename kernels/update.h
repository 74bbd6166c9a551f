/*
 * One step's update of a slice of the flat vector. Tensors are updated in different ways, and some
 * updates need a decision over all slices (common/training/decision_share.h). Shards use it for
 * their slices, and replays for the whole vector.
 */
#ifndef KELP_KERNELS_UPDATE_H
#define KELP_KERNELS_UPDATE_H

#include "common/training/decision_share.h"
#include "common/training/plan.h"
#include "kernels/optimizer.h"

enum kelp_update_kind {
    KELP_UPDATE_DECAYED,   /* by the optimizer, with weight decay if the job has any */
    KELP_UPDATE_PLAIN,     /* by the optimizer, without weight decay */
    KELP_UPDATE_STATISTIC, /* an exponential average: kelp_tensor.statistic */
};

#define KELP_UPDATE_WHOLE UINT32_MAX

/* Neighbouring tensors that are updated in the same way, with their padding; for lamb, each
 * parameter is a segment of its own. */
struct kelp_update_segment {
    uint64_t first; /* within the slice */
    uint64_t count;
    enum kelp_update_kind kind;
    float momentum;      /* of a statistic */
    uint64_t leaf_first; /* lamb: its first leaf within its tensor */
    uint32_t shared;     /* lamb: index of its ratio in the decision, or KELP_UPDATE_WHOLE: the
                            whole tensor is in this slice */
};

struct kelp_update {
    const struct kelp_job *job; /* borrowed */
    struct kelp_slice_range range;
    struct kelp_update_segment *segments; /* owned, ascending, without gaps */
    uint32_t count;                       /* one if all parameters decay, or none does */
};

/* Divide elements [range.first, range.first + range.count) of the flat vector, a partition or all
 * of it, into segments. job is borrowed until kelp_update_fini(). Errors: KELP_ERR_NO_MEMORY. */
kelp_status kelp_update_init(struct kelp_update *update, const struct kelp_job *job,
                             const struct kelp_plan *plan, struct kelp_slice_range range,
                             struct kelp_error *reterr) KELP_MUST_USE;
/* Also for an all-zero struct. */
void kelp_update_fini(struct kelp_update *update);

/*
 * Compute the slice's share of the step (common/training/decision_share.h), for jobs whose steps
 * need decisions. Reads weights, gradient and slots. The sums are undefined if the gradient is not
 * finite. Terms of a gradient are added in the same pass over memory; lamb reads them again, so it
 * needs their sum (terms.sum).
 */
void kelp_update_measure(const struct kelp_update *update, const struct kelp_optimizer_step *step,
                         const struct kelp_optimizer_buffers *buffers,
                         struct kelp_decision_share *ret_part);

/*
 * Compute w_{v+1} and the slots of the slice; the buffers begin at its first element. decision: has
 * kelp_step_decision_count() values. Returns false if an element of the gradient is not finite:
 * weights_next is then undefined, and slots may have changed.
 *
 * One pass over memory, with the bits of an addition followed by an update. Lamb accepts no terms.
 */
bool kelp_update_apply(const struct kelp_update *update, const struct kelp_optimizer_step *step,
                       const struct kelp_step_decision *decision,
                       const struct kelp_optimizer_buffers *buffers);

#endif

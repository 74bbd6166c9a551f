/*
 * One step's update of a slice of the flat vector: not every tensor is updated in the same way, and
 * some updates need a decision over all slices (common/training/decision_share.h). Shards apply
 * their slices with it, and so does whoever computes a run again.
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

/* Neighbouring tensors that are updated in one way, with the padding behind each; for lamb, each
 * parameter is a segment of its own. */
struct kelp_update_segment {
    uint64_t first; /* within the slice */
    uint64_t count;
    enum kelp_update_kind kind;
    float momentum;      /* of a statistic */
    uint64_t leaf_first; /* lamb: where it begins in its tensor, in leaves */
    uint32_t shared;     /* lamb: its ratio's place in the decision, or KELP_UPDATE_WHOLE: the
                            tensor lies in this slice alone */
};

struct kelp_update {
    const struct kelp_job *job; /* borrowed */
    struct kelp_slice_range range;
    struct kelp_update_segment *segments; /* owned, ascending, without gaps */
    uint32_t count;                       /* one, where all parameters decay or none does */
};

/* Cut elements [range.first, range.first + range.count) of the flat vector, a partition or all of
 * it. job is borrowed. Errors: KELP_ERR_NO_MEMORY. */
kelp_status kelp_update_init(struct kelp_update *update, const struct kelp_job *job,
                             const struct kelp_plan *plan, struct kelp_slice_range range,
                             struct kelp_error *reterr) KELP_MUST_USE;
/* All zero is fine too. */
void kelp_update_fini(struct kelp_update *update);

/*
 * What the slice tells of the step (common/training/decision_share.h), for jobs whose steps need
 * decisions: weights, gradient and slots are read. The part's sums mean nothing when it says that
 * the gradient is not finite. Terms of a gradient are added up in the same pass over memory; lamb
 * reads them again, so that it needs their sum.
 */
void kelp_update_measure(const struct kelp_update *update, const struct kelp_optimizer_step *step,
                         const struct kelp_optimizer_buffers *buffers,
                         struct kelp_decision_share *ret_part);

/*
 * w_{v+1} and the slots of the slice; the buffers begin at its first element. decision: with
 * kelp_step_decision_count() values. False when an element of the gradient is not finite:
 * weights_next is of no use then, and slots may have changed.
 *
 * One pass over memory, to the bits of an addition and an update after it. Lamb takes no terms.
 */
bool kelp_update_apply(const struct kelp_update *update, const struct kelp_optimizer_step *step,
                       const struct kelp_step_decision *decision,
                       const struct kelp_optimizer_buffers *buffers);

#endif

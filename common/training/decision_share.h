/*
 * Decisions about a training step that need something from every partition (docs/ARCHITECTURE.md,
 * "The life of a step that is decided about"): a partition's share, and the decision. Pure; any
 * thread.
 *
 *   failure.on_nan: skip     is a gradient not finite?                      the step is skipped
 *   train.clip_norm          sums of squares of the gradient                one factor
 *   train.optimizer: lamb    of each tensor that partitions share, sums of  one ratio for each
 *                            squares of its weights and of its update       such tensor
 *
 * Sums are taken over leaves of 16 elements, which no partition divides, and then along a binary
 * tree over the leaves of the flat vector (of the tensor, for lamb). A partition reports the
 * largest whole nodes of the tree that it has, so the sums do not depend on the number of
 * partitions, nor on where they begin.
 */
#ifndef KELP_COMMON_TRAINING_DECISION_SHARE_H
#define KELP_COMMON_TRAINING_DECISION_SHARE_H

#include <stdint.h>

#include "common/job/job.h"
#include "common/training/plan.h"

#define KELP_LEAF_ELEMENTS 16 /* slices and tensors begin at a multiple of it */

/* A partition's share of a step: numbers that follow from its gradient and weights alone. The first
 * is KELP_DECISION_SHARE_FINITE; then, in the order of the flat vector, the nodes of its sums: of a
 * tensor first those of the weights. */
#define KELP_DECISION_SHARE_FINITE 0 /* 1: its gradient is finite, 0: it is not */
/* 2^26 leaves of two shared tensors: 2 (52 + 26) + 1. */
#define KELP_DECISION_SHARE_VALUES_MAX 160
struct kelp_decision_share {
    uint32_t count;
    double values[KELP_DECISION_SHARE_VALUES_MAX];
};

/* The decision besides skipping the step: the factor of the gradient, or the ratio of each shared
 * tensor, in order; empty if the step is skipped. Borrowed. */
#define KELP_STEP_DECISION_MAX KELP_PARTITIONS_MAX /* a border of partitions cuts one tensor */
struct kelp_step_decision {
    uint32_t count;
    const double *values;
};

/* Does a training step of this job need a decision? */
bool kelp_control_decides(const struct kelp_job *job);
/* Values of a step's decision. */
uint32_t kelp_step_decision_count(const struct kelp_job *job, const struct kelp_plan *plan);
/* Values of a partition's part. Errors: KELP_ERR_LIMIT (over KELP_DECISION_SHARE_VALUES_MAX). */
kelp_status kelp_decision_share_count(const struct kelp_job *job, const struct kelp_plan *plan,
                                      uint32_t partition, uint32_t *ret_count,
                                      struct kelp_error *reterr) KELP_MUST_USE;

/*
 * All parts of a step, by partition, each as long as kelp_decision_share_count() says: whether the
 * step is to be skipped; or the decision, into ret_values[kelp_step_decision_count()].
 */
bool kelp_step_decide(const struct kelp_job *job, const struct kelp_plan *plan,
                      const struct kelp_decision_share *const *parts, double *ret_values);

/* min(1, max_norm / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_ has it, from the sum of
 * squares. */
double kelp_clip_factor(double max_norm, double sum_of_squares);
/* Length of the weights over that of the update, from their sums of squares; 1 if either is 0. */
double kelp_lamb_ratio(double weights, double update);

/* ---- tensors ---- */

/* Does lamb need a decision about this tensor: a parameter that several partitions have? */
bool kelp_tensor_shared(const struct kelp_plan *plan, uint32_t tensor);
/* What of the tensor, with the padding behind it, lies in the range of the flat vector; its first
 * element there, or count 0. */
struct kelp_slice_range kelp_tensor_in(const struct kelp_plan *plan, uint32_t tensor,
                                       struct kelp_slice_range range);

/* ---- sums along the tree ---- */

#define KELP_TREE_NODES_MAX 72 /* that leaves in a row need: two of each level */

/* Nodes [index 2^level, (index + 1) 2^level) of leaves; what has come so far, from `first` on. */
struct kelp_tree_sum {
    uint64_t next; /* leaf */
    uint32_t count;
    struct {
        uint32_t level;
        double value;
    } nodes[KELP_TREE_NODES_MAX]; /* maximal ones, left to right */
};

void kelp_tree_sum_begin(struct kelp_tree_sum *sum, uint64_t first_leaf);
/* The node of 2^level leaves that begins at `next`, which is a multiple of that. */
void kelp_tree_sum_add(struct kelp_tree_sum *sum, uint32_t level, double value);
/* Over all leaves, begun at leaf 0: missing ones on the right count as none. */
double kelp_tree_sum_total(const struct kelp_tree_sum *sum);
/* The largest node that begins at leaf `first` and ends before `end`: its level. */
uint32_t kelp_tree_level(uint64_t first, uint64_t end);

#endif

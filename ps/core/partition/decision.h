/*
 * What partition 0 decides about a training step once it has every partition's share
 * (common/training/decision_share.h): whether it is skipped, or by how much it is scaled. Pure:
 * it belongs to ps/core/partition/partition.h.
 *
 * Shares depend on gradients and weights alone, so the same share may come any number of times,
 * from anybody.
 */
#ifndef KELP_PS_CORE_PARTITION_DECISION_H
#define KELP_PS_CORE_PARTITION_DECISION_H

#include "common/training/control.h"

struct kelp_decision;

/* job and plan are borrowed for its life. Errors: KELP_ERR_NO_MEMORY, KELP_ERR_LIMIT (a partition
 * has more to tell than fits into a share). */
kelp_status kelp_decision_create(const struct kelp_job *job, const struct kelp_plan *plan,
                                 struct kelp_decision **ret_decision,
                                 struct kelp_error *reterr) KELP_MUST_USE;
void kelp_decision_destroy(struct kelp_decision *decision);

/* Another step: nothing of it is known. */
void kelp_decision_begin(struct kelp_decision *decision);
/* Errors: KELP_ERR_INVALID (no such partition, or not a share), KELP_ERR_MISMATCH (another one than
 * before). */
kelp_status kelp_decision_add(struct kelp_decision *decision, uint32_t partition,
                              const struct kelp_decision_share *share) KELP_MUST_USE;
/* True when all shares are there; *ret_skip: the step is to be skipped. Otherwise ret_values has
 * the kelp_step_decision_count() values. */
bool kelp_decision_made(const struct kelp_decision *decision, bool *ret_skip, double *ret_values);

#endif

/*
 * What partition 0 decides about a training step once it knows something of every partition's
 * gradient (DESIGN: "Decisions that need all partitions"): whether the step is left out because a
 * gradient is not finite. Pure, like ps/partition.h, whose part it is.
 *
 * A partition's contribution is a short list of numbers, its part: the first tells whether its
 * gradient is finite. Parts depend on the gradients alone, so the same part may come any number of
 * times, from anybody.
 */
#ifndef KELP_PS_DECISION_H
#define KELP_PS_DECISION_H

#include "common/control.h"

struct kelp_decision;

/* NULL: out of memory. */
struct kelp_decision *kelp_decision_create(uint32_t partition_count);
void kelp_decision_destroy(struct kelp_decision *decision);

/* Another step: nothing of it is known. */
void kelp_decision_begin(struct kelp_decision *decision);
/* Errors: KELP_ERR_INVALID (no such partition, not a part, or another one than before). */
kelp_status kelp_decision_add(struct kelp_decision *decision, uint32_t partition,
                              const struct kelp_step_part *part) KELP_MUST_USE;
/* True when all parts are there; *ret_skip: the step is to be left out. */
bool kelp_decision_made(const struct kelp_decision *decision, bool *ret_skip);

#endif

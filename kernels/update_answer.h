/*
 * What a shard computes with, as one number: optimizers and sums on fixed operands. Two builds with
 * different answers would make different weights of the same gradients.
 */
#ifndef KELP_KERNELS_UPDATE_ANSWER_H
#define KELP_KERNELS_UPDATE_ANSWER_H

#include <stdint.h>

/* XXH3-64 over the results. */
uint64_t kelp_update_answer(void);

#endif

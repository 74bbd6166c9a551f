/*
 * Numbers that name things uniquely: incarnations, nonces. From the operating system; never used
 * for anything that reaches the weights.
 */
#ifndef KELP_COMMON_BASE_RANDOM_ID_H
#define KELP_COMMON_BASE_RANDOM_ID_H

#include <stdint.h>

#include "common/base/status.h"

/* Never 0. Errors: KELP_ERR_IO. */
kelp_status kelp_random_id(uint64_t *ret_id, struct kelp_error *reterr) KELP_MUST_USE;

#endif

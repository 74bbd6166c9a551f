/*
 * SHA-256 for what must not be forged: which job and which library is meant. XXH3
 * (common/tensors/digest.h) tells apart what differs by accident.
 */
#ifndef KELP_COMMON_BASE_SHA256_H
#define KELP_COMMON_BASE_SHA256_H

#include "common/base/status.h"

#define KELP_SHA256_HEX_BYTES 65 /* 64 digits and NUL */

/* As sha256sum prints it. Errors: KELP_ERR_NO_MEMORY. */
kelp_status kelp_sha256(const void *bytes, size_t count, char ret_hex[KELP_SHA256_HEX_BYTES],
                        struct kelp_error *reterr) KELP_MUST_USE;

/* Is the text 64 hexadecimal digits in lower case? */
bool kelp_sha256_is(const char *text);

#endif

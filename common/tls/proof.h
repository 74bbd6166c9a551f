/*
 * How a coordinator shows shards that it is the one that was elected: it draws a secret when it
 * starts, its key in etcd holds the secret's digest, and its streams show the secret itself. Who
 * can read etcd, or heard the leader's other names, cannot make it.
 */
#ifndef KELP_COMMON_TLS_PROOF_H
#define KELP_COMMON_TLS_PROOF_H

#include "common/base/status.h"

#define KELP_PROOF_HEX 64 /* hexadecimal digits of a secret, and of a digest */

/* A new secret. Errors: KELP_ERR_IO. */
kelp_status kelp_proof_draw(char ret_secret[KELP_PROOF_HEX + 1],
                            struct kelp_error *reterr) KELP_MUST_USE;
/* SHA-256 of the text of a secret; of a longer text "". Errors: KELP_ERR_INTERNAL. */
kelp_status kelp_proof_digest(const char *secret, char ret_digest[KELP_PROOF_HEX + 1],
                              struct kelp_error *reterr) KELP_MUST_USE;

#endif

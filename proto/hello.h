/*
 * The hello that begins every stream: who speaks, for which job, with which version of Kelp. One
 * place fills it and one place checks it, for coordinators, shards, workers and the command.
 */
#ifndef KELP_PROTO_HELLO_H
#define KELP_PROTO_HELLO_H

#include <stdint.h>

#include "common/base/status.h"
#include "proto/kelp.pb-c.h"

/* One process of one job. Both texts are borrowed. */
struct kelp_hello {
    const char *job;
    uint64_t spec_digest; /* of the job's canonical text */
    const char *id;
    uint64_t incarnation; /* one start of one process */
};

/* Make the message of `ours`; it borrows the texts and is only to be encoded. */
void kelp_hello_write(const struct kelp_hello *ours, Kelp__V1__Hello *ret_hello);

/*
 * Is `theirs` (NULL: the message had none) of our job, its specification, our protocol and version?
 * Any thread. A hello without a version passes.
 * Errors: KELP_ERR_FORMAT (no hello), KELP_ERR_INVALID (the id is not the name of a process),
 * KELP_ERR_MISMATCH (something differs; the text names both sides).
 */
kelp_status kelp_hello_check(const Kelp__V1__Hello *theirs, const struct kelp_hello *ours,
                             struct kelp_error *reterr) KELP_MUST_USE;

#endif

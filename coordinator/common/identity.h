/*
 * Who this coordinator is and which job it serves: its hellos, and the check of others'.
 */
#ifndef KELP_COORDINATOR_COMMON_IDENTITY_H
#define KELP_COORDINATOR_COMMON_IDENTITY_H

#include "common/job/job.h"
#include "common/tls/proof.h"
#include "proto/kelp.pb-c.h"

struct kelp_identity {
    const char *job_name; /* borrowed */
    const char *id;       /* borrowed */
    uint64_t incarnation;
    char proof[KELP_PROOF_HEX + 1]; /* shown to shards only; its digest is in the leader's key */
    char proof_digest[KELP_PROOF_HEX + 1];
    /* From the specification; set once. */
    struct kelp_job_file *job_file; /* owned; NULL: no specification yet */
    const struct kelp_job *job;
    char *spec; /* its text; owned */
    uint64_t spec_digest;
};

/* Draw the proof. Errors: those of kelp_proof_draw(), kelp_proof_digest(). */
kelp_status kelp_identity_draw(struct kelp_identity *identity,
                               struct kelp_error *reterr) KELP_MUST_USE;
/* Set the job's specification. Errors: those of kelp_job_file_parse(), KELP_ERR_INVALID. */
kelp_status kelp_identity_set_spec(struct kelp_identity *identity, const char *text,
                                   size_t text_bytes, struct kelp_error *reterr) KELP_MUST_USE;
void kelp_identity_fini(struct kelp_identity *identity);

/* Our hello, borrowed from the identity. */
void kelp_identity_hello(const struct kelp_identity *identity, Kelp__V1__Hello *ret_hello);
/* Is their hello of our job? Errors: those of kelp_hello_check(). */
kelp_status kelp_identity_check(const struct kelp_identity *identity, const Kelp__V1__Hello *theirs,
                                struct kelp_error *reterr) KELP_MUST_USE;

#endif

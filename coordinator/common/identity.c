#include "coordinator/common/identity.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/hello.h"

static kelp_status parse(const struct kelp_identity *identity, struct kelp_job_file *file,
                         const char *text, size_t text_bytes, struct kelp_error *reterr)
{
    char name[KELP_JOB_NAME_MAX + 32];
    (void)snprintf(name, sizeof(name), "/kelp/%s/spec", identity->job_name);
    kelp_status status = kelp_job_file_parse(file, name, text, text_bytes, reterr);
    if (status == KELP_OK) {
        status = kelp_job_file_finish(file, reterr);
    }
    if (status == KELP_OK && strcmp(kelp_job_file_job(file)->name, identity->job_name) != 0) {
        status = kelp_fail(reterr, KELP_ERR_INVALID, "%s: name: is %s; this coordinator serves %s",
                           name, kelp_job_file_job(file)->name, identity->job_name);
    }
    return status;
}

kelp_status kelp_identity_draw(struct kelp_identity *identity, struct kelp_error *reterr)
{
    kelp_status status = kelp_proof_draw(identity->proof, reterr);
    return status == KELP_OK ? kelp_proof_digest(identity->proof, identity->proof_digest, reterr)
                             : status;
}

kelp_status kelp_identity_set_spec(struct kelp_identity *identity, const char *text,
                                   size_t text_bytes, struct kelp_error *reterr)
{
    struct kelp_job_file *file = kelp_job_file_create();
    char *copy = strndup(text, text_bytes);
    kelp_status status = !file || !copy
                             ? kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for the job")
                             : parse(identity, file, text, text_bytes, reterr);
    if (status != KELP_OK) {
        kelp_job_file_destroy(file);
        free(copy);
        return status;
    }
    identity->job_file = file;
    identity->job = kelp_job_file_job(file);
    identity->spec = copy;
    identity->spec_digest = kelp_job_file_digest(file);
    return KELP_OK;
}

void kelp_identity_fini(struct kelp_identity *identity)
{
    kelp_job_file_destroy(identity->job_file);
    free(identity->spec);
    *identity = (struct kelp_identity){.job_file = NULL};
}

static struct kelp_hello ours(const struct kelp_identity *identity)
{
    return (struct kelp_hello){.job = identity->job_name,
                               .spec_digest = identity->spec_digest,
                               .id = identity->id,
                               .incarnation = identity->incarnation};
}

void kelp_identity_hello(const struct kelp_identity *identity, Kelp__V1__Hello *ret_hello)
{
    const struct kelp_hello hello = ours(identity);
    kelp_hello_write(&hello, ret_hello);
}

kelp_status kelp_identity_check(const struct kelp_identity *identity, const Kelp__V1__Hello *theirs,
                                struct kelp_error *reterr)
{
    const struct kelp_hello hello = ours(identity);
    return kelp_hello_check(theirs, &hello, reterr);
}

#include "coordinator/common/identity.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/process_name.h"
#include "common/program/version.h"

#define PROTOCOL 1

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

void kelp_identity_hello(const struct kelp_identity *identity, Kelp__V1__Hello *ret_hello)
{
    kelp__v1__hello__init(ret_hello);
    ret_hello->job = (char *)identity->job_name; /* only read by the encoder */
    ret_hello->spec_digest = identity->spec_digest;
    ret_hello->id = (char *)identity->id; /* only read by the encoder */
    ret_hello->incarnation = identity->incarnation;
    ret_hello->protocol = PROTOCOL;
    ret_hello->version = (char *)(uintptr_t)kelp_version(); /* likewise */
}

kelp_status kelp_identity_check(const struct kelp_identity *identity, const Kelp__V1__Hello *hello,
                                struct kelp_error *reterr)
{
    if (!hello) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "the first message carries no hello");
    }
    if (hello->protocol != PROTOCOL) {
        return kelp_fail(reterr, KELP_ERR_UNSUPPORTED, "speaks protocol %u; this is %d",
                         hello->protocol, PROTOCOL);
    }
    if (!kelp_process_name_valid(hello->id)) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "id is not 1 to %d letters, digits, '-', '_' or '.'",
                         KELP_PROCESS_NAME_MAX);
    }
    if (strcmp(hello->job, identity->job_name) != 0) {
        return kelp_fail(reterr, KELP_ERR_MISMATCH, "%s belongs to job %.63s, this is job %s",
                         hello->id, hello->job, identity->job_name);
    }
    if (hello->spec_digest != identity->spec_digest) {
        return kelp_fail(reterr, KELP_ERR_MISMATCH,
                         "%s has another specification of job %s: digest %016" PRIx64
                         ", here %016" PRIx64,
                         hello->id, identity->job_name, hello->spec_digest, identity->spec_digest);
    }
    if (hello->version[0] != '\0' && strcmp(hello->version, kelp_version()) != 0) {
        return kelp_fail(reterr, KELP_ERR_MISMATCH,
                         "%s is of version %.31s, and %s of version %s: start the same version of "
                         "Kelp for all processes of a job",
                         hello->id, hello->version, identity->id, kelp_version());
    }
    return KELP_OK;
}

#include "proto/hello.h"

#include <inttypes.h>
#include <string.h>

#include "common/base/process_name.h"
#include "common/program/options/version.h"

#define PROTOCOL 1

void kelp_hello_write(const struct kelp_hello *ours, Kelp__V1__Hello *ret_hello)
{
    kelp__v1__hello__init(ret_hello);
    /* The encoder only reads the texts. */
    ret_hello->job = (char *)(uintptr_t)ours->job;
    ret_hello->spec_digest = ours->spec_digest;
    ret_hello->id = (char *)(uintptr_t)ours->id;
    ret_hello->incarnation = ours->incarnation;
    ret_hello->protocol = PROTOCOL;
    ret_hello->version = (char *)(uintptr_t)kelp_version();
    ret_hello->commit = (char *)(uintptr_t)kelp_version_commit();
}

kelp_status kelp_hello_check(const Kelp__V1__Hello *theirs, const struct kelp_hello *ours,
                             struct kelp_error *reterr)
{
    if (!theirs) {
        return kelp_fail(reterr, KELP_ERR_FORMAT,
                         "%s: the first message of a stream must carry a hello", ours->id);
    }
    if (!kelp_process_name_valid(theirs->id)) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "id is not 1 to %d letters, digits, '-', '_' or '.'",
                         KELP_PROCESS_NAME_MAX);
    }
    if (theirs->protocol != PROTOCOL) {
        return kelp_fail(reterr, KELP_ERR_MISMATCH,
                         "%s speaks protocol %u, but %s speaks protocol %d", theirs->id,
                         theirs->protocol, ours->id, PROTOCOL);
    }
    if (strcmp(theirs->job, ours->job) != 0) {
        return kelp_fail(reterr, KELP_ERR_MISMATCH, "%s belongs to job %.63s, but %s to job %s",
                         theirs->id, theirs->job, ours->id, ours->job);
    }
    if (theirs->spec_digest != ours->spec_digest) {
        return kelp_fail(reterr, KELP_ERR_MISMATCH,
                         "%s has another text of job %s: digest %016" PRIx64 ", and %s %016" PRIx64,
                         theirs->id, ours->job, theirs->spec_digest, ours->id, ours->spec_digest);
    }
    if (theirs->version[0] != '\0' && strcmp(theirs->version, kelp_version()) != 0) {
        return kelp_fail(reterr, KELP_ERR_MISMATCH,
                         "%s has version %.31s, but %s has version %s: start the same version of "
                         "Kelp for all processes of a job",
                         theirs->id, theirs->version, ours->id, kelp_version());
    }
    return KELP_OK;
}

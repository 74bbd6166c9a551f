#include "common/program/portable.h"

#include "common/process/process_again.h"

/* The only variable of OpenBLAS that affects the bits of a product. */
static const char *const pins[] = {"OPENBLAS_CORETYPE=Haswell", NULL};

bool kelp_portable_needs_again(const struct kelp_job *job)
{
    return job->cluster.compute == KELP_COMPUTE_PORTABLE && !kelp_process_has_variables(pins);
}

kelp_status kelp_portable_again(struct kelp_error *reterr)
{
    return kelp_process_again(pins, reterr);
}

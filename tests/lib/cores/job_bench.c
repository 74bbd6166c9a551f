#include "tests/lib/cores/job_bench.h"

#include <check.h>
#include <string.h>

struct job_bench job_bench;

/* Sets the two kinds that every job must name. */
void job_setup(void)
{
    job_bench.file = kelp_job_file_create();
    ck_assert_ptr_nonnull(job_bench.file);
    ck_assert_int_eq(
        kelp_job_file_set(job_bench.file, "model.kind", "dlinear", KELP_ORIGIN_FLAG, NULL),
        KELP_OK);
    ck_assert_int_eq(
        kelp_job_file_set(job_bench.file, "data.kind", "synthetic", KELP_ORIGIN_FLAG, NULL),
        KELP_OK);
}

void job_teardown(void)
{
    kelp_job_file_destroy(job_bench.file);
}

kelp_status job_parse(const char *text)
{
    kelp_status status =
        kelp_job_file_parse(job_bench.file, "job.yaml", text, strlen(text), &job_bench.error);

    return status == KELP_OK ? kelp_job_file_finish(job_bench.file, &job_bench.error) : status;
}

char *job_print(bool with_origin)
{
    char *text;

    ck_assert_int_eq(kelp_job_file_print(job_bench.file, with_origin, &text, &job_bench.error),
                     KELP_OK);
    return text;
}

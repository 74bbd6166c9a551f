/*
 * train.precision on the emulated GPU: the same digest for any number of workers, and another one
 * for each precision; a device that computes float32 alone says so.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/commands/model_jobs.h"
#include "tests/lib/commands/run_train.h"
#include "tests/lib/suite.h"

#define RUN_TIMEOUT_S (KELP_TEST_HANG_MS / 1000)

/* From now on, in this test, the programs with that device as their GPU. */
static void use_programs(const char *device)
{
    char bin[512];
    const char *programs = getenv("KELP_TEST_PROGRAMS");
    ck_assert_msg(programs != NULL, "KELP_TEST_PROGRAMS is not set: run this test through ctest");
    (void)snprintf(bin, sizeof(bin), "%s/%s/bin", programs, device);
    ck_assert_int_eq(setenv("KELP_BIN", bin, 1), 0);
    ck_assert_int_eq(setenv("KELP_CLUSTER_DEVICE", "cuda", 1), 0);
}

static bool has_programs(const char *device)
{
    char path[512];
    (void)snprintf(path, sizeof(path), "%s/%s/bin/kelp", getenv("KELP_TEST_PROGRAMS"), device);
    return access(path, X_OK) == 0;
}

static void train(const char *precision, const char *workers, char digest[33])
{
    struct kelp_run run;
    char setting[64];
    (void)snprintf(setting, sizeof(setting), "train.precision=%s", precision);
    const char *args[] = {"--workers", workers, "--set", setting, NULL};
    kelp_run_prepare(&run);
    kelp_run_train(&run, model_job_write(run.folder, model_job_find("convnet")), args,
                   RUN_TIMEOUT_S);
    ck_assert_msg(run.exit_code == 0, "%s: exit %d; output:\n%s", precision, run.exit_code,
                  run.output);
    kelp_run_expect_digest(&run, precision, digest);
    kelp_run_fini(&run);
}

KELP_CASE("precision", .timeout_s = KELP_TEST_HANG_S)

KELP_TEST(each_has_one_digest)
{
    static const char *const precisions[] = {"float32", "tf32", "bfloat16"};
    char digests[KELP_ARRAY_COUNT(precisions)][33] = {""};
    use_programs("emulated");
    if (!has_programs("emulated")) {
        return; /* a build under the thread sanitizer */
    }
    for (size_t i = 0; i < KELP_ARRAY_COUNT(precisions); i++) {
        train(precisions[i], "1", digests[i]);
        train(precisions[i], "2", digests[i]);
        for (size_t before = 0; before < i; before++) {
            ck_assert_str_ne(digests[before], digests[i]);
        }
    }
}

KELP_TEST(a_device_that_cannot)
{
    struct kelp_run run;
    use_programs("fake");
    kelp_run_prepare(&run);
    kelp_run_train(&run, model_job_write(run.folder, model_job_find("convnet")),
                   (const char *[]){"--set", "train.precision=tf32", NULL}, RUN_TIMEOUT_S);
    ck_assert_int_eq(run.exit_code, 2);
    ck_assert_msg(strstr(run.output, "train.precision: this device computes only float32\n"), "%s",
                  run.output);
    kelp_run_fini(&run);
}

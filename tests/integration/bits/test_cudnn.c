/*
 * cluster.cudnn on the emulated GPU, with a double of cuDNN (tests/lib/cuda/emulated_cudnn.h): the
 * same digest for any number of workers; where it is not there, a job that insists on it does not
 * start, and others compute without.
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
static bool use_programs(const char *device)
{
    char bin[512], kelp[600];
    const char *programs = getenv("KELP_TEST_PROGRAMS");
    ck_assert_msg(programs != NULL, "KELP_TEST_PROGRAMS is not set: run this test through ctest");
    (void)snprintf(bin, sizeof(bin), "%s/%s/bin", programs, device);
    (void)snprintf(kelp, sizeof(kelp), "%s/kelp", bin);
    ck_assert_int_eq(setenv("KELP_BIN", bin, 1), 0);
    ck_assert_int_eq(setenv("KELP_CLUSTER_DEVICE", "cuda", 1), 0);
    return access(kelp, X_OK) == 0; /* no emulated device under the thread sanitizer */
}

static void run_convnet(struct kelp_run *run, const char *cudnn, const char *workers)
{
    char setting[64];
    (void)snprintf(setting, sizeof(setting), "cluster.cudnn=%s", cudnn);
    kelp_run_prepare(run);
    kelp_run_train(run, model_job_write(run->folder, model_job_find("convnet")),
                   (const char *[]){"--workers", workers, "--set", setting, NULL}, RUN_TIMEOUT_S);
}

static void train(const char *cudnn, const char *workers, char digest[33])
{
    struct kelp_run run;
    run_convnet(&run, cudnn, workers);
    ck_assert_msg(run.exit_code == 0, "%s: exit %d; output:\n%s", cudnn, run.exit_code, run.output);
    kelp_run_expect_digest(&run, cudnn, digest);
    kelp_run_fini(&run);
}

static void refused(const char *text)
{
    struct kelp_run run;
    run_convnet(&run, "always", "1");
    ck_assert_int_eq(run.exit_code, 2);
    ck_assert_msg(strstr(run.output, text), "%s", run.output);
    kelp_run_fini(&run);
}

KELP_CASE("cudnn", .timeout_s = KELP_TEST_HANG_S)

KELP_TEST(one_digest)
{
    char with[33] = "", without[33] = "";
    if (!use_programs("emulated")) {
        return;
    }
    ck_assert_int_eq(setenv("EMULATED_CUDNN", "true", 1), 0);
    train("always", "1", with);
    train("auto", "2", with);
    train("never", "1", without);
    ck_assert_int_eq(unsetenv("EMULATED_CUDNN"), 0);
    train("auto", "2", without);
    ck_assert_str_ne(with, without); /* its sums have another order: it was used */
}

KELP_TEST(a_machine_without_it)
{
    if (use_programs("emulated")) {
        refused("cluster.cudnn: always: the emulated device has no cuDNN\n");
    }
}

KELP_TEST(a_device_that_knows_of_none)
{
    ck_assert(use_programs("fake"));
    refused("cluster.cudnn: always: this device has no cuDNN\n");
}

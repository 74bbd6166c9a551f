/*
 * Every model trains to the same bits for any number of workers and shards, and when a worker is
 * killed on the way. Three runs of each model.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/commands/model_jobs.h"
#include "tests/lib/commands/run_train.h"
#include "tests/lib/suite.h"

#define RUN_TIMEOUT_S (KELP_TEST_HANG_MS / 1000)
#define DIGEST_SIZE   33

static void run_model(int index, const char *workers, const char *shards, const char *const *more,
                      char digest[DIGEST_SIZE])
{
    struct kelp_run run;
    const char *args[KELP_TEST_ARGS_MAX] = {"--workers", workers, "--shards", shards};
    for (size_t i = 0; more != NULL && more[i] != NULL; i++) {
        args[4 + i] = more[i];
    }
    kelp_run_prepare(&run);
    kelp_run_train(&run, model_job_write(run.folder, index), args, RUN_TIMEOUT_S);
    ck_assert_msg(run.exit_code == 0, "%s: exit %d; output:\n%s", model_job_name(index),
                  run.exit_code, run.output);
    if (more != NULL) {
        ck_assert_msg(strstr(run.output, "killed by signal 9") != NULL,
                      "no worker was killed; output:\n%s", run.output);
    }
    (void)snprintf(digest, DIGEST_SIZE, "%s", kelp_run_digest(&run));
    kelp_run_fini(&run);
}

KELP_CASE("models", .timeout_s = 2 * KELP_TEST_HANG_S)

KELP_LOOP_TEST(same_bits, 0, MODEL_JOB_COUNT)
{
    const char *small = getenv("KELP_SMALL_MODELS"); /* an emulated GPU is slow */
    if (small && strcmp(model_job_name(_i), "resnet18") == 0) {
        printf("%-16s skipped: KELP_SMALL_MODELS is set\n", model_job_name(_i));
        return;
    }
    static const char *const kill[] = {"--no-restart", "--fault", "worker-1:kill-pushing@step=3",
                                       NULL};
    char alone[DIGEST_SIZE], many[DIGEST_SIZE], killed[DIGEST_SIZE];
    run_model(_i, "1", "1", NULL, alone);
    run_model(_i, "3", "3", NULL, many);
    run_model(_i, "2", "2", kill, killed);
    printf("%-16s %s\n", model_job_name(_i), alone);
    (void)fflush(stdout);
    ck_assert_str_eq(many, alone);
    ck_assert_str_eq(killed, alone);
}

/*
 * Every model trains on the fake device (tests/lib/fake/fake_device.h) to the digest of the CPU,
 * whatever the device does when, and whether it records steps or not: with one worker, and with two
 * and four of which one is killed. So does a job of which one worker loses its GPU for good.
 *
 * KELP_FAKE_SEEDS=N: each model with seeds 1 to N, of each with one, two and four workers, instead
 * of one seed with one worker and one with several.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/files.h"
#include "tests/lib/commands/model_jobs.h"
#include "tests/lib/commands/run_train.h"
#include "tests/lib/suite.h"

#define RUN_TIMEOUT_S (KELP_TEST_HANG_MS / 1000)
#define LOG_MAX       (8u << 20)
#define SEEDS_MAX     100000

/* 0: a few, which differ from model to model, or the variable is no number of them. */
static unsigned seed_count(void)
{
    const char *text = getenv("KELP_FAKE_SEEDS");
    const unsigned long count = text ? strtoul(text, NULL, 10) : 0;
    return count <= SEEDS_MAX ? (unsigned)count : 0;
}

/* From now on, in this test, the programs that have the fake device as their GPU. */
static void use_fake_device(void)
{
    const char *programs = getenv("KELP_TEST_PROGRAMS");
    char bin[512];
    ck_assert_msg(programs != NULL, "KELP_TEST_PROGRAMS is not set: run this test through ctest");
    ck_assert_int_lt(snprintf(bin, sizeof(bin), "%s/fake/bin", programs), (int)sizeof(bin));
    ck_assert_int_eq(setenv("KELP_BIN", bin, 1), 0);
    ck_assert_int_eq(setenv("KELP_CLUSTER_DEVICE", "cuda", 1), 0);
}

/* What worker 0 says that it computes on. */
static bool computes_on(const struct kelp_run *run, const char *kind)
{
    char path[400];
    char *text = NULL;
    size_t bytes = 0;
    (void)snprintf(path, sizeof(path), "%s/logs/worker-0.log", run->run_folder);
    ck_assert_int_eq(kelp_files_read(path, LOG_MAX, &text, &bytes, NULL), KELP_OK);
    const bool found = strstr(text, kind) != NULL;
    free(text);
    return found;
}

static void train(int model, const char *what, const char *workers, const char *compute,
                  const char *const *more, char digest[33])
{
    struct kelp_run run;
    char name[64];
    const char *args[KELP_TEST_ARGS_MAX] = {"--workers", workers};
    for (size_t i = 0; more && more[i]; i++) {
        args[2 + i] = more[i];
    }
    kelp_run_prepare(&run);
    kelp_run_train(&run, model_job_write(run.folder, model), args, RUN_TIMEOUT_S);
    ck_assert_msg(run.exit_code == 0, "%s, %s: exit %d; output:\n%s", model_job_name(model), what,
                  run.exit_code, run.output);
    ck_assert_msg(!more || strstr(run.output, "killed by signal 9") != NULL,
                  "no worker was killed; output:\n%s", run.output);
    ck_assert_msg(computes_on(&run, compute), "%s, %s: not on %s", model_job_name(model), what,
                  compute);
    (void)snprintf(name, sizeof(name), "%s, %s", model_job_name(model), what);
    kelp_run_expect_digest(&run, name, digest);
    kelp_run_fini(&run);
}

static void train_fake(int model, unsigned seed, const char *workers, const char *const *more,
                       char digest[33])
{
    char what[80], compute[80], text[16];
    (void)snprintf(text, sizeof(text), "%u", seed);
    const bool recordings = seed % 3 != 0, last = seed % 4 != 3;
    (void)snprintf(what, sizeof(what), "fake, %s workers, seed %u%s%s", workers, seed,
                   recordings ? "" : ", without recordings", last ? "" : ", channels first");
    ck_assert_int_eq(setenv("FAKE_GPU_RECORDINGS", recordings ? "1" : "0", 1), 0);
    ck_assert_int_eq(setenv("FAKE_GPU_CHANNELS_LAST", last ? "1" : "0", 1), 0);
    ck_assert_int_eq(setenv("FAKE_GPU_SEED", text, 1), 0);
    (void)snprintf(compute, sizeof(compute), "compute=\"fake seed=%u recordings=%d ", seed,
                   recordings);
    train(model, what, workers, compute, more, digest);
}

/* With --no-restart the others take the lanes of the worker that is gone. */
static void train_several(int model, unsigned seed, const char *workers, char digest[33])
{
    static const char *const kill[] = {"--no-restart", "--fault", "worker-1:kill-pushing@step=3",
                                       NULL};
    train_fake(model, seed, workers, kill, digest);
}

KELP_CASE("fake", .timeout_s = 30 * KELP_TEST_HANG_S)

/* A test for each model and seed: Check cannot report one that takes more than half an hour. */
KELP_LOOP_TEST(every_number_of_workers, 0,
               MODEL_JOB_COUNT *(seed_count() > 0 ? (int)seed_count() : 1))
{
    ck_assert_msg(!getenv("KELP_FAKE_SEEDS") || seed_count() > 0,
                  "KELP_FAKE_SEEDS=%s: give a number from 1 to %d", getenv("KELP_FAKE_SEEDS"),
                  SEEDS_MAX);
    const int model = _i % MODEL_JOB_COUNT;
    const unsigned seed = (unsigned)(_i / MODEL_JOB_COUNT) + 1;
    char digest[33] = "";
    train(model, "cpu", "1", "compute=\"cpu ", NULL, digest);
    use_fake_device();
    if (seed_count() == 0) { /* every third seed has no recordings */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* several do what one does */
        train_fake(model, (unsigned)model + 1, "1", NULL, digest);
#endif
        train_several(model, (unsigned)model + 11, model % 2 == 0 ? "2" : "4", digest);
        return;
    }
    train_fake(model, seed, "1", NULL, digest);
    train_several(model, seed, "2", digest);
    train_several(model, seed, "4", digest);
}

/* The worker's GPU fails, and the worker that is started in its place finds none. */
KELP_TEST(one_of_several_loses_its_gpu)
{
    static const char *const args[] = {"--workers", "2", NULL};
    static const char *const text = "name: lost\n"
                                    "model: {kind: dlinear}\n"
                                    "data: {kind: synthetic}\n"
                                    "train: {epochs: 40, batch_size: 64, evaluate: false}\n"
                                    "cluster: {lanes: 2}\n";
    char lost[500], digest[33] = "";
    for (int fake = 0; fake < 2; fake++) {
        struct kelp_run run;
        kelp_run_prepare(&run);
        if (fake) {
            use_fake_device();
            (void)snprintf(lost, sizeof(lost), "worker-1 500 %s/lost", run.folder);
            ck_assert_int_eq(setenv("FAKE_GPU_LOST", lost, 1), 0);
        }
        kelp_run_train(&run, kelp_test_write(run.folder, "job.yaml", text), args, RUN_TIMEOUT_S);
        ck_assert_msg(run.exit_code == 0, "exit %d; output:\n%s", run.exit_code, run.output);
        ck_assert_msg(!fake || strstr(run.output, "worker-1 exited with status 5; it is started "
                                                  "again"),
                      "it was not lost; output:\n%s", run.output);
        ck_assert_msg(!fake ||
                          strstr(run.output, "worker-1 exited with status 2; it is not restarted: "
                                             "cluster.device: cuda: GPU 0: this machine has "
                                             "none"),
                      "it does not stay away; output:\n%s", run.output);
        kelp_run_expect_digest(&run, "a lost GPU", digest);
        kelp_run_fini(&run);
    }
}

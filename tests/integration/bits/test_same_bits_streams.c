/*
 * Jobs whose workers compute several lanes beside each other on the fake device, in nodes of
 * several sizes, some without samples, have the digest of the CPU. So do jobs whose workers share a
 * GPU, and one of them finds too little of its memory left.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/commands/model_jobs.h"
#include "tests/lib/commands/run_train.h"
#include "tests/lib/suite.h"

#define RUN_TIMEOUT_S (KELP_TEST_HANG_MS / 1000)

static void use_fake_device(unsigned seed)
{
    const char *programs = getenv("KELP_TEST_PROGRAMS");
    char text[512];
    ck_assert_msg(programs != NULL, "KELP_TEST_PROGRAMS is not set: run this test through ctest");
    ck_assert_int_lt(snprintf(text, sizeof(text), "%s/fake/bin", programs), (int)sizeof(text));
    ck_assert_int_eq(setenv("KELP_BIN", text, 1), 0);
    ck_assert_int_eq(setenv("KELP_CLUSTER_DEVICE", "cuda", 1), 0);
    (void)snprintf(text, sizeof(text), "%u", seed);
    ck_assert_int_eq(setenv("FAKE_GPU_SEED", text, 1), 0);
}

static void train(int model, const char *streams, const char *workers, char digest[33])
{
    char name[80];
    struct kelp_run run;
    const char *args[KELP_TEST_ARGS_MAX] = {"--workers", workers};
    const bool few = model == model_job_find("resnet18"); /* batch norms need two samples */
    ck_assert_int_eq(setenv("KELP_CLUSTER_LANES", few ? "4" : "16", 1), 0);
    ck_assert_int_eq(setenv("KELP_CLUSTER_STREAMS", streams, 1), 0);
    kelp_run_prepare(&run);
    kelp_run_train(&run, model_job_write(run.folder, model), args, RUN_TIMEOUT_S);
    (void)snprintf(name, sizeof(name), "%s, %s streams, %s workers", model_job_name(model), streams,
                   workers);
    ck_assert_msg(run.exit_code == 0, "%s: exit %d; output:\n%s", name, run.exit_code, run.output);
    kelp_run_expect_digest(&run, name, digest);
    kelp_run_fini(&run);
}

/* With gradients in pieces, dropout, and weights that arrive and gradients that leave while lanes
 * are computed. */
static const char *const models[] = {"nlinear", "deepfm", "resnet18"};

KELP_CASE("streams", .timeout_s = 4 * KELP_TEST_HANG_S)

KELP_LOOP_TEST(any_number_of_streams, 0, KELP_ARRAY_COUNT(models))
{
    static const struct {
        const char *streams, *workers;
    } runs[] = {
        {"1", "3"},
        {"3", "3"},
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        {"2", "1"},
        {"3", "1"},
#endif
    };
    const int model = model_job_find(models[_i]);
    char digest[33] = "";
    train(model, "0", "1", digest);
    for (unsigned i = 0; i < KELP_ARRAY_COUNT(runs); i++) {
        use_fake_device(1 + i);
        train(model, runs[i].streams, runs[i].workers, digest);
    }
}

/* It ends, alone: started again, it finds no more. The other one hangs in its second step until
 * then, so that the job is not over before. */
KELP_TEST(a_shared_gpu_with_too_little_memory)
{
    static const char *const args[] = {"--workers", "1:2", "--fault", "worker-0:hang@step=2", NULL};
    const int model = model_job_find("dlinear");
    char digest[33] = "";
    struct kelp_run run;
    train(model, "0", "1", digest);
    use_fake_device(1);
    ck_assert_int_eq(setenv("FAKE_GPU_LEFT", "worker-1 5000", 1), 0);
    kelp_run_prepare(&run);
    kelp_run_start(&run, model_job_write(run.folder, model), args);
    kelp_test_command_await(&run.command, "worker-1 exited with status 5; it is started again");
    kelp_test_command_await(&run.command,
                            "worker-1 exited with status 5; it is not restarted: cannot "
                            "allocate ");
    (void)kelp_test_command_signal(&run.command, "kelp-worker", "worker-0", SIGKILL);
    kelp_run_finish(&run, 0);
    kelp_run_expect_digest(&run, "a GPU with too little memory", digest);
    kelp_run_fini(&run);
}

static void predict(struct kelp_run *run, const char *out, const char *workers)
{
    struct kelp_test_command command = {.exit_code = 0};
    kelp_test_command_run(
        &command, run->folder,
        (const char *[]){"predict", "run", "--out", out, "--workers", workers, NULL},
        KELP_TEST_HANG_MS);
    ck_assert_msg(command.exit_code == 0, "%s: exit %d: %s", out, command.exit_code, command.err);
    kelp_test_command_fini(&command);
}

/* Lanes of several blocks, of which the next is computed while one is read. */
KELP_TEST(predictions_in_blocks)
{
    struct kelp_run run;
    kelp_run_prepare_job(&run, "name: blocks\nmodel: {kind: mlp, hidden: [9]}\n"
                               "data: {kind: synthetic, rows: 4700, seq_len: 12, pred_len: 4, "
                               "split: [200, 100, 4300]}\n"
                               "train: {epochs: 1, batch_size: 32, evaluate: false}\n"
                               "cluster: {lanes: 4}\n");
    kelp_run_start(&run, "job.yaml", NULL);
    kelp_run_finish(&run, 0);
    predict(&run, "cpu.csv", "2");
    size_t expected_bytes = 0, bytes = 0;
    char *expected = kelp_test_read(run.folder, "cpu.csv", &expected_bytes);
    ck_assert_uint_gt(expected_bytes, 4000 * 8);
    for (unsigned seed = 0; seed < 4; seed++) {
        use_fake_device(seed);
        predict(&run, "gpu.csv", seed % 2 == 0 ? "1" : "3");
        char *text = kelp_test_read(run.folder, "gpu.csv", &bytes);
        ck_assert_msg(bytes == expected_bytes && memcmp(text, expected, bytes) == 0,
                      "seed %u: other predictions", seed);
        free(text);
    }
    free(expected);
    kelp_run_fini(&run);
}

/*
 * Workers that share a GPU, whose memory is too little for them: `kelp predict`, `kelp evaluate`
 * and `kelp node` say so in the one line of `kelp train`, before anything starts. A worker that
 * finds too little left, since others have taken it, says that with the figures, and ends alone.
 * The commands leave the GPU before they start workers. On the emulated GPU.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/commands/run_command.h"
#include "tests/lib/etcd/etcd_fixture.h"
#include "tests/lib/suite.h"

static const char job_text[] =
    "name: shared\nmodel: {kind: mlp, hidden: [16]}\n"
    "data: {kind: synthetic, seq_len: 24, pred_len: 6, split: [96, 40, 40]}\n"
    "train: {epochs: 1, batch_size: 32}\n"
    "cluster: {lanes: 4, workers: 1}\n"
    "failure: {restart_backoff: 10ms}\n";

static struct kelp_test_folder folder;
static struct etcd_fixture etcd;
static struct kelp_test_command command;

static void setup(void)
{
    etcd_fixture_require();
    etcd_fixture_start(&etcd);
    kelp_test_folder_init(&folder);
    ck_assert_int_eq(setenv("XDG_CACHE_HOME", folder.path, 1), 0);
    (void)kelp_test_write(folder.path, "job.yaml", job_text);
    memset(&command, 0, sizeof(command));
}

static void teardown(void)
{
    kelp_test_command_fini(&command);
    kelp_test_folder_fini(&folder);
    etcd_fixture_stop(&etcd);
}

static void run(const char *const *args)
{
    kelp_test_command_fini(&command);
    memset(&command, 0, sizeof(command));
    kelp_test_command_run(&command, folder.path, args, KELP_TEST_HANG_MS);
}

static void runs(const char *const *args)
{
    run(args);
    ck_assert_msg(command.exit_code == 0, "exit %d: %s", command.exit_code, command.err);
}

/* From now on there is one GPU, with enough memory for one worker. False: a build without it. */
static bool use_the_emulated_gpu(void)
{
    const char *programs = getenv("KELP_TEST_PROGRAMS");
    char kelp[1200];
    ck_assert_msg(programs != NULL, "KELP_TEST_PROGRAMS is not set: run this test through ctest");
    (void)snprintf(kelp, sizeof(kelp), "%s/emulated/bin", programs);
    ck_assert_int_eq(setenv("KELP_BIN", kelp, 1), 0);
    ck_assert_int_eq(setenv("KELP_CLUSTER_DEVICE", "cuda", 1), 0);
    ck_assert_int_eq(setenv("CUDA_VISIBLE_DEVICES", "0", 1), 0);
    ck_assert_int_eq(setenv("KELP_EMULATED_MEMORY", "734003200", 1), 0); /* 700 MiB */
    return access(kelp, X_OK) == 0;
}

/* By one line, with nothing started. */
static void refused(const char *const *args, const char *takes)
{
    char line[200];
    run(args);
    (void)snprintf(line, sizeof(line),
                   "kelp: 3 workers share a GPU, and each takes %s GiB of its GPU's memory", takes);
    ck_assert_msg(command.exit_code == 2, "exit %d: %s", command.exit_code, command.err);
    ck_assert_msg(strstr(command.err, line) != NULL, "%s", command.err);
    ck_assert_msg(strstr(command.err, "that has 0.68 GiB; take fewer workers, more GPUs, ") != NULL,
                  "%s", command.err);
}

KELP_CASE("shared_gpu", .setup = setup, .teardown = teardown, .timeout_s = KELP_TEST_HANG_S)

KELP_TEST(inference)
{
    runs((const char *[]){"train", "job.yaml", "--run", "run", NULL});
    if (!use_the_emulated_gpu()) {
        return;
    }
    refused((const char *[]){"predict", "run", "--out", "p.csv", "--run", "other", "--workers", "3",
                             NULL},
            "0.63");
    refused((const char *[]){"evaluate", "run", "--run", "other", "--workers", "3", NULL}, "0.63");
    char path[400];
    (void)snprintf(path, sizeof(path), "%s/other", folder.path);
    ck_assert_int_ne(access(path, F_OK), 0);
    runs((const char *[]){"evaluate", "run", "--run", "other", "--workers", "1", NULL});
}

/* The host knows how many it may start, and kelp submit does not. */
KELP_TEST(node)
{
    if (!use_the_emulated_gpu()) {
        return;
    }
    runs((const char *[]){"submit", "job.yaml", "--etcd", etcd.url, "--run", "run", NULL});
    refused((const char *[]){"node", "--etcd", etcd.url, "--job", "shared", "--host", "a",
                             "--shards", "1", "--workers", "0:3", "--coordinator", NULL},
            "0.66");
    runs((const char *[]){"node", "--etcd", etcd.url, "--job", "shared", "--host", "a", "--shards",
                          "1", "--workers", "1", "--coordinator", NULL});
}

/* The first process is the command, which has left the GPU before others come. */
static void expect_it_left(void)
{
    char path[400], line[100];
    int first = 0, pid = 0, entered = 0, lines = 0;
    (void)snprintf(path, sizeof(path), "%s/contexts", folder.path);
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    for (bool there = false; fgets(line, sizeof(line), file); lines++) {
        pid = (int)strtol(line, NULL, 10);
        first = lines == 0 ? pid : first;
        ck_assert_msg(pid == first || !there, "another process meets it: %s", line);
        there = pid == first ? strstr(line, "enters") != NULL : there;
        entered += pid != first;
    }
    (void)fclose(file);
    ck_assert_int_gt(entered, 0);
    ck_assert_int_eq(unlink(path), 0);
}

/* A command that stays beside its workers keeps nothing of their GPU's memory. */
KELP_TEST(commands_leave_the_gpu)
{
    if (!use_the_emulated_gpu()) {
        return;
    }
    char path[400];
    (void)snprintf(path, sizeof(path), "%s/contexts", folder.path);
    ck_assert_int_eq(setenv("EMULATED_CONTEXTS", path, 1), 0);
    runs((const char *[]){"train", "job.yaml", "--run", "run", NULL});
    expect_it_left();
    runs((const char *[]){"evaluate", "run", "--run", "other", NULL});
    expect_it_left();
    runs((const char *[]){"submit", "job.yaml", "--etcd", etcd.url, "--run", "third", NULL});
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(setenv("KELP_EMULATED_MEMORY", "0", 1), 0); /* enough for any */
    runs((const char *[]){"node", "--etcd", etcd.url, "--job", "shared", "--host", "a", "--shards",
                          "1", "--workers", "2", "--coordinator", NULL});
    expect_it_left();
}

/* Its log ends with the line, and the command shows it. */
KELP_TEST(others_have_taken_it)
{
    if (!use_the_emulated_gpu()) {
        return;
    }
    ck_assert_int_eq(setenv("EMULATED_MEMORY_FREE", "83886080", 1), 0); /* 80 MiB, less a bit */
    run((const char *[]){"train", "job.yaml", "--run", "run", "--workers", "1", NULL});
    ck_assert_msg(command.exit_code != 0, "it trained: %s", command.out);
    ck_assert_msg(strstr(command.err, "a worker takes 0.66 GiB of its GPU's memory (weights 0.00, "
                                      "gradient 0.00, activations 0.00, CUDA 0.66), 0.08 of them "
                                      "still, and 0.08 are free; give it a GPU that others leave "
                                      "alone, or fewer workers to each") != NULL,
                  "%s", command.err);
    ck_assert_int_eq(setenv("EMULATED_MEMORY_FREE", "94371840", 1), 0); /* 90 MiB */
    runs((const char *[]){"train", "job.yaml", "--run", "another", "--workers", "1", NULL});
}

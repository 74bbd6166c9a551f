/*
 * Where the values of a job come from, and how it is written: sources in their order, paths, the
 * canonical text, the digest.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/cores/job_bench.h"
#include "tests/lib/suite.h"

KELP_SUITE(.fork_each = true)
KELP_CASE("job_sources", .setup = job_setup, .teardown = job_teardown)

/* Later sources win, and errors name the source. */
KELP_TEST(test_precedence)
{
    const struct kelp_job *job = kelp_job_file_job(job_bench.file);

    ck_assert_int_eq(setenv("KELP_TRAIN_LR", "0.2", 1), 0);
    ck_assert_int_eq(setenv("KELP_TRAIN_EPOCHS", "2", 1), 0);
    ck_assert_int_eq(setenv("KELP_SEED", "", 1), 0);
    ck_assert_int_eq(job_parse("seed: 9\ntrain:\n  lr: 0.1\n  epochs: 1\n  batch_size: 16\n"),
                     KELP_OK);
    ck_assert_int_eq(kelp_job_file_environment(job_bench.file, &job_bench.error), KELP_OK);
    ck_assert_int_eq(
        kelp_job_file_set(job_bench.file, "train.epochs", "3", KELP_ORIGIN_FLAG, &job_bench.error),
        KELP_OK);
    ck_assert_uint_eq(job->seed, 9);
    ck_assert_double_eq(job->train.lr, 0.2);
    ck_assert_uint_eq(job->train.epochs, 3);
    ck_assert_uint_eq(job->train.batch_size, 16);
    ck_assert_int_eq(
        kelp_job_file_set(job_bench.file, "train.epoch", "3", KELP_ORIGIN_FLAG, &job_bench.error),
        KELP_ERR_INVALID);
    ck_assert_str_eq(job_bench.error.text,
                     "command line: train.epoch: unknown key; did you mean train.epochs?");
    ck_assert_int_eq(
        kelp_job_file_set(job_bench.file, "train.epochs", "x", KELP_ORIGIN_FLAG, &job_bench.error),
        KELP_ERR_INVALID);
    ck_assert_str_eq(job_bench.error.text,
                     "command line: train.epochs: 'x' is not an integer from 1 to 1000000");
    ck_assert_uint_eq(job->train.epochs, 3);
    ck_assert_int_eq(
        kelp_job_file_set(job_bench.file, "cluster", "3", KELP_ORIGIN_FLAG, &job_bench.error),
        KELP_ERR_INVALID);
    ck_assert_str_eq(job_bench.error.text,
                     "command line: cluster: unknown key; allowed in cluster are "
                     "workers, shards, max_shards, lanes, lane_threads, device, streams, compute, "
                     "cudnn, mixed, replicas, move_rate");
    ck_assert_int_eq(setenv("KELP_TRAIN_LR", "x", 1), 0);
    ck_assert_int_eq(kelp_job_file_environment(job_bench.file, &job_bench.error), KELP_ERR_INVALID);
    ck_assert_str_eq(job_bench.error.text,
                     "environment KELP_TRAIN_LR: 'x' is not a number from 0 to 1000");
}

/* --print-config shows each value that applies, and where it comes from. */
KELP_TEST(test_print_with_origin)
{
    ck_assert_int_eq(job_parse("seed: 9\ntrain:\n  lr: 0.1\n"), KELP_OK);
    ck_assert_int_eq(kelp_job_file_set(job_bench.file, "cluster.workers", "3", KELP_ORIGIN_FLAG,
                                       &job_bench.error),
                     KELP_OK);
    ck_assert_int_eq(setenv("KELP_NAME", "n", 1), 0);
    ck_assert_int_eq(kelp_job_file_environment(job_bench.file, &job_bench.error), KELP_OK);
    char *text = job_print(true);
    ck_assert_ptr_eq(strstr(text, "name: n                             # environment\n"
                                  "seed: 9                             # job.yaml:1\n"
                                  "run:\n"
                                  "  dir: \"\"                           # default\n"),
                     text);
    ck_assert_ptr_nonnull(strstr(text, "\n  lr: 0.1                           # job.yaml:3\n"));
    ck_assert_ptr_nonnull(strstr(text, "\n  workers: 3:3                      # command line\n"));
    ck_assert_ptr_null(strstr(text, "momentum"));
    free(text);
}

static const char *const canonical[] = {
    "name: a\n",
    "model:\n  kind: mlp\n  hidden: []\ntrain:\n  optimizer: adamw\n  weight_decay: "
    "0.3333333333333333\n",
    "data:\n  kind: csv\n  path: \"./a b/\\\\\\\"c\\\" é.csv\"\n  target: \"null\"\nrun:\n  dir: "
    "/tmp/x\n",
    "data:\n  kind: tensors\n  path: x\n  target_name: 1e5\nmodel:\n  init: a.safetensors\n  "
    "init_prefix: \"init.\"\n  init_map: [\"a.=\", \"*.gamma=*.weight\"]\n",
    "train:\n  optimizer: sgd\n  momentum: 0.9\nfailure:\n  shard_wait: 1s\n  max_failures: -1\n",
};

/* Checkpoints name their job by its digest: a new key that is not marked as later would change it.
 */
KELP_TEST(digest_stays)
{
    ck_assert_msg(
        job_parse("model:\n  kind: mlp\ndata:\n  kind: binary\n  path: x\n  input_shape: [1]\n") ==
            KELP_OK,
        "%s", job_bench.error.text);
    ck_assert_msg(kelp_job_file_digest(job_bench.file) == UINT64_C(0xfb1a5f6d3b84cf40),
                  "0x%016" PRIx64, kelp_job_file_digest(job_bench.file));
}

/* The canonical text is a fixed point: it parses to the same job and prints to itself. */
KELP_LOOP_TEST(test_canonical, 0, KELP_ARRAY_COUNT(canonical))
{
    ck_assert_msg(job_parse(canonical[_i]) == KELP_OK, "%s", job_bench.error.text);
    char *text = job_print(false);
    uint64_t digest = kelp_job_file_digest(job_bench.file);
    struct kelp_job job = *kelp_job_file_job(job_bench.file);
    kelp_job_file_destroy(job_bench.file);
    job_bench.file = kelp_job_file_create();
    ck_assert_msg(job_parse(text) == KELP_OK, "%s\n%s", job_bench.error.text, text);
    char *again = job_print(false);
    ck_assert_str_eq(text, again);
    ck_assert_mem_eq(&job, kelp_job_file_job(job_bench.file), sizeof(job));
    ck_assert_uint_eq(kelp_job_file_digest(job_bench.file), digest);
    free(text);
    free(again);
}

/* Paths of a file begin at its folder, those of options at the current one; in memory they stay. */
KELP_TEST(test_paths)
{
    char folder[] = "/tmp/kelp-test-job-XXXXXX", path[64], expected[128], current[4096];

    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(path, sizeof(path), "%s/job.yaml", folder);
    FILE *out = fopen(path, "we");
    ck_assert_ptr_nonnull(out);
    (void)fputs("data: {kind: npy, path: ../x.npy, target_path: ./a/y.npy, val_path: /v.npy,\n"
                "       val_target_path: '../../../..', cache: .}\nrun: {dir: runs/a}\n",
                out);
    ck_assert_int_eq(fclose(out), 0);
    ck_assert_msg(kelp_job_file_read(job_bench.file, path, &job_bench.error) == KELP_OK, "%s",
                  job_bench.error.text);
    const struct kelp_job *job = kelp_job_file_job(job_bench.file);
    ck_assert_str_eq(job->data.path, "/tmp/x.npy");
    (void)snprintf(expected, sizeof(expected), "%s/a/y.npy", folder);
    ck_assert_str_eq(job->data.target_path, expected);
    ck_assert_str_eq(job->data.val_path, "/v.npy");
    ck_assert_str_eq(job->data.val_target_path, "/");
    ck_assert_str_eq(job->data.cache, folder);
    (void)snprintf(expected, sizeof(expected), "%s/runs/a", folder);
    ck_assert_str_eq(job->run.dir, expected);
    ck_assert_int_eq(
        kelp_job_file_set(job_bench.file, "run.dir", "r", KELP_ORIGIN_FLAG, &job_bench.error),
        KELP_OK);
    ck_assert_int_eq(
        kelp_job_file_set(job_bench.file, "model.init", "i", KELP_ORIGIN_FLAG, &job_bench.error),
        KELP_OK);
    ck_assert_str_eq(job->run.dir, "r");
    ck_assert_ptr_nonnull(getcwd(current, sizeof(current)));
    ck_assert_int_eq(strncmp(job->model.init, current, strlen(current)), 0);
    ck_assert_str_eq(job->model.init + strlen(current), "/i");
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(rmdir(folder), 0);
    char relative[KELP_JOB_PATH_MAX + 1] = {0}; /* it fits alone, but not with a folder */
    memset(relative, 'x', KELP_JOB_PATH_MAX);
    ck_assert_int_eq(kelp_job_file_set(job_bench.file, "model.init", relative, KELP_ORIGIN_FLAG,
                                       &job_bench.error),
                     KELP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(job_bench.error.text, "with its folder"));
}

/* What lies in the folder is named from there, so that it may be moved; reading that gives the same
 * job. */
KELP_TEST(test_print_in)
{
    char *text = NULL;

    ck_assert_int_eq(job_parse("data: {kind: csv, path: /a/b/c.csv}\nmodel: {init: /a/bc/d}\n"
                               "run: {dir: /a/b}\n"),
                     KELP_OK);
    uint64_t digest = kelp_job_file_digest(job_bench.file);
    ck_assert_int_eq(kelp_job_file_print_in(job_bench.file, "/a/b", &text, &job_bench.error),
                     KELP_OK);
    ck_assert_ptr_nonnull(strstr(text, "\n  path: c.csv\n"));
    ck_assert_ptr_nonnull(strstr(text, "\n  init: \"/a/bc/d\"\n"));
    ck_assert_ptr_nonnull(strstr(text, "\n  dir: \"\"\n"));
    kelp_job_file_destroy(job_bench.file);
    job_bench.file = kelp_job_file_create();
    ck_assert_msg(job_parse(text) == KELP_OK, "%s", job_bench.error.text);
    ck_assert_uint_eq(kelp_job_file_digest(job_bench.file), digest);
    free(text);
}

/* The digest follows every key but the run's folder, and of paths their names. */
KELP_TEST(test_digest)
{
    uint64_t digest = kelp_job_file_digest(job_bench.file);

    ck_assert_int_eq(
        kelp_job_file_set(job_bench.file, "run.dir", "/x", KELP_ORIGIN_FLAG, &job_bench.error),
        KELP_OK);
    ck_assert_uint_eq(kelp_job_file_digest(job_bench.file), digest);
    ck_assert_int_eq(
        kelp_job_file_set(job_bench.file, "model.init", "/a/i", KELP_ORIGIN_FLAG, &job_bench.error),
        KELP_OK);
    ck_assert_uint_ne(kelp_job_file_digest(job_bench.file), digest);
    digest = kelp_job_file_digest(job_bench.file);
    ck_assert_int_eq(kelp_job_file_set(job_bench.file, "model.init", "/b/c/i", KELP_ORIGIN_FLAG,
                                       &job_bench.error),
                     KELP_OK);
    ck_assert_uint_eq(kelp_job_file_digest(job_bench.file), digest);
    ck_assert_int_eq(
        kelp_job_file_set(job_bench.file, "seed", "2", KELP_ORIGIN_FLAG, &job_bench.error),
        KELP_OK);
    ck_assert_uint_ne(kelp_job_file_digest(job_bench.file), digest);
}

/* Peers whose jobs have another precision have another text: none of them is served. What jobs had
 * before there was the key keeps its digest. */
KELP_TEST(test_digest_of_precision)
{
    const uint64_t digest = kelp_job_file_digest(job_bench.file);

    ck_assert_int_eq(kelp_job_file_set(job_bench.file, "transport.precision", "float32",
                                       KELP_ORIGIN_FLAG, &job_bench.error),
                     KELP_OK);
    ck_assert_uint_eq(kelp_job_file_digest(job_bench.file), digest);
    ck_assert_int_eq(kelp_job_file_set(job_bench.file, "transport.precision", "bfloat16",
                                       KELP_ORIGIN_FLAG, &job_bench.error),
                     KELP_OK);
    ck_assert_uint_ne(kelp_job_file_digest(job_bench.file), digest);
}

/* A file is read from disk; a missing one and a folder are named. */
KELP_TEST(test_read)
{
    char path[] = "/tmp/kelp-test-job-XXXXXX";
    int fd = mkstemp(path);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, "seed: 7\n", 8), 8);
    ck_assert_int_eq(close(fd), 0);
    ck_assert_msg(kelp_job_file_read(job_bench.file, path, &job_bench.error) == KELP_OK, "%s",
                  job_bench.error.text);
    ck_assert_uint_eq(kelp_job_file_job(job_bench.file)->seed, 7);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(kelp_job_file_read(job_bench.file, path, &job_bench.error),
                     KELP_ERR_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(job_bench.error.text, "no such job file"));
    ck_assert_int_eq(kelp_job_file_read(job_bench.file, "/tmp", &job_bench.error), KELP_ERR_IO);
    ck_assert_str_eq(job_bench.error.text, "/tmp: is a folder; give a job file");
}

/* "-" is standard input; a mistake in it says so. */
KELP_TEST(job_of_standard_input)
{
    static const char *const texts[] = {
        "name: piped\nmodel: {kind: mlp}\ndata: {kind: synthetic}\n", "zebra: 1\n"};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(texts); i++) {
        int fds[2];
        ck_assert_int_eq(pipe(fds), 0);
        ck_assert_int_eq(write(fds[1], texts[i], strlen(texts[i])), (ssize_t)strlen(texts[i]));
        ck_assert_int_eq(close(fds[1]), 0);
        ck_assert_int_eq(dup2(fds[0], STDIN_FILENO), STDIN_FILENO);
        ck_assert_int_eq(close(fds[0]), 0);
        struct kelp_job_file *piped = kelp_job_file_create();
        kelp_status status = kelp_job_file_read(piped, "-", &job_bench.error);
        ck_assert_int_eq(status, i == 0 ? KELP_OK : KELP_ERR_INVALID);
        if (i == 0) {
            ck_assert_str_eq(kelp_job_file_job(piped)->name, "piped");
        } else {
            ck_assert_ptr_nonnull(strstr(job_bench.error.text, "standard input:1: zebra: "));
        }
        kelp_job_file_destroy(piped);
    }
}

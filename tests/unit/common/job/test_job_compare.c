#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/job/job.h"
#include "tests/lib/suite.h"

static struct kelp_error error;
static struct kelp_job_differences differences;

static struct kelp_job_file *parse(const char *text)
{
    struct kelp_job_file *file = kelp_job_file_create();

    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(kelp_job_file_set(file, "model.kind", "dlinear", KELP_ORIGIN_FLAG, NULL), 0);
    ck_assert_int_eq(kelp_job_file_set(file, "data.kind", "synthetic", KELP_ORIGIN_FLAG, NULL), 0);
    ck_assert_msg(kelp_job_file_parse(file, "job.yaml", text, strlen(text), &error) == KELP_OK &&
                      kelp_job_file_finish(file, &error) == KELP_OK,
                  "%s", error.text);
    return file;
}

static void compare(const char *before_text, const char *now_text)
{
    struct kelp_job_file *before = parse(before_text);
    struct kelp_job_file *now = parse(now_text);

    ck_assert_msg(kelp_job_compare(before, now, &differences, &error) == KELP_OK, "%s", error.text);
    kelp_job_file_destroy(before);
    kelp_job_file_destroy(now);
}

static void teardown(void)
{
    kelp_job_differences_fini(&differences);
}

KELP_CASE("job_compare", .teardown = teardown)

/* A job does not differ from itself, however its values were written. */
KELP_TEST(test_same)
{
    compare("seed: 1\nfailure:\n  detect: 1s\n",
            "failure:\n  detect: 1000ms\ntrain:\n  lr: 5e-3\n");
    ck_assert_uint_eq(differences.count, 0);
    ck_assert_uint_eq(differences.refused, 0);
}

static const struct {
    const char *before;
    const char *now;
    const char *allowed;
    const char *refused;
} cases[] = {
    {"seed: 1\n", "seed: 2\ntrain:\n  lr: 0.01\n", "", "seed 1 -> 2, train.lr 0.005 -> 0.01"},
    {"seed: 1\n", "cluster:\n  workers: 3\n  shards: 2\n",
     "cluster.workers 2:2 -> 3:3, cluster.shards 1 -> 2", ""},
    {"run:\n  dir: /a\n", "run:\n  dir: \"/b c\"\ntransport:\n  piece: 64KiB\n",
     "run.dir \"/a\" -> \"/b c\", transport.piece 4MiB -> 64KiB", ""},
    /* a file may be elsewhere, but it is the same one by its name */
    {"model:\n  init: /a/w\n", "model:\n  init: /b/w\n", "model.init \"/a/w\" -> \"/b/w\"", ""},
    {"model:\n  init: /a/w\n", "model:\n  init: /a/v\n", "", "model.init \"/a/w\" -> \"/a/v\""},
    {"train:\n  epochs: 3\n", "train:\n  epochs: 4\n", "train.epochs 3 -> 4", ""},
    {"train:\n  epochs: 3\n", "train:\n  epochs: 2\n", "", "train.epochs 3 -> 2"},
    /* the rate of the first epochs would have been another one */
    {"train:\n  epochs: 3\n  schedule: cosine\n", "train:\n  epochs: 4\n  schedule: cosine\n", "",
     "train.epochs 3 -> 4"},
    {"train:\n  epochs: 3\n  schedule: cosine\n  schedule_total: 9\n",
     "train:\n  epochs: 4\n  schedule: cosine\n  schedule_total: 9\n", "train.epochs 3 -> 4", ""},
    {"failure:\n  detect: 1s\n", "failure:\n  detect: 2s\n  max_failures: -1\n",
     "failure.detect 1s -> 2s, failure.max_failures 100 -> -1", ""},
    {"checkpoint:\n  steps: 5\n", "checkpoint:\n  digest_steps: 5\n", "checkpoint.steps 5 -> 0",
     "checkpoint.digest_steps 0 -> 5"},
    /* what decides into how many parts the model and the batches are cut */
    {"seed: 1\n", "cluster:\n  max_shards: 5\n  lanes: 4\n  lane_threads: 2\n  mixed: true\n", "",
     "cluster.max_shards 4 -> 5, cluster.lanes 8 -> 4, cluster.lane_threads 1 -> 2, cluster.mixed "
     "false -> true"},
    {"seed: 1\n", "cluster:\n  compute: portable\n", "", "cluster.compute native -> portable"},
    {"cluster:\n  compute: native\n", "seed: 1\n", "", ""},
    {"cluster:\n  device: cuda\n", "cluster:\n  device: cuda\ntrain:\n  precision: tf32\n", "",
     "train.precision float32 -> tf32"},
    {"cluster:\n  device: cuda\n", "cluster:\n  device: cuda\n  cudnn: never\n", "",
     "cluster.cudnn auto -> never"},
    /* the only key of its section that shapes the result */
    {"transport:\n  precision: float32\n", "transport:\n  precision: bfloat16\n", "",
     "transport.precision float32 -> bfloat16"},
    /* a key of another kind says nothing beside the kind itself */
    {"model:\n  kind: mlp\n  hidden: [8, 4]\n", "model:\n  kind: dlinear\n  individual: true\n", "",
     "model.kind mlp -> dlinear"},
    {"model:\n  kind: mlp\n  hidden: [8, 4]\n", "model:\n  kind: mlp\n  hidden: [8]\n", "",
     "model.hidden [8, 4] -> [8]"},
};

/* Each key that differs is named with both values, on the side where it belongs. */
KELP_LOOP_TEST(test_cases, 0, KELP_ARRAY_COUNT(cases))
{
    char text[512];
    size_t refused = 0;

    compare(cases[_i].before, cases[_i].now);
    kelp_job_differences_text(&differences, true, text, sizeof(text));
    ck_assert_str_eq(text, cases[_i].allowed);
    kelp_job_differences_text(&differences, false, text, sizeof(text));
    ck_assert_str_eq(text, cases[_i].refused);
    for (size_t i = 0; i < differences.count; i++) {
        refused += !differences.items[i].allowed;
    }
    ck_assert_uint_eq(differences.refused, refused);
    ck_assert_int_eq(refused > 0, cases[_i].refused[0] != '\0');
}

/* A text that does not fit says that there is more, and never ends within an item. */
KELP_TEST(test_short_text)
{
    const char *whole = "seed 1 -> 2, train.epochs 10 -> 3, train.lr 0.005 -> 0.01";

    compare("seed: 1\n", "seed: 2\ntrain:\n  epochs: 3\n  lr: 0.01\n");
    for (size_t bytes = 16; bytes < 100; bytes++) {
        char text[100];
        memset(text, 'x', sizeof(text));
        kelp_job_differences_text(&differences, false, text, bytes);
        size_t length = strlen(text);
        ck_assert_uint_lt(length, bytes);
        if (strcmp(text, whole) == 0) {
            continue;
        }
        ck_assert_uint_ge(length, strlen("…"));
        ck_assert_str_eq(text + length - strlen("…"), "…");
        ck_assert_int_eq(strncmp(text, whole, length - strlen("…")), 0);
        ck_assert(length == strlen("…") || text[length - strlen("…") - 1] == ' ');
    }
    char text[100];
    kelp_job_differences_text(&differences, false, text, sizeof(text));
    ck_assert_str_eq(text, whole);
}

/* A long value is cut, not the names of the keys after it. */
KELP_TEST(test_long_value)
{
    char job[2048], text[512], path[901];

    memset(path, 'p', sizeof(path) - 1);
    path[sizeof(path) - 1] = '\0';
    (void)snprintf(job, sizeof(job), "seed: 3\nmodel:\n  init: %s\n", path);
    compare("seed: 1\n", job);
    kelp_job_differences_text(&differences, false, text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, "seed 1 -> 3, model.init \"\" -> pppp"));
    ck_assert_uint_lt(strlen(text), 120);
}

/*
 * A worker's memory is what its plan says: at most one and a half times as much, and the plan is no
 * more than twice what was taken, so that it tells something. Models with large activations, large
 * weights, and many small layers; data of this test's own.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/tensors/safetensors.h"
#include "tests/lib/commands/run_train.h"
#include "tests/lib/suite.h"

#define RUN_TIMEOUT_S (KELP_TEST_HANG_MS / 1000)
#define SAMPLES       UINT64_C(256)
#define ELEMENTS_MAX  (SAMPLES * 28 * 28)

static const struct {
    const char *name;
    uint32_t rank;
    uint64_t shape[4];
} tensors[] = {
    {"image", 4, {SAMPLES, 1, 28, 28}}, {"class", 1, {SAMPLES}},
    {"series", 1, {SAMPLES}},           {"known", 3, {SAMPLES, 24, 3}},
    {"observed", 2, {SAMPLES, 24}},     {"ahead", 3, {SAMPLES, 12, 3}},
    {"future", 2, {SAMPLES, 12}},
};
#define TENSOR_COUNT KELP_ARRAY_COUNT(tensors)

static const struct {
    const char *name, *model, *data, *train;
} jobs[] = {
    {"convnet", "kind: convnet", "input_name: [image], target_name: class",
     "loss: nll, batch_size: 256"},
    {"convnet in pieces", "kind: convnet", "input_name: [image], target_name: class",
     "loss: nll, batch_size: 256, accumulate: 8"},
    {"wide mlp", "kind: mlp, hidden: [2048, 1024]", "input_name: [image], target_name: class",
     "loss: cross_entropy, batch_size: 64"},
    {"tft", "kind: tft, d_model: 16, heads: 4",
     "input_name: [series, known, observed, ahead], target_name: future",
     "loss: quantile, quantiles: [0.1, 0.5, 0.9], batch_size: 256"},
};
#define JOB_COUNT ((int)KELP_ARRAY_COUNT(jobs))

/* All zero, but for the images: two classes and categories at most. */
static void write_data(const char *path)
{
    struct kelp_safetensors_item items[TENSOR_COUNT];
    struct kelp_error error = {.text = ""};
    float *values = calloc(ELEMENTS_MAX, sizeof(*values));
    int64_t *whole = calloc(SAMPLES, sizeof(*whole));
    ck_assert(values != NULL && whole != NULL);
    for (uint64_t i = 0; i < ELEMENTS_MAX; i++) {
        values[i] = (float)(i % 17) / 17.0f;
    }
    for (size_t i = 0; i < TENSOR_COUNT; i++) {
        const bool category =
            strcmp(tensors[i].name, "class") == 0 || strcmp(tensors[i].name, "series") == 0;
        whole[i] = 1;
        items[i] =
            (struct kelp_safetensors_item){.name = tensors[i].name,
                                           .dtype = category ? KELP_DTYPE_I64 : KELP_DTYPE_F32,
                                           .rank = tensors[i].rank,
                                           .shape = tensors[i].shape,
                                           .data = category ? (void *)whole : (void *)values};
    }
    const kelp_status status = kelp_safetensors_write(path, items, TENSOR_COUNT, NULL, 0, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    free(values);
    free(whole);
}

/* The number behind key in the worker's log. */
static double logged(const struct kelp_run *run, const char *key)
{
    char path[400], line[1024];
    double value = 0.0;
    (void)snprintf(path, sizeof(path), "%s/logs/worker-0.log", run->run_folder);
    FILE *file = fopen(path, "r");
    ck_assert_msg(file != NULL, "no %s", path);
    while (fgets(line, sizeof(line), file) != NULL) {
        const char *found = strstr(line, key);
        if (found != NULL) {
            value = strtod(found + strlen(key), NULL);
        }
    }
    (void)fclose(file);
    ck_assert_msg(value > 0.0, "no %s in %s", key, path);
    return value;
}

static void require_plain_memory(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    kelp_suite_skip("a sanitizer takes memory of its own, which no plan knows");
#endif
}

KELP_SUITE(.before = require_plain_memory)
KELP_CASE("memory", .timeout_s = 2 * KELP_TEST_HANG_S)

KELP_LOOP_TEST(test_plan, 0, JOB_COUNT)
{
    struct kelp_run run;
    char path[300], text[2048];
    const char *args[] = {"--workers", "1", "--shards", "1", NULL};
    kelp_run_prepare(&run);
    (void)snprintf(path, sizeof(path), "%s/data.safetensors", run.folder);
    write_data(path);
    (void)snprintf(text, sizeof(text),
                   "name: memory\nmodel: {%s}\ndata: {kind: tensors, path: \"%s\", %s}\n"
                   "train: {epochs: 1, max_steps: 2, evaluate: false, %s}\ncluster: {lanes: 1}\n",
                   jobs[_i].model, path, jobs[_i].data, jobs[_i].train);
    kelp_run_train(&run, kelp_test_write(run.folder, "job.yaml", text), args, RUN_TIMEOUT_S);
    ck_assert_msg(run.exit_code == 0, "exit %d; output:\n%s", run.exit_code, run.output);
    const double planned = logged(&run, "planned_memory_bytes=");
    const double peak = logged(&run, " peak_memory_bytes=");
    printf("%-18s planned %6.1f MiB, peak %6.1f MiB\n", jobs[_i].name, planned / 1048576.0,
           peak / 1048576.0);
    (void)fflush(stdout);
    ck_assert_msg(peak <= 1.5 * planned, "peak %.0f bytes, planned %.0f", peak, planned);
    ck_assert_msg(planned <= 2.0 * peak, "planned %.0f bytes, peak %.0f", planned, peak);
    kelp_run_fini(&run);
}

/*
 * Steps per second of the models that Kelp brings: two workers of one thread and one shard, two
 * lanes, beside PyTorch with gloo and two processes of one thread where python3-torch is installed:
 * the same model, batch and optimizer, tensors in memory, in turn on the same machine. And what the
 * workers' time went into: operators, communication (everything else that takes processor time) and
 * waiting.
 *
 * With --portable: beside cluster.compute: portable instead of PyTorch.
 *
 *     models [--rounds N] [--only MODEL] [--portable]
 */
#include <arpa/inet.h>
#include <curl/curl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <check.h>

#include "common/tensors/philox.h"
#include "common/tensors/safetensors.h"
#include "tests/lib/bench_suite.h"
#include "tests/lib/cluster/run_train.h"

#define ROUNDS_MAX  21
#define TENSORS_MAX 5
#define RANK_MAX    4

/* One tensor of the samples: numbers, or with `classes` whole numbers below each of them. */
struct tensor {
    const char *name;
    uint32_t rank;
    uint64_t dims[RANK_MAX];
    uint32_t class_count;
    uint32_t classes[8]; /* by the last dimension */
};

struct model {
    const char *name;
    uint32_t batch; /* of a worker */
    uint32_t samples;
    uint32_t epochs;
    uint32_t torch_steps;
    const char *job; /* sections but for data, batch size and cluster */
    const char *inputs;
    struct tensor tensors[TENSORS_MAX]; /* the last one with a name is y */
};

static const struct model models[] = {
    {"mlp",
     32,
     640,
     200,
     600,
     "model: {kind: mlp, hidden: [256, 256]}\n"
     "train: {optimizer: adam, lr: 0.005",
     "[x]",
     {{"x", 1, {96}, 0, {0}}, {"y", 1, {96}, 0, {0}}}},
    {"dlinear",
     32,
     640,
     200,
     600,
     "model: {kind: dlinear}\n"
     "train: {optimizer: adam, lr: 0.005",
     "[x]",
     {{"x", 2, {96, 1}, 0, {0}}, {"y", 2, {96, 1}, 0, {0}}}},
    {"fare",
     64,
     1280,
     200,
     600,
     "model: {kind: fare}\n"
     "train: {loss: smooth_l1, optimizer: adam, lr: 0.01",
     "[x]",
     {{"x", 1, {6}, 0, {0}}, {"y", 1, {1}, 0, {0}}}},
    {"deepfm",
     128,
     2560,
     200,
     600,
     "model: {kind: deepfm, embedding_dim: 8, hidden: [64]}\n"
     "train: {loss: bce_with_logits, optimizer: adam, lr: 0.001",
     "[ids, numbers]",
     {{"ids", 1, {6}, 6, {3, 8, 266, 266, 24, 7}},
      {"numbers", 1, {3}, 0, {0}},
      {"y", 1, {1}, 0, {0}}}},
    {"convnet",
     128,
     1280,
     8,
     30,
     "model: {kind: convnet, classes: 10}\n"
     "train: {loss: nll, optimizer: adadelta, lr: 1.0",
     "[x]",
     {{"x", 3, {1, 28, 28}, 0, {0}}, {"y", 0, {0}, 1, {10}}}},
    {"resnet18",
     128,
     1280,
     5,
     14,
     "model: {kind: resnet18, classes: 10}\n"
     "train: {loss: cross_entropy, optimizer: adam, lr: 0.001",
     "[x]",
     {{"x", 3, {1, 28, 28}, 0, {0}}, {"y", 0, {0}, 1, {10}}}},
    {"tft",
     128,
     1280,
     5,
     10,
     "model: {kind: tft, d_model: 16, heads: 4}\n"
     "train: {loss: quantile, quantiles: [0.1, 0.5, 0.9], optimizer: adam, lr: 0.01, clip_norm: "
     "0.1",
     "[series, known, observed, ahead]",
     {{"series", 0, {0}, 1, {73}},
      {"known", 2, {63, 6}, 0, {0}},
      {"observed", 1, {63}, 0, {0}},
      {"ahead", 2, {168, 6}, 0, {0}},
      {"y", 1, {168}, 0, {0}}}},
};

/* ---- samples ---- */

static void *random_values(const struct tensor *tensor, uint32_t use, uint64_t count)
{
    const bool is_class = tensor->class_count != 0;
    float *numbers = malloc(count * sizeof(*numbers));
    int64_t *classes = malloc(count * sizeof(*classes));
    ck_assert_ptr_nonnull(numbers);
    ck_assert_ptr_nonnull(classes);
    for (uint64_t i = 0; i < count; i++) {
        uint32_t words[4];
        kelp_philox(1, KELP_PHILOX_TEST, use, i, words);
        numbers[i] = kelp_philox_float(words[0]);
        classes[i] = is_class ? words[1] % tensor->classes[i % tensor->class_count] : 0;
    }
    free(is_class ? (void *)numbers : (void *)classes);
    return is_class ? (void *)classes : (void *)numbers;
}

static void write_samples(const struct model *model, const char *path)
{
    struct kelp_safetensors_item items[TENSORS_MAX];
    uint64_t shapes[TENSORS_MAX][1 + RANK_MAX];
    void *values[TENSORS_MAX];
    struct kelp_error error = {KELP_OK, ""};
    size_t count = 0;
    for (; count < TENSORS_MAX && model->tensors[count].name != NULL; count++) {
        const struct tensor *tensor = &model->tensors[count];
        uint64_t elements = model->samples;
        shapes[count][0] = model->samples;
        for (uint32_t d = 0; d < tensor->rank; d++) {
            shapes[count][1 + d] = tensor->dims[d];
            elements *= tensor->dims[d];
        }
        values[count] = random_values(tensor, (uint32_t)count, elements);
        items[count] = (struct kelp_safetensors_item){
            .name = tensor->name,
            .dtype = tensor->class_count != 0 ? KELP_DTYPE_I64 : KELP_DTYPE_F32,
            .rank = 1 + tensor->rank,
            .shape = shapes[count],
            .data = values[count]};
    }
    ck_assert_msg(kelp_safetensors_write(path, items, count, NULL, 0, &error) == KELP_OK, "%s",
                  error.text);
    for (size_t i = 0; i < count; i++) {
        free(values[i]);
    }
}

/* ---- one run ---- */

struct shares {
    double operators, communication, waiting; /* of the workers' time, means of both */
};

/* "worked ... wall_s=1.25 operators_s=... communication_s=... waiting_s=..." of a worker's log. */
static void add_shares(const struct kelp_run *run, unsigned worker, struct shares *shares)
{
    char path[400], line[1024];
    (void)snprintf(path, sizeof(path), "%s/logs/worker-%u.log", run->run_folder, worker);
    FILE *file = fopen(path, "r");
    double wall = 0, parts[3];
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        const char *at = strstr(line, "wall_s=");
        if (at != NULL &&
            sscanf(at, "wall_s=%lf operators_s=%lf communication_s=%lf waiting_s=%lf", &wall,
                   &parts[0], &parts[1], &parts[2]) == 4 &&
            wall > 0) {
            shares->operators += parts[0] / wall / 2;
            shares->communication += parts[1] / wall / 2;
            shares->waiting += parts[2] / wall / 2;
        }
    }
    if (file != NULL) {
        (void)fclose(file);
    }
}

static double kelp_steps(const struct model *model, const char *compute, struct shares *shares)
{
    struct kelp_run run;
    char data[400], job[2000];
    kelp_run_prepare(&run);
    (void)snprintf(data, sizeof(data), "%s/samples.safetensors", run.folder);
    write_samples(model, data);
    (void)snprintf(job, sizeof(job),
                   "name: bench-%s\n%s, epochs: %u, batch_size: %u, evaluate: false, schedule: "
                   "constant}\ndata: {kind: tensors, path: %s, input_name: %s}\n"
                   "cluster: {lanes: 2, workers: 2, shards: 1, compute: %s}\n"
                   "checkpoint: {at_end: false, interval: 0s}\n",
                   model->name, model->job, model->epochs, 2 * model->batch, data, model->inputs,
                   compute);
    const char *args[] = {NULL};
    kelp_run_train(&run, kelp_test_write(run.folder, "job.yaml", job), args, 600);
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(run.result, "steps_per_s");
    if (run.exit_code != 0 || !cJSON_IsNumber(value)) {
        (void)fprintf(stderr, "kelp train failed (exit %d):\n%s\n", run.exit_code, run.output);
        exit(1);
    }
    const double steps_per_s = value->valuedouble;
    *shares = (struct shares){0, 0, 0};
    add_shares(&run, 0, shares);
    add_shares(&run, 1, shares);
    kelp_run_fini(&run);
    return steps_per_s;
}

static int free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &length) != 0) {
        perror("free port");
        exit(1);
    }
    (void)close(fd);
    return ntohs(address.sin_port);
}

/* 0 when python3-torch is not there. */
static double torch_steps(const struct model *model)
{
    char command[600], text[64] = "";
    double steps_per_s = 0;
    const char *source = getenv("KELP_SOURCE");
    (void)snprintf(command, sizeof(command),
                   "PATH=/usr/bin:$PATH; python3 -c 'import torch' 2>/dev/null && "
                   "OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python3 '%s/bench/torch_models.py' "
                   "%s %u %d",
                   source ? source : ".", model->name, model->torch_steps, free_port());
    FILE *pipe = popen(command, "r");
    if (!pipe) {
        perror("popen");
        exit(1);
    }
    if (fgets(text, sizeof(text), pipe)) {
        steps_per_s = strtod(text, NULL);
    }
    (void)pclose(pipe); /* no torch: no output */
    return steps_per_s;
}

/* ---- the table ---- */

static unsigned rounds = 3;
static const char *only = NULL;
static bool with_portable = false;

static void print_head(void)
{
    printf(
        "2 workers and 1 shard, PyTorch with gloo and 2 processes; medians of %u rounds in turn; "
        "shares of the workers' time\n",
        rounds);
    printf("%-9s %5s %9s %10s %9s %10s %6s %9s %7s %8s\n", "model", "batch", "steps/s", "samples/s",
           "torch", "samples/s", "ratio", "operators", "commun.", "waiting");
}

static void print_row(const struct model *model)
{
    double kelp[ROUNDS_MAX], torch[ROUNDS_MAX], ratios[ROUNDS_MAX];
    struct shares sums = {0, 0, 0}, shares;
    unsigned torch_count = 0;
    for (unsigned i = 0; i < rounds; i++) {
        kelp[i] = kelp_steps(model, "native", &shares);
        sums.operators += shares.operators / rounds;
        sums.communication += shares.communication / rounds;
        sums.waiting += shares.waiting / rounds;
        const double steps_per_s = torch_steps(model);
        if (steps_per_s > 0) {
            torch[torch_count] = steps_per_s;
            ratios[torch_count++] = kelp[i] / steps_per_s;
        }
    }
    const double steps = kelp_bench_median(kelp, rounds);
    printf("%-9s %5u %9.1f %10.0f", model->name, model->batch, steps, steps * 2 * model->batch);
    if (torch_count > 0) {
        const double other = kelp_bench_median(torch, torch_count);
        printf(" %9.1f %10.0f %6.2f", other, other * 2 * model->batch,
               kelp_bench_median(ratios, torch_count));
    } else {
        printf(" %9s %10s %6s", "-", "-", "-");
    }
    printf(" %8.0f%% %6.0f%% %7.0f%%\n", 100 * sums.operators, 100 * sums.communication,
           100 * sums.waiting);
    (void)fflush(stdout);
}

static void print_portable(const struct model *model)
{
    double native[ROUNDS_MAX], portable[ROUNDS_MAX], ratios[ROUNDS_MAX];
    struct shares shares;
    for (unsigned i = 0; i < rounds; i++) {
        native[i] = kelp_steps(model, "native", &shares);
        portable[i] = kelp_steps(model, "portable", &shares);
        ratios[i] = portable[i] / native[i];
    }
    printf("%-9s %5u %9.1f %9.1f %6.2f\n", model->name, model->batch,
           kelp_bench_median(native, rounds), kelp_bench_median(portable, rounds),
           kelp_bench_median(ratios, rounds));
    (void)fflush(stdout);
}

/* The spares that run `kelp train` are made for tests: they report by Check, so they need one. */
START_TEST(table)
{
    if (with_portable) {
        printf("2 workers and 1 shard; medians of %u rounds in turn\n", rounds);
        printf("%-9s %5s %9s %9s %6s\n", "model", "batch", "native", "portable", "ratio");
    } else {
        print_head();
    }
    for (size_t i = 0; i < KELP_ARRAY_COUNT(models); i++) {
        if (only == NULL || strcmp(only, models[i].name) == 0) {
            (with_portable ? print_portable : print_row)(&models[i]);
        }
    }
}
END_TEST

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (i + 1 < argc && strcmp(argv[i], "--rounds") == 0) {
            rounds = (unsigned)strtoul(argv[++i], NULL, 10);
        } else if (i + 1 < argc && strcmp(argv[i], "--only") == 0) {
            only = argv[++i];
        } else if (strcmp(argv[i], "--portable") == 0) {
            with_portable = true;
        } else {
            (void)fprintf(stderr, "usage: models [--rounds N] [--only MODEL] [--portable]\n");
            return 2;
        }
    }
    if (rounds < 1 || rounds > ROUNDS_MAX) {
        (void)fprintf(stderr, "models: --rounds is 1 to %d\n", ROUNDS_MAX);
        return 2;
    }
    (void)setenv("KELP_BIN", KELP_BIN_DIR, 0);
    (void)setenv("KELP_SOURCE", KELP_SOURCE_DIR, 0);
    (void)curl_global_init(CURL_GLOBAL_DEFAULT);
    int failed = kelp_bench_run("models", &table, 1);
    curl_global_cleanup();
    return failed == 0 ? 0 : 1;
}

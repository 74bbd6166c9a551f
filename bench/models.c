/*
 * Steps per second of the models that Kelp brings: two workers of one thread and one shard, two
 * lanes, beside PyTorch with gloo and two processes of one thread where python3-torch is installed:
 * the same model, batch and optimizer, tensors in memory, in turn on the same machine. And what the
 * workers' time went into: operators, communication (everything else that takes processor time) and
 * waiting.
 *
 * With --portable: beside cluster.compute: portable instead of PyTorch.
 *
 * With --device cuda: what one lane of a worker does on a GPU, without shards and optimizer, beside
 * PyTorch on the same GPU: eager, deterministic, float32 without TF32, or with --precision its
 * TF32, or its autocast to bfloat16. Samples are copied to the GPU and the gradient to the host.
 * Besides, lanes as a worker with eight of them computes them: some ahead, added up on the GPU, on
 * one stream and on two. Exit status 77 where there is no GPU.
 *
 *     models [--rounds N] [--only MODEL,…] [--portable | --device cuda [--precision tf32|bfloat16]]
 *            [--scripts FOLDER] [--python COMMAND]
 *
 * FOLDER is that of torch_models.py, by default bench/ of the sources that this was built from.
 */
#include <arpa/inet.h>
#include <curl/curl.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <check.h>

#include "common/base/clock.h"
#include "common/tensors/philox.h"
#include "common/tensors/safetensors.h"
#include "kernels/device.h"
#include "tests/lib/bench_suite.h"
#include "tests/lib/commands/run_train.h"
#include "worker/data/dataset.h"
#include "worker/model/derive.h"

#define ROUNDS_MAX   21
#define TENSORS_MAX  5
#define RANK_MAX     4
#define EXIT_SKIPPED 77

#define GPU_SECONDS 0.2 /* of a measurement on a GPU, or GPU_STEPS where they take longer */
#define GPU_STEPS   3

#define NODE_LANES 8u /* as many as a job has unless it says so */

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
    uint32_t large_batch;               /* on a GPU measured too; 0: none */
    bool gpu_alone;                     /* too large for the CPU */
};

static const struct model models[] = {
    {"mlp", 32, 640, 2000, 600,
     "model: {kind: mlp, hidden: [256, 256]}\n"
     "train: {optimizer: adam, lr: 0.005",
     "[x]", .tensors = {{"x", 1, {96}, 0, {0}}, {"y", 1, {96}, 0, {0}}}},
    {.name = "mlp_wide",
     .batch = 512,
     .samples = 1024,
     .job = "model: {kind: mlp, hidden: [8192, 8192]}\n"
            "train: {optimizer: adam, lr: 0.005",
     .inputs = "[x]",
     .tensors = {{"x", 1, {4096}, 0, {0}}, {"y", 1, {4096}, 0, {0}}},
     .gpu_alone = true},
    {"dlinear", 32, 640, 2000, 600,
     "model: {kind: dlinear}\n"
     "train: {optimizer: adam, lr: 0.005",
     "[x]", .tensors = {{"x", 2, {96, 1}, 0, {0}}, {"y", 2, {96, 1}, 0, {0}}}},
    {"fare", 64, 1280, 2000, 600,
     "model: {kind: fare}\n"
     "train: {loss: smooth_l1, optimizer: adam, lr: 0.01",
     "[x]", .tensors = {{"x", 1, {6}, 0, {0}}, {"y", 1, {1}, 0, {0}}}},
    {"deepfm", 128, 2560, 2000, 600,
     "model: {kind: deepfm, embedding_dim: 8, hidden: [64]}\n"
     "train: {loss: bce_with_logits, optimizer: adam, lr: 0.001",
     "[ids, numbers]",
     .tensors = {{"ids", 1, {6}, 6, {3, 8, 266, 266, 24, 7}},
                 {"numbers", 1, {3}, 0, {0}},
                 {"y", 1, {1}, 0, {0}}}},
    {"convnet", 128, 1280, 8, 30,
     "model: {kind: convnet, classes: 10}\n"
     "train: {loss: nll, optimizer: adadelta, lr: 1.0",
     "[x]", .tensors = {{"x", 3, {1, 28, 28}, 0, {0}}, {"y", 0, {0}, 1, {10}}}, .large_batch = 512},
    {"resnet18", 128, 1280, 5, 14,
     "model: {kind: resnet18, classes: 10}\n"
     "train: {loss: cross_entropy, optimizer: adam, lr: 0.001",
     "[x]", .tensors = {{"x", 3, {1, 28, 28}, 0, {0}}, {"y", 0, {0}, 1, {10}}}, .large_batch = 512},
    {"tft", 128, 1280, 5, 10,
     "model: {kind: tft, d_model: 16, heads: 4}\n"
     "train: {loss: quantile, quantiles: [0.1, 0.5, 0.9], optimizer: adam, lr: 0.01, clip_norm: "
     "0.1",
     "[series, known, observed, ahead]",
     .tensors = {{"series", 0, {0}, 1, {73}},
                 {"known", 2, {63, 6}, 0, {0}},
                 {"observed", 1, {63}, 0, {0}},
                 {"ahead", 2, {168, 6}, 0, {0}},
                 {"y", 1, {168}, 0, {0}}}},
};

static unsigned rounds = 3;
static const char *only = NULL;
static bool with_portable = false;
static bool on_gpu = false;
static const char *precision = "float32"; /* train.precision */
static const char *scripts = NULL;        /* NULL: bench/ of the sources */
static const char *python = "python3";

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

/* The job of a model; cluster: what stands in that section. */
static void write_job(const struct model *model, const char *data, uint32_t batch_size,
                      const char *cluster, char *job, size_t job_bytes)
{
    const int length =
        snprintf(job, job_bytes,
                 "name: bench-%s\n%s, epochs: %u, batch_size: %u, evaluate: false, schedule: "
                 "constant}\ndata: {kind: tensors, path: %s, input_name: %s}\n"
                 "cluster: {%s}\n"
                 "checkpoint: {at_end: false, interval: 0s}\n",
                 model->name, model->job, model->gpu_alone ? 1 : model->epochs, batch_size, data,
                 model->inputs, cluster);
    ck_assert(length > 0 && (size_t)length < job_bytes);
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
    char data[400], cluster[100], job[2000];
    kelp_run_prepare(&run);
    (void)snprintf(data, sizeof(data), "%s/samples.safetensors", run.folder);
    write_samples(model, data);
    (void)snprintf(cluster, sizeof(cluster), "lanes: 2, workers: 2, shards: 1, compute: %s",
                   compute);
    write_job(model, data, 2 * model->batch, cluster, job, sizeof(job));
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

static const char *script_path(char path[400])
{
    const char *source = getenv("KELP_SOURCE");
    if (scripts) {
        (void)snprintf(path, 400, "%s/torch_models.py", scripts);
    } else {
        (void)snprintf(path, 400, "%s/bench/torch_models.py", source ? source : ".");
    }
    return path;
}

/* 0 when python3-torch is not there. */
static double torch_steps(const struct model *model)
{
    char command[1600], path[400], text[64] = "";
    double steps_per_s = 0;
    (void)snprintf(command, sizeof(command),
                   "PATH=/usr/bin:$PATH; export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1; "
                   "%s -c 'import torch' 2>/dev/null && %s '%s' %s %u %d",
                   python, python, script_path(path), model->name, model->torch_steps, free_port());
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

static void print_head(void)
{
    printf(
        "2 workers and 1 shard, PyTorch with gloo and 2 processes; medians of %u rounds in turn; "
        "shares of the workers' time\n",
        rounds);
    printf("%-9s %5s %9s %10s %9s %10s %6s %9s %7s %8s\n", "model", "batch", "steps/s", "samples/s",
           "torch", "samples/s", "ratio", "operators", "commun.", "waiting");
}

/* Steps per second, round by round. */
struct pairs {
    double kelp[ROUNDS_MAX], torch[ROUNDS_MAX], ratios[ROUNDS_MAX];
    unsigned count, torch_count;
};

/* torch: 0 where there is none. */
static void add_pair(struct pairs *pairs, double kelp, double torch)
{
    pairs->kelp[pairs->count++] = kelp;
    if (torch > 0) {
        pairs->torch[pairs->torch_count] = torch;
        pairs->ratios[pairs->torch_count++] = kelp / torch;
    }
}

/* samples: of a step. */
static void print_pairs(const char *name, uint32_t batch, struct pairs *pairs, uint32_t samples)
{
    const double steps = kelp_bench_median(pairs->kelp, pairs->count);
    printf("%-9s %5u %9.1f %10.0f", name, batch, steps, steps * samples);
    if (pairs->torch_count > 0) {
        const double other = kelp_bench_median(pairs->torch, pairs->torch_count);
        printf(" %9.1f %10.0f %6.2f", other, other * samples,
               kelp_bench_median(pairs->ratios, pairs->torch_count));
    } else {
        printf(" %9s %10s %6s", "-", "-", "-");
    }
}

static void print_row(const struct model *model)
{
    struct pairs pairs = {.count = 0};
    struct shares sums = {0, 0, 0}, shares;
    for (unsigned i = 0; i < rounds; i++) {
        const double kelp = kelp_steps(model, "native", &shares);
        sums.operators += shares.operators / rounds;
        sums.communication += shares.communication / rounds;
        sums.waiting += shares.waiting / rounds;
        add_pair(&pairs, kelp, torch_steps(model));
    }
    print_pairs(model->name, model->batch, &pairs, 2 * model->batch);
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

/* ---- on a GPU: a lane ---- */

/* What a worker has of a job of one lane. */
struct lane {
    struct kelp_job_file *file;
    struct kelp_model *model;
    struct kelp_plan plan;
    float *input, *target; /* all samples */
    float *weights, *gradient;
    struct kelp_sample_shape shape;
    uint64_t samples, input_count, target_count;
    uint32_t batch;
    uint64_t step;
};

static void expect_ok(kelp_status status, const char *what, const struct kelp_error *error)
{
    ck_assert_msg(status == KELP_OK, "%s: %s", what, error->text);
}

static float *floats(uint64_t count)
{
    float *values = calloc(count + 1, sizeof(*values));
    ck_assert_ptr_nonnull(values);
    return values;
}

/* From which the GPU copies while the host goes on, as a worker's. */
static float *pinned(const struct lane *lane, uint64_t count)
{
    float *values = kelp_model_host_alloc(lane->model, (size_t)(count + 1) * sizeof(*values));
    ck_assert_ptr_nonnull(values);
    return values;
}

static void lane_read_samples(struct lane *lane, const struct kelp_dataset *dataset)
{
    const struct kelp_dataset_info *info = kelp_dataset_info(dataset);
    lane->shape = info->shape;
    lane->samples = info->samples[KELP_SPLIT_TRAIN];
    lane->input_count = kelp_sample_input_count(&info->shape);
    lane->target_count = kelp_sample_target_count(&info->shape);
    lane->input = pinned(lane, lane->samples * lane->input_count);
    lane->target = pinned(lane, lane->samples * lane->target_count);
    for (uint64_t i = 0; i < lane->samples; i++) {
        ck_assert_int_eq(kelp_dataset_read(dataset, KELP_SPLIT_TRAIN, &i, 1,
                                           lane->input + i * lane->input_count,
                                           lane->target + i * lane->target_count),
                         KELP_OK);
    }
}

static const struct kelp_job *lane_read_job(struct lane *lane, const char *text)
{
    struct kelp_error error = {KELP_OK, ""};
    lane->file = kelp_job_file_create();
    ck_assert_ptr_nonnull(lane->file);
    kelp_status status = kelp_job_file_parse(lane->file, "job.yaml", text, strlen(text), &error);
    if (status == KELP_OK) {
        status =
            kelp_job_file_set(lane->file, "train.precision", precision, KELP_ORIGIN_FLAG, &error);
    }
    if (status == KELP_OK) {
        status = kelp_job_file_finish(lane->file, &error);
    }
    expect_ok(status, "job", &error);
    return kelp_job_file_job(lane->file);
}

/* Model, plan and initial weights, as a worker and its shards make them. */
static void lane_build(struct lane *lane, const struct kelp_job *job)
{
    struct kelp_error error = {KELP_OK, ""};
    struct kelp_dataset *dataset = NULL;
    expect_ok(kelp_dataset_open(job, &dataset, &error), "data", &error);
    expect_ok(kelp_derive_model(job, &kelp_dataset_info(dataset)->shape, &lane->model, &error),
              "model", &error);
    expect_ok(kelp_derive_plan(job, dataset, lane->model, &lane->plan, &error), "plan", &error);
    lane_read_samples(lane, dataset);
    kelp_dataset_close(dataset);
    lane->weights = pinned(lane, lane->plan.flat_count);
    lane->gradient = floats(lane->plan.flat_count);
    const struct kelp_slice_range all = {0, lane->plan.flat_count};
    expect_ok(kelp_plan_initialise(&lane->plan, job, NULL, all, lane->weights, &error), "weights",
              &error);
    kelp_model_bind(lane->model, &lane->plan, lane->weights, lane->gradient);
}

static void lane_init(struct lane *lane, const struct model *model, uint32_t batch)
{
    struct kelp_test_folder folder;
    char data[400], job[2000];
    *lane = (struct lane){.batch = batch};
    kelp_test_folder_init(&folder);
    (void)snprintf(data, sizeof(data), "%s/samples.safetensors", folder.path);
    write_samples(model, data);
    write_job(model, data, batch, "lanes: 1, workers: 1, shards: 1, device: cuda", job,
              sizeof(job));
    lane_build(lane, lane_read_job(lane, job));
    kelp_test_folder_fini(&folder);
}

static void lane_fini(struct lane *lane)
{
    kelp_model_drop(lane->model);
    kelp_model_host_free(lane->model, lane->input);
    kelp_model_host_free(lane->model, lane->target);
    kelp_model_host_free(lane->model, lane->weights);
    kelp_model_destroy(lane->model);
    kelp_plan_fini(&lane->plan);
    kelp_job_file_destroy(lane->file);
    free(lane->gradient);
}

static struct kelp_model_piece lane_piece(const struct lane *lane)
{
    const uint64_t at = lane->step * lane->batch % (lane->samples - lane->batch + 1);
    return (struct kelp_model_piece){.input = lane->input + at * lane->input_count,
                                     .target = lane->target + at * lane->target_count,
                                     .count = lane->batch,
                                     .batch_total = lane->batch,
                                     .step = lane->step};
}

static void lane_step(struct lane *lane)
{
    struct kelp_error error = {KELP_OK, ""};
    double sums[KELP_METRIC_SUM_COUNT];
    const struct kelp_model_piece piece = lane_piece(lane);
    kelp_model_bind_gradient(lane->model, lane->gradient);
    expect_ok(kelp_model_train(lane->model, &piece, sums, &error), "train", &error);
    lane->step++;
}

/* The weights are copied to the GPU, as the first lane of a worker's step does; the others find
 * them there. */
static void lane_step_anew(struct lane *lane)
{
    kelp_model_bind(lane->model, &lane->plan, lane->weights, lane->gradient);
    lane_step(lane);
}

static void finish_oldest(struct lane *lane)
{
    struct kelp_error error = {KELP_OK, ""};
    double sums[KELP_METRIC_SUM_COUNT];
    expect_ok(kelp_model_finish(lane->model, sums, &error), "train", &error);
}

/* The next lane's samples, while this one is computed. */
static void stage_next(void *user)
{
    struct lane *lane = user;
    lane->step++;
    const struct kelp_model_piece next = lane_piece(lane);
    kelp_model_stage(lane->model, next.input, next.target, next.count);
}

/* The lanes of a node, and all that comes of them. */
static void lane_node(struct lane *lane)
{
    struct kelp_error error = {KELP_OK, ""};
    for (uint32_t i = 0; i < NODE_LANES; i++) {
        const struct kelp_model_sum sum = {
            .lane = i, .begins = i == 0, .ends = i + 1 == NODE_LANES};
        struct kelp_model_piece piece = lane_piece(lane);
        piece.sum = &sum;
        piece.idle = stage_next;
        piece.user = lane;
        while (kelp_model_pending(lane->model) == kelp_model_ahead(lane->model) ||
               !kelp_model_may_begin(lane->model, &piece)) {
            finish_oldest(lane);
        }
        kelp_model_bind_gradient(lane->model, lane->gradient);
        expect_ok(kelp_model_begin(lane->model, &piece, &error), "train", &error);
    }
    while (kelp_model_pending(lane->model) > 0) {
        finish_oldest(lane);
    }
}

/* Calls a second. */
static double rate_of(struct lane *lane, void (*call)(struct lane *lane))
{
    for (unsigned i = 0; i < GPU_STEPS; i++) {
        call(lane);
    }
    const uint64_t begin_us = kelp_clock_us();
    double seconds = 0;
    unsigned calls = 0;
    while (calls < GPU_STEPS || seconds < GPU_SECONDS) {
        call(lane);
        calls++;
        seconds = (double)(kelp_clock_us() - begin_us) / 1e6;
    }
    return calls / seconds;
}

/* Lanes a second, as a worker computes them, once they are recorded: the better of two
 * measurements, which are short where lanes take long. */
static double rate_ahead(struct lane *lane)
{
    double best = 0;
    lane_node(lane);
    for (unsigned i = 0; i < 2; i++) {
        const uint64_t begin_us = kelp_clock_us();
        double seconds = 0;
        unsigned nodes = 0;
        while (nodes == 0 || seconds < GPU_SECONDS) {
            lane_node(lane);
            nodes++;
            seconds = (double)(kelp_clock_us() - begin_us) / 1e6;
        }
        best = nodes * NODE_LANES / seconds > best ? nodes * NODE_LANES / seconds : best;
    }
    return best;
}

static double rate_beside(struct lane *lane)
{
    struct kelp_error error = {KELP_OK, ""};
    const struct kelp_job *job = kelp_job_file_job(lane->file);
    kelp_model_stage(lane->model, NULL, NULL, 0);
    expect_ok(kelp_model_widen(lane->model, job, &lane->shape, 2, &error), "streams", &error);
    return rate_ahead(lane);
}

/* ---- on a GPU: PyTorch ---- */

/* torch_models.py, which measures what it is asked to; NULL: it is not there. */
static struct {
    pid_t pid;
    FILE *to, *from;
    bool lacks_deterministic; /* in a model so far */
} peer;

static void peer_run(const int to[2], const int from[2])
{
    char command[1600], path[400];
    (void)snprintf(command, sizeof(command),
                   "%s -c 'import importlib.util as u; exit(u.find_spec(\"torch\") is None)' && "
                   "exec %s '%s' --device cuda --precision %s",
                   python, python, script_path(path), precision);
    if (dup2(to[0], STDIN_FILENO) >= 0 && dup2(from[1], STDOUT_FILENO) >= 0) {
        (void)execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    }
    _exit(127);
}

static void peer_stop(void)
{
    if (peer.to != NULL) {
        (void)fclose(peer.to);
        (void)fclose(peer.from);
        (void)waitpid(peer.pid, NULL, 0);
        peer.to = peer.from = NULL;
    }
}

static void peer_start(void)
{
    char text[200];
    int to[2], from[2];
    if (pipe2(to, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0 || (peer.pid = fork()) < 0) {
        perror("torch_models.py");
        exit(1);
    }
    if (peer.pid == 0) {
        peer_run(to, from);
    }
    (void)close(to[0]);
    (void)close(from[1]);
    peer.to = fdopen(to[1], "w");
    peer.from = fdopen(from[0], "r");
    ck_assert(peer.to != NULL && peer.from != NULL);
    (void)signal(SIGPIPE, SIG_IGN); /* its end is seen by reading */
    if (fgets(text, sizeof(text), peer.from) == NULL) {
        peer_stop();
        printf("no PyTorch with a GPU\n");
        return;
    }
    printf("%s", text);
}

struct peer_steps {
    double copied,
        resident; /* with the gradient copied to the host, and left on the GPU; 0: none */
    bool deterministic;
};

static struct peer_steps peer_steps(const struct model *model, uint32_t batch)
{
    struct peer_steps steps = {0, 0, true};
    char text[500] = "";
    int deterministic = 1;
    if (peer.to == NULL) {
        return steps;
    }
    (void)fprintf(peer.to, "%s %u %g\n", model->name, batch, GPU_SECONDS);
    if (fflush(peer.to) != 0 || fgets(text, sizeof(text), peer.from) == NULL) {
        (void)fprintf(stderr, "torch_models.py ended\n");
        peer_stop();
        return steps;
    }
    if (sscanf(text, "%lf %lf %d", &steps.copied, &steps.resident, &deterministic) != 3) {
        (void)fprintf(stderr, "torch_models.py: %s: %s", model->name, text);
        return (struct peer_steps){0, 0, true};
    }
    steps.deterministic = deterministic != 0;
    return steps;
}

/* ---- on a GPU: the table ---- */

static void print_gpu_head(void)
{
    printf("one lane on a GPU in %s, and PyTorch eager, deterministic; medians of %u rounds in "
           "turn\n"
           "steps/s: samples are copied to the GPU and the gradient to the host; weights: those "
           "too, to the GPU;\nahead: eight lanes that overlap, added up there; beside: the same "
           "on two streams;\nresident: PyTorch with the gradient left on the GPU\n",
           precision, rounds);
    printf("%-9s %5s %9s %10s %9s %10s %6s %9s %9s %9s %9s\n", "model", "batch", "steps/s",
           "samples/s", "torch", "samples/s", "ratio", "weights", "ahead", "beside", "resident");
    (void)fflush(stdout);
}

static void print_gpu_row(const struct model *model, uint32_t batch)
{
    struct lane lane;
    struct pairs pairs = {.count = 0};
    double weights[ROUNDS_MAX], resident[ROUNDS_MAX];
    bool deterministic = true;
    lane_init(&lane, model, batch);
    for (unsigned i = 0; i < rounds; i++) {
        const double kelp = rate_of(&lane, lane_step);
        weights[i] = rate_of(&lane, lane_step_anew);
        const struct peer_steps steps = peer_steps(model, batch);
        add_pair(&pairs, kelp, steps.copied);
        if (steps.copied > 0) {
            resident[pairs.torch_count - 1] = steps.resident;
        }
        deterministic = deterministic && steps.deterministic;
    }
    const double ahead = rate_ahead(&lane), beside = rate_beside(&lane);
    lane_fini(&lane);
    print_pairs(model->name, batch, &pairs, batch);
    printf(" %9.1f %9.1f %9.1f", kelp_bench_median(weights, rounds), ahead, beside);
    if (pairs.torch_count > 0) {
        printf(" %9.1f%s\n", kelp_bench_median(resident, pairs.torch_count),
               deterministic ? "" : " *");
    } else {
        printf(" %9s\n", "-");
    }
    peer.lacks_deterministic = peer.lacks_deterministic || !deterministic;
    (void)fflush(stdout);
}

static void print_gpu(const struct model *model)
{
    print_gpu_row(model, model->batch);
    if (model->large_batch != 0) {
        print_gpu_row(model, model->large_batch);
    }
}

/* ---- */

/* Whether --only lists it, or nothing. */
static bool is_wanted(const char *name)
{
    const size_t length = strlen(name);
    for (const char *at = only; at != NULL && *at != '\0'; at += strspn(at, ",")) {
        const size_t listed = strcspn(at, ",");
        if (listed == length && strncmp(at, name, length) == 0) {
            return true;
        }
        at += listed;
    }
    return only == NULL;
}

static void print_each(void (*print)(const struct model *model))
{
    for (size_t i = 0; i < KELP_ARRAY_COUNT(models); i++) {
        if (is_wanted(models[i].name) && (on_gpu || !models[i].gpu_alone)) {
            print(&models[i]);
        }
    }
}

/* The spares that run `kelp train` are made for tests: they report by Check, so they need one. */
START_TEST(table)
{
    if (on_gpu) {
        peer_start();
        print_gpu_head();
        print_each(print_gpu);
        peer_stop();
        if (peer.lacks_deterministic) {
            printf("* PyTorch has no deterministic algorithm for a part of it\n");
        }
    } else if (with_portable) {
        printf("2 workers and 1 shard; medians of %u rounds in turn\n", rounds);
        printf("%-9s %5s %9s %9s %6s\n", "model", "batch", "native", "portable", "ratio");
        print_each(print_portable);
    } else {
        print_head();
        print_each(print_row);
    }
}
END_TEST

/* EXIT_SKIPPED where there is no GPU, 1 where it does not work. */
static int check_gpu(void)
{
    struct kelp_error error = {KELP_OK, ""};
    struct kelp_device *device = NULL;
    const kelp_status status = kelp_device_cuda_create(0, &device, &error);
    if (status == KELP_ERR_NOT_FOUND || status == KELP_ERR_UNSUPPORTED) {
        printf("skipped: %s\n", error.text);
        return EXIT_SKIPPED;
    }
    if (status != KELP_OK) {
        (void)fprintf(stderr, "models: %s\n", error.text);
        return 1;
    }
    device->table->destroy(device);
    return 0;
}

static bool parse(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--portable") == 0) {
            with_portable = true;
            continue;
        }
        if (value == NULL) {
            return false;
        }
        if (strcmp(argv[i], "--rounds") == 0) {
            rounds = (unsigned)strtoul(value, NULL, 10);
        } else if (strcmp(argv[i], "--only") == 0) {
            only = value;
        } else if (strcmp(argv[i], "--scripts") == 0) {
            scripts = value;
        } else if (strcmp(argv[i], "--python") == 0) {
            python = value;
        } else if (strcmp(argv[i], "--device") == 0 && strcmp(value, "cuda") == 0) {
            on_gpu = true;
        } else if (strcmp(argv[i], "--precision") == 0 &&
                   (strcmp(value, "tf32") == 0 || strcmp(value, "bfloat16") == 0)) {
            precision = value;
        } else {
            return false;
        }
        i++;
    }
    return !(with_portable && on_gpu) && (on_gpu || strcmp(precision, "float32") == 0);
}

int main(int argc, char **argv)
{
    if (!parse(argc, argv)) {
        (void)fprintf(
            stderr,
            "usage: models [--rounds N] [--only MODEL,...] [--scripts FOLDER] [--python COMMAND]\n"
            "              [--portable | --device cuda [--precision tf32|bfloat16]]\n");
        return 2;
    }
    if (rounds < 1 || rounds > ROUNDS_MAX) {
        (void)fprintf(stderr, "models: --rounds is 1 to %d\n", ROUNDS_MAX);
        return 2;
    }
    const int status = on_gpu ? check_gpu() : 0;
    if (status != 0) {
        return status;
    }
    (void)setenv("KELP_BIN", KELP_BIN_DIR, 0);
    (void)setenv("KELP_SOURCE", KELP_SOURCE_DIR, 0);
    (void)curl_global_init(CURL_GLOBAL_DEFAULT);
    int failed = kelp_bench_run("models", &table, 1);
    curl_global_cleanup();
    return failed == 0 ? 0 : 1;
}

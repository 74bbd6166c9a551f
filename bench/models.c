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
 * With --kernels: what such a lane's time goes into, kernel by kernel, instead of PyTorch, and what
 * the device's speeds would allow (bench/models/roofline.h).
 *
 *     models [--rounds N] [--only MODEL,…] [--scripts FOLDER] [--python COMMAND]
 *            [--portable | --device cuda [--kernels] [--precision tf32|bfloat16]]
 *
 * FOLDER is that of torch_models.py, by default bench/ of the sources that this was built from.
 */
#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "bench/models/models.h"
#include "kernels/device.h"
#include "tests/lib/bench_suite.h"

#define EXIT_SKIPPED 77

struct models_options options = {.rounds = 3, .precision = "float32", .python = "python3"};

/* Whether --only lists it, or nothing. */
static bool is_wanted(const char *name)
{
    const size_t length = strlen(name);
    for (const char *at = options.only; at != NULL && *at != '\0'; at += strspn(at, ",")) {
        const size_t listed = strcspn(at, ",");
        if (listed == length && strncmp(at, name, length) == 0) {
            return true;
        }
        at += listed;
    }
    return options.only == NULL;
}

static void print_each(void (*print)(const struct bench_model *model))
{
    for (size_t i = 0; i < bench_model_count; i++) {
        if (is_wanted(bench_models[i].name) && (options.gpu || !bench_models[i].gpu_alone)) {
            print(&bench_models[i]);
        }
    }
}

/* The spares that run `kelp train` are made for tests: they report by Check, so they need one. */
START_TEST(table)
{
    if (options.kernels) {
        models_print_kernels_head();
        print_each(models_print_kernels);
    } else if (options.gpu) {
        models_print_gpu_head();
        print_each(models_print_gpu);
        models_print_gpu_foot();
    } else if (options.portable) {
        models_print_portable_head();
        print_each(models_print_portable);
    } else {
        models_print_cluster_head();
        print_each(models_print_cluster);
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
            options.portable = true;
            continue;
        }
        if (strcmp(argv[i], "--kernels") == 0) {
            options.kernels = true;
            continue;
        }
        if (value == NULL) {
            return false;
        }
        if (strcmp(argv[i], "--rounds") == 0) {
            options.rounds = (unsigned)strtoul(value, NULL, 10);
        } else if (strcmp(argv[i], "--only") == 0) {
            options.only = value;
        } else if (strcmp(argv[i], "--scripts") == 0) {
            options.scripts = value;
        } else if (strcmp(argv[i], "--python") == 0) {
            options.python = value;
        } else if (strcmp(argv[i], "--device") == 0 && strcmp(value, "cuda") == 0) {
            options.gpu = true;
        } else if (strcmp(argv[i], "--precision") == 0 &&
                   (strcmp(value, "tf32") == 0 || strcmp(value, "bfloat16") == 0)) {
            options.precision = value;
        } else {
            return false;
        }
        i++;
    }
    return !(options.portable && options.gpu) &&
           (options.gpu || (!options.kernels && strcmp(options.precision, "float32") == 0));
}

int main(int argc, char **argv)
{
    if (!parse(argc, argv)) {
        (void)fprintf(
            stderr,
            "usage: models [--rounds N] [--only MODEL,...] [--scripts FOLDER] [--python COMMAND]\n"
            "              [--portable | --device cuda [--kernels] [--precision tf32|bfloat16]]\n");
        return 2;
    }
    if (options.rounds < 1 || options.rounds > MODELS_ROUNDS_MAX) {
        (void)fprintf(stderr, "models: --rounds is 1 to %d\n", MODELS_ROUNDS_MAX);
        return 2;
    }
    const int status = options.gpu ? check_gpu() : 0;
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

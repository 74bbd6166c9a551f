#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/models/models.h"
#include "tests/lib/bench_suite.h"
#include "tests/lib/commands/run_train.h"
#include "tests/lib/etcd/tcp_double.h"

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

static double kelp_steps(const struct bench_model *model, const char *compute,
                         struct shares *shares)
{
    struct kelp_run run;
    char data[400], cluster[100], job[2000];
    kelp_run_prepare(&run);
    (void)snprintf(data, sizeof(data), "%s/samples.safetensors", run.folder);
    models_write_samples(model, data);
    (void)snprintf(cluster, sizeof(cluster), "lanes: 2, workers: 2, shards: 1, compute: %s",
                   compute);
    models_write_job(model, data, 2 * model->batch, cluster, job, sizeof(job));
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

/* 0 when python3-torch is not there. */
static double torch_steps(const struct bench_model *model)
{
    char command[1600], path[400], text[64] = "";
    double steps_per_s = 0;
    (void)snprintf(command, sizeof(command),
                   "PATH=/usr/bin:$PATH; export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1; "
                   "%s -c 'import torch' 2>/dev/null && %s '%s' %s %u %u",
                   options.python, options.python, models_script_path(path), model->name,
                   model->torch_steps, tcp_double_closed_port());
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

/* ---- tables ---- */

void models_print_cluster_head(void)
{
    printf(
        "2 workers and 1 shard, PyTorch with gloo and 2 processes; medians of %u rounds in turn; "
        "shares of the workers' time\n",
        options.rounds);
    printf("%-9s %5s %9s %10s %9s %10s %6s %9s %7s %8s\n", "model", "batch", "steps/s", "samples/s",
           "torch", "samples/s", "ratio", "operators", "commun.", "waiting");
}

void models_print_cluster(const struct bench_model *model)
{
    struct models_pairs pairs = {.count = 0};
    struct shares sums = {0, 0, 0}, shares;
    for (unsigned i = 0; i < options.rounds; i++) {
        const double kelp = kelp_steps(model, "native", &shares);
        sums.operators += shares.operators / options.rounds;
        sums.communication += shares.communication / options.rounds;
        sums.waiting += shares.waiting / options.rounds;
        models_add_pair(&pairs, kelp, torch_steps(model));
    }
    models_print_pairs(model->name, model->batch, &pairs, 2 * model->batch);
    printf(" %8.0f%% %6.0f%% %7.0f%%\n", 100 * sums.operators, 100 * sums.communication,
           100 * sums.waiting);
    (void)fflush(stdout);
}

void models_print_portable_head(void)
{
    printf("2 workers and 1 shard; medians of %u rounds in turn\n", options.rounds);
    printf("%-9s %5s %9s %9s %6s\n", "model", "batch", "native", "portable", "ratio");
}

void models_print_portable(const struct bench_model *model)
{
    double native[MODELS_ROUNDS_MAX], portable[MODELS_ROUNDS_MAX], ratios[MODELS_ROUNDS_MAX];
    struct shares shares;
    for (unsigned i = 0; i < options.rounds; i++) {
        native[i] = kelp_steps(model, "native", &shares);
        portable[i] = kelp_steps(model, "portable", &shares);
        ratios[i] = portable[i] / native[i];
    }
    printf("%-9s %5u %9.1f %9.1f %6.2f\n", model->name, model->batch,
           kelp_bench_median(native, options.rounds), kelp_bench_median(portable, options.rounds),
           kelp_bench_median(ratios, options.rounds));
    (void)fflush(stdout);
}

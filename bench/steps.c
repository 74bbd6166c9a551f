/*
 * Steps per second of a small model, which shows every microsecond of the protocol: DLinear S, two
 * workers and one shard, two lanes of 32 samples, one BLAS thread each. In turn, the same with
 * PyTorch, gloo and two processes, if python3-torch is installed. Also the processor time of a
 * cluster that waits for a worker.
 *
 *     steps [--rounds N] [--epochs N]
 */
#include <curl/curl.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <check.h>

#include "common/etcd/etcd.h"
#include "common/job/job.h"
#include "common/process/process.h"
#include "common/program/etcd_server.h"
#include "tests/lib/bench_suite.h"
#include "tests/lib/commands/run_train.h"
#include "tests/lib/etcd/tcp_double.h"

#define ROUNDS_MAX   21
#define IDLE_SECONDS 10

static const char job_text[] =
    "name: bench-steps\n"
    "seed: 1\n"
    "model: {kind: dlinear}\n"
    "data: {kind: synthetic}\n"
    "train: {epochs: 20, batch_size: 64, drop_last: true, evaluate: false}\n"
    "cluster: {lanes: 2, workers: 2, shards: 1}\n";

static double kelp_steps(const char *epochs)
{
    struct kelp_run run;
    char option[64];
    (void)snprintf(option, sizeof(option), "train.epochs=%s", epochs);
    const char *args[] = {"--set", option, NULL};

    kelp_run_prepare(&run);
    kelp_run_train(&run, kelp_test_write(run.folder, "job.yaml", job_text), args, 300);
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(run.result, "steps_per_s");
    if (run.exit_code != 0 || !cJSON_IsNumber(value)) {
        (void)fprintf(stderr, "kelp train failed (exit %d):\n%s\n", run.exit_code, run.output);
        exit(1);
    }
    double steps_per_s = value->valuedouble;
    kelp_run_fini(&run);
    return steps_per_s;
}

/* 0: python3-torch is not installed. */
static double torch_steps(void)
{
    char command[600];
    char text[64] = "";
    double steps_per_s = 0;
    const char *source = getenv("KELP_SOURCE");
    (void)snprintf(command, sizeof(command),
                   "PATH=/usr/bin:$PATH; python3 -c 'import torch' 2>/dev/null && "
                   "OMP_NUM_THREADS=1 python3 '%s/bench/torch_steps.py' 2000 %u",
                   source ? source : ".", tcp_double_closed_port());
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

/* ---- a cluster that waits
 * ---------------------------------------------------------------------------- */

static struct kelp_process *start_daemon(const char *name, const char *id, const char *url,
                                         const char *folder)
{
    char program[512];
    char log_path[512];
    struct kelp_process *process = NULL;
    struct kelp_error error;
    kelp_test_program(name, program, sizeof(program));
    (void)snprintf(log_path, sizeof(log_path), "%s/%s.log", folder, id);
    int fd = open(log_path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    const char *argv[] = {program, "--etcd", url,  "--job", "bench-idle", "--id",
                          id,      NULL,     NULL, NULL,    NULL};
    if (strcmp(name, "kelp-worker") != 0) {
        argv[7] = "--insecure";
    }
    if (strcmp(name, "kelp-coordinator") == 0) {
        argv[8] = "--run";
        argv[9] = folder;
    }
    struct kelp_process_options options = {.argv = argv, .stdout_fd = fd, .stderr_fd = fd};
    if (fd < 0 || kelp_process_start(&options, &process, &error) != KELP_OK) {
        (void)fprintf(stderr, "%s: %s\n", name, fd < 0 ? strerror(errno) : error.text);
        exit(1);
    }
    (void)close(fd);
    return process;
}

static void put_spec(const char *url)
{
    struct kelp_error error;
    struct kelp_etcd *etcd = NULL;
    struct kelp_job_file *file = NULL;
    char *text = NULL;
    file = kelp_job_file_create();
    if (!file || kelp_job_file_parse(file, "job", job_text, strlen(job_text), &error) != KELP_OK ||
        kelp_job_file_set(file, "name", "bench-idle", KELP_ORIGIN_FLAG, &error) != KELP_OK ||
        kelp_job_file_set(file, "cluster.workers", "3", KELP_ORIGIN_FLAG, &error) != KELP_OK ||
        kelp_job_file_finish(file, &error) != KELP_OK ||
        kelp_job_file_print(file, false, &text, &error) != KELP_OK ||
        kelp_etcd_open(url, &etcd, &error) != KELP_OK ||
        kelp_etcd_put(etcd, "/kelp/bench-idle/spec", text, 0, 5000, &error) != KELP_OK) {
        (void)fprintf(stderr, "specification: %s\n", error.text);
        exit(1);
    }
    free(text);
    kelp_job_file_destroy(file);
    kelp_etcd_close(etcd);
}

/* Two of three workers, a shard and a coordinator, waiting: their processor time as a share of
 * one core. */
static double idle_share(void)
{
    static const char *const programs[][2] = {{"kelp-coordinator", "coordinator-0"},
                                              {"kelp-ps", "shard-0"},
                                              {"kelp-worker", "worker-0"},
                                              {"kelp-worker", "worker-1"}};
    struct kelp_run run;
    struct kelp_error error;
    struct kelp_etcd_server *server = NULL;
    struct kelp_process *processes[KELP_ARRAY_COUNT(programs)];
    char data[300];
    char log_path[300];

    kelp_run_prepare(&run);
    (void)snprintf(data, sizeof(data), "%s/etcd", run.folder);
    (void)snprintf(log_path, sizeof(log_path), "%s/etcd.log", run.folder);
    struct kelp_etcd_server_options options = {.data_folder = data, .log_path = log_path};
    if (kelp_etcd_server_start(&options, &server, &error) != KELP_OK) {
        (void)fprintf(stderr, "etcd: %s\n", error.text);
        exit(1);
    }
    put_spec(kelp_etcd_server_url(server));
    for (size_t i = 0; i < KELP_ARRAY_COUNT(programs); i++) {
        processes[i] =
            start_daemon(programs[i][0], programs[i][1], kelp_etcd_server_url(server), run.folder);
    }
    struct timespec settle = {.tv_sec = 4}; /* nothing happens meanwhile: only time is measured */
    (void)nanosleep(&settle, NULL);
    double before = 0;
    double after = 0;
    for (size_t i = 0; i < KELP_ARRAY_COUNT(programs); i++) {
        before += kelp_bench_cpu_s(kelp_process_pid(processes[i]));
    }
    struct timespec measure = {.tv_sec = IDLE_SECONDS};
    (void)nanosleep(&measure, NULL);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(programs); i++) {
        after += kelp_bench_cpu_s(kelp_process_pid(processes[i]));
    }
    for (size_t i = 0; i < KELP_ARRAY_COUNT(programs); i++) {
        kelp_process_stop(processes[i], 2000);
        kelp_process_destroy(processes[i]);
    }
    kelp_etcd_server_stop(server, 1000);
    kelp_run_fini(&run);
    return (after - before) / IDLE_SECONDS;
}

static unsigned rounds = 5;
static const char *epochs = "20";

static void print_table(void)
{
    double kelp[ROUNDS_MAX];
    double torch[ROUNDS_MAX];
    double ratios[ROUNDS_MAX];
    unsigned torch_count = 0;

    printf("DLinear S 96 -> 96, 2 workers, 1 shard, 2 lanes of 32 samples; steps/s\n");
    printf("%-7s %10s %14s %8s\n", "round", "kelp", "torch gloo", "ratio");
    for (unsigned i = 0; i < rounds; i++) {
        kelp[i] = kelp_steps(epochs);
        double steps_per_s = torch_steps();
        if (steps_per_s > 0) {
            torch[torch_count] = steps_per_s;
            ratios[torch_count] = kelp[i] / steps_per_s;
            printf("%-7u %10.0f %14.0f %8.2f\n", i + 1, kelp[i], steps_per_s, ratios[torch_count]);
            torch_count++;
        } else {
            printf("%-7u %10.0f %14s %8s\n", i + 1, kelp[i], "not installed", "-");
        }
        (void)fflush(stdout);
    }
    printf("%-7s %10.0f", "median", kelp_bench_median(kelp, rounds));
    if (torch_count > 0) {
        printf(" %14.0f %8.2f", kelp_bench_median(torch, torch_count),
               kelp_bench_median(ratios, torch_count));
    }
    printf("\n");
}

/* Helpers that run `kelp train` are made for tests and report through Check. */
START_TEST(steps)
{
    print_table();
    printf("\nwaiting cluster (coordinator, shard, 2 of 3 workers), etcd aside: %.2f %% of a core "
           "over %d s\n",
           100 * idle_share(), IDLE_SECONDS);
}
END_TEST

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 < argc && strcmp(argv[i], "--rounds") == 0) {
            rounds = (unsigned)strtoul(argv[i + 1], NULL, 10);
        } else if (i + 1 < argc && strcmp(argv[i], "--epochs") == 0) {
            epochs = argv[i + 1];
        } else {
            (void)fprintf(stderr, "usage: steps [--rounds N] [--epochs N]\n");
            return 2;
        }
    }
    if (rounds < 1 || rounds > ROUNDS_MAX) {
        (void)fprintf(stderr, "steps: --rounds is 1 to %d\n", ROUNDS_MAX);
        return 2;
    }
    (void)setenv("KELP_BIN", KELP_BIN_DIR, 0);
    (void)setenv("KELP_SOURCE", KELP_SOURCE_DIR, 0);
    (void)curl_global_init(CURL_GLOBAL_DEFAULT);
    int failed = kelp_bench_run("steps", &steps, 1);
    curl_global_cleanup();
    return failed == 0 ? 0 : 1;
}

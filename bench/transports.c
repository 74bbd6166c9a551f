/*
 * What mutual TLS costs, and what gradients in half the bytes save (transport.precision): training
 * steps per second with unix sockets, with plain ports on loopback and with ports and certificates,
 * in turn on the same machine. DLinear, whose time is mostly protocol, and an MLP of 18 MB, whose
 * time is mostly bytes. Two workers and two shards, etcd on a socket. Also the processor time of a
 * step over all daemons, which a busy machine affects less, and the bytes of a step over the whole
 * loopback interface; `unshare -n` gives the bench an interface of its own.
 *
 *     transports [--rounds N] [--seconds N]
 */
#include <curl/curl.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <check.h>

#include "cli/cluster/job_client.h"
#include "common/base/clock.h"
#include "common/job/job.h"
#include "common/program/etcd_server.h"
#include "tests/lib/bench_suite.h"
#include "tests/lib/commands/run_train.h"
#include "tests/lib/tls/test_certificates.h"

#define JOB        "bench-transports"
#define ROUNDS_MAX 21
#define CALL_MS    5000
#define WARM_STEPS 20
#define START_MS   120000

static const char *const cluster_text =
    "name: " JOB "\nseed: 1\n"
    "train: {epochs: 100000, batch_size: 64, drop_last: true, evaluate: false}\n"
    "cluster: {lanes: 2, workers: 2, shards: 2}\n";

static const struct model {
    const char *name;
    const char *text;
} models[] = {
    {"DLinear", "model: {kind: dlinear}\ndata: {kind: synthetic}\n"},
    /* 336 · 2048 + 2048 · 1792 + 1792 · 96 weights, and biases */
    {"MLP 18 MB", "model: {kind: mlp, hidden: [2048, 1792]}\n"
                  "data: {kind: synthetic, seq_len: 336, pred_len: 96}\n"},
};

enum way { SOCKETS, PLAIN, TLS };
static const struct column {
    const char *name;
    enum way way;
    const char *precision;
} columns[] = {
    {"unix sockets", SOCKETS, "float32"}, {"plain TCP", PLAIN, "float32"},
    {"TCP, bfloat16", PLAIN, "bfloat16"}, {"mutual TLS", TLS, "float32"},
    {"TLS, bfloat16", TLS, "bfloat16"},
};
#define COLUMNS KELP_ARRAY_COUNT(columns)
static const char *const roles[] = {"coordinator", "shard", "worker", "operator"};
static const struct daemon {
    const char *program, *id, *role;
} daemons[] = {{"kelp-coordinator", "coordinator-0", "coordinator"},
               {"kelp-ps", "shard-0", "shard"},
               {"kelp-ps", "shard-1", "shard"},
               {"kelp-worker", "worker-0", "worker"},
               {"kelp-worker", "worker-1", "worker"}};

static struct kelp_run run; /* only its folder is used */
static unsigned rounds = 5;
static unsigned seconds = 5;

static void must(kelp_status status, const char *what, const struct kelp_error *error)
{
    if (status != KELP_OK) {
        (void)fprintf(stderr, "%s: %s\n", what, error->text);
        exit(1);
    }
}

/* ---- the cluster ---------------------------------------------------------------------------- */

static const char *in_folder(const char *name, const char *more, char path[400])
{
    (void)snprintf(path, 400, "%s/%s%s", run.folder, name, more);
    return path;
}

static struct kelp_etcd_server *start_etcd(void)
{
    struct kelp_etcd_server *server = NULL;
    struct kelp_error error;
    char data[400], log[400], sockets[400];
    struct kelp_etcd_server_options options = {.data_folder = in_folder("etcd", "", data),
                                               .log_path = in_folder("etcd", ".log", log),
                                               .socket_folder = in_folder("s", "", sockets)};

    (void)mkdir(sockets, 0700); /* exists from the second round on */
    must(kelp_etcd_server_start(&options, &server, &error), "etcd", &error);
    return server;
}

static void put_spec(const char *url, const struct model *model, const char *precision)
{
    struct kelp_error error = {.text = ""};
    struct kelp_etcd *etcd = NULL;
    struct kelp_job_file *file = kelp_job_file_create();
    char text[2000];
    char *canonical = NULL;

    (void)snprintf(text, sizeof(text), "%stransport: {precision: %s}\n%s", cluster_text, precision,
                   model->text);
    must(kelp_job_file_parse(file, "job", text, strlen(text), &error), "job", &error);
    must(kelp_job_file_finish(file, &error), "job", &error);
    must(kelp_job_file_print(file, false, &canonical, &error), "job", &error);
    must(kelp_etcd_open(url, &etcd, &error), "etcd", &error);
    must(kelp_etcd_put(etcd, "/kelp/" JOB "/spec", canonical, 0, CALL_MS, &error), "spec", &error);
    kelp_etcd_close(etcd);
    kelp_job_file_destroy(file);
    free(canonical);
}

static struct kelp_process *start_daemon(const struct daemon *daemon, enum way way, const char *url)
{
    char program[512], log[400], listen[400], certs[400];
    struct kelp_process *process = NULL;
    struct kelp_error error;
    bool serves = strcmp(daemon->program, "kelp-worker") != 0;
    const char *argv[16] = {program, "--etcd", url, "--job", JOB, "--id", daemon->id};
    size_t count = 7;

    kelp_test_program(daemon->program, program, sizeof(program));
    if (serves) {
        argv[count++] = "--run";
        argv[count++] = run.folder;
    }
    if (serves && way == SOCKETS) {
        (void)snprintf(listen, sizeof(listen), "unix:%s/s/%s", run.folder, daemon->id);
        argv[count++] = "--listen";
        argv[count++] = listen;
    }
    if (serves && way == PLAIN) {
        argv[count++] = "--insecure";
    }
    if (way == TLS) {
        argv[count++] = "--certs";
        argv[count++] = in_folder("certs/", daemon->role, certs);
    }
    int fd =
        open(in_folder(daemon->id, ".log", log), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
    struct kelp_process_options options = {.argv = argv, .stdout_fd = fd, .stderr_fd = fd};
    must(kelp_process_start(&options, &process, &error), daemon->id, &error);
    (void)close(fd);
    return process;
}

/* ---- steps ---------------------------------------------------------------------------------- */

/* Completed training steps; 0: unknown. */
static uint64_t step_now(struct kelp_job_client *client)
{
    Kelp__V1__StatusReply *reply = NULL;
    uint64_t step = 0;

    if (kelp_job_client_status(client, CALL_MS, &reply, NULL) == KELP_OK) {
        step = reply->word ? reply->word->step : 0;
        kelp_job_client_status_free(reply);
    }
    return step;
}

/* Processor time of all daemons. */
static double cpu_seconds(struct kelp_process *const *processes)
{
    double seconds_all = 0;

    for (size_t i = 0; i < KELP_ARRAY_COUNT(daemons); i++) {
        seconds_all += kelp_bench_cpu_s(kelp_process_pid(processes[i]));
    }
    return seconds_all;
}

/* Bytes over loopback so far; 0: unknown. */
static double loopback_bytes(void)
{
    FILE *file = fopen("/proc/net/dev", "re");
    char line[512];
    double bytes = 0;

    while (file && fgets(line, sizeof(line), file)) {
        const char *name = strstr(line, "lo:");
        bytes = name ? strtod(name + 3, NULL) : bytes;
    }
    if (file) {
        (void)fclose(file);
    }
    return bytes;
}

struct rate {
    double steps_per_s;
    double cpu_ms; /* of a step, like the next one */
    double megabytes;
};

/* Measure from one change of the step to another, after warming up. */
static struct rate measure(struct kelp_job_client *client, struct kelp_process *const *processes)
{
    double cpu_s = 0, bytes = 0;
    uint64_t give_up_ms = kelp_clock_ms() + START_MS;
    uint64_t first = 0, last = 0, begin_us = 0, end_us = 0;

    while (end_us < begin_us + seconds * 1000000ull || begin_us == 0) {
        uint64_t step = step_now(client);
        uint64_t now_us = kelp_clock_us();
        if (step > WARM_STEPS && first == 0) {
            first = step;
            begin_us = now_us;
            cpu_s = cpu_seconds(processes);
            bytes = loopback_bytes();
        }
        end_us = step > last ? now_us : end_us;
        last = step;
        if (begin_us == 0 && kelp_clock_ms() > give_up_ms) {
            (void)fprintf(stderr, "training does not begin; see %s\n", run.folder);
            exit(1);
        }
        kelp_test_look_later();
    }
    double steps = (double)(last - first);
    return (struct rate){.steps_per_s = steps * 1e6 / (double)(end_us - begin_us),
                         .cpu_ms = (cpu_seconds(processes) - cpu_s) * 1e3 / steps,
                         .megabytes = (loopback_bytes() - bytes) / 1e6 / steps};
}

static struct rate train(const struct model *model, const struct column *column)
{
    const enum way way = column->way;
    struct kelp_process *processes[KELP_ARRAY_COUNT(daemons)];
    struct kelp_job_client *client = NULL;
    struct kelp_error error;
    char certs[400];

    kelp_run_prepare(&run);
    kelp_test_authority(run.folder, "authority");
    for (size_t i = 0; i < KELP_ARRAY_COUNT(roles); i++) {
        char name[64], out[64];
        (void)snprintf(name, sizeof(name), JOB "/%s", roles[i]);
        (void)snprintf(out, sizeof(out), "certs/%s", roles[i]);
        kelp_test_issue(&(struct kelp_test_issue){run.folder, "authority", out, name, NULL, 5});
    }
    struct kelp_etcd_server *server = start_etcd();
    const char *url = kelp_etcd_server_url(server);
    put_spec(url, model, column->precision);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(daemons); i++) {
        processes[i] = start_daemon(&daemons[i], way, url);
    }
    must(kelp_job_client_open(url, JOB, way == TLS ? in_folder("certs/operator", "", certs) : NULL,
                              &client, &error),
         "client", &error);
    struct rate rate = measure(client, processes);
    kelp_job_client_close(client);
    for (size_t i = KELP_ARRAY_COUNT(daemons); i > 0; i--) {
        kelp_process_stop(processes[i - 1], 2000);
        kelp_process_destroy(processes[i - 1]);
    }
    kelp_etcd_server_stop(server, 1000);
    kelp_run_fini(&run);
    return rate;
}

/* Print the median of each column, with its unit. */
static void print_medians(const char *what, double values[COLUMNS][ROUNDS_MAX], const char *unit)
{
    printf("%-10s %-6s", "", what);
    for (size_t c = 0; c < COLUMNS; c++) {
        printf(" %14.2f", kelp_bench_median(values[c], rounds));
    }
    printf("  %s\n", unit);
}

static void print_model(const struct model *model)
{
    static double rates[COLUMNS][ROUNDS_MAX], step[COLUMNS][ROUNDS_MAX], cpu[COLUMNS][ROUNDS_MAX],
        bytes[COLUMNS][ROUNDS_MAX];

    printf("\n%-10s %-6s", model->name, "round");
    for (size_t c = 0; c < COLUMNS; c++) {
        printf(" %14s", columns[c].name);
    }
    printf("\n");
    for (unsigned i = 0; i < rounds; i++) {
        printf("%-10s %-6u", "", i + 1);
        for (size_t c = 0; c < COLUMNS; c++) {
            const struct rate rate = train(model, &columns[c]);
            rates[c][i] = rate.steps_per_s;
            step[c][i] = 1e3 / rate.steps_per_s;
            cpu[c][i] = rate.cpu_ms;
            bytes[c][i] = rate.megabytes;
            printf(" %14.1f", rates[c][i]);
            (void)fflush(stdout);
        }
        printf("\n");
    }
    print_medians("median", rates, "steps/s");
    print_medians("a step", step, "ms");
    print_medians("CPU", cpu, "ms a step");
    print_medians("bytes", bytes, "MB a step over loopback");
    (void)fflush(stdout);
}

/* Helpers that start clusters are made for tests and report through Check. */
START_TEST(transports)
{
    printf("2 workers, 2 shards, 2 lanes of 32 samples; %u s each, in turn\n", seconds);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(models); i++) {
        print_model(&models[i]);
    }
}
END_TEST

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 < argc && strcmp(argv[i], "--rounds") == 0) {
            rounds = (unsigned)strtoul(argv[i + 1], NULL, 10);
        } else if (i + 1 < argc && strcmp(argv[i], "--seconds") == 0) {
            seconds = (unsigned)strtoul(argv[i + 1], NULL, 10);
        } else {
            (void)fprintf(stderr, "usage: transports [--rounds N] [--seconds N]\n");
            return 2;
        }
    }
    if (rounds < 1 || rounds > ROUNDS_MAX || seconds < 1 || seconds > 600) {
        (void)fprintf(stderr, "transports: --rounds is 1 to %d, --seconds 1 to 600\n", ROUNDS_MAX);
        return 2;
    }
    (void)setenv("KELP_BIN", KELP_BIN_DIR, 0);
    (void)setenv("OPENBLAS_NUM_THREADS", "1", 0);
    (void)curl_global_init(CURL_GLOBAL_DEFAULT);
    kelp_rpc_global_init();
    int failed = kelp_bench_run("transports", &transports, 1);
    kelp_rpc_global_fini();
    curl_global_cleanup();
    return failed == 0 ? 0 : 1;
}

/*
 * Exchanges over one stream per client, one in flight: what a push and pull costs on the wire.
 *
 *     build/release/bench/rpc [SECONDS]
 *
 * A server and one or two clients, each a process with one thread. A message is sent there and back
 * (without copies, out of the same memory). Both sides spin before they sleep. Prints round trips
 * and processor time.
 */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/rpc/rpc.h"

#define CLIENTS_MAX 2
#define SAMPLES_MAX 400000
#define BYTES_MAX   (16u << 20)

struct shared {
    atomic_int port;
    atomic_int ready;
    double us[CLIENTS_MAX][SAMPLES_MAX];
    int count[CLIENTS_MAX];
    double cpu_s[CLIENTS_MAX];
    double wall_s[CLIENTS_MAX];
    double server_cpu_s; /* total */
};

static struct shared *shared;
static struct kelp_spin spin; /* each process has its own */
static double seconds = 1.0;
static uint8_t memory[4u << 20];

static double now_s(void)
{
    return 1e-6 * (double)kelp_clock_us();
}

static double cpu_s(void)
{
    struct rusage usage;

    (void)getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

static void nothing(void *user)
{
    (void)user;
}

static void die(const char *what)
{
    (void)fprintf(stderr, "bench rpc: %s\n", what);
    exit(1);
}

static void send_bytes(struct kelp_rpc_stream *stream, size_t length)
{
    struct kelp_rpc_message *message = kelp_rpc_message_create();

    if (!message || kelp_rpc_message_borrow(message, memory, length, nothing, NULL) != KELP_OK ||
        kelp_rpc_stream_send(stream, message) != KELP_OK) {
        die("cannot send");
    }
}

/* ---- server ------------------------------------------------------------------------------------
 */

static void echo(struct kelp_rpc_stream *stream, struct kelp_rpc_message *message, void *user)
{
    (void)user;
    send_bytes(stream, kelp_rpc_message_length(message));
}

static void server_closed(struct kelp_rpc_stream *stream, kelp_status status, const char *text,
                          void *user)
{
    (void)stream;
    (void)status;
    (void)text;
    (void)user;
}

static const struct kelp_rpc_stream_events *accept_stream(struct kelp_rpc_stream *stream,
                                                          void *server_user, void **ret_user)
{
    static const struct kelp_rpc_stream_events events = {echo, server_closed};

    (void)stream;
    (void)server_user;
    *ret_user = NULL;
    return &events;
}

static void serve(int started)
{
    static const struct kelp_rpc_method method = {.path = "/bench/Echo", .accept = accept_stream};
    struct kelp_rpc_server_options options = {.address = "127.0.0.1:0",
                                              .message_bytes_max = BYTES_MAX,
                                              .methods = &method,
                                              .method_count = 1};
    struct kelp_rpc_loop *loop = NULL;
    struct kelp_rpc_server *server = NULL;

    kelp_rpc_global_init();
    if (kelp_rpc_loop_create(&loop, NULL) != KELP_OK ||
        kelp_rpc_server_open(loop, &options, &server, NULL) != KELP_OK) {
        die("cannot open the server");
    }
    atomic_store(&shared->port, kelp_rpc_server_port(server));
    (void)close(started); /* the other end of the pipe reads end of file */
    for (;;) {
        (void)kelp_rpc_loop_run_spin(loop, &spin, -1);
        shared->server_cpu_s = cpu_s();
    }
}

/* ---- client ------------------------------------------------------------------------------------
 */

struct client {
    int index;
    size_t bytes;
    double sent_s, end_s;
    bool done;
};

static void next(struct kelp_rpc_stream *stream, struct client *client)
{
    client->sent_s = now_s();
    send_bytes(stream, client->bytes);
}

static void answered(struct kelp_rpc_stream *stream, struct kelp_rpc_message *message, void *user)
{
    struct client *client = user;
    double at_s = now_s();
    int *count = &shared->count[client->index];

    (void)message;
    if (*count < SAMPLES_MAX) {
        shared->us[client->index][(*count)++] = (at_s - client->sent_s) * 1e6;
    }
    if (at_s >= client->end_s) {
        kelp_rpc_stream_close(stream, KELP_OK, NULL);
    } else {
        next(stream, client);
    }
}

static void client_closed(struct kelp_rpc_stream *stream, kelp_status status, const char *text,
                          void *user)
{
    (void)stream;
    ((struct client *)user)->done = true;
    if (status != KELP_OK) {
        die(text);
    }
}

static void run_client(int index, int client_count, size_t bytes)
{
    static const struct kelp_rpc_stream_events events = {answered, client_closed};
    struct client client = {.index = index, .bytes = bytes};
    struct kelp_rpc_loop *loop = NULL;
    struct kelp_rpc_channel *channel = NULL;
    struct kelp_rpc_stream *stream = NULL;
    char address[32];

    kelp_rpc_global_init();
    (void)snprintf(address, sizeof(address), "127.0.0.1:%d", atomic_load(&shared->port));
    if (kelp_rpc_loop_create(&loop, NULL) != KELP_OK ||
        kelp_rpc_channel_open(loop, address, KELP_ROLE_SHARD, BYTES_MAX, &channel, NULL) !=
            KELP_OK ||
        kelp_rpc_stream_open(channel,
                             &(struct kelp_rpc_stream_options){.path = "/bench/Echo",
                                                               .first_message_ms = 5000,
                                                               .events = &events,
                                                               .user = &client},
                             &stream, NULL) != KELP_OK) {
        die("cannot open the stream");
    }
    atomic_fetch_add(&shared->ready, 1);
    while (atomic_load(&shared->ready) < client_count) {
        (void)kelp_rpc_loop_run(loop, 1);
    }
    double cpu_before_s = cpu_s();
    double start_s = now_s();
    client.end_s = start_s + seconds;
    next(stream, &client);
    while (!client.done) {
        (void)kelp_rpc_loop_run_spin(loop, &spin, -1);
    }
    shared->cpu_s[index] = cpu_s() - cpu_before_s;
    shared->wall_s[index] = now_s() - start_s;
    kelp_rpc_channel_close(channel);
    kelp_rpc_loop_destroy(loop);
    kelp_rpc_global_fini();
}

/* ---- table -------------------------------------------------------------------------------------
 */

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;

    return (x > y) - (x < y);
}

static void measure(int client_count, size_t bytes)
{
    pid_t pids[CLIENTS_MAX];

    atomic_store(&shared->ready, 0);
    memset(shared->count, 0, sizeof(shared->count));
    double server_before_s = shared->server_cpu_s;
    for (int i = 0; i < client_count; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            run_client(i, client_count, bytes);
            _exit(0);
        }
    }
    for (int i = 0; i < client_count; i++) {
        int status = 0;
        if (waitpid(pids[i], &status, 0) < 0 || status != 0) {
            die("a client failed");
        }
    }
    double server_s = shared->server_cpu_s - server_before_s;
    double rate = 0;
    double client_s = 0;
    int total = 0;
    for (int i = 0; i < client_count; i++) {
        rate += shared->count[i] / shared->wall_s[i];
        client_s += shared->cpu_s[i];
        total += shared->count[i];
    }
    double *us = shared->us[0];
    int count = shared->count[0];
    qsort(us, (size_t)count, sizeof(*us), compare);
    printf("%7d %9zu %9.0f %9.1f %9.1f %9.2f %11.1f %11.1f\n", client_count, bytes, rate,
           us[count / 2], us[count * 99 / 100], 2 * rate * (double)bytes * 1e-9,
           client_s / total * 1e6, server_s / total * 1e6);
    (void)fflush(stdout);
}

int main(int argc, char **argv)
{
    static const size_t sizes[] = {64, 4 << 10, 64 << 10, 128 << 10, 1 << 20, 4 << 20};

    seconds = argc > 1 ? strtod(argv[1], NULL) : 1.0;
    kelp_spin_init(&spin, KELP_SPIN_US, kelp_clock_us());
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        die("no memory");
    }
    int started[2];
    char none;
    if (pipe(started) != 0) {
        die("no pipe");
    }
    pid_t server = fork();
    if (server == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        serve(started[1]);
    }
    (void)close(started[1]);
    if (read(started[0], &none, 1) != 0 || atomic_load(&shared->port) == 0) {
        die("the server did not start");
    }
    printf("%7s %9s %9s %9s %9s %9s %11s %11s\n", "clients", "bytes", "per s", "p50 us", "p99 us",
           "GB/s", "client us", "server us");
    for (int clients = 1; clients <= CLIENTS_MAX; clients++) {
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            measure(clients, sizes[i]);
        }
    }
    (void)kill(server, SIGKILL);
    (void)waitpid(server, NULL, 0);
    return 0;
}

/*
 * Gradients to a shard and weights back on one host: through a channel of shared memory
 * (common/shm), through a stream over such a channel (common/rpc), which copies what is sent once
 * into it, and over gRPC on a unix socket; beside what the memory alone can do.
 *
 *     build/release/bench/shm [SECONDS]
 *
 * A push is read once by the server, which adds it to a vector where it lies; a pull is copied once
 * by the client, into a vector of its own. Larger ones travel in pieces of 4 MiB, and one is under
 * way at a time. Client and server are processes with one thread, which look before they sleep.
 * Each number is the median of SECONDS (0.3).
 */
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/rpc/rpc.h"
#include "common/shm/shm_channel.h"
#include "common/shm/shm_socket.h"
#include "kernels/optimizer.h"
#include "tests/lib/shm_puppet.h"

#define LARGEST     (64u << 20)
#define PIECE       (4u << 20)
#define MESSAGE_MAX (PIECE + 4096)
#define SAMPLES_MAX 200000
#define LOOKS       16 /* between two looks at the clock */

/* What the client asks for, the copied bytes of each of its messages. */
struct request {
    uint64_t pushed; /* bytes of the whole push, of which this message has a piece */
    uint64_t pulled; /* bytes to be sent back; both 0: a word */
};

static double seconds = 0.3;
static double samples[SAMPLES_MAX];

static void die(const char *what)
{
    (void)fprintf(stderr, "bench shm: %s\n", what);
    exit(1);
}

static double now_us(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

static double cpu_s(void)
{
    struct rusage usage;

    (void)getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

/* Set off from one another within a page, as Kelp's own arrays are. */
static uint8_t *vector(unsigned index)
{
    uint8_t *memory = mmap(NULL, LARGEST + 8192, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

    if (memory == MAP_FAILED) {
        die("no memory");
    }
    return memory + (size_t)index * 320;
}

static size_t piece_of(uint64_t whole, uint64_t at)
{
    return whole - at < PIECE ? (size_t)(whole - at) : PIECE;
}

/* ---- shared memory ---- */

struct end {
    struct kelp_shm_channel *channel;
    struct kelp_spin spin;
    struct kelp_shm_area *area;
    uint8_t *memory; /* in it */
    uint8_t *own;
    uint64_t at; /* bytes of the push that came */
};

static void end_open(struct end *end, int socket)
{
    *end = (struct end){.own = vector(1)};
    kelp_spin_init(&end->spin, KELP_SPIN_US, kelp_clock_us());
    if (kelp_shm_channel_open(socket, MESSAGE_MAX, &end->channel, NULL) != KELP_OK ||
        kelp_shm_area_create(LARGEST, &end->area, NULL) != KELP_OK) {
        die("no channel");
    }
    end->memory = kelp_shm_area_bytes(end->area);
}

/* As a loop of common/rpc waits: it looks, then it sleeps. */
static void end_wait(struct end *end, int timeout_ms)
{
    const uint64_t begin_us = kelp_clock_us();
    const uint32_t look_us = kelp_spin_begin(&end->spin, begin_us);
    uint64_t looked_us = 0;
    bool found = false;

    while (!found && looked_us < look_us) {
        for (unsigned i = 0; i < LOOKS && !found; i++) {
            found = kelp_shm_channel_has_message(end->channel);
        }
        (void)sched_yield();
        looked_us = kelp_clock_us() - begin_us;
    }
    if (look_us > 0) {
        kelp_spin_end(&end->spin, looked_us, found);
    }
    if (!found) {
        (void)kelp_shm_pair_wait(end->channel, timeout_ms);
    }
}

static void end_send(struct end *end, const struct request *request, size_t offset, size_t length)
{
    const struct kelp_shm_part parts[] = {
        {.bytes = request, .length = sizeof(*request)},
        {.bytes = end->memory + offset, .length = length, .area = end->area}};
    kelp_status status;

    while ((status = kelp_shm_channel_send(end->channel, parts, length > 0 ? 2 : 1, NULL, NULL,
                                           NULL)) == KELP_ERR_BUSY) {
        struct kelp_shm_message *none = NULL; /* a hello or a bell */
        if (kelp_shm_channel_receive(end->channel, &none, NULL) == KELP_ERR_BUSY) {
            end_wait(end, -1);
        }
    }
    if (status != KELP_OK) {
        die("cannot send through shared memory");
    }
}

/* NULL: the other end has gone. */
static struct kelp_shm_message *end_receive(struct end *end)
{
    struct kelp_shm_message *message = NULL;
    kelp_status status;

    while ((status = kelp_shm_channel_receive(end->channel, &message, NULL)) == KELP_ERR_BUSY) {
        end_wait(end, -1);
    }
    return status == KELP_OK ? message : NULL;
}

static void send_pieces(struct end *end, const struct request *request, uint64_t whole)
{
    uint64_t at = 0;

    do {
        end_send(end, request, at, piece_of(whole, at));
        at += piece_of(whole, at);
    } while (at < whole);
}

static void shm_serve(int socket)
{
    struct kelp_shm_message *message;
    struct end end;

    end_open(&end, socket);
    while ((message = end_receive(&end))) {
        struct request request;
        memcpy(&request, kelp_shm_message_part(message, 0).bytes, sizeof(request));
        if (request.pushed > 0) {
            const struct kelp_shm_bytes piece = kelp_shm_message_part(message, 1);
            kelp_vector_add((float *)(void *)(end.own + end.at), piece.bytes, piece.length / 4);
            end.at += piece.length;
        }
        kelp_shm_message_release(message);
        if (end.at == request.pushed) {
            end.at = 0;
            send_pieces(&end, &request, request.pulled);
        }
    }
    exit(0);
}

static void shm_exchange(void *user, const struct request *request)
{
    struct end *end = user;
    uint64_t at = 0;

    send_pieces(end, request, request->pushed);
    do {
        struct kelp_shm_message *message = end_receive(end);
        if (!message) {
            die("the server through shared memory has gone");
        }
        if (request->pulled > 0) {
            const struct kelp_shm_bytes piece = kelp_shm_message_part(message, 1);
            memcpy(end->own + at, piece.bytes, piece.length);
            at += piece.length;
        }
        kelp_shm_message_release(message);
    } while (at < request->pulled);
}

/* ---- gRPC ---- */

struct peer {
    struct kelp_rpc_loop *loop;
    struct kelp_spin spin;
    struct kelp_rpc_stream *stream;
    uint8_t *memory;
    uint8_t *own;
    uint64_t at; /* bytes that came */
    const struct request *request;
    bool answered;
};

static void nothing(void *user)
{
    (void)user;
}

static void peer_send(const struct peer *peer, const struct request *request, size_t offset,
                      size_t length)
{
    struct kelp_rpc_message *message = kelp_rpc_message_create();

    if (!message || kelp_rpc_message_copy(message, request, sizeof(*request)) != KELP_OK ||
        (length > 0 && kelp_rpc_message_borrow(message, peer->memory + offset, length, nothing,
                                               NULL) != KELP_OK) ||
        kelp_rpc_stream_send(peer->stream, message) != KELP_OK) {
        die("cannot send over gRPC");
    }
}

static void peer_send_pieces(const struct peer *peer, const struct request *request, uint64_t whole)
{
    uint64_t at = 0;

    do {
        peer_send(peer, request, at, piece_of(whole, at));
        at += piece_of(whole, at);
    } while (at < whole);
}

/* The request of a message, which is cut off; then what each segment has of the payload. Floats
 * that two segments share are left out: they are few. */
static void each_segment(struct kelp_rpc_message *message, struct request *ret_request,
                         void (*take)(struct peer *peer, const uint8_t *bytes, size_t length),
                         struct peer *peer)
{
    size_t head = 0;

    for (size_t i = 0; i < kelp_rpc_message_segment_count(message); i++) {
        struct kelp_rpc_segment segment = kelp_rpc_message_segment(message, i);
        while (head < sizeof(*ret_request) && segment.length > 0) {
            ((uint8_t *)ret_request)[head++] = *segment.bytes++;
            segment.length--;
        }
        if (segment.length > 0) {
            take(peer, segment.bytes, segment.length);
            peer->at += segment.length;
        }
    }
}

static void add_segment(struct peer *peer, const uint8_t *bytes, size_t length)
{
    kelp_vector_add((float *)(void *)(peer->own + peer->at / 4 * 4), bytes, length / 4);
}

static void copy_segment(struct peer *peer, const uint8_t *bytes, size_t length)
{
    memcpy(peer->own + peer->at, bytes, length);
}

static void on_request(struct kelp_rpc_stream *stream, struct kelp_rpc_message *message, void *user)
{
    struct peer *peer = user;
    struct request request = {0};

    peer->stream = stream;
    each_segment(message, &request, add_segment, peer);
    if (peer->at == request.pushed) {
        peer->at = 0;
        peer_send_pieces(peer, &request, request.pulled);
    }
}

static void on_answer(struct kelp_rpc_stream *stream, struct kelp_rpc_message *message, void *user)
{
    struct peer *peer = user;
    struct request request = {0};

    (void)stream;
    each_segment(message, &request, copy_segment, peer);
    peer->answered = peer->at == peer->request->pulled;
}

static void on_closed(struct kelp_rpc_stream *stream, kelp_status status, const char *text,
                      void *user)
{
    (void)stream;
    (void)text;
    (void)user;
    if (status != KELP_OK) {
        exit(1);
    }
}

static const struct kelp_rpc_stream_events *accept_stream(struct kelp_rpc_stream *stream,
                                                          void *server_user, void **ret_user)
{
    static const struct kelp_rpc_stream_events events = {on_request, on_closed};

    (void)stream;
    *ret_user = server_user;
    return &events;
}

static void rpc_serve(const char *address, int started)
{
    static const struct kelp_rpc_method method = {
        .path = "/bench/Exchange", .accept = accept_stream, .shared = true};
    struct peer peer = {.memory = vector(2), .own = vector(3)};
    const struct kelp_rpc_server_options options = {.address = address,
                                                    .message_bytes_max = MESSAGE_MAX,
                                                    .shared = true,
                                                    .methods = &method,
                                                    .method_count = 1,
                                                    .user = &peer};
    struct kelp_rpc_server *server = NULL;

    kelp_spin_init(&peer.spin, KELP_SPIN_US, kelp_clock_us());
    kelp_rpc_global_init();
    if (kelp_rpc_loop_create(&peer.loop, NULL) != KELP_OK ||
        kelp_rpc_server_open(peer.loop, &options, &server, NULL) != KELP_OK) {
        die("cannot open the server over gRPC");
    }
    (void)close(started); /* whoever waits at the other end reads the end of it */
    for (;;) {
        (void)kelp_rpc_loop_run_spin(peer.loop, &peer.spin, -1);
    }
}

static void rpc_connect(struct peer *peer, const char *address, bool shared)
{
    static const struct kelp_rpc_stream_events events = {on_answer, on_closed};
    const struct kelp_rpc_stream_options options = {
        .path = "/bench/Exchange", .first_message_ms = 60000, .events = &events, .user = peer};
    struct kelp_rpc_channel *channel = NULL;

    *peer = (struct peer){.memory = vector(2), .own = vector(3)};
    kelp_spin_init(&peer->spin, KELP_SPIN_US, kelp_clock_us());
    if (kelp_rpc_loop_create(&peer->loop, NULL) != KELP_OK ||
        kelp_rpc_channel_open(peer->loop, address, KELP_ROLE_SHARD, MESSAGE_MAX, &channel, NULL) !=
            KELP_OK ||
        (shared ? kelp_rpc_stream_open_shared(channel, &options, &peer->stream, NULL)
                : kelp_rpc_stream_open(channel, &options, &peer->stream, NULL)) != KELP_OK) {
        die("cannot open a stream");
    }
}

static void rpc_exchange(void *user, const struct request *request)
{
    struct peer *peer = user;

    peer->request = request;
    peer->at = 0;
    peer->answered = false;
    peer_send_pieces(peer, request, request->pushed);
    while (!peer->answered) {
        (void)kelp_rpc_loop_run_spin(peer->loop, &peer->spin, -1);
    }
}

/* ---- memory alone ---- */

static void copy_alone(void *user, const struct request *request)
{
    uint8_t **vectors = user;

    memcpy(vectors[0], vectors[1], request->pushed);
}

static void add_alone(void *user, const struct request *request)
{
    uint8_t **vectors = user;

    kelp_vector_add((float *)(void *)vectors[0], vectors[1], request->pushed / 4);
}

/* ---- tables ---- */

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Fills and sorts `samples`; their number. */
static size_t measure(void (*exchange)(void *user, const struct request *request), void *user,
                      const struct request *request)
{
    size_t count = 0;

    for (unsigned i = 0; i < 3; i++) {
        exchange(user, request);
    }
    const double end_us = now_us() + seconds * 1e6;
    double at_us = now_us();
    while ((at_us < end_us || count < 5) && count < SAMPLES_MAX) {
        exchange(user, request);
        const double then_us = now_us();
        samples[count++] = then_us - at_us;
        at_us = then_us;
    }
    qsort(samples, count, sizeof(samples[0]), compare);
    return count;
}

static void print_empty(const char *name, void (*exchange)(void *, const struct request *),
                        void *user)
{
    const size_t count = measure(exchange, user, &(struct request){0});

    printf("%-14s %10.1f %10.1f\n", name, samples[count / 2], samples[count * 99 / 100]);
}

static double rate(void (*exchange)(void *, const struct request *), void *user, uint64_t pushed,
                   uint64_t pulled)
{
    const struct request request = {.pushed = pushed, .pulled = pulled};
    const size_t count = measure(exchange, user, &request);

    return (double)(pushed + pulled) / samples[count / 2] * 1e-3;
}

static void print_rates(struct end *end, struct peer *shared, struct peer *peer)
{
    uint8_t *vectors[2] = {vector(4), vector(5)};

    printf("\n%31s %27s %27s\n%9s %10s %10s %8s %9s %8s %8s %9s %8s   GB/s\n", "", "push", "pull",
           "bytes", "memcpy", "add", "channel", "stream", "gRPC", "channel", "stream", "gRPC");
    for (uint64_t bytes = 4096; bytes <= LARGEST; bytes *= 4) {
        printf("%9lu %10.2f", (unsigned long)bytes, rate(copy_alone, vectors, bytes, 0));
        printf(" %10.2f", rate(add_alone, vectors, bytes, 0));
        printf(" %8.2f", rate(shm_exchange, end, bytes, 0));
        printf(" %9.2f", rate(rpc_exchange, shared, bytes, 0));
        printf(" %8.2f", rate(rpc_exchange, peer, bytes, 0));
        printf(" %8.2f", rate(shm_exchange, end, 0, bytes));
        printf(" %9.2f", rate(rpc_exchange, shared, 0, bytes));
        printf(" %8.2f\n", rate(rpc_exchange, peer, 0, bytes));
        (void)fflush(stdout);
    }
}

/* A channel is open and nothing comes, while whoever waits looks again every so many ms. */
static void print_idle(struct end *end, int apart_ms)
{
    const double whole_s = 2;
    const double before_s = cpu_s();
    const double end_us = now_us() + whole_s * 1e6;
    struct kelp_shm_message *none = NULL;
    unsigned waits = 0;

    for (double at_us = now_us(); at_us < end_us; at_us = now_us()) {
        const int left_ms = (int)((end_us - at_us) * 1e-3) + 1;
        end_wait(end, apart_ms < left_ms ? apart_ms : left_ms);
        if (kelp_shm_channel_receive(end->channel, &none, NULL) != KELP_ERR_BUSY) {
            die("something came");
        }
        waits++;
    }
    printf("idle, %u waits in %.0f s: %.3f %% of a core\n", waits, whole_s,
           (cpu_s() - before_s) / whole_s * 100);
}

static pid_t start(void)
{
    pid_t pid = fork();

    if (pid < 0) {
        die("no process");
    }
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    }
    return pid;
}

int main(int argc, char **argv)
{
    char folder[] = "/tmp/kelp-bench-XXXXXX";
    char path[64];
    char address[80];
    int sockets[2], started[2];
    struct end end;
    struct peer shared, peer;
    char none;

    seconds = argc > 1 ? strtod(argv[1], NULL) : seconds;
    if (!mkdtemp(folder) || pipe(started) != 0 ||
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets) != 0) {
        die("no folder, pipe or socket");
    }
    (void)snprintf(path, sizeof(path), "%s/rpc", folder);
    (void)snprintf(address, sizeof(address), "unix:%s", path);
    const pid_t shm_server = start();
    if (shm_server == 0) {
        (void)close(sockets[1]);
        (void)close(started[1]);
        shm_serve(sockets[0]);
    }
    const pid_t rpc_server = start();
    if (rpc_server == 0) {
        (void)close(sockets[0]);
        (void)close(sockets[1]);
        rpc_serve(address, started[1]);
    }
    (void)close(sockets[0]);
    (void)close(started[1]);
    if (read(started[0], &none, 1) != 0) {
        die("the server over gRPC did not start");
    }
    end_open(&end, sockets[1]);
    kelp_rpc_global_several_loops();
    kelp_rpc_global_init();
    rpc_connect(&shared, address, true);
    rpc_connect(&peer, address, false);
    printf("%-14s %10s %10s   us\n", "empty, both", "p50", "p99");
    print_empty("channel", shm_exchange, &end);
    print_empty("stream", rpc_exchange, &shared);
    print_empty("gRPC", rpc_exchange, &peer);
    print_rates(&end, &shared, &peer);
    printf("\n");
    print_idle(&end, 10000);
    print_idle(&end, 1);
    (void)kill(shm_server, SIGKILL);
    (void)kill(rpc_server, SIGKILL);
    (void)waitpid(shm_server, NULL, 0);
    (void)waitpid(rpc_server, NULL, 0);
    (void)unlink(path);
    (void)snprintf(path, sizeof(path), "%s/rpc.shm", folder);
    (void)unlink(path);
    (void)rmdir(folder);
    return 0;
}

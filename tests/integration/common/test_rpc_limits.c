/*
 * What strangers can make a server hold or do, with a real server in a process of its own: however
 * they behave, it serves others, at once or after they have gone.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/limits.h"
#include "common/rpc/rpc.h"
#include "tests/lib/attack/http2_client.h"
#include "tests/lib/rpc_process.h"
#include "tests/lib/suite.h"

#define BYTES_MAX   (4u << 20)
#define DESCRIPTORS 256 /* that the server may have */
#define CROWD       400 /* connections of strangers */
#define DEADLINE_MS 30000
#define MEMORY      (96u << 20) /* that the server may buffer */

/* ---- the server process ------------------------------------------------------------------------
 */

/* Answers each message with a byte; one that begins with 'h' is a hello that is accepted. */
static void on_request(struct kelp_rpc_stream *stream, struct kelp_rpc_message *message, void *user)
{
    struct kelp_rpc_message *answer = kelp_rpc_message_create();

    (void)user;
    if (kelp_rpc_message_segment(message, 0).bytes[0] == 'h') {
        kelp_rpc_stream_trust(stream);
    }
    if (kelp_rpc_message_copy(answer, "a", 1) != KELP_OK) {
        abort();
    }
    kelp_status status = kelp_rpc_stream_send(stream, answer);
    if (status != KELP_OK && status != KELP_ERR_CLOSED) {
        abort();
    }
}

static const struct kelp_rpc_stream_events events = {on_request, kelp_test_rpc_ignore_closed};
static const struct kelp_rpc_method methods[] = {
    {.path = "/test/Unary", .unary = kelp_test_rpc_echo},
    {.path = "/test/Stream", .accept = kelp_test_rpc_accept}};
static const struct kelp_rpc_server_options server_options = {.message_bytes_max = BYTES_MAX,
                                                              .hello = true,
                                                              .memory_max = MEMORY,
                                                              .methods = methods,
                                                              .method_count =
                                                                  KELP_ARRAY_COUNT(methods),
                                                              .user = (void *)(uintptr_t)&events};

static void limit_descriptors(rlim_t count)
{
    struct rlimit limit = {.rlim_cur = count, .rlim_max = DESCRIPTORS};

    (void)setrlimit(RLIMIT_NOFILE, &limit);
}

/* From now on there is none, or all are there again. */
static void on_signal(int number)
{
    int next = number == SIGUSR1 ? dup(STDERR_FILENO) : DESCRIPTORS;

    limit_descriptors((rlim_t)next);
    if (number == SIGUSR1) {
        (void)close(next);
    }
}

static void prepare(void)
{
    limit_descriptors(DESCRIPTORS);
    (void)signal(SIGUSR1, on_signal);
    (void)signal(SIGUSR2, on_signal);
}

static struct kelp_test_rpc_process server;

/* ---- strangers ---------------------------------------------------------------------------------
 */

static int crowd[CROWD];

/* Wait until the server has closed it: nothing else makes it readable before it spoke. */
static bool is_closed(int fd, int wait_ms)
{
    struct pollfd look = {.fd = fd, .events = POLLIN};
    char byte;

    if (poll(&look, 1, wait_ms) <= 0) {
        return false;
    }
    return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) <= 0;
}

static size_t count_closed(void)
{
    size_t count = 0;

    for (size_t i = 0; i < CROWD; i++) {
        count += is_closed(crowd[i], 0) ? 1 : 0;
    }
    return count;
}

/* ---- somebody who belongs there ----------------------------------------------------------------
 */

static struct kelp_rpc_loop *loop;
static struct kelp_rpc_channel *channel;

static kelp_status call(uint32_t deadline_ms)
{
    struct kelp_rpc_message *request = kelp_rpc_message_create();
    struct kelp_rpc_message *answer = NULL;

    ck_assert_int_eq(kelp_rpc_message_copy(request, "hello", 5), KELP_OK);
    kelp_status status = kelp_rpc_call(channel, "/test/Unary", request, deadline_ms, &answer, NULL);
    kelp_rpc_message_unref(answer);
    return status;
}

static void await_served(void)
{
    uint64_t end_ms = kelp_clock_ms() + DEADLINE_MS;
    kelp_status status = KELP_ERR_TIMEOUT;

    while (status != KELP_OK && kelp_clock_ms() < end_ms) {
        status = call(1000);
        if (status != KELP_OK) {
            (void)poll(NULL, 0, 20);
        }
    }
    ck_assert_int_eq(status, KELP_OK);
}

static void open_channel(const char *host)
{
    char address[KELP_TEST_RPC_ADDRESS_BYTES];

    kelp_test_rpc_address(&server, host, address);
    ck_assert_int_eq(
        kelp_rpc_channel_open(loop, address, KELP_ROLE_SHARD, BYTES_MAX, &channel, NULL), KELP_OK);
}

/* A server at an address, and a channel to it at that host. */
static void begin(const char *address, const char *host)
{
    struct rlimit limit;

    kelp_test_rpc_fork(&server, &server_options, prepare);
    kelp_test_rpc_serve(&server, address);
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = limit.rlim_max;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    kelp_rpc_global_init();
    ck_assert_int_eq(kelp_rpc_loop_create(&loop, NULL), KELP_OK);
    open_channel(host);
}

static void setup(void)
{
    begin("127.0.0.1:0", "127.0.0.1");
}

static void teardown(void)
{
    kelp_rpc_channel_close(channel);
    kelp_rpc_loop_destroy(loop);
    kelp_rpc_global_fini();
    kelp_test_rpc_end(&server);
}

KELP_CASE("connections", .setup = setup, .teardown = teardown, .timeout_s = 90)

/* More connections than the server has descriptors: the last are closed at once. When the strangers
 * have gone it serves as before, and who was there is served all the time. */
KELP_TEST(crowd_comes_and_goes)
{
    ck_assert_int_eq(call(DEADLINE_MS), KELP_OK);
    for (size_t i = 0; i < CROWD; i++) {
        crowd[i] = kelp_test_rpc_connect(&server);
    }
    ck_assert(is_closed(crowd[CROWD - 1], DEADLINE_MS));
    ck_assert_uint_ge(count_closed(), CROWD - DESCRIPTORS);
    ck_assert_int_eq(call(DEADLINE_MS), KELP_OK);
    for (size_t i = 0; i < CROWD; i++) {
        (void)close(crowd[i]);
    }
    kelp_rpc_channel_close(channel);
    open_channel("127.0.0.1");
    await_served();
}

/* A process whose descriptors are all in use, by files as well: who comes is turned away, and the
 * next are served as soon as there are descriptors. */
KELP_TEST(no_descriptor_is_left)
{
    ck_assert_int_eq(kill(server.pid, SIGUSR1), 0);
    for (int i = 0; i < 10; i++) {
        int fd = kelp_test_rpc_connect(&server);
        ck_assert(is_closed(fd, DEADLINE_MS));
        (void)close(fd);
    }
    ck_assert_int_eq(kill(server.pid, SIGUSR2), 0);
    await_served();
}

/* ---- before a hello, and between messages ------------------------------------------------------
 */

#define SENT  64 /* messages of BYTES_MAX, far more than strangers may send */
#define FRAME 16000
#define OTHER 0xfau /* a type of frame that does not exist, and is skipped */

struct side {
    struct kelp_rpc_stream *stream;
    unsigned messages;
    bool closed;
};

static struct side side;
static uint8_t bytes[BYTES_MAX];

static void on_answer(struct kelp_rpc_stream *stream, struct kelp_rpc_message *message, void *user)
{
    (void)stream;
    (void)message;
    ((struct side *)user)->messages++;
}

static void on_closed(struct kelp_rpc_stream *stream, kelp_status status, const char *text,
                      void *user)
{
    (void)stream;
    (void)status;
    (void)text;
    ((struct side *)user)->closed = true;
}

static void ignore_release(void *user)
{
    (void)user;
}

static void send_one(uint8_t first, size_t length)
{
    struct kelp_rpc_message *message = kelp_rpc_message_create();

    ck_assert_int_eq(kelp_rpc_message_copy(message, &first, 1), KELP_OK);
    if (length > 1) {
        ck_assert_int_eq(kelp_rpc_message_borrow(message, bytes, length - 1, ignore_release, NULL),
                         KELP_OK);
    }
    kelp_status status = kelp_rpc_stream_send(side.stream, message);
    ck_assert(status == KELP_OK || status == KELP_ERR_CLOSED);
}

/* Say something, and then send a lot, waiting for each answer. */
static void talk(uint8_t first)
{
    static const struct kelp_rpc_stream_events answers = {on_answer, on_closed};
    struct kelp_rpc_stream_options options = {.path = "/test/Stream",
                                              .first_message_ms = DEADLINE_MS,
                                              .events = &answers,
                                              .user = &side,
                                              .hello = true};

    side = (struct side){.stream = NULL};
    ck_assert_int_eq(kelp_rpc_stream_open(channel, &options, &side.stream, NULL), KELP_OK);
    send_one(first, 1);
    for (unsigned sent = 0; sent < SENT && !side.closed; sent++) {
        send_one('m', BYTES_MAX);
        while (side.messages < sent + 2 && !side.closed) {
            (void)kelp_rpc_loop_run(loop, 100);
        }
    }
    if (!side.closed) {
        kelp_rpc_stream_close(side.stream, KELP_OK, NULL);
    }
    while (!side.closed) {
        (void)kelp_rpc_loop_run(loop, 100);
    }
}

static const struct {
    const char *listen;
    const char *host;
} addresses[] = {{"127.0.0.1:0", "127.0.0.1"}, {"0.0.0.0:0", "127.0.0.1"}, {"[::1]:0", "[::1]"}};

KELP_CASE("bytes", .teardown = teardown, .timeout_s = 90)

/* Who said hello may send as much as it likes, message by message; who did not is cut off. */
KELP_LOOP_TEST(hello_makes_the_difference, 0, KELP_ARRAY_COUNT(addresses))
{
    begin(addresses[_i].listen, addresses[_i].host);
    talk('h');
    ck_assert_uint_eq(side.messages, 1 + SENT);
    kelp_rpc_channel_close(channel);
    open_channel(addresses[_i].host);
    talk('x');
    ck_assert_uint_lt(side.messages, 1 + SENT);
    ck_assert_uint_ge(side.messages, KELP_RPC_STRANGERS_BYTES / BYTES_MAX);
}

static void expect_cut_off(struct kelp_http2 *peer)
{
    uint64_t end_ms = kelp_clock_ms() + DEADLINE_MS;

    while (kelp_http2_alive(peer) && kelp_clock_ms() < end_ms) {
        kelp_http2_run(peer, 0, 10);
    }
    ck_assert(!kelp_http2_alive(peer));
}

/* After its hello too: bytes that are no messages end. */
KELP_TEST(no_messages)
{
    static const uint8_t zeros[FRAME];
    char address[KELP_TEST_RPC_ADDRESS_BYTES];
    size_t sent = 0;
    const size_t most =
        KELP_RPC_UNHEARD_MESSAGES * ((size_t)BYTES_MAX + KELP_RPC_LOOKAHEAD_BYTES) + (8u << 20);

    begin("127.0.0.1:0", "127.0.0.1");
    kelp_test_rpc_address(&server, "127.0.0.1", address);
    struct kelp_http2 *peer = kelp_http2_open(&(struct kelp_http2_target){.address = address});
    uint32_t stream = kelp_http2_call(peer, "/test/Stream");
    ck_assert(kelp_http2_send(peer, stream, "h", 1, 1));
    kelp_http2_await(peer, stream, 1, DEADLINE_MS);
    ck_assert_uint_eq(kelp_http2_answer(peer, stream).messages, 1);
    while (kelp_http2_alive(peer) && sent < 2 * most) {
        (void)kelp_http2_frame(peer, OTHER, 0, 0, zeros, sizeof(zeros));
        sent += sizeof(zeros);
        if (sent % (100 * sizeof(zeros)) == 0) {
            kelp_http2_run(peer, 0, 1); /* frames leave here */
        }
    }
    expect_cut_off(peer);
    ck_assert_uint_gt(sent, KELP_RPC_STRANGERS_BYTES);
    kelp_http2_close(peer);
    await_served();
}

#define HEADERS_MORE 80 /* of 120 bytes: over KELP_RPC_METADATA_BYTES */

/* Headers that some versions of gRPC end the process for when they print them, as too many: those
 * and nobody else's are refused. The limit counts once the client has taken the server's settings.
 */
KELP_TEST(wrong_headers)
{
    static const char *const wrong[][2] = {
        {"te", "x"}, {":scheme", "x"}, {"grpclb_client_stats", "x"}};
    const char *headers[HEADERS_MORE + 5][2] = {
        {":method", "POST"}, {":path", "/test/Stream"}, {":authority", "kelp.test"}};
    char address[KELP_TEST_RPC_ADDRESS_BYTES], long_value[121];

    memset(long_value, 'v', sizeof(long_value) - 1);
    long_value[sizeof(long_value) - 1] = '\0';
    begin("127.0.0.1:0", "127.0.0.1");
    kelp_test_rpc_address(&server, "127.0.0.1", address);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(wrong); i++) {
        struct kelp_http2 *peer = kelp_http2_open(&(struct kelp_http2_target){.address = address});
        uint32_t stream = kelp_http2_call(peer, "/test/Stream");
        ck_assert(kelp_http2_send(peer, stream, "h", 1, 1));
        kelp_http2_await(peer, stream, 1, DEADLINE_MS);
        ck_assert_uint_eq(kelp_http2_answer(peer, stream).messages, 1);
        memcpy(headers[3], wrong[i], sizeof(headers[3]));
        for (size_t more = 4; more < KELP_ARRAY_COUNT(headers); more++) {
            headers[more][0] = "x";
            headers[more][1] = long_value;
        }
        stream = kelp_http2_headers(peer, headers, KELP_ARRAY_COUNT(headers));
        kelp_http2_run(peer, stream, DEADLINE_MS);
        ck_assert(kelp_http2_answer(peer, stream).ended);
        ck_assert_int_ne(kelp_http2_answer(peer, stream).grpc_status, 0);
        ck_assert_int_eq(call(DEADLINE_MS), KELP_OK);
        kelp_http2_close(peer);
    }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
/* The most memory that the server has had. */
static long rss_max_kib(void)
{
    char path[64];
    char line[256];
    long kib = 0;

    (void)snprintf(path, sizeof(path), "/proc/%d/status", (int)server.pid);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof(line), file) && sscanf(line, "VmHWM: %ld", &kib) != 1) {
    }
    if (file) {
        (void)fclose(file);
    }
    ck_assert_int_gt(kib, 0);
    return kib;
}
#endif

/* Peers that said hello, and have large messages under way without end: more than the server may
 * buffer costs them their streams, and not the server its life. */
KELP_TEST(memory_of_all)
{
    struct kelp_http2 *peers[6];
    char address[KELP_TEST_RPC_ADDRESS_BYTES];

    begin("127.0.0.1:0", "127.0.0.1");
    kelp_test_rpc_address(&server, "127.0.0.1", address);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(peers); i++) {
        peers[i] = kelp_http2_open(&(struct kelp_http2_target){.address = address});
        uint32_t stream = kelp_http2_call(peers[i], "/test/Stream");
        ck_assert(kelp_http2_send(peers[i], stream, "h", 1, 1));
        kelp_http2_await(peers[i], stream, 1, DEADLINE_MS);
        for (size_t sent = 0; sent < 10 && !kelp_http2_answer(peers[i], stream).ended; sent++) {
            (void)kelp_http2_send(peers[i], stream, bytes, BYTES_MAX, sent == 0 ? 1u << 30 : 0);
            kelp_http2_run(peers[i], 0, 1);
        }
    }
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    ck_assert_int_lt(rss_max_kib(), (MEMORY + (64 << 20)) >> 10);
#endif
    for (size_t i = 0; i < KELP_ARRAY_COUNT(peers); i++) {
        kelp_http2_close(peers[i]);
    }
    await_served();
}

/* Headers that never end, from somebody without a hello: they end with the connection. */
KELP_TEST(headers_without_end)
{
    static const uint8_t zeros[FRAME];
    char address[KELP_TEST_RPC_ADDRESS_BYTES];
    size_t sent = 0;

    begin("127.0.0.1:0", "127.0.0.1");
    kelp_test_rpc_address(&server, "127.0.0.1", address);
    struct kelp_http2 *peer = kelp_http2_open(&(struct kelp_http2_target){.address = address});
    (void)kelp_http2_frame(peer, KELP_HTTP2_HEADERS, 0, 1, zeros, 0);
    while (kelp_http2_alive(peer) && sent < 2 * KELP_RPC_STRANGERS_BYTES) {
        (void)kelp_http2_frame(peer, KELP_HTTP2_CONTINUATION, 0, 1, zeros, sizeof(zeros));
        sent += sizeof(zeros);
        if (sent % (100 * sizeof(zeros)) == 0) {
            kelp_http2_run(peer, 0, 1);
        }
    }
    expect_cut_off(peer);
    kelp_http2_close(peer);
    await_served();
}

/* Somebody whose hello was accepted, and what follows. */
static struct kelp_http2 *trusted(void)
{
    char address[KELP_TEST_RPC_ADDRESS_BYTES];

    begin("127.0.0.1:0", "127.0.0.1");
    kelp_test_rpc_address(&server, "127.0.0.1", address);
    struct kelp_http2 *peer = kelp_http2_open(&(struct kelp_http2_target){.address = address});
    uint32_t stream = kelp_http2_call(peer, "/test/Stream");
    ck_assert(kelp_http2_send(peer, stream, "h", 1, 1));
    kelp_http2_await(peer, stream, 1, DEADLINE_MS);
    ck_assert_uint_eq(kelp_http2_answer(peer, stream).messages, 1);
    return peer;
}

/* Pings, each of which the server answers: after some the connection ends. */
KELP_TEST(pings_without_end)
{
    static const uint8_t zeros[8];
    struct kelp_http2 *peer = trusted();

    for (unsigned i = 0; kelp_http2_alive(peer) && i < 20000; i++) {
        (void)kelp_http2_frame(peer, KELP_HTTP2_PING, 0, 0, zeros, sizeof(zeros));
        if (i % 100 == 99) {
            kelp_http2_run(peer, 0, 1);
        }
    }
    expect_cut_off(peer);
    kelp_http2_close(peer);
    await_served();
}

/* Streams that are begun and reset at once, in number far below what bytes would end. */
KELP_TEST(resets_without_end)
{
    static const uint8_t cancel[4] = {0, 0, 0, 8};
    struct kelp_http2 *peer = trusted();

    for (unsigned i = 0; kelp_http2_alive(peer) && i < 50000; i++) {
        uint32_t stream = kelp_http2_call(peer, "/test/Stream");
        (void)kelp_http2_frame(peer, KELP_HTTP2_RST_STREAM, 0, stream, cancel, sizeof(cancel));
        if (i % 50 == 49) {
            kelp_http2_run(peer, 0, 1);
        }
    }
    expect_cut_off(peer);
    kelp_http2_close(peer);
    await_served();
}

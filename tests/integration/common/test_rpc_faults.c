/*
 * What a client sees when its server dies, stops, refuses or is fed garbage, with a real server in
 * a process of its own; and that sent memory is given back exactly once in every case.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "common/base/limits.h"
#include "common/rpc/rpc.h"
#include "tests/lib/rpc_process.h"
#include "tests/lib/suite.h"

#define BYTES_MAX (4u << 20)
#define PIECE     (1u << 20)
#define PING_MS   1000 /* gRPC sends no more than one a second */
#define SILENT_MS 1000

static double now_s(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* ---- the server process ------------------------------------------------------------------------
 */

/* Answers each message with its length. */
static void count_message(struct kelp_rpc_stream *stream, struct kelp_rpc_message *message,
                          void *user)
{
    struct kelp_rpc_message *answer = kelp_rpc_message_create();
    uint64_t length = kelp_rpc_message_length(message);

    (void)user;
    if (kelp_rpc_message_copy(answer, &length, sizeof(length)) != KELP_OK) {
        abort();
    }
    kelp_status status = kelp_rpc_stream_send(stream, answer);
    if (status != KELP_OK && status != KELP_ERR_CLOSED) { /* closed: the client was faster */
        abort();
    }
}

static const struct kelp_rpc_stream_events server_events = {count_message,
                                                            kelp_test_rpc_ignore_closed};
static const struct kelp_rpc_method methods[] = {
    {.path = "/test/Count", .accept = kelp_test_rpc_accept},
    {.path = "/test/Unary", .unary = kelp_test_rpc_echo},
};
static const struct kelp_rpc_server_options server_options = {
    .message_bytes_max = BYTES_MAX,
    .methods = methods,
    .method_count = KELP_ARRAY_COUNT(methods),
    .user = (void *)(uintptr_t)&server_events};

/* Both are forked before gRPC has threads here. */
static struct kelp_test_rpc_process server;
static struct kelp_test_rpc_process spare; /* waits */

static void start_server(void)
{
    kelp_test_rpc_fork(&server, &server_options, NULL);
    kelp_test_rpc_fork(&spare, &server_options, NULL);
    kelp_test_rpc_serve(&server, "127.0.0.1:0");
}

/* On the port of the one that was ended. */
static void start_spare(void)
{
    char address[KELP_TEST_RPC_ADDRESS_BYTES];

    kelp_test_rpc_address(&server, "127.0.0.1", address);
    kelp_test_rpc_serve(&spare, address);
}

/* ---- the client --------------------------------------------------------------------------------
 */

struct side {
    struct kelp_rpc_stream *stream;
    unsigned messages;
    unsigned closed;
    kelp_status status;
    char text[600];
};

static struct kelp_rpc_loop *loop;
static struct kelp_rpc_channel *channel;
static struct side side;
static bool carried; /* a thread of its own moves the channel's bytes */
static struct kelp_rpc_carrier *carrier;
static atomic_uint borrowed;
static atomic_uint released;
static uint8_t piece[PIECE];

static void on_message(struct kelp_rpc_stream *stream, struct kelp_rpc_message *message, void *user)
{
    (void)stream;
    (void)message;
    ((struct side *)user)->messages++;
}

static void on_closed(struct kelp_rpc_stream *stream, kelp_status status, const char *text,
                      void *user)
{
    struct side *to = user;

    (void)stream;
    to->closed++;
    to->status = status;
    (void)snprintf(to->text, sizeof(to->text), "%s", text);
}

static const struct kelp_rpc_stream_events client_events = {on_message, on_closed};

static void open_channel(size_t message_bytes_max)
{
    char address[KELP_TEST_RPC_ADDRESS_BYTES];

    kelp_test_rpc_address(&server, "127.0.0.1", address);
    ck_assert_int_eq(carried ? kelp_rpc_channel_open_carried(carrier, address, KELP_ROLE_SHARD,
                                                             message_bytes_max, &channel, NULL)
                             : kelp_rpc_channel_open(loop, address, KELP_ROLE_SHARD,
                                                     message_bytes_max, &channel, NULL),
                     KELP_OK);
}

static void setup(void)
{
    start_server();
    kelp_rpc_global_init();
    side = (struct side){0};
    ck_assert_int_eq(kelp_rpc_loop_create(&loop, NULL), KELP_OK);
    kelp_rpc_loop_keepalive(loop, PING_MS, SILENT_MS);
    if (carried) {
        ck_assert_int_eq(kelp_rpc_carrier_start(loop, &carrier, NULL), KELP_OK);
    }
    open_channel(BYTES_MAX);
}

static void setup_carried(void)
{
    carried = true;
    setup();
}

/* Whatever happened: in the end all memory has been given back, once. (gRPC takes a connection with
 * stuck writes down in a thread of its own, which kelp_rpc_global_fini() waits for.) */
static void teardown(void)
{
    kelp_rpc_channel_close(channel);
    kelp_rpc_loop_destroy(loop);
    kelp_rpc_global_fini();
    kelp_test_rpc_end(&server);
    kelp_test_rpc_end(&spare);
    unsigned given = atomic_load(&borrowed);
    unsigned back = atomic_load(&released);
    ck_assert_uint_eq(back, given);
}

static void open_stream(uint32_t first_message_ms)
{
    ck_assert_int_eq(
        kelp_rpc_stream_open(channel,
                             &(struct kelp_rpc_stream_options){.path = "/test/Count",
                                                               .first_message_ms = first_message_ms,
                                                               .events = &client_events,
                                                               .user = &side},
                             &side.stream, NULL),
        KELP_OK);
}

static void count_release(void *user)
{
    atomic_fetch_add((atomic_uint *)user, 1);
}

static struct kelp_rpc_message *borrowing(size_t length)
{
    struct kelp_rpc_message *message = kelp_rpc_message_create();

    for (size_t at = 0; at < length; at += PIECE) {
        size_t bytes = length - at < PIECE ? length - at : PIECE;
        atomic_fetch_add(&borrowed, 1);
        ck_assert_int_eq(kelp_rpc_message_borrow(message, piece, bytes, count_release, &released),
                         KELP_OK);
    }
    return message;
}

static void send_bytes(size_t length)
{
    ck_assert_int_eq(kelp_rpc_stream_send(side.stream, borrowing(length)), KELP_OK);
}

#define RUN_UNTIL(condition)                                                                       \
    do {                                                                                           \
        for (double end_s = now_s() + 20; !(condition) && now_s() < end_s;) {                      \
            (void)kelp_rpc_loop_run(loop, 10);                                                     \
        }                                                                                          \
        ck_assert(condition);                                                                      \
    } while (0)

/* ---- death and silence -------------------------------------------------------------------------
 */

KELP_CASE("faults", .setup = setup, .teardown = teardown, .timeout_s = 60)

/* A killed server is seen at once, and found again within a fraction of a second after its restart.
 */
KELP_TEST(killed_and_back)
{
    open_stream(2000);
    send_bytes(100);
    RUN_UNTIL(side.messages == 1);
    double at_s = now_s();
    kelp_test_rpc_end(&server);
    RUN_UNTIL(side.closed == 1);
    ck_assert_int_eq(side.status, KELP_ERR_UNREACHABLE);
    ck_assert_msg(strncmp(side.text, "connection ", strlen("connection ")) == 0, "%s", side.text);
    ck_assert_msg(now_s() - at_s < 0.5, "seen after %.3f s", now_s() - at_s);
    ck_assert_int_eq(
        kelp_rpc_stream_open(channel,
                             &(struct kelp_rpc_stream_options){.path = "/test/Count",
                                                               .first_message_ms = 500,
                                                               .events = &client_events,
                                                               .user = &side},
                             &side.stream, NULL),
        KELP_OK);
    RUN_UNTIL(side.closed == 2); /* refused now */
    ck_assert_int_eq(side.status, KELP_ERR_UNREACHABLE);

    start_spare();
    at_s = now_s();
    while (side.messages == 1) {
        unsigned closed = side.closed;
        open_stream(500);
        send_bytes(100);
        RUN_UNTIL(side.messages == 2 || side.closed > closed);
        ck_assert_msg(now_s() - at_s < 0.5, "not found again");
        for (double end_s = now_s() + 0.02; side.messages == 1 && now_s() < end_s;) {
            (void)kelp_rpc_loop_run(loop, 5);
        }
    }
    kelp_rpc_stream_close(side.stream, KELP_OK, NULL);
    unsigned closed = side.closed;
    RUN_UNTIL(side.closed == closed + 1);
}

/* A server that accepts the connection but never answers ends in the first message's deadline. */
KELP_TEST(stopped_before_the_first_message)
{
    ck_assert_int_eq(kill(server.pid, SIGSTOP), 0);
    double at_s = now_s();
    open_stream(300);
    send_bytes(100);
    RUN_UNTIL(side.closed == 1);
    ck_assert_int_eq(side.status, KELP_ERR_TIMEOUT);
    ck_assert_msg(now_s() - at_s > 0.25 && now_s() - at_s < 1, "after %.3f s", now_s() - at_s);
}

/* A live stream to a server that stops: keep-alive ends it. */
KELP_TEST(stopped_later)
{
    open_stream(2000);
    send_bytes(100);
    RUN_UNTIL(side.messages == 1);
    ck_assert_int_eq(kill(server.pid, SIGSTOP), 0);
    double at_s = now_s();
    RUN_UNTIL(side.closed == 1);
    ck_assert_int_eq(side.status, KELP_ERR_UNREACHABLE);
    ck_assert_msg((now_s() - at_s) * 1000 < PING_MS + SILENT_MS + 2000, "after %.3f s",
                  now_s() - at_s);
}

/* With writes stuck in a stopped server's socket, closing still ends in time; the stuck memory
 * comes back when keep-alive ends the connection (checked in teardown). */
KELP_LOOP_TEST(closing_with_writes_stuck, 0, 2)
{
    open_stream(2000);
    send_bytes(100);
    RUN_UNTIL(side.messages == 1);
    ck_assert_int_eq(kill(server.pid, SIGSTOP), 0);
    for (int i = 0; i < 32; i++) {
        send_bytes(BYTES_MAX);
    }
    for (int i = 0; i < 100; i++) {
        (void)kelp_rpc_loop_run(loop, 1);
    }
    ck_assert_uint_gt(kelp_rpc_stream_queued(side.stream), 0);
    double at_s = now_s();
    kelp_rpc_stream_close(side.stream, _i == 0 ? KELP_OK : KELP_ERR_TIMEOUT, "enough");
    RUN_UNTIL(side.closed == 1);
    ck_assert_int_eq(side.status, _i == 0 ? KELP_OK : KELP_ERR_TIMEOUT);
    ck_assert_msg(now_s() - at_s < 1.5, "after %.3f s", now_s() - at_s);
    unsigned given = atomic_load(&borrowed);
    unsigned back = atomic_load(&released);
    ck_assert_uint_lt(back, given);
}

/* A unary call ends at its deadline, also when its own request is stuck. */
KELP_TEST(unary_deadline)
{
    struct kelp_rpc_message *answer = NULL;
    struct kelp_error error = {0};

    ck_assert_int_eq(kelp_rpc_call(channel, "/test/Unary", borrowing(100), 2000, &answer, &error),
                     KELP_OK);
    kelp_rpc_message_unref(answer);
    ck_assert_int_eq(kill(server.pid, SIGSTOP), 0);
    for (int i = 0; i < 4; i++) {
        double at_s = now_s();
        ck_assert_int_eq(
            kelp_rpc_call(channel, "/test/Unary", borrowing(BYTES_MAX), 200, &answer, &error),
            KELP_ERR_TIMEOUT);
        ck_assert_msg(now_s() - at_s < 0.5, "after %.3f s", now_s() - at_s);
    }
}

static void *unref_late(void *message)
{
    (void)usleep(100000);
    kelp_rpc_message_unref(message);
    return NULL;
}

/* A thread that nobody waits for gives memory back late (checked in teardown). */
KELP_TEST(given_back_late)
{
    pthread_t thread;

    ck_assert_int_eq(pthread_create(&thread, NULL, unref_late, borrowing(BYTES_MAX)), 0);
    ck_assert_int_eq(pthread_detach(thread), 0);
}

/* Nobody listens. */
KELP_TEST(refused)
{
    struct kelp_rpc_message *answer = NULL;
    struct kelp_error error = {0};

    kelp_test_rpc_end(&server);
    double at_s = now_s();
    open_stream(5000);
    send_bytes(100);
    RUN_UNTIL(side.closed == 1);
    ck_assert_int_eq(side.status, KELP_ERR_UNREACHABLE);
    ck_assert_str_eq(side.text, "connection refused"); /* who dialled says where */
    ck_assert_int_eq(kelp_rpc_call(channel, "/test/Unary", borrowing(100), 2000, &answer, &error),
                     KELP_ERR_UNREACHABLE);
    ck_assert_msg(now_s() - at_s < 1, "after %.3f s", now_s() - at_s);
}

/* ---- refusals ----------------------------------------------------------------------------------
 */

/* A message over the server's limit is refused, with a text that says so; the server lives on. */
KELP_TEST(too_large)
{
    kelp_rpc_channel_close(channel);
    open_channel(64u << 20); /* we would send more than the server takes */
    open_stream(5000);
    send_bytes(BYTES_MAX + 1);
    RUN_UNTIL(side.closed == 1);
    ck_assert_int_eq(side.status, KELP_ERR_LIMIT);
    ck_assert_msg(strstr(side.text, "larger than max"), "%s", side.text);
    open_stream(5000);
    send_bytes(BYTES_MAX);
    RUN_UNTIL(side.messages == 1);
    kelp_rpc_stream_close(side.stream, KELP_OK, NULL);
    RUN_UNTIL(side.closed == 2);
}

/* What is over our own limit does not even leave. */
KELP_TEST(too_large_to_send)
{
    open_stream(5000);
    ck_assert_int_eq(kelp_rpc_stream_send(side.stream, borrowing(BYTES_MAX + 1)), KELP_ERR_LIMIT);
    send_bytes(BYTES_MAX);
    RUN_UNTIL(side.messages == 1);
    kelp_rpc_stream_close(side.stream, KELP_OK, NULL);
    RUN_UNTIL(side.closed == 1);
    ck_assert_int_eq(side.status, KELP_OK);
}

/* A port that is taken is named; a wrong address says what is expected. */
KELP_TEST(bad_addresses)
{
    char address[32];
    struct kelp_rpc_server_options options = {.address = address,
                                              .message_bytes_max = BYTES_MAX,
                                              .methods = methods,
                                              .method_count = KELP_ARRAY_COUNT(methods)};
    struct kelp_rpc_server *second = NULL;
    struct kelp_error error = {0};
    struct kelp_rpc_channel *none = NULL;

    kelp_test_rpc_address(&server, "127.0.0.1", address);
    ck_assert_int_eq(kelp_rpc_server_open(loop, &options, &second, &error), KELP_ERR_EXISTS);
    ck_assert_msg(strstr(error.text, address), "%s", error.text);
    ck_assert_msg(strstr(error.text, "in use"), "%s", error.text);
    options.address = "127.0.0.1";
    ck_assert_int_eq(kelp_rpc_server_open(loop, &options, &second, &error), KELP_ERR_INVALID);
    ck_assert_msg(strstr(error.text, "HOST:PORT"), "%s", error.text);
    options.address = "192.0.2.1:0"; /* not an address of this machine */
    ck_assert_int_eq(kelp_rpc_server_open(loop, &options, &second, &error), KELP_ERR_UNREACHABLE);
    ck_assert_msg(strstr(error.text, "192.0.2.1:0: this host has no such address"), "%s",
                  error.text);
    static const char *const refused[] = {"nonsense", "localhost:1", "dns:///127.0.0.1:1",
                                          "127.0.0.1", "0.0.0.0:1"};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(refused); i++) {
        ck_assert_int_eq(
            kelp_rpc_channel_open(loop, refused[i], KELP_ROLE_SHARD, BYTES_MAX, &none, &error),
            KELP_ERR_INVALID);
        ck_assert_msg(strstr(error.text, "is not HOST:PORT in numbers"), "%s", error.text);
    }
}

/* Random bytes, another protocol, a preface that stops half-way, and silence on the port: whoever
 * sent them is cut off, everybody else is served. */
KELP_TEST(garbage)
{
    static const char *const texts[] = {"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
                                        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                                        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\x00\x00\x00",
                                        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", ""};
    uint8_t noise[4096];
    uint64_t state = 88172645463325252u;
    int fds[16];

    for (size_t i = 0; i < KELP_ARRAY_COUNT(fds); i++) {
        fds[i] = kelp_test_rpc_connect(&server);
        if (i < KELP_ARRAY_COUNT(texts)) {
            ck_assert_int_eq(send(fds[i], texts[i], strlen(texts[i]), MSG_NOSIGNAL),
                             (ssize_t)strlen(texts[i]));
            continue;
        }
        for (size_t k = 0; k < sizeof(noise); k++) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            noise[k] = (uint8_t)state;
        }
        (void)send(fds[i], noise, sizeof(noise), MSG_NOSIGNAL); /* may be cut off already */
    }
    open_stream(2000);
    send_bytes(100);
    RUN_UNTIL(side.messages == 1);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(fds); i++) {
        (void)close(fds[i]);
    }
    send_bytes(100);
    RUN_UNTIL(side.messages == 2);
    kelp_rpc_stream_close(side.stream, KELP_OK, NULL);
    RUN_UNTIL(side.closed == 1);
    ck_assert_int_eq(side.status, KELP_OK);
}

/* ---- queues ------------------------------------------------------------------------------------
 */

/* An orderly close sends what is queued first; one with an error drops it. */
KELP_LOOP_TEST(closing_with_a_queue, 0, 2)
{
    open_stream(5000);
    for (int i = 0; i < 40; i++) {
        send_bytes(PIECE);
    }
    kelp_rpc_stream_close(side.stream, _i == 0 ? KELP_OK : KELP_ERR_BUSY, "dropped");
    kelp_rpc_stream_close(side.stream, KELP_ERR_INTERNAL, "twice is harmless");
    RUN_UNTIL(side.closed == 1);
    ck_assert_int_eq(side.status, _i == 0 ? KELP_OK : KELP_ERR_BUSY);
    ck_assert_str_eq(side.text, "dropped");
    ck_assert_uint_eq(side.messages, 0);
}

static atomic_uint each[KELP_RPC_SEND_QUEUE_MAX + 10];

static void count_each(void *user)
{
    atomic_fetch_add((atomic_uint *)user, 1);
    count_release(&released);
}

/* More than the queue holds is refused, and what was refused is released. (gRPC may give up the
 * connection meanwhile, on a thread of its own, and then releases the first.) */
KELP_TEST(queue_limit)
{
    ck_assert_int_eq(kill(server.pid, SIGSTOP), 0);
    open_stream(300);
    kelp_status status = KELP_OK;
    size_t sent = 0;
    for (; sent < KELP_ARRAY_COUNT(each) && status == KELP_OK; sent++) {
        struct kelp_rpc_message *message = kelp_rpc_message_create();
        atomic_fetch_add(&borrowed, 1);
        ck_assert_int_eq(kelp_rpc_message_borrow(message, piece, PIECE, count_each, &each[sent]),
                         KELP_OK);
        status = kelp_rpc_stream_send(side.stream, message);
    }
    ck_assert_int_eq(status, KELP_ERR_LIMIT);
    ck_assert_uint_gt(sent, KELP_RPC_SEND_QUEUE_MAX);
    ck_assert_uint_eq(atomic_load(&each[sent - 1]), 1);
    ck_assert_uint_eq(atomic_load(&each[sent - 2]), 0);
    RUN_UNTIL(side.closed == 1);
}

/* ---- the same with a carrier ------------------------------------------------------------------
 */

KELP_CASE("carried", .setup = setup_carried, .teardown = teardown, .timeout_s = 60)

KELP_TEST_AGAIN(killed_and_back)
KELP_TEST_AGAIN(stopped_before_the_first_message)
KELP_TEST_AGAIN(stopped_later)
KELP_TEST_AGAIN(refused)
KELP_TEST_AGAIN(too_large)
KELP_TEST_AGAIN(too_large_to_send)
KELP_TEST_AGAIN(garbage)
KELP_TEST_AGAIN(queue_limit)

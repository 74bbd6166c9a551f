/* Streams and unary calls between a client and a server in one process and one loop. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/limits.h"
#include "common/rpc/rpc.h"
#include "common/shm/shm_area.h"
#include "tests/lib/rpc_process.h"
#include "tests/lib/suite.h"

#define BYTES_MAX (16u << 20)

/* ---- a server that echoes ----------------------------------------------------------------------
 */

struct side {
    struct kelp_rpc_stream *stream;
    unsigned messages;
    size_t bytes;
    unsigned closed;
    kelp_status status;
    char text[600];
    bool quiet; /* do not echo, but keep the last one */
    unsigned send_on_accept;
    struct kelp_rpc_message *last;
};

static void on_closed(struct kelp_rpc_stream *stream, kelp_status status, const char *text,
                      void *user)
{
    struct side *side = user;

    ck_assert_ptr_eq(stream, side->stream);
    side->closed++;
    side->status = status;
    (void)snprintf(side->text, sizeof(side->text), "%s", text);
}

static void on_server_message(struct kelp_rpc_stream *stream, struct kelp_rpc_message *message,
                              void *user)
{
    struct side *side = user;

    side->messages++;
    side->bytes += kelp_rpc_message_length(message);
    kelp_rpc_message_ref(message);
    if (side->quiet) {
        kelp_rpc_message_unref(side->last);
        side->last = message;
    } else {
        ck_assert_int_eq(kelp_rpc_stream_send(stream, message), KELP_OK);
    }
}

static void on_client_message(struct kelp_rpc_stream *stream, struct kelp_rpc_message *message,
                              void *user)
{
    struct side *side = user;

    (void)stream;
    side->messages++;
    side->bytes += kelp_rpc_message_length(message);
    kelp_rpc_message_ref(message);
    kelp_rpc_message_unref(side->last);
    side->last = message;
}

static const struct kelp_rpc_stream_events server_events = {on_server_message, on_closed};
static const struct kelp_rpc_stream_events client_events = {on_client_message, on_closed};

static struct kelp_rpc_message *text_message(const char *text)
{
    struct kelp_rpc_message *message = kelp_rpc_message_create();

    ck_assert_ptr_nonnull(message);
    ck_assert_int_eq(kelp_rpc_message_copy(message, text, strlen(text)), KELP_OK);
    return message;
}

static const struct kelp_rpc_stream_events *accept_echo(struct kelp_rpc_stream *stream,
                                                        void *server_user, void **ret_user)
{
    struct side *side = server_user;

    side->stream = stream;
    *ret_user = side;
    for (unsigned i = 0; i < side->send_on_accept; i++) {
        ck_assert_int_eq(kelp_rpc_stream_send(stream, text_message("hello")), KELP_OK);
    }
    return &server_events;
}

static const struct kelp_rpc_stream_events *accept_never(struct kelp_rpc_stream *stream,
                                                         void *server_user, void **ret_user)
{
    (void)stream;
    (void)server_user;
    (void)ret_user;
    return NULL;
}

/* Fails with the status that the request names. */
static void unary_status(struct kelp_rpc_request *request, struct kelp_rpc_message *message,
                         void *server_user)
{
    struct kelp_rpc_segment segment = kelp_rpc_message_segment(message, 0);
    kelp_status status = KELP_OK;

    (void)server_user;
    ck_assert_uint_eq(segment.length, sizeof(status));
    memcpy(&status, segment.bytes, sizeof(status));
    kelp_rpc_request_fail(request, status, kelp_status_text(status));
}

static void unary_refuse(struct kelp_rpc_request *request, struct kelp_rpc_message *message,
                         void *server_user)
{
    (void)message;
    (void)server_user;
    kelp_rpc_request_fail(request, KELP_ERR_OLD_GENERATION, "generation 1 is over");
}

static const struct kelp_rpc_stream_events *accept_many(struct kelp_rpc_stream *stream,
                                                        void *server_user, void **ret_user);

static const struct kelp_rpc_method methods[] = {
    {.path = "/test/Echo", .accept = accept_echo, .shared = true},
    {.path = "/test/Never", .accept = accept_never, .shared = true},
    {.path = "/test/Many", .accept = accept_many, .shared = true},
    {.path = "/test/Apart", .accept = accept_never},
    {.path = "/test/Unary", .unary = kelp_test_rpc_echo},
    {.path = "/test/Refuse", .unary = unary_refuse},
    {.path = "/test/Status", .unary = unary_status},
};

static struct kelp_rpc_loop *loop;
static struct kelp_rpc_server *server;
static struct kelp_rpc_channel *channel;
static struct side at_server;
static struct side at_client;
static char address[64];

static bool shared;  /* methods are reached through shared memory */
static bool meets;   /* at a port, with a folder to meet in */
static bool carried; /* a thread of its own moves the channel's bytes */
static char folder[] = "/tmp/kelp-test-XXXXXX";

static void setup(void)
{
    struct kelp_error error = {0};
    const bool at_socket = shared && !meets;
    struct kelp_rpc_server_options options = {.address = at_socket ? address : "127.0.0.1:0",
                                              .shared = shared,
                                              .message_bytes_max = BYTES_MAX,
                                              .methods = methods,
                                              .method_count = KELP_ARRAY_COUNT(methods),
                                              .user = &at_server};

    kelp_rpc_global_init();
    at_server = (struct side){0};
    at_client = (struct side){0};
    ck_assert_int_eq(kelp_rpc_loop_create(&loop, &error), KELP_OK);
    kelp_rpc_loop_shm_folder(loop, meets ? folder : NULL);
    ck_assert_msg(kelp_rpc_server_open(loop, &options, &server, &error) == KELP_OK, "%s",
                  error.text);
    (void)snprintf(address, sizeof(address), "%s", kelp_rpc_server_address(server));
    if (carried) {
        struct kelp_rpc_carrier *carrier = NULL;
        ck_assert_int_eq(kelp_rpc_carrier_start(loop, &carrier, &error), KELP_OK);
        ck_assert_int_eq(kelp_rpc_channel_open_carried(carrier, address, KELP_ROLE_SHARD, BYTES_MAX,
                                                       &channel, &error),
                         KELP_OK);
        return;
    }
    ck_assert_int_eq(
        kelp_rpc_channel_open(loop, address, KELP_ROLE_SHARD, BYTES_MAX, &channel, &error),
        KELP_OK);
}

static void setup_carried(void)
{
    carried = true;
    kelp_rpc_global_several_loops();
    setup();
}

/* The same as a program with several loops has it. */
static void setup_several_loops(void)
{
    kelp_rpc_global_several_loops();
    setup();
}

static void teardown(void)
{
    kelp_rpc_message_unref(at_client.last);
    kelp_rpc_message_unref(at_server.last);
    kelp_rpc_channel_close(channel);
    kelp_rpc_server_close(server);
    kelp_rpc_loop_destroy(loop);
    kelp_rpc_global_fini();
}

static void setup_shared(void)
{
    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(address, sizeof(address), "unix:%s/server", folder);
    shared = true;
    setup();
}

/* The server leaves no socket of shared memory behind. */
static void teardown_shared(void)
{
    char path[80];

    teardown();
    (void)snprintf(path, sizeof(path), "%s/server.shm", folder);
    ck_assert_int_ne(access(path, F_OK), 0);
    (void)unlink(address + strlen("unix:"));
    ck_assert_int_eq(rmdir(folder), 0);
}

static void setup_meets(void)
{
    ck_assert_ptr_nonnull(mkdtemp(folder));
    shared = meets = true;
    setup();
}

static void teardown_meets(void)
{
    teardown();
    ck_assert_int_eq(rmdir(folder), 0); /* the server leaves nothing behind */
}

static void open_with(const char *path, uint32_t first_message_ms,
                      const struct kelp_rpc_stream_events *events, void *user,
                      struct kelp_rpc_stream **ret_stream)
{
    const struct kelp_rpc_stream_options options = {
        .path = path, .first_message_ms = first_message_ms, .events = events, .user = user};

    ck_assert_int_eq(shared ? kelp_rpc_stream_open_shared(channel, &options, ret_stream, NULL)
                            : kelp_rpc_stream_open(channel, &options, ret_stream, NULL),
                     KELP_OK);
}

static void open_stream(const char *path, uint32_t first_message_ms)
{
    open_with(path, first_message_ms, &client_events, &at_client, &at_client.stream);
}

/* Runs the loop until condition holds; 10 s are only reached by a failure. */
#define RUN_UNTIL(condition)                                                                       \
    do {                                                                                           \
        for (int turns = 0; !(condition) && turns < 100000; turns++) {                             \
            (void)kelp_rpc_loop_run(loop, 10);                                                     \
        }                                                                                          \
        ck_assert(condition);                                                                      \
    } while (0)

/* ---- tests -------------------------------------------------------------------------------------
 */

KELP_CASE("one loop", .timeout_s = 30, .setup = setup, .teardown = teardown)

/* What is sent comes back, in order, and an orderly close is seen as such by both. */
KELP_TEST(echo)
{
    open_stream("/test/Echo", 2000);
    for (unsigned i = 0; i < 100; i++) {
        char text[16];
        (void)snprintf(text, sizeof(text), "number %u", i);
        ck_assert_int_eq(kelp_rpc_stream_send(at_client.stream, text_message(text)), KELP_OK);
    }
    RUN_UNTIL(at_client.messages == 100);
    struct kelp_rpc_segment segment = kelp_rpc_message_segment(at_client.last, 0);
    ck_assert_uint_eq(segment.length, 9);
    ck_assert_mem_eq(segment.bytes, "number 99", 9);
    kelp_rpc_stream_close(at_client.stream, KELP_OK, NULL);
    ck_assert_int_eq(kelp_rpc_stream_send(at_client.stream, text_message("late")), KELP_ERR_CLOSED);
    RUN_UNTIL(at_client.closed == 1 && at_server.closed == 1);
    ck_assert_int_eq(at_client.status, KELP_OK);
    ck_assert_int_eq(at_server.status, KELP_OK);
}

/* A server may send from inside accept, and its status and text reach the client exactly. */
KELP_TEST(server_closes)
{
    at_server.send_on_accept = 3;
    open_stream("/test/Echo", 2000);
    RUN_UNTIL(at_client.messages == 3);
    kelp_rpc_stream_close(at_server.stream, KELP_ERR_MISMATCH, "other job: \"b\"\n100 %");
    RUN_UNTIL(at_client.closed == 1 && at_server.closed == 1);
    ck_assert_int_eq(at_client.status, KELP_ERR_MISMATCH);
    ck_assert_str_eq(at_client.text, "other job: \"b\"\n100 %");
    ck_assert_int_eq(at_server.status, KELP_ERR_MISMATCH);
}

/* A refused stream and an unknown path are told apart from a peer that is away. */
KELP_TEST(refused)
{
    open_stream("/test/Never", 2000);
    RUN_UNTIL(at_client.closed == 1);
    ck_assert_int_eq(at_client.status, KELP_ERR_UNSUPPORTED);
    if (shared) {
        ck_assert_str_eq(at_client.text, "stream refused");
        return;
    }
    open_stream("/test/None", 2000);
    RUN_UNTIL(at_client.closed == 2);
    ck_assert_int_eq(at_client.status, KELP_ERR_UNSUPPORTED);
    ck_assert_str_eq(at_client.text, "no such method");
}

static unsigned ticks;
static void tick(void *user)
{
    (void)user;
    ticks++;
}

#define TOGETHER_MS 40

static void tick_together(void *user)
{
    bool *ret_on_time = user;
    *ret_on_time = *ret_on_time || kelp_clock_us() % (TOGETHER_MS * 1000) < 10000;
}

/* Timers that run together are due at the multiples of their period, whenever they were started:
 * here in the middle of one. A busy machine may be late, and need not be each time. */
KELP_TEST(timers_run_together)
{
    const uint64_t period_us = TOGETHER_MS * 1000;
    struct kelp_rpc_timer *timers[2] = {NULL, NULL};
    bool on_time[2] = {false, false};

    ck_assert_int_eq(kelp_rpc_timer_start_together(loop, 0, tick, NULL, &timers[0]),
                     KELP_ERR_INVALID);
    for (size_t i = 0; i < 2; i++) {
        const uint64_t to_middle_us = period_us + period_us / 2 - kelp_clock_us() % period_us;
        (void)kelp_rpc_loop_run(loop, (int)(to_middle_us % period_us / 1000));
        ck_assert_int_eq(kelp_rpc_timer_start_together(loop, TOGETHER_MS, tick_together,
                                                       &on_time[i], &timers[i]),
                         KELP_OK);
    }
    RUN_UNTIL(on_time[0] && on_time[1]);
    kelp_rpc_timer_stop(timers[0]);
    kelp_rpc_timer_stop(timers[1]);
}

/* Timers repeat and stop; posts and wakes make a waiting loop return. */
KELP_TEST(timers_and_posts)
{
    struct kelp_rpc_timer *timer = NULL;

    ticks = 0;
    ck_assert_int_eq(kelp_rpc_timer_start(loop, 5, tick, NULL, &timer), KELP_OK);
    RUN_UNTIL(ticks == 3);
    kelp_rpc_timer_stop(timer);
    ck_assert(!kelp_rpc_loop_run(loop, 20));
    ck_assert_uint_eq(ticks, 3);
    ck_assert_int_eq(kelp_rpc_loop_post(loop, tick, NULL), KELP_OK);
    ck_assert(kelp_rpc_loop_run(loop, -1));
    ck_assert_uint_eq(ticks, 4);
    kelp_rpc_loop_wake(loop);
    ck_assert(kelp_rpc_loop_run(loop, -1));
    ck_assert(!kelp_rpc_loop_run(loop, 0));
    struct kelp_spin spin;
    kelp_spin_init(&spin, KELP_SPIN_US, kelp_clock_us());
    ck_assert(!kelp_rpc_loop_run_spin(loop, &spin, 1));
    ck_assert_int_le(spin.saved_ns, (KELP_SPIN_SAVED_US - KELP_SPIN_US) * INT64_C(1000));
}

static void *run_loop(void *user)
{
    atomic_bool *stop = user;

    while (!atomic_load(stop)) {
        (void)kelp_rpc_loop_run(loop, 20);
    }
    return NULL;
}

/* A unary call needs no running loop on its side; the answer or the exact status comes back. */
KELP_TEST(unary)
{
    atomic_bool stop = false;
    pthread_t thread;
    struct kelp_rpc_message *answer = NULL;
    struct kelp_error error = {0};

    ck_assert_int_eq(pthread_create(&thread, NULL, run_loop, &stop), 0);
    ck_assert_int_eq(
        kelp_rpc_call(channel, "/test/Unary", text_message("ping"), 2000, &answer, &error),
        KELP_OK);
    ck_assert_uint_eq(kelp_rpc_message_length(answer), 4);
    kelp_rpc_message_unref(answer);
    ck_assert_int_eq(
        kelp_rpc_call(channel, "/test/Refuse", text_message("ping"), 2000, &answer, &error),
        KELP_ERR_OLD_GENERATION);
    ck_assert_ptr_nonnull(strstr(error.text, "generation 1 is over"));
    ck_assert_int_eq(
        kelp_rpc_call(channel, "/test/None", text_message("ping"), 2000, &answer, &error),
        KELP_ERR_UNSUPPORTED);
    atomic_store(&stop, true);
    (void)pthread_join(thread, NULL);
}

/* Every status crosses the wire as it is, with its text. */
KELP_TEST(statuses)
{
    static const kelp_status all[] = {
#define STATUS_VALUE(name, value, group, text) KELP_ERR_##name,
        KELP_STATUS_LIST(STATUS_VALUE)
#undef STATUS_VALUE
    };
    atomic_bool stop = false;
    pthread_t thread;

    ck_assert_int_eq(pthread_create(&thread, NULL, run_loop, &stop), 0);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(all); i++) {
        struct kelp_rpc_message *request = kelp_rpc_message_create();
        struct kelp_rpc_message *answer = NULL;
        struct kelp_error error = {0};
        ck_assert_int_eq(kelp_rpc_message_copy(request, &all[i], sizeof(all[i])), KELP_OK);
        ck_assert_int_eq(kelp_rpc_call(channel, "/test/Status", request, 2000, &answer, &error),
                         all[i]);
        ck_assert_ptr_nonnull(strstr(error.text, kelp_status_text(all[i])));
    }
    atomic_store(&stop, true);
    (void)pthread_join(thread, NULL);
}

/* A server that closes ends its live streams; their clients see it as a lost peer, once. */
KELP_TEST(server_closes_with_live_streams)
{
    open_stream("/test/Echo", 2000);
    ck_assert_int_eq(kelp_rpc_stream_send(at_client.stream, text_message("x")), KELP_OK);
    RUN_UNTIL(at_client.messages == 1);
    kelp_rpc_server_close(server);
    server = NULL;
    ck_assert_uint_eq(at_server.closed, 1);
    ck_assert_int_eq(at_server.status, KELP_ERR_UNREACHABLE);
    RUN_UNTIL(at_client.closed == 1);
    ck_assert_int_eq(kelp_status_group(at_client.status), KELP_GROUP_PEER);
}

/* ---- many streams, several threads -------------------------------------------------------------
 */

#define STREAMS ((size_t)64)
#define ROUNDS  200u

struct many {
    struct kelp_rpc_stream *stream;
    unsigned rounds; /* plain: callbacks of one stream never overlap */
    atomic_bool inside;
    atomic_uint *finished;
};

static atomic_uint borrowed;
static atomic_uint released;

static void count_release(void *user)
{
    (void)user;
    atomic_fetch_add(&released, 1);
}

static void send_round(struct many *many)
{
    static const uint8_t bytes[6000];
    struct kelp_rpc_message *message = kelp_rpc_message_create();

    atomic_fetch_add(&borrowed, 1);
    ck_assert_int_eq(kelp_rpc_message_borrow(message, bytes, 100 * ((size_t)many->rounds % 60 + 1),
                                             count_release, NULL),
                     KELP_OK);
    ck_assert_int_eq(kelp_rpc_stream_send(many->stream, message), KELP_OK);
}

static void many_message(struct kelp_rpc_stream *stream, struct kelp_rpc_message *message,
                         void *user)
{
    struct many *many = user;

    ck_assert(!atomic_exchange(&many->inside, true));
    ck_assert_uint_eq(kelp_rpc_message_length(message), 100 * ((size_t)many->rounds % 60 + 1));
    many->rounds++;
    if (many->rounds == ROUNDS) {
        kelp_rpc_stream_close(stream, KELP_OK, NULL);
    } else {
        send_round(many);
    }
    atomic_store(&many->inside, false);
}

static void many_closed(struct kelp_rpc_stream *stream, kelp_status status, const char *text,
                        void *user)
{
    struct many *many = user;

    (void)stream;
    (void)text;
    ck_assert(!atomic_exchange(&many->inside, true));
    ck_assert_int_eq(status, KELP_OK);
    atomic_fetch_add(many->finished, 1);
}

static void echo_message(struct kelp_rpc_stream *stream, struct kelp_rpc_message *message,
                         void *user)
{
    (void)user;
    kelp_rpc_message_ref(message);
    ck_assert_int_eq(kelp_rpc_stream_send(stream, message), KELP_OK);
}

static void echo_closed(struct kelp_rpc_stream *stream, kelp_status status, const char *text,
                        void *user)
{
    (void)stream;
    (void)status;
    (void)text;
    (void)user;
}

static const struct kelp_rpc_stream_events *accept_many(struct kelp_rpc_stream *stream,
                                                        void *server_user, void **ret_user)
{
    static const struct kelp_rpc_stream_events events = {echo_message, echo_closed};

    (void)stream;
    (void)server_user;
    *ret_user = NULL;
    return &events;
}

/* Many streams in one loop that _i more threads run: every message once, in order, and callbacks of
 * one stream never at the same time; everything borrowed is released once. */
KELP_LOOP_TEST(many_streams, 0, 4)
{
    static const struct kelp_rpc_stream_events events = {many_message, many_closed};
    struct many *all = calloc(STREAMS, sizeof(*all));
    pthread_t threads[3];
    atomic_bool stop = false;
    atomic_uint finished = 0;

    for (int i = 0; i < _i; i++) {
        ck_assert_int_eq(pthread_create(&threads[i], NULL, run_loop, &stop), 0);
    }
    for (unsigned i = 0; i < STREAMS; i++) {
        all[i].finished = &finished;
        open_with("/test/Many", 5000, &events, &all[i], &all[i].stream);
        send_round(&all[i]);
    }
    RUN_UNTIL(atomic_load(&finished) == STREAMS);
    atomic_store(&stop, true);
    for (int i = 0; i < _i; i++) {
        (void)pthread_join(threads[i], NULL);
    }
    for (unsigned i = 0; i < STREAMS; i++) {
        ck_assert_uint_eq(all[i].rounds, ROUNDS);
    }
    free(all);
    RUN_UNTIL(atomic_load(&released) == STREAMS * ROUNDS);
    unsigned given = atomic_load(&borrowed);
    ck_assert_uint_eq(given, STREAMS * ROUNDS);
}

/* Streams and the server are torn down while threads run the loop and messages are under way. */
KELP_TEST(torn_down_in_flight)
{
    static const struct kelp_rpc_stream_events events = {many_message, echo_closed};
    struct many *all = calloc(STREAMS, sizeof(*all));
    pthread_t threads[2];
    atomic_bool stop = false;

    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(pthread_create(&threads[i], NULL, run_loop, &stop), 0);
    }
    for (unsigned i = 0; i < STREAMS; i++) {
        open_with("/test/Many", 5000, &events, &all[i], &all[i].stream);
    }
    kelp_rpc_server_close(server);
    server = NULL;
    atomic_store(&stop, true);
    for (int i = 0; i < 2; i++) {
        (void)pthread_join(threads[i], NULL);
    }
    kelp_rpc_channel_close(channel);
    channel = NULL;
    kelp_rpc_loop_destroy(loop); /* reports what is left as closed */
    loop = NULL;
    free(all);
}

static void post_from_thread(void *user)
{
    atomic_fetch_add((atomic_uint *)user, 1);
}

static void *post_many(void *user)
{
    for (int i = 0; i < 1000; i++) {
        ck_assert_int_eq(kelp_rpc_loop_post(loop, post_from_thread, user), KELP_OK);
        kelp_rpc_loop_wake(loop);
    }
    return NULL;
}

/* Each post runs once, whichever thread it came from; timers started elsewhere wake a waiting loop.
 */
KELP_TEST(posts_from_threads)
{
    atomic_uint count = 0;
    pthread_t threads[2];

    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(pthread_create(&threads[i], NULL, post_many, &count), 0);
    }
    RUN_UNTIL(atomic_load(&count) == 2000);
    for (int i = 0; i < 2; i++) {
        (void)pthread_join(threads[i], NULL);
    }
}

static void *start_timer(void *user)
{
    struct kelp_rpc_timer **ret_timer = user;

    ck_assert_int_eq(kelp_rpc_timer_start(loop, 5, tick, NULL, ret_timer), KELP_OK);
    return NULL;
}

KELP_TEST(timer_from_a_thread)
{
    struct kelp_rpc_timer *timer = NULL;
    pthread_t thread;

    ticks = 0;
    ck_assert_int_eq(pthread_create(&thread, NULL, start_timer, &timer), 0);
    while (ticks == 0) {
        (void)kelp_rpc_loop_run(loop, -1); /* would wait for ever if the timer did not wake it */
    }
    (void)pthread_join(thread, NULL);
    kelp_rpc_timer_stop(timer);
}

KELP_CASE("several loops", .timeout_s = 30, .setup = setup_several_loops, .teardown = teardown)

KELP_TEST_AGAIN(echo)
KELP_TEST_AGAIN(server_closes)
KELP_TEST_AGAIN(refused)
KELP_TEST_AGAIN(timers_and_posts)
KELP_TEST_AGAIN(unary)
KELP_TEST_AGAIN(statuses)
KELP_TEST_AGAIN(server_closes_with_live_streams)
KELP_LOOP_TEST_AGAIN(many_streams, 0, 4)
KELP_TEST_AGAIN(torn_down_in_flight)
KELP_TEST_AGAIN(posts_from_threads)
KELP_TEST_AGAIN(timer_from_a_thread)

/* With a carrier: what the loop sees is the same. */
KELP_CASE("carried", .timeout_s = 30, .setup = setup_carried, .teardown = teardown)

KELP_TEST_AGAIN(echo)
KELP_TEST_AGAIN(server_closes)
KELP_TEST_AGAIN(refused)
KELP_TEST_AGAIN(timers_and_posts)
KELP_TEST_AGAIN(unary)
KELP_TEST_AGAIN(statuses)
KELP_TEST_AGAIN(server_closes_with_live_streams)
KELP_TEST_AGAIN(torn_down_in_flight)
KELP_TEST_AGAIN(posts_from_threads)
KELP_TEST_AGAIN(timer_from_a_thread)

/* ---- the same through shared memory, and what is different ---- */

KELP_CASE("shared memory", .timeout_s = 30, .setup = setup_shared, .teardown = teardown_shared)

KELP_TEST_AGAIN(echo)
KELP_TEST_AGAIN(server_closes)
KELP_TEST_AGAIN(timers_and_posts)
KELP_TEST_AGAIN(unary)
KELP_TEST_AGAIN(server_closes_with_live_streams)
KELP_TEST_AGAIN(posts_from_threads)
KELP_TEST_AGAIN(timer_from_a_thread)

/* Large messages, whose fields come first, and of many segments; each byte arrives. */
KELP_LOOP_TEST(sizes, 0, 6)
{
    static const struct {
        size_t first, other;
        unsigned count;
    } sizes[] = {{100, 4u << 20, 1},      {64u << 10, 0, 0},  {100, 1000, 1200},
                 {(64u << 10) - 8, 1, 1}, {200u << 10, 1, 3}, {1, 64u << 10, 20}};
    static uint8_t bytes[4u << 20];
    size_t whole = sizes[_i].first + sizes[_i].other * sizes[_i].count;

    for (size_t i = 0; i < sizeof(bytes); i++) {
        bytes[i] = (uint8_t)(i * 7 + i / 251);
    }
    open_stream("/test/Echo", 5000);
    for (unsigned turn = 1; turn <= 20; turn++) {
        struct kelp_rpc_message *message = kelp_rpc_message_create();
        ck_assert_int_eq(kelp_rpc_message_copy(message, bytes, sizes[_i].first), KELP_OK);
        for (unsigned i = 0; i < sizes[_i].count; i++) {
            ck_assert_int_eq(kelp_rpc_message_borrow(message, bytes, sizes[_i].other, tick, NULL),
                             KELP_OK);
        }
        ck_assert_int_eq(kelp_rpc_stream_send(at_client.stream, message), KELP_OK);
        RUN_UNTIL(at_client.messages == turn);
        ck_assert_uint_eq(kelp_rpc_message_length(at_client.last), whole);
        size_t at = 0, wrong = 0;
        for (size_t i = 0; i < kelp_rpc_message_segment_count(at_client.last); i++) {
            const struct kelp_rpc_segment segment = kelp_rpc_message_segment(at_client.last, i);
            for (size_t byte = 0; byte < segment.length; byte++, at++) {
                const size_t from =
                    at < sizes[_i].first ? at : (at - sizes[_i].first) % sizes[_i].other;
                wrong += segment.bytes[byte] != bytes[from];
            }
        }
        ck_assert_uint_eq(wrong, 0);
    }
}

/* What is longer than the stream's bound is the sender's mistake. */
KELP_TEST(too_large)
{
    struct kelp_rpc_message *message = kelp_rpc_message_create();

    ck_assert_ptr_nonnull(kelp_rpc_message_extend(message, BYTES_MAX + 1));
    open_stream("/test/Echo", 5000);
    ck_assert_int_eq(kelp_rpc_stream_send(at_client.stream, message), KELP_ERR_LIMIT);
    kelp_rpc_stream_close(at_client.stream, KELP_OK, NULL);
    RUN_UNTIL(at_client.closed == 1);
}

/* A server that says nothing is not waited for beyond the first message's time. */
KELP_TEST(no_first_message)
{
    at_server.quiet = true;
    open_stream("/test/Echo", 50);
    RUN_UNTIL(at_client.closed == 1);
    ck_assert_int_eq(at_client.status, KELP_ERR_TIMEOUT);
    RUN_UNTIL(at_server.closed == 1);
    ck_assert_int_eq(at_server.status, KELP_ERR_UNREACHABLE);
    ck_assert_str_eq(at_server.text, "a process of this host, through shared memory is gone or "
                                     "cancelled the stream");
}

/* A client that cancels is gone at once. */
KELP_TEST(cancelled)
{
    open_stream("/test/Echo", 5000);
    ck_assert_int_eq(kelp_rpc_stream_send(at_client.stream, text_message("x")), KELP_OK);
    RUN_UNTIL(at_client.messages == 1);
    kelp_rpc_stream_close(at_client.stream, KELP_ERR_FORMAT, "nonsense");
    RUN_UNTIL(at_client.closed == 1 && at_server.closed == 1);
    ck_assert_int_eq(at_client.status, KELP_ERR_FORMAT);
    ck_assert_int_eq(at_server.status, KELP_ERR_UNREACHABLE);
}

/* Far more than a slow reader may have in memory waits, and comes in order as it reads. */
KELP_TEST(slow_reader)
{
    enum { COUNT = 40 };
    static uint8_t bytes[4u << 20];

    open_stream("/test/Echo", 5000);
    ck_assert_int_eq(kelp_rpc_stream_send(at_client.stream, text_message("x")), KELP_OK);
    RUN_UNTIL(at_client.messages == 1);
    ticks = 0;
    for (unsigned i = 0; i < COUNT; i++) {
        struct kelp_rpc_message *message = kelp_rpc_message_create();
        ck_assert_int_eq(kelp_rpc_message_copy(message, &i, sizeof(i)), KELP_OK);
        ck_assert_int_eq(kelp_rpc_message_borrow(message, bytes, sizeof(bytes), tick, NULL),
                         KELP_OK);
        ck_assert_int_eq(kelp_rpc_stream_send(at_server.stream, message), KELP_OK);
    }
    ck_assert_uint_le(ticks, KELP_RPC_SHARED_LENT_MAX / sizeof(bytes) + 1); /* the others wait */
    ck_assert_uint_gt(kelp_rpc_stream_queued(at_server.stream), COUNT / 2);
    for (unsigned i = 0; i < COUNT; i++) {
        unsigned came = COUNT;
        RUN_UNTIL(at_client.messages == 2 + i);
        memcpy(&came, kelp_rpc_message_segment(at_client.last, 0).bytes, sizeof(came));
        ck_assert_uint_eq(came, i);
    }
    ck_assert_uint_eq(ticks, COUNT);
}

static unsigned returns[2]; /* how often lent memory came back: to be read for ever, or not */

static void came_back(void *user, bool read)
{
    (void)user;
    returns[read]++;
}

static void send_lent(struct kelp_shm_area *area, size_t length)
{
    const struct kelp_rpc_loan loan = {.bytes = (char *)kelp_shm_area_bytes(area) + 320,
                                       .length = length,
                                       .area = area,
                                       .returned = came_back};
    struct kelp_rpc_message *message = text_message("fields");
    ck_assert_int_eq(kelp_rpc_message_lend(message, &loan), KELP_OK);
    ck_assert_int_eq(kelp_rpc_stream_send(at_client.stream, message), KELP_OK);
}

/* What lies in an area is read where it is. It comes back when the other side has released it, or,
 * if the stream ended before that, as memory that may be read for ever. */
KELP_LOOP_TEST(lent_in_place, 0, 2)
{
    enum { LENGTH = 300000 };
    struct kelp_shm_area *area = NULL;

    memset(returns, 0, sizeof(returns));
    ck_assert_int_eq(kelp_shm_area_create(LENGTH + 320, &area, NULL), KELP_OK);
    char *bytes = kelp_shm_area_bytes(area);
    at_server.quiet = true;
    open_stream("/test/Echo", 5000);
    send_lent(area, LENGTH);
    RUN_UNTIL(at_server.messages == 1);
    const struct kelp_rpc_segment segment = kelp_rpc_message_segment(at_server.last, 1);
    ck_assert_uint_eq(segment.length, LENGTH);
    bytes[320] = 'a';
    ck_assert_int_eq(segment.bytes[0], 'a');
    bytes[320 + LENGTH - 1] = 'z';
    ck_assert_int_eq(segment.bytes[LENGTH - 1], 'z');
    ck_assert_uint_eq(returns[false] + returns[true], 0);
    if (_i == 0) {
        kelp_rpc_message_unref(at_server.last);
        at_server.last = NULL;
        send_lent(area,
                  LENGTH); /* nobody tells us of a release: we look when there is more to do */
        RUN_UNTIL(at_server.messages == 2);
        ck_assert_uint_eq(returns[true], 1);
    }
    kelp_rpc_stream_close(at_client.stream, KELP_OK, NULL);
    RUN_UNTIL(at_client.closed == 1);
    ck_assert_uint_eq(returns[false], 1);
    kelp_rpc_message_unref(at_server.last); /* it reads on meanwhile */
    at_server.last = NULL;
    kelp_shm_area_retire(area);
    kelp_shm_area_unref(area);
}

/* What an area does not hold, or a ring, is copied beside what it does. */
KELP_LOOP_TEST(lent_in_parts, 0, 2)
{
    static const size_t others[] = {1000, 100000};
    static char other[100000];
    struct kelp_shm_area *area = NULL;
    struct kelp_rpc_message *message = text_message("fields");

    memset(returns, 0, sizeof(returns));
    memset(other, 'o', sizeof(other));
    ck_assert_int_eq(kelp_shm_area_create(200000, &area, NULL), KELP_OK);
    memset(kelp_shm_area_bytes(area), 's', 200000);
    const struct kelp_rpc_loan loans[] = {
        {.bytes = kelp_shm_area_bytes(area), .length = 100000, .area = area, .returned = came_back},
        {.bytes = other, .length = others[_i], .returned = came_back},
        {.bytes = (char *)kelp_shm_area_bytes(area) + 150000,
         .length = 50000,
         .area = area,
         .returned = came_back}};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(loans); i++) {
        ck_assert_int_eq(kelp_rpc_message_lend(message, &loans[i]), KELP_OK);
    }
    open_stream("/test/Echo", 5000);
    ck_assert_int_eq(kelp_rpc_stream_send(at_client.stream, message), KELP_OK);
    RUN_UNTIL(at_client.messages == 1);
    ck_assert_uint_eq(kelp_rpc_message_length(at_client.last), 6 + 150000 + others[_i]);
    size_t counts[256] = {0};
    for (size_t i = 0; i < kelp_rpc_message_segment_count(at_client.last); i++) {
        const struct kelp_rpc_segment segment = kelp_rpc_message_segment(at_client.last, i);
        for (size_t byte = 0; byte < segment.length; byte++) {
            counts[segment.bytes[byte]]++;
        }
    }
    ck_assert_uint_eq(counts['o'], others[_i]);
    ck_assert_uint_eq(counts['s'], 150000 + 1); /* "fields" has one */
    kelp_rpc_stream_close(at_client.stream, KELP_OK, NULL);
    RUN_UNTIL(at_client.closed == 1 && at_server.closed == 1);
    ck_assert_uint_eq(returns[true] + returns[false], 3);
    kelp_shm_area_unref(area);
}

/* Where it is not offered, an open says so at once, and gRPC still serves. */
KELP_TEST(not_offered)
{
    struct kelp_error error;
    struct kelp_rpc_channel *other = NULL;
    const struct kelp_rpc_stream_options options = {
        .path = "/test/Echo", .events = &client_events, .user = &at_client};

    ck_assert_int_eq(
        kelp_rpc_channel_open(loop, "127.0.0.1:1", KELP_ROLE_SHARD, BYTES_MAX, &other, NULL),
        KELP_OK);
    ck_assert_int_eq(kelp_rpc_stream_open_shared(other, &options, &at_client.stream, &error),
                     KELP_ERR_UNREACHABLE);
    ck_assert_str_eq(
        error.text, "ipv4:127.0.0.1:1 is a port, and there is no folder to meet in (--shm-folder)");
    kelp_rpc_channel_close(other);
    ck_assert_int_eq(kelp_rpc_channel_open(loop, "unix:/tmp/kelp-none/s", KELP_ROLE_SHARD,
                                           BYTES_MAX, &other, NULL),
                     KELP_OK);
    ck_assert_int_eq(kelp_rpc_stream_open_shared(other, &options, &at_client.stream, &error),
                     KELP_ERR_UNREACHABLE);
    ck_assert_str_eq(error.text, "cannot reach '/tmp/kelp-none/s.shm': No such file or directory");
    kelp_rpc_channel_close(other);
    ck_assert_int_eq(kelp_rpc_stream_open(channel, &options, &at_client.stream, NULL), KELP_OK);
    ck_assert_int_eq(kelp_rpc_stream_send(at_client.stream, text_message("x")), KELP_OK);
    RUN_UNTIL(at_client.messages == 1);
}

KELP_TEST_AGAIN(refused)
KELP_LOOP_TEST_AGAIN(many_streams, 0, 4)
KELP_TEST_AGAIN(torn_down_in_flight)

/* Methods that are not offered through shared memory, or are not there, or have no good name. */
KELP_LOOP_TEST(no_such_method, 0, 4)
{
    static char long_name[KELP_RPC_PATH_MAX + 2];
    const char *const paths[] = {"/test/Apart", "/test/Nowhere", "", long_name};

    memset(long_name, 'x', sizeof(long_name) - 1);
    open_stream(paths[_i], 5000);
    RUN_UNTIL(at_client.closed == 1);
    ck_assert_int_eq(at_client.status, _i < 2 ? KELP_ERR_UNSUPPORTED : KELP_ERR_UNREACHABLE);
    if (_i < 2) {
        ck_assert_str_eq(at_client.text, "no such method through shared memory");
    }
    ck_assert_ptr_null(at_server.stream);
}

/* ---- the same where the server has a port, and both have a folder to meet in ---- */

KELP_CASE("meeting", .timeout_s = 30, .setup = setup_meets, .teardown = teardown_meets)

KELP_TEST_AGAIN(echo)
KELP_TEST_AGAIN(server_closes)
KELP_TEST_AGAIN(server_closes_with_live_streams)
KELP_LOOP_TEST_AGAIN(no_such_method, 0, 4)

/* The socket is the port's, and of this user alone; gRPC serves beside it. */
KELP_TEST(socket_of_a_port)
{
    char path[200];
    struct stat about;

    (void)snprintf(path, sizeof(path), "%s/%s.shm", folder, address);
    ck_assert_int_eq(stat(path, &about), 0);
    ck_assert(S_ISSOCK(about.st_mode));
    ck_assert_uint_eq(about.st_mode & 0777, 0600);
    ck_assert(kelp_rpc_server_shares(server));
    shared = false;
    open_stream("/test/Echo", 5000);
    ck_assert_int_eq(kelp_rpc_stream_send(at_client.stream, text_message("x")), KELP_OK);
    RUN_UNTIL(at_client.messages == 1);
    ck_assert_ptr_nonnull(strstr(kelp_rpc_stream_peer(at_server.stream), "127.0.0.1"));
}

/* A server that must share, and cannot, is none, and says why. */
KELP_LOOP_TEST(must_share, 0, 3)
{
    static char long_folder[200];
    static const struct {
        const char *folder, *text;
    } cases[] = {
        {NULL, " is a port, and there is no folder to meet in (--shm-folder)"},
        {long_folder, " has a socket beside it whose path is longer than 107 bytes"},
        {"/tmp/kelp-none", ".shm': No such file or directory"},
    };
    const struct kelp_rpc_server_options options = {.address = "127.0.0.1:0",
                                                    .shared = true,
                                                    .must_share = true,
                                                    .message_bytes_max = BYTES_MAX,
                                                    .methods = methods,
                                                    .method_count = KELP_ARRAY_COUNT(methods)};
    struct kelp_rpc_server *other = NULL;
    struct kelp_error error;

    memset(long_folder, '/', sizeof(long_folder) - 1);
    kelp_rpc_loop_shm_folder(loop, cases[_i].folder);
    ck_assert_int_eq(kelp_rpc_server_open(loop, &options, &other, &error), KELP_ERR_UNSUPPORTED);
    ck_assert_ptr_eq(strstr(error.text, "shared memory cannot be offered: "), error.text);
    ck_assert_msg(strstr(error.text, cases[_i].text) != NULL, "%s", error.text);
}

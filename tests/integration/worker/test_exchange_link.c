/*
 * How a worker's link reaches a shard: through shared memory where that is offered and works, by
 * gRPC where there is a choice, and not at all where there is none.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/shm/shm_socket.h"
#include "tests/lib/suite.h"
#include "worker/links/exchange_link.h"

#define EXCHANGE "/kelp.v1.ParameterServer/Exchange"

static struct kelp_rpc_loop *loop;
static struct kelp_rpc_server *server;
static struct kelp_shard_link *link_tested;
static char folder[] = "/tmp/kelp-test-XXXXXX";
static char path[64]; /* of the socket of shared memory */
static Kelp__V1__Hello hello = KELP__V1__HELLO__INIT;
static const struct kelp_plan plan = {.flat_count = 16, .partition_count = 1};
static struct kelp_place place = {.shard = "shard-0"};
static uint32_t links_alive;
static unsigned opened, closed, retried;
static struct kelp_error unfit; /* what the link says that ends the worker */
static const char *peer;        /* of the newest stream, as the shard sees it */

/* ---- a shard that answers ---- */

static void answer(struct kelp_rpc_stream *stream, struct kelp_rpc_message *message, void *user)
{
    Kelp__V1__ExchangeReply reply = KELP__V1__EXCHANGE_REPLY__INIT;
    struct kelp_rpc_message *encoded = NULL;

    (void)message;
    (void)user;
    peer = kelp_rpc_stream_peer(stream);
    reply.generation = 1;
    ck_assert_int_eq(kelp_wire_encode(&reply.base, &encoded, NULL), KELP_OK);
    ck_assert_int_eq(kelp_rpc_stream_send(stream, encoded), KELP_OK);
}

static void on_stream_closed(struct kelp_rpc_stream *stream, kelp_status status, const char *text,
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
    static const struct kelp_rpc_stream_events events = {answer, on_stream_closed};

    (void)stream;
    (void)server_user;
    *ret_user = NULL;
    return &events;
}

static void serve(bool shared)
{
    static const struct kelp_rpc_method method = {
        .path = EXCHANGE, .accept = accept_stream, .shared = true};
    const struct kelp_rpc_server_options options = {.address = place.address,
                                                    .message_bytes_max = 1u << 20,
                                                    .hello = true,
                                                    .shared = shared,
                                                    .methods = &method,
                                                    .method_count = 1};

    ck_assert_int_eq(kelp_rpc_server_open(loop, &options, &server, NULL), KELP_OK);
}

/* ---- the link ---- */

static void on_opened(struct kelp_shard_link *link, void *user)
{
    (void)link;
    (void)user;
    opened++;
}

static void on_closed(struct kelp_shard_link *link, void *user)
{
    (void)link;
    (void)user;
    closed++;
}

static void on_unfit(struct kelp_shard_link *link, const struct kelp_error *why, void *user)
{
    (void)link;
    (void)user;
    unfit = *why;
}

static void on_retry(struct kelp_shard_link *link, void *user)
{
    (void)link;
    (void)user;
    retried++;
}

static void open_link(enum kelp_transport transport)
{
    static const struct kelp_shard_link_events events = {
        .opened = on_opened, .closed = on_closed, .unfit = on_unfit, .retry = on_retry};
    const struct kelp_shard_link_options options = {.loop = loop,
                                                    .hello = &hello,
                                                    .generation = 1,
                                                    .place = &place,
                                                    .plan = &plan,
                                                    .lanes = 1,
                                                    .alive = &links_alive,
                                                    .transport = transport,
                                                    .piece_bytes = 4096,
                                                    .connect_timeout_ms = 10000,
                                                    .events = &events};

    ck_assert_int_eq(kelp_shard_link_open(&options, &link_tested, NULL), KELP_OK);
    kelp_shard_link_connect(link_tested);
}

#define RUN_UNTIL(condition)                                                                       \
    do {                                                                                           \
        for (int turns = 0; !(condition) && turns < 10000; turns++) {                              \
            (void)kelp_rpc_loop_run(loop, 10);                                                     \
        }                                                                                          \
        ck_assert(condition);                                                                      \
    } while (0)

static void setup(void)
{
    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(path, sizeof(path), "%s/shard.shm", folder);
    (void)snprintf(place.address, sizeof(place.address), "unix:%s/shard", folder);
    hello.job = "test";
    hello.id = "worker-0";
    kelp_rpc_global_init();
    ck_assert_int_eq(kelp_rpc_loop_create(&loop, NULL), KELP_OK);
}

static void teardown(void)
{
    kelp_shard_link_close(link_tested);
    RUN_UNTIL(links_alive == 0);
    kelp_rpc_server_close(server);
    kelp_rpc_loop_destroy(loop);
    kelp_rpc_global_fini();
    (void)unlink(path);
    (void)unlink(place.address + strlen("unix:"));
    ck_assert_int_eq(rmdir(folder), 0);
}

KELP_CASE("exchange link", .timeout_s = 60, .setup = setup, .teardown = teardown)

/* Offered: taken, unless the job says otherwise. */
KELP_LOOP_TEST(offered, KELP_TRANSPORT_AUTO, KELP_TRANSPORT_SHM + 1)
{
    serve(true);
    open_link((enum kelp_transport)_i);
    RUN_UNTIL(opened == 1);
    ck_assert_int_eq(strstr(peer, "through shared memory") != NULL, _i != KELP_TRANSPORT_GRPC);
}

/* Not offered: gRPC, unless the job insists. The shard is alive, so there is nothing to wait for.
 */
KELP_LOOP_TEST(not_offered, KELP_TRANSPORT_AUTO, KELP_TRANSPORT_SHM + 1)
{
    serve(false);
    open_link((enum kelp_transport)_i);
    if (_i != KELP_TRANSPORT_SHM) {
        RUN_UNTIL(opened == 1);
        return;
    }
    char expected[512];
    RUN_UNTIL(unfit.status != KELP_OK);
    (void)snprintf(expected, sizeof(expected),
                   "transport.kind: shm: no shared memory with shard-0 at %s, which must be of "
                   "this host and user, with the same --shm-folder: cannot reach '%s': No such "
                   "file or directory",
                   place.address, path);
    ck_assert_str_eq(unfit.text, expected);
    ck_assert_int_eq(unfit.status, KELP_ERR_INVALID);
    ck_assert_uint_eq(opened, 0);
}

/* A shard that is not there at all may come: the link goes on trying, also where the job insists.
 */
KELP_TEST(nobody_is_there)
{
    open_link(KELP_TRANSPORT_SHM);
    RUN_UNTIL(closed == 1);
    kelp_shard_link_retry_later(link_tested, 1);
    RUN_UNTIL(retried == 1);
    ck_assert_int_eq(unfit.status, KELP_OK);
    serve(true);
    kelp_shard_link_connect(link_tested);
    RUN_UNTIL(opened == 1);
}

/* Whoever listens there speaks another version, or goes without a word: gRPC is taken from then on,
 * where there is a choice. */
KELP_LOOP_TEST(offered_in_vain, 0, 4)
{
    const enum kelp_transport transport = _i < 2 ? KELP_TRANSPORT_AUTO : KELP_TRANSPORT_SHM;
    const struct kelp_shm_note note = {
        .kind = KELP_SHM_NOTE_HELLO, .value = 2, .length = KELP_SHM_PAGE_BYTES};
    int listener, other;

    serve(false);
    ck_assert_int_eq(kelp_shm_listen(path, &listener, NULL), KELP_OK);
    for (unsigned turn = 1; turn <= (transport == KELP_TRANSPORT_AUTO ? 1 : 2); turn++) {
        if (turn == 1) {
            open_link(transport);
        } else {
            kelp_shard_link_connect(link_tested);
        }
        ck_assert_int_eq(kelp_shm_accept(listener, &other, NULL), KELP_OK);
        if (_i % 2 == 0) {
            ck_assert_int_eq(kelp_shm_note_send(other, &note, listener), KELP_OK);
        } else {
            (void)close(other);
        }
        RUN_UNTIL(closed == turn);
        ck_assert_ptr_nonnull(strstr(kelp_shard_link_cause(link_tested),
                                     _i % 2 == 0 ? "speaks version 2 of shared memory, this one 1"
                                                 : "is gone or cancelled the stream"));
        if (_i % 2 == 0) {
            (void)close(other);
        }
    }
    if (transport == KELP_TRANSPORT_AUTO) {
        kelp_shard_link_connect(link_tested);
        RUN_UNTIL(opened == 1);
        ck_assert_ptr_null(strstr(peer, "through shared memory"));
    }
    (void)close(listener);
}

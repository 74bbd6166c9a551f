/* A real kelp-ps as primary, and a follower that a test plays: one that falls silent, one that
 * refuses, and one that does not take what is sent. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "tests/lib/cluster/shard_client.h"
#include "tests/lib/suite.h"

#define ELEMENTS   (4u << 20) /* 16 partitions of 1 MiB */
#define PARTITIONS 16
#define SILENCE_MS 500 /* failure.detect, and the least that a link waits */
#define UNDER_WAY  (2u << 20)
#define PIECE_MAX  (1u << 20)

static struct shard_fixture fixture;
static struct shard_stream control;

/* The follower. */
static struct {
    struct kelp_rpc_server *server;
    bool answers;        /* each message, as a shard does */
    kelp_status refuses; /* instead: all streams, after their hello */
    bool takes;          /* says how much has come of copies */
    unsigned streams;
    unsigned closed;
    unsigned messages;
    unsigned questions;
    uint64_t copied;
    unsigned complete;              /* copies */
    struct kelp_rpc_stream *stream; /* the newest */
} follower;

static void reply(struct kelp_rpc_stream *stream, const Kelp__V1__ReplicateRequest *request)
{
    Kelp__V1__ReplicateReply answer = KELP__V1__REPLICATE_REPLY__INIT;
    struct kelp_rpc_message *message = NULL;
    struct kelp_error error;
    Kelp__V1__Hello hello;
    Kelp__V1__Acknowledgement said[PARTITIONS];
    Kelp__V1__Acknowledgement *pointers[PARTITIONS];

    ck_assert_uint_le(request->n_question, PARTITIONS);
    for (size_t i = 0; i < request->n_question; i++) { /* it has nothing */
        kelp__v1__acknowledgement__init(&said[i]);
        said[i].partition = request->question[i]->partition;
        said[i].map_epoch = request->question[i]->map_epoch;
        pointers[answer.n_acknowledgement++] = &said[i];
    }
    answer.acknowledgement = pointers;
    if (request->hello) {
        shard_hello(&fixture, &hello, "shard-9");
        answer.hello = &hello;
    }
    answer.status = request->hello ? KELP_OK : follower.refuses;
    answer.generation = request->generation;
    answer.copied = follower.takes ? follower.copied : 0;
    ck_assert_int_eq(kelp_wire_encode(&answer.base, &message, &error), KELP_OK);
    (void)!kelp_rpc_stream_send(stream, message); /* it may have ended */
    if (answer.status != KELP_OK) {
        kelp_rpc_stream_close(stream, follower.refuses, "so the test wants it");
    }
}

static void on_message(struct kelp_rpc_stream *stream, struct kelp_rpc_message *message, void *user)
{
    struct kelp_wire_payload payload;
    ProtobufCMessage *fields = NULL;
    struct kelp_error error;

    (void)user;
    ck_assert_int_eq(kelp_wire_decode(message, &kelp__v1__replicate_request__descriptor, 1u << 20,
                                      &fields, &payload, &error),
                     KELP_OK);
    const Kelp__V1__ReplicateRequest *request = (const void *)fields;
    follower.stream = stream;
    follower.messages++;
    follower.questions += (unsigned)request->n_question;
    for (size_t i = 0; i < request->n_copy; i++) {
        follower.copied += request->copy[i]->length;
        follower.complete += request->copy[i]->state != NULL;
    }
    if (follower.answers) {
        reply(stream, request);
    }
    protobuf_c_message_free_unpacked(fields, NULL);
}

static void on_closed(struct kelp_rpc_stream *stream, kelp_status status, const char *text,
                      void *user)
{
    (void)status, (void)text, (void)user;
    follower.closed++;
    follower.stream = follower.stream == stream ? NULL : follower.stream;
}

static const struct kelp_rpc_stream_events events = {.message = on_message, .closed = on_closed};

static const struct kelp_rpc_stream_events *on_accept(struct kelp_rpc_stream *stream,
                                                      void *server_user, void **ret_user)
{
    (void)stream, (void)server_user;
    *ret_user = NULL;
    follower.streams++;
    follower.copied = 0;
    return &events;
}

static void set_up(void)
{
    static const char *const settings[] = {"failure.detect", "500ms", NULL};
    static const struct kelp_rpc_method methods[] = {
        {.path = "/kelp.v1.ParameterServer/Replicate", .accept = on_accept}};
    const struct kelp_rpc_server_options options = {.address = "127.0.0.1:0",
                                                    .message_bytes_max = 16u << 20,
                                                    .methods = methods,
                                                    .method_count = 1};
    struct kelp_error error = {.text = ""};

    memset(&follower, 0, sizeof(follower));
    follower.answers = true;
    shard_fixture_start(&fixture, settings, ELEMENTS, 16);
    ck_assert_uint_eq(fixture.plan.partition_count, PARTITIONS);
    shard_stream_open(&control, &fixture, "Control");
    ck_assert_msg(kelp_rpc_server_open(fixture.loop, &options, &follower.server, &error) == KELP_OK,
                  "%s", error.text);
}

static void tear_down(void)
{
    shard_stream_close(&control);
    kelp_rpc_server_close(follower.server);
    shard_fixture_stop(&fixture);
}

KELP_SUITE(.before = etcd_fixture_require)

/* The first map: all partitions on the shard, and the follower is their backup or joiner. */
static void load(bool as_joiner)
{
    Kelp__V1__ShardCommand command = KELP__V1__SHARD_COMMAND__INIT;
    Kelp__V1__Hello hello;
    Kelp__V1__Map map = KELP__V1__MAP__INIT;
    Kelp__V1__ShardPlace shards[2] = {KELP__V1__SHARD_PLACE__INIT, KELP__V1__SHARD_PLACE__INIT};
    Kelp__V1__ShardPlace *shard_pointers[] = {&shards[0], &shards[1]};
    Kelp__V1__PartitionPlace places[PARTITIONS];
    Kelp__V1__PartitionPlace *pointers[PARTITIONS];

    for (uint32_t i = 0; i < PARTITIONS; i++) {
        kelp__v1__partition_place__init(&places[i]);
        places[i].partition = i;
        places[i].map_epoch = 1;
        places[i].backup = as_joiner ? 0 : 2;
        places[i].joiner = as_joiner ? 2 : 0;
        pointers[i] = &places[i];
    }
    shards[0].shard = (char *)(uintptr_t) "shard-0"; /* only read, as all that follow */
    shards[0].incarnation = fixture.incarnation;
    shards[0].address = fixture.address;
    shards[1].shard = (char *)(uintptr_t) "shard-9";
    shards[1].incarnation = 77;
    shards[1].address = (char *)(uintptr_t)kelp_rpc_server_address(follower.server);
    map.generation = 1;
    map.serial = 1;
    map.n_shards = 2;
    map.shards = shard_pointers;
    map.n_partitions = PARTITIONS;
    map.partitions = pointers;
    shard_hello(&fixture, &hello, "coordinator-1");
    command.hello = &hello;
    command.proof = (char *)(uintptr_t)SHARD_PROOF;
    command.plan = fixture.plan_text;
    command.map = &map;
    shard_stream_send(&control, &command.base, NULL, 0);
}

/* Reports are not looked at. */
static void run_loop(int timeout_ms)
{
    (void)kelp_rpc_loop_run(fixture.loop, timeout_ms);
    while (control.message_count > 0) {
        kelp_rpc_message_unref(control.messages[--control.message_count]);
    }
}

#define AWAIT(condition)                                                                           \
    for (uint64_t until_ms = kelp_clock_ms() + SHARD_WAIT_MS; !(condition); run_loop(100)) {       \
        ck_assert_msg(kelp_clock_ms() < until_ms, "not seen: %s", #condition);                     \
    }

static void pass(uint32_t ms)
{
    const uint64_t until_ms = kelp_clock_ms() + ms;

    while (kelp_clock_ms() < until_ms) {
        run_loop(20);
    }
}

KELP_CASE("links", .timeout_s = 60, .setup = set_up, .teardown = tear_down)

/* One that is idle is never silent, since it is asked whether it lives. One that does not answer is
 * given up, and so is its connection. */
KELP_TEST(silent_follower_is_given_up)
{
    load(false);
    AWAIT(follower.questions >= PARTITIONS && follower.messages >= 20);
    ck_assert_uint_eq(follower.streams, 1);
    follower.answers = false;
    AWAIT(follower.closed == 1);
    follower.answers = true;
    const unsigned before = follower.questions;
    AWAIT(follower.questions >= before + PARTITIONS);
}

/* It is asked again less and less often, not as fast as the network goes. */
KELP_TEST(refusing_follower_is_not_hammered)
{
    follower.refuses = KELP_ERR_FORMAT;
    load(false);
    AWAIT(follower.closed >= 1);
    pass(2000);
    ck_assert_uint_lt(follower.streams, 20);
    follower.refuses = KELP_OK;
    const unsigned before = follower.messages;
    AWAIT(follower.messages >= before + 10);
}

/* What is not taken is not followed by more: what else is to be said waits behind little. */
KELP_TEST(copies_under_way_are_bounded)
{
    load(true);
    AWAIT(follower.copied >= UNDER_WAY);
    const unsigned before = follower.messages;
    AWAIT(follower.messages >= before + 10); /* which are asked for meanwhile */
    ck_assert_uint_lt(follower.copied, UNDER_WAY + PIECE_MAX);
    follower.takes = true;
    AWAIT(follower.complete == PARTITIONS);
    ck_assert_uint_eq(follower.copied, ELEMENTS * sizeof(float));
    ck_assert_uint_eq(follower.streams, 1);
}

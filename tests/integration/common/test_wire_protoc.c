/*
 * What goes over the wire is protobuf: an exchange runs through a real gRPC stream, the slices as
 * they were received are written to a file, and another implementation (protoc --decode) reads
 * them. Payloads are of a size that gRPC cuts into many slices.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/kelp.pb-c.h"
#include "proto/wire.h"
#include "tests/lib/suite.h"

#define BYTES_MAX     (8u << 20)
#define PAYLOAD_BYTES (3u * 100 * 1000 + 1) /* a length with a varint of three bytes */

static struct kelp_rpc_loop *loop;
static struct kelp_rpc_message *request_seen; /* as the server received it */
static struct kelp_rpc_message *reply_seen;   /* as the client received it */
static unsigned closed;
static uint8_t weights[PAYLOAD_BYTES];

static void nothing(void *user)
{
    (void)user;
}

static struct kelp_rpc_message *encode(const ProtobufCMessage *fields)
{
    struct kelp_rpc_message *message = NULL;

    ck_assert_int_eq(kelp_wire_encode_payload(fields, PAYLOAD_BYTES, &message, NULL), KELP_OK);
    /* In two pieces, as tensors are. */
    ck_assert_int_eq(kelp_rpc_message_borrow(message, weights, 1000, nothing, NULL), KELP_OK);
    ck_assert_int_eq(
        kelp_rpc_message_borrow(message, weights + 1000, PAYLOAD_BYTES - 1000, nothing, NULL),
        KELP_OK);
    return message;
}

static struct kelp_rpc_message *make_request(void)
{
    double sums[] = {0.5, 32};
    Kelp__V1__Hello hello = KELP__V1__HELLO__INIT;
    Kelp__V1__ControlWord word = KELP__V1__CONTROL_WORD__INIT;
    Kelp__V1__PushItem push = KELP__V1__PUSH_ITEM__INIT;
    Kelp__V1__PullItem pull = KELP__V1__PULL_ITEM__INIT;
    Kelp__V1__PushItem *pushes[] = {&push};
    Kelp__V1__PullItem *pulls[] = {&pull};
    Kelp__V1__ExchangeRequest request = KELP__V1__EXCHANGE_REQUEST__INIT;

    hello.job = (char *)"etth1";
    hello.incarnation = 0x1122334455667788u;
    word.version = 70000;
    word.lr = 0.001;
    push.lane_first = 4;
    push.lane_count = 2;
    push.length = PAYLOAD_BYTES;
    push.n_sums = 2;
    push.sums = sums;
    pull.partition = 9;
    pull.mode = KELP__V1__PULL_MODE__PULL_STEP;
    pull.step = 70001;
    request.hello = &hello;
    request.word = &word;
    request.generation = 3;
    request.n_push = 1;
    request.push = pushes;
    request.n_pull = 1;
    request.pull = pulls;
    return encode(&request.base);
}

static struct kelp_rpc_message *make_reply(void)
{
    Kelp__V1__PullAnswer answer = KELP__V1__PULL_ANSWER__INIT;
    Kelp__V1__PullAnswer *answers[] = {&answer};
    Kelp__V1__ExchangeReply reply = KELP__V1__EXCHANGE_REPLY__INIT;

    answer.partition = 9;
    answer.status = KELP_ERR_NOT_FOUND;
    answer.step = 70001;
    answer.length = PAYLOAD_BYTES;
    reply.generation = 3;
    reply.n_answer = 1;
    reply.answer = answers;
    return encode(&reply.base);
}

/* ---- the stream --------------------------------------------------------------------------------
 */

static void server_message(struct kelp_rpc_stream *stream, struct kelp_rpc_message *message,
                           void *user)
{
    (void)user;
    kelp_rpc_message_ref(message);
    request_seen = message;
    ck_assert_int_eq(kelp_rpc_stream_send(stream, make_reply()), KELP_OK);
}

static void client_message(struct kelp_rpc_stream *stream, struct kelp_rpc_message *message,
                           void *user)
{
    (void)user;
    kelp_rpc_message_ref(message);
    reply_seen = message;
    kelp_rpc_stream_close(stream, KELP_OK, NULL);
}

static void on_closed(struct kelp_rpc_stream *stream, kelp_status status, const char *text,
                      void *user)
{
    (void)stream;
    (void)user;
    ck_assert_msg(status == KELP_OK, "%s", text);
    closed++;
}

static const struct kelp_rpc_stream_events *accept_exchange(struct kelp_rpc_stream *stream,
                                                            void *server_user, void **ret_user)
{
    static const struct kelp_rpc_stream_events events = {server_message, on_closed};

    (void)stream;
    (void)server_user;
    *ret_user = NULL;
    return &events;
}

static void exchange(void)
{
    static const struct kelp_rpc_stream_events events = {client_message, on_closed};
    static const struct kelp_rpc_method method = {.path = "/kelp.v1.ParameterServer/Exchange",
                                                  .accept = accept_exchange};
    struct kelp_rpc_server_options options = {.address = "127.0.0.1:0",
                                              .message_bytes_max = BYTES_MAX,
                                              .methods = &method,
                                              .method_count = 1};
    struct kelp_rpc_server *server = NULL;
    struct kelp_rpc_channel *channel = NULL;
    struct kelp_rpc_stream *stream = NULL;
    char address[32];

    ck_assert_int_eq(kelp_rpc_loop_create(&loop, NULL), KELP_OK);
    ck_assert_int_eq(kelp_rpc_server_open(loop, &options, &server, NULL), KELP_OK);
    (void)snprintf(address, sizeof(address), "127.0.0.1:%u", kelp_rpc_server_port(server));
    ck_assert_int_eq(
        kelp_rpc_channel_open(loop, address, KELP_ROLE_SHARD, BYTES_MAX, &channel, NULL), KELP_OK);
    ck_assert_int_eq(
        kelp_rpc_stream_open(
            channel,
            &(struct kelp_rpc_stream_options){
                .path = method.path, .first_message_ms = 5000, .events = &events, .user = NULL},
            &stream, NULL),
        KELP_OK);
    ck_assert_int_eq(kelp_rpc_stream_send(stream, make_request()), KELP_OK);
    while (closed < 2) {
        (void)kelp_rpc_loop_run(loop, -1);
    }
    kelp_rpc_channel_close(channel);
    kelp_rpc_server_close(server);
    kelp_rpc_loop_destroy(loop);
}

/* ---- the other implementation ------------------------------------------------------------------
 */

static bool have_protoc(void)
{
    return system("protoc --version >/dev/null 2>&1") == 0;
}

/* protoc prints bytes as a C-like string with octal escapes; undo that. Returns the length. */
static size_t unescape(const char *text, uint8_t *bytes, size_t size)
{
    size_t length = 0;

    for (const char *at = text; *at && *at != '"'; length++) {
        ck_assert_uint_lt(length, size);
        if (*at != '\\') {
            bytes[length] = (uint8_t)*at++;
            continue;
        }
        static const char letters[] = "ntr\"'\\";
        static const char values[] = "\n\t\r\"'\\";
        const char *letter = strchr(letters, at[1]);
        if (letter) {
            bytes[length] = (uint8_t)values[letter - letters];
            at += 2;
        } else {
            bytes[length] = (uint8_t)((at[1] - '0') * 64 + (at[2] - '0') * 8 + (at[3] - '0'));
            at += 4;
        }
    }
    return length;
}

/* The text that protoc makes of a received message; owned by the caller. */
static char *decode_with_protoc(const struct kelp_rpc_message *message, const char *type)
{
    char folder[] = "/tmp/kelp-wire-XXXXXX";
    char path[64];
    char command[1024];
    const char *source = getenv("KELP_SOURCE") ? getenv("KELP_SOURCE") : ".";
    size_t size = PAYLOAD_BYTES * 4 + 4096;
    char *text = calloc(1, size);

    ck_assert_ptr_nonnull(text);
    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(path, sizeof(path), "%s/message", folder);
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    for (size_t i = 0; i < kelp_rpc_message_segment_count(message); i++) {
        struct kelp_rpc_segment segment = kelp_rpc_message_segment(message, i);
        ck_assert_uint_eq(fwrite(segment.bytes, 1, segment.length, file), segment.length);
    }
    ck_assert_int_eq(fclose(file), 0);
    (void)snprintf(command, sizeof(command), "protoc -I'%s' --decode=%s proto/kelp.proto <%s",
                   source, type, path);
    FILE *pipe = popen(command, "r");
    ck_assert_ptr_nonnull(pipe);
    size_t length = fread(text, 1, size - 1, pipe);
    ck_assert_uint_gt(length, 0);
    int status = pclose(pipe);
    (void)unlink(path);
    (void)rmdir(folder);
    ck_assert_int_eq(status, 0);
    return text;
}

static void check_text(const char *text, const char *expected_head)
{
    uint8_t *bytes = malloc(PAYLOAD_BYTES + 1);
    const char *payload = strstr(text, "payload: \"");

    ck_assert_ptr_nonnull(bytes);
    ck_assert_ptr_nonnull(payload);
    ck_assert_msg(strncmp(text, expected_head, strlen(expected_head)) == 0, "%.*s",
                  (int)(payload - text), text);
    ck_assert_uint_eq((size_t)(payload - text), strlen(expected_head));
    ck_assert_uint_eq(unescape(payload + strlen("payload: \""), bytes, PAYLOAD_BYTES + 1),
                      PAYLOAD_BYTES);
    ck_assert_mem_eq(bytes, weights, PAYLOAD_BYTES);
    free(bytes);
}

static void require_protoc(void)
{
    if (!have_protoc()) {
        kelp_suite_skip("protoc is not installed (package protobuf-compiler)");
    }
}

KELP_SUITE(.before = require_protoc)
KELP_CASE("protoc", .timeout_s = 60)

KELP_TEST(protoc_reads_what_we_sent)
{
    for (size_t i = 0; i < sizeof(weights); i++) {
        weights[i] = (uint8_t)(i * 2654435761u >> 13);
    }
    kelp_rpc_global_init();
    exchange();
    ck_assert_uint_gt(kelp_rpc_message_segment_count(request_seen), 1);

    char *text = decode_with_protoc(request_seen, "kelp.v1.ExchangeRequest");
    check_text(text, "hello {\n"
                     "  job: \"etth1\"\n"
                     "  incarnation: 1234605616436508552\n"
                     "}\n"
                     "generation: 3\n"
                     "word {\n"
                     "  version: 70000\n"
                     "  lr: 0.001\n"
                     "}\n"
                     "push {\n"
                     "  lane_first: 4\n"
                     "  lane_count: 2\n"
                     "  length: 300001\n"
                     "  sums: 0.5\n"
                     "  sums: 32\n"
                     "}\n"
                     "pull {\n"
                     "  partition: 9\n"
                     "  mode: PULL_STEP\n"
                     "  step: 70001\n"
                     "}\n");
    free(text);
    text = decode_with_protoc(reply_seen, "kelp.v1.ExchangeReply");
    check_text(text, "generation: 3\n"
                     "answer {\n"
                     "  partition: 9\n"
                     "  status: -42\n"
                     "  step: 70001\n"
                     "  length: 300001\n"
                     "}\n");
    free(text);
    kelp_rpc_message_unref(request_seen);
    kelp_rpc_message_unref(reply_seen);
    kelp_rpc_global_fini();
}

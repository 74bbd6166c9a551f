/* What encoding writes, decoding reads back, however the bytes are cut; and what is not a message
 * is refused with a reason. */
#include <stdlib.h>
#include <string.h>

#include "proto/kelp.pb-c.h"
#include "proto/wire.h"
#include "tests/lib/suite.h"
#include "tests/lib/wire_split.h"

#define FIELDS_MAX 65536

static uint8_t payload_bytes[5000];
static struct kelp_test_random generator;

static void setup(void)
{
    generator = (struct kelp_test_random){.state = 1};
    for (size_t i = 0; i < sizeof(payload_bytes); i++) {
        payload_bytes[i] = (uint8_t)kelp_test_random_next(&generator);
    }
}

static void nothing(void *user)
{
    (void)user;
}

/* An exchange of two pushed nodes with a payload of `length` bytes, as bytes. */
static uint8_t *encoded(size_t length, size_t *ret_length)
{
    double sums[] = {1.5, -2.25};
    Kelp__V1__PushItem items[2] = {KELP__V1__PUSH_ITEM__INIT, KELP__V1__PUSH_ITEM__INIT};
    Kelp__V1__PushItem *list[] = {&items[0], &items[1]};
    Kelp__V1__ExchangeRequest request = KELP__V1__EXCHANGE_REQUEST__INIT;
    struct kelp_rpc_message *message = NULL;

    items[0].partition = 3;
    items[0].length = length;
    items[1].partition = 300;
    items[1].n_sums = 2;
    items[1].sums = sums;
    request.generation = 7;
    request.n_push = 2;
    request.push = list;
    ck_assert_int_eq(kelp_wire_encode_payload(&request.base, length, &message, NULL), KELP_OK);
    if (length > 0) {
        ck_assert_int_eq(kelp_rpc_message_borrow(message, payload_bytes, length, nothing, NULL),
                         KELP_OK);
    }
    uint8_t *bytes = kelp_test_join(message, ret_length);
    kelp_rpc_message_unref(message);
    return bytes;
}

static kelp_status decode(struct kelp_rpc_message *message, Kelp__V1__ExchangeRequest **ret_request,
                          struct kelp_wire_payload *ret_payload, struct kelp_error *reterr)
{
    ProtobufCMessage *fields = NULL;
    kelp_status status = kelp_wire_decode(message, &kelp__v1__exchange_request__descriptor,
                                          FIELDS_MAX, &fields, ret_payload, reterr);

    if (status == KELP_OK) {
        *ret_request = (Kelp__V1__ExchangeRequest *)fields;
    }
    return status;
}

/* Decode raw bytes that must be refused. */
static void refuse(const uint8_t *bytes, size_t length, kelp_status expected, const char *text)
{
    struct kelp_rpc_message *message = kelp_test_split(bytes, length, 3, &generator);
    Kelp__V1__ExchangeRequest *request = NULL;
    struct kelp_wire_payload payload;
    struct kelp_error error = {0};

    ck_assert_int_eq(decode(message, &request, &payload, &error), expected);
    ck_assert_ptr_null(request);
    ck_assert_msg(strstr(error.text, text), "'%s' in '%s'", text, error.text);
    kelp_rpc_message_unref(message);
}

KELP_CASE("wire", .setup = setup)

/* Whatever the cuts, fields and payload come back. */
KELP_LOOP_TEST(round_trip, 0, 36)
{
    static const size_t lengths[] = {0, 1, 3, 127, 128, 4999};
    static const size_t cuts[] = {0, 1, 2, 7, 64, 1000};
    size_t length = lengths[_i % 6];
    size_t bytes_length = 0;
    uint8_t *bytes = encoded(length, &bytes_length);
    struct kelp_rpc_message *message =
        kelp_test_split(bytes, bytes_length, cuts[_i / 6], &generator);
    Kelp__V1__ExchangeRequest *request = NULL;
    struct kelp_wire_payload payload;
    uint8_t *got = malloc(length ? length : 1);

    ck_assert_int_eq(decode(message, &request, &payload, NULL), KELP_OK);
    ck_assert_uint_eq(request->generation, 7);
    ck_assert_uint_eq(request->n_push, 2);
    ck_assert_uint_eq(request->push[0]->length, length);
    ck_assert_uint_eq(request->push[1]->partition, 300);
    ck_assert_uint_eq(request->push[1]->n_sums, 2);
    ck_assert_double_eq(request->push[1]->sums[1], -2.25);
    ck_assert_uint_eq(request->payload.len, 0); /* not copied */
    ck_assert_uint_eq(payload.length, length);
    kelp_wire_payload_copy(&payload, 0, length, got);
    ck_assert_mem_eq(got, payload_bytes, length);
    for (size_t at = 0; at < length; at += length / 7 + 1) { /* any part of it */
        size_t part = kelp_test_random_below(&generator, length - at + 1);
        memset(got, 0, length);
        kelp_wire_payload_copy(&payload, at, part, got);
        ck_assert_mem_eq(got, payload_bytes + at, part);
    }
    protobuf_c_message_free_unpacked(&request->base, NULL);
    kelp_rpc_message_unref(message);
    free(got);
    free(bytes);
}

/* Every proper prefix of a message that ends inside a field is refused; no read beyond the end. */
KELP_TEST(truncated)
{
    size_t length = 0;
    uint8_t *bytes = encoded(100, &length);
    unsigned refused = 0;

    for (size_t cut = 0; cut < length; cut++) {
        struct kelp_rpc_message *message = kelp_test_split(bytes, cut, 5, &generator);
        Kelp__V1__ExchangeRequest *request = NULL;
        struct kelp_wire_payload payload;
        struct kelp_error error = {0};
        kelp_status status = decode(message, &request, &payload, &error);
        if (status == KELP_OK) { /* cut between two fields: a shorter, valid message */
            ck_assert_uint_eq(payload.length, 0);
            protobuf_c_message_free_unpacked(&request->base, NULL);
        } else {
            ck_assert_int_eq(status, KELP_ERR_FORMAT);
            ck_assert_uint_gt(strlen(error.text), 0);
            refused++;
        }
        kelp_rpc_message_unref(message);
    }
    ck_assert_uint_ge(refused, length - 6);
    free(bytes);
}

/* The payload may stand anywhere; unknown fields of every wire type are passed over. */
KELP_TEST(any_order)
{
    static const uint8_t bytes[] = {
        0x7a, 3,    'a',  'b',  'c',                /* payload first */
        0x10, 9,                                    /* generation */
        0xa0, 0x06, 0xff, 0x01,                     /* 100: varint */
        0xa9, 0x06, 1,    2,    3,   4, 5, 6, 7, 8, /* 101: 8 bytes */
        0xb2, 0x06, 2,    'x',  'y',                /* 102: length */
        0xbd, 0x06, 1,    2,    3,   4,             /* 103: 4 bytes */
    };
    struct kelp_rpc_message *message = kelp_test_split(bytes, sizeof(bytes), 2, &generator);
    Kelp__V1__ExchangeRequest *request = NULL;
    struct kelp_wire_payload payload;
    uint8_t got[3];

    ck_assert_int_eq(decode(message, &request, &payload, NULL), KELP_OK);
    ck_assert_uint_eq(request->generation, 9);
    ck_assert_uint_eq(payload.length, 3);
    kelp_wire_payload_copy(&payload, 0, 3, got);
    ck_assert_mem_eq(got, "abc", 3);
    protobuf_c_message_free_unpacked(&request->base, NULL);
    kelp_rpc_message_unref(message);
}

KELP_TEST(refusals)
{
    refuse((const uint8_t[]){0x7a, 1, 'a', 0x7a, 1, 'b'}, 6, KELP_ERR_FORMAT, "two payloads");
    refuse((const uint8_t[]){0x7a, 0, 0x7a, 0}, 4, KELP_ERR_FORMAT, "two payloads");
    refuse((const uint8_t[]){0x7a, 5, 'a'}, 3, KELP_ERR_FORMAT, "payload of 5 bytes has 1 left");
    refuse((const uint8_t[]){0x7a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}, 11,
           KELP_ERR_FORMAT, "cut off");
    refuse((const uint8_t[]){0x7a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1},
           12, KELP_ERR_FORMAT, "before its payload");
    refuse((const uint8_t[]){0x7a}, 1, KELP_ERR_FORMAT, "before its payload");
    refuse((const uint8_t[]){0x10}, 1, KELP_ERR_FORMAT, "cut off");
    refuse((const uint8_t[]){0x0a, 0x7f, 0}, 3, KELP_ERR_FORMAT, "cut off");
    refuse((const uint8_t[]){0x00, 0x00}, 2, KELP_ERR_FORMAT, "bad field tag");
    refuse((const uint8_t[]){0xff, 0xff, 0xff, 0xff, 0x7f, 0}, 6, KELP_ERR_FORMAT, "bad field tag");
    refuse((const uint8_t[]){0x13}, 1, KELP_ERR_FORMAT, "wire type 3");
    refuse((const uint8_t[]){0x17}, 1, KELP_ERR_FORMAT, "wire type 7");
    /* Well-formed at the top, broken inside: a Hello whose string runs beyond it. */
    refuse((const uint8_t[]){0x0a, 2, 0x0a, 9}, 4, KELP_ERR_FORMAT, "kelp.v1.ExchangeRequest");
}

/* The bound on what stands beside the payload holds, whatever length is claimed. */
KELP_TEST(fields_limit)
{
    static uint8_t bytes[FIELDS_MAX + 16] = {0xb2, 0x06, 0x80, 0x80, 0x04}; /* 65536 bytes */

    refuse(bytes, 5 + 65536, KELP_ERR_LIMIT, "more than 65536 bytes");
    bytes[2] = 0xf0;
    bytes[3] = 0xff;
    bytes[4] = 0x03; /* 65520 bytes */
    struct kelp_rpc_message *message = kelp_test_split(bytes, 5 + 65520, 999, &generator);
    Kelp__V1__ExchangeRequest *request = NULL;
    struct kelp_wire_payload payload;
    ck_assert_int_eq(decode(message, &request, &payload, NULL), KELP_OK);
    protobuf_c_message_free_unpacked(&request->base, NULL);
    kelp_rpc_message_unref(message);
}

#define LARGE_MAX (2u << 20) /* bytes of a worker's fields */

static kelp_status decode_large(const uint8_t *bytes, size_t length,
                                const ProtobufCMessageDescriptor *descriptor,
                                struct kelp_error *reterr)
{
    struct kelp_rpc_message *message = kelp_test_split(bytes, length, 4096, &generator);
    ProtobufCMessage *fields = NULL;

    kelp_status status = kelp_wire_decode(message, descriptor, LARGE_MAX, &fields, NULL, reterr);
    if (status == KELP_OK) {
        protobuf_c_message_free_unpacked(fields, NULL);
    }
    kelp_rpc_message_unref(message);
    return status;
}

/* Empty items have two bytes each and a structure in memory: they are counted before one is made,
 * at the top and inside other messages. */
KELP_TEST(empty_items)
{
    uint8_t *bytes = calloc(1, LARGE_MAX);
    struct kelp_error error = {.text = ""};
    const size_t inside = 1800000;

    ck_assert_ptr_nonnull(bytes);
    for (size_t i = 0; i + 1 < inside; i += 2) {
        bytes[i] = 0x2a; /* a pull */
    }
    ck_assert_int_eq(decode_large(bytes, inside, &kelp__v1__exchange_request__descriptor, &error),
                     KELP_ERR_LIMIT);
    ck_assert_msg(strstr(error.text, "take more than 8388608 bytes"), "%s", error.text);

    memcpy(bytes, (const uint8_t[]){0x22, 0xc0, 0xee, 0x6d}, 4); /* a map of 1800000 bytes */
    for (size_t i = 4; i + 1 < 4 + inside; i += 2) {
        bytes[i] = 0x1a; /* a shard */
        bytes[i + 1] = 0;
    }
    ck_assert_int_eq(decode_large(bytes, 4 + inside, &kelp__v1__shard_command__descriptor, &error),
                     KELP_ERR_LIMIT);
    memcpy(bytes + 4, (const uint8_t[]){0x1a, 0xff, 0xff, 0xff, 0x7f}, 5); /* one beyond the end */
    ck_assert_int_eq(decode_large(bytes, 4 + inside, &kelp__v1__shard_command__descriptor, &error),
                     KELP_ERR_FORMAT);
    free(bytes);
}

/* The largest that workers send is far from that bound. */
KELP_TEST(many_items)
{
    enum { COUNT = 2048, VALUES = 200000 };
    static Kelp__V1__PushItem pushes[COUNT];
    static Kelp__V1__PushItem *push_pointers[COUNT];
    static Kelp__V1__PullItem pulls[COUNT];
    static Kelp__V1__PullItem *pull_pointers[COUNT];
    static double values[VALUES];
    Kelp__V1__ExchangeRequest request = KELP__V1__EXCHANGE_REQUEST__INIT;
    struct kelp_rpc_message *message = NULL;
    struct kelp_error error = {.text = ""};
    size_t length = 0;

    for (uint32_t i = 0; i < COUNT; i++) {
        kelp__v1__push_item__init(&pushes[i]);
        pushes[i].partition = i;
        pushes[i].map_epoch = i;
        push_pointers[i] = &pushes[i];
        kelp__v1__pull_item__init(&pulls[i]);
        pulls[i].partition = i;
        pull_pointers[i] = &pulls[i];
    }
    request.n_push = COUNT;
    request.push = push_pointers;
    request.n_pull = COUNT;
    request.pull = pull_pointers;
    request.n_decision = VALUES;
    request.decision = values;
    ck_assert_int_eq(kelp_wire_encode(&request.base, &message, NULL), KELP_OK);
    uint8_t *bytes = kelp_test_join(message, &length);
    kelp_rpc_message_unref(message);
    ck_assert_int_eq(decode_large(bytes, length, &kelp__v1__exchange_request__descriptor, &error),
                     KELP_OK);
    free(bytes);
}

/* A message type without a payload has nothing special about field 15. */
KELP_TEST(without_payload)
{
    static const uint8_t bytes[] = {0x20, 5, 0x7a, 1, 'a', 0x7a, 1, 'b'};
    struct kelp_rpc_message *message = kelp_test_split(bytes, sizeof(bytes), 2, &generator);
    ProtobufCMessage *fields = NULL;
    struct kelp_wire_payload payload;

    ck_assert_int_eq(kelp_wire_decode(message, &kelp__v1__worker_report__descriptor, FIELDS_MAX,
                                      &fields, &payload, NULL),
                     KELP_OK);
    ck_assert_uint_eq(((Kelp__V1__WorkerReport *)fields)->assignment_epoch, 5);
    ck_assert_uint_eq(payload.length, 0);
    protobuf_c_message_free_unpacked(fields, NULL);
    kelp_rpc_message_unref(message);
}

static unsigned released;
static void count_release(void *user)
{
    (void)user;
    released++;
}

/* Borrowed memory is given back once, when the last reference goes; refusing it gives nothing back.
 */
KELP_TEST(message_ownership)
{
    struct kelp_rpc_message *message = kelp_rpc_message_create();

    released = 0;
    ck_assert_int_eq(kelp_rpc_message_copy(message, "ab", 2), KELP_OK);
    ck_assert_int_eq(kelp_rpc_message_copy(message, NULL, 0), KELP_OK);
    ck_assert_int_eq(kelp_rpc_message_borrow(message, payload_bytes, 10, count_release, NULL),
                     KELP_OK);
    ck_assert_int_eq(
        kelp_rpc_message_borrow(message, payload_bytes, (size_t)1 << 31, count_release, NULL),
        KELP_ERR_LIMIT);
    ck_assert_ptr_null(kelp_rpc_message_extend(message, SIZE_MAX));
    ck_assert_uint_eq(kelp_rpc_message_length(message), 12);
    ck_assert_uint_eq(kelp_rpc_message_segment_count(message), 2);
    ck_assert_ptr_eq(kelp_rpc_message_segment(message, 1).bytes, payload_bytes); /* no copy */
    kelp_rpc_message_ref(message);
    kelp_rpc_message_unref(message);
    ck_assert_uint_eq(released, 0);
    kelp_rpc_message_unref(message);
    ck_assert_uint_eq(released, 1);
    kelp_rpc_message_unref(NULL);
}

/* Texts for people hold no control characters, wherever they stand; other bytes stay. */
KELP_TEST(clean_texts)
{
    static char state[] = "run\x1b[2Jning\x07\x7f", reason[] = "Caf\xc3\xa9\nkelp: done",
                address[] = "\t10.0.0.1";
    Kelp__V1__StatusReply reply = KELP__V1__STATUS_REPLY__INIT;
    Kelp__V1__ShardInfo shard = KELP__V1__SHARD_INFO__INIT;
    Kelp__V1__ShardInfo *shards[] = {&shard};

    reply.state = state;
    reply.reason = reason;
    shard.address = address;
    reply.shards = shards;
    reply.n_shards = 1;
    kelp_wire_clean(&reply.base);
    ck_assert_str_eq(reply.state, "run [2Jning  ");
    ck_assert_str_eq(reply.reason, "Caf\xc3\xa9 kelp: done");
    ck_assert_str_eq(shard.address, " 10.0.0.1");
    ck_assert_str_eq(reply.job, "");
}

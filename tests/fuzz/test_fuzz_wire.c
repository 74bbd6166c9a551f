/*
 * Wire messages from outside: random bytes, and valid messages with bytes changed, doubled, removed
 * and cut, in segments of random lengths. Decoding must refuse or give something that is safe to
 * read in full; what it accepts must decode to the same again however it is cut.
 *
 * As an ordinary test it runs a fixed number of seeds; a failure names its seed.
 */
#include <stdlib.h>
#include <string.h>

#include "proto/kelp.pb-c.h"
#include "proto/wire.h"
#include "tests/lib/fuzz.h"
#include "tests/lib/suite.h"
#include "tests/lib/wire_split.h"

#define SEEDS      64
#define ROUNDS     400
#define BYTES_MAX  4096
#define FIELDS_MAX 2000

static const ProtobufCMessageDescriptor *const descriptors[] = {
    &kelp__v1__exchange_request__descriptor, &kelp__v1__exchange_reply__descriptor,
    &kelp__v1__shard_command__descriptor,    &kelp__v1__shard_report__descriptor,
    &kelp__v1__worker_report__descriptor,    &kelp__v1__worker_command__descriptor,
    &kelp__v1__status_reply__descriptor,
};

/* A valid exchange to begin from. */
static size_t valid(struct kelp_test_random *random, uint8_t *bytes)
{
    Kelp__V1__Hello hello = KELP__V1__HELLO__INIT;
    Kelp__V1__PullItem item = KELP__V1__PULL_ITEM__INIT;
    Kelp__V1__PullItem *items[] = {&item, &item, &item};
    Kelp__V1__ExchangeRequest request = KELP__V1__EXCHANGE_REQUEST__INIT;
    size_t payload = kelp_test_random_below(random, 300);

    hello.job = (char *)"job";
    hello.id = (char *)"worker-0";
    hello.incarnation = kelp_test_random_next(random);
    item.partition = (uint32_t)kelp_test_random_below(random, 1024);
    item.step = kelp_test_random_next(random);
    request.hello = &hello;
    request.n_pull = kelp_test_random_below(random, 4);
    request.pull = items;
    size_t length = protobuf_c_message_pack(&request.base, bytes);
    bytes[length++] = 0x7a;
    if (payload >= 0x80) {
        bytes[length++] = (uint8_t)(payload | 0x80);
        bytes[length++] = (uint8_t)(payload >> 7);
    } else {
        bytes[length++] = (uint8_t)payload;
    }
    for (size_t i = 0; i < payload; i++) {
        bytes[length++] = (uint8_t)kelp_test_random_next(random);
    }
    return length;
}

static size_t mutate(struct kelp_test_random *random, uint8_t *bytes, size_t length)
{
    size_t changes = kelp_test_random_below(random, 6);

    for (size_t i = 0; i < changes && length > 1; i++) {
        size_t at = kelp_test_random_below(random, length);
        size_t count = kelp_test_random_below(random, length - at);
        switch (kelp_test_random_below(random, 5)) {
        case 0:
            bytes[at] = (uint8_t)kelp_test_random_next(random);
            break;
        case 1:
            bytes[at] ^= (uint8_t)(1u << kelp_test_random_below(random, 8));
            break;
        case 2: /* cut the end off */
            length = at + 1;
            break;
        case 3: /* take a part out */
            memmove(bytes + at, bytes + at + count, length - at - count);
            length -= count;
            break;
        default: /* repeat a part at the end */
            if (length + count <= BYTES_MAX) {
                memmove(bytes + length, bytes + at, count);
                length += count;
            }
            break;
        }
    }
    return length;
}

/* Decode; what was accepted is packed again, to touch all of it. Returns the packed fields followed
 * by the payload (owned), or NULL. */
static uint8_t *digest(const ProtobufCMessageDescriptor *descriptor,
                       struct kelp_rpc_message *message, size_t *ret_length)
{
    ProtobufCMessage *fields = NULL;
    struct kelp_wire_payload payload;
    struct kelp_error error = {0};
    kelp_status status =
        kelp_wire_decode(message, descriptor, FIELDS_MAX, &fields, &payload, &error);

    if (status != KELP_OK) {
        ck_assert(status == KELP_ERR_FORMAT || status == KELP_ERR_LIMIT);
        ck_assert_uint_gt(strlen(error.text), 0);
        return NULL;
    }
    size_t packed = protobuf_c_message_get_packed_size(fields);
    uint8_t *bytes = malloc(packed + payload.length + 1);
    ck_assert_ptr_nonnull(bytes);
    ck_assert_uint_eq(protobuf_c_message_pack(fields, bytes), packed);
    kelp_wire_payload_copy(&payload, 0, payload.length, bytes + packed);
    *ret_length = packed + payload.length;
    protobuf_c_message_free_unpacked(fields, NULL);
    return bytes;
}

/* Whether it was accepted, which must not depend on where it is cut. */
static bool compare_cuts(const ProtobufCMessageDescriptor *descriptor, const uint8_t *bytes,
                         size_t length, struct kelp_test_random *random)
{
    struct kelp_rpc_message *whole = kelp_test_split(bytes, length, 0, random);
    struct kelp_rpc_message *cut =
        kelp_test_split(bytes, length, 1 + kelp_test_random_below(random, 40), random);
    size_t a_length = 0;
    size_t b_length = 0;
    uint8_t *a = digest(descriptor, whole, &a_length);
    uint8_t *b = digest(descriptor, cut, &b_length);
    bool accepted = a != NULL;

    ck_assert((a == NULL) == (b == NULL));
    if (accepted) {
        ck_assert_uint_eq(a_length, b_length);
        ck_assert_mem_eq(a, b, a_length);
    }
    free(a);
    free(b);
    kelp_rpc_message_unref(whole);
    kelp_rpc_message_unref(cut);
    return accepted;
}

KELP_CASE("wire", .timeout_s = 60)

KELP_LOOP_TEST(hostile_messages, 0, SEEDS)
{
    struct kelp_test_random random = {.state = (uint64_t)_i + 1};
    static uint8_t bytes[BYTES_MAX];
    unsigned accepted = 0;

    for (unsigned round = 0; round < ROUNDS; round++) {
        size_t length = 0;
        if (round % 4 == 0) {
            length = kelp_test_random_below(&random, 200);
            for (size_t i = 0; i < length; i++) {
                bytes[i] = (uint8_t)kelp_test_random_next(&random);
            }
        } else {
            length = mutate(&random, bytes, valid(&random, bytes));
        }
        const ProtobufCMessageDescriptor *descriptor =
            descriptors[round % 2 ? 0
                                  : kelp_test_random_below(&random, KELP_ARRAY_COUNT(descriptors))];
        accepted += compare_cuts(descriptor, bytes, length, &random);
    }
    ck_assert_uint_gt(accepted, ROUNDS / 20); /* or the inputs would not get far */
}

/* The first byte chooses the message, and so how it is cut. */
static const char *try_message(const uint8_t *bytes, size_t count)
{
    if (count > 0) {
        struct kelp_test_random random = {.state = bytes[0] + UINT64_C(1)};
        (void)compare_cuts(descriptors[bytes[0] % KELP_ARRAY_COUNT(descriptors)], bytes + 1,
                           count - 1, &random);
    }
    return NULL;
}

#define MESSAGES 8

KELP_LOOP_TEST(damaged_messages, 0, SEEDS / 4)
{
    static uint8_t bytes[MESSAGES][BYTES_MAX + 1];
    struct kelp_test_random random = {.state = 1};
    static const char *const words[] = {"\x0a", "\x7a", "\xff\xff\xff\xff\x0f", "\x01"};
    struct kelp_fuzz_seed seeds[MESSAGES];

    for (size_t i = 0; i < MESSAGES; i++) {
        bytes[i][0] = (uint8_t)i;
        seeds[i] = (struct kelp_fuzz_seed){bytes[i], 1 + valid(&random, bytes[i] + 1)};
    }
    const struct kelp_fuzz fuzz = {.name = "messages",
                                   .seeds = seeds,
                                   .seed_count = MESSAGES,
                                   .words = words,
                                   .word_count = KELP_ARRAY_COUNT(words),
                                   .target = try_message};
    (void)kelp_fuzz_run(&fuzz, (uint64_t)_i * ROUNDS, ROUNDS);
}

#include "tests/lib/wire_split.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

uint64_t kelp_test_random_next(struct kelp_test_random *random)
{
    uint64_t state = random->state ? random->state : 0x9e3779b97f4a7c15u;

    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    random->state = state;
    return state * 0x2545f4914f6cdd1du;
}

size_t kelp_test_random_below(struct kelp_test_random *random, size_t below)
{
    return (size_t)(kelp_test_random_next(random) % below);
}

struct kelp_rpc_message *kelp_test_split(const uint8_t *bytes, size_t length, size_t segment_max,
                                         struct kelp_test_random *random)
{
    struct kelp_rpc_message *message = kelp_rpc_message_create();

    ck_assert_ptr_nonnull(message);
    for (size_t at = 0; at < length;) {
        size_t piece = segment_max ? kelp_test_random_below(random, segment_max + 1) : length;
        piece = piece < length - at ? piece : length - at;
        uint8_t *copy = malloc(piece ? piece : 1);
        ck_assert_ptr_nonnull(copy);
        memcpy(copy, bytes + at, piece);
        ck_assert_int_eq(kelp_rpc_message_borrow(message, copy, piece, free, copy), KELP_OK);
        at += piece;
    }
    return message;
}

uint8_t *kelp_test_join(const struct kelp_rpc_message *message, size_t *ret_length)
{
    size_t length = kelp_rpc_message_length(message);
    uint8_t *bytes = malloc(length ? length : 1);
    size_t at = 0;

    ck_assert_ptr_nonnull(bytes);
    for (size_t i = 0; i < kelp_rpc_message_segment_count(message); i++) {
        struct kelp_rpc_segment segment = kelp_rpc_message_segment(message, i);
        memcpy(bytes + at, segment.bytes, segment.length);
        at += segment.length;
    }
    ck_assert_uint_eq(at, length);
    *ret_length = length;
    return bytes;
}

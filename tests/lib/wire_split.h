/*
 * Messages as a network may deliver them: the same bytes in segments of odd lengths.
 */
#ifndef KELP_TESTS_LIB_WIRE_SPLIT_H
#define KELP_TESTS_LIB_WIRE_SPLIT_H

#include <stdint.h>

#include "common/rpc/rpc.h"

/* A small random generator (xorshift64*) whose sequence depends only on the seed. */
struct kelp_test_random {
    uint64_t state;
};
uint64_t kelp_test_random_next(struct kelp_test_random *random);
/* 0 … below - 1; below > 0. */
size_t kelp_test_random_below(struct kelp_test_random *random, size_t below);

/* bytes[0, length) in segments of 0 to segment_max bytes (segment_max 0: one segment). Each segment
 * is a copy that ends where its memory ends, so that the address sanitizer sees a read past it. */
struct kelp_rpc_message *kelp_test_split(const uint8_t *bytes, size_t length, size_t segment_max,
                                         struct kelp_test_random *random);

/* All bytes of a message in one piece; owned by the caller (free()). */
uint8_t *kelp_test_join(const struct kelp_rpc_message *message, size_t *ret_length);

#endif

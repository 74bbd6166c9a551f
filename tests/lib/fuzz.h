/*
 * Tests decoders with damaged input. Seeds are changed at random. Each input is determined by its
 * number, so a failure can be repeated by that number. With sanitizers it finds what libFuzzer
 * would find first; it also runs as an ordinary test.
 */
#ifndef KELP_TESTS_LIB_FUZZ_H
#define KELP_TESTS_LIB_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "tests/lib/suite.h"

struct kelp_fuzz_seed {
    const void *bytes;
    size_t count;
};
#define KELP_FUZZ_TEXT(text)                                                                       \
    {                                                                                              \
        .bytes = (text), .count = sizeof(text) - 1                                                 \
    }

struct kelp_fuzz {
    const char *name; /* of the target, unique in its program */
    const struct kelp_fuzz_seed *seeds;
    size_t seed_count;
    const char *const *words; /* words of the format, which are inserted whole; none is empty */
    size_t word_count;
    /* Returns NULL if the decoder behaved, otherwise what is wrong. The bytes are a heap block of
     * exactly `count`, so that sanitizers see a read past them. */
    const char *(*target)(const uint8_t *bytes, size_t count);
};

/* Run inputs [first, first + count); fails the Check test with the number of the input. With
 * KELP_FUZZ_TRACE in the environment each number is printed before it runs, for crashes; with
 * KELP_FUZZ_TIMES=N there are N times as many inputs (CK_TIMEOUT_MULTIPLIER=N too).
 *
 * With KELP_FUZZ_SECONDS=N libFuzzer chooses the inputs instead, in the call whose first is 0.
 * Returns false then: the target ran in another process, and nothing is known of its counts. */
bool kelp_fuzz_run(const struct kelp_fuzz *fuzz, uint64_t first, uint64_t count);

/* The usual test: this many inputs from arrays of seeds and words, in blocks with a process
 * each. */
#define KELP_FUZZ_BLOCK 1000
#define KELP_FUZZ_TEST(test_name, inputs, seed_array, word_array, target_function)                 \
    KELP_LOOP_TEST(test_name, 0, (inputs) / KELP_FUZZ_BLOCK)                                       \
    {                                                                                              \
        static const struct kelp_fuzz fuzz = {.name = #test_name,                                  \
                                              .seeds = (seed_array),                               \
                                              .seed_count = KELP_ARRAY_COUNT(seed_array),          \
                                              .words = (word_array),                               \
                                              .word_count = KELP_ARRAY_COUNT(word_array),          \
                                              .target = (target_function)};                        \
        (void)kelp_fuzz_run(&fuzz, (uint64_t)_i *KELP_FUZZ_BLOCK, KELP_FUZZ_BLOCK);                \
    }

#endif

/*
 * Decoders on damaged input: seeds are changed at random, and each input follows from its number,
 * so that a failure is found again by that number. Under the sanitizers this is what libFuzzer
 * would find first; it also runs as an ordinary test.
 */
#ifndef KELP_TESTS_LIB_FUZZ_H
#define KELP_TESTS_LIB_FUZZ_H

#include <stddef.h>
#include <stdint.h>

struct kelp_fuzz_seed {
    const void *bytes;
    size_t count;
};
#define KELP_FUZZ_TEXT(text)                                                                       \
    {                                                                                              \
        .bytes = (text), .count = sizeof(text) - 1                                                 \
    }

struct kelp_fuzz {
    const struct kelp_fuzz_seed *seeds;
    size_t seed_count;
    const char *const *words; /* what the format is made of: inserted whole */
    size_t word_count;
    /* NULL when all holds, else what does not. The bytes are a heap block of exactly `count`, so
     * that reading past them is seen. */
    const char *(*target)(const uint8_t *bytes, size_t count);
};

/* Run inputs [first, first + count); fails the Check test with the number of the input. With
 * KELP_FUZZ_TRACE in the environment each number is printed before it runs, for crashes. */
void kelp_fuzz_run(const struct kelp_fuzz *fuzz, uint64_t first, uint64_t count);

#endif

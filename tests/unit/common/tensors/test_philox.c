#include <stdlib.h>
#include <string.h>

#include "common/tensors/philox.h"
#include "tests/lib/suite.h"

/* The vectors of Random123's kat_vectors for philox4x32 with 10 rounds. */
static const struct {
    uint32_t counter[4];
    uint32_t key[2];
    uint32_t expected[4];
} known[] = {
    {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
     {0xffffffff, 0xffffffff},
     {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
     {0xa4093822, 0x299f31d0},
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

/* The raw function is Philox4x32-10. */
KELP_LOOP_TEST(test_known_answers, 0, sizeof(known) / sizeof(known[0]))
{
    uint32_t words[4];

    kelp_philox_block(known[_i].counter, known[_i].key, words);
    ck_assert_mem_eq(words, known[_i].expected, sizeof(words));
}

/* Seed, use, stream and index each change the block. */
KELP_TEST(test_arguments_matter)
{
    uint32_t base[4], other[4];
    const uint64_t wide = UINT64_C(1) << 32;

    kelp_philox(1, KELP_PHILOX_INIT, 0, 0, base);
    kelp_philox(1 + wide, KELP_PHILOX_INIT, 0, 0, other);
    ck_assert_mem_ne(base, other, sizeof(base));
    kelp_philox(1, KELP_PHILOX_DATA, 0, 0, other);
    ck_assert_mem_ne(base, other, sizeof(base));
    kelp_philox(1, KELP_PHILOX_INIT, 1, 0, other);
    ck_assert_mem_ne(base, other, sizeof(base));
    kelp_philox(1, KELP_PHILOX_INIT, 0, wide, other);
    ck_assert_mem_ne(base, other, sizeof(base));
    kelp_philox(1, KELP_PHILOX_INIT, 0, 0, other);
    ck_assert_mem_eq(base, other, sizeof(base));
}

/* Conversions stay in [0, 1) and [0, bound) at both ends of a word's range. */
KELP_TEST(test_ranges)
{
    ck_assert_float_eq(kelp_philox_float(0), 0.0f);
    ck_assert_float_eq(kelp_philox_float(0xffffffff), 1.0f - 0x1p-24f);
    ck_assert_uint_eq(kelp_philox_below(0xffffffff, 0xffffffff, 1), 0);
    ck_assert_uint_eq(kelp_philox_below(0xffffffff, 0xffffffff, 7), 6);
    ck_assert_uint_eq(kelp_philox_below(0, 0, 7), 0);
    ck_assert_uint_eq(kelp_philox_below(0x80000000, 0, 10), 5);
}

/* Floats are uniform: mean and variance of 100,000 lie within five standard errors. */
KELP_TEST(test_moments)
{
    double sum = 0, squares = 0;
    const uint32_t count = 100000;

    for (uint32_t i = 0; i < count / 4; i++) {
        uint32_t words[4];
        kelp_philox(7, KELP_PHILOX_TEST, 0, i, words);
        for (int j = 0; j < 4; j++) {
            double value = (double)kelp_philox_float(words[j]);
            sum += value;
            squares += value * value;
        }
    }
    ck_assert_double_eq_tol(sum / count, 0.5, 0.005);
    ck_assert_double_eq_tol(squares / count, 1.0 / 3, 0.005);
}

/* These numbers are for ever: another order of samples is another digest for every job. */
KELP_TEST(test_permutation_known)
{
    static const uint64_t expected[8] = {2292, 7197, 6714, 622, 6135, 1447, 324, 800};
    struct kelp_permutation permutation;

    kelp_permutation_init(&permutation, 2024, 3, 8449);
    for (uint64_t i = 0; i < 8; i++) {
        ck_assert_uint_eq(kelp_permutation_at(&permutation, i * 1000), expected[i]);
    }
}

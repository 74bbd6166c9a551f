#include <stdlib.h>
#include <string.h>

#include "common/tensors/philox.h"
#include "tests/lib/suite.h"

#define SIZE_MAX_TESTED 20000

KELP_CASE("permutation", .timeout_s = 60)

/* For every size up to 600 and some larger ones, each position gives another number below n,
 * which is found at that position. */
KELP_LOOP_TEST(test_bijection, 0, 609)
{
    static const uint64_t large[] = {1023, 1024, 1025, 4099, 8449, 9999, 16384, 19999, 20000};
    static unsigned char seen[SIZE_MAX_TESTED];
    uint64_t n = _i < 600 ? (uint64_t)_i + 1 : large[_i - 600];

    for (uint32_t epoch = 0; epoch < 3; epoch++) {
        struct kelp_permutation permutation;
        kelp_permutation_init(&permutation, n * 7919, epoch, n);
        memset(seen, 0, sizeof(seen));
        for (uint64_t position = 0; position < n; position++) {
            uint64_t sample = kelp_permutation_at(&permutation, position);
            /* Not an assertion each: Check writes to a pipe for every one. */
            if (sample >= n || seen[sample]++ != 0 ||
                kelp_permutation_find(&permutation, sample) != position) {
                ck_abort_msg("n %llu: %llu gives %llu", (unsigned long long)n,
                             (unsigned long long)position, (unsigned long long)sample);
            }
        }
    }
}

/* Sizes up to the largest: results are below n, and neighbours do not collide. */
KELP_LOOP_TEST(test_large, 0, 6)
{
    static const uint64_t sizes[] = {UINT64_C(1) << 31,         (UINT64_C(1) << 32) + 15,
                                     UINT64_C(1000000000039),   (UINT64_C(1) << 61) + 1,
                                     KELP_PERMUTATION_MAX - 58, KELP_PERMUTATION_MAX};
    struct kelp_permutation permutation;
    uint64_t n = sizes[_i], previous = n;

    kelp_permutation_init(&permutation, 3, 1, n);
    ck_assert_uint_le(permutation.sides[0], UINT64_C(1) << 31);
    ck_assert_uint_le(permutation.sides[1], UINT64_C(1) << 31);
    ck_assert(permutation.sides[0] * permutation.sides[1] >= n);
    for (uint64_t i = 0; i < 1000; i++) {
        uint64_t sample = kelp_permutation_at(&permutation, n - 1 - i);
        ck_assert_uint_lt(sample, n);
        ck_assert_uint_ne(sample, previous);
        ck_assert_uint_eq(kelp_permutation_find(&permutation, sample), n - 1 - i);
        previous = sample;
    }
}

/* Order follows seed and epoch, and looks shuffled: over many epochs, each of 10 samples stands
 * first about as often as the others. */
KELP_TEST(test_spread)
{
    uint32_t first[10] = {0};
    struct kelp_permutation permutation, other;
    const uint32_t epochs = 20000;

    for (uint32_t epoch = 0; epoch < epochs; epoch++) {
        kelp_permutation_init(&permutation, 11, epoch, 10);
        first[kelp_permutation_at(&permutation, 0)]++;
    }
    for (int i = 0; i < 10; i++) {
        /* 2000 expected, standard deviation 42: five of them. */
        ck_assert_uint_gt(first[i], 1790);
        ck_assert_uint_lt(first[i], 2210);
    }
    uint32_t same = 0;
    kelp_permutation_init(&permutation, 11, 0, 10000);
    kelp_permutation_init(&other, 12, 0, 10000);
    for (uint64_t i = 0; i < 10000; i++) {
        same += kelp_permutation_at(&permutation, i) == kelp_permutation_at(&other, i);
    }
    ck_assert_uint_lt(same, 10); /* one expected */
}

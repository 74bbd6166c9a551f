#include "common/tensors/philox.h"

#include <assert.h>

#define PHILOX_ROUNDS   10
#define PHILOX_MULTIPLY UINT64_C(0xD2511F53)
#define PHILOX_SECOND   UINT64_C(0xCD9E8D57)
#define PHILOX_WEYL     0x9E3779B9u /* golden ratio */
#define PHILOX_WEYL2    0xBB67AE85u /* sqrt(3) - 1 */

void kelp_philox_block(const uint32_t counter[4], const uint32_t key[2], uint32_t ret_words[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];

    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        uint64_t first = PHILOX_MULTIPLY * c0;
        uint64_t second = PHILOX_SECOND * c2;
        c0 = (uint32_t)(second >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)second;
        c2 = (uint32_t)(first >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)first;
        k0 += PHILOX_WEYL;
        k1 += PHILOX_WEYL2;
    }
    ret_words[0] = c0;
    ret_words[1] = c1;
    ret_words[2] = c2;
    ret_words[3] = c3;
}

void kelp_philox(uint64_t seed, enum kelp_philox_use use, uint32_t stream, uint64_t index,
                 uint32_t ret_words[4])
{
    const uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), stream, (uint32_t)use};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};

    kelp_philox_block(counter, key, ret_words);
}

float kelp_philox_float(uint32_t word)
{
    return (float)(word >> 8) * 0x1p-24f;
}

uint64_t kelp_philox_below(uint32_t high, uint32_t low, uint64_t bound)
{
    assert(bound > 0);
    uint64_t word = (uint64_t)high << 32 | low;

    return (uint64_t)(((unsigned __int128)word * bound) >> 64);
}

/* Smallest r with r * r >= n, n at most 2^62: in integers, so that no rounding mode matters. */
static uint64_t sqrt_up(uint64_t n)
{
    uint64_t low = 0, high = UINT64_C(1) << 31;

    while (low < high) {
        uint64_t middle = (low + high) / 2;
        if (middle * middle >= n) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

void kelp_permutation_init(struct kelp_permutation *permutation, uint64_t seed, uint32_t epoch,
                           uint64_t n)
{
    assert(n <= KELP_PERMUTATION_MAX);

    permutation->n = n;
    permutation->sides[0] = n > 0 ? sqrt_up(n) : 1;
    permutation->sides[1] = n > 0 ? (n + permutation->sides[0] - 1) / permutation->sides[0] : 1;
    for (uint64_t pair = 0; pair < KELP_PERMUTATION_ROUNDS / 2; pair++) {
        uint32_t words[4];
        kelp_philox(seed, KELP_PHILOX_PERMUTATION, epoch, pair, words);
        permutation->keys[2 * pair] = (uint64_t)words[0] << 32 | words[1];
        permutation->keys[2 * pair + 1] = (uint64_t)words[2] << 32 | words[3];
    }
}

/* The round function: any function of (value, key) gives a bijection; this one (the finaliser of
 * SplitMix64) mixes well. The result is below bound, which is at most 2^31. */
static uint64_t round_value(uint64_t value, uint64_t key, uint64_t bound)
{
    uint64_t h = value * UINT64_C(0x9E3779B97F4A7C15) + key;

    h = (h ^ h >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    h = (h ^ h >> 27) * UINT64_C(0x94D049BB133111EB);
    h ^= h >> 31;
    return ((h >> 32) * bound) >> 32;
}

static uint64_t permute_cell(const struct kelp_permutation *permutation, uint64_t cell)
{
    uint64_t halves[2] = {cell / permutation->sides[1], cell % permutation->sides[1]};

    for (unsigned round = 0; round < KELP_PERMUTATION_ROUNDS; round++) {
        unsigned changed = round % 2;
        uint64_t side = permutation->sides[changed];
        uint64_t sum =
            halves[changed] + round_value(halves[1 - changed], permutation->keys[round], side);
        halves[changed] = sum >= side ? sum - side : sum;
    }
    return halves[0] * permutation->sides[1] + halves[1];
}

uint64_t kelp_permutation_at(const struct kelp_permutation *permutation, uint64_t position)
{
    assert(position < permutation->n);

    /* The walk ends because it follows a cycle of a bijection that contains position itself.
     * Fewer than sqrt(n) + 1 cells lie outside, so that it is almost always one step. */
    do {
        position = permute_cell(permutation, position);
    } while (position >= permutation->n);
    return position;
}

/* The rounds in reverse. */
static uint64_t find_cell(const struct kelp_permutation *permutation, uint64_t cell)
{
    uint64_t halves[2] = {cell / permutation->sides[1], cell % permutation->sides[1]};

    for (unsigned round = KELP_PERMUTATION_ROUNDS; round > 0; round--) {
        unsigned changed = (round - 1) % 2;
        uint64_t side = permutation->sides[changed];
        uint64_t added = round_value(halves[1 - changed], permutation->keys[round - 1], side);
        halves[changed] =
            halves[changed] >= added ? halves[changed] - added : halves[changed] + side - added;
    }
    return halves[0] * permutation->sides[1] + halves[1];
}

uint64_t kelp_permutation_find(const struct kelp_permutation *permutation, uint64_t number)
{
    assert(number < permutation->n);

    /* The same walk in reverse. */
    do {
        number = find_cell(permutation, number);
    } while (number >= permutation->n);
    return number;
}
